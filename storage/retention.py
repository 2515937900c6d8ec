"""Which files of a store have expired, and their deletion. Java: DefaultMessageStore.CleanCommitLogService, CleanConsumeQueueService.

    log     the oldest files whose content was last changed fileReservedTime ago, deleteFileBatchMax at a time; never the one
            that is written, and none behind one that stays                              MappedFileQueue.deleteExpiredFileByTime
    queues  the oldest files whose last entry points before what the log still holds; never a queue's last one
                                                                                         MappedFileQueue.deleteExpiredFileByOffset
    ext     files that end before the unit of the queue's first message                  ConsumeQueueExt.truncateByMinAddress
    index   the oldest files whose last key lies before what the log still holds; never the last one
                                                                                         IndexService.deleteExpiredFile

Log files are deleted at the configured hour (deleteWhen) or when a disk is too full, and regardless of their age when a disk is nearly
full. The decisions are pure; `apply_expiry` only unlinks. So readers keep the files they have mapped, and later readers get
OffsetOutOfRangeError. Each deletion is durable before the next, in an order that leaves no gap: the log's files, oldest first, then
the files that point to them. A crash in between leaves files that the next run finds expired.
For each deleted log file the process logs which messages were in it and why it goes, as a warning if it goes early; and what was
deleted of queues and index. Java: MappedFile.destroy and deleteExpiredFileByTime log each file.
The timer deletes its own log (`delay/timer_files.py`). Java keeps a file that is being read, and tries again later
(destroyMapedFileIntervalForcibly, redeleteHangedFileInterval); here no reader blocks a deletion. Not supported:
replicasPerDiskPartition, and DLedger's log.
"""

from __future__ import annotations

import logging
import posixpath
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import takewhile
from typing import NamedTuple

from storage.batch.commit import settle
from storage.batch.sink_progress import apply_renewals, newest_ends, plan_renewals
from storage.errors import ConfigurationError
from storage.failpoints import reach
from storage.files.local_file_system import LocalFileSystem, disk_used_percent
from storage.format.consume_queue import MAX_EXT_ADDRESS, ext_position
from storage.format.keys import HEADER_SIZE, HEADER_STRUCT
from storage.index.store import is_index_name
from storage.log.commit_log import LogFile
from storage.put.store_writer import StoreWriter
from storage.queues.consume_queue import ConsumeQueue
from storage.settings.nouns import CommitLogConfig, RetentionConfig
from storage.store import MessageStore

_LOG = logging.getLogger(__name__)
_MS_PER_HOUR = 3_600_000
_TOPICS_SHOWN = 20
_QUEUES_PAUSE_MS = 10_000
"""Limit of the sum of all pauses between queues: a process that waits for the store's lock gives up after a minute."""


class Occasion(NamedTuple):
    """Why log files are deleted now; without a reason none is."""

    reasons: tuple[str, ...]
    whatever_age: bool = False
    """A disk is so full that files go before their time."""
    is_full: bool = False
    """A disk is so full that a broker takes no messages until there is room. Java: RunningFlags.getAndMakeDiskFull."""


def plan_occasion(
    config: RetentionConfig,
    *,
    hour: int,
    log_used_percents: Sequence[int],
    queues_used_percent: int,
    is_requested: bool = False,
) -> Occasion:
    """Whether log files must be deleted. Java: isTimeToDelete, isSpaceToDelete, executeDeleteFilesManually.

    `hour` is the local one; the percents are `disk_used_percent` of the `written_directories` (the least full counts) and of
    consumequeue/. A disk with unknown usage (−1) counts as too full, as in Java. Raises ConfigurationError.
    """
    reasons = ["it was requested"] if is_requested else []
    if hour in _hours(config.delete_when):
        reasons.append(f"it is the hour for it (deleteWhen={config.delete_when})")
    forcibly = _within(config.disk_space_clean_forcibly_ratio, 30, 85)
    warning = _within(config.disk_space_warning_level_ratio, 35, 90)
    bound = _within(config.disk_max_used_space_ratio, 10, 95)
    log_used_percent = min(log_used_percents)
    whatever_age = False
    for what, used in (("log", log_used_percent), ("queues", queues_used_percent)):
        is_nearly_full = used > min(forcibly, warning)
        if is_nearly_full or used < 0 or used > bound:
            share = f"{used} % full" if used >= 0 else "of unknown use"
            reasons.append(f"the disk of the {what} is {share}")
        whatever_age |= is_nearly_full
    is_full = max(log_used_percent, queues_used_percent) > warning
    return Occasion(tuple(reasons), whatever_age and config.clean_file_forcibly_enable, is_full)


