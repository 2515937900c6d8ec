"""A store that sinks commit to, for tests that crash them: how a batch gets in, and whether exactly what should be there is there."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from jobs.verify_store import verify_store
from storage import MessageStore, StoreConfig, open_store
from storage.batch.commit import CommitOutcome, commit_batch
from storage.batch.intent import load_intents
from storage.batch.ledger import GROUP_PREFIX, QUEUE_ID, Batch
from storage.batch.ledger import TOPIC as LEDGER_TOPIC
from storage.batch.staged_segment import StagedBatch, StagedSegment, list_segments
from storage.files.local_file_system import LocalFileSystem
from storage.settings.load import load_config
from storage.tables.consumer_groups import ConsumerOffsets
from storage.tables.topics import TopicTable
from tests.support.served import served
from tests.support.stage_rows import BORN_MS, BatchRows, StagedRow, stage

QUEUE_COUNT = 4
SETTINGS = """\
brokerName=broker-crash
brokerIP1=127.0.0.1
mappedFileSizeCommitLog=8192
mappedFileSizeConsumeQueue=400
maxHashSlotNum=20
maxIndexNum=60
"""


def rows_of(batch_id: int, *counts: int, sink_id: str = "sink", query_id: str = "query") -> BatchRows:
    """A batch of a few rows in two partitions for two topics."""
    return BatchRows(Batch(sink_id, query_id, batch_id), counts or (6, 4), ("orders", "bills"))


class SinkStore:
    """The store at `root`, with files so small that every few batches roll log, queues and index. Its clock goes on with every look."""

    def __init__(
        self, root: Path, file_system: LocalFileSystem | None = None, *, sync_flush: bool = False, days: int = 0
    ) -> None:
        """`days` is how much later than another one's its clock begins."""
        self.root = str(root)
        self.file_system = file_system or LocalFileSystem()
        self._flush_disk_type = "SYNC_FLUSH" if sync_flush else "ASYNC_FLUSH"
        self._times = itertools.count(BORN_MS + 86_400_000 * days)

    @classmethod
    def make_place(cls, directory: Path, settings: str = SETTINGS) -> Path:
        """An empty ROOT with a broker.conf beside it."""
        (directory / "broker.conf").write_text(settings, encoding="ascii")
        root = directory / "store"
        root.mkdir()
        return root

    @property
    def log_end(self) -> int:
        """As a reader sees it."""
        with open_store(self.root) as store:
            return store.log_end

    @property
    def open_intents(self) -> int:
        return len(load_intents(self.file_system, self.root))

    @property
    def staged_files(self) -> set[str]:
        """Of all attempts, without the pool."""
        return {path for path, _ in list_segments(self.file_system, self.root)}

    @property
    def config(self) -> StoreConfig:
        return load_config(self.root, read_bytes=self.file_system.read_file)

    def now_ms(self) -> int:
        return next(self._times)

    def open(self, *, lock_timeout_ms: int = 0) -> MessageStore:
        """For writing, made if it is not there."""
        return open_store(
            self.root,
            read_only=False,
            create=True,
            lock_timeout_ms=lock_timeout_ms,
            flush_disk_type=self._flush_disk_type,
            file_system=self.file_system,
            clock=self.now_ms,
        )

    def stage(self, rows: BatchRows) -> list[StagedSegment]:
        return stage(self.file_system, self.root, self.config, rows, queue_count=QUEUE_COUNT)

    def commit(
        self,
        rows: BatchRows,
        segments: Sequence[StagedSegment] | None = None,
        *,
        takeover: bool = False,
        dead_letters: Sequence[tuple[str, str]] = (),
    ) -> CommitOutcome:
        """Stage (unless it is done), open, commit, let go: what a sink does with one batch."""
        staged = self.stage(rows) if segments is None else segments
        with self.open() as store:
            outcome = commit_batch(
                store.writer,
                StagedBatch(rows.batch, staged, dict.fromkeys(rows.topics, QUEUE_COUNT), dead_letters=dead_letters),
                takeover=takeover,
            )
            store.release()
        return outcome

    def close(self) -> None:
        """Open it and close it cleanly."""
        self.open().close()


