"""What becomes of a commit when something is in its way: another query, another attempt, another writer, the lock."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

import storage.batch.commit
import storage.batch.slices
import storage.dispatch.writer
import storage.log.writer
import storage.put.store_writer
import storage.store
from storage import open_store
from storage.batch.commit import CommitOutcome, abort_batch, commit_batch
from storage.batch.intent import load_intents
from storage.batch.ledger import END, QUEUE_ID, TOPIC, Batch, LedgerStatement, outgoing_ledger_message
from storage.batch.staged_segment import StagedBatch, StagedSegment
from storage.errors import (
    CorruptRecordError,
    SinkAheadError,
    SinkTakenError,
    StorageError,
    StoreLockedError,
    StoreNotWritableError,
    TopicChangedError,
)
from storage.format.record_block import encode_block
from storage.store import WritesAs
from tests.crash.sink_store import QUEUE_COUNT, SETTINGS, SinkStore, assert_holds_exactly, found_rows, is_whole, rows_of
from tests.support.dying import Killed, kill_at
from tests.support.places import PROJECT
from tests.support.shares import one_in
from tests.support.stage_rows import BORN_MS, BatchRows, blocks, leave_half_staged, stage_partition, unjoined_blocks

pytestmark = [pytest.mark.crash, pytest.mark.slow]

DONE = CommitOutcome(True, 0)
FLUSH = pytest.mark.parametrize("sync_flush", [False, True], ids=["ASYNC_FLUSH", "SYNC_FLUSH"])


@pytest.fixture
def store(tmp_path: Path) -> SinkStore:
    """An empty place for a store."""
    return SinkStore(SinkStore.make_place(tmp_path))


def kill_in_slices(patch: pytest.MonkeyPatch, failpoint: str) -> None:
    kill_at(patch, failpoint)
    patch.setattr(storage.batch.slices, "SLICE_BYTES", 2_500)  # so that a few rows are several slices
    patch.setattr(storage.log.writer, "SLICE_BYTES", 1_000)  # of several writes each


def commit_and_die(store: SinkStore, rows: BatchRows, failpoint: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        kill_in_slices(patch, failpoint)
        with pytest.raises(Killed):
            store.commit(rows)


def forget_hint(store: SinkStore) -> None:
    """So that the next opening recovers, and reads the ledger from the log."""
    Path(store.root, "spark_mq/hint.json").unlink(missing_ok=True)


def everything(root: str) -> dict[str, str]:
    """Every file under a directory, by the hash of its content."""
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in Path(root).rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("failpoint", ["after-intent", "amid-slice", "before-end"])
def test_who_keeps_the_store_open_after_a_failed_commit_cannot_forget_the_batch(
    store: SinkStore, failpoint: str
) -> None:
    """A clean close settles intents, and so does the next commit: this one's rows are there in part, or not at all."""
    rows = rows_of(0)
    segments = store.stage(rows)
    topics = dict.fromkeys(rows.topics, QUEUE_COUNT)
    with store.open() as opened:
        with pytest.MonkeyPatch.context() as patch:
            kill_in_slices(patch, failpoint)
            with pytest.raises(Killed):
                commit_batch(opened.writer, StagedBatch(rows.batch, segments, topics))
        with pytest.raises(StoreNotWritableError):
            commit_batch(opened.writer, StagedBatch(rows.batch, segments, topics))
    assert store.open_intents == 1
    store.close()
    assert_holds_exactly(store.root, [rows])


# Batches and sinks


@FLUSH
def test_two_queries_write_into_one_store_in_turns(tmp_path: Path, sync_flush: bool) -> None:
    store = SinkStore(SinkStore.make_place(tmp_path), sync_flush=sync_flush)
    batches = [rows_of(number, sink_id=sink, query_id=sink) for number in range(4) for sink in ("left", "right")]
    staged = [store.stage(rows) for rows in batches[:2]]  # tasks of both queries run at once
    for rows, segments in zip(batches[:2], staged, strict=True):
        assert store.commit(rows, segments) == CommitOutcome(False, 10)
    for rows in batches[2:]:
        assert store.commit(rows) == CommitOutcome(False, 10)
    store.close()
    assert_holds_exactly(store.root, batches)


