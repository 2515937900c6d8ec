"""Files go when a broker would delete them, and never one too many: rules one by one, then whole stores.

The rules are those of DefaultMessageStore.CleanCommitLogService, MappedFileQueue, IndexService and ConsumeQueueExt, as the cases
name them; expected file lists of whole stores are worked out here from the bytes on the disk.
"""

from __future__ import annotations

import logging
import os
import shutil
import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from jobs.verify_store import verify_store
from storage import MessageStore, StoreConfig, open_store
from storage.batch.ledger import BEGIN, END, Batch, LedgerMessage, LedgerStatement, outgoing_ledger_message
from storage.batch.sink_progress import newest_ends, plan_renewals
from storage.errors import ConfigurationError
from storage.files.local_file_system import LocalFileSystem
from storage.format.record_block import encode_block
from storage.log.commit_log import LogFile
from storage.put.put import PutResult
from storage.retention import (
    ExpiryPlan,
    Occasion,
    QueueExpiry,
    apply_expiry,
    count_expired,
    plan_expired_log_files,
    plan_expiry,
    plan_occasion,
    written_directories,
)
from storage.settings.nouns import CommitLogConfig, RetentionConfig
from tests.support.message_builder import StoreBuilder
from tests.support.served import served

HOUR_MS = 3_600_000
NOW_MS = 1_700_000_000_000
OLD_MS = NOW_MS - 72 * HOUR_MS
TINY = StoreConfig.tiny()
FILES = LocalFileSystem()
ALL_TIMES = Occasion(("it was requested",))


# When: CleanCommitLogService.isTimeToDelete, isSpaceToDelete


@pytest.mark.parametrize(
    ("when", "hour", "is_time"),
    [
        ("04", 4, True),
        ("4", 4, True),
        ("04", 5, False),
        ("04;16;23", 16, True),
        ("04;16;23", 15, False),
        ("0", 0, True),
        ("24", 0, False),
        ("04;", 4, True),
    ],
)
def test_the_hour_is_one_of_delete_when(when: str, hour: int, is_time: bool) -> None:
    """UtilAll.isItTimeToDo"""
    config = RetentionConfig(delete_when=when)
    occasion = plan_occasion(config, hour=hour, log_used_percents=[10], queues_used_percent=10)
    assert (bool(occasion.reasons), occasion.whatever_age) == (is_time, False)


@pytest.mark.parametrize("when", ["", "four", "04,16", ";04"])
def test_hours_that_are_none_are_refused(when: str) -> None:
    """UtilAll.isItTimeToDo throws NumberFormatException, and the service deletes nothing for ever"""
    with pytest.raises(ConfigurationError, match="deleteWhen"):
        plan_occasion(RetentionConfig(delete_when=when), hour=4, log_used_percents=[99], queues_used_percent=99)


@pytest.mark.parametrize(
    ("log_used", "queues_used", "deletes", "whatever_age"),
    [
        pytest.param([75], 75, False, False, id="diskMaxUsedSpaceRatio"),
        pytest.param([76], 10, True, False, id="log beyond diskMaxUsedSpaceRatio"),
        pytest.param([10], 76, True, False, id="queues beyond diskMaxUsedSpaceRatio"),
        pytest.param([85], 10, True, False, id="diskSpaceCleanForciblyRatio"),
        pytest.param([86], 10, True, True, id="log beyond diskSpaceCleanForciblyRatio"),
        pytest.param([10], 86, True, True, id="queues beyond diskSpaceCleanForciblyRatio"),
        pytest.param([91], 10, True, True, id="beyond diskSpaceWarningLevelRatio"),
        pytest.param([99, 20], 10, False, False, id="the least full of several paths counts"),
        pytest.param([99, 86], 10, True, True, id="all paths are full"),
        pytest.param([-1], 10, True, False, id="the log's disk is not known"),
        pytest.param([10], -1, True, False, id="the queues' disk is not known"),
    ],
)
def test_a_disk_too_full_makes_files_go(
    log_used: list[int], queues_used: int, deletes: bool, whatever_age: bool
) -> None:
    """DefaultMessageStore.CleanCommitLogService.isSpaceToDelete"""
    occasion = plan_occasion(RetentionConfig(), hour=5, log_used_percents=log_used, queues_used_percent=queues_used)
    assert (bool(occasion.reasons), occasion.whatever_age) == (deletes, whatever_age)


