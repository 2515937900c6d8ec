"""Nobody waits for a checker under the store's lock; what happened meanwhile comes before its answers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from storage import Message, MessageStore, StoreConfig, open_store
from storage.errors import StoreLockedError
from storage.files.local_file_system import LocalFileSystem
from storage.rules.half_messages import (
    HALF_TOPIC,
    IMMUNITY,
    OP_TOPIC,
    TransactionState,
    half_message,
    op_messages,
)
from storage.rules.inner_messages import InnerMessage
from storage.settings.nouns import TransactionConfig
from storage.transaction import check as check_module
from storage.transaction.check import Asking, CheckReport, check_half_messages
from tests.support import held_check
from tests.support.held_check import commit_of

START_MS = 1_700_000_000_000
NOW_MS = START_MS + 10_000
CONFIG = replace(StoreConfig.tiny(), transaction=TransactionConfig(transaction_check_max=3))
BARRIER_S = 30.0


class Openings:
    """The store, opened anew for each pass of a check."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.count = 0

    @contextmanager
    def __call__(self) -> Iterator[MessageStore]:
        self.count += 1
        with opened(self.root, NOW_MS) as store:
            yield store

    @property
    def is_free(self) -> bool:
        try:
            with LocalFileSystem().locked(str(self.root / "lock")):
                return True
        except StoreLockedError:
            return False


def opened(root: Path, now_ms: int) -> MessageStore:
    return open_store(root, config=CONFIG, read_only=False, create=True, clock=lambda: now_ms)


@pytest.fixture
def openings(tmp_path: Path) -> Openings:
    return Openings(tmp_path / "store")


def prepare(root: Path, *names: str) -> list[Message]:
    """A half for each name; "i…" is immune for a minute."""
    with opened(root, START_MS) as store:
        halves = []
        for name in names:
            properties = {"UNIQ_KEY": f"KEY-{name}"} | ({IMMUNITY: "60"} if name[0] == "i" else {})
            message = InnerMessage(
                topic="TopicTx", queue_id=0, body=name.encode(), properties=properties, born_time_ms=START_MS
            )
            halves.append(half_message(message, "P"))
        places = store.put_inner(halves).column("commitlog_offset").to_pylist()
        return [store.message_by_commitlog_offset(place) for place in places]


def bodies(root: Path, topic: str = "TopicTx") -> list[str]:
    with open_store(root, config=CONFIG) as store:
        return [message.body.decode() for message in store.get(topic, 0, 0, 1_000).messages]


def by_letter(message: Message) -> str:
    return {"c": "commit", "r": "rollback"}.get(message.body[:1].decode(), "unknown")


def check(
    openings: Openings, checker: Callable[[Message], str | TransactionState], asking: Asking | None = None
) -> CheckReport:
    return check_half_messages(openings, checker, NOW_MS, asking=asking or Asking(threads=1))


def test_the_store_is_free_while_a_checker_is_asked(openings: Openings) -> None:
    prepare(openings.root, "c1", "i2", "r3", "u4")
    found: list[bool] = []

    def answer(message: Message) -> str:
        found.append(openings.is_free)
        return by_letter(message)

    report = check(openings, answer)
    assert found == [True] * 3
    assert (report.committed, report.rolled_back, report.put_back, report.immune) == (1, 1, 1, 1)
    assert openings.count == 2, "one to see what is to be asked, one to apply the answers"
    assert bodies(openings.root) == ["c1"]


def test_with_nothing_to_ask_the_store_is_opened_once(openings: Openings) -> None:
    prepare(openings.root, "i1", "i2")
    assert check(openings, by_letter).immune == 2
    assert openings.count == 1


def test_several_are_asked_about_at_a_time(openings: Openings) -> None:
    prepare(openings.root, *(f"c{number}" for number in range(6)))
    together = threading.Barrier(3)

    def answer(message: Message) -> str:
        together.wait(BARRIER_S)
        return "commit"

    assert check(openings, answer, Asking(threads=3)).committed == 6


def test_one_thread_is_the_callers_own(openings: Openings) -> None:
    prepare(openings.root, "c1")
    threads: list[threading.Thread] = []

    def answer(message: Message) -> str:
        threads.append(threading.current_thread())
        return "commit"

    check(openings, answer, Asking(threads=1))
    assert threads == [threading.current_thread()]


@pytest.mark.parametrize("meanwhile", ["committed", "rolled back", "op message lost"])
def test_what_a_producer_ended_meanwhile_is_not_ended_again(openings: Openings, meanwhile: str) -> None:
    """As EndTransactionProcessor leaves it: commit record and op message; the op message may be in memory still."""
    half, _ = prepare(openings.root, "c1", "c2")

    def answer(message: Message) -> str:
        if message.body == b"c1":
            with opened(openings.root, NOW_MS) as store:
                if meanwhile != "rolled back":
                    store.put_inner([commit_of(half)])
                if meanwhile != "op message lost":
                    store.put_inner(op_messages(np.array([0]), 4_096, NOW_MS))
        return "commit"

    report = check(openings, answer)
    assert bodies(openings.root) == (["c2"] if meanwhile == "rolled back" else ["c1", "c2"])
    assert (report.committed, report.waiting) == (1, 0)
    assert report.found_ended == (1 if meanwhile == "op message lost" else 0)


