"""Sends against planned brokers: which are tried again and where, what a result says, back-pressure, time-outs, and the end."""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from spark_mq.client.admin import Admin
from spark_mq.client.errors import (
    BrokerUnreachableError,
    ClientClosedError,
    ClientError,
    ClientSettingError,
    FrameRefusedError,
    GroupTakenError,
    MalformedResponseError,
    MessageRefusedError,
    RequestIllegalError,
    RequestTimeoutError,
    ResponseError,
    SendFailedError,
    TooManyInFlightError,
    TopicRouteNotFoundError,
)
from spark_mq.client.event_loop import THREAD_NAME, run
from spark_mq.client.instance import ClientInstance
from spark_mq.client.message import Message, MessageQueue
from spark_mq.client.producer import Producer, by_hash
from spark_mq.client.send_results import SendStatus
from spark_mq.client.settings import ProducerSettings
from spark_mq.remoting import RemotingCommand, RequestCode, make_response, read_body
from spark_mq.remoting.consumers import HeartbeatData
from tests.client.conftest import in_a_child
from tests.client.planned_cluster import (
    Plan,
    PlannedBroker,
    PlannedCluster,
    hang_up,
    keep_silent,
    less_safely,
    planned_cluster,
    refuse,
    store,
)
from tests.support.planned_server import Peer

MESSAGE = Message("T", b"body", tags="TagA", keys="k")


@pytest.fixture
def cluster() -> Iterator[PlannedCluster]:
    with planned_cluster("a", "b", "c") as made:
        yield made


@contextmanager
def opened(cluster: PlannedCluster, **options: Any) -> Iterator[Producer]:
    with Producer(cluster.settings, "G", ProducerSettings(**options)) as producer:
        yield producer


def test_a_result_says_all_that_the_broker_said(cluster: PlannedCluster) -> None:
    with opened(cluster) as producer:
        result = producer.send(MESSAGE)
    assert result.status is SendStatus.SEND_OK
    assert len(result.message_id) == 32
    assert result.transaction_id == result.message_id
    assert result.offset_message_id.startswith("7F00000100002A9F")
    assert result.queue.topic == "T"
    assert result.queue.broker_name in cluster.brokers
    assert (result.queue_offset, result.recall_handle, result.region, result.is_traced) == (
        0,
        None,
        "DefaultRegion",
        True,
    )
    (header,) = cluster.sends
    assert header.producer_group == "G"
    assert (header.default_topic, header.default_topic_queue_count) == ("TBW102", 4)
    assert (header.topic, header.broker_name) == ("T", result.queue.broker_name)
    assert header.queue_id == result.queue.queue_id
    assert abs(header.born_time_ms - time.time() * 1000) < 60_000


def test_sends_take_turns_over_all_queues_of_all_brokers(cluster: PlannedCluster) -> None:
    with opened(cluster) as producer:
        chosen = Counter(producer.send(MESSAGE).queue for _ in range(24))
    assert set(chosen.values()) == {2}
    assert len(chosen) == 12


@pytest.mark.parametrize("code", [17, 14, 1, 2, 16, 204, 205])
def test_a_refusal_that_may_be_this_broker_s_alone_is_tried_on_another(cluster: PlannedCluster, code: int) -> None:
    cluster.plan(refuse(code), "a", "b")
    with opened(cluster, retries=5) as producer:
        for _ in range(12):
            assert producer.send(MESSAGE).queue.broker_name == "c"


def test_the_next_try_never_goes_to_the_broker_that_has_just_failed(cluster: PlannedCluster) -> None:
    cluster.plan(refuse(2))
    with opened(cluster, retries=20) as producer, pytest.raises(SendFailedError) as raised:
        producer.send(MESSAGE)
    brokers = [broker for broker, _ in raised.value.tries]
    assert len(brokers) == 21
    assert all(first != second for first, second in itertools.pairwise(brokers))


def test_any_other_refusal_is_told_at_once(cluster: PlannedCluster) -> None:
    cluster.plan(refuse(13, "the message is illegal"))
    with opened(cluster) as producer, pytest.raises(ResponseError, match=r"13 .MESSAGE_ILLEGAL.* topic T"):
        producer.send(MESSAGE)
    assert len(cluster.sends) == 1


def test_an_asynchronous_send_gets_a_refusal_at_once_and_is_tried_again_after_a_broken_connection(
    cluster: PlannedCluster,
) -> None:
    cluster.plan(refuse(2))
    with opened(cluster) as producer:
        with pytest.raises(ResponseError, match="SYSTEM_BUSY"):
            producer.send_async(MESSAGE).result(10)
        cluster.plan(hang_up, "a", "b")
        cluster.plan(store, "c")
        results = [producer.send_async(MESSAGE) for _ in range(12)]
        found = [future.result(10) for future in results if future.exception(10) is None]
    assert found
    assert {result.queue.broker_name for result in found} == {"c"}


