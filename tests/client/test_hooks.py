"""Hooks of sends, transactions, pulls and listeners: when each is called, with what, and what becomes of what it raises."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from spark_mq.client.errors import (
    ClientSettingError,
    RequestTimeoutError,
    ResponseError,
    SendFailedError,
    SendForbiddenError,
)
from spark_mq.client.event_loop import THREAD_NAME
from spark_mq.client.hooks import (
    CheckForbiddenHook,
    ConsumeHooks,
    ConsumeMessageContext,
    ConsumeMessageHook,
    EndTransactionContext,
    EndTransactionHook,
    FilterMessageContext,
    FilterMessageHook,
    MessageType,
    ReturnType,
    SendMessageContext,
    SendMessageHook,
)
from spark_mq.client.listeners import ConcurrentContext, ConsumeStatus
from spark_mq.client.message import Message, MessageExt, MessageQueue
from spark_mq.client.producer import Producer
from spark_mq.client.pull_consumer import PullConsumer
from spark_mq.client.push_consumer import PushConsumer
from spark_mq.client.push_engine import Listeners
from spark_mq.client.send_results import SendMode
from spark_mq.client.settings import ClientSettings, ProducerSettings
from spark_mq.client.transaction_producer import TransactionProducer, TransactionState
from spark_mq.remoting import RequestCode, make_request, write_header
from spark_mq.remoting.messages import CheckTransactionStateRequest
from storage.format.record import encode_record
from tests.client.fake_cluster import Consumer, FakeCluster, queue
from tests.client.planned_cluster import PlannedCluster, planned_cluster, refuse
from tests.support.message_builder import make_message

MESSAGE = Message("T", b"body", tags="TagA")


@pytest.fixture
def cluster() -> Iterator[PlannedCluster]:
    with planned_cluster("a", "b") as made:
        yield made


class Watch(SendMessageHook):
    """Remembers what it saw."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []
        self.contexts: list[SendMessageContext] = []
        self.threads: set[str] = set()

    def send_message_before(self, context: SendMessageContext) -> None:
        self.threads.add(threading.current_thread().name)
        self.seen.append(("before", context.queue.broker_name))
        context.notes["mine"] = context.queue

    def send_message_after(self, context: SendMessageContext) -> None:
        assert context.notes["mine"] == context.queue
        ended = context.result.status.name if context.result else type(context.error).__name__
        self.seen.append(("after", context.queue.broker_name, ended))
        self.contexts.append(context)


class Broken(SendMessageHook):
    """Always raises."""

    def send_message_before(self, context: SendMessageContext) -> None:
        raise RuntimeError("before")

    def send_message_after(self, context: SendMessageContext) -> None:
        raise RuntimeError("after")


class Forbid(CheckForbiddenHook):
    """Forbids a broker."""

    def __init__(self, *brokers: str) -> None:
        self.brokers = brokers

    def check_forbidden(self, context: SendMessageContext) -> None:
        if context.queue.broker_name in self.brokers:
            raise PermissionError(f"not to {context.queue.broker_name}")


def test_a_send_hook_sees_each_try_before_and_behind_it_in_a_thread_of_its_own(cluster: PlannedCluster) -> None:
    cluster.plan(refuse(2), "a")
    watch = Watch()
    with Producer(cluster.settings, "G", hooks=[watch]) as producer:
        for _ in range(8):
            producer.send(MESSAGE)
            assert watch.seen[-1] == ("after", "b", "SEND_OK")  # before `send` returns
    tries = list(zip(watch.seen[::2], watch.seen[1::2], strict=True))
    assert (("before", "a"), ("after", "a", "ResponseError")) in tries
    assert all(before[1] == after[1] for before, after in tries)
    assert watch.threads
    assert not any(name == THREAD_NAME for name in watch.threads)
    context = watch.contexts[-1]
    assert (context.producer_group, context.message, context.mode) == ("G", MESSAGE, SendMode.WAITING)
    assert context.broker_address == cluster.brokers["b"].server.address
    assert (context.message_type, context.body_size_bytes) == (MessageType.NORMAL, 4)