def test_of_two_checks_at_a_time_each_half_is_dealt_with_once(openings: Openings) -> None:
    prepare(openings.root, "c1", "r2", "u3")
    other: list[CheckReport] = []

    def answer(message: Message) -> str:
        if not other:
            other.append(check(openings, by_letter))
        return by_letter(message)

    late = check(openings, answer)
    assert (other[0].committed, other[0].rolled_back, other[0].put_back) == (1, 1, 1)
    assert (late.committed, late.rolled_back, late.put_back, late.found_ended) == (0, 0, 0, 0)
    assert bodies(openings.root) == ["c1"]
    assert bodies(openings.root, HALF_TOPIC) == ["c1", "r2", "u3", "u3"]
    assert bodies(openings.root, OP_TOPIC) == ["0,1,"]


def test_no_question_begins_when_the_time_is_over_and_the_next_run_goes_on(openings: Openings) -> None:
    """Java: MAX_PROCESS_TIME_LIMIT."""
    prepare(openings.root, *(f"c{number}" for number in range(5)))
    now_s, asked = [0.0], []

    def answer(message: Message) -> str:
        asked.append(message.body.decode())
        now_s[0] += 25.0
        return "commit"

    asking = Asking(threads=1, clock=lambda: now_s[0])
    report = check(openings, answer, asking)
    assert asked == ["c0", "c1", "c2"]
    assert (report.committed, report.half_offset, report.waiting, report.out_of_time) == (3, 3, 2, True)
    assert "stopped asking when the run's time was over; the next run goes on from there" in report.lines()
    report = check(openings, answer, asking)
    assert (report.committed, report.out_of_time) == (2, False)
    assert bodies(openings.root) == [f"c{number}" for number in range(5)]


def test_answers_that_cannot_be_applied_change_nothing_and_are_told(openings: Openings) -> None:
    """A broker, say, was started meanwhile."""
    prepare(openings.root, "i1", "c2")
    with LocalFileSystem().locked(str(openings.root.parent / "other")):
        held = LocalFileSystem().locked(str(openings.root / "lock"))

        def answer(message: Message) -> str:
            held.__enter__()
            return "commit"

        report = check(openings, answer)
        held.__exit__(None, None, None)
    assert (report.immune, report.committed, report.answers_left) == (1, 0, 1)
    assert "1 answers not applied" in report.lines()[-1]
    assert check(openings, by_letter).committed == 1


@pytest.mark.parametrize("threads", [1, 4])
def test_an_error_of_a_checker_goes_out_and_nothing_of_what_was_asked_with_it_moves(
    openings: Openings, threads: int
) -> None:
    prepare(openings.root, "c1", "c2", "c3")

    def answer(message: Message) -> str:
        if message.body == b"c2":
            raise LookupError("no such order")
        return "commit"

    with pytest.raises(LookupError, match="no such order"):
        check(openings, answer, Asking(threads=threads))
    assert bodies(openings.root) == []
    assert openings.is_free
    assert check(openings, by_letter).committed == 3


def test_more_halves_than_fit_into_memory_are_asked_about_in_rounds(
    openings: Openings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_module, "_STRETCH_HALVES", 2)
    monkeypatch.setattr(check_module, "_STRETCH_BYTES", 10_000)
    names = [f"{'cru'[number % 3]}{number}" for number in range(7)]
    prepare(openings.root, *names)
    report = check(openings, by_letter, Asking(threads=2))
    assert (report.committed, report.rolled_back, report.put_back, report.waiting) == (3, 2, 2, 2)
    assert openings.count == 5
    assert bodies(openings.root) == ["c0", "c3", "c6"]


def test_a_log_that_was_written_anew_meanwhile_gets_no_answer_of_the_old_one(
    openings: Openings, tmp_path: Path
) -> None:
    """A restored copy: another half stands at the same place and offset."""
    prepare(openings.root, "c1")
    other = tmp_path / "other"
    with opened(other, START_MS + 1_000) as store:
        message = InnerMessage(
            topic="TopicTx", queue_id=0, body=b"r1", properties={"UNIQ_KEY": "KEY-r1"}, born_time_ms=START_MS
        )
        store.put_inner([half_message(message, "P")])

    def answer(message: Message) -> str:
        if message.body == b"c1":
            openings.root.rename(tmp_path / "gone")
            other.rename(openings.root)
        return by_letter(message)

    report = check(openings, answer)
    assert (report.committed, report.rolled_back) == (0, 1), "the new half is asked about in its turn"
    assert bodies(openings.root) == []


def test_a_check_over_a_held_store_does_the_same(openings: Openings) -> None:
    prepare(openings.root, "c1", "r2", "u3")
    with opened(openings.root, NOW_MS) as store:
        report = held_check.check_half_messages(store, by_letter, NOW_MS)
    assert (report.committed, report.rolled_back, report.put_back) == (1, 1, 1)
