"""A query's driver while brokers come, go and fail: what it waits for, and what it says when the time is over."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from spark_mq.client.errors import ResponseError
from spark_mq.conditions import DataLossError, SparkMqError
from spark_mq.remoting import RemotingCommand, RequestCode, make_response
from spark_mq.source.live_cluster import LiveCluster
from spark_mq.source.offsets import QueueId
from spark_mq.source.options import SourceOptions
from spark_mq.source.partition_reader import QueuePartition
from spark_mq.source.stream_reader import StreamReader
from storage.rules.response_codes import ResponseCode
from tests.support.fake_broker import FIRST_TIME_MS, LOOKED_AT, Answer, FakeBroker, FakeCluster

COUNT = 40
QUEUE = QueueId("TopicA", "broker-a", 0)


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(range(COUNT)) as running:
        yield running


def options_of(cluster: FakeCluster, **options: str) -> SourceOptions:
    given = {"nameServer": cluster.address, "subscribe": "TopicA", "startingOffsets": "earliest", "pullTimeout": "1s"}
    return SourceOptions.parse({**given, **options}, "streaming")


def stream(cluster: FakeCluster, **options: str) -> StreamReader:
    parsed = options_of(cluster, **options)
    return StreamReader(parsed, parsed.column_names)


def first_batch(reader: StreamReader) -> tuple[dict[str, Any], dict[str, Any]]:
    start = reader.initialOffset()
    return start, reader.latestOffset(start, reader.getDefaultReadLimit())


def offsets(reader: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    parts = [part for part in reader.partitions(start, end) if isinstance(part, QueuePartition)]
    batches = [batch for part in parts for split in part.splits for batch in split.read()]
    return [offset for batch in batches for offset in batch.column("queue_offset").to_pylist()]


def of_pull(answer: Answer) -> Answer:
    """What answers the next pull, and no other request."""

    def answered(broker: FakeBroker, request: RemotingCommand) -> RemotingCommand | bytes | None:
        if request.code == RequestCode.PULL_MESSAGE:
            return answer(broker, request)
        broker.answers.insert(0, answered)
        return broker.pull(request)

    return answered


def closed_store(_: FakeBroker, request: RemotingCommand) -> RemotingCommand:
    return make_response(request, ResponseCode.SYSTEM_ERROR, "store getMessage return null")


def busy(_: FakeBroker, request: RemotingCommand) -> RemotingCommand:
    return make_response(request, ResponseCode.SYSTEM_BUSY, "[TIMEOUT_CLEAN_QUEUE]")


def hang_up(*_: object) -> None:
    return None


def test_a_broker_that_fails_between_look_and_pull_is_asked_again(cluster: FakeCluster) -> None:
    reader = stream(cluster)
    start = reader.initialOffset()
    cluster.answers = [of_pull(answer) for answer in (closed_store, busy, hang_up, hang_up)]
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert not cluster.answers
    before = [100 * (COUNT - 1), FIRST_TIME_MS + COUNT - 1]
    assert end == {"TopicA": {"broker-a": {"0": {"next": COUNT, "before": before}}}}


def test_a_broker_that_goes_on_failing_is_an_error_of_the_broker(cluster: FakeCluster) -> None:
    reader = stream(cluster)
    start = reader.initialOffset()
    cluster.refused[RequestCode.PULL_MESSAGE] = ResponseCode.SYSTEM_BUSY
    with pytest.raises(SparkMqError, match="SYSTEM_BUSY") as caught:
        reader.latestOffset(start, reader.getDefaultReadLimit())
    assert caught.value.condition == "SPARK_MQ_BROKER_REFUSED"


def test_a_driver_that_gets_bytes_of_the_next_file_for_a_deleted_record_asks_again(cluster: FakeCluster) -> None:
    """Until the broker has moved the queue's minimum (`FakeBroker.first_left`)."""
    reader = stream(cluster, maxOffsetsPerTrigger="1", failOnDataLoss="false")
    start = reader.initialOffset()
    cluster.deleted_before, cluster.first_left = 5, b"\0\0\3\0" + bytes(1_000)

    def moved(broker: FakeBroker, request: RemotingCommand) -> RemotingCommand:
        broker.minimum, broker.first_left = 5, None
        return broker.pull(request)

    cluster.answers = [of_pull(answer) for answer in (FakeBroker.pull, FakeBroker.pull, moved)]
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert not cluster.answers
    assert end == {"TopicA": {"broker-a": {"0": {"next": 1, "before": None}}}}


def test_a_restarted_query_waits_for_a_broker_that_registers_late(cluster: FakeCluster) -> None:
    _, end = first_batch(stream(cluster))
    cluster.records += [None]
    for prepare in (False, True):
        cluster.unregistered = 4
        reader = stream(cluster)
        if prepare:
            reader.prepareForTriggerAvailableNow()
        later = reader.latestOffset(end, reader.getDefaultReadLimit())
        assert later["TopicA"]["broker-a"]["0"]["next"] == COUNT + 1


