"""A commit of transactions ends at each of its points; the next opening makes it whole: each half once, each commit once.

The process is not killed but stopped by an error at the point (as `reach` would kill it): nothing behind it is done, nothing is
closed. The batch is that of two tasks, its log files are small, so that it lies in several.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import storage.batch.commit
import storage.batch.slices
import storage.dispatch.writer
import storage.log.writer
import storage.put.store_writer
from spark_mq.broker.end_transaction import request_for
from spark_mq.broker.requests import Verdict
from spark_mq.sink.columns import InputColumns
from spark_mq.sink.commit import commit_rows
from spark_mq.sink.options import SinkOptions
from spark_mq.sink.partition_writer import StagedRows, stage_rows
from storage import open_store
from storage.batch.ledger import TOPIC as LEDGER
from storage.batch.ledger import Batch
from storage.failpoints import COMMIT, ENVIRONMENT, TRANSACTIONS
from storage.format.record import TRANSACTION_COMMIT, Message
from storage.rules.response_codes import ResponseCode
from tests.crash.sink_store import SinkStore
from tests.support.broker_handlers import end_transaction
from tests.support.dying import Killed, kill_at
from tests.support.served import served

pytestmark = [pytest.mark.crash, pytest.mark.slow]

COLUMNS = InputColumns(("topic", "body", "transaction_state"))
STATES = ("commit", "rollback", "unknown", "commit", "commit")
ROWS = 23  # of each task
POINTS = [(point, 1) for point in (*COMMIT[:-1], *TRANSACTIONS)]
POINTS += [("amid-records", time) for time in (2, 3, 9)]
POINTS += [(point, time) for point in ("amid-slice", "after-slice", "after-records") for time in (2, 3, 4, 5)]
POINTS += [(point, time) for point in ("after-queues", "after-index") for time in (2, 3, 4)]
ONLY_WITH_SYNC_FLUSH = {"before-drop", "after-drop"}


SUCCESS = Verdict(ResponseCode.SUCCESS)


def body(task: int, number: int) -> str:
    return f"{task}-{number}-{STATES[number % len(STATES)]}" + "x" * (number * 7 % 90)


def stage(options: SinkOptions, task: int) -> StagedRows:
    rows = [{"topic": f"T{n % 2}", "body": body(task, n), "transaction_state": STATES[n % 5]} for n in range(ROWS)]
    frames = [pa.RecordBatch.from_pylist(rows[:9]), pa.RecordBatch.from_pylist(rows[9:])]
    return stage_rows(options, COLUMNS, Batch("sink", "query", 3), task, task, iter(frames))


def options_of(root: Path, **options: str) -> SinkOptions:
    given = {"path": str(root), "transactional": "true", "producerGroup": "group", "queueNum": "3", **options}
    return SinkOptions.parse(given, "streaming")


def messages(root: Path, topic: str) -> list[Message]:
    with open_store(root) as store:
        return list(served(store, topic))


def check(root: Path) -> None:
    """What a broker would find: visible what is committed, once; ended by op what has an end; the rest open."""
    expected = [(task, n, STATES[n % 5]) for task in (0, 1) for n in range(ROWS)]
    halves = messages(root, "RMQ_SYS_TRANS_HALF_TOPIC")
    assert Counter(half.body.decode() for half in halves) == Counter(body(task, n) for task, n, _ in expected)
    assert [half.queue_offset for half in halves] == list(range(2 * ROWS))
    by_place = {half.commitlog_offset: half for half in halves}
    visible = messages(root, "T0") + messages(root, "T1")
    committed = [body(task, n) for task, n, state in expected if state == "commit"]
    assert Counter(message.body.decode() for message in visible) == Counter(committed)
    for message in visible:
        half = by_place[message.prepared_transaction_offset]
        assert (message.body, message.properties) == (half.body, half.properties)
        assert message.sys_flag == half.sys_flag | 8
        assert (half.properties["REAL_TOPIC"], half.properties["REAL_QID"]) == (message.topic, str(message.queue_id))
    ops = messages(root, "RMQ_SYS_TRANS_OP_HALF_TOPIC")
    ended = {int(offset) for op in ops for offset in op.body.decode().split(",") if offset}
    assert ended == {half.queue_offset for half in halves if "unknown" not in half.body.decode()}
    assert {op.tags for op in ops} == {"d"}


@pytest.mark.parametrize(
    ("point", "time"),
    [each if each[1] <= 2 else pytest.param(*each, marks=pytest.mark.long) for each in POINTS],
    ids=[f"{point}-{time}" for point, time in POINTS],
)
def test_a_commit_of_transactions_that_stops_is_made_whole(
    point: str, time: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = SinkStore.make_place(tmp_path)
    flush = {"flushDiskType": "SYNC_FLUSH"} if point in ONLY_WITH_SYNC_FLUSH else {}
    options = options_of(root, **flush)
    with monkeypatch.context() as patched:
        patched.setattr(storage.batch.slices, "SLICE_BYTES", 3_000)
        patched.setattr(storage.log.writer, "SLICE_BYTES", 1_000)
        kill_at(patched, point, time)
        with pytest.raises(Killed):
            commit_rows(options, [stage(options, 0), stage(options, 1)], 3, mirrored=True)
    commit_rows(options, [stage(options, 0), stage(options, 1)], 3, mirrored=True)
    check(root)
    open_store(root, read_only=False).close()
    check(root)
    assert SinkStore(root).open_intents == 0


def test_a_commit_that_stops_again_and_again_is_made_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every attempt completes the last slice or begins one; halves of an earlier attempt are named by commits of a later one."""
    root = SinkStore.make_place(tmp_path)
    options = options_of(root)
    staged: list[Any] = [stage(options, 0), stage(options, 1)]
    for _ in range(6):
        with monkeypatch.context() as patched:
            patched.setattr(storage.batch.slices, "SLICE_BYTES", 4_000)
            patched.setattr(storage.log.writer, "SLICE_BYTES", 1_500)
            kill_at(patched, "amid-records", 3)
            with pytest.raises(Killed):
                commit_rows(options, staged, 3, mirrored=True)
    open_store(root, read_only=False).close()
    check(root)
    kinds = Counter(message.tags for message in messages(root, LEDGER))
    assert kinds.keys() == {"SLICE", "END"}
    assert kinds["SLICE"] > 3
    assert kinds["END"] == 1


