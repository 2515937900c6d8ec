"""A batch in slices: others put between them, a continuation looks for the first row that is not there, and nothing is there twice.

A replica that becomes the master has the log and no intent. Here it is a copy of a killed writer's store without spark_mq/, on another
host, whose tasks stage the batch anew, at another time.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from itertools import count, pairwise
from pathlib import Path

import pyarrow as pa
import pytest

import storage.batch.commit
import storage.batch.slices
import storage.dispatch.writer
import storage.log.writer
import storage.put.store_writer
import storage.store
import tests.support.stage_rows
from spark_mq.conditions import SparkMqError
from storage import MessageStore, open_store
from storage.batch.commit import CommitOutcome, commit_batch
from storage.batch.ledger import END, QUEUE_ID, SLICE, TOPIC, Batch, BatchLedger, LedgerMessage
from storage.batch.sink_progress import apply_renewals, newest_ends, plan_renewals, slices_left
from storage.batch.staged_segment import SegmentReader, StagedBatch, staged_directory
from storage.errors import CorruptRecordError, SliceMismatchError, StoreNotWritableError
from storage.service.put_service import PutService
from tests.crash import test_killed_transactions as transactions
from tests.crash.sink_store import QUEUE_COUNT, SETTINGS, SinkStore, assert_holds_exactly, found_rows, is_whole, rows_of
from tests.support.dying import Killed, kill_at
from tests.support.shares import one_in
from tests.support.stage_rows import BatchRows, blocks

pytestmark = [pytest.mark.crash, pytest.mark.slow]

WRITTEN = CommitOutcome(False, 31)
DONE = CommitOutcome(True, 0)
ROWS = rows_of(1, 20, 11)
STRANGERS = BatchRows(Batch("broker", "broker", 0), (40,), ("orders", "bills"))


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SinkStore:
    """An empty place for a store whose slices have some rows each."""
    monkeypatch.setattr(storage.batch.slices, "SLICE_BYTES", 1_500)
    return SinkStore(SinkStore.make_place(tmp_path))


def commit_and_die(store: SinkStore, rows: BatchRows, point: str, time: int = 1) -> None:
    with pytest.MonkeyPatch.context() as patch:
        kill_at(patch, point, time)
        patch.setattr(storage.log.writer, "SLICE_BYTES", 700)
        with pytest.raises(Killed):
            store.commit(rows)


def ledger(store: SinkStore, batch: Batch) -> list[LedgerMessage]:
    """What it says of a batch; nothing is finished or settled for that."""
    with open_store(store.root) as reading:
        return messages(reading, batch)


def messages(opened: MessageStore, batch: Batch | None = None) -> list[LedgerMessage]:
    """The ledger's, oldest first; all, or those of one batch."""
    end = opened.max_offset(TOPIC, QUEUE_ID)
    queue = opened.queues.get(TOPIC, QUEUE_ID)
    found = BatchLedger(opened.log, queue, end, opened.log_end, unmarked_end=0).messages_from(0)
    return [message for message in found if batch in (None, message.batch)]


def slices_of(store: SinkStore, batch: Batch) -> list[LedgerMessage]:
    return [message for message in ledger(store, batch) if message.kind == SLICE]


def stranger(store: SinkStore, opened: MessageStore) -> Iterator[None]:
    """With each step one more row of somebody else stands in the log."""
    for block in blocks(store.file_system, store.root, store.config, STRANGERS, 0, block_rows=1):
        opened.writer.append([block])
        yield


def log_bytes(root: str, end: int) -> bytes:
    files = sorted(Path(root, "commitlog").iterdir())
    return b"".join(file.read_bytes() for file in files)[:end]


# The log of a batch