@pytest.mark.parametrize("with_hint", [True, False])
def test_the_last_batch_is_acknowledged_and_not_written_and_one_before_it_is_refused(
    store: SinkStore, with_hint: bool
) -> None:
    """The last one Spark may repeat. One before it is that of a replaced driver, or of a checkpoint that is a copy."""
    batches = [rows_of(number) for number in range(30)]  # ledger and rows fill several log files
    for rows in (*batches[:20], *batches[25:]):  # a query whose batches were empty in between
        store.commit(rows)
    if not with_hint:
        forget_hint(store)
    end = store.log_end
    for number in (29, 28, 22, 0):
        if not with_hint:
            forget_hint(store)
        staged = store.staged_files
        if number == 29:
            assert store.commit(batches[number]) == DONE
            assert store.staged_files <= staged, "what was staged for nothing is given back"
        else:
            segments = store.stage(batches[number])
            with pytest.raises(SinkAheadError, match=f"batch 29 of sink sink is written, .* batch {number}, 10 rows"):
                store.commit(batches[number], segments)
            abort_batch(store.file_system, store.root, segments)  # as Spark asks for
        assert store.log_end == end
    store.close()
    assert_holds_exactly(store.root, [*batches[:20], *batches[25:]])


def test_the_last_batch_with_other_rows_is_refused(store: SinkStore) -> None:
    """Two runs from copies of one checkpoint: each plans its batch anew, and the later one has found more."""
    store.commit(rows_of(0))
    store.commit(rows_of(1, 6, 4))
    end = store.log_end
    with pytest.raises(SinkAheadError, match=r"batch 1 of sink sink is written with 10 rows, .* batch 1, 13 rows"):
        store.commit(rows_of(1, 6, 7))
    assert store.log_end == end
    with store.open() as opened:
        segments = store.stage(rows_of(1, 6, 7))
        staged = StagedBatch(rows_of(1).batch, segments)
        assert commit_batch(opened.writer, staged, takeover=True) == DONE
    assert store.log_end == end


def test_an_empty_batch_leaves_nothing_and_its_id_may_come_again(store: SinkStore) -> None:
    with store.open() as opened:
        assert commit_batch(opened.writer, StagedBatch(Batch("sink", "query", 0), [])) == CommitOutcome(False, 0)
        assert opened.log_end == 0
    assert store.open_intents == 0
    assert store.commit(rows_of(0)) == CommitOutcome(False, 10)
    store.close()
    assert_holds_exactly(store.root, [rows_of(0)])


@pytest.mark.parametrize("with_hint", [True, False])
def test_a_sink_id_belongs_to_one_query_until_another_takes_it_over(store: SinkStore, with_hint: bool) -> None:
    first = [rows_of(number, query_id="first-query") for number in range(3)]
    second = [rows_of(number, query_id="second-query") for number in range(10, 13)]
    for rows in first:
        store.commit(rows)

    def next_process() -> None:
        if not with_hint:
            forget_hint(store)

    next_process()
    end, segments = store.log_end, store.stage(second[0])
    for _ in range(2):
        with pytest.raises(SinkTakenError, match=r"sink sink .* belongs to query first-query.* is query second-query"):
            store.commit(second[0], segments)
    next_process()
    assert store.log_end == end
    assert store.open_intents == (1 if with_hint else 0), "the first query's last batch, not synced unless recovered"
    next_process()
    assert store.commit(second[0], segments, takeover=True) == CommitOutcome(False, 10)
    next_process()
    assert store.commit(second[1]) == CommitOutcome(False, 10)
    next_process()
    with pytest.raises(SinkTakenError, match="belongs to query second-query"):
        store.commit(first[2])
    next_process()
    assert store.commit(first[2], takeover=True) == DONE, "what a query wrote before counts for it still"
    next_process()
    assert store.commit(second[2]) == CommitOutcome(False, 10)
    store.close()
    assert_holds_exactly(store.root, [*first, *second])


