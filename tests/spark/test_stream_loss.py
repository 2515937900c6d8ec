"""What a running or restarted query does when messages it was to read are gone, and what is no loss."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from spark_mq.conditions import CheckpointOfAnotherQueryError, DataLossError
from spark_mq.spark_api import ReadAllAvailable
from tests.support.store_builder import StoreBuilder

from .in_process import Position, bodies, next_batch, open_stream, until

pytestmark = pytest.mark.slow

EARLIEST = {"topic": "Topic", "startingOffsets": "earliest"}


@pytest.fixture
def store(tmp_path: Path) -> StoreBuilder:
    return StoreBuilder(tmp_path / "broker-a", log_file_size_bytes=4 << 10)


def read_all(store: StoreBuilder) -> Position:
    """Where a query stands that has read everything."""
    reader = open_stream(store.root, **EARLIEST)
    return next_batch(reader, reader.initialOffset())[0]


def goes_on(store: StoreBuilder, position: Position) -> tuple[list[str], Position]:
    """What a query without failOnDataLoss reads from there, in one batch; it warns. One with it fails."""
    strict, tolerant = (open_stream(store.root, **EARLIEST, failOnDataLoss=text) for text in ("true", "false"))
    with pytest.raises(DataLossError, match=r"(?s)\[SPARK_MQ_DATA_LOSS\].*Set failOnDataLoss to false"):
        next_batch(strict, position)
    with pytest.warns(RuntimeWarning, match=r"\[SPARK_MQ_DATA_LOSS\] tolerated: queue Topic/broker-a/0"):
        end, rows = next_batch(tolerant, position)
    return bodies(rows), end


def fill_log_file(store: StoreBuilder) -> int:
    """Send until a second log file begins; returns the offset of the first message in it."""
    while len(store.log_files) < 2:
        store.send_many("Topic", 1)
    return store.end("Topic") - 1


def test_an_expired_position_is_loss(store: StoreBuilder) -> None:
    store.send_many("Topic", 10)
    position = read_all(store)
    first_left = fill_log_file(store)
    store.delete_oldest_log_file()
    store.send_many("Topic", 10)
    found, _ = goes_on(store, position)
    assert found == [f"Topic/0/{n}" for n in range(first_left, store.end("Topic"))]
    assert first_left > 10


def test_a_position_at_the_minimum_is_no_loss(store: StoreBuilder) -> None:
    """The record before it has expired, but that was read."""
    first_left = fill_log_file(store)
    at_minimum = {"startingOffsets": f'{{"Topic": {{"0": {first_left}}}}}'}
    position = open_stream(store.root, topic="Topic", **at_minimum).initialOffset()
    assert position["Topic"]["broker-a"]["0"]["before"] is not None
    store.delete_oldest_log_file()
    sent = [f"Topic/0/{first_left}", *store.send_many("Topic", 10)]
    _, rows = next_batch(open_stream(store.root, **EARLIEST), position)
    assert bodies(rows) == sent


@pytest.mark.parametrize("count", [4, 10, 25], ids=["shorter", "as long", "longer"])
def test_a_recreated_topic_is_loss_and_read_from_its_beginning(count: int, store: StoreBuilder) -> None:
    store.send_many("Topic", 10, prefix="old ")
    position = read_all(store)
    store.delete_topic("Topic")
    sent = store.send_many("Topic", count, prefix="new ")
    found, end = goes_on(store, position)
    assert found == sent
    reader = open_stream(store.root, **EARLIEST)
    assert next_batch(reader, end) == (end, []), "what was tolerated once is the new position"


@pytest.mark.parametrize("count", [4, 10, 25], ids=["shorter", "as long", "longer"])
def test_a_running_query_notices_a_recreated_topic(count: int, store: StoreBuilder) -> None:
    store.send_many("Topic", 10, prefix="old ")
    strict, tolerant = (open_stream(store.root, **EARLIEST, failOnDataLoss=text) for text in ("true", "false"))
    for reader in (strict, tolerant):
        position, _ = next_batch(reader, reader.initialOffset())
    store.delete_topic("Topic")
    sent = store.send_many("Topic", count, prefix="new ")
    with pytest.raises(DataLossError):
        next_batch(strict, position)
    with pytest.warns(RuntimeWarning, match="SPARK_MQ_DATA_LOSS"):
        end, rows = next_batch(tolerant, position)
    assert bodies(rows) == sent
    assert next_batch(tolerant, end) == (end, [])


def test_a_deleted_topic_is_loss_and_leaves_the_position(store: StoreBuilder) -> None:
    store.send_many("Topic", 10)
    store.send_many("Topic2", 10)
    options = {"subscribe": "Topic,Topic2", "startingOffsets": "earliest"}
    strict, tolerant = (open_stream(store.root, **options, failOnDataLoss=text) for text in ("true", "false"))
    for reader in (strict, tolerant):
        position, _ = next_batch(reader, reader.initialOffset())
    store.delete_topic("Topic")
    with pytest.raises(DataLossError, match="queue Topic/broker-a/0 at offset 10 is gone"):
        until(lambda: next_batch(strict, position)[0] != position)
    with pytest.warns(RuntimeWarning, match="queue Topic/broker-a/0 at offset 10 is gone"):
        until(lambda: set(tolerant.latestOffset(position, ReadAllAvailable())) == {"Topic2"})
    position, rows = next_batch(tolerant, {"Topic2": position["Topic2"]})
    assert rows == []
    sent = store.send_many("Topic", 2, prefix="again ")
    assert bodies(next_batch(tolerant, position)[1]) == sent


def test_a_new_queue_whose_beginning_expired_unseen_is_loss(store: StoreBuilder) -> None:
    store.send_many("Topic", 1)
    strict, tolerant = (open_stream(store.root, **EARLIEST, failOnDataLoss=text) for text in ("true", "false"))
    for reader in (strict, tolerant):
        position, _ = next_batch(reader, reader.initialOffset())
    store.append_pre_blank("Topic", 1, 3)
    store.send("Topic", "3", queue_id=1)
    with pytest.raises(DataLossError, match="queue Topic/broker-a/1 is new to the query and begins at 3"):
        next_batch(strict, position)
    with pytest.warns(RuntimeWarning, match="begins at 3"):
        assert bodies(next_batch(tolerant, position)[1]) == ["3"]


def test_a_start_outside_the_queue_is_loss(store: StoreBuilder) -> None:
    store.send_many("Topic", 5)
    options = {"topic": "Topic", "startingOffsets": '{"Topic": {"0": 8}}'}
    with pytest.raises(DataLossError, match=r"the starting offset 8 is outside \[0, 5\]"):
        open_stream(store.root, **options).initialOffset()
    with pytest.warns(RuntimeWarning, match="0 is taken"):
        initial = open_stream(store.root, **options, failOnDataLoss="false").initialOffset()
    assert initial["Topic"]["broker-a"]["0"]["next"] == 0


def test_gaps_are_no_loss(store: StoreBuilder) -> None:
    """Half and rolled back messages have no entry; an entry without its record is passed over."""
    store.send("Topic", "0")
    reader = open_stream(store.root, **EARLIEST)
    position, _ = next_batch(reader, reader.initialOffset())
    for sys_flag in (0x4, 0xC):
        store.send("Topic", "half", sys_flag=sys_flag)
    assert next_batch(reader, position) == (position, [])
    store.append_entry("Topic", 0, 10, 100)
    store.send("Topic", "2")
    position, rows = next_batch(reader, position)
    assert [(row["queue_offset"], row["body"]) for row in rows] == [(2, b"2")]
    store.append_entry("Topic", 0, 10, 100)
    store.send("Topic", "4")
    restarted = open_stream(store.root, **EARLIEST)
    assert [row["queue_offset"] for row in next_batch(restarted, position)[1]] == [4]


def copy_of(store: StoreBuilder, name: str) -> Path:
    copy = store.root.parent / name / store.root.name
    shutil.copytree(store.root, copy)
    return copy


def test_a_store_that_was_restored_from_an_older_copy_is_told_from_a_topic_made_again(store: StoreBuilder) -> None:
    store.send_many("Topic", 5)
    older = copy_of(store, "backup")
    store.send_many("Topic", 5)
    position = read_all(store)
    with pytest.raises(DataLossError) as caught:
        next_batch(open_stream(older, **EARLIEST), position)
    first = str(caught.value).partition("\n")[0]
    assert "ends at 5, before offset 10 of the checkpoint: the store is older than the checkpoint" in first
    assert "Bring the newer store back" in first
    assert "expired" not in str(caught.value)
    with pytest.warns(RuntimeWarning, match="the store is older than the checkpoint"):
        _, rows = next_batch(open_stream(older, **EARLIEST, failOnDataLoss="false"), position)
    assert bodies(rows) == [f"Topic/0/{n}" for n in range(5)], "twice rather than never"


def test_a_batch_that_was_planned_on_a_newer_store_says_so(store: StoreBuilder) -> None:
    store.send_many("Topic", 5)
    older = copy_of(store, "backup")
    reader = open_stream(store.root, **EARLIEST)
    start = reader.initialOffset()
    store.send_many("Topic", 5)
    end, _ = next_batch(reader, start)
    with pytest.raises(
        DataLossError, match=r"ends at 5, before the end of a batch that the checkpoint has planned, 10"
    ):
        open_stream(older, **EARLIEST).partitions(start, end)


@pytest.mark.parametrize("fail_on_data_loss", ["true", "false"])
def test_a_checkpoint_of_another_topic_is_an_error_of_its_own(store: StoreBuilder, fail_on_data_loss: str) -> None:
    store.send_many("Topic", 5)
    store.send_many("Other", 5)
    options = {"topic": "Other", "startingOffsets": "earliest", "failOnDataLoss": fail_on_data_loss}
    reader = open_stream(store.root, **EARLIEST)
    start = reader.initialOffset()
    end, _ = next_batch(reader, start)
    for attempt in (
        lambda: next_batch(open_stream(store.root, **options), end),
        lambda: open_stream(store.root, **options).partitions(start, end),
    ):
        with pytest.raises(CheckpointOfAnotherQueryError, match="holds offsets of Topic, which the query's options"):
            attempt()


@pytest.mark.parametrize("fail_on_data_loss", ["true", "false"])
def test_a_checkpoint_of_another_broker_is_an_error_of_its_own(store: StoreBuilder, fail_on_data_loss: str) -> None:
    store.send_many("Topic", 5)
    position = read_all(store)
    options = {**EARLIEST, "failOnDataLoss": fail_on_data_loss}
    with pytest.raises(
        CheckpointOfAnotherQueryError, match=r"(?s)of broker broker-a, and path leads .* broker-z.*set brokerName"
    ):
        next_batch(open_stream(store.root, **options, brokerName="broker-z"), position)


def test_a_topic_that_is_not_asked_for_any_more_is_not_said_to_be_gone(store: StoreBuilder) -> None:
    store.send_many("Topic", 5)
    store.send_many("Other", 5)
    reader = open_stream(store.root, subscribe="Topic,Other", startingOffsets="earliest")
    position, _ = next_batch(reader, reader.initialOffset())
    with pytest.raises(
        DataLossError, match="Other/broker-a/0 at offset 5 is in the checkpoint, and the query's options"
    ):
        next_batch(open_stream(store.root, **EARLIEST), position)
    with pytest.warns(RuntimeWarning, match="do not ask for it any more"):
        end, rows = next_batch(open_stream(store.root, **EARLIEST, failOnDataLoss="false"), position)
    assert (set(end), rows) == ({"Topic"}, [])


def test_a_broker_whose_store_is_not_mounted_is_not_said_to_be_gone(store: StoreBuilder) -> None:
    store.send_many("Topic", 5)
    other = StoreBuilder(store.root.parent / "broker-b")
    other.send_many("Topic", 5)
    reader = open_stream([store.root, other.root], **EARLIEST)
    position, _ = next_batch(reader, reader.initialOffset())
    with pytest.raises(DataLossError, match=r"(?s)no store of broker broker-b is at path.*Mount the store of broker-b"):
        next_batch(open_stream(store.root, **EARLIEST), position)
