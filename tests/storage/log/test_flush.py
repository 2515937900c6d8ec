"""When what was put is written out and synced: the decisions, as Apache's classes make them."""

from __future__ import annotations

import pytest

from storage.log.flush import (
    AsyncFlush,
    FlushRule,
    StorePool,
    SyncFlush,
    flush_policy,
    is_page_cache_busy,
    is_worth_it,
    queue_flush_rule,
)
from storage.settings.load import parse_config
from storage.settings.nouns import FlushConfig

FILE_SIZE = 1 << 30
NOW_MS = 1_700_000_000_000
LOG_RULE = FlushRule(500, 4, 10_000)
POOL_RULE = FlushRule(200, 4, 200)
QUEUE_RULE = FlushRule(1_000, 2, 60_000)


def test_the_rules_are_a_brokers_by_default() -> None:
    """MessageStoreConfig."""
    policy = flush_policy(FlushConfig(), is_sync=False, log_file_size_bytes=FILE_SIZE)
    assert policy == AsyncFlush(LOG_RULE)
    assert queue_flush_rule(FlushConfig()) == QUEUE_RULE
    assert flush_policy(FlushConfig(), is_sync=True, log_file_size_bytes=FILE_SIZE) == SyncFlush(5_000)
    assert FlushConfig().os_page_cache_busy_time_out_mills == 1_000


def test_every_setting_has_its_name_in_broker_conf() -> None:
    lines = {
        "flushDiskType": "SYNC_FLUSH",
        "syncFlushTimeout": "1",
        "flushIntervalCommitLog": "2",
        "flushCommitLogLeastPages": "3",
        "flushCommitLogThoroughInterval": "4",
        "flushCommitLogTimed": "false",
        "wakeFlushWhenPutMessage": "true",
        "transientStorePoolEnable": "true",
        "transientStorePoolSize": "7",
        "commitIntervalCommitLog": "8",
        "commitCommitLogLeastPages": "9",
        "commitCommitLogThoroughInterval": "10",
        "wakeCommitWhenPutMessage": "false",
        "flushIntervalConsumeQueue": "11",
        "flushConsumeQueueLeastPages": "12",
        "flushConsumeQueueThoroughInterval": "13",
        "osPageCacheBusyTimeOutMills": "14",
    }
    config = parse_config("".join(f"{name}={value}\n" for name, value in lines.items()).encode())
    expected = FlushConfig("SYNC_FLUSH", 1, 2, 3, 4, False, True, True, 7, 8, 9, 10, False, 11, 12, 13, 14)
    assert config.flush == expected


@pytest.mark.parametrize(
    ("conf", "is_sync", "expected"),
    [
        # DefaultFlushManager.handleDiskFlush: without a pool a put wakes the flush if wakeFlushWhenPutMessage says so,
        # which FlushRealTimeService hears only if it does not sleep (flushCommitLogTimed)
        (FlushConfig(wake_flush_when_put_message=True), False, AsyncFlush(LOG_RULE)),
        (
            FlushConfig(wake_flush_when_put_message=True, flush_commit_log_timed=False),
            False,
            AsyncFlush(LOG_RULE, is_woken_by_puts=True),
        ),
        # with one it wakes the pool's turn (wakeCommitWhenPutMessage), and CommitRealTimeService the flush
        (
            FlushConfig(transient_store_pool_enable=True),
            False,
            AsyncFlush(LOG_RULE, pool=StorePool(POOL_RULE, 5 * FILE_SIZE, is_woken_by_puts=True)),
        ),
        (
            FlushConfig(
                transient_store_pool_enable=True,
                transient_store_pool_size=2,
                wake_commit_when_put_message=False,
                flush_commit_log_timed=False,
            ),
            False,
            AsyncFlush(LOG_RULE, True, StorePool(POOL_RULE, 2 * FILE_SIZE, is_woken_by_puts=False)),
        ),
        (FlushConfig(transient_store_pool_enable=True), True, SyncFlush(5_000)),
    ],
)
def test_the_policy_of_a_configuration(conf: FlushConfig, is_sync: bool, expected: AsyncFlush | SyncFlush) -> None:
    assert flush_policy(conf, is_sync=is_sync, log_file_size_bytes=FILE_SIZE) == expected


