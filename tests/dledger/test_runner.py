"""Members that run, with real files and threads, whose lines are calls."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from spark_mq.dledger.files import MemberFiles
from spark_mq.dledger.messages import (
    AppendEntryResponse,
    DLedgerCode,
    DLedgerMessage,
    DLedgerRequestCode,
    LedgerEntry,
    make_entry,
)
from spark_mq.dledger.runner import ByIndex, DivergedError, Runner, RunnerEndedError
from spark_mq.dledger.state import Diverged, DLedgerSettings, Effect, Role, RoleChanged
from storage.errors import CorruptRecordError, StorageError
from storage.format.dledger import ENTRY_HEAD_SIZE, committed_index
from tests.support.waiting import wait_until

PEERS = {f"n{number}": f"127.0.0.1:{21_000 + number}" for number in range(3)}


class Group:
    """Three members; one that is stopped answers nothing."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.running: dict[str, Runner] = {}
        self.applied: dict[str, list[LedgerEntry]] = {}
        self.roles: dict[str, RoleChanged] = {}
        self.failures: dict[str, BaseException] = {}
        for name in PEERS:
            self.start(name)

    def start(self, name: str) -> None:
        settings = DLedgerSettings(
            group="group",
            self_id=name,
            peers=PEERS,
            heartbeat_ms=500,
            min_vote_ms=50,
            max_vote_ms=200,
            file_size_bytes=4_096,
        )
        files = MemberFiles(f"{self.place}/dledger-{name}", file_size_bytes=4_096, index_file_size_bytes=320)
        applied = self.applied[name] = []

        def role_changed(change: RoleChanged) -> None:
            self.roles[name] = change
            if change.role is Role.LEADER:
                runner.propose([b""], change.term)

        runner = self.running[name] = Runner(
            settings, files, self.ask, applied.extend, role_changed, on_failed=partial(self.failures.__setitem__, name)
        )
        runner.start()

    def stop(self, name: str) -> None:
        self.running.pop(name).close()
        self.roles.pop(name, None)

    def ask(
        self, peer: str, code: DLedgerRequestCode, body: DLedgerMessage, timeout_ms: int
    ) -> Future[DLedgerMessage | None]:
        answer: Future[DLedgerMessage | None] = Future()
        runner = self.running.get(peer)
        if runner is None:
            answer.set_result(None)
            return answer
        runner.handle(body).add_done_callback(
            lambda done: answer.set_result(None if done.exception() is not None else done.result())
        )
        return answer

    @property
    def leader(self) -> str | None:
        leaders = [name for name, change in self.roles.items() if change.role is Role.LEADER]
        return max(leaders, key=lambda name: self.roles[name].term, default=None)

    def propose(self, bodies: Sequence[bytes]) -> AppendEntryResponse:
        wait_until(lambda: self.leader is not None, "a leader is elected")
        leader = self.leader
        assert leader is not None
        return self.running[leader].propose(bodies).result(30)

    def applied_by(self, name: str) -> list[bytes]:
        return [entry.body for entry in list(self.applied[name]) if entry.body]


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    made = Group(tmp_path)
    yield made
    for runner in made.running.values():
        runner.close()


def test_what_is_acknowledged_is_applied_by_all_in_order_over_a_change_of_leader(group: Group) -> None:
    said: list[bytes] = []

    def say(count: int) -> None:
        for _ in range(count):
            bodies = [b"%d" % len(said), b"%d" % (len(said) + 1)]
            answer = group.propose(bodies)
            assert answer.code == DLedgerCode.SUCCESS
            said.extend(bodies)

    say(20)
    first = group.leader
    assert first is not None
    group.stop(first)
    say(20)
    group.start(first)
    for name in PEERS:
        wait_until(lambda name=name: group.applied_by(name) == said, f"{name} has applied all")  # type: ignore[misc]
    indexes = [entry.index for entry in group.applied[first]]
    assert indexes == list(range(len(indexes)))


