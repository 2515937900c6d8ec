"""Spark before 4.2 asks for the latest offset and names no start: each row is read once all the same, and what is lost is noticed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from spark_mq.conditions import DataLossError, SparkMqError
from storage.tables.consumer_groups import ConsumerOffsets
from tests.support.store_builder import StoreBuilder

from .in_process import Position, bodies, open_stream, rows_between

EARLIEST = {"topic": "Topic", "startingOffsets": "earliest"}


@pytest.fixture
def store(tmp_path: Path) -> StoreBuilder:
    return StoreBuilder(tmp_path / "broker-a")


def first_run(store: StoreBuilder) -> tuple[Position, list[str]]:
    """Where a new query stands after its first batch, and what it read: Spark asks for the end before the start."""
    reader = open_stream(store.root, **EARLIEST)
    end = reader.latestOffset()
    return end, bodies(rows_between(reader, reader.initialOffset(), end))


def test_a_running_query_reads_each_row_once(store: StoreBuilder) -> None:
    sent = store.send_many("Topic", 20)
    reader = open_stream(store.root, **EARLIEST)
    position, end = reader.initialOffset(), reader.latestOffset()
    read = bodies(rows_between(reader, position, end))
    for _ in range(3):
        assert reader.latestOffset() == end, "nothing new: Spark runs no batch"
        sent += store.send_many("Topic", 5)
        position, end = end, reader.latestOffset()
        read += bodies(rows_between(reader, position, end))
    assert read == sent


def test_a_restarted_query_goes_on_where_its_checkpoint_ends(store: StoreBuilder) -> None:
    sent = store.send_many("Topic", 20)
    position, read = first_run(store)
    assert open_stream(store.root, **EARLIEST).latestOffset() == position
    sent += store.send_many("Topic", 5)
    restarted = open_stream(store.root, **EARLIEST)
    read += bodies(rows_between(restarted, position, restarted.latestOffset()))
    assert read == sent


def test_a_repeated_batch_is_followed_by_what_came_later(store: StoreBuilder) -> None:
    sent = store.send_many("Topic", 20)
    start = open_stream(store.root, **EARLIEST).initialOffset()
    end, read = first_run(store)
    sent += store.send_many("Topic", 5)
    restarted = open_stream(store.root, **EARLIEST)
    assert bodies(rows_between(restarted, start, end)) == read
    assert read + bodies(rows_between(restarted, end, restarted.latestOffset())) == sent


@pytest.mark.parametrize("count", [4, 10, 25], ids=["shorter", "as long", "longer"])
def test_a_recreated_topic_is_noticed_at_a_restart(count: int, store: StoreBuilder) -> None:
    store.send_many("Topic", 10, prefix="old ")
    position, _ = first_run(store)
    store.delete_topic("Topic")
    store.send_many("Topic", count, prefix="new ")
    restarted = open_stream(store.root, **EARLIEST)
    end = restarted.latestOffset()
    assert end != position, "Spark runs a batch"
    with pytest.raises(DataLossError):
        restarted.partitions(position, end)


def test_a_lost_topic_is_noticed_while_the_query_runs(store: StoreBuilder) -> None:
    store.send_many("Topic", 10, prefix="old ")
    reader = open_stream(store.root, **EARLIEST)
    start, end = reader.initialOffset(), reader.latestOffset()
    rows_between(reader, start, end)
    store.delete_topic("Topic")
    store.send_many("Topic", 25, prefix="new ")
    with pytest.raises(DataLossError):
        reader.latestOffset()


def copy_of(store: StoreBuilder, to: Path) -> Path:
    shutil.copytree(store.root, to)
    return to


def test_a_batch_that_was_planned_without_a_broker_is_planned_anew(tmp_path: Path) -> None:
    """Spark writes an end to its checkpoint before the source learns the start, so before it can refuse."""
    here, there = StoreBuilder(tmp_path / "broker-a"), StoreBuilder(tmp_path / "broker-b")
    read = here.send_many("Topic", 3) + there.send_many("Topic", 4)
    both = open_stream([here.root, there.root], **EARLIEST)
    position = both.latestOffset()
    assert sorted(bodies(rows_between(both, both.initialOffset(), position))) == sorted(read)
    later = here.send_many("Topic", 2, prefix="later ") + there.send_many("Topic", 2, prefix="later ")

    alone = open_stream([here.root], **EARLIEST)
    planned = alone.latestOffset()
    with pytest.raises(DataLossError, match=r"Topic/broker-b/0 at offset 4: no store of broker broker-b"):
        alone.partitions(position, planned)

    repeated = open_stream([here.root, there.root], **EARLIEST)
    with pytest.raises(DataLossError, match=r"(?s)Topic/broker-b/0 at offset 4 is there, .* leaves it out.*offsets"):
        repeated.partitions(position, planned)

    anew = open_stream([here.root, there.root], **EARLIEST)  # the planned batch's file is deleted
    assert sorted(bodies(rows_between(anew, position, anew.latestOffset()))) == sorted(later)


def test_a_store_whose_queues_are_not_there_gives_no_end(store: StoreBuilder) -> None:
    """Nothing is written to the checkpoint then."""
    store.send_many("Topic", 5)
    shutil.rmtree(store.root / "consumequeue")
    with pytest.raises(SparkMqError, match="consumequeue"):
        open_stream(store.root, **EARLIEST).latestOffset()


def test_a_batch_that_was_planned_on_an_older_copy_is_planned_anew(store: StoreBuilder, tmp_path: Path) -> None:
    sent = store.send_many("Topic", 50)
    older = copy_of(store, tmp_path / "older" / "broker-a")
    sent += store.send_many("Topic", 50)
    position, read = first_run(store)

    on_older = open_stream(older, **EARLIEST)
    planned = on_older.latestOffset()
    with pytest.raises(DataLossError):
        on_older.partitions(position, planned)

    repeated = open_stream(store.root, **EARLIEST)
    with pytest.raises(DataLossError, match=r"(?s)Topic/broker-a/0.* starts at 100 and ends at 50.*offsets"):
        repeated.partitions(position, planned)

    sent += store.send_many("Topic", 5)
    anew = open_stream(store.root, **EARLIEST)  # the planned batch's file is deleted
    assert read + bodies(rows_between(anew, position, anew.latestOffset())) == sent


def test_a_groups_offsets_follow_a_query_of_one_batch_a_run(store: StoreBuilder) -> None:
    """Trigger.AvailableNow of such a Spark: what is stored is where the run's batch begins, which Spark has committed."""
    store.send_many("Topic", 5)
    position, _ = first_run(store)
    store.send_many("Topic", 5)
    run = open_stream(store.root, **EARLIEST, consumerGroup="GroupSpark", commitOffsets="true")
    run.partitions(position, run.latestOffset())
    run.stop()
    table = ConsumerOffsets.load((store.root / "config" / "consumerOffset.json").read_text("utf-8"))
    assert table.get("Topic", "GroupSpark", 0) == 5