def expire_ledger(store: SinkStore, rows: BatchRows) -> None:
    """Fill log files with another sink's batches, and delete those that hold `rows` and its END, as a broker's retention does."""
    end = store.log_end
    for number in range(8):
        store.commit(rows_of(number, sink_id="other", query_id="other"))
    store.close()
    for file in sorted(Path(store.root, "commitlog").iterdir()):
        if int(file.name) <= end:
            file.unlink()
    with store.open() as opened:
        assert not any(f"{rows.batch.sink_id}/" in one.row.key for one in found_rows(opened))
        opened.release()


def test_what_the_ledger_has_lost_the_notes_still_know(store: SinkStore) -> None:
    batches = [rows_of(number, sink_id="query") for number in range(5)]  # a sink that is named after its query
    for rows in batches[:4]:
        store.commit(rows)
    expire_ledger(store, batches[3])
    assert store.commit(batches[3]) == DONE
    assert store.commit(batches[4]) == CommitOutcome(False, 10)


def test_a_given_sink_id_whose_ledger_has_expired_goes_on_but_does_not_begin_anew(store: SinkStore) -> None:
    for number in range(4):
        store.commit(rows_of(number))
    expire_ledger(store, rows_of(3))
    with pytest.raises(SinkTakenError, match="belongs to query query, and this is query another"):
        store.commit(rows_of(0, query_id="another"))
    assert store.commit(rows_of(4)) == CommitOutcome(False, 10)


@pytest.mark.parametrize("takeover", [False, True])
def test_a_given_sink_id_whose_ledger_has_expired_knows_its_last_batch_still(store: SinkStore, takeover: bool) -> None:
    """Spark brings it again after a restart where its own commit log has not got it."""
    for number in range(4):
        store.commit(rows_of(number))
    expire_ledger(store, rows_of(3))
    end = store.log_end
    assert store.commit(rows_of(3), takeover=takeover) == DONE
    assert store.log_end == end
    assert store.commit(rows_of(4), takeover=takeover) == CommitOutcome(False, 10)


def send_to_ledger(store: SinkStore, **claim: object) -> None:
    """What anybody may send to the ledger's topic: an END that says what he likes, under the keys of "sink" and "query"."""
    document = {"sink": "sink", "query": "query", "rows": 10, "last": None, **claim}
    message = outgoing_ledger_message(LedgerStatement(END, Batch("sink", "query", 0), 0), now_ms=store.now_ms())
    message = message._replace(bodies=pa.array([json.dumps(document).encode()], pa.binary()))
    with pytest.MonkeyPatch.context() as patch:  # by a broker, which knows no intents
        patch.setattr(storage.store, "finish_open_intents", lambda writer, torn: 0)
        patch.setattr(storage.store, "settle", lambda writer: None)
        with store.open() as opened:
            opened.writer.append([encode_block(message, opened.writer.settings.host)])
    forget_hint(store)


@pytest.mark.parametrize(
    "claim",
    [
        {"batch": 10**6, "rows": 0},
        {"batch": 10**6, "last": [0, "0" * 32]},
        {"batch": 10**6, "last": [-1, "0" * 32]},
        {"sink": "other", "query": "o", "batch": 10**6, "rows": 0},
    ],
    ids=str,
)
def test_what_a_stranger_claims_keeps_no_batch_out(store: SinkStore, claim: dict[str, object]) -> None:
    store.commit(rows_of(0))
    send_to_ledger(store, **claim)
    assert store.commit(rows_of(0)) == DONE
    assert store.commit(rows_of(1)) == CommitOutcome(False, 10)
    store.close()
    assert_holds_exactly(store.root, [rows_of(0), rows_of(1)])


