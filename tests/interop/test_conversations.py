"""Our producers and consumers with Java's at the other end, at our broker and at Apache's: requests, replies, recalls, hooks, traces.

One Java process (Conversation.java) has clients at both brokers, and does what messages of topic `Commands` say.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from spark_mq.client.errors import ReplyTimeoutError, ResponseError, SendFailedError
from spark_mq.client.hooks import (
    CheckForbiddenHook,
    ConsumeMessageContext,
    ConsumeMessageHook,
    EndTransactionContext,
    EndTransactionHook,
    FilterMessageContext,
    FilterMessageHook,
    SendMessageContext,
    SendMessageHook,
)
from spark_mq.client.listeners import ConsumeStatus
from spark_mq.client.message import Message, MessageExt
from spark_mq.client.producer import Producer
from spark_mq.client.pull_consumer import PullConsumer
from spark_mq.client.push_consumer import PushConsumer
from spark_mq.client.settings import ClientSettings, ConsumeFrom, ProducerSettings, PullSettings, PushSettings
from spark_mq.client.transaction_producer import TransactionProducer, TransactionState
from tests.support.java_broker import JavaClient, Oracle, RunningBroker
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.slow]

SIDES = ["ours", "apache"]
COUNT = 10
MQADMIN = "org.apache.rocketmq.tools.command.MQAdminStartup"
SETTINGS: dict[str, Any] = {
    "timerWheelEnable": "true",
    "recallMessageEnable": "true",
    "traceTopicEnable": "true",
    "mappedFileSizeTimerLog": 1_024,
}
TOPICS = ("Commands", "JavaAnswers", "PythonAnswers", "Silent", "Gone", "Timed", "Hooked", "HookedPython")
UNHURRIED = ProducerSettings(send_timeout_ms=20_000)
FIRST = PushSettings(consume_from=ConsumeFrom.FIRST)
DUE_MS = 12_000
BODIES = ("success", "later", "null", "throw", "filtered")
_STATES = {TransactionState.COMMIT: "COMMIT_MESSAGE", TransactionState.ROLLBACK: "ROLLBACK_MESSAGE"}
_MODES = {"WAITING": "SYNC", "ASYNC": "ASYNC", "ONEWAY": "ONEWAY"}


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two brokers, and what Java writes of it."""

    number: int
    broker: RunningBroker
    java: JavaClient

    def settings(self, **more: Any) -> ClientSettings:
        return ClientSettings((self.broker.name_server,), **more)

    def lines(self, type_: str, count: int, met: Callable[[dict[str, Any]], bool] = lambda line: True) -> list[Any]:
        """Java's lines of that type about this broker, as soon as there are so many."""

        def mine(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
            return [line for line in lines if line["cluster"] == self.number and met(line)]

        return mine(self.java.until(lambda lines: len(mine(lines)) >= count, type_))

    def command(self, producer: Producer, tag: str, body: str = "-", **properties: str) -> None:
        producer.send(Message("Commands", body.encode(), tags=tag, properties=properties))


@pytest.fixture(scope="module")
def sides(oracle: Oracle, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Side]]:
    directory = tmp_path_factory.mktemp("conversations-")
    ours = Oracle(directory, is_ours=True)
    with ExitStack() as stack:
        brokers = []
        for name, servers in zip(SIDES, (ours, oracle), strict=True):
            name_server = stack.enter_context(ours.namesrv())  # the client's other end is the broker
            started = servers.broker(directory / name, name_server, brokerName=f"broker-{name}", **SETTINGS)
            brokers.append(stack.enter_context(started))
            for topic in TOPICS:
                brokers[-1].make_topic(topic, 2)
        out = directory / "java.jsonl"
        running = oracle.java_running("Conversation", out, f"ns={','.join(each.name_server for each in brokers)}")
        java = JavaClient(out, stack.enter_context(running))
        java.until(lambda lines: len(lines) == len(SIDES), "ready", 120)
        yield {name: Side(number, brokers[number], java) for number, name in enumerate(SIDES)}