class FoundRow(NamedTuple):
    """A row as the store serves it."""

    row: StagedRow
    queue_id: int
    queue_offset: int


def found_rows(store: MessageStore) -> list[FoundRow]:
    """Every message that is no ledger's, queue by queue. Queues are dense, or this fails."""
    found = []
    for topic in store.topics():
        for queue_id in store.queue_ids(topic) if topic != LEDGER_TOPIC else ():
            messages = list(served(store, topic, queue_id))
            offsets = range(store.min_offset(topic, queue_id), store.max_offset(topic, queue_id))
            assert [one.queue_offset for one in messages] == [*offsets], f"{topic} queue {queue_id} has holes"
            rows = (StagedRow(topic, message.body.decode(), " ".join(message.keys)) for message in messages)
            found += map(FoundRow, rows, [queue_id] * len(messages), offsets)
    return found


def is_whole(found: Iterable[FoundRow], rows: BatchRows) -> bool:
    """Whether all rows of the batch are there, each once; False if none is. Anything else fails."""
    wanted = set(rows.rows)
    counts = Counter(one.row for one in found if one.row in wanted)
    twice = [row for row, count in counts.items() if count > 1]
    assert not twice, f"{rows.batch}: {len(twice)} rows are there more than once, {twice[0]} for one"
    assert len(counts) in (0, len(wanted)), f"{rows.batch}: {len(counts)} of {len(wanted)} rows are there"
    return bool(counts)


def assert_holds_exactly(root: str, batches: Collection[BatchRows], others: Collection[BatchRows] = ()) -> None:
    """A closed store: the rows of these batches and no others, each once, in order, found by every key; all files agree.

    `others` are what was written without a sink.
    """
    wanted = [row for rows in (*batches, *others) for row in rows.rows]
    with open_store(root) as store:
        found = found_rows(store)
        assert Counter(one.row for one in found) == Counter(wanted)
        _assert_in_order(found)
        _assert_keys_are_found(store, wanted)
        topics = store.state("topics.json", TopicTable.load)
        assert topics is not None
        assert {row.topic for row in wanted} <= set(topics.topics)
        assert all(topics.topics[row.topic].write_queue_count == QUEUE_COUNT for row in wanted)
        _assert_mirrored(store, batches)
    report = verify_store(root)
    assert report.findings == (), report.findings
    assert report.undispatched_bytes == 0
    assert load_intents(LocalFileSystem(), root) == []
    assert list(list_segments(LocalFileSystem(), root)) == []


def _assert_in_order(found: Iterable[FoundRow]) -> None:
    """In each queue the rows of a task stand as they were staged, and a sink's batches one behind the other."""
    last: dict[tuple[str, int, str], tuple[int, int, int]] = {}
    for row, queue_id, _ in found:
        sink, batch_id, partition, number = row.key.split("/")
        place = int(batch_id), int(partition), int(number)
        queue = row.topic, queue_id, sink
        assert last.get(queue, (-1, 0, 0)) < place, f"{queue}: {place} stands behind {last.get(queue)}"
        last[queue] = place


def _assert_keys_are_found(store: MessageStore, wanted: Iterable[StagedRow]) -> None:
    for row in wanted:
        hits = store.messages_by_key(row.topic, row.key)
        assert [message.body.decode() for message in hits] == [row.body], f"look-up of {row.key}"
        unique_key = hits[0].unique_key
        assert unique_key is not None
        assert [message.body.decode() for message in store.messages_by_key(row.topic, unique_key)] == [row.body]


def _assert_mirrored(store: MessageStore, batches: Iterable[BatchRows]) -> None:
    """Each sink's next batch stands in consumerOffset.json."""
    offsets = store.state("consumerOffset.json", ConsumerOffsets.load) or ConsumerOffsets()
    newest: dict[str, int] = {}
    for rows in batches:
        newest[rows.batch.sink_id] = max(rows.batch.batch_id, newest.get(rows.batch.sink_id, 0))
    for sink_id, batch_id in newest.items():
        assert offsets.get(LEDGER_TOPIC, GROUP_PREFIX + sink_id, QUEUE_ID) == batch_id + 1