@pytest.mark.parametrize(
    ("settings", "used", "deletes", "whatever_age"),
    [
        pytest.param({"disk_max_used_space_ratio": 5}, 10, False, False, id="diskMaxUsedSpaceRatio is at least 10"),
        pytest.param({"disk_max_used_space_ratio": 5}, 11, True, False, id="diskMaxUsedSpaceRatio of 10"),
        pytest.param({"disk_max_used_space_ratio": 80}, 80, False, False, id="diskMaxUsedSpaceRatio of 80"),
        pytest.param({"disk_space_clean_forcibly_ratio": 99}, 86, True, True, id="cleanForcibly is at most 85"),
        pytest.param({"disk_space_clean_forcibly_ratio": 1}, 30, False, False, id="cleanForcibly is at least 30"),
        pytest.param({"disk_space_clean_forcibly_ratio": 1}, 31, True, True, id="cleanForcibly of 30"),
        pytest.param({"disk_space_warning_level_ratio": 1}, 35, False, False, id="warningLevel is at least 35"),
        pytest.param({"disk_space_warning_level_ratio": 1}, 36, True, True, id="warningLevel of 35"),
        pytest.param({"clean_file_forcibly_enable": False}, 95, True, False, id="cleanFileForciblyEnable"),
    ],
)
def test_ratios_are_held_within_their_bounds(
    settings: dict[str, Any], used: int, deletes: bool, whatever_age: bool
) -> None:
    """getDiskSpaceWarningLevelRatio, getDiskSpaceCleanForciblyRatio, MessageStoreConfig.getDiskMaxUsedSpaceRatio"""
    config = RetentionConfig(**settings)
    occasion = plan_occasion(config, hour=5, log_used_percents=[used], queues_used_percent=1)
    assert (bool(occasion.reasons), occasion.whatever_age) == (deletes, whatever_age)


@pytest.mark.parametrize(
    ("settings", "log_used", "queues_used", "is_full"),
    [
        pytest.param({}, [90], 90, False, id="diskSpaceWarningLevelRatio"),
        pytest.param({}, [91], 10, True, id="log beyond it"),
        pytest.param({}, [10], 91, True, id="queues beyond it"),
        pytest.param({}, [99, 90], 10, False, id="the least full of several paths counts"),
        pytest.param({}, [-1], -1, False, id="not known"),
        pytest.param({"disk_space_warning_level_ratio": 95}, [91], 10, True, id="it is at most 90"),
        pytest.param({"disk_space_warning_level_ratio": 1}, [35], 10, False, id="it is at least 35"),
        pytest.param({"clean_file_forcibly_enable": False}, [91], 10, True, id="whatever is deleted"),
    ],
)
def test_beyond_the_warning_level_a_broker_takes_no_message(
    settings: dict[str, Any], log_used: list[int], queues_used: int, is_full: bool
) -> None:
    """isSpaceToDelete: getAndMakeDiskFull, which HookUtils.checkBeforePutMessage asks for by RunningFlags.isWriteable"""
    config = RetentionConfig(**settings)
    occasion = plan_occasion(config, hour=5, log_used_percents=log_used, queues_used_percent=queues_used)
    assert occasion.is_full == is_full


def test_disks_that_are_only_read_do_not_count() -> None:
    """isSpaceToDelete asks about storePathCommitLog alone, an empty archive must not keep a full disk from being cleared"""
    config = CommitLogConfig(store_path_commit_log="/a,/b", read_only_commit_log_store_paths="/old/,/older")
    assert written_directories(("/a", "/b", "/old", "/older"), config) == ("/a", "/b")
    assert written_directories(("/a",), CommitLogConfig()) == ("/a",)


def test_who_asks_for_it_needs_neither_hour_nor_disk() -> None:
    """DefaultMessageStore.CleanCommitLogService.executeDeleteFilesManually"""
    occasion = plan_occasion(RetentionConfig(), hour=5, log_used_percents=[1], queues_used_percent=1, is_requested=True)
    assert (len(occasion.reasons), occasion.whatever_age) == (1, False)