@pytest.mark.parametrize(
    "failpoint", one_in(3, ["amid-records", "after-intent", "before-end"], others=pytest.mark.long)
)
@pytest.mark.parametrize(("row_count", "key"), [(0, None), (31, None), (31, "0" * 32), (30, "the true one")])
def test_what_a_stranger_claims_of_a_decided_batch_does_not_finish_it(
    store: SinkStore, row_count: int, key: str | None, failpoint: str
) -> None:
    store.commit(rows_of(0))
    commit_and_die(store, rows_of(1, 20, 11), failpoint)
    if key == "the true one":
        key = load_intents(store.file_system, store.root)[-1].segments[-1].last_unique_key
    send_to_ledger(store, batch=1, rows=row_count, last=None if key is None else [0, key])
    with store.open() as opened:
        assert opened.finished_batches == 1
    assert_holds_exactly(store.root, [rows_of(0), rows_of(1, 20, 11)])


def test_groups_are_lowered_before_the_missing_rows_of_a_decided_batch_are_appended(store: SinkStore) -> None:
    """The rows may get offsets that were counted for messages which the log has lost."""
    store.commit(rows_of(0))
    commit_and_die(store, rows_of(1), "after-intent")
    with open_store(store.root) as reader:
        ends = {str(queue_id): reader.max_offset("orders", queue_id) for queue_id in reader.queue_ids("orders")}
    path = Path(store.root) / "config" / "consumerOffset.json"
    table = {"offsetTable": {"orders@G": {queue_id: end + 2 for queue_id, end in ends.items()}}}
    path.write_text(json.dumps(table), "utf-8")
    with store.open() as opened:
        assert opened.finished_batches == 1
    assert json.loads(path.read_text("utf-8"))["offsetTable"]["orders@G"] == ends


# A master that comes back as a follower


@pytest.mark.parametrize("writes_as", ["candidate", "follower"])
@pytest.mark.parametrize("failpoint", ["after-intent", "amid-records"])
def test_who_follows_finishes_no_batch_and_a_candidate_leaves_it(
    store: SinkStore, failpoint: str, writes_as: WritesAs
) -> None:
    store.commit(rows_of(0))
    commit_and_die(store, rows_of(1, 20, 11), failpoint)
    end = store.log_end
    with open_store(store.root, config=store.config, read_only=False, holder="follower", writes_as=writes_as) as opened:
        assert opened.finished_batches == 0
        assert opened.log_end == end
    is_left = writes_as == "candidate"
    assert store.open_intents == int(is_left)
    assert bool(store.staged_files) == is_left
    with store.open() as opened:
        assert opened.finished_batches == int(is_left)
    if not is_left:  # the query's next try
        store.commit(rows_of(1, 20, 11))
        store.close()
    assert_holds_exactly(store.root, [rows_of(0), rows_of(1, 20, 11)])


# Settings that change


def host_sizes(store: SinkStore, batch_id: int) -> set[tuple[int, int]]:
    """Sizes of both hosts of a batch's messages, of which each has its store time and was never sent back."""
    with open_store(store.root) as opened:
        messages = [
            message
            for topic in ("orders", "bills")
            for queue_id in opened.queue_ids(topic)
            for message in opened.get(topic, queue_id, 0, 1_000).messages
            if message.body.startswith(b"sink/%d/" % batch_id)
        ]
    assert all(message.store_time_ms >= BORN_MS for message in messages)
    assert {(message.reconsume_times, message.prepared_transaction_offset) for message in messages} == {(0, 0)}
    return {(len(message.born_host), len(message.store_host)) for message in messages}


