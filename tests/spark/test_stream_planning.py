"""What a micro-batch holds: where a query starts, how far it goes, what appears on the way, and what a look costs."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_mq.conditions import AvailableNowError, NoOffsetForTimestampError
from spark_mq.source import stream_reader
from spark_mq.source.stream_reader import StreamReader
from spark_mq.spark_api import ReadAllAvailable
from storage.files import file_system
from tests.support.fixture_stores import Fixture
from tests.support.store_builder import START_MS, StoreBuilder

from .in_process import Position, bodies, next_batch, open_stream, rows_between, until

pytestmark = pytest.mark.slow

SECOND = 1_000


@pytest.fixture
def store(tmp_path: Path) -> StoreBuilder:
    """Topic with 20 messages in queue 0 and 10 in queue 1, a second apart."""
    builder = StoreBuilder(tmp_path / "broker-a")
    builder.send_many("Topic", 20)
    builder.send_many("Topic", 10, queue_id=1)
    return builder


def next_offsets(position: Position) -> dict[int, int]:
    return {int(queue): leaf["next"] for queue, leaf in position["Topic"]["broker-a"].items()}


def sizes_of_batches(reader: StreamReader, position: Position) -> list[int]:
    """Rows of each micro-batch until there is nothing left."""
    sizes = []
    while True:
        position, rows = next_batch(reader, position)
        if not rows:
            return sizes
        sizes.append(len(rows))


# Where it starts


@pytest.mark.parametrize(
    ("options", "start"),
    [
        ({}, {0: 20, 1: 10}),
        ({"startingOffsets": "latest"}, {0: 20, 1: 10}),
        ({"startingOffsets": "earliest"}, {0: 0, 1: 0}),
        ({"startingOffsets": '{"Topic": {"0": 7, "1": -1}}'}, {0: 7, 1: 10}),
        ({"startingOffsets": '{"Topic": {"broker-a": {"0": -2, "1": 3}}}'}, {0: 0, 1: 3}),
        ({"startingTimestamp": str(START_MS + 5 * SECOND)}, {0: 4, 1: 0}),
        (
            {"startingTimestamp": str(START_MS + 25 * SECOND), "startingOffsetsByTimestampStrategy": "latest"},
            {0: 20, 1: 4},
        ),
        (
            {"startingOffsetsByTimestamp": json.dumps({"Topic": {"0": START_MS, "1": START_MS + 30 * SECOND}})},
            {0: 0, 1: 9},
        ),
        ({"startingTimestamp": "-1h"}, {0: 20, 1: 10}),  # the messages are years old
        ({"startingOffsets": "group", "consumerGroup": "GroupA"}, {0: 5, 1: 0}),
    ],
    ids=["default", "latest", "earliest", "JSON", "JSON with broker", "time", "time, latest", "times", "ago", "group"],
)
def test_a_new_query_starts_where_it_was_told(
    options: dict[str, str], start: dict[int, int], store: StoreBuilder
) -> None:
    store.commit_group("GroupA", {"Topic": {0: 5}})
    reader = open_stream(store.root, topic="Topic", **options)
    initial = reader.initialOffset()
    assert next_offsets(initial) == start
    _, rows = next_batch(reader, initial)
    assert len(rows) == sum((20, 10)[queue] - offset for queue, offset in start.items())


def test_a_time_that_no_message_reaches_is_refused_by_default(store: StoreBuilder) -> None:
    with pytest.raises(NoOffsetForTimestampError, match=r"queue Topic/broker-a/0"):
        open_stream(store.root, topic="Topic", startingTimestamp=str(START_MS + 25 * SECOND)).initialOffset()


def test_a_relative_start_is_resolved_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark asks for the initial offset twice."""
    store = StoreBuilder(tmp_path / "broker-a")
    for second in range(10):
        store.send("Topic", str(second), store_time_ms=START_MS + second * SECOND)
    reader = open_stream(store.root, topic="Topic", startingTimestamp="-5s")
    monkeypatch.setattr(stream_reader, "current_time_ms", lambda: START_MS + 10 * SECOND)
    first = reader.initialOffset()
    monkeypatch.setattr(stream_reader, "current_time_ms", lambda: START_MS + 12 * SECOND)
    assert next_offsets(first) == {0: 5}
    assert reader.initialOffset() == first


# How far it goes