# Which: MappedFileQueue.deleteExpiredFileByTime, deleteExpiredFileByOffset


def log_files(*ages_h: float) -> list[tuple[LogFile, int]]:
    return [
        (LogFile(100 * number, 100 * number + 100, f"{number}"), NOW_MS - int(age * HOUR_MS))
        for number, age in enumerate(ages_h)
    ]


@pytest.mark.parametrize(
    ("ages_h", "log_end", "settings", "whatever_age", "count"),
    [
        pytest.param([73, 73, 1], 250, {}, False, 2, id="fileReservedTime"),
        pytest.param([72, 1], 150, {}, False, 1, id="at fileReservedTime itself"),
        pytest.param([71.999, 1], 150, {}, False, 0, id="just before fileReservedTime"),
        pytest.param([3, 1], 150, {"file_reserved_time": 2}, False, 1, id="another fileReservedTime"),
        pytest.param([73, 1, 73, 1], 350, {}, False, 1, id="none behind one that stays"),
        pytest.param([99, 99, 99], 250, {}, False, 2, id="the last file stays"),
        pytest.param([99, 99, 99], 200, {}, False, 1, id="the file of the last byte stays"),
        pytest.param([99, 99, 99], 101, {}, False, 1, id="files made ahead stay"),
        pytest.param([99], 100, {}, False, 0, id="the only file stays"),
        pytest.param([99], 50, {}, True, 0, id="the only file stays on a full disk"),
        pytest.param([99] * 20, 1_950, {}, False, 10, id="deleteFileBatchMax"),
        pytest.param([99] * 20, 1_950, {"delete_file_batch_max": 3}, False, 3, id="another deleteFileBatchMax"),
        pytest.param([99] * 20, 1_950, {"delete_file_batch_max": 0}, False, 1, id="deleteFileBatchMax is asked after"),
        pytest.param([1, 1, 1], 250, {}, True, 2, id="cleanImmediately"),
        pytest.param([1] * 20, 1_950, {}, True, 10, id="cleanImmediately, deleteFileBatchMax"),
    ],
)
def test_the_oldest_log_files_go_by_their_time(
    ages_h: list[float], log_end: int, settings: dict[str, Any], whatever_age: bool, count: int
) -> None:
    """MappedFileQueue.deleteExpiredFileByTime"""
    files, config = log_files(*ages_h), RetentionConfig(**settings)
    expired = plan_expired_log_files(files, log_end, config, now_ms=NOW_MS, whatever_age=whatever_age)
    assert expired == [file for file, _ in files[:count]]


@pytest.mark.parametrize(
    ("last_places", "count"),
    [([], 0), ([99], 1), ([100], 0), ([10, 20, 99, 100], 3), ([10, 200, 20], 1), ([0, 0, 150], 2)],
)
def test_a_queue_file_goes_when_its_last_entry_points_before_the_log(last_places: list[int], count: int) -> None:
    """MappedFileQueue.deleteExpiredFileByOffset, IndexService.deleteExpiredFile: < minimum, and none behind one that stays"""
    assert count_expired(last_places, 100) == count


# Whole stores


@pytest.fixture
def root(tmp_path: Path) -> Path:
    settings = "".join(f"{name}={value}\n" for name, value in TINY.settings.items())
    (tmp_path / "broker.conf").write_text(settings, "utf-8")
    return tmp_path / "store"


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[PutResult]]:
    root = tmp_path_factory.mktemp("template") / "store"
    with create(root) as store:
        puts = [
            store.put(topic, b"%d" % number * 40, queue_id=number % 2, keys=f"k{number}", queue_count=2)
            for number in range(200)
            for topic in (["A", "B"] if number % 4 == 0 else ["A"])
        ]
    make_old(root)
    return root, puts


@pytest.fixture
def puts(template: tuple[Path, list[PutResult]], root: Path) -> list[PutResult]:
    """A store of two topics and three queues, closed, all of whose log files are old; its messages in their order."""
    shutil.copytree(template[0], root)
    return template[1]


def create(root: Path) -> MessageStore:
    return open_store(root, config=TINY, read_only=False, create=True, clock=lambda: NOW_MS)