@pytest.mark.parametrize("point", ["after-halves", "before-ops"])
def test_what_a_broker_has_committed_meanwhile_is_not_committed_again(
    point: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker is started between the crash and the next opening, and its producer answers a check (EndTransactionProcessor)."""
    root = SinkStore.make_place(tmp_path)
    options = options_of(root)
    with monkeypatch.context() as patched:
        kill_at(patched, point, 1)
        with pytest.raises(Killed):
            commit_rows(options, [stage(options, 0), stage(options, 1)], 3, mirrored=True)
    intents = root / "spark_mq" / "intents"
    intents.rename(root / "aside")  # a broker knows nothing of it
    with open_store(root, read_only=False) as store:
        halves = [store.get("RMQ_SYS_TRANS_HALF_TOPIC", 0, offset, 1).messages[0] for offset in (3, 2 * ROWS - 4)]
        assert {"commit" in half.body.decode() for half in halves} == {True}
        requests = [request_for(half, TRANSACTION_COMMIT, from_transaction_check=True) for half in halves]
        assert [end_transaction(store, request, store.writer.clock()) for request in requests] == [SUCCESS, SUCCESS]
        store.release()
    (root / "aside").rename(intents)
    commit_rows(options, [stage(options, 0), stage(options, 1)], 3, mirrored=True)
    check(root)


SCRIPT = """
import pickle, sys
from spark_mq.sink.commit import commit_rows
options, staged = pickle.load(sys.stdin.buffer)
commit_rows(options, staged, 3, mirrored=True)
"""


@pytest.mark.parametrize("point", ["after-halves", "amid-records:2", "before-ops"])
def test_a_process_that_is_killed_amid_its_transactions_is_made_good(point: str, tmp_path: Path) -> None:
    root = SinkStore.make_place(tmp_path)
    options = options_of(root)
    staged = [stage(options, 0), stage(options, 1)]
    killed = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input=pickle.dumps((options, staged)),
        env={**os.environ, ENVIRONMENT: point, "PYTHONPATH": os.pathsep.join(sys.path)},
        timeout=120,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    open_store(root, read_only=False).close()
    check(root)