@pytest.fixture(params=SIDES)
def side(request: pytest.FixtureRequest, sides: dict[str, Side]) -> Side:
    return sides[request.param]


# Requests and replies.


def test_java_replies_to_our_requests_ten_of_ten(side: Side) -> None:
    with Producer(side.settings(), "GAsk", UNHURRIED) as producer:
        replies = [
            producer.request(Message("JavaAnswers", b"question %d" % number), timeout_ms=20_000)
            for number in range(COUNT)
        ]
        futures = [
            producer.request_async(Message("JavaAnswers", b"again %d" % number), timeout_ms=20_000)
            for number in range(COUNT)
        ]
        later = [future.result(30) for future in futures]
        client_id = producer.client_id
    assert [reply.body.decode() for reply in replies] == [f"Java: question {number}" for number in range(COUNT)]
    assert [reply.body.decode() for reply in later] == [f"Java: again {number}" for number in range(COUNT)]
    assert {reply.topic for reply in replies} == {"LabCluster_REPLY_TOPIC"}
    seen = side.lines("replied", 2 * COUNT)
    assert {line.get("status") for line in seen} == {"SEND_OK"}
    assert {line["properties"]["REPLY_TO_CLIENT"] for line in seen} == {client_id}
    assert {line["properties"]["TTL"] for line in seen} == {"20000"}
    ids = [reply.properties["CORRELATION_ID"] for reply in [*replies, *later]]
    assert sorted(ids) == sorted(line["properties"]["CORRELATION_ID"] for line in seen)
    assert all(int(reply.properties["ARRIVE_TIME"]) >= reply.store_time_ms - 1_000 for reply in replies)


def test_we_reply_to_java_s_requests_ten_of_ten(side: Side) -> None:
    with Producer(side.settings(), "GReply", UNHURRIED) as producer:

        def listen(messages: Sequence[MessageExt], context: Any) -> ConsumeStatus:
            for message in messages:
                producer.reply(message, b"Python: " + message.body, tags="t", properties={"mine": "1"})
            return ConsumeStatus.SUCCESS

        with PushConsumer(side.settings(), "GPythonAnswers", listen, options=FIRST) as consumer:
            consumer.subscribe("PythonAnswers")
            side.command(producer, "request", to="PythonAnswers", count=str(COUNT))
            # Java's client up to 5.3.3 tells a caller that its request is stored as if that were the reply.
            replies = side.lines("reply", COUNT)
    assert {line["asked"]: line.get("body") for line in replies} == {
        f"question {number}": f"Python: question {number}" for number in range(COUNT)
    }
    assert len(replies) == COUNT
    told = [line["properties"] for line in replies]
    assert {(each["MSG_TYPE"], each["TAGS"], each["mine"]) for each in told} == {("reply", "t", "1")}
    assert {line["topic"] for line in replies} == {"LabCluster_REPLY_TOPIC"}


def test_a_request_that_nobody_replies_to_ends_at_its_time_out(side: Side) -> None:
    with Producer(side.settings(), "GSilent", UNHURRIED) as producer:
        with pytest.raises(ReplyTimeoutError, match="no reply to the request of topic Silent within 700 ms"):
            producer.request(Message("Silent", b"is anybody there?"), timeout_ms=700)
        assert producer.in_flight_count == 0


def test_a_reply_to_a_client_that_has_gone_is_refused_in_the_same_words(side: Side) -> None:
    with Producer(side.settings(instance_name="gone"), "GGone") as asking:
        asking.request_async(Message("Gone", b"question"), timeout_ms=20_000)
        client_id = asking.client_id
        options = PullSettings(consume_from=ConsumeFrom.FIRST)
        with PullConsumer(side.settings(), "GGoneAnswers", options) as consumer:
            consumer.subscribe("Gone")
            (message,) = consumer.poll(20_000)
    with Producer(side.settings(), "GLate", UNHURRIED) as producer, pytest.raises(ResponseError) as raised:
        producer.reply(message, b"too late")
    assert (raised.value.code, raised.value.remark) == (
        1,
        f"push reply message fail, channel of <{client_id}> not found.",
    )


