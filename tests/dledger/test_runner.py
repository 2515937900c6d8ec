"""Members that run, with real files and threads, whose lines are calls."""

from __future__ import annotations

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
from spark_mq.dledger.runner import DivergedError, Runner, RunnerEndedError
from spark_mq.dledger.state import Diverged, DLedgerSettings, Role, RoleChanged
from storage.errors import StorageError
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