@pytest.mark.parametrize(
    "failpoint", one_in(2, [None, "after-intent", "amid-records", "before-end"], others=pytest.mark.long)
)
@pytest.mark.parametrize("addresses", [("127.0.0.1", "::1"), ("::1", "127.0.0.1")], ids=str)
def test_a_store_that_gets_an_address_of_another_size_takes_what_was_staged_before(
    tmp_path: Path, addresses: tuple[str, str], failpoint: str | None
) -> None:
    """Between staging and the commit, or between a crash and what makes it good."""
    before, after = (SETTINGS.replace("127.0.0.1", address) for address in addresses)
    store = SinkStore(SinkStore.make_place(tmp_path, before))
    store.commit(rows_of(0))
    segments = store.stage(rows_of(1))
    if failpoint is not None:
        with pytest.MonkeyPatch.context() as patch:
            kill_in_slices(patch, failpoint)
            with pytest.raises(Killed):
                store.commit(rows_of(1), segments)
    (tmp_path / "broker.conf").write_text(after, encoding="ascii")
    if failpoint is None:
        store.commit(rows_of(1), segments)
    store.commit(rows_of(2))
    store.close()
    assert_holds_exactly(store.root, [rows_of(0), rows_of(1), rows_of(2)])
    old, new = (20 if ":" in address else 8 for address in addresses)
    assert [host_sizes(store, number) for number in range(3)] == [{(old, old)}, {(old, old)}, {(new, new)}]


def test_rows_for_a_queue_that_is_not_there_are_refused_and_nothing_is_written(store: SinkStore) -> None:
    store.commit(rows_of(0))
    end = store.log_end
    new_topic = BatchRows(Batch("sink", "query", 1), (3,), ("unknown",))
    segments = store.stage(new_topic)
    with store.open() as opened:
        with pytest.raises(TopicChangedError, match="unknown"):
            commit_batch(opened.writer, StagedBatch(new_topic.batch, segments))
        with pytest.raises(TopicChangedError, match="unknown"):
            commit_batch(opened.writer, StagedBatch(new_topic.batch, segments, {"unknown": 1}))
        assert opened.log_end == end
        opened.release()
    assert "unknown" not in Path(store.root, "config/topics.json").read_text()
    assert store.commit(new_topic, segments) == CommitOutcome(False, 3)
    store.close()
    assert_holds_exactly(store.root, [rows_of(0), new_topic])


# Attempts and aborts


@FLUSH
def test_of_two_attempts_one_is_committed_and_the_other_collected(tmp_path: Path, sync_flush: bool) -> None:
    store = SinkStore(SinkStore.make_place(tmp_path), sync_flush=sync_flush)
    rows, later, neighbours = rows_of(0), rows_of(1), rows_of(0, sink_id="neighbour")
    both = [[_attempt(store, rows, partition) for _ in range(2)] for partition in range(2)]
    forgotten = leave_half_staged(store.file_system, store.root, store.config, rows, 1)
    kept = [_attempt(store, later, 0).path, _attempt(store, neighbours, 0).path]
    named = [both[0][1], both[1][0]]
    assert store.commit(rows, named) == CommitOutcome(False, 10)
    store.close()
    assert store.staged_files == set(kept), "of this batch nothing is left, of others everything"
    pool = Path(store.root, "spark_mq/staged/pool")
    assert {path.name for path in pool.iterdir()} == {segment.path.replace("/", "-") for segment in named}
    inodes = {path.stat().st_ino for path in pool.iterdir()}
    forgotten.append(
        next(unjoined_blocks(store.file_system, store.root, store.config, rows, 1))
    )  # it writes into nobody's file
    assert os.fstat(forgotten._file._descriptor).st_ino not in inodes  # type: ignore[union-attr]
    for path in kept:
        store.file_system.unlink(f"{store.root}/spark_mq/staged/{path}")
    assert_holds_exactly(store.root, [rows])