def test_a_batch_is_slices_whose_rows_follow_them_directly(store: SinkStore) -> None:
    store.commit(rows_of(0))
    assert store.commit(ROWS) == WRITTEN
    found = ledger(store, ROWS.batch)
    assert [message.kind for message in found] == [*[SLICE] * (len(found) - 1), END]
    slices = found[:-1]
    assert len(slices) > 3
    assert [one.first_row for one in slices] == [0, *(one.end_row for one in slices[:-1])]
    assert slices[-1].end_row == 31
    with open_store(store.root) as reading:
        for one, following in zip(slices, found[1:], strict=True):
            at, bodies, size = one.end, [], 0
            while at < following.commitlog_offset:
                if reading.log.bytes_at(at + 4, 4) == b"\xcb\xd4\x31\x94":  # the file's rest is a filler
                    at += int.from_bytes(reading.log.bytes_at(at, 4), "big")
                    continue
                row = reading.message_by_commitlog_offset(at)
                bodies.append(row.body.decode())
                size += row.size_bytes
                at += row.size_bytes
            assert bodies == [row.body for row in ROWS.rows[one.first_row : one.end_row]]
            assert size == one.size_bytes <= 1_500


@pytest.mark.parametrize("sync_flush", [False, True], ids=["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_others_put_between_two_slices(tmp_path: Path, store: SinkStore, sync_flush: bool) -> None:
    store = SinkStore(Path(store.root), sync_flush=sync_flush)
    held: list[bool] = []
    with store.open() as opened:
        put = stranger(store, opened)

        @contextmanager
        def turn() -> Iterator[None]:
            assert not any(held), "nobody takes the lock who has it"
            held.append(True)
            yield
            held.clear()
            next(put)

        topics = dict.fromkeys(ROWS.topics, QUEUE_COUNT)
        assert commit_batch(opened.writer, StagedBatch(ROWS.batch, store.stage(ROWS), topics), turn=turn) == WRITTEN
        for _ in put:
            pass
        found = messages(opened)
        assert sum(message.kind == SLICE for message in found) > 3
        between = sum(one.end + one.size_bytes < following.commitlog_offset for one, following in pairwise(found))
        assert between == len(found) - 1, "somebody else's message stands between any two"
    assert_holds_exactly(store.root, [ROWS], [STRANGERS])


@pytest.mark.parametrize("gap", [1, 2, 5])
def test_room_that_others_take_is_reserved_again(store: SinkStore, monkeypatch: pytest.MonkeyPatch, gap: int) -> None:
    """Also before the first slice: else a disk that is full by then ends the batch amid a slice."""
    with store.open() as opened:
        writer, given_up, asked = opened.writer, 0, []
        put = stranger(store, opened)
        reserve = writer.reserve
        monkeypatch.setattr(
            writer, "reserve", lambda size, largest: asked.append((given_up, size)) or reserve(size, largest)
        )

        @contextmanager
        def turn() -> Iterator[None]:
            nonlocal given_up
            yield
            if given_up == gap:
                next(put)
            given_up += 1

        topics = dict.fromkeys(ROWS.topics, QUEUE_COUNT)
        assert commit_batch(writer, StagedBatch(ROWS.batch, store.stage(ROWS), topics), turn=turn) == WRITTEN
    (_, at_first), (when, again) = asked
    assert when == max(gap + 1, 3), "under the next hold of the lock that appends rows"
    assert (again < at_first) == (gap > 2)


def test_threads_put_through_a_service_while_a_batch_is_committed(store: SinkStore) -> None:
    opened = store.open()
    opened.writer.topic_entries.ensure({"threads": QUEUE_COUNT})
    segments, goes_on = store.stage(ROWS), threading.Event()
    counts: list[int] = []
    with PutService(opened, starts_duties=False) as service:

        def put() -> None:
            count = 0
            while not goes_on.is_set() or not count:
                assert (
                    service.put_batch(
                        pa.record_batch({"body": [f"thread {count}".encode()]}), topic="threads"
                    ).places.num_rows
                    == 1
                )
                count += 1
            counts.append(count)

        threads = [threading.Thread(target=put) for _ in range(3)]
        for thread in threads:
            thread.start()
        topics = dict.fromkeys(ROWS.topics, QUEUE_COUNT)
        assert commit_batch(opened.writer, StagedBatch(ROWS.batch, segments, topics), turn=service.exclusive) == WRITTEN
        goes_on.set()
        for thread in threads:
            thread.join()
    with open_store(store.root) as reading:
        found = found_rows(reading)
        assert is_whole(found, ROWS)
        assert sum(one.row.topic == "threads" for one in found) == sum(counts)


@contextmanager
def while_summed_up(call: Callable[[], None]) -> Iterator[None]:
    """The call is made, once, before the rows of the first segment are compared with their sum."""
    verify, numbers = SegmentReader.verify_data, count()

    def verified(reader: SegmentReader) -> None:
        if next(numbers) == 0:
            call()
        verify(reader)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SegmentReader, "verify_data", verified)
        yield
    assert next(numbers)


def test_a_thread_puts_through_a_service_while_rows_are_summed_up(store: SinkStore) -> None:
    """For some gigabytes that takes a second: no send waits for it."""
    opened = store.open()
    opened.writer.topic_entries.ensure({"threads": QUEUE_COUNT})
    segments, topics = store.stage(ROWS), dict.fromkeys(ROWS.topics, QUEUE_COUNT)
    with PutService(opened, starts_duties=False) as service, ThreadPoolExecutor(1) as threads:
        others: list[int] = []

        def put() -> None:
            row = pa.record_batch({"body": [b"meanwhile"]})
            receipt = threads.submit(service.put_batch, row, topic="threads").result(30)
            others.append(receipt.places["commitlog_offset"][0].as_py())

        with while_summed_up(put):
            staged = StagedBatch(ROWS.batch, segments, topics)
            assert commit_batch(opened.writer, staged, turn=service.exclusive) == WRITTEN
        (place,) = others
        assert place < messages(opened, ROWS.batch)[0].commitlog_offset
    with open_store(store.root) as reading:
        assert is_whole(found_rows(reading), ROWS)


def test_a_batch_that_another_commit_ends_while_its_rows_are_summed_up_is_not_written_again(store: SinkStore) -> None:
    with store.open() as opened:
        first, second = store.stage(ROWS), store.stage(ROWS)
        topics = dict.fromkeys(ROWS.topics, QUEUE_COUNT)

        def commit_the_other() -> None:
            assert commit_batch(opened.writer, StagedBatch(ROWS.batch, second, topics)) == WRITTEN

        with while_summed_up(commit_the_other):
            staged = StagedBatch(ROWS.batch, first, topics)
            assert commit_batch(opened.writer, staged, turn=lambda: nullcontext()) == DONE
    assert_holds_exactly(store.root, [ROWS])


@pytest.mark.parametrize("part", ["records", "columns"])
def test_rows_that_have_changed_are_refused_and_the_store_is_as_it_was(store: SinkStore, part: str) -> None:
    segments, topics = store.stage(ROWS), dict.fromkeys(ROWS.topics, QUEUE_COUNT)
    path = Path(staged_directory(store.root), segments[-1].path)
    content = bytearray(path.read_bytes())
    content[segments[-1].data_size_bytes - (part == "records")] ^= 1
    path.write_bytes(content)
    opened = store.open()
    end = opened.log_end
    with pytest.raises(
        StoreNotWritableError, match=r"(?s)a task has staged have changed since: .* CRC .*nothing was written"
    ):
        commit_batch(opened.writer, StagedBatch(ROWS.batch, segments, topics))
    assert opened.log_end == end
    assert opened.writer.failure is None
    opened.release()


def test_rows_that_change_when_they_have_been_summed_up_do_not_become_a_batch(store: SinkStore) -> None:
    """Nobody decides by the first look alone: the second is taken while they are appended."""
    segments, topics = store.stage(ROWS), dict.fromkeys(ROWS.topics, QUEUE_COUNT)
    opened, holds = store.open(), count()
    path = Path(staged_directory(store.root), segments[-1].path)

    @contextmanager
    def turn() -> Iterator[None]:
        if next(holds) == 1:
            content = bytearray(path.read_bytes())
            content[segments[-1].data_size_bytes - 1] ^= 1
            path.write_bytes(content)
        yield

    with pytest.raises(CorruptRecordError, match="data CRC"):
        commit_batch(opened.writer, StagedBatch(ROWS.batch, segments, topics), turn=turn)
    assert END not in [message.kind for message in messages(opened, ROWS.batch)]
    opened.release()
    with pytest.raises(StoreNotWritableError, match="is decided, and its rows are not to be had"):
        store.open()


def test_another_commit_between_two_slices_leaves_the_intent_alone(store: SinkStore) -> None:
    """Each commit syncs the log and forgets the intents before it; this one's batch is not in the log yet."""
    others = iter(rows_of(number, sink_id="other", query_id="other") for number in range(3))
    with store.open() as opened:
        holds = count()

        @contextmanager
        def turn() -> Iterator[None]:
            yield
            if next(holds) and (rows := next(others, None)) is not None:  # it is decided in the second
                topics = dict.fromkeys(rows.topics, QUEUE_COUNT)
                commit_batch(opened.writer, StagedBatch(rows.batch, store.stage(rows), topics))
                assert store.open_intents >= 2
                with pytest.raises(StoreNotWritableError, match="batch 1 of sink sink is being committed"):
                    commit_batch(opened.writer, StagedBatch(ROWS.batch, store.stage(ROWS), topics))

        topics = dict.fromkeys(ROWS.topics, QUEUE_COUNT)
        segments = store.stage(ROWS)
        commit_batch(opened.writer, StagedBatch(ROWS.batch, segments, topics), turn=turn)
        with open_store(store.root) as reading:
            assert is_whole(found_rows(reading), ROWS)


POINTS = [
    *(("amid-slice", time) for time in (1, 2, 4)),
    *(("amid-records", time) for time in (1, 2, 3, 5)),
    *(("after-slice", time) for time in (1, 2, 3)),
    ("before-end", 1),
]
AT_POINTS = pytest.mark.parametrize(("point", "time"), POINTS, ids=[f"{point}-{time}" for point, time in POINTS])


@AT_POINTS
@pytest.mark.parametrize(
    "others", one_in(2, [True, False], others=pytest.mark.long), ids=["others between slices", "alone"]
)
def test_a_commit_that_is_killed_amid_its_slices_is_made_whole(
    store: SinkStore, point: str, time: int, others: bool
) -> None:
    store.commit(rows_of(0))
    strangers: list[BatchRows] = []
    if others:
        _die_among_others(store, point, time)
        strangers = [STRANGERS]
    else:
        commit_and_die(store, ROWS, point, time)
    assert store.commit(ROWS) == DONE
    store.close()
    if strangers:
        with store.open() as opened:
            rest = [row.body for row in STRANGERS.rows]
            there = [one.row.body for one in found_rows(opened)]
            for number, block in enumerate(
                blocks(store.file_system, store.root, store.config, STRANGERS, 0, block_rows=1)
            ):
                if rest[number] not in there:
                    opened.writer.append([block])
    assert_holds_exactly(store.root, [rows_of(0), ROWS], strangers)


def _die_among_others(store: SinkStore, point: str, time: int) -> None:
    segments, topics = store.stage(ROWS), dict.fromkeys(ROWS.topics, QUEUE_COUNT)
    with store.open() as opened, pytest.MonkeyPatch.context() as patch:
        put = stranger(store, opened)

        @contextmanager
        def turn() -> Iterator[None]:
            yield
            next(put)

        kill_at(patch, point, time)
        patch.setattr(storage.log.writer, "SLICE_BYTES", 700)
        with pytest.raises(Killed):
            commit_batch(opened.writer, StagedBatch(ROWS.batch, segments, topics), turn=turn)
        opened.release()


def test_a_slice_whose_tail_is_missing_is_completed_where_it_stands(store: SinkStore) -> None:
    undisturbed = SinkStore(SinkStore.make_place(_directory(store, "undisturbed")))
    undisturbed.commit(ROWS)
    expected = [(one.first_row, one.end_row) for one in slices_of(undisturbed, ROWS.batch)]
    commit_and_die(store, ROWS, "amid-records", 3)
    with store.open() as opened:
        assert opened.finished_batches == 1
        found = [one for one in messages(opened, ROWS.batch) if one.kind == SLICE]
    assert [(one.first_row, one.end_row) for one in found] == expected
    assert_holds_exactly(store.root, [ROWS])


def test_behind_a_partial_slice_others_keep_their_place_and_a_new_one_goes_on(store: SinkStore) -> None:
    """A broker was started between the crash and the redo."""
    commit_and_die(store, ROWS, "amid-records", 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage.store, "finish_open_intents", lambda writer, torn: 0)
        patch.setattr(storage.store, "settle", lambda writer: None)
        with store.open() as opened:
            partial = [one for one in messages(opened, ROWS.batch) if one.kind == SLICE][-1]
            list(stranger(store, opened))
            end = opened.log_end
            before = log_bytes(store.root, end)
    with store.open() as opened:
        found = [one for one in messages(opened, ROWS.batch) if one.kind == SLICE]
    following = found[found.index(partial) + 1]
    assert following.commitlog_offset >= end
    assert partial.first_row < following.first_row < partial.end_row, "some of its rows were there, not all"
    assert log_bytes(store.root, end) == before, "nobody's message is hidden or cut"
    assert_holds_exactly(store.root, [ROWS], [STRANGERS])


# Without an intent


def _directory(store: SinkStore, name: str) -> Path:
    directory = Path(store.root).parent / name
    directory.mkdir()
    return directory


def promoted(store: SinkStore, name: str = "replica") -> SinkStore:
    """A store on another host that has the log as far as it goes, and nothing of this package's own."""
    place = SinkStore.make_place(_directory(store, name), SETTINGS.replace("127.0.0.1", "127.0.0.2"))
    for part in ("commitlog", "config", "checkpoint"):
        source = Path(store.root, part)
        (shutil.copytree if source.is_dir() else shutil.copy)(source, place / part)
    (place / "abort").touch()
    return SinkStore(place)


def commit_anew(store: SinkStore, rows: BatchRows) -> CommitOutcome:
    """Spark's repeated batch: its rows are born at another time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tests.support.stage_rows, "BORN_MS", tests.support.stage_rows.BORN_MS + 77_777)
        return store.commit(rows)


@AT_POINTS
def test_a_promoted_replica_goes_on_at_the_first_row_that_its_slices_do_not_hold(
    store: SinkStore, point: str, time: int
) -> None:
    store.commit(rows_of(0))
    commit_and_die(store, ROWS, point, time)
    replica = promoted(store)
    with replica.open() as opened:
        end = opened.log_end
        left = slices_left(opened.writer, ROWS.batch)
        before = log_bytes(replica.root, end)
        opened.release()
    assert left, "the replica holds a part of the batch"
    assert commit_anew(replica, ROWS) == WRITTEN
    assert commit_anew(replica, ROWS) == DONE
    assert log_bytes(replica.root, end) == before
    first = [one for one in slices_of(replica, ROWS.batch) if one.commitlog_offset >= end]
    assert all(one.first_row > left[-1].first_row for one in first), "what stands is not written again"
    replica.close()
    assert_holds_exactly(replica.root, [rows_of(0), ROWS])


@pytest.mark.parametrize("point", ["after-intent", "amid-slice", "amid-records", "after-slice", "before-end"])
def test_a_replica_that_is_killed_while_it_goes_on_is_made_whole_by_its_own_intent(
    store: SinkStore, point: str
) -> None:
    store.commit(rows_of(0))
    commit_and_die(store, ROWS, "amid-records", 3)
    replica = promoted(store)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tests.support.stage_rows, "BORN_MS", tests.support.stage_rows.BORN_MS + 77_777)
        commit_and_die(replica, ROWS, point)
    again = promoted(replica, "again")
    for held in (replica, again):
        assert commit_anew(held, ROWS) == (WRITTEN if held is again else DONE)
        held.close()
        assert_holds_exactly(held.root, [rows_of(0), ROWS])


def test_what_is_known_of_open_batches_outlives_the_hint(store: SinkStore) -> None:
    store.commit(rows_of(0))
    commit_and_die(store, ROWS, "after-slice", 2)
    replica = promoted(store)
    for number in range(3):  # each opens by the hint of the one before
        replica.commit(rows_of(number, sink_id="other", query_id="other"))
    assert commit_anew(replica, ROWS) == WRITTEN
    replica.close()
    assert_holds_exactly(
        replica.root, [rows_of(0), ROWS, *(rows_of(n, sink_id="other", query_id="other") for n in range(3))]
    )


def test_an_end_that_is_kept_from_expiry_hides_no_slices_of_the_next_batch(store: SinkStore) -> None:
    """Retention appends a sink's newest END again before its file goes."""
    store.commit(rows_of(0))
    commit_and_die(store, ROWS, "after-slice", 3)
    replica = promoted(store)
    with replica.open() as opened:
        (first, *_) = messages(opened, ROWS.batch)
        renewals = plan_renewals(newest_ends(opened.writer), first.commitlog_offset)
        assert [renewal.batch for renewal in renewals] == [rows_of(0).batch]
        apply_renewals(opened.writer, renewals)
        opened.release()
    assert commit_anew(replica, ROWS) == WRITTEN
    replica.close()
    assert_holds_exactly(replica.root, [rows_of(0), ROWS])


def test_a_torn_row_of_a_slice_that_another_staging_completed_is_mended(store: SinkStore) -> None:
    store.commit(rows_of(0))
    commit_and_die(store, ROWS, "amid-records", 3)
    replica = promoted(store)
    with replica.open() as opened:
        end = opened.log_end
        opened.release()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tests.support.stage_rows, "BORN_MS", tests.support.stage_rows.BORN_MS + 77_777)
        commit_and_die(replica, ROWS, "after-slice")
    with open_store(replica.root) as reader:
        completed = reader.message_by_commitlog_offset(end)
        size = len(completed.raw_properties)
        file = reader.log.files[reader.log.file_index(end)]
    with open(file.path, "r+b") as log:  # what a power loss takes of a page, where no checksum reaches
        log.seek(end - file.start + completed.size_bytes - size)
        log.write(bytes(size))
    Path(replica.root, "spark_mq", "hint.json").unlink(missing_ok=True)
    replica.open().close()
    assert_holds_exactly(replica.root, [rows_of(0), ROWS])
    with open_store(replica.root) as reader:
        assert reader.message_by_commitlog_offset(end) == completed