def test_an_asynchronous_send_goes_on_where_a_queue_has_moved_as_often_as_there_are_tries(
    cluster: PlannedCluster,
) -> None:
    cluster.plan(refuse(501))
    with opened(cluster) as producer, pytest.raises(SendFailedError, match="NOT_LEADER_FOR_QUEUE"):
        producer.send_async(MESSAGE).result(10)
    assert len(cluster.sends) == 3


def test_each_try_has_the_queue_and_the_name_of_its_own_broker(cluster: PlannedCluster) -> None:
    """Java's asynchronous retry sends queue id and broker name of the first choice to another broker."""
    cluster.brokers["a"].plan = hang_up
    with opened(cluster) as producer:
        for _ in range(12):
            producer.send_async(MESSAGE).result(10)
    for name, broker in cluster.brokers.items():
        assert {header.broker_name for header in broker.sends} == {name}


def test_where_the_caller_chose_the_queue_a_send_that_is_waited_for_is_not_tried_again(
    cluster: PlannedCluster,
) -> None:
    cluster.brokers["b"].plan = refuse(2)
    with opened(cluster) as producer:
        with pytest.raises(ResponseError):
            producer.send(MESSAGE, queue=MessageQueue("T", "b", 3))
        with pytest.raises(ResponseError):
            producer.send(MESSAGE, selector=lambda queues, message, arg: queues[arg], arg=5)
    assert [header.queue_id for header in cluster.brokers["b"].sends] == [3, 1]


def test_a_selector_gets_queues_message_and_argument_in_the_caller_s_thread(cluster: PlannedCluster) -> None:
    seen: list[Any] = []

    def select(queues: Any, message: Message, arg: object) -> MessageQueue:
        seen.append((len(queues), message, arg, threading.current_thread()))
        return MessageQueue("T", "c", 2)

    with opened(cluster) as producer:
        assert producer.send(MESSAGE, selector=select, arg="x").queue == MessageQueue("T", "c", 2)
        assert producer.send_async(MESSAGE, queue=MessageQueue("T", "a", 1)).result(10).queue.queue_id == 1
        chosen = {producer.send(MESSAGE, selector=by_hash, arg="order-1").queue for _ in range(5)}
    assert seen == [(12, MESSAGE, "x", threading.current_thread())]
    assert len(chosen) == 1


@pytest.mark.parametrize(
    ("code", "status"), [(10, "FLUSH_DISK_TIMEOUT"), (11, "SLAVE_NOT_AVAILABLE"), (12, "FLUSH_SLAVE_TIMEOUT")]
)
def test_a_message_that_is_stored_less_safely_is_a_result(cluster: PlannedCluster, code: int, status: str) -> None:
    cluster.plan(less_safely(code))
    with opened(cluster) as producer:
        assert producer.send(MESSAGE).status.name == status
        assert producer.send_async(MESSAGE).result(10).status.name == status
    assert len(cluster.sends) == 2


def test_it_is_sent_once_more_where_the_producer_wants_ok(cluster: PlannedCluster) -> None:
    cluster.plan(less_safely(10), "a", "b")
    with opened(cluster, retries_unless_ok=True, retries=9) as producer:
        assert producer.send(MESSAGE).status is SendStatus.SEND_OK
    cluster.plan(less_safely(10))
    with opened(cluster, retries_unless_ok=True) as producer:
        assert producer.send(MESSAGE).status is SendStatus.FLUSH_DISK_TIMEOUT


def test_what_goes_once_more_for_want_of_an_ok_goes_to_another_broker(cluster: PlannedCluster) -> None:
    """Java: DefaultMQProducerImpl.sendDefaultImpl (lastBrokerName), setRetryAnotherBrokerWhenNotStoreOK."""
    order: list[str] = []

    def noted(broker: PlannedBroker, peer: Peer, command: RemotingCommand) -> None:
        order.append(broker.name)
        peer.send(broker.stored(command, 10))

    cluster.plan(noted)
    with opened(cluster, retries_unless_ok=True, retries=1) as producer:
        for _ in range(8):
            producer.send(MESSAGE)
    pairs = list(zip(order[::2], order[1::2], strict=True))
    assert len(pairs) == 8
    assert not [pair for pair in pairs if pair[0] == pair[1]]


