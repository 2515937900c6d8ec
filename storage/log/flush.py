"""When puts are written out and synced, as values: no disk, no thread, no clock. Java: CommitLog.DefaultFlushManager.

    SYNC_FLUSH      a put waits until a sync covers it; one sync serves all waiting puts (GroupCommitService)
    ASYNC_FLUSH     a put is acknowledged when it is written; syncs run at intervals (FlushRealTimeService)
      with a pool   it is acknowledged when it is in memory; writes run at intervals too (CommitRealTimeService)

Under SYNC_FLUSH the pool of `transientStorePoolEnable` is not used: waiting for the disk includes waiting for the write. Java uses
it, and loses in a killed process the messages without waiting producers. A slave, for which Java uses none either, is not written here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from storage.epoch_times import is_time
from storage.settings.nouns import FlushConfig

PAGE_BYTES = 4096
"""Java: MappedFile.OS_PAGE_SIZE, independent of the machine's page size."""
_LONGEST_HOLD_MS = 10_000_000
"""Java: DefaultMessageStore.isOSPageCacheBusy attributes a longer one to a change of the clock."""


class FlushTurn(NamedTuple):
    """One turn's work: all if `least_pages` is 0, else files with so many dirty pages. `thorough_ms` is the last such turn's time."""

    least_pages: int
    thorough_ms: int


@dataclass(frozen=True, slots=True)
class FlushRule:
    """Work that is checked every `interval_ms`, and done if there is enough; every `thorough_interval_ms` it is done in any case."""

    interval_ms: int
    least_pages: int
    thorough_interval_ms: int

    def turn(self, thorough_ms: int, now_ms: int) -> FlushTurn:
        """The turn that is due now; `thorough_ms` is when the last thorough one was, 0 = never.

        Departure: if the clock was set back it is a thorough one. Java waits until the clock is where it was.
        """
        if is_time(now_ms, thorough_ms, self.thorough_interval_ms):
            return FlushTurn(0, now_ms)
        return FlushTurn(self.least_pages, thorough_ms)


@dataclass(frozen=True, slots=True)
class SyncFlush:
    """SYNC_FLUSH: acknowledged when synced, or after `timeout_ms` as FLUSH_DISK_TIMEOUT."""

    timeout_ms: int

    def readable_end(self, written_end: int, synced_end: int) -> int:
        """The end of the log's part that queues and index may have. Java: CommitLog.getConfirmOffset, with apache/rocketmq#8239."""
        return synced_end


@dataclass(frozen=True, slots=True)
class StorePool:
    """Memory for puts until the next write; `room_bytes` of it. Java: TransientStorePool."""

    rule: FlushRule
    room_bytes: int
    is_woken_by_puts: bool


@dataclass(frozen=True, slots=True)
class AsyncFlush:
    """ASYNC_FLUSH: acknowledged when written, or with a pool when in the pool."""

    rule: FlushRule
    is_woken_by_puts: bool = False
    """Java: wakeFlushWhenPutMessage, which has no effect under flushCommitLogTimed."""
    pool: StorePool | None = None

    def readable_end(self, written_end: int, synced_end: int) -> int:
        """The end of the log's part that queues and index may have; with a pool, only written records are readable."""
        return written_end


FlushPolicy = SyncFlush | AsyncFlush


def flush_policy(config: FlushConfig, *, is_sync: bool, log_file_size_bytes: int) -> FlushPolicy:
    """The policy for a store; `is_sync` selects one of both, as an option may override the configuration."""
    if is_sync:
        return SyncFlush(config.sync_flush_timeout)
    pool = None
    if config.transient_store_pool_enable:
        rule = FlushRule(
            config.commit_interval_commit_log,
            config.commit_commit_log_least_pages,
            config.commit_commit_log_thorough_interval,
        )
        room_bytes = config.transient_store_pool_size * log_file_size_bytes
        pool = StorePool(rule, room_bytes, config.wake_commit_when_put_message)
    return AsyncFlush(
        FlushRule(
            config.flush_interval_commit_log,
            config.flush_commit_log_least_pages,
            config.flush_commit_log_thorough_interval,
        ),
        # with a pool a put wakes the pool's turn, which wakes this one
        (config.wake_flush_when_put_message or pool is not None) and not config.flush_commit_log_timed,
        pool,
    )


def queue_flush_rule(config: FlushConfig) -> FlushRule:
    """How often consume queues are synced; a thorough turn writes the checkpoint. Java: FlushConsumeQueueService."""
    return FlushRule(
        config.flush_interval_consume_queue,
        config.flush_consume_queue_least_pages,
        config.flush_consume_queue_thorough_interval,
    )


def is_worth_it(done: int, until: int, least_pages: int, file_start: int, file_size_bytes: int) -> bool:
    """Whether bytes [done, until) must be written out or synced. Java: DefaultMappedFile.isAbleToFlush, isAbleToCommit.

    `done` lies in the file that begins at `file_start`. A full file always is; else the bytes must touch so many pages, or
    for 0 be at least one byte.
    """
    until = min(until, file_start + file_size_bytes)
    if until <= done:
        return False
    if until == file_start + file_size_bytes:
        return True
    if least_pages > 0:
        return (until - file_start) // PAGE_BYTES - (done - file_start) // PAGE_BYTES >= least_pages
    return True


def is_page_cache_busy(held_since_ms: int | None, now_ms: int, timeout_ms: int) -> bool:
    """Whether one put has held the log for too long; None = no put holds it. Java: DefaultMessageStore.isOSPageCacheBusy."""
    return held_since_ms is not None and timeout_ms < now_ms - held_since_ms < _LONGEST_HOLD_MS