CHANGES: dict[str, Callable[[], BatchRows]] = {
    "partitions are others": lambda: rows_of(1, 11, 20),
    "rows are missing": lambda: rows_of(1, 3),
    "topics are others": lambda: BatchRows(ROWS.batch, ROWS.counts, ("bills", "orders")),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_repeated_batch_with_other_rows_is_refused_by_name(store: SinkStore, change: str) -> None:
    store.commit(rows_of(0))
    commit_and_die(store, ROWS, "after-slice", 4)
    replica = promoted(store)
    replica.open().close()
    end = replica.log_end
    with pytest.raises(SliceMismatchError, match="not those that were staged now") as caught:
        commit_anew(replica, CHANGES[change]())
    error = caught.value
    assert (error.sink_id, error.query_id, error.batch_id, error.path) == ("sink", "query", 1, replica.root)
    assert error.first_row < error.end_row
    assert (replica.log_end, replica.open_intents) == (end, 0), "nothing was written"
    assert commit_anew(replica, ROWS) == WRITTEN, "the right rows go on"


def test_a_batch_of_another_query_does_not_go_on_where_this_one_ended(store: SinkStore) -> None:
    commit_and_die(store, ROWS, "after-slice", 2)
    replica = promoted(store)
    for batch in (Batch("sink", "another", 1), Batch("another", "query", 1), Batch("sink", "query", 2)):
        with replica.open() as opened:
            assert slices_left(opened.writer, batch) == []
            assert len(slices_left(opened.writer, ROWS.batch)) == 2


def test_transactions_go_on_without_an_intent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage.batch.slices, "SLICE_BYTES", 3_000)
    for point, time in (
        ("amid-slice", 2),
        ("amid-records", 4),
        ("after-halves", 1),
        ("after-slice", 5),
        ("before-ops", 1),
    ):
        directory = tmp_path / f"{point}-{time}"
        directory.mkdir()
        store = SinkStore(SinkStore.make_place(directory))
        options = transactions.options_of(Path(store.root))
        with monkeypatch.context() as patched:
            patched.setattr(storage.log.writer, "SLICE_BYTES", 1_000)
            kill_at(patched, point, time)
            with pytest.raises(Killed):
                transactions.commit_rows(
                    options, [transactions.stage(options, 0), transactions.stage(options, 1)], 3, mirrored=True
                )
        replica = Path(promoted(store).root)
        options = transactions.options_of(replica)
        staged = [transactions.stage(options, 0), transactions.stage(options, 1)]
        transactions.commit_rows(options, staged, 3, mirrored=True)
        open_store(replica, read_only=False).close()
        transactions.check(replica)


