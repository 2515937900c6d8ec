"""Batches on their way to a broker that is busy, hangs up, says nothing, or answers out of order."""

from __future__ import annotations

import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial

import pyarrow as pa
import pytest

from spark_mq.client.blocking_connection import BlockingConnection
from spark_mq.client.errors import FrameRefusedError, RequestTimeoutError, ResponseError, WaitedInVainError
from spark_mq.client.settings import ClientSettings
from spark_mq.conditions import NotConfirmedError
from spark_mq.remoting import MessageQueue, RemotingCommand, RequestCode, make_response
from spark_mq.remoting.command import read_header
from spark_mq.remoting.messages import BatchedMessage, SendMessageRequest, decode_batch, encode_batch
from spark_mq.sink.broker_lane import BrokerLane, LaneStoppedError, LaneTerms, QueueBatch
from spark_mq.sink.columns import InputColumns
from spark_mq.sink.direct_writer import SentRows, send_over
from spark_mq.sink.live_routes import BodyLimit
from spark_mq.sink.options import LiveSinkOptions
from tests.support.fake_broker import FakeBroker

QUEUES = [MessageQueue("T", "broker-a", queue_id) for queue_id in range(3)]


class SendingBroker(FakeBroker):
    """Stores what is sent."""

    def __init__(self) -> None:
        super().__init__([])
        self.stored: dict[int, list[bytes]] = defaultdict(list)
        self.in_flight = 0
        self.status = 0

    def pull(self, request: RemotingCommand) -> RemotingCommand:
        header = read_header(SendMessageRequest, request)
        queue = self.stored[header.queue_id]
        bodies = [message.body for message in decode_batch(request.body)] if header.is_batch else [bytes(request.body)]
        fields = {"msgId": "id", "queueId": str(header.queue_id), "queueOffset": str(len(queue))}
        queue += bodies
        return make_response(request, self.status, None, fields)


def refused(code: int) -> Callable[[FakeBroker, RemotingCommand], RemotingCommand]:
    return lambda broker, request: make_response(request, code, "no")


def stored_and_hung_up(broker: FakeBroker, request: RemotingCommand) -> None:
    broker.pull(request)


def silent(broker: FakeBroker, request: RemotingCommand) -> bytes:
    return b""


def batches(count: int, queues: int = 3) -> list[QueueBatch]:
    made = []
    for number in range(count):
        items = [BatchedMessage(b"%d-%d" % (number, row), b"", 0) for row in range(1 + number % 3)]
        made.append(QueueBatch(QUEUES[number % queues], encode_batch(items), len(items), 0))
    return made


def bodies_of(sent: list[QueueBatch]) -> dict[int, list[bytes]]:
    found: dict[int, list[bytes]] = defaultdict(list)
    for batch in sent:
        found[batch.queue.queue_id] += [message.body for message in decode_batch(batch.body)]
    return dict(found)


def send(
    broker: SendingBroker, sent: list[QueueBatch], *, is_exact: bool, timeout_ms: int = 5_000, retry_ms: int = 30_000
) -> BrokerLane:
    """Everything, by one lane. Raises what stopped it."""
    settings = ClientSettings(("unused:1",))
    confirmed: list[QueueBatch] = []
    lock = threading.Lock()

    def take(batch: QueueBatch, answer: RemotingCommand) -> None:
        with lock:
            confirmed.append(batch)

    terms = LaneTerms("G", is_exact, timeout_ms, retry_ms, take)
    lane = BrokerLane(lambda: BlockingConnection(broker.address, settings), terms)
    try:
        for batch in sent:
            lane.offer(batch)
        lane.finish()
    finally:
        lane.stop()
    assert bodies_of(confirmed) == bodies_of(sent)
    return lane


@pytest.mark.parametrize("is_exact", [True, False])
def test_every_batch_is_stored_in_its_queue_and_in_order(is_exact: bool) -> None:
    sent = batches(40)
    with SendingBroker() as broker:
        lane = send(broker, sent, is_exact=is_exact)
        assert dict(broker.stored) == bodies_of(sent)
        assert lane.statuses == {0: sum(batch.row_count for batch in sent)}
        assert {request.code for request in broker.requests} == {
            RequestCode.SEND_BATCH_MESSAGE,
            RequestCode.SEND_MESSAGE_V2,
        }


@pytest.mark.parametrize("is_exact", [True, False])
def test_a_batch_that_a_busy_broker_refuses_goes_again_before_those_behind_it(is_exact: bool) -> None:
    sent = batches(12)
    with SendingBroker() as broker:
        broker.answers = [refused(2), refused(14), refused(2)]
        send(broker, sent, is_exact=is_exact)
        assert dict(broker.stored) == bodies_of(sent)


def test_at_least_once_sends_again_over_a_new_connection_what_had_no_answer() -> None:
    sent = batches(4, queues=1)
    with SendingBroker() as broker:
        broker.answers = [stored_and_hung_up]
        send(broker, sent, is_exact=False)
        first, *rest = bodies_of(sent[:1])[0], *bodies_of(sent)[0]
        assert broker.stored[0] == [*first, *rest], "the first batch is there twice, nothing is lost"
        assert broker.connections == 2


@pytest.mark.parametrize(
    "fault", [stored_and_hung_up, silent, refused(1), refused(503)], ids=["hung up", "silent", "1", "503"]
)
def test_exactly_once_stops_in_doubt_and_never_connects_again(
    fault: Callable[[FakeBroker, RemotingCommand], RemotingCommand | bytes | None],
) -> None:
    with SendingBroker() as broker:
        broker.answers = [fault]
        with pytest.raises(LaneStoppedError) as stopped:
            send(broker, batches(4, queues=1), is_exact=True, timeout_ms=300)
        assert stopped.value.is_doubt
        assert broker.connections == 1
        assert len(broker.requests) == 1, "nothing is sent behind the one in doubt"


