"""Killed and robbed of power between any two steps of a check.

Committed messages are visible once, rolled back ones never; no half is lost, and no offset goes back. The producer of
these tests answers by a message's first letter: commit, rollback, unknown for ever, later (commit at the second check),
immune (a minute, then commit).
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest

from storage import Message, MessageStore, StoreConfig, open_store
from storage.failpoints import ENVIRONMENT
from storage.rules.half_messages import CHECK_TIMES, DISCARD_TOPIC, GROUP, HALF_TOPIC, IMMUNITY, OP_TOPIC, half_message
from storage.rules.inner_messages import InnerMessage
from storage.settings.nouns import FlushConfig, TransactionConfig
from storage.tables.consumer_groups import ConsumerOffsets
from storage.tables.document import OFFSETS_FILE
from storage.transaction import check
from storage.transaction.discard import redrive
from storage.transaction.progress import TransactionProgress, read_progress
from tests.support.clock import Clock
from tests.support.crash_disk import Disk
from tests.support.crash_file_system import CrashFileSystem
from tests.support.held_check import check_half_messages
from tests.support.places import PROJECT
from tests.support.served import served
from tests.support.shares import one_in

pytestmark = pytest.mark.crash

START_MS = 1_700_000_000_000
STEP_MS = 10_000
MAX_CHECKS = 2
KINDS = ("c", "r", "u", "l", "i")
COUNT = 20
FAILPOINTS = (
    "half-committed:1",
    "op-written:1",
    "op-written:2",
    "half-put-back:1",
    "half-put-back:2",
    "half-discarded:1",
    "before-half-offset:1",
    "before-half-offset:3",
    "after-half-offset:3",
    "halves-asked:1",
    "halves-asked:2",
    "half-redriven:1",
)
UNANSWERED = COUNT // len(KINDS)


def open_transactions(
    root: Path | str, time: Clock, files: CrashFileSystem | None = None, *, sync_flush: bool = False
) -> MessageStore:
    config = replace(
        StoreConfig.tiny(),
        transaction=TransactionConfig(transaction_check_max=MAX_CHECKS),
        flush=FlushConfig("SYNC_FLUSH" if sync_flush else "ASYNC_FLUSH"),
    )
    return open_store(root, config=config, read_only=False, create=True, file_system=files, clock=time)


def prepare(root: Path) -> None:
    """COUNT halves, on the disk."""
    with open_transactions(root, Clock(START_MS)) as store:
        halves = []
        for number in range(COUNT):
            kind = KINDS[number % len(KINDS)]
            properties = {"UNIQ_KEY": f"K{number}"} | ({IMMUNITY: "60"} if kind == "i" else {})
            message = InnerMessage(
                topic="TopicTx",
                queue_id=number % 2,
                body=f"{kind}{number}".encode(),
                properties=properties,
                born_time_ms=START_MS,
            )
            halves.append(half_message(message, "P"))
        store.put_inner(halves)


def answer(message: Message) -> str:
    kind = message.body[:1].decode()
    if kind == "l" and int(message.properties[CHECK_TIMES]) < 2:
        return "unknown"
    return {"r": "rollback", "u": "unknown"}.get(kind, "commit")


def work(store: MessageStore, time: Clock, checks: int) -> None:
    for _ in range(checks):
        time.now_ms += STEP_MS
        check_half_messages(store, answer, time.now_ms)


def bodies(store: MessageStore, topic: str) -> list[str]:
    """All that a topic's queues show."""
    return [message.body.decode() for message in served(store, topic)]


def saved(root: Path | str) -> TransactionProgress:
    """The two offsets in the file."""
    path = Path(root, "config", OFFSETS_FILE)
    table = ConsumerOffsets.load(path.read_text()) if path.exists() else ConsumerOffsets()
    return TransactionProgress(*(table.get(topic, GROUP, 0) or 0 for topic in (HALF_TOPIC, OP_TOPIC)))


def go_on(root: Path | str, time: Clock, files: CrashFileSystem | None = None) -> int:
    """Check until nothing waits, then look. Returns how many of the discarded halves are doubles."""
    before = saved(root)
    with open_transactions(root, time, files) as store:
        assert read_progress(store) == before
        for _ in range(10):
            work(store, time, 1)
            reached = saved(root)
            assert all(new >= old for new, old in zip(reached, before, strict=True))
            before = reached
        assert before.half_offset == store.max_offset(HALF_TOPIC, 0)
        names = [f"{KINDS[number % len(KINDS)]}{number}" for number in range(COUNT)]
        assert Counter(bodies(store, "TopicTx")) == Counter(name for name in names if name[0] in "cli")
        given_up = Counter(bodies(store, DISCARD_TOPIC))
        assert {*given_up} == {name for name in names if name[0] == "u"}
        return sum(given_up.values()) - len(given_up)


@pytest.mark.parametrize("failpoint", one_in(6, FAILPOINTS))
def test_a_killed_check_is_gone_on_with(tmp_path: Path, failpoint: str) -> None:
    root = tmp_path / "store"
    prepare(root)
    process = subprocess.run(
        [sys.executable, "-m", __name__, str(root)],
        cwd=PROJECT,
        env={**os.environ, ENVIRONMENT: failpoint},
        check=False,
    )
    assert process.returncode == -signal.SIGKILL
    is_redriven = failpoint == "half-redriven:1"  # then each is given up once more
    assert go_on(root, Clock(START_MS + 20 * STEP_MS)) == (UNANSWERED if is_redriven else 0)


@pytest.mark.parametrize("sync_flush", one_in(2, [True, False]), ids=["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_a_crash_after_any_write_is_gone_on_with(tmp_path: Path, sync_flush: bool) -> None:
    """One state in so many; the process is killed in one half of them, the power goes in the other."""
    root = tmp_path / "store"
    prepare(root)
    files = CrashFileSystem(str(root))
    time = Clock(START_MS)
    with open_transactions(root, time, files, sync_flush=sync_flush) as store:
        work(store, time, 8)
    for number, _, disk in files.states():
        if number % 23 == 4:
            is_killed = number % 2 == 0
            left: Disk = deepcopy(disk) if is_killed else disk.after_power_loss(random.Random(number))
            try:
                rest = CrashFileSystem(str(root), left, boot=1 if is_killed else 2)
                doubles = go_on(root, Clock(time.now_ms + STEP_MS), rest)
                # No checksum covers properties, so one torn there is not known again.
                assert doubles <= (0 if is_killed else 1)
            except BaseException as error:
                error.add_note(f"the crash came after operation {number}: {files.operations[:number][-1:]}"[:1_000])
                raise


if __name__ == "__main__":
    now = Clock(START_MS)
    for _ in range(8):  # as the job does it: the store is opened before and after the asking
        now.now_ms += STEP_MS
        check.check_half_messages(lambda: open_transactions(sys.argv[1], now), answer, now.now_ms)
    with open_transactions(sys.argv[1], now) as opened:
        redrive(opened, now.now_ms)