def without_first_files(root: str, until: int) -> None:
    """What retention does to a log: its files go up to the one that holds a place."""
    for path in sorted(Path(root, "commitlog").iterdir()):
        if int(path.name) + path.stat().st_size <= until:
            path.unlink()


def transactions_without_their_first_halves(tmp_path: Path) -> tuple[SinkStore, LedgerMessage]:
    """A store whose batch of transactions was killed amid its slices; the first of them has expired. With the first that is left."""
    store = SinkStore(SinkStore.make_place(tmp_path))
    options = transactions.options_of(Path(store.root))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage.batch.slices, "SLICE_BYTES", 3_000)
        kill_at(patch, "after-slice", 4)
        staged = [transactions.stage(options, 0), transactions.stage(options, 1)]
        with pytest.raises(Killed):
            transactions.commit_rows(options, staged, 3, mirrored=True)
    with promoted(store, "whole").open() as opened:
        slices = slices_left(opened.writer, Batch("sink", "query", 3))
    without_first_files(store.root, slices[-1].commitlog_offset)
    left = next(one for one in slices if one.commitlog_offset >= int(min(Path(store.root, "commitlog").iterdir()).name))
    assert left.first_row
    return store, left


def test_transactions_whose_first_halves_have_expired_are_refused_by_name(tmp_path: Path) -> None:
    store, left = transactions_without_their_first_halves(tmp_path)
    replica = promoted(store)
    options = transactions.options_of(Path(replica.root))
    staged = [transactions.stage(options, 0), transactions.stage(options, 1)]
    replica.open().close()
    end = replica.log_end
    with pytest.raises(SparkMqError, match=rf"\[SPARK_MQ_HALVES_GONE\] .*from number {left.first_row} on"):
        transactions.commit_rows(options, staged, 3, mirrored=True)
    assert (replica.log_end, replica.open_intents) == (end, 0), "nothing was written"
    replica.open().close()