@pytest.mark.parametrize(
    ("plan", "error"),
    [
        (lambda broker, peer, command: peer.send(make_response(command, 0)), MalformedResponseError),
        (lambda broker, peer, command: peer.send_bytes(b"\xff" * 8), FrameRefusedError),
    ],
    ids=["a field is missing", "no frame"],
)
def test_an_answer_that_cannot_be_read_is_no_reason_to_send_twice(
    cluster: PlannedCluster, plan: Plan, error: type[ClientError]
) -> None:
    cluster.plan(plan)
    with opened(cluster) as producer:
        with pytest.raises(error):
            producer.send(MESSAGE)
        assert isinstance(producer.send_async(MESSAGE).exception(10), error)
    assert len(cluster.sends) == 2


def test_the_answer_to_a_large_batch_has_a_large_header(cluster: PlannedCluster) -> None:
    """One id of 32 digits for each message, as CommitLog.asyncPutMessages gives them."""
    ids = ",".join(f"{n:032X}" for n in range(50_000))

    def answer(broker: PlannedBroker, peer: Peer, command: RemotingCommand) -> None:
        stored = broker.stored(command)
        peer.send(stored._replace(ext_fields=dict(stored.ext_fields or {}) | {"msgId": ids}))

    cluster.plan(answer)
    with opened(cluster) as producer:
        assert producer.send_batch([MESSAGE, MESSAGE]).offset_message_id == ids
    assert len(cluster.sends) == 1


def test_a_topic_that_is_not_there_goes_to_the_queues_that_it_will_get(cluster: PlannedCluster) -> None:
    with opened(cluster) as producer:
        queues = producer.queues("New")
        assert len(queues) == 12  # 4 of TBW102's 8 at each broker
        assert producer.send(Message("New", b"body")).queue in queues


def test_without_any_route_it_says_so(cluster: PlannedCluster) -> None:
    del cluster.topics["TBW102"]
    with opened(cluster) as producer:
        with pytest.raises(TopicRouteNotFoundError, match="TBW102"):
            producer.send(Message("New", b"body"))
        assert isinstance(producer.send_async(Message("New", b"body")).exception(10), TopicRouteNotFoundError)


def test_no_answer_ends_with_the_time_out(cluster: PlannedCluster) -> None:
    cluster.plan(keep_silent)
    with opened(cluster) as producer:
        begun = time.monotonic()
        futures = [producer.send_async(MESSAGE, timeout_ms=300) for _ in range(50)]
        with pytest.raises(RequestTimeoutError, match=r"within \d+ ms"):
            producer.send(MESSAGE, timeout_ms=300)
        done, waiting = concurrent.futures.wait(futures, 10)
        assert not waiting
        assert all(isinstance(future.exception(), RequestTimeoutError) for future in done)
        assert time.monotonic() - begun < 5
        assert producer.in_flight_count == 0


def test_looking_for_a_broker_s_address_takes_of_the_time_that_a_send_has(cluster: PlannedCluster) -> None:
    broker = cluster.brokers["b"]
    broker.broker_id = 1  # no master, so that it is looked for
    broker.plan = keep_silent
    with opened(cluster, async_retries=0) as producer:
        producer.send(MESSAGE)
        broker.broker_id = 0
        answer = cluster.name_server.plan
        cluster.name_server.plan = lambda peer, command: (time.sleep(0.3), answer(peer, command))[1]
        error = producer.send_async(MESSAGE, MessageQueue("T", "b", 0), timeout_ms=800).exception(10)
    assert isinstance(error, RequestTimeoutError)
    assert len(broker.sends) == 1
    assert error.timeout_ms <= 500


def test_a_send_that_cannot_be_made_after_its_broker_was_found_ends(cluster: PlannedCluster) -> None:
    broker, queue = cluster.brokers["b"], MessageQueue("T", "b", 0)
    with (
        opened(cluster, max_message_bytes=20 << 20, compress_over_bytes=None) as producer,
        Admin(cluster.settings) as admin,
    ):
        producer.send(MESSAGE, queue)  # a connection, so that the request is made at once
        broker.broker_id = 1
        admin.route("T")  # producer and admin share what is known
        broker.broker_id = 0
        future = producer.send_async(Message("T", bytes(17 << 20)), queue)
        assert isinstance(future.exception(10), RequestIllegalError)  # more than a frame has room for
        assert producer.in_flight_count == 0


def test_one_try_may_be_given_less_time_so_that_another_is_left(cluster: PlannedCluster) -> None:
    cluster.plan(keep_silent, "a", "b")
    with opened(cluster, max_try_timeout_ms=250, retries=4) as producer:
        assert producer.send(MESSAGE).queue.broker_name == "c"