def make_old(root: Path) -> None:
    for path in (root / "commitlog").iterdir():
        os.utime(path, (OLD_MS / 1_000, OLD_MS / 1_000))


def clean(store: MessageStore, occasion: Occasion = ALL_TIMES, **settings: Any) -> ExpiryPlan:
    config = RetentionConfig(**settings)
    plan = plan_expiry(store, FILES, config, occasion, now_ms=NOW_MS)
    apply_expiry(store.writer, plan, config, sleep=lambda seconds: None)
    return plan


def opened(root: Path) -> MessageStore:
    return open_store(root, config=TINY, read_only=False, clock=lambda: NOW_MS)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def files_kept(queue: Path, minimum: int) -> list[str]:
    """What deleteExpiredFileByOffset leaves of a queue: from the first file on whose last entry points into the log."""
    kept = names(queue)
    while len(kept) > 1 and struct.unpack(">q", (queue / kept[0]).read_bytes()[-20:-12])[0] < minimum:
        kept.pop(0)
    return kept


def index_files_kept(index: Path, minimum: int) -> list[str]:
    """What IndexService.deleteExpiredFile leaves: endPhyOffset is the header's fourth number."""
    kept = names(index)
    while len(kept) > 1 and struct.unpack(">4q", (index / kept[0]).read_bytes()[:32])[3] < minimum:
        kept.pop(0)
    return kept


def test_log_queues_and_index_lose_what_a_broker_would_delete(root: Path, puts: list[PutResult]) -> None:
    before = names(root / "commitlog")
    assert len(before) > 12
    minimum = int(before[10])
    queues = {path: files_kept(path, minimum) for path in (root / "consumequeue").glob("*/*")}
    index = index_files_kept(root / "index", minimum)
    assert sum(map(len, queues.values())) < len(list((root / "consumequeue").glob("*/*/*")))
    assert len(index) < len(names(root / "index"))
    with opened(root) as store:
        ends = {name: store.max_offset(*name) for name in store.queues.names()}
        plan = clean(store)
        assert plan.minimum == minimum
        assert plan.messages_of_topics == {
            topic: sum(1 for put in puts if put.topic == topic and put.commitlog_offset < minimum)
            for topic in ("A", "B")
        }
        for topic, queue_id in store.queues.names():
            offsets = [
                put.queue_offset
                for put in puts
                if (put.topic, put.queue_id) == (topic, queue_id) and put.commitlog_offset >= minimum
            ]
            assert store.min_offset(topic, queue_id) == offsets[0]
            assert store.max_offset(topic, queue_id) == ends[topic, queue_id]
            assert [message.queue_offset for message in served(store, topic, queue_id)] == offsets
        assert store.put("A", b"more", queue_id=0).queue_offset == ends["A", 0]
        assert [len(store.query("A", f"k{number}")) for number in (1, 199)] == [0, 1]
    assert names(root / "commitlog")[: len(before) - 10] == before[10:]
    assert {path: names(path)[: len(kept)] for path, kept in queues.items()} == queues
    assert names(root / "index")[: len(index)] == index
    assert verify_store(str(root)).findings == ()


def test_until_nothing_but_the_last_files_is_left(root: Path, puts: list[PutResult]) -> None:
    last = names(root / "commitlog")[-1]
    with opened(root) as store:
        while not clean(store).is_empty:
            assert len(names(root / "commitlog")) >= 1
        assert names(root / "commitlog") == [last]
        assert {len(names(path)) for path in (root / "consumequeue").glob("*/*")} == {1}
        assert store.max_offset("A", 1) == sum(1 for put in puts if (put.topic, put.queue_id) == ("A", 1))
    assert verify_store(str(root)).findings == ()


def test_without_an_occasion_only_what_points_to_nothing_goes(root: Path, puts: list[PutResult]) -> None:
    """CleanConsumeQueueService looks at the log's minimum alone, and so makes good what an earlier run did not come to"""
    with opened(root) as store:
        assert clean(store, Occasion(())).is_empty
    for name in names(root / "commitlog")[:5]:
        (root / "commitlog" / name).unlink()
    minimum = int(names(root / "commitlog")[0])
    queues = {path: files_kept(path, minimum) for path in (root / "consumequeue").glob("*/*")}
    with opened(root) as store:
        plan = clean(store, Occasion(()))
        assert (plan.log_files, plan.messages_of_topics, plan.is_empty) == ((), {}, False)
    assert {path: names(path) for path in queues} == queues