def test_a_limit_in_rows_is_shared_by_backlog(store: StoreBuilder) -> None:
    reader = open_stream(store.root, topic="Topic", startingOffsets="earliest", maxOffsetsPerTrigger="6")
    position, rows = next_batch(reader, reader.initialOffset())
    assert next_offsets(position) == {0: 4, 1: 2}
    assert len(rows) == 6
    assert sizes_of_batches(reader, position) == [6, 6, 6, 6]


def test_a_limit_in_bytes_counts_whole_records(store: StoreBuilder) -> None:
    size = rows_between_ends(store)[0]["store_size"]
    reader = open_stream(store.root, topic="Topic", startingOffsets="earliest", maxBytesPerTrigger=str(7 * size))
    position = reader.initialOffset()
    seen = 0
    while True:
        position, rows = next_batch(reader, position)
        if not rows:
            break
        assert sum(row["store_size"] for row in rows) <= 9 * size  # at most one message a queue over
        seen += len(rows)
    assert seen == 30


def test_a_large_message_blocks_no_query(store: StoreBuilder) -> None:
    reader = open_stream(store.root, topic="Topic", startingOffsets="earliest", maxBytesPerTrigger="1")
    _, rows = next_batch(reader, reader.initialOffset())
    assert sorted(row["queue_id"] for row in rows) == [0, 1]


def test_rows_and_bytes_limit_together(store: StoreBuilder) -> None:
    size = rows_between_ends(store)[0]["store_size"]
    options = {"topic": "Topic", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "12"}
    rows_first = open_stream(store.root, **options, maxBytesPerTrigger=str(1 << 20))
    bytes_first = open_stream(store.root, **options, maxBytesPerTrigger=str(3 * size))
    assert len(next_batch(rows_first, rows_first.initialOffset())[1]) == 12
    assert len(next_batch(bytes_first, bytes_first.initialOffset())[1]) <= 4