def test_a_slow_broker_is_avoided_where_the_producer_wants_that(cluster: PlannedCluster) -> None:
    cluster.brokers["a"].plan = refuse(2)
    with opened(cluster, avoids_slow_brokers=True, retries=3) as producer:
        for _ in range(40):
            producer.send(MESSAGE)
    assert len(cluster.brokers["a"].sends) <= 1


def test_a_oneway_message_arrives_and_nobody_answers(cluster: PlannedCluster) -> None:
    with opened(cluster) as producer:
        producer.send_oneway(MESSAGE, queue=MessageQueue("T", "b", 2))
        (command,) = cluster.brokers["b"].server.until(RequestCode.SEND_MESSAGE_V2)
        assert command.is_oneway
        assert cluster.brokers["b"].header(command).queue_id == 2
        del cluster.topics["TBW102"]
        with pytest.raises(TopicRouteNotFoundError):
            producer.send_oneway(Message("New", b"body"))


def test_a_batch_is_one_request(cluster: PlannedCluster) -> None:
    with opened(cluster) as producer:
        result = producer.send_batch([Message("T", b"%d" % number) for number in range(5)])
        later = producer.send_batch_async([MESSAGE, MESSAGE], queue=MessageQueue("T", "a", 0)).result(10)
    assert len(result.message_id.split(",")) == 5
    assert later.queue == MessageQueue("T", "a", 0)
    headers = cluster.sends
    assert [header.is_batch for header in headers] == [True, True]
    assert len(cluster.commands(RequestCode.SEND_BATCH_MESSAGE)) == 2


def held(gate: threading.Event) -> Plan:
    """A plan: answers wait until the gate is open."""

    def plan(broker: PlannedBroker, peer: Peer, command: RemotingCommand) -> None:
        gate.wait(10)
        peer.send(broker.stored(command))

    return plan


def test_only_so_many_are_in_flight_and_a_sender_waits_for_room(cluster: PlannedCluster) -> None:
    gate = threading.Event()
    cluster.plan(held(gate))
    with opened(cluster, max_in_flight=5) as producer:
        futures = [producer.send_async(MESSAGE) for _ in range(5)]
        with pytest.raises(TooManyInFlightError, match="5 messages of 20 bytes"):
            producer.send_async(MESSAGE, timeout_ms=50)
        assert not any(future.done() for future in futures)
        threading.Timer(0.05, gate.set).start()
        futures.append(producer.send_async(MESSAGE))  # waits
        assert all(future.result(10) for future in futures)


def test_with_refuse_it_does_not_wait_and_bytes_count_too(cluster: PlannedCluster) -> None:
    gate = threading.Event()
    cluster.plan(held(gate))
    with opened(cluster, max_in_flight_bytes=100, when_full="refuse") as producer:
        large = producer.send_async(Message("T", bytes(500)))  # alone it always fits
        with pytest.raises(TooManyInFlightError, match="1 messages of 500 bytes"):
            producer.send_async(MESSAGE)
        gate.set()
        large.result(10)
        producer.send_async(MESSAGE).result(10)


def test_callbacks_run_neither_on_the_loop_nor_for_nothing(cluster: PlannedCluster) -> None:
    seen: list[str] = []
    done = threading.Event()

    def note(future: concurrent.futures.Future[Any]) -> None:
        seen.append(threading.current_thread().name)
        done.set()

    with opened(cluster) as producer:
        future = producer.send_async(MESSAGE)
        future.add_done_callback(note)
        assert done.wait(10)
        assert not future.cancel()
    assert seen
    assert THREAD_NAME not in seen


def test_many_threads_share_a_producer(cluster: PlannedCluster) -> None:
    with opened(cluster) as producer, concurrent.futures.ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: producer.send(MESSAGE), range(200)))
        assert len({result.message_id for result in results}) == 200
    assert len(cluster.sends) == 200


def test_closing_waits_for_what_is_in_flight_and_leaves_the_brokers(cluster: PlannedCluster) -> None:
    gate = threading.Event()
    cluster.plan(held(gate))
    producer = Producer(cluster.settings, "G")
    futures = [producer.send_async(MESSAGE) for _ in range(3)]
    threading.Timer(0.1, gate.set).start()
    producer.close()
    assert all(future.result(0) for future in futures)
    heartbeats = cluster.commands(RequestCode.HEART_BEAT)
    assert "G" in {data.group_name for beat in heartbeats for data in read_body(HeartbeatData, beat.body).producers}
    left = cluster.commands(RequestCode.UNREGISTER_CLIENT)
    assert {(command.ext_fields or {}).get("producerGroup") for command in left} == {"G"}
    producer.close()
    with pytest.raises(ClientClosedError, match="producer G: it is closed"):
        producer.send(MESSAGE)