@pytest.mark.parametrize("is_forced", [False, True], ids=["in its time", "before its time"])
def test_the_log_says_what_goes_and_why(
    is_forced: bool, root: Path, puts: list[PutResult], caplog: pytest.LogCaptureFixture
) -> None:
    why = "the disk of the log is 96 % full" if is_forced else "it is the hour for it (deleteWhen=04)"
    before = names(root / "commitlog")
    with caplog.at_level(logging.INFO, "storage.retention"), opened(root) as store:
        plan = clean(store, Occasion((why,), whatever_age=is_forced))
    first, *rest = caplog.records
    assert first.levelno == (logging.WARNING if is_forced else logging.INFO)
    text = first.getMessage()
    assert f"deleting {len(plan.log_files)} log files, {plan.log_bytes} bytes" in text
    assert why in text
    assert ("whatever their age" if is_forced else "older than fileReservedTime=72 h") in text
    assert f"the log begins at {plan.minimum} then" in text
    assert all(f"{topic} {count}" in text for topic, count in plan.messages_of_topics.items())
    told = "\n".join(record.getMessage() for record in rest)
    assert all(f"commitlog/{name}: places {int(name)} to " in told for name in before[: len(plan.log_files)])
    assert f"{len(plan.index_paths)} of the index" in told


def test_an_index_file_without_a_header_is_left(root: Path, puts: list[PutResult]) -> None:
    short = root / "index" / "20000101000000000"
    short.write_bytes(bytes(39))
    with open_store(root, config=TINY) as store:
        plan = plan_expiry(store, FILES, TINY.retention, ALL_TIMES, now_ms=NOW_MS)
    assert plan.log_files
    assert str(short) not in plan.index_paths


def test_files_go_an_interval_apart(root: Path, puts: list[PutResult]) -> None:
    """deleteCommitLogFilesInterval and deleteConsumeQueueFilesInterval: Thread.sleep between files, and after each queue"""
    slept: list[float] = []
    config = RetentionConfig(delete_commit_log_files_interval=70, delete_consume_queue_files_interval=30)
    with opened(root) as store:
        plan = plan_expiry(store, FILES, config, ALL_TIMES, now_ms=NOW_MS)
        apply_expiry(store.writer, plan, config, sleep=slept.append)
    assert slept == [0.07] * 9 + [0.03] * sum(1 for queue in plan.queues if queue.paths)


def test_however_many_queues_lose_files_others_get_the_store_soon(root: Path, puts: list[PutResult]) -> None:
    """CleanConsumeQueueService sleeps in a thread that holds no lock; here the store's is held, for which a sink waits a minute"""
    paths = [root / f"gone-{number}" for number in range(20)]
    for path in paths:
        path.touch()
    queues = tuple(QueueExpiry("Gone", number, 0, (str(path),)) for number, path in enumerate(paths))
    slept: list[float] = []
    config = RetentionConfig(delete_consume_queue_files_interval=1_000)
    with opened(root) as store:
        apply_expiry(store.writer, ExpiryPlan(ALL_TIMES, (), 0, queues, ()), config, sleep=slept.append)
    assert not any(path.exists() for path in paths)
    assert slept == [0.5] * 20


@pytest.mark.slow
def test_a_deletion_that_fails_half_way_is_completed_by_the_next_run(root: Path, puts: list[PutResult]) -> None:
    class Stubborn(LocalFileSystem):
        left = 0

        def unlink(self, path: str) -> None:
            if not path.endswith(("abort", "hint.json", "index_synced.json")):
                if self.left == 0:
                    raise PermissionError(13, "Permission denied", path)
                self.left -= 1
            super().unlink(path)

    files, failures = Stubborn(), 0
    with opened(root) as store:
        plan = plan_expiry(store, FILES, RetentionConfig(), ALL_TIMES, now_ms=NOW_MS)
    count = len(plan.log_files) + len(plan.index_paths) + sum(len(queue.paths) for queue in plan.queues)
    assert count > 20
    while failures <= count:
        files.left = 1
        try:
            with open_store(root, config=TINY, read_only=False, clock=lambda: NOW_MS, file_system=files) as store:
                assert store.log_end > puts[-1].commitlog_offset
                rest = plan_expiry(store, files, RetentionConfig(), Occasion(()), now_ms=NOW_MS)
                if failures < len(plan.log_files):
                    rest = plan_expiry(store, files, RetentionConfig(), ALL_TIMES, now_ms=NOW_MS)
                apply_expiry(store.writer, rest, RetentionConfig(), sleep=lambda seconds: None)
                break
        except PermissionError:
            failures += 1
            assert verify_store(str(root)).findings == ()
    assert failures == count - 1
    assert int(names(root / "commitlog")[0]) == plan.minimum