@pytest.mark.parametrize(
    ("policy", "readable"),
    [
        (SyncFlush(5_000), 100),
        (AsyncFlush(LOG_RULE), 200),
        (AsyncFlush(LOG_RULE, pool=StorePool(POOL_RULE, 1, True)), 200),
    ],
)
def test_queues_speak_of_what_is_synced_or_written(policy: AsyncFlush | SyncFlush, readable: int) -> None:
    """CommitLog.getConfirmOffset: flushedWhere under SYNC_FLUSH; else getMaxOffset, which ends at DefaultMappedFile.getReadPosition."""
    assert policy.readable_end(written_end=200, synced_end=100) == readable


@pytest.mark.parametrize(
    ("rule", "thorough_ms", "now_ms", "least_pages", "next_thorough_ms"),
    [
        # FlushRealTimeService: currentTimeMillis >= lastFlushTimestamp + flushPhysicQueueThoroughInterval
        (LOG_RULE, 0, NOW_MS, 0, NOW_MS),
        (LOG_RULE, NOW_MS, NOW_MS + 500, 4, NOW_MS),
        (LOG_RULE, NOW_MS, NOW_MS + 9_999, 4, NOW_MS),
        (LOG_RULE, NOW_MS, NOW_MS + 10_000, 0, NOW_MS + 10_000),
        # CommitRealTimeService
        (POOL_RULE, NOW_MS, NOW_MS + 199, 4, NOW_MS),
        (POOL_RULE, NOW_MS, NOW_MS + 200, 0, NOW_MS + 200),
        # FlushConsumeQueueService
        (QUEUE_RULE, 0, NOW_MS, 0, NOW_MS),
        (QUEUE_RULE, NOW_MS, NOW_MS + 59_999, 2, NOW_MS),
        (QUEUE_RULE, NOW_MS, NOW_MS + 60_000, 0, NOW_MS + 60_000),
    ],
)
def test_a_turn_is_thorough_when_the_last_such_turn_is_long_ago(
    rule: FlushRule, thorough_ms: int, now_ms: int, least_pages: int, next_thorough_ms: int
) -> None:
    assert rule.turn(thorough_ms, now_ms) == (least_pages, next_thorough_ms)


@pytest.mark.parametrize(
    ("done", "until", "least_pages", "worth"),
    [
        (0, 0, 0, False),
        (0, 1, 0, True),
        (0, 1, 4, False),
        (0, 4 * 4096 - 1, 4, False),
        (0, 4 * 4096, 4, True),
        (4095, 4 * 4096, 4, True),  # pages are counted by where they begin
        (4096, 4 * 4096, 4, False),
        (4096, 5 * 4096, 4, True),
        (8 * 4096, 8 * 4096, 4, False),
        (99_999, 100_000, 4, True),  # isFull
        (99_999, 120_000, 4, True),  # the next file has begun
        (100_000 - 1, 100_000 - 1, 0, False),
    ],
)
@pytest.mark.parametrize("file_start", [0, 700_000])
def test_what_is_worth_a_flush(done: int, until: int, least_pages: int, worth: bool, file_start: int) -> None:
    """DefaultMappedFile.isAbleToFlush, isAbleToCommit: positions are those within a file, here of 100,000 bytes."""
    assert is_worth_it(file_start + done, file_start + until, least_pages, file_start, 100_000) == worth


@pytest.mark.parametrize(
    ("held_ms", "busy"),
    [(None, False), (0, False), (1_000, False), (1_001, True), (9_999_999, True), (10_000_000, False), (-1, False)],
)
def test_a_put_that_holds_the_log_for_long_makes_it_busy(held_ms: int | None, busy: bool) -> None:
    """DefaultMessageStore.isOSPageCacheBusy: diff < 10000000 && diff > osPageCacheBusyTimeOutMills."""
    assert is_page_cache_busy(None if held_ms is None else NOW_MS - held_ms, NOW_MS, 1_000) == busy


def test_a_clock_that_was_set_back_makes_a_turn_thorough() -> None:
    """Else little messages in a pool could not be read until the clock was where it had been. In Java they cannot."""
    assert POOL_RULE.turn(3_600_000, 1_000) == (0, 1_000)
    assert POOL_RULE.turn(1_000, 1_100) == (4, 1_000)