def test_hooks_hear_of_sends_that_nobody_waits_for_and_of_batches(cluster: PlannedCluster) -> None:
    watch = Watch()
    with Producer(cluster.settings, "G", hooks=[watch]) as producer:
        producer.send_async(Message("T", b"later", delay_level=3)).result(5)
        producer.send_oneway(MESSAGE)
        producer.send_batch([MESSAGE, MESSAGE])
    delayed, oneway, batch = watch.contexts
    assert (delayed.mode, delayed.message_type) == (SendMode.ASYNC, MessageType.DELAY)
    assert (oneway.mode, oneway.result, oneway.error) == (SendMode.ONEWAY, None, None)
    assert (batch.message.topic, batch.message.tags, len(batch.message.body)) == ("T", None, batch.body_size_bytes)


def test_a_send_hook_that_raises_changes_nothing(cluster: PlannedCluster) -> None:
    watch = Watch()
    with Producer(cluster.settings, "G", hooks=[Broken(), watch]) as producer:
        producer.send(MESSAGE)
    assert [seen[0] for seen in watch.seen] == ["before", "after"]


def test_what_a_hook_forbids_at_one_broker_goes_to_another(cluster: PlannedCluster) -> None:
    watch = Watch()
    with Producer(cluster.settings, "G", hooks=[Forbid("a"), watch]) as producer:
        assert {producer.send(MESSAGE).queue.broker_name for _ in range(8)} == {"b"}
    assert {seen[1] for seen in watch.seen} == {"b"}  # no hook hears of what is forbidden
    assert cluster.brokers["a"].sends == []


def test_what_is_forbidden_everywhere_is_not_sent_and_names_the_hook(cluster: PlannedCluster) -> None:
    with Producer(cluster.settings, "G", ProducerSettings(retries=1), hooks=[Forbid("a", "b")]) as producer:
        with pytest.raises(SendFailedError, match=r"2 tries .*hook Forbid forbids it: not to"):
            producer.send(MESSAGE)
        with pytest.raises(SendForbiddenError, match="hook Forbid forbids it: not to"):
            producer.send_async(MESSAGE).result(5)
        with pytest.raises(SendForbiddenError) as raised:
            producer.send(MESSAGE, queue=MessageQueue("T", "a", 0))
        with pytest.raises(SendForbiddenError):
            producer.send_oneway(MESSAGE)
    assert isinstance(raised.value.__cause__, PermissionError)
    assert cluster.sends == []


@pytest.mark.parametrize("hooks", [[Forbid], ["hook"], [FilterMessageHook()], [EndTransactionHook()]])
def test_a_hook_that_a_producer_would_never_call_is_refused(cluster: PlannedCluster, hooks: list[Any]) -> None:
    with pytest.raises(ClientSettingError, match="it would never be called: give objects of CheckForbiddenHook"):
        Producer(cluster.settings, "G", hooks=hooks)


@pytest.mark.parametrize("kind", [PushConsumer, PullConsumer])
def test_a_hook_that_a_consumer_would_never_call_is_refused(kind: Callable[..., Any]) -> None:
    with pytest.raises(ClientSettingError, match="give objects of ConsumeMessageHook, FilterMessageHook"):
        kind(
            ClientSettings("127.0.0.1:9"), "G", **({"listener": print} if kind is PushConsumer else {}), hooks=[Watch()]
        )


class Ends(EndTransactionHook, SendMessageHook):
    """Remembers how transactions end."""

    def __init__(self) -> None:
        self.ends: list[EndTransactionContext] = []
        self.kinds: list[MessageType] = []

    def send_message_before(self, context: SendMessageContext) -> None:
        self.kinds.append(context.message_type)

    def end_transaction(self, context: EndTransactionContext) -> None:
        self.ends.append(context)


class Commits:
    """A listener."""

    def execute(self, message: Message, transaction_id: str, arg: Any) -> TransactionState:
        return TransactionState.COMMIT

    def check(self, message: MessageExt) -> TransactionState:
        return TransactionState.ROLLBACK


def test_an_end_hook_hears_how_a_transaction_ended_here_and_what_a_check_was_answered(cluster: PlannedCluster) -> None:
    hook = Ends()
    with TransactionProducer(cluster.settings, "G", Commits(), hooks=[hook]) as producer:
        sent = producer.send_in_transaction(MESSAGE).sent
        broker = cluster.brokers[sent.queue.broker_name]
        record = encode_record(make_message("T", 0, 5, 0, properties={"PGROUP": "G", "UNIQ_KEY": "ID9"}))
        header = CheckTransactionStateRequest(topic="T", half_queue_offset=1, half_commitlog_offset=2)
        check = make_request(RequestCode.CHECK_TRANSACTION_STATE, write_header(header), record)
        broker.server.peers[-1].send(check)
        broker.server.until(RequestCode.END_TRANSACTION, 2)
    first, second = hook.ends
    assert (first.producer_group, first.message, first.state, first.from_check) == (
        "G",
        MESSAGE,
        TransactionState.COMMIT,
        False,
    )
    assert (first.message_id, first.broker_address) == (sent.message_id, broker.server.address)
    assert (second.message_id, second.state, second.from_check) == ("ID9", TransactionState.ROLLBACK, True)
    assert hook.kinds == [MessageType.TRANSACTION_HALF]