def test_extension_files_go_that_end_before_the_first_messages_unit(tmp_path: Path) -> None:
    """ConsumeQueueExt.truncateByMinAddress: fileTailOffset < the address of the first entry that points into the log"""
    for position, gone in [(99, 0), (100, 0), (101, 1), (200, 1), (201, 2)]:
        builder = StoreBuilder(tmp_path / str(position))
        message = builder.put(entered=False)
        builder.enter(message, tags_code=position - 2**63)
        directory = builder.root / "consumequeue_ext" / "TopicA" / "0"
        directory.mkdir(parents=True)
        for start in (0, 100, 200):
            (directory / f"{start:020d}").write_bytes(bytes(100))
        with builder.open() as store:
            plan = plan_expiry(store, FILES, RetentionConfig(), Occasion(()), now_ms=NOW_MS)
        paths = [path for queue in plan.queues for path in queue.paths]
        assert paths == [f"{directory}/{start:020d}" for start in (0, 100)[:gone]]


# The sinks' ledger


def append_end(store: MessageStore, batch: Batch, last: tuple[int, str]) -> None:
    for kind in (BEGIN, END):
        message = outgoing_ledger_message(LedgerStatement(kind, batch, 1, last=last), now_ms=NOW_MS)
        store.writer.append([encode_block(message, store.writer.settings.host)])


def commit(store: MessageStore, batch: Batch) -> None:
    row = store.put("rows", b"row", queue_id=0)
    append_end(store, batch, (row.commitlog_offset, row.unique_key))


def ledger_message(sink: str, query: str, number: int, place: int) -> LedgerMessage:
    return LedgerMessage(END, Batch(sink, query, number), 1, last=(0, "key"), commitlog_offset=place, end=place + 100)


def test_the_newest_end_of_each_sink_is_renewed_and_no_older_one() -> None:
    newest_first = [
        ledger_message("young", "q", 9, 5_000),
        ledger_message("taken", "second", 4, 900),
        ledger_message("old", "q", 7, 800),
        ledger_message("taken", "first", 3, 700),
        ledger_message("young", "before", 2, 600),
    ]
    assert plan_renewals(newest_first, 1_000) == [newest_first[2], newest_first[1]]
    assert plan_renewals(newest_first, 900) == [newest_first[2]]
    assert plan_renewals(newest_first, 700) == []


def test_a_sinks_last_batch_outlives_its_file(root: Path) -> None:
    with create(root) as store:
        commit(store, Batch("resting", "q1", 4))
        commit(store, Batch("resting", "q1", 5))
        commit(store, Batch("taken", "q2", 8))
        commit(store, Batch("taken", "q3", 1))
        store.put_batch(pa.table({"topic": ["A"] * 200, "body": [bytes(100)] * 200}))
        known = [(message.batch, message.row_count, message.last) for message in newest_ends(store.writer)]
    make_old(root)
    with opened(root) as store:
        config = RetentionConfig()
        plan = plan_expiry(store, FILES, config, ALL_TIMES, now_ms=NOW_MS)
        assert apply_expiry(store.writer, plan, config, sleep=lambda seconds: None) == 2
    with opened(root) as store:
        kept = [(message.batch, message.row_count, message.last) for message in newest_ends(store.writer)]
        assert kept == [known[0], known[2]]
        assert [batch for batch, _, _ in kept] == [Batch("taken", "q3", 1), Batch("resting", "q1", 5)]
    assert verify_store(str(root)).findings == ()