def test_few_rows_are_waited_for_until_the_delay_is_over(store: StoreBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [START_MS]
    monkeypatch.setattr(stream_reader, "current_time_ms", lambda: now[0])
    limits = {"minOffsetsPerTrigger": "10", "maxTriggerDelay": "1m"}
    reader = open_stream(store.root, topic="Topic", startingOffsets="earliest", **limits)
    position, rows = next_batch(reader, reader.initialOffset())
    assert len(rows) == 30, "the first batch waits for nothing"
    store.send_many("Topic", 3)
    now[0] += 30 * SECOND
    assert next_batch(reader, position) == (position, [])
    store.send_many("Topic", 8, queue_id=1)
    position, rows = next_batch(reader, position)
    assert len(rows) == 11, "enough"
    store.send_many("Topic", 2)
    now[0] += 59 * SECOND
    assert next_batch(reader, position) == (position, [])
    now[0] += 1 * SECOND
    assert len(next_batch(reader, position)[1]) == 2, "waited for long enough"


def test_trigger_once_ignores_limits(store: StoreBuilder) -> None:
    reader = open_stream(store.root, topic="Topic", startingOffsets="earliest", maxOffsetsPerTrigger="6")
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert next_offsets(end) == {0: 20, 1: 10}


def test_available_now_reads_up_to_its_first_look_and_keeps_the_maximum(store: StoreBuilder) -> None:
    limits = {"maxOffsetsPerTrigger": "12", "minOffsetsPerTrigger": "11"}
    reader = open_stream(store.root, topic="Topic", startingOffsets="earliest", **limits)
    reader.prepareForTriggerAvailableNow()
    position = reader.initialOffset()
    store.send_many("Topic", 5)
    store.send_many("Topic", 5, queue_id=2)
    assert sizes_of_batches(reader, position) == [12, 12, 6]


def test_available_now_fails_where_its_end_is_gone(store: StoreBuilder) -> None:
    reader = open_stream(store.root, topic="Topic", startingOffsets="earliest", failOnDataLoss="false")
    reader.prepareForTriggerAvailableNow()
    position = reader.initialOffset()
    store.delete_topic("Topic")
    with pytest.raises(AvailableNowError, match=r"\[SPARK_MQ_AVAILABLE_NOW_CHANGED\].*Topic/broker-a/0"):
        until(lambda: reader.latestOffset(position, ReadAllAvailable()) == position)


@pytest.mark.parametrize("options", [{"minPartitions": "8"}, {"maxRecordsPerPartition": "4"}])
def test_batches_are_split(options: dict[str, str], store: StoreBuilder) -> None:
    reader = open_stream(store.root, topic="Topic", startingOffsets="earliest", **options)
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert len(reader.partitions(start, end)) >= 8
    assert sorted(bodies(rows_between(reader, start, end))) == sorted(bodies(rows_between_ends(store)))


def test_an_empty_range_has_no_partitions(store: StoreBuilder) -> None:
    """Spark runs batch 0 of a new query even if there is nothing to read."""
    reader = open_stream(store.root, topic="Topic")
    start = reader.initialOffset()
    assert reader.partitions(start, start) == []


# What appears on the way


def test_new_messages_queues_and_topics_join(store: StoreBuilder) -> None:
    reader = open_stream(store.root, subscribePattern="Top.*", startingOffsets="latest")
    position = reader.initialOffset()
    assert next_batch(reader, position) == (position, [])
    sent = store.send_many("Topic", 3)
    position, rows = next_batch(reader, position)
    assert bodies(rows) == sent
    sent = store.send_many("Topic", 2, queue_id=5) + store.send_many("Topical", 4) + store.send_many("Other", 1)
    position, rows = next_batch(reader, position)
    assert bodies(rows) == [body for body in sent if not body.startswith("Other")]
    assert set(position) == {"Topic", "Topical"}
    assert next_batch(reader, position) == (position, [])


def test_a_new_broker_home_needs_a_new_start(store: StoreBuilder) -> None:
    reader = open_stream(store.root.parent, topic="Topic", startingOffsets="earliest")
    position, _ = next_batch(reader, reader.initialOffset())
    StoreBuilder(store.root.parent / "broker-b").send("Topic", "1")
    assert next_batch(reader, position)[1] == []
    restarted = open_stream(store.root.parent, topic="Topic")
    assert bodies(next_batch(restarted, position)[1]) == ["1"]


def test_a_logged_batch_is_the_same_after_more_was_written(store: StoreBuilder) -> None:
    options = {"topic": "Topic", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "9"}
    reader = open_stream(store.root, **options)
    start = reader.initialOffset()
    end, rows = next_batch(reader, start)
    store.send_many("Topic", 50)
    restarted = open_stream(store.root, topic="Topic", maxOffsetsPerTrigger="3")
    start, end = json.loads(json.dumps(start)), json.loads(json.dumps(end))
    assert rows_between(restarted, start, end) == rows


def test_a_task_needs_nothing_but_its_partition(store: StoreBuilder) -> None:
    """Tasks have a reader of their own that never saw the driver's; the stores need not even be where it says."""
    reader = open_stream(store.root, topic="Topic", startingOffsets="earliest")
    start = reader.initialOffset()
    partitions = reader.partitions(start, reader.latestOffset(start, reader.getDefaultReadLimit()))
    task = open_stream("nowhere", topic="Topic")
    rows = [
        row for part in partitions for batch in task.read(pickle.loads(pickle.dumps(part))) for row in batch.to_pylist()
    ]
    assert len(rows) == 30


# What a look costs


def test_an_idle_look_gives_the_same_text(store: StoreBuilder) -> None:
    reader = open_stream(store.root, topic="Topic", startingOffsets="earliest")
    position, _ = next_batch(reader, reader.initialOffset())
    texts = {json.dumps(reader.latestOffset(json.loads(json.dumps(position)), ReadAllAvailable())) for _ in range(3)}
    assert texts == {json.dumps(position)}
    assert reader.reportLatestOffset() == reader.reportLatestOffset()


def test_an_idle_look_opens_no_file(pristine_store: Callable[[str], Fixture], monkeypatch: pytest.MonkeyPatch) -> None:
    store = pristine_store("clean")
    reader = open_stream(store.root, subscribePattern=".*", startingOffsets="earliest")
    position, rows = next_batch(reader, reader.initialOffset())
    assert len(rows) > 1_000
    reader.latestOffset(position, ReadAllAvailable())
    opened: list[str] = []
    monkeypatch.setattr(file_system.LocalFile, "__init__", lambda self, path: opened.append(path))
    assert reader.latestOffset(position, ReadAllAvailable()) == position
    assert opened == []


def rows_between_ends(store: StoreBuilder) -> list[dict[str, object]]:
    reader = open_stream(store.root, topic="Topic", startingOffsets="earliest")
    return next_batch(reader, reader.initialOffset())[1]
