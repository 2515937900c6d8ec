"""Where a batch query starts and ends in each queue, how it is cut into partitions, and what counts as loss."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_mq.conditions import (
    DataLossError,
    NoGroupOffsetsError,
    NoOffsetForTimestampError,
    OptionError,
    QueuesNotMatchedError,
    SparkMqError,
    StartBeyondEndError,
)
from storage import open_store
from storage.tables.topics import TopicConfig
from tests.support.fixture_stores import Fixture
from tests.support.store_builder import START_MS, StoreBuilder

from .conftest import ReadStore
from .golden_rows import BROKER_NAME, Row, golden_rows, utc
from .in_process import bodies, plan_batch, read_batch, rows_of

pytestmark = pytest.mark.slow

PristineStore = Callable[[str], Fixture]
TOPIC = "TopicOne"


def places(rows: list[Row]) -> list[tuple[int, int]]:
    return sorted((row["queue_id"], row["queue_offset"]) for row in rows)


def by_queue(positions: dict[int, int]) -> str:
    return json.dumps({TOPIC: {BROKER_NAME: {str(queue): position for queue, position in positions.items()}}})


def store_time_ms(row: Row) -> int:
    return round(row["store_timestamp"].timestamp() * 1_000)


@pytest.fixture
def golden(pristine_store: PristineStore) -> list[Row]:
    return golden_rows(pristine_store("roll"), TOPIC)


@pytest.fixture
def root(pristine_store: PristineStore) -> Path:
    return pristine_store("roll").root


def test_offsets_bound_each_queue(root: Path, golden: list[Row]) -> None:
    ends = {queue: 1 + max(r["queue_offset"] for r in golden if r["queue_id"] == queue) for queue in (0, 1, 2)}
    starting, ending = {0: 5, 1: -2, 2: 7}, {0: 9, 1: 20, 2: -1}
    rows = read_batch(root, topic=TOPIC, startingOffsets=by_queue(starting), endingOffsets=by_queue(ending))
    expected = {0: (5, 9), 1: (0, 20), 2: (7, ends[2])}
    assert places(rows) == [(queue, offset) for queue, (start, end) in expected.items() for offset in range(start, end)]
    # One broker need not be named.
    rows = read_batch(root, topic=TOPIC, startingOffsets=json.dumps({TOPIC: {str(q): n for q, n in ends.items()}}))
    assert rows == []


def test_offsets_must_name_every_queue_and_no_other(root: Path) -> None:
    with pytest.raises(QueuesNotMatchedError, match=rf"not queues of this query: {TOPIC}/broker-lab/7; .*missing"):
        read_batch(root, topic=TOPIC, startingOffsets=by_queue({0: 1, 7: 1}))


def test_a_start_behind_the_end_is_refused(root: Path) -> None:
    ending = by_queue({0: -1, 1: 3, 2: -1})
    with pytest.raises(OptionError, match="the start 4 is greater than the end 3"):
        read_batch(root, topic=TOPIC, startingOffsets=by_queue({0: 0, 1: 4, 2: 0}), endingOffsets=ending)
    late = {"startingTimestamp": str(START_MS * 2), "startingOffsetsByTimestampStrategy": "latest"}
    with pytest.raises(StartBeyondEndError, match=rf"\[SPARK_MQ_START_BEYOND_END\] queue {TOPIC}/broker-lab/"):
        read_batch(root, topic=TOPIC, endingOffsets=ending, **late)


@pytest.mark.parametrize("spelling", ["ms", "ISO-8601"])
def test_timestamps_bound_all_queues(spelling: str, root: Path, golden: list[Row]) -> None:
    times = sorted(store_time_ms(row) for row in golden)
    first, last = times[len(times) // 4], times[3 * len(times) // 4]
    texts = [str(ms) if spelling == "ms" else utc(ms).isoformat(timespec="milliseconds") for ms in (first, last)]
    rows = read_batch(root, topic=TOPIC, startingTimestamp=texts[0], endingTimestamp=texts[1])
    expected = [row for row in golden if first <= store_time_ms(row) < last]
    assert places(rows) == places(expected)
    assert 0 < len(expected) < len(golden)


def test_timestamps_bound_each_queue(root: Path, golden: list[Row]) -> None:
    def time_at(queue: int, offset: int) -> int:
        return next(store_time_ms(r) for r in golden if (r["queue_id"], r["queue_offset"]) == (queue, offset))

    starting, ending = {q: time_at(q, 3 * q) for q in range(3)}, {q: time_at(q, 30 + q) for q in range(3)}
    rows = read_batch(
        root,
        topic=TOPIC,
        startingOffsetsByTimestamp=by_queue(starting),
        endingOffsetsByTimestamp=by_queue(ending),
        startingOffsets="earliest",  # the times win
    )
    expected = [r for r in golden if starting[r["queue_id"]] <= store_time_ms(r) < ending[r["queue_id"]]]
    assert places(rows) == places(expected)
    assert 0 < len(expected) < len(golden)


def test_a_time_without_a_message_is_an_error_or_the_end(root: Path, golden: list[Row]) -> None:
    late = str(max(store_time_ms(row) for row in golden) + 1)
    with pytest.raises(
        NoOffsetForTimestampError, match=r"(?s)\[SPARK_MQ_NO_OFFSET_FOR_TIMESTAMP\].*Strategy to latest"
    ):
        read_batch(root, topic=TOPIC, startingTimestamp=late)
    assert read_batch(root, topic=TOPIC, startingTimestamp=late, startingOffsetsByTimestampStrategy="latest") == []
    assert len(read_batch(root, topic=TOPIC, endingTimestamp=late)) == len(golden)


def test_a_relative_start_counts_from_now(tmp_path: Path) -> None:
    now_ms = time.time_ns() // 1_000_000
    store = StoreBuilder(tmp_path / "broker-a")
    store.send("Topic", "idle", queue_id=1, store_time_ms=now_ms - 7_200_000)
    store.send("Topic", "old", store_time_ms=now_ms - 3_600_000)
    store.send("Topic", "new", store_time_ms=now_ms - 60_000)
    assert bodies(read_batch(store.root, topic="Topic", startingTimestamp="-10m")) == ["new"]
    assert bodies(read_batch(store.root, topic="Topic", startingTimestamp="-90m")) == ["old", "new"]


def test_a_groups_offsets_are_a_start(tmp_path: Path) -> None:
    store = StoreBuilder(tmp_path / "broker-a")
    store.send_many("Topic", 5)
    store.send_many("Topic", 3, queue_id=1)
    store.commit_group("GroupA", {"Topic": {0: 4}})
    group = {"topic": "Topic", "startingOffsets": "group"}
    rows = read_batch(store.root, consumerGroup="GroupA", **group)
    assert bodies(rows) == ["Topic/0/4", "Topic/1/0", "Topic/1/1", "Topic/1/2"]  # queue 1 is new to the group
    with pytest.raises(NoGroupOffsetsError, match=r"\[SPARK_MQ_NO_GROUP_OFFSETS\] group GroupB"):
        read_batch(store.root, consumerGroup="GroupB", **group)


@pytest.mark.spark
def test_spark_takes_an_empty_range(read_store: ReadStore, root: Path) -> None:
    offsets = by_queue({0: 5, 1: 5, 2: 5})
    assert read_store(root, topic=TOPIC, startingOffsets=offsets, endingOffsets=offsets).count() == 0


@pytest.mark.parametrize(
    ("options", "at_least"),
    [({"minPartitions": "10"}, 9), ({"maxRecordsPerPartition": "17"}, 15), ({"minPartitions": "1"}, 3)],
)
def test_queues_are_split_without_loss_or_double(
    options: dict[str, str], at_least: int, root: Path, golden: list[Row]
) -> None:
    splits = plan_batch(root, topic=TOPIC, **options)
    assert len(splits) >= at_least
    if "maxRecordsPerPartition" in options:
        assert max(end - start for split in splits for start, end in split.ranges) <= 17
    assert places(rows_of(splits)) == places(golden)


@pytest.mark.spark
def test_spark_runs_one_task_a_split(read_store: ReadStore, root: Path, golden: list[Row]) -> None:
    frame = read_store(root, topic=TOPIC, minPartitions="6", columns="queue_id,queue_offset")
    assert frame.rdd.getNumPartitions() == len(plan_batch(root, topic=TOPIC, minPartitions="6")) >= 6
    assert places([row.asDict() for row in frame.collect()]) == places(golden)


# Loss


def expired(tmp_path: Path) -> tuple[StoreBuilder, int]:
    """A store whose oldest log file is gone, and the first offset that is left."""
    store = StoreBuilder(tmp_path / "broker-a", log_file_size_bytes=4 << 10)
    store.send_many("Topic", 60)
    store.delete_oldest_log_file()
    rows = read_batch(store.root, topic="Topic")
    return store, rows[0]["queue_offset"]


def test_earliest_is_what_is_left(tmp_path: Path) -> None:
    store, first = expired(tmp_path)
    assert 0 < first < 60
    assert bodies(read_batch(store.root, topic="Topic")) == [f"Topic/0/{n}" for n in range(first, 60)]


def test_an_expired_start_is_data_loss(tmp_path: Path) -> None:
    store, first = expired(tmp_path)
    options = {"topic": "Topic", "startingOffsets": '{"Topic": {"0": 1}}'}
    with pytest.raises(DataLossError, match=rf"(?s)\[SPARK_MQ_DATA_LOSS\].*offset 1 is outside \[{first}, 60\]"):
        read_batch(store.root, **options)
    with pytest.warns(RuntimeWarning, match=r"\[SPARK_MQ_DATA_LOSS\] tolerated"):
        rows = read_batch(store.root, failOnDataLoss="false", **options)
    assert bodies(rows) == [f"Topic/0/{n}" for n in range(first, 60)]


def test_an_end_that_is_not_there_is_data_loss(tmp_path: Path) -> None:
    store = StoreBuilder(tmp_path / "broker-a")
    store.send_many("Topic", 5)
    options = {"topic": "Topic", "endingOffsets": '{"Topic": {"0": 9}}'}
    with pytest.raises(DataLossError, match=r"the ending offset 9 is outside \[0, 5\]"):
        read_batch(store.root, **options)
    with pytest.warns(RuntimeWarning, match="5 is taken"):
        assert len(read_batch(store.root, failOnDataLoss="false", **options)) == 5


def delete_log_file(store: StoreBuilder) -> None:
    store.delete_oldest_log_file()


def delete_log_and_queue_files(store: StoreBuilder) -> None:
    store.delete_oldest_log_file()
    min((store.root / "consumequeue/Topic/0").iterdir()).unlink()


@pytest.mark.parametrize(("expire", "left"), [(delete_log_file, 20), (delete_log_and_queue_files, 20)])
def test_what_expires_between_planning_and_reading_is_data_loss(
    expire: Callable[[StoreBuilder], None], left: int, tmp_path: Path
) -> None:
    store = StoreBuilder(tmp_path / "broker-a", log_file_size_bytes=4 << 10, queue_file_entries=10)
    store.send_many("Topic", 60)
    strict = plan_batch(store.root, topic="Topic")
    tolerant = plan_batch(store.root, topic="Topic", failOnDataLoss="false")
    expire(store)
    with pytest.raises(DataLossError, match=r"\[SPARK_MQ_DATA_LOSS\]"):
        rows_of(strict)
    found = bodies(rows_of(tolerant))
    assert found == [f"Topic/0/{n}" for n in range(60 - len(found), 60)]
    assert left <= len(found) < 60


def test_a_topic_that_is_deleted_between_planning_and_reading_cannot_be_told_from_one_that_is_not_mounted(
    tmp_path: Path,
) -> None:
    """The task fails in either case; a query that is planned anew knows."""
    store = StoreBuilder(tmp_path / "broker-a")
    store.send_many("Topic", 60)
    for text in ("true", "false"):
        splits = plan_batch(store.root, topic="Topic", failOnDataLoss=text)
        (store.root / "consumequeue/Topic").rename(store.root / "away")
        with pytest.raises(SparkMqError, match=r"(?s)\[SPARK_MQ_STORE_NOT_FOUND\].*start the query again"):
            rows_of(splits)
        (store.root / "away").rename(store.root / "consumequeue/Topic")
    store.delete_topic("Topic")
    with pytest.raises(OptionError, match="Topic: not in"):
        plan_batch(store.root, topic="Topic")


def test_gaps_are_no_loss(tmp_path: Path) -> None:
    """Offsets without a visible message: room before a queue's first message, entries whose record is not theirs."""
    store = StoreBuilder(tmp_path / "broker-a")
    store.append_pre_blank("Topic", 0, 4)
    store.send("Topic", "4")
    store.append_entry("Topic", 0, 10, 100)  # points into a record
    store.send("Topic", "6")
    store.append_entry("Topic", 0, 0, 1 << 20)  # longer than the log
    store.send("Topic", "8")
    for sys_flag in (0x4, 0xC):  # prepared, rolled back: records without an entry
        store.send("Topic", "half", sys_flag=sys_flag)
    store.send("Topic", "9", sys_flag=0x8)  # committed
    rows = read_batch(store.root, topic="Topic", startingOffsets='{"Topic": {"0": 4}}')
    assert [(row["queue_offset"], row["body"]) for row in rows] == [(4, b"4"), (6, b"6"), (8, b"8"), (9, b"9")]


def test_times_are_found_across_gaps(tmp_path: Path) -> None:
    store = StoreBuilder(tmp_path / "broker-a")
    for second in range(3):
        store.send("Topic", str(second), store_time_ms=START_MS + second * 1_000)
    for _ in range(6):
        store.append_entry("Topic", 0, 10, 100)
    for second in range(9, 12):
        store.send("Topic", str(second), store_time_ms=START_MS + second * 1_000)
    for second in range(12):
        rows = read_batch(store.root, topic="Topic", startingTimestamp=str(START_MS + second * 1_000))
        assert bodies(rows) == [str(n) for n in (0, 1, 2, 9, 10, 11) if n >= second], second


def test_a_queue_that_no_topic_has_is_refused_and_an_empty_one_is_empty(tmp_path: Path) -> None:
    store = StoreBuilder(tmp_path / "broker-a")
    store.send_many("Topic", 5)
    with pytest.raises(OptionError, match="99 is no queue of the topic; its queues are 0 to"):
        read_batch(store.root, topic="Topic", queueId="99")
    with open_store(store.root, read_only=False) as opened:
        opened.save_topic(TopicConfig("Topic", 4, 4))
    assert read_batch(store.root, topic="Topic", queueId="3") == []