# Recalls.


def test_each_recalls_ten_timed_messages_of_the_other_and_only_the_others_are_delivered(side: Side) -> None:
    due_ms = (time.time_ns() // 1_000_000 + DUE_MS) // 1_000 * 1_000
    with Producer(side.settings(), "GTimed", UNHURRIED) as producer:
        handles = []
        for number in range(COUNT + 1):
            sent = producer.send(Message("Timed", b"ours %d" % number, deliver_time_ms=due_ms))
            handles.append((sent.message_id, sent.recall_handle))
            side.command(producer, "timed", f"theirs {number}", to="Timed", at=str(due_ms))
        theirs = {line["body"]: line["handle"] for line in side.lines("timed", COUNT + 1)}
        for number in range(COUNT):
            side.command(producer, "recall", str(handles[number][1]), **{"from": "Timed"})
            assert producer.recall("Timed", theirs[f"theirs {number}"])
        recalled = side.lines("recalled", COUNT)
        assert sorted(line["msgId"] for line in recalled) == sorted(message_id for message_id, _ in handles[:COUNT])
        with pytest.raises(ResponseError, match="recall failed, topic not match"):
            producer.recall("Silent", theirs["theirs 0"])
        options = PullSettings(consume_from=ConsumeFrom.FIRST)
        with PullConsumer(side.settings(), "GTimedReader", options) as consumer:
            consumer.assign(consumer.queues("Timed"))
            bodies: list[bytes] = []
            end = time.monotonic() + 60
            while len(bodies) < 2 and time.monotonic() < end:
                bodies += [message.body for message in consumer.poll(1_000)]
            bodies += [message.body for message in consumer.poll(3_000)]
        assert sorted(bodies) == [b"ours 10", b"theirs 10"]
        with pytest.raises(ResponseError, match="recall failed, timestamp invalid"):
            producer.recall("Timed", theirs["theirs 10"])


# Hooks and traces.


def listener(messages: Sequence[MessageExt], context: Any) -> Any:
    """Answers as the body says; Java's of topic `Hooked` does the same."""
    body = messages[0].body
    if messages[0].reconsume_times > 0:
        return ConsumeStatus.SUCCESS
    if body == b"throw":
        raise RuntimeError("as the body says")
    return {b"null": None, b"later": ConsumeStatus.LATER}.get(body, ConsumeStatus.SUCCESS)


@dataclass
class Watch(SendMessageHook, EndTransactionHook, CheckForbiddenHook, ConsumeMessageHook, FilterMessageHook):
    """Notes what Java's hooks in Conversation.java note."""

    seen: list[dict[str, Any]] = field(default_factory=list)

    def check_forbidden(self, context: SendMessageContext) -> None:
        if context.message.body == b"forbidden":
            raise PermissionError("it is forbidden")

    def _note(self, hook: str, context: SendMessageContext) -> None:
        self.seen.append(
            {
                "hook": hook,
                "group": context.producer_group,
                "body": context.message.body.decode(),
                "mode": _MODES[context.mode.name],
                "kind": context.message_type.value,
                "status": context.result.status.name if context.result else None,
                "failed": context.error is not None,
            }
        )

    def send_message_before(self, context: SendMessageContext) -> None:
        self._note("before", context)

    def send_message_after(self, context: SendMessageContext) -> None:
        self._note("after", context)

    def end_transaction(self, context: EndTransactionContext) -> None:
        ended = {"state": _STATES[context.state], "check": context.from_check}
        same = context.message_id == context.transaction_id
        self.seen.append(
            {
                "hook": "end",
                "group": context.producer_group,
                "body": context.message.body.decode(),
                **ended,
                "same": same,
            }
        )

    def _noted(self, hook: str, context: ConsumeMessageContext) -> None:
        ended = {"SUCCESS": "SUCCESS", "FAILED": "FAILED", "EXCEPTION": "EXCEPTION", "RETURNED_NONE": "RETURNNULL"}
        for message in context.messages:
            if message.reconsume_times == 0:
                said = None if context.return_type is None else ended[context.return_type.name]
                self.seen.append(
                    {
                        "hook": hook,
                        "group": context.consumer_group,
                        "body": message.body.decode(),
                        "success": context.success,
                        "ended": said,
                    }
                )

    def consume_message_before(self, context: ConsumeMessageContext) -> None:
        self._noted("consume before", context)

    def consume_message_after(self, context: ConsumeMessageContext) -> None:
        self._noted("consume after", context)

    def filter_message(self, context: FilterMessageContext) -> None:
        context.messages[:] = [message for message in context.messages if message.body != b"filtered"]


class Planned:
    """Ends transactions as it is told."""

    def execute(self, message: Message, transaction_id: str, arg: Any) -> TransactionState:
        assert isinstance(arg, TransactionState)
        return arg

    def check(self, message: MessageExt) -> TransactionState:
        return TransactionState.UNKNOWN


def sorted_notes(seen: Sequence[dict[str, Any]]) -> list[list[tuple[str, Any]]]:
    """Notes of both sides in one form and order: those of a group about one message stay in order."""
    wanted = ("hook", "group", "body", "mode", "kind", "status", "failed", "state", "check", "same", "success", "ended")
    in_order = sorted(seen, key=lambda line: (line["body"], line["group"]))
    return [[(name, line[name]) for name in wanted if name in line] for line in in_order]


@contextmanager
def our_side(side: Side, watch: Watch) -> Iterator[TransactionProducer]:
    """A producer `GHooked` and a consumer `GPython` of topic `HookedPython`, as Java's are of `Hooked`: with hooks and traces."""
    settings = side.settings(enable_trace=True, trace_batch_size=1)
    with (
        TransactionProducer(settings, "GHooked", Planned(), UNHURRIED, hooks=[watch]) as producer,
        PushConsumer(settings, "GPython", listener, options=FIRST, hooks=[watch]) as consumer,
    ):
        consumer.subscribe("HookedPython")
        yield producer


def test_hooks_on_both_sides_see_the_same_and_java_reads_our_traces_as_its_own(side: Side, oracle: Oracle) -> None:
    watch = Watch()
    with our_side(side, watch) as producer, Producer(side.settings(), "GCommanding", UNHURRIED) as commanding:
        for number, body in enumerate(BODIES):
            mode = ("SYNC", "ASYNC", "SYNC", "ONEWAY", "SYNC")[number]
            message = Message("Hooked", body.encode(), tags="TagJ", keys="key1 key2")
            if mode == "ASYNC":
                producer.send_async(message).result(10)
            elif mode == "ONEWAY":
                producer.send_oneway(message)
            else:
                producer.send(message)
            side.command(commanding, "send", body, to="HookedPython", mode=mode)
        producer.send(Message("Hooked", b"delayed", tags="TagJ", keys="key1 key2", delay_level=1))
        side.command(commanding, "send", "delayed", to="HookedPython", mode="SYNC", level="1")
        with pytest.raises(SendFailedError, match="hook Watch forbids it: it is forbidden"):
            producer.send(Message("Hooked", b"forbidden"))
        side.command(commanding, "send", "forbidden", to="HookedPython", mode="SYNC")
        for state in (TransactionState.COMMIT, TransactionState.ROLLBACK):
            body = f"half {state.value}"
            half = Message("Hooked", body.encode(), tags="TagJ", keys="key1 key2")
            assert producer.send_in_transaction(half, state).state is state
            side.command(commanding, "transact", body, to="HookedPython", plan=_STATES[state])
        sent = side.lines("sent", 9)
        assert [line["body"] for line in sent if "error" in line] == ["forbidden"]
        heard = {"success", "later", "null", "throw", "delayed", "half commit"}

        def consumed(seen: Sequence[dict[str, Any]]) -> set[str]:
            return {line["body"] for line in seen if line["hook"] == "consume after"}

        wait_until(lambda: consumed(watch.seen) >= heard, "our consumer has had all", 60)
        side.java.until(
            lambda lines: consumed([line for line in lines if line["cluster"] == side.number]) >= heard, "hook"
        )
        time.sleep(1)  # what is filtered, forbidden or rolled back would be there by now
    java = [line for line in side.java.lines("hook") if line["cluster"] == side.number]
    theirs = [dict(line, group="GPython") if line["group"] == "GJava" else line for line in java]
    assert sorted_notes(theirs) == sorted_notes(watch.seen)
    assert consumed(watch.seen) == consumed(java) == heard

    # Traces: those of Java's clients and ours lie in one topic; Java's consumer has decoded all of them.
    def of(group: str, kind: str) -> Callable[[dict[str, Any]], bool]:
        return lambda line: (line["group"], line["kind"]) == (group, kind)

    for kind, group, mine, count in (
        ("Pub", "GHooked", lambda line: line["topic"] == "Hooked", 7),
        ("Pub", "GHooked", lambda line: line["topic"] == "HookedPython", 7),
        ("EndTransaction", "GHooked", lambda line: line["topic"] == "Hooked", 2),
        ("EndTransaction", "GHooked", lambda line: line["topic"] == "HookedPython", 2),
        ("SubBefore", "GPython", lambda line: line["retries"] == 0, len(heard)),
        ("SubBefore", "GJava", lambda line: line["retries"] == 0, len(heard)),
    ):
        found = side.lines(
            "trace", count, lambda line, mine=mine, group=group, kind=kind: of(group, kind)(line) and mine(line)
        )  # type: ignore[misc]
        assert len(found) == count, (kind, group, found)
    side.lines("trace", len(heard), of("GPython", "SubAfter"))
    traces = [line for line in side.java.lines("trace") if line["cluster"] == side.number]
    messages = [line for line in side.java.lines("traceMessage") if line["cluster"] == side.number]
    assert [line for line in messages if not line["same"]] == []
    assert all(line["keys"] for line in messages)
    assert shapes(traces, "Pub", "Hooked") == shapes(traces, "Pub", "HookedPython")
    assert shapes(traces, "EndTransaction", "Hooked") == shapes(traces, "EndTransaction", "HookedPython")
    assert calls(traces, "GPython") == calls(traces, "GJava")
    consumed_ids = {line["msgId"] for line in traces if of("GPython", "SubAfter")(line)}
    found = next(line["msgId"] for line in traces if line["kind"] == "Pub" and line["msgId"] in consumed_ids)
    printed = oracle.java(MQADMIN, "queryMsgTraceById", "-i", found, "-n", side.broker.name_server)
    words = [line.split() for line in printed.splitlines()]
    assert {(line[0], line[1]) for line in words if line and line[0] in ("Pub", "Sub")} == {
        ("Pub", "GHooked"),  # by Java's producer
        ("Sub", "GPython"),  # by our consumer
    }


def shapes(traces: Sequence[dict[str, Any]], kind: str, topic: str) -> list[tuple[Any, ...]]:
    """The traces of sends to a topic, without ids, times and addresses."""
    wanted = ("region", "group", "success", "tags", "keys", "size", "msgType", "state", "check")
    mine = [line for line in traces if (line["kind"], line["topic"]) == (kind, topic)]
    assert all(line["msgId"] and line["host"].startswith("127.0.0.1:") for line in mine)
    return sorted(tuple(str(line[name]) for name in wanted) for line in mine)


def calls(traces: Sequence[dict[str, Any]], group: str) -> list[tuple[Any, ...]]:
    """How the calls of a group's listener ended, by their traces, each with the one before it."""
    before = {line["request"]: line for line in traces if (line["kind"], line["group"]) == ("SubBefore", group)}
    after = [line for line in traces if (line["kind"], line["group"]) == ("SubAfter", group)]
    first = [(before[line["request"]], line) for line in after if before[line["request"]]["retries"] == 0]
    assert all(one["msgId"] == two["msgId"] for one, two in first)
    return sorted((one["region"], one["keys"], two["success"], two["code"], two["keys"]) for one, two in first)