def test_a_proposal_is_refused_by_a_follower_and_in_another_term(group: Group) -> None:
    group.propose([b"first"])
    leader = group.leader
    assert leader is not None
    follower = next(name for name in PEERS if name != leader)
    assert group.running[follower].propose([b"no"]).result(30).code == DLedgerCode.NOT_LEADER
    term = group.roles[leader].term
    assert group.running[leader].propose([b"no"], term - 1).result(30).code == DLedgerCode.NOT_LEADER


def test_a_proposal_for_another_place_than_the_logs_end_is_refused(group: Group) -> None:
    first = group.propose([b"first"])
    leader = group.leader
    assert leader is not None
    end = first.place + ENTRY_HEAD_SIZE + len(b"first")
    runner = group.running[leader]
    for place in (end - 1, end + 1, first.place):
        assert runner.propose([b"other"], first_place=place).result(10).code == DLedgerCode.INCONSISTENT_INDEX
    again = runner.propose([b"second"], first_place=end).result(10)
    assert (again.code, again.place) == (DLedgerCode.SUCCESS, end)


def test_an_owner_that_reads_the_files_itself_gets_indexes_that_never_go_back(tmp_path: Path) -> None:
    settings = DLedgerSettings(
        group="group", self_id="n0", peers={"n0": PEERS["n0"]}, min_vote_ms=5, max_vote_ms=10, file_size_bytes=4_096
    )
    group, said = Group.__new__(Group), list[int]()
    group.running = {}
    for count in (30, 0):
        files = MemberFiles(f"{tmp_path}/dledger-n0", file_size_bytes=4_096, index_file_size_bytes=320)
        leads = threading.Event()
        runner = Runner(
            settings,
            files,
            group.ask,
            ByIndex(said.append),
            lambda change, leads=leads: change.role is Role.LEADER and leads.set(),
        )  # type: ignore[misc]
        runner.start()
        assert leads.wait(10)
        for number in range(count):
            answer = runner.propose([b"%d" % number * 300]).result(10)
            assert answer.code == DLedgerCode.SUCCESS
            assert files.end_of(answer.index) == answer.place + ENTRY_HEAD_SIZE + len(b"%d" % number * 300)
        if count:
            begin = runner.trim(8_192).result(10)
            assert begin == files.first_index_in(8_192) > 0
            with pytest.raises(CorruptRecordError):
                runner.trim(1 << 20).result(10)
        runner.close()
    assert said[-1] == said[-2] == 29
    assert said[:-1] == sorted(set(said)), "and once more at the next start"