def test_a_batch_that_is_repeated_waits_for_a_broker_that_registers_late(cluster: FakeCluster) -> None:
    start, end = first_batch(stream(cluster))
    cluster.unregistered = 4
    assert offsets(stream(cluster), start, end) == list(range(COUNT))


@pytest.mark.parametrize("repeated", [False, True])
def test_a_broker_that_does_not_register_is_no_data_loss(cluster: FakeCluster, repeated: bool) -> None:
    start, end = first_batch(stream(cluster))
    cluster.unregistered = 1_000
    reader = stream(cluster)
    plan = (
        partial(reader.partitions, start, end)
        if repeated
        else partial(reader.latestOffset, end, reader.getDefaultReadLimit())
    )
    with pytest.raises(SparkMqError) as caught:
        plan()
    assert caught.value.condition == "SPARK_MQ_BROKER_UNREACHABLE"


@pytest.mark.filterwarnings("ignore:.*SPARK_MQ_DATA_LOSS")
def test_a_batch_that_is_repeated_goes_on_without_a_topic_that_is_gone(cluster: FakeCluster) -> None:
    start, end = first_batch(stream(cluster))
    cluster.has_topic = False
    with pytest.raises(DataLossError, match="queue TopicA/broker-a/0 at offset 0 is gone"):
        stream(cluster).partitions(start, end)
    assert offsets(stream(cluster, failOnDataLoss="false"), start, end) == []


@pytest.mark.parametrize("searched", [0, 6, 9, 12, COUNT])
def test_a_time_is_where_the_first_message_of_it_is_whatever_the_broker_finds(searched: int) -> None:
    times = [*range(6), *[50] * 10, *range(100, 124)]
    with FakeCluster(times) as cluster:
        cluster.searched = searched
        live = LiveCluster(options_of(cluster))
        assert live.offset_by_time(QUEUE, FIRST_TIME_MS + 50) == 6
        assert live.offset_by_time(QUEUE, FIRST_TIME_MS + 49) == 6
        assert live.offset_by_time(QUEUE, FIRST_TIME_MS + 51) == 16
        assert live.offset_by_time(QUEUE, FIRST_TIME_MS) == 0
        assert live.offset_by_time(QUEUE, FIRST_TIME_MS + 124) is None
        live.close()


def test_an_expression_is_asked_about_before_there_is_a_topic(cluster: FakeCluster) -> None:
    """A pull with one that does not compile filters nothing."""
    cluster.refused[RequestCode.CHECK_CLIENT_CONFIG] = 23
    with pytest.raises(Exception, match="refused"):
        LiveCluster(
            SourceOptions.parse(
                {
                    "nameServer": cluster.address,
                    "subscribePattern": "Later.*",
                    "subExpression": "a >",
                    "expressionType": "SQL92",
                },
                "streaming",
            )
        )


def test_a_broker_that_is_new_to_a_running_query_is_asked_about_the_expression_before_it_is_read(
    cluster: FakeCluster,
) -> None:
    cluster.understands = True
    live = LiveCluster(options_of(cluster, subExpression="a > 1", expressionType="SQL92"))
    codes = [request.code for request in cluster.requests]
    assert codes.count(RequestCode.CHECK_CLIENT_CONFIG) == 1
    with FakeCluster(range(COUNT)) as other:  # another release, say
        cluster.broker_address = other.address
        other.refused[RequestCode.CHECK_CLIENT_CONFIG] = 23
        live._view._looked_ms, live._view._names_due_ms = None, 0
        with pytest.raises(ResponseError, match="refused"):
            live.refresh()
        assert RequestCode.PULL_MESSAGE not in [request.code for request in other.requests]
    live.close()


@pytest.mark.parametrize("deleted", [1, 25, COUNT - 1])
def test_who_asks_for_the_earliest_message_has_lost_nothing_where_a_broker_has_not_moved_the_minimum_yet(
    cluster: FakeCluster, deleted: int
) -> None:
    """It has deleted a file of its log; for a while it says that the queue begins at 0."""
    cluster.deleted_before = deleted
    assert cluster.minimum == 0
    reader = stream(cluster)
    assert offsets(reader, *first_batch(reader)) == list(range(deleted, COUNT))
    reader.stop()


def test_the_earliest_message_is_looked_for_past_all_that_have_expired() -> None:
    with FakeCluster(range(3 * LOOKED_AT)) as cluster:
        cluster.deleted_before = 2 * LOOKED_AT + 5
        opened = LiveCluster(options_of(cluster))
        assert opened.earliest([QUEUE]) == {QUEUE: 2 * LOOKED_AT + 5}
        opened.close()


def test_what_expires_behind_a_known_start_is_a_loss_as_before(cluster: FakeCluster) -> None:
    reader = stream(cluster)
    start, end = first_batch(reader)
    cluster.deleted_before = 10
    with pytest.raises(SparkMqError, match=r"offsets \[0, 10\) expired before they were read"):
        offsets(reader, start, end)
    reader.stop()