# Consumers.


class Calls(ConsumeMessageHook):
    """Remembers calls of a listener."""

    def __init__(self) -> None:
        self.before = 0
        self.contexts: list[ConsumeMessageContext] = []

    def consume_message_before(self, context: ConsumeMessageContext) -> None:
        assert (context.success, context.status) == (False, None)
        self.before += 1

    def consume_message_after(self, context: ConsumeMessageContext) -> None:
        self.contexts.append(context)


class Takes(FilterMessageHook):
    """Takes messages out whose offsets are odd, and breaks then."""

    def filter_message(self, context: FilterMessageContext) -> None:
        assert threading.current_thread().name.startswith("spark-mq-hooks")
        context.messages[:] = [message for message in context.messages if message.queue_offset % 2 == 0]
        raise RuntimeError("its own fault")


def raising(messages: Sequence[MessageExt], context: Any) -> ConsumeStatus:
    raise OSError("the database is away")


@pytest.mark.parametrize(
    ("listener", "status", "return_type", "success"),
    [
        (lambda messages, context: ConsumeStatus.SUCCESS, "SUCCESS", ReturnType.SUCCESS, True),
        (lambda messages, context: ConsumeStatus.COMMIT, "COMMIT", ReturnType.SUCCESS, True),
        (lambda messages, context: ConsumeStatus.LATER, "LATER", ReturnType.FAILED, False),
        (lambda messages, context: ConsumeStatus.ROLLBACK, "ROLLBACK", ReturnType.SUCCESS, False),
        (lambda messages, context: None, "LATER", ReturnType.RETURNED_NONE, False),
        (raising, "LATER", ReturnType.EXCEPTION, False),
    ],
)
def test_a_consume_hook_sees_how_a_listener_s_call_ended(
    listener: Any, status: str, return_type: ReturnType, success: bool
) -> None:
    calls = Calls()
    hooked = ConsumeHooks([calls], "G", "ns").around(listener, 60_000)
    message = MessageExt.of(make_message("T", 0, 5, 0), "broker-a")
    try:
        hooked([message], ConcurrentContext(queue(0)))
    except OSError:
        assert listener is raising
    (context,) = calls.contexts
    assert (context.status, context.return_type, context.success) == (status, return_type, success)
    assert (context.consumer_group, context.namespace, context.queue, context.messages) == (
        "G",
        "ns",
        queue(0),
        [message],
    )
    assert calls.before == 1


def test_a_call_that_takes_too_long_is_a_time_out_whatever_it_answered() -> None:
    calls = Calls()
    ConsumeHooks([calls], "G", None).around(lambda messages, context: ConsumeStatus.SUCCESS, 0)(
        [], ConcurrentContext(queue(0))
    )
    assert (calls.contexts[0].return_type, calls.contexts[0].success) == (ReturnType.TIME_OUT, True)


def test_a_poll_s_messages_count_as_consumed_queue_by_queue() -> None:
    calls = Calls()
    messages = [MessageExt.of(make_message("T", number, 5, 0), "broker-a") for number in (0, 1, 0)]
    ConsumeHooks([calls], "G", None).polled(messages)
    assert [(context.queue, len(context.messages)) for context in calls.contexts] == [(queue(0), 2), (queue(1), 1)]
    assert {(context.status, context.success, context.return_type) for context in calls.contexts} == {
        ("SUCCESS", True, None)
    }


async def test_what_a_filter_takes_out_is_not_given_and_counts_as_consumed() -> None:
    async def even(messages: list[MessageExt], where: MessageQueue) -> list[MessageExt]:
        return [message for message in messages if message.queue_offset % 2 == 0]

    cluster = FakeCluster(T=1).put("T", 6)
    consumer = Consumer(cluster)
    given = Listeners(consumer.listen, None, None, even)
    assert given.filtered is even
    consumer.engine.filtered = even
    await consumer.begun(20)
    assert consumer.got == [(0, 0), (0, 2), (0, 4)]
    assert cluster.offsets[queue(0)] == 6