def written_directories(directories: tuple[str, ...], config: CommitLogConfig) -> tuple[str, ...]:
    """The log directories whose disks count: storePathCommitLog's, without readOnlyCommitLogStorePaths."""
    read_only = {path.rstrip("/") for path in (config.read_only_commit_log_store_paths or "").split(",")}
    return tuple(path for path in directories if path not in read_only) or directories


def is_hour(delete_when: str, now_ms: int) -> bool:
    """Whether it is one of the hours of `deleteWhen`, by this machine's clock. Java: UtilAll.isItTimeToDo."""
    return time.localtime(now_ms // 1_000).tm_hour in _hours(delete_when)


def _hours(text: str) -> set[int]:
    """Java: UtilAll.isItTimeToDo. In Java a text that is no number raises an error, and nothing is ever deleted."""
    try:
        return {int(hour) for hour in text.rstrip(";").split(";")}
    except ValueError:
        raise ConfigurationError(None, None, "deleteWhen", f"{text!r} are no hours, such as 04 or 04;16") from None


def _within(value: int, least: int, greatest: int) -> int:
    return max(least, min(greatest, value))


def plan_expired_log_files(
    files: Iterable[tuple[LogFile, int]], log_end: int, config: RetentionConfig, *, now_ms: int, whatever_age: bool
) -> list[LogFile]:
    """The log files to delete now. `files` are all of them with the times (ms) of their last changes, oldest first."""

    def is_expired(file: LogFile, modified_ms: int) -> bool:
        return whatever_age or now_ms >= modified_ms + config.file_reserved_time * _MS_PER_HOUR

    # The file of the last byte stays, and so does any later file, which was made ahead.
    written = takewhile(lambda found: found[0].end < log_end, files)
    expired = [file for file, _ in takewhile(lambda found: is_expired(*found), written)]
    return expired[: max(1, config.delete_file_batch_max)]


def count_expired(last_places: Iterable[int], minimum: int) -> int:
    """How many of the oldest files expire. Their last entries or keys point to these places in the log; the newest is not included."""
    return sum(1 for _ in takewhile(lambda place: place < minimum, last_places))


class QueueExpiry(NamedTuple):
    """What expires of one queue."""

    topic: str
    queue_id: int
    message_count: int
    """Messages that are in the log now and will not be afterwards."""
    paths: tuple[str, ...]
    """Files of the queue and of its extension, oldest first."""


@dataclass(frozen=True, slots=True)
class ExpiryPlan:
    """What expires of a store, and why."""

    occasion: Occasion
    log_files: tuple[LogFile, ...]
    minimum: int
    """The log's first byte that stays."""
    queues: tuple[QueueExpiry, ...]
    """Queues that lose messages or files."""
    index_paths: tuple[str, ...]

    @property
    def is_empty(self) -> bool:
        """Whether no file goes."""
        return not (self.log_files or self.index_paths or any(queue.paths for queue in self.queues))

    @property
    def log_bytes(self) -> int:
        return sum(file.end - file.start for file in self.log_files)

    @property
    def messages_of_topics(self) -> dict[str, int]:
        """Topic → how many of its messages expire, sorted by name."""
        counts: Counter[str] = Counter()
        for queue in self.queues:
            counts[queue.topic] += queue.message_count
        return dict(sorted((topic, count) for topic, count in counts.items() if count))


def plan_expiry(
    store: MessageStore, file_system: LocalFileSystem, config: RetentionConfig, occasion: Occasion, *, now_ms: int
) -> ExpiryPlan:
    """Look at a store's files and decide; changes nothing.

    Queues and index are examined even if no log file expires: an earlier run may have stopped before them.
    """
    log = store.log
    log_files: list[LogFile] = []
    if occasion.reasons:
        ages = ((file, file_system.modified_ms(file.path)) for file in log.files)
        there = ((file, modified) for file, modified in ages if modified is not None)
        log_files = plan_expired_log_files(
            there, store.log_end, config, now_ms=now_ms, whatever_age=occasion.whatever_age
        )
    minimum = log_files[-1].end if log_files else log.minimum
    queues = (_queue_expiry(store, file_system, queue, minimum) for queue in store.queues)
    return ExpiryPlan(
        occasion,
        tuple(log_files),
        minimum,
        tuple(found for found in queues if found.paths or found.message_count),
        _expired_index_paths(file_system, store.index.directory, minimum),
    )


def _queue_expiry(store: MessageStore, file_system: LocalFileSystem, queue: ConsumeQueue, minimum: int) -> QueueExpiry:
    starts = queue.file_starts[:-1]
    paths = [queue.path_of(start) for start in starts[: count_expired(map(queue.last_place, starts), minimum)]]
    paths += _expired_ext_paths(store, file_system, queue, minimum)
    message_count = 0
    if minimum > store.log.minimum:
        end = store.max_offset(queue.topic, queue.queue_id)
        message_count = queue.first_offset_at(minimum, end) - queue.first_offset_at(store.log.minimum, end)
    return QueueExpiry(queue.topic, queue.queue_id, message_count, tuple(paths))


def _expired_ext_paths(
    store: MessageStore, file_system: LocalFileSystem, queue: ConsumeQueue, minimum: int
) -> list[str]:
    """Extension files before the unit of the queue's first message; none if no message is left, or it has no unit."""
    directory = f"{store.root}/consumequeue_ext/{queue.topic}/{queue.queue_id}"
    found = [entry for entry in file_system.list_directory(directory) if entry.name.isascii() and entry.name.isdigit()]
    end = store.max_offset(queue.topic, queue.queue_id)
    first = queue.first_offset_at(minimum, end) if found else end
    tags_code = int(queue.entries(first, first + 1)["tags_code"][0]) if first < end else 0
    if tags_code > MAX_EXT_ADDRESS:
        return []
    position = ext_position(tags_code)
    return [f"{directory}/{entry.name}" for entry in found if int(entry.name) + entry.size_bytes < position]


def plan_run(
    store: MessageStore,
    file_system: LocalFileSystem,
    at_ms: int,
    config: RetentionConfig,
    *,
    is_requested: bool,
    used_percent: Callable[[str], int] = disk_used_percent,
) -> ExpiryPlan:
    """What expires now, by the hour and the disks' usage. `is_requested`: expired log files are deleted at any hour."""
    directories = written_directories(store.log.directories, store.config.commit_log)
    occasion = plan_occasion(
        config,
        hour=datetime.fromtimestamp(at_ms / 1_000).hour,
        log_used_percents=[used_percent(directory) for directory in directories],
        queues_used_percent=used_percent(store.queues.directory),
        is_requested=is_requested,
    )
    return plan_expiry(store, file_system, config, occasion, now_ms=at_ms)


def _expired_index_paths(file_system: LocalFileSystem, directory: str, minimum: int) -> tuple[str, ...]:
    """Expired index files, by their headers alone, which need no geometry. Recovery handles a file too short for a header."""
    entries = file_system.list_directory(directory)
    found = [entry for entry in entries if is_index_name(entry.name) and entry.size_bytes >= HEADER_SIZE]
    paths = [f"{directory}/{entry.name}" for entry in found[:-1]]

    def ends() -> Iterator[int]:
        for path in paths:
            yield HEADER_STRUCT.unpack(file_system.open_small_reads(path).view(0, HEADER_SIZE).data)[3]

    return tuple(paths[: count_expired(ends(), minimum)])


def apply_expiry(
    writer: StoreWriter, plan: ExpiryPlan, config: RetentionConfig, *, sleep: Callable[[float], None] = time.sleep
) -> int:
    """Delete what the plan says; returns how many ENDs of sinks were written again first (`sink_progress.py`).

    Everything is synced before the first deletion: no decided batch and no checkpoint needs the deleted files. Deletions of log
    files are deleteCommitLogFilesInterval apart. Those of queues are deleteConsumeQueueFilesInterval apart, or less if the pauses
    would exceed ten seconds: Java sleeps in a thread without a lock, but the caller holds the store's. `sleep` takes seconds.
    Raises OSError. A DLedger group's log is not for it: `prepare_expiry`, `StoreWriter.trim_log`.
    """
    if plan.is_empty:
        return 0
    assert not (plan.log_files and writer.is_of_group), "its member deletes the files of its log"
    renewed = prepare_expiry(writer, plan)
    if plan.log_files:
        _say_what_goes(writer.root, plan, config)
    for number, file in enumerate(plan.log_files):
        if number:
            sleep(config.delete_commit_log_files_interval / 1_000)
        _unlink(writer.file_system, [file.path])
        _LOG.info("deleted %s: places %d to %d of the log", file.path, file.start, file.end - 1)
    writer.log.list_files()
    reach("log-expired")
    queues = [expiry for expiry in plan.queues if expiry.paths]
    for expiry in queues:
        _unlink(writer.file_system, expiry.paths)
        if queue := writer.queues.get(expiry.topic, expiry.queue_id):
            queue.list_files()
        sleep(min(config.delete_consume_queue_files_interval, _QUEUES_PAUSE_MS / len(queues)) / 1_000)
    reach("queues-expired")
    _unlink(writer.file_system, plan.index_paths)
    if queues or plan.index_paths:
        _LOG.info(
            "%s: deleted %d files of queues and %d of the index, which pointed to places before %d of the log",
            *(writer.root, sum(len(expiry.paths) for expiry in queues), len(plan.index_paths), plan.minimum),
        )
    return renewed


def prepare_expiry(writer: StoreWriter, plan: ExpiryPlan) -> int:
    """What comes before the first deletion (`apply_expiry`); returns how many ENDs were written again. Raises OSError."""
    renewals = plan_renewals(newest_ends(writer), plan.minimum) if plan.log_files else []
    apply_renewals(writer, renewals)
    settle(writer)
    writer.checkpoint()
    return len(renewals)


def delete_derived(store: MessageStore, file_system: LocalFileSystem, config: RetentionConfig, *, now_ms: int) -> None:
    """Delete files of queues and index that point only to places before the log's begin, after a member has trimmed its log.

    Raises OSError.
    """
    store.log.list_files()
    plan = plan_expiry(store, file_system, config, Occasion(()), now_ms=now_ms)
    apply_expiry(store.writer, plan, config, sleep=lambda seconds: None)


def _say_what_goes(root: str, plan: ExpiryPlan, config: RetentionConfig) -> None:
    """Log the plan before it is applied, so that it is logged even if the process dies."""
    counts = list(plan.messages_of_topics.items())
    topics = ", ".join(f"{topic} {count}" for topic, count in counts[:_TOPICS_SHOWN])
    more = f" and {len(counts) - _TOPICS_SHOWN} topics more" if len(counts) > _TOPICS_SHOWN else ""
    age = (
        "whatever their age"
        if plan.occasion.whatever_age
        else f"older than fileReservedTime={config.file_reserved_time} h"
    )
    _LOG.log(
        logging.WARNING if plan.occasion.whatever_age else logging.INFO,
        "%s: deleting %d log files, %d bytes, %s, because %s; the log begins at %d then. Messages that go: %s%s",
        *(
            root,
            len(plan.log_files),
            plan.log_bytes,
            age,
            "; ".join(plan.occasion.reasons),
            plan.minimum,
            topics or "none",
            more,
        ),
    )


def _unlink(file_system: LocalFileSystem, paths: Iterable[str]) -> None:
    """Delete files, oldest first, each durably: a power loss must not bring back one in front of a gap."""
    for path in paths:
        file_system.unlink(path)
        reach("file-expired")
        file_system.sync(posixpath.dirname(path))