def test_an_opening_says_what_to_do_where_a_decided_batch_has_lost_halves(tmp_path: Path) -> None:
    """A broker ran on the store for longer than it keeps its files, and knows nothing of intents."""
    store, left = transactions_without_their_first_halves(tmp_path)
    for _ in range(2):
        with pytest.raises(StoreNotWritableError, match=f"from number {left.first_row} on") as caught:
            store.open()
    (intent,) = Path(store.root, "spark_mq", "intents").iterdir()
    assert f"delete {intent}" in str(caught.value)
    intent.unlink()
    store.open().close()


NAMED_BY_ROWS = ["regionId=elsewhere", "traceOn=false", "brokerClusterName=other", "compressBodyOver"]


@pytest.mark.parametrize("setting", NAMED_BY_ROWS)
def test_a_setting_that_rows_carry_is_named_as_a_cause_of_other_rows(tmp_path: Path, setting: str) -> None:
    """A master and its replica have a broker.conf each."""
    store = SinkStore(SinkStore.make_place(tmp_path))
    options = transactions.options_of(Path(store.root))
    with pytest.MonkeyPatch.context() as patch:
        kill_at(patch, "before-end", 1)
        with pytest.raises(Killed):
            transactions.commit_rows(options, [transactions.stage(options, 0)], 3, mirrored=True)
    replica = promoted(store)
    name, _, value = setting.partition("=")
    with Path(replica.root).parent.joinpath("broker.conf").open("a") as conf:
        conf.write(f"{setting}\n" if value else "")
    options = transactions.options_of(Path(replica.root), **({} if value else {name: "1"}))
    with pytest.raises(SparkMqError, match=rf"\[SPARK_MQ_SLICE_MISMATCH\](.|\n)*{name}"):
        transactions.commit_rows(options, [transactions.stage(options, 0)], 3, mirrored=True)
