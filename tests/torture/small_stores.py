"""Stores of a few KiB that hold one of everything, for looking at every bit of them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from types import MappingProxyType

import pyarrow as pa

from storage import MessageStore, StoreConfig, open_store
from storage.batch.commit import commit_batch
from storage.batch.ledger import Batch
from storage.batch.staged_segment import StagedBatch
from storage.delay.schedule import deliver_due
from storage.files.file_system import LocalWriter
from storage.rules.inner_messages import InnerMessage
from storage.settings.nouns import CommitLogConfig, ConsumeQueueConfig, IndexConfig
from storage.tables.offline_changes import write_group_offsets
from storage.tables.topics import TopicConfig
from tests.support.fixture_stores import unpack_fixture
from tests.support.reproducible import reproducible
from tests.support.stage_rows import BatchRows, stage
from tests.support.unsynced_files import UnsyncedFileSystem

FIRST_MS = 1_795_000_000_000
INDEX_SLOTS = 5
QUEUES = 2
GROUP = "readers"
WITH_PROPERTY_CRC = "with property CRC"
_BROKERS_BYTES = 1_938
"""Of the log of fixture `clean`: three records, two halves and the commit of one, as the broker wrote them."""
_BROKERS_TABLES = ("consumerOffset.json", "delayOffset.json")


class UnsyncedFiles(UnsyncedFileSystem):
    """The log's writer syncs nothing either, and the machine is never started again."""

    def open_for_writing(self, path: str) -> LocalWriter:
        return _UnsyncedWriter(path)

    def boot_id(self) -> str:
        return "one"


class _UnsyncedWriter(LocalWriter):
    def sync(self) -> None:
        """Nothing."""


@dataclass
class Clock:
    """Goes on with each look."""

    now_ms: int = FIRST_MS

    def __call__(self) -> int:
        self.now_ms += 1
        return self.now_ms


@dataclass(frozen=True)
class SmallStore:
    """How to make a store, and how to open it."""

    name: str
    make: Callable[[Path, StoreConfig], None]
    """Into an empty directory; the same bytes each time."""
    config: StoreConfig
    looked_at: str = ""
    """How the paths of those files begin whose bits are of interest."""

    def open(self, root: Path, *, read_only: bool, days: int = 0) -> MessageStore:
        return open_store(
            root,
            config=self.config,
            read_only=read_only,
            file_system=UnsyncedFiles(),
            clock=Clock(FIRST_MS + 86_400_000 * (1 + days)),
        )


def _config(*, property_crc: bool = False, log_bytes: int = 2_048) -> StoreConfig:
    tiny = StoreConfig.tiny()
    changed = {
        "mappedFileSizeCommitLog": str(log_bytes),
        "mappedFileSizeConsumeQueue": "100",
        "maxHashSlotNum": str(INDEX_SLOTS),
        "maxIndexNum": "30",
    }
    return replace(
        tiny,
        commit_log=CommitLogConfig(
            mapped_file_size_commit_log=log_bytes,
            enabled_append_prop_crc=property_crc,
            force_verify_prop_crc=property_crc,
        ),
        consume_queue=ConsumeQueueConfig(mapped_file_size_consume_queue=100),
        index=IndexConfig(max_hash_slot_num=INDEX_SLOTS, max_index_num=30),
        settings={**tiny.settings, **changed},
    )


def _fill(store: MessageStore) -> None:
    """Messages of several sorts, in three log files."""
    born = FIRST_MS - 5
    store.put(
        "orders", b"the first one", tags="a", keys=["k1", "k2"], queue_id=0, queue_count=QUEUES, born_time_ms=born
    )
    store.put("orders", b"", keys="k3", queue_id=1, properties={"colour": "red"}, flag=7, born_time_ms=born)
    delayed = {"queue_id": pa.array([0], pa.int32()), "body": [b"wait"], "delay_level": pa.array([1], pa.int32())}
    store.put_batch(pa.record_batch({"topic": ["bills"], **delayed}), queue_count=QUEUES)
    rows = pa.record_batch({"topic": ["orders"], "queue_id": pa.array([0], pa.int32()), "body": [b"z" * 400]})
    store.put_batch(rows, compress_body_over=100)
    half = {"queue_id": pa.array([1], pa.int32()), "body": [b"in doubt"], "transaction_state": ["commit"]}
    store.put_batch(pa.record_batch({"topic": ["orders"], **half}), transactional=True, producer_group="payers")
    retry = f"%RETRY%{GROUP}"
    store.save_topic(TopicConfig(retry, 1, 1))
    again = InnerMessage(
        topic=retry, queue_id=0, body=b"again", properties={"UNIQ_KEY": "U1"}, born_time_ms=born, reconsume_times=2
    )
    store.put_inner([again])
    store.put("orders", b"the last one", tags="b", keys="k1", queue_id=0, born_time_ms=born)


def _make_closed(root: Path, config: StoreConfig) -> None:
    files, clock = UnsyncedFiles(), Clock()
    with reproducible(Random(1)):
        with open_store(root, config=config, read_only=False, create=True, file_system=files, clock=clock) as store:
            _fill(store)
            clock.now_ms += 2_000
            deliver_due(store, clock())
        files.make_directories(f"{root}/config")
        for offset in (1, 2):
            offsets = {("orders", 0): offset, ("orders", 1): 1}
            write_group_offsets(str(root), GROUP, offsets, now_ms=clock(), file_system=files)


def _make_released(root: Path, config: StoreConfig) -> None:
    """Let go of between two commits: `abort`, a hint, an intent that is done but not known to be on the disk, its segments."""
    files, clock = UnsyncedFiles(), Clock()
    rows = BatchRows(Batch("sink", "query", 0), (2, 1), ("orders",))
    with reproducible(Random(2)):
        store = open_store(root, config=config, read_only=False, create=True, file_system=files, clock=clock)
        store.put("orders", b"before", keys="k1", tags="a", queue_id=0, queue_count=QUEUES)
        segments = stage(files, str(root), config, rows, queue_count=QUEUES)
        commit_batch(store.writer, StagedBatch(rows.batch, segments, dict.fromkeys(rows.topics, QUEUES)))
        store.release()


def _make_of_brokers_records(root: Path, config: StoreConfig) -> None:
    """The first records of a broker's log and its tables; queues and index are built by opening."""
    fixture = unpack_fixture("clean", root.with_name("unpacked"))
    log_bytes = config.commit_log.mapped_file_size_commit_log or 0
    (root / "commitlog").mkdir(parents=True)
    (root / "config").mkdir()
    with (fixture.root / "commitlog" / f"{0:020d}").open("rb") as log:
        (root / "commitlog" / f"{0:020d}").write_bytes(log.read(_BROKERS_BYTES).ljust(log_bytes, b"\0"))
    for name in _BROKERS_TABLES:
        shutil.copy(fixture.root / "config" / name, root / "config" / name)
    shutil.rmtree(fixture.conf.parent)
    open_store(root, config=config, read_only=False, file_system=UnsyncedFiles(), clock=Clock()).close()


STORES: Mapping[str, SmallStore] = MappingProxyType(
    {
        store.name: store
        for store in (
            SmallStore("closed", _make_closed, _config()),
            SmallStore("released", _make_released, _config(log_bytes=4_096)),
            SmallStore(WITH_PROPERTY_CRC, _make_closed, _config(property_crc=True), looked_at="commitlog/"),
            SmallStore("a broker's records", _make_of_brokers_records, _config(log_bytes=4_096)),
        )
    }
)