@pytest.mark.parametrize("is_exact", [True, False])
def test_a_refusal_that_does_not_pass_stops_without_a_doubt(is_exact: bool) -> None:
    with SendingBroker() as broker:
        broker.answers = [refused(13)]
        with pytest.raises(LaneStoppedError) as stopped:
            send(broker, batches(1), is_exact=is_exact)
        assert not stopped.value.is_doubt
        assert isinstance(stopped.value.cause, ResponseError)
        assert stopped.value.cause.code == 13


def test_the_time_for_tries_has_an_end() -> None:
    with SendingBroker() as broker:
        broker.answers = [refused(2)] * 50
        with pytest.raises(LaneStoppedError) as stopped:
            send(broker, batches(1), is_exact=False, retry_ms=500)
        assert isinstance(stopped.value.cause, WaitedInVainError)
        assert isinstance(stopped.value.cause.cause, ResponseError)
        assert re.search(r"waited 0\.\d s for broker broker-a \(SEND_MESSAGE_V2", stopped.value.describe())
        broker.answers = [silent] * 50
        with pytest.raises(LaneStoppedError) as stopped:
            send(broker, batches(1), is_exact=False, timeout_ms=200, retry_ms=500)
        assert isinstance(stopped.value.cause, WaitedInVainError)
        assert isinstance(stopped.value.cause.cause, RequestTimeoutError)


def no_frame(broker: FakeBroker, request: RemotingCommand) -> bytes:
    return b"HTTP/1.1 400 Bad Request\r\n\r\n"


def test_at_least_once_stops_at_once_where_the_other_side_does_not_speak_the_protocol() -> None:
    with SendingBroker() as broker:
        broker.answers = [no_frame]
        with pytest.raises(LaneStoppedError) as stopped:
            send(broker, batches(1), is_exact=False)
        assert isinstance(stopped.value.cause, FrameRefusedError)
        assert broker.connections == 1, "it is not tried again"


@pytest.mark.parametrize("fault", [None, stored_and_hung_up], ids=["answered", "hung up"])
def test_a_lane_that_is_given_up_sends_nothing_more_and_hears_the_answer_that_is_due(
    fault: Callable[[FakeBroker, RemotingCommand], None] | None,
) -> None:
    is_sent, may_answer = threading.Event(), threading.Event()
    heard: list[int] = []

    def slow(broker: FakeBroker, request: RemotingCommand) -> RemotingCommand | None:
        is_sent.set()
        may_answer.wait(30)
        return SendingBroker.pull(broker, request) if fault is None else fault(broker, request)

    with SendingBroker() as broker:
        broker.answers = [slow]
        terms = LaneTerms("G", False, 5_000, 30_000, lambda batch, answer: heard.append(batch.row_count))
        lane = BrokerLane(lambda: BlockingConnection(broker.address, ClientSettings(("unused:1",))), terms)
        for batch in batches(4, queues=1):
            lane.offer(batch)
        assert is_sent.wait(30)
        giving_up = threading.Thread(target=lane.give_up)
        giving_up.start()
        while not lane._is_given_up:
            time.sleep(0.001)
        may_answer.set()
        giving_up.join(30)
        assert not giving_up.is_alive()
        assert len(broker.requests) == 1
        assert heard == ([1] if fault is None else [])
        lane.stop()


def test_rows_are_counted_by_the_status_of_their_answer() -> None:
    with SendingBroker() as broker:
        broker.status = 10
        assert send(broker, batches(3), is_exact=True).statuses == {10: 6}


@pytest.mark.parametrize("acks", ["all", "stored"])
def test_at_least_once_a_task_fails_on_an_answer_that_is_not_safe_unless_the_user_takes_it(acks: str) -> None:
    with SendingBroker() as broker:
        broker.status = 12
        options = LiveSinkOptions.parse({"nameServer": "unused:1", "topic": "T", "acks": acks}, "batch")
        frames = iter([pa.record_batch({"body": [b"a", b"b", b"c"]})])
        task = partial(send_over, FixedRoutes(broker.address), options, InputColumns(("body",)), 0, bytes(8), frames)
        if acks == "all":
            with pytest.raises(NotConfirmedError, match="FLUSH_SLAVE_TIMEOUT"):
                task()
        else:
            assert task() == SentRows(3, {12: 3})
        assert sum(map(len, broker.stored.values())) > 0


def test_a_write_may_have_more_partitions_than_a_unique_key_counts() -> None:
    with SendingBroker() as broker:
        options = LiveSinkOptions.parse({"nameServer": "unused:1", "topic": "T"}, "batch")
        frames = iter([pa.record_batch({"body": [b"a"]})])
        sent = send_over(FixedRoutes(broker.address), options, InputColumns(("body",)), 70_000, bytes(8), frames)
        assert sent == SentRows(1, {0: 1})


class FixedRoutes:
    """Routes to one broker."""

    def __init__(self, address: str) -> None:
        self._address = address

    def queues_of(self, topic: str) -> tuple[MessageQueue, ...]:
        return tuple(QUEUES)

    def queue_at(self, topic: str, place: int) -> MessageQueue:
        return QUEUES[place]

    def is_static(self, topic: str) -> bool:
        return False

    def body_limit(self, topic: str) -> BodyLimit:
        return BodyLimit(4 << 20, "")

    def address_of(self, broker_name: str, topic: str) -> str:
        return self._address

    def broker_at(self, address: str) -> str:
        raise AssertionError(address)
