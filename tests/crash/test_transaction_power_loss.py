"""The disk forgets what was not synced while transactions are committed: a batch that was decided is there whole and once."""

from __future__ import annotations

import random
from collections import Counter
from copy import deepcopy
from pathlib import Path

import pyarrow as pa
import pytest

import storage.batch.slices
import storage.log.writer
from storage import MessageStore
from storage.batch.commit import commit_batch
from storage.batch.intent import load_intents
from storage.batch.ledger import Batch
from storage.batch.staged_segment import SegmentWriter, StagedBatch, StagedSegment, sink_digest
from storage.files import syncs as file_syncs
from storage.files.syncs import EARLY_BYTES
from storage.format.record_block import encode_parts
from storage.put.half_ends import with_states
from storage.put.settings import put_settings
from storage.rules.half_messages import TransactionRules
from storage.rules.message_rows import MessageRows
from storage.rules.row_rules import MessageRules
from tests.crash.sink_store import SinkStore
from tests.support.crash_disk import Disk
from tests.support.crash_file_system import CrashFileSystem
from tests.support.served import served

pytestmark = [pytest.mark.crash, pytest.mark.slow]

HALF, OP = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
STATES = ("commit", "rollback", "commit", "unknown", "commit")
ROWS = 17
BATCHES = 3
STRIDE = 31  # one state in so many
TOPICS = {"T": 3}


def body(batch: int, number: int) -> str:
    return f"{batch}-{number}-{STATES[number % len(STATES)]}-" + "x" * (number * 13 % 150)


def stage(store: SinkStore, batch: int) -> list[StagedSegment]:
    """Halves and commits of one task, as the sink's tasks leave them."""
    files, digest = store.file_system, sink_digest("sink", "query")
    settings = put_settings(store.root, store.config, files)
    rules = MessageRules(
        topic="T",
        topics=settings.topics.topics,
        queue_count=TOPICS["T"],
        log_file_size=settings.log_file_size_bytes,
        transaction=TransactionRules("group"),
    )
    rows = pa.record_batch(
        {
            "body": [body(batch, number) for number in range(ROWS)],
            "transaction_state": [STATES[number % len(STATES)] for number in range(ROWS)],
        }
    )
    prepared = MessageRows(rules, digest[:6] + batch.to_bytes(4, "big")).prepare(rows, 1_700_000_000_000)
    assert prepared.commits is not None
    halves = with_states(encode_parts(prepared.messages, settings.host), prepared.commits.states)
    of_halves, of_commits = (
        SegmentWriter(files, store.root, digest.hex(), f"{batch}-0-{name}-{store.now_ms()}")
        for name in ("halves", "commits")
    )
    of_halves.append(halves)
    of_commits.append_commits(halves, settings.columns_of(prepared.commits.messages))
    segments = [segment for writer in (of_halves, of_commits) if (segment := writer.finish())]
    assert len(segments) == 2
    return segments


def commit(store: SinkStore, batch: int) -> bool:
    """Whether the store held the batch already."""
    segments = stage(store, batch)
    with store.open() as opened:
        outcome = commit_batch(opened.writer, StagedBatch(Batch("sink", "query", batch), segments, TOPICS))
        opened.release()
    return outcome.already_done


def batches_there(store: MessageStore) -> set[int]:
    """The batches that the store holds, each of them whole: halves and commits once, every end by an op message."""
    halves = {half.commitlog_offset: half for half in served(store, HALF)}
    there = {int(half.body.split(b"-")[0]) for half in halves.values()}
    every = [(batch, number) for batch in there for number in range(ROWS)]
    assert Counter(half.body.decode() for half in halves.values()) == Counter(body(*row) for row in every)
    visible = list(served(store, "T"))
    committed = [body(batch, number) for batch, number in every if STATES[number % len(STATES)] == "commit"]
    assert Counter(message.body.decode() for message in visible) == Counter(committed)
    for message in visible:
        half = halves[message.prepared_transaction_offset]
        assert (message.body, message.properties, message.sys_flag) == (half.body, half.properties, half.sys_flag | 8)
    ops = b"".join(op.body for op in served(store, OP)).decode()
    ended = {int(part) for part in ops.split(",") if part}
    assert ended == {half.queue_offset for half in halves.values() if b"unknown" not in half.body}
    return there


@pytest.mark.parametrize(
    ("sync_flush", "early_bytes"),
    [(False, EARLY_BYTES), (True, EARLY_BYTES), (True, 1)],
    ids=["ASYNC_FLUSH", "SYNC_FLUSH", "SYNC_FLUSH, synced early"],
)
def test_power_is_lost_while_transactions_are_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync_flush: bool, early_bytes: int
) -> None:
    monkeypatch.setattr(file_syncs, "EARLY_BYTES", early_bytes)
    monkeypatch.setattr(storage.batch.slices, "SLICE_BYTES", 2_500)
    monkeypatch.setattr(storage.log.writer, "SLICE_BYTES", 1_000)
    files = CrashFileSystem(str(SinkStore.make_place(tmp_path)))
    recorded = SinkStore(Path(files.root), files, sync_flush=sync_flush)
    for batch in range(BATCHES):
        assert not commit(recorded, batch)
        files.mark(f"acknowledged {batch}")
    syncs = [
        operation for operation in files.operations if operation.kind == "sync" and "/commitlog/" in operation.path
    ]
    assert len(syncs) > 40 or early_bytes > 1, "37 without early ones, and each batch has two passes"
    for number, marks, disk in files.states():
        if number % STRIDE == STRIDE // 2:
            choice = random.Random(f"{number} {sync_flush}")
            try:
                _go_on(files.root, disk.after_power_loss(choice), marks, sync_flush)
                _go_on(files.root, deepcopy(disk), marks, sync_flush)  # the process was killed, the machine goes on
            except BaseException as error:
                error.add_note(f"the crash came after operation {number}: {files.operations[:number][-1:]}"[:1_000])
                raise


def _go_on(root: str, disk: Disk, marks: list[str], sync_flush: bool) -> None:
    """A new process finds the store, and the sink brings what it does not know to be done."""
    files = CrashFileSystem(root, disk, 2)
    store = SinkStore(Path(root), files, sync_flush=sync_flush, days=2)
    decided = {intent.batch_id for intent in load_intents(files, root)}
    with store.open() as opened:
        there = batches_there(opened)
        opened.release()
    acknowledged = {batch for batch in range(BATCHES) if f"acknowledged {batch}" in marks}
    assert acknowledged | decided <= there
    for batch in range(max(there, default=0), BATCHES):  # Spark repeats the batch that it began last
        assert commit(store, batch) == (batch in there)
    with store.open() as opened:
        assert batches_there(opened) == set(range(BATCHES))