def _attempt(store: SinkStore, rows: BatchRows, partition: int) -> StagedSegment:
    return stage_partition(store.file_system, store.root, store.config, rows, partition, queue_count=QUEUE_COUNT)


def test_abort_without_an_intent_gives_the_segments_back(store: SinkStore) -> None:
    store.commit(rows_of(0))
    segments = store.stage(rows_of(1))
    end = store.log_end
    abort_batch(store.file_system, store.root, segments)
    assert store.staged_files.isdisjoint(segment.path for segment in segments)
    assert store.log_end == end
    assert store.commit(rows_of(1)) == CommitOutcome(False, 10), "staged again, into the same files"
    store.close()
    assert_holds_exactly(store.root, [rows_of(0), rows_of(1)])


@pytest.mark.parametrize("failpoint", ["after-intent", "amid-records", "after-end"])
def test_abort_after_the_commit_point_undoes_nothing(store: SinkStore, failpoint: str) -> None:
    rows, segments = rows_of(0), store.stage(rows_of(0))
    with pytest.MonkeyPatch.context() as patch:
        kill_in_slices(patch, failpoint)
        with pytest.raises(Killed):
            store.commit(rows, segments)
    other_attempt = _attempt(store, rows, 0)
    abort_batch(store.file_system, store.root, [*segments, other_attempt])
    assert store.staged_files == {segment.path for segment in segments}
    with store.open() as opened:
        assert opened.finished_batches == (failpoint != "after-end")
        assert is_whole(found_rows(opened), rows)
    assert_holds_exactly(store.root, [rows])


# Other writers


@pytest.mark.parametrize("is_clean", [False, True], ids=["killed", "closed"])
@pytest.mark.parametrize(
    "failpoint",
    one_in(
        2,
        ["after-intent", "amid-slice", "amid-records", "after-records", "before-end", "after-end"],
        others=pytest.mark.long,
    ),
)
def test_who_wrote_between_crash_and_redo_does_not_matter(store: SinkStore, failpoint: str, is_clean: bool) -> None:
    store.commit(rows_of(0))
    commit_and_die(store, rows_of(1, 20, 11), failpoint)
    foreign = BatchRows(Batch("broker", "broker", 0), (9,), ("orders", "bills"))
    with pytest.MonkeyPatch.context() as patch:  # a broker recovers the log, and knows no intents
        patch.setattr(storage.store, "finish_open_intents", lambda writer, torn: 0)
        patch.setattr(storage.store, "settle", lambda writer: None)
        with store.open() as opened:
            opened.writer.append(list(blocks(store.file_system, store.root, store.config, foreign, 0)))
            if not is_clean:
                opened.release()
    if not is_clean:
        forget_hint(store)
    assert store.commit(rows_of(1, 20, 11)) == DONE
    assert store.commit(rows_of(2)) == CommitOutcome(False, 10)
    store.close()
    assert_holds_exactly(store.root, [rows_of(0), rows_of(1, 20, 11), rows_of(2)], [foreign])


def test_a_redo_that_is_killed_over_and_over_comes_to_its_end(store: SinkStore) -> None:
    rows = rows_of(0, 25, 25)
    commit_and_die(store, rows, "amid-records")
    for failpoint in ("amid-records", "amid-slice", "after-records", "amid-records", "after-queues", "before-end"):
        with pytest.MonkeyPatch.context() as patch:
            kill_in_slices(patch, failpoint)
            with pytest.raises(Killed):
                store.open()
    with store.open() as opened:
        assert opened.finished_batches == 1
        assert is_whole(found_rows(opened), rows)
    assert_holds_exactly(store.root, [rows])