def test_a_filter_runs_in_a_thread_and_can_only_take_out() -> None:
    from spark_mq.client.event_loop import run

    class Adds(FilterMessageHook):
        def filter_message(self, context: FilterMessageContext) -> None:
            context.messages.append(MessageExt.of(make_message("T", 0, 99, 0), "broker-a"))

    hooks = ConsumeHooks([Takes(), Adds()], "G", None)
    messages = [MessageExt.of(make_message("T", 0, offset, 0), "broker-a") for offset in range(4)]
    assert hooks.filters is not None
    assert run(hooks.filters(messages, queue(0))) == [messages[0], messages[2]]
    hooks.close()


def test_a_refused_send_that_is_not_tried_again_has_its_error_behind_it(cluster: PlannedCluster) -> None:
    cluster.plan(refuse(13))
    watch = Watch()
    with Producer(cluster.settings, "G", hooks=[watch]) as producer, pytest.raises(ResponseError):
        producer.send(MESSAGE)
    assert [seen[0] for seen in watch.seen] == ["before", "after"]
    assert isinstance(watch.contexts[0].error, ResponseError)


class Held(SendMessageHook):
    """Waits at the moment that is named until the test goes on."""

    def __init__(self, moment: str) -> None:
        self.moment = moment
        self.go_on = threading.Event()
        self.after = threading.Event()
        self.errors: list[Exception | None] = []

    def send_message_before(self, context: SendMessageContext) -> None:
        if self.moment == "before":
            self.go_on.wait(10)

    def send_message_after(self, context: SendMessageContext) -> None:
        self.errors.append(context.error)
        if self.moment == "after":
            self.go_on.wait(10)
        self.after.set()


def test_a_send_whose_time_a_hook_has_used_up_fails_in_time_and_is_not_stored_later(cluster: PlannedCluster) -> None:
    hook = Held("before")
    with Producer(cluster.settings, "G", topics=["T"], hooks=[hook]) as producer:
        with pytest.raises(RequestTimeoutError):
            producer.send_async(MESSAGE, timeout_ms=100).result(5)
        hook.go_on.set()
        assert hook.after.wait(5)
    assert [type(error) for error in hook.errors] == [RequestTimeoutError]
    assert cluster.sends == []


def test_a_hook_behind_a_send_that_is_slower_than_the_time_out_does_not_hold_the_result(
    cluster: PlannedCluster,
) -> None:
    hook, options = Held("after"), ProducerSettings(send_timeout_ms=500)
    with Producer(cluster.settings, "G", options, topics=["T"], hooks=[hook]) as producer:
        assert producer.send_async(MESSAGE).result(5).status.name == "SEND_OK"
        producer.send_oneway(MESSAGE)
        hook.go_on.set()
    assert len(cluster.sends) == 2


def test_sends_leave_in_the_order_of_their_calls_however_long_a_hook_takes_for_one(cluster: PlannedCluster) -> None:
    class Uneven(SendMessageHook):
        second_is_stored = threading.Event()

        def send_message_before(self, context: SendMessageContext) -> None:
            assert threading.current_thread().daemon  # a hook that hangs does not keep the process
            if context.message.body == b"first":
                self.second_is_stored.wait(0.1)

        def send_message_after(self, context: SendMessageContext) -> None:
            if context.message.body == b"second":
                self.second_is_stored.set()

    with Producer(cluster.settings, "G", topics=["T"], hooks=[Uneven()]) as producer:
        place = MessageQueue("T", "a", 0)
        futures = [producer.send_async(Message("T", body), queue=place) for body in (b"first", b"second")]
        assert [future.result(5).queue_offset for future in futures] == [0, 1]


def test_a_broker_is_not_slow_because_hooks_are(cluster: PlannedCluster) -> None:
    class Slow(SendMessageHook):
        def send_message_before(self, context: SendMessageContext) -> None:
            time.sleep(0.6)

        send_message_after = send_message_before

    cluster.topics["T"] = 1
    with Producer(
        cluster.settings, "G", ProducerSettings(avoids_slow_brokers=True), topics=["T"], hooks=[Slow()]
    ) as producer:
        producer.send(MESSAGE)
        faults = producer._sender._faults
        assert faults is not None
        assert faults.is_available("a")
        assert faults.is_available("b")