def test_a_disk_that_fails_ends_the_member_and_the_others_go_on(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    group.propose([b"first"])
    leader = group.leader
    assert leader is not None
    runner = group.running[leader]
    monkeypatch.setattr(runner._files, "sync", lambda: (_ for _ in ()).throw(OSError(5, "the disk is broken")))
    with suppress(RunnerEndedError):  # the two others may be faster
        runner.propose([b"unsynced"]).result(30)
    wait_until(lambda: leader in group.failures, "the owner hears of it")
    with pytest.raises(RunnerEndedError):
        runner.propose([b"late"]).result(30)
    assert isinstance(group.failures[leader], OSError | StorageError)
    group.stop(leader)
    assert group.propose([b"second"]).code == DLedgerCode.SUCCESS


def test_a_leader_that_would_replace_what_is_committed_ends_the_member_and_is_logged_once(
    group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    runner = group.running["n0"]
    runner._post(lambda: [Diverged("n1", 3), Diverged("n1", 3)])
    wait_until(lambda: "n0" in group.failures, "the owner hears of it")
    assert isinstance(group.failures["n0"], DivergedError)
    (said,) = (each for each in caplog.records if each.levelname == "ERROR")
    assert "leader n1 wants to replace entry 3" in said.getMessage()


def test_a_long_log_waits_at_the_start_for_who_applies_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_mq.dledger.runner.MOST_UNAPPLIED", 100)
    monkeypatch.setattr("spark_mq.dledger.runner._APPLIED_TOGETHER", 50)
    path = f"{tmp_path}/dledger-n0"
    files = MemberFiles(path)
    files.append([make_entry(index, 1, 49 * index, b"x") for index in range(1_000)])
    files.sync()
    files.save_checkpoint(999)
    files.close()
    kept, most, seen = list[LedgerEntry](), list[int](), list[int]()

    def committed(entries: Sequence[LedgerEntry]) -> None:
        kept.extend(entries)
        most.append(len(kept))

    def unapplied() -> int:
        found = len(kept)
        if found > 100:  # the next look finds them applied
            seen.extend(entry.index for entry in kept)
            kept.clear()
        return found

    settings = DLedgerSettings(group="group", self_id="n0", peers=PEERS)
    runner = Runner(
        settings, MemberFiles(path), lambda *asked: Future(), committed, lambda change: None, unapplied=unapplied
    )
    runner.start()
    try:
        wait_until(lambda: len(seen) + len(kept) == 1_000, "all is applied")
    finally:
        runner.close()
    assert seen + [entry.index for entry in kept] == list(range(1_000))
    assert max(most) == 150


class Alone:
    """A group of one member, which leads."""

    def __init__(self, place: Path) -> None:
        self.files = MemberFiles(f"{place}/dledger-n0", file_size_bytes=4_096, index_file_size_bytes=320)
        self.failures: list[BaseException] = []
        leads = threading.Event()
        settings = DLedgerSettings(
            group="group", self_id="n0", peers={"n0": PEERS["n0"]}, min_vote_ms=5, max_vote_ms=10, file_size_bytes=4_096
        )
        self.runner = Runner(
            settings,
            self.files,
            lambda *asked: Future(),
            ByIndex(lambda index: None),
            lambda change: change.role is Role.LEADER and leads.set(),  # type: ignore[arg-type, func-returns-value]
            on_failed=self.failures.append,
        )
        self.runner.start()
        assert leads.wait(10)


def test_a_trim_that_the_disk_refuses_ends_who_waits_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = Alone(tmp_path)
    for number in range(30):
        alone.runner.propose([b"%d" % number * 300]).result(10)

    def fail(begin_index: int) -> int:
        raise OSError(5, "the disk is broken")

    monkeypatch.setattr(alone.files, "trim", fail)
    with pytest.raises(RunnerEndedError):
        alone.runner.trim(8_192).result(10)
    assert isinstance(alone.failures[0], OSError)
    alone.runner.close()


def test_a_trim_that_is_taken_back_in_time_deletes_nothing(tmp_path: Path) -> None:
    alone, held = Alone(tmp_path), threading.Event()

    def wait() -> list[Effect]:
        held.wait(10)
        return []

    for number in range(30):
        alone.runner.propose([b"%d" % number * 300]).result(10)
    alone.runner._post(wait)
    trimmed = alone.runner.trim(8_192)
    assert trimmed.cancel()
    held.set()
    assert alone.runner.propose([b"after"]).result(10).code == DLedgerCode.SUCCESS
    assert alone.files._begin_index == 0
    assert trimmed not in alone.runner._waiting
    alone.runner.close()


def test_the_checkpoint_has_its_turn_while_there_is_always_something_to_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_mq.dledger.runner.CHECKPOINT_MS", 50)
    alone = Alone(tmp_path)
    sync, is_over = alone.files.sync, threading.Event()

    def sync_and_go_on() -> None:
        sync()
        if not is_over.is_set():
            alone.runner.propose([b"more"])

    monkeypatch.setattr(alone.files, "sync", sync_and_go_on)
    alone.runner.propose([b"first"])
    checkpoint = tmp_path / "dledger-n0" / "checkpoint"
    try:
        wait_until(lambda: (committed_index(checkpoint.read_bytes()) or 0) > 3, "it says what is committed")
    finally:
        is_over.set()
        alone.runner.close()


def test_a_proposal_whose_owner_takes_it_back_is_refused(tmp_path: Path) -> None:
    alone = Alone(tmp_path)
    assert alone.runner.propose([b"no"], stands=lambda: False).result(10).code == DLedgerCode.NOT_LEADER
    assert alone.runner.propose([b"yes"]).result(10).index == 0
    alone.runner.close()