@contextmanager
def held_by_another_process(lock: str) -> Iterator[subprocess.Popen[str]]:
    """The store's lock in a process of its own, given back when its standard input ends."""
    script = (
        "import sys\nfrom storage.files.local_file_system import LocalFileSystem\n"
        f"with LocalFileSystem().locked({lock!r}):\n    print('held', flush=True)\n    sys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.stdin.close()


def test_a_locked_store_is_waited_for_and_then_left_as_it_is(store: SinkStore) -> None:
    store.commit(rows_of(0))
    segments = store.stage(rows_of(1))
    before = everything(store.root)
    with held_by_another_process(f"{store.root}/lock") as process:
        with pytest.raises(StoreLockedError) as caught:
            store.open(lock_timeout_ms=150)
        assert caught.value.retriable
        assert caught.value.waited_ms == 150
        after = everything(store.root)
        after.pop("spark_mq/turns")  # the empty file of the queue of those that wait
        assert after == before
        assert process.stdin is not None
        threading.Timer(0.2, process.stdin.close).start()
        with store.open(lock_timeout_ms=60_000) as opened:
            commit_batch(opened.writer, StagedBatch(rows_of(1).batch, segments))
    assert_holds_exactly(store.root, [rows_of(0), rows_of(1)])


# Segments that change


def flip_a_bit(store: SinkStore, segment: StagedSegment, position: int) -> None:
    path = f"{store.root}/spark_mq/staged/{segment.path}"
    before = Path(path).read_bytes()[position]
    store.file_system.write(path, position, bytes([before ^ 4]))


@pytest.mark.parametrize("which", ["first byte", "body", "last byte", "columns"])
def test_a_segment_that_changed_between_task_and_commit_is_refused_before_anything_is_written(
    store: SinkStore, which: str
) -> None:
    store.commit(rows_of(0))
    segments = store.stage(rows_of(1, 20, 11))
    size = segments[1].data_size_bytes
    positions = {"first byte": 0, "body": size // 2, "last byte": size - 1, "columns": size + 9}
    store.close()
    before, topics = store.log_end, Path(store.root, "config/topics.json").read_bytes()
    flip_a_bit(store, segments[1], positions[which])
    with pytest.raises(
        StorageError, match=f"(data|columns) CRC.*{segments[1].path}|{segments[1].path}.*(data|columns) CRC"
    ):
        store.commit(rows_of(1, 20, 11), segments)
    assert (store.log_end, store.open_intents) == (before, 0)
    assert Path(store.root, "config/topics.json").read_bytes() == topics
    assert store.commit(rows_of(1, 20, 11)) == CommitOutcome(False, 31), "staged anew"
    for segment in segments:
        Path(store.root, "spark_mq/staged", segment.path).unlink(missing_ok=True)
    store.close()
    assert_holds_exactly(store.root, [rows_of(0), rows_of(1, 20, 11)])


@pytest.mark.parametrize("which", ["data", "columns"])
def test_a_segment_that_changes_while_it_is_appended_ends_the_commit_and_waits_for_a_person(
    store: SinkStore, which: str
) -> None:
    store.commit(rows_of(0))
    rows, segments = rows_of(1, 20, 11), store.stage(rows_of(1, 20, 11))
    position = segments[0].data_size_bytes + (9 if which == "columns" else -9)

    def reach(name: str) -> None:
        if name == "after-intent":
            flip_a_bit(store, segments[0], position)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage.batch.commit, "reach", reach)
        with pytest.raises(CorruptRecordError, match=f"{which} CRC"):
            store.commit(rows, segments)
    with open_store(store.root) as reading:
        ledger = reading.get(TOPIC, QUEUE_ID, 0).messages
    assert [message.tags for message in ledger if b'"batch":1' in message.body] == [], (
        "a slice is read whole before it is written"
    )
    for _ in range(2):
        with pytest.raises(
            StoreNotWritableError, match="batch 1 of sink sink is decided, and its rows are not to be had"
        ):
            store.open()
    flip_a_bit(store, segments[0], position)  # the person has brought the file back
    assert store.commit(rows) == DONE
    store.close()
    assert_holds_exactly(store.root, [rows_of(0), rows])