def test_closing_does_not_wait_for_ever(cluster: PlannedCluster) -> None:
    cluster.plan(keep_silent)
    producer = Producer(cluster.settings, "G")
    future = producer.send_async(MESSAGE, timeout_ms=60_000)
    producer.close(timeout_ms=100)
    with pytest.raises(ClientClosedError):
        future.result(5)
    assert producer.in_flight_count == 0


def test_brokers_that_die_amid_sends_leave_no_future_without_an_end(cluster: PlannedCluster) -> None:
    with opened(cluster) as producer:
        futures = [producer.send_async(MESSAGE, timeout_ms=20_000) for _ in range(200)]
        cluster.brokers["a"].server.close()
        futures += [producer.send_async(MESSAGE, timeout_ms=20_000) for _ in range(200)]
        done, waiting = concurrent.futures.wait(futures, 60)
    assert not waiting
    errors = [error for future in done if (error := future.exception()) is not None]
    assert all(isinstance(error, ClientError) for error in errors)
    assert len(errors) < 200


def test_a_producer_whose_beginning_was_broken_off_leaves_its_group_free(
    cluster: PlannedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Producer(cluster.settings, "another-of-the-client"):
        with monkeypatch.context() as broken:
            broken.setattr(ClientInstance, "send_heartbeat", _broken_off)
            with pytest.raises(concurrent.futures.CancelledError):
                Producer(cluster.settings, "G")
        with opened(cluster) as producer:
            assert producer.send(MESSAGE)


async def _broken_off(instance: ClientInstance) -> None:
    """As Ctrl-C does while the brokers are told: what was begun on the loop is cancelled."""
    raise asyncio.CancelledError


def test_a_group_is_taken_once_and_its_name_is_checked(cluster: PlannedCluster) -> None:
    with opened(cluster):
        with pytest.raises(GroupTakenError):
            Producer(cluster.settings, "G")
        with pytest.raises(ClientSettingError, match="group='a/b'"):
            Producer(cluster.settings, "a/b")
    with opened(cluster) as producer:
        assert producer.send(MESSAGE)


def test_a_queue_of_another_topic_and_a_selector_that_selects_none_are_refused(cluster: PlannedCluster) -> None:
    queue = MessageQueue("Other", "a", 0)
    with opened(cluster) as producer:
        for given in ({"queue": queue}, {"queue": queue, "selector": by_hash}, {"selector": lambda *_: None}):
            with pytest.raises(MessageRefusedError):
                producer.send(MESSAGE, **given)
        with pytest.raises(MessageRefusedError, match="it is empty"):
            producer.send_async(Message("T", b""))


def test_on_the_client_s_own_thread_nothing_waits(cluster: PlannedCluster) -> None:
    async def send(producer: Producer) -> None:
        producer.send(MESSAGE)

    with opened(cluster) as producer, pytest.raises(RuntimeError, match="cannot wait for itself"):
        run(send(producer), 5_000)


def test_a_name_server_that_is_away_is_an_error_in_time() -> None:
    with planned_cluster("a") as cluster:
        settings = cluster.settings
    with Producer(settings, "G") as producer:
        begun = time.monotonic()
        for outcome in (lambda: producer.send(MESSAGE), lambda: producer.send_async(MESSAGE).result(10)):
            with pytest.raises(ClientError, match="no name server answers"):
                outcome()
        assert time.monotonic() - begun < 8


def test_a_broken_connection_is_the_error_where_no_try_is_left(cluster: PlannedCluster) -> None:
    cluster.brokers["a"].plan = hang_up
    with opened(cluster) as producer, pytest.raises(BrokerUnreachableError, match=r"closed the connection|broke"):
        producer.send(MESSAGE, queue=MessageQueue("T", "a", 0))


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_is_told_to_make_its_own(cluster: PlannedCluster) -> None:
    def check() -> None:
        with pytest.raises(ClientClosedError, match="before a fork"):
            producer.send(MESSAGE)
        with pytest.raises(ClientClosedError, match="before a fork"):
            producer.send_async(MESSAGE)
        producer.close()
        with opened(cluster) as own:
            own.send(MESSAGE)

    with opened(cluster) as producer:
        producer.send(MESSAGE)
        in_a_child(check)
        assert producer.send(MESSAGE)
