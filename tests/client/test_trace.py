"""Traces: lines as Java's TraceDataEncoder writes them, how they are put together and sent, and what leaves none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from spark_mq.client.errors import ClientSettingError, ResponseError
from spark_mq.client.hooks import (
    ConsumeHooks,
    ConsumeMessageContext,
    EndTransactionContext,
    MessageType,
    ReturnType,
    SendMessageContext,
)
from spark_mq.client.listeners import ConcurrentContext, ConsumeStatus
from spark_mq.client.message import Message, MessageExt, MessageQueue, decode_records
from spark_mq.client.outgoing_messages import UniqueIds
from spark_mq.client.producer import Producer
from spark_mq.client.send_results import SendMode, SendResult, SendStatus
from spark_mq.client.settings import ClientSettings
from spark_mq.client.trace import (
    TRACE_MESSAGE_BYTES,
    Trace,
    TracingHook,
    batches_of,
    read_trace,
    trace_after,
    trace_before,
    trace_of_end,
    trace_of_send,
)
from spark_mq.client.transaction_producer import TransactionProducer, TransactionState
from spark_mq.remoting import RequestCode
from storage.format.properties import decode_properties
from storage.format.record import encode_record
from tests.client.fake_cluster import queue
from tests.client.planned_cluster import PlannedCluster, less_safely, planned_cluster, refuse
from tests.support.message_builder import make_message

TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
RESULT = SendResult(
    SendStatus.SEND_OK, "ID1", "OFFSET1", MessageQueue("T", "a", 1), 5, None, None, "DefaultRegion", is_traced=True
)


def context(message: Message, result: SendResult | None = RESULT) -> SendMessageContext:
    place = MessageQueue("T", "a", 1)
    return SendMessageContext(
        "G", message, place, "127.0.0.1:10911", SendMode.WAITING, MessageType.DELAY, 4, result=result
    )


def received(offset: int = 5, reconsume_times: int = 0, **properties: str) -> MessageExt:
    given = {"UNIQ_KEY": f"ID{offset}", "MSG_REGION": "R", "TRACE_ON": "true", **properties}
    record = encode_record(make_message("T", 0, offset, 0, properties=given))
    message = MessageExt.of(decode_records(record)[0], "broker-a")
    return replace(message, reconsume_times=reconsume_times)


# The lines are those that Java's encoder makes of the same values; tests/interop/test_conversations.py has it read ours.


def test_a_sent_message_is_one_line() -> None:
    trace = trace_of_send(context(Message("T", b"body", tags="TagA", keys="k1 k2")), 1_000, 1_007)
    assert trace is not None
    assert trace.lines == (
        "Pub\x011000\x01DefaultRegion\x01G\x01T\x01ID1\x01TagA\x01k1 k2\x01127.0.0.1:10911\x014\x017\x013\x01OFFSET1\x01true\x02"
    )
    assert trace.keys == ("ID1", "k1", "k2")


def test_what_a_message_does_not_have_is_the_word_null() -> None:
    unsafe = RESULT._replace(status=SendStatus.FLUSH_DISK_TIMEOUT)
    trace = trace_of_send(context(Message("T", b"body"), unsafe), 1_000, 1_000)
    assert trace is not None
    assert trace.lines.split("\x01")[6:8] == ["null", "null"]
    assert trace.lines.endswith("\x01false\x02")
    assert trace.keys == ("ID1",)


def test_a_send_without_a_result_and_one_that_the_broker_wants_no_trace_of_leave_none() -> None:
    assert trace_of_send(context(Message("T", b"body"), None), 0, 0) is None
    assert trace_of_send(context(Message("T", b"body"), RESULT._replace(is_traced=False)), 0, 0) is None


def test_lines_are_read_by_their_names_and_others_are_passed_over() -> None:
    sent = trace_of_send(context(Message("T", b"four", tags="tag", keys=["k1", "k2"])), 1_000, 1_005)
    called = trace_before([received()], "R", "G", "REQUEST", 2_000)
    assert sent is not None
    first, second = read_trace("Recall\x011\x02" + sent.lines + called.lines + "Pub\x01no number\x02\x02")[:2]
    assert (first.kind, first.time_ms, first.message_id) == ("Pub", 1_000, "ID1")
    names = ("group", "topic", "tags", "keys", "broker", "body bytes", "took ms", "offset message id", "succeeded")
    values = ("G", "T", "tag", "k1 k2", "127.0.0.1:10911", "4", "5", "OFFSET1", "true")
    assert tuple(first.values[name] for name in names) == values
    assert (second.kind, second.time_ms, second.message_id) == ("SubBefore", 2_000, "ID5")
    assert (second.values["request id"], second.values["keys"]) == ("REQUEST", None)
    (short,) = read_trace("Pub\x01no number\x02")
    assert (short.time_ms, short.message_id) == (None, None)


def test_the_end_of_a_transaction_is_one_line() -> None:
    ended = EndTransactionContext(
        "G", Message("ns%T", b"body", keys="k"), "b:1", "ID1", "ID1", TransactionState.ROLLBACK, from_check=False
    )
    assert trace_of_end(ended, "T", 9).lines == (
        "EndTransaction\x019\x01DefaultRegion\x01G\x01T\x01ID1\x01null\x01k\x01b:1\x012\x01ID1\x01ROLLBACK_MESSAGE\x01false\x02"
    )
    checked = replace(ended, message=received(), from_check=True, state=TransactionState.UNKNOWN)
    assert trace_of_end(checked, "T", 9).lines.split("\x01")[2] == "R"
    assert trace_of_end(checked, "T", 9).lines.endswith("\x01UNKNOW\x01true\x02")


def test_a_listener_s_call_is_a_line_for_each_message_before_and_behind_it() -> None:
    messages = [received(5, KEYS="k"), received(6, 2)]
    before = trace_before(messages, "R", "G", "RID", 8)
    assert (
        before.lines
        == "SubBefore\x018\x01R\x01G\x01RID\x01ID5\x010\x01k\x02SubBefore\x018\x01R\x01G\x01RID\x01ID6\x012\x01null\x02"
    )
    assert before.keys == ("ID5", "k", "ID6")
    ended = ConsumeMessageContext("G", messages, queue(0), success=False, return_type=ReturnType.FAILED)
    after = trace_after(messages, ended, "RID", 11, 19)
    assert after.lines == (
        "SubAfter\x01RID\x01ID5\x015\x01false\x01k\x014\x0119\x01G\x02"
        "SubAfter\x01RID\x01ID6\x015\x01false\x01null\x014\x0119\x01G\x02"
    )


@pytest.mark.parametrize(
    ("messages", "count"),
    [([received()], 2), ([received(TRACE_ON="false")], 0), ([received(TRACE_ON="false"), received(6)], 2)],
)
def test_messages_whose_broker_wants_no_trace_leave_none(messages: list[MessageExt], count: int) -> None:
    traces: list[Trace] = []
    hook = TracingHook(traces.append, TRACE_TOPIC, None, UniqueIds("127.0.0.1"))
    listener = ConsumeHooks([hook], "G", None).around(lambda messages, context: ConsumeStatus.SUCCESS, 60_000)
    listener(messages, ConcurrentContext(queue(0)))
    assert len(traces) == count
    assert all(trace.lines.count("\x02") == 1 for trace in traces)


def test_traces_of_one_topic_share_a_message_as_far_as_they_fit() -> None:
    traces = [Trace(topic, (), "x" * 50_000) for topic in ("A", "B", "A", "A", "A")]
    sizes = [[trace.topic for trace in batch] for batch in batches_of(traces, TRACE_MESSAGE_BYTES)]
    assert sizes == [["A", "A"], ["A", "A"], ["B"]]
    assert batches_of([], 9) == []
    assert [len(batch) for batch in batches_of([Trace("A", (), "\u00e4" * 5)] * 2, 10)] == [1, 1]


def test_the_keys_of_a_trace_message_fit_into_its_properties() -> None:
    def keys_of(*traces: Trace) -> list[list[str]]:
        return [[key for trace in batch for key in trace.keys] for batch in batches_of(traces, TRACE_MESSAGE_BYTES)]

    halves = [Trace("A", (name * 10_000,), "x") for name in "\u00e4\u00f6"]
    assert keys_of(*halves) == [[halves[0].keys[0]], [halves[1].keys[0]]]  # not both: 40,002 bytes
    many = tuple(f"key-{number:06}" for number in range(5_000))
    assert keys_of(Trace("A", many, "x")) == [list(many[:2_727])]  # 11 bytes each


# Sent.


@pytest.fixture
def cluster() -> Iterator[PlannedCluster]:
    with planned_cluster("a", "b") as made:
        made.topics |= {TRACE_TOPIC: 1, "Audit": 1}
        yield made


def traced(cluster: PlannedCluster, **more: object) -> ClientSettings:
    return ClientSettings(cluster.settings.name_servers, enable_trace=True, **more)  # type: ignore[arg-type]


def lines_of(cluster: PlannedCluster, topic: str = TRACE_TOPIC) -> list[list[str]]:
    """The lines of each trace message that came."""
    commands = [
        command
        for broker in cluster.brokers.values()
        for command in broker.server.commands
        if command.code == RequestCode.SEND_MESSAGE_V2 and broker.header(command).topic == topic
    ]
    return [bytes(command.body).decode().removesuffix("\x02").split("\x02") for command in commands]


def test_traces_leave_ten_at_a_time_and_the_rest_at_the_end(cluster: PlannedCluster) -> None:
    with Producer(traced(cluster), "G") as producer:
        ids = {producer.send(Message("T", b"body", keys=f"k{number}")).message_id for number in range(12)}
    messages = lines_of(cluster)
    assert sorted(map(len, messages)) == [2, 10]
    assert {line.split("\x01")[5] for message in messages for line in message} == ids
    headers = [header for header in cluster.sends if header.topic == TRACE_TOPIC]
    assert all((header.producer_group or "").startswith("_INNER_TRACE_PRODUCER-G-PRODUCE-") for header in headers)
    keys = [decode_properties((header.properties or "").encode())["KEYS"].split(" ") for header in headers]
    assert {key for each in keys for key in each} == ids | {f"k{number}" for number in range(12)}


def test_traces_go_to_the_topic_that_is_named_which_has_no_namespace(cluster: PlannedCluster) -> None:
    cluster.topics["ns%T"] = 1
    settings = traced(cluster, trace_topic="Audit", trace_batch_size=1, namespace="ns")
    with Producer(settings, "G") as producer:
        producer.send(Message("T", b"body"))
    ((line,),) = lines_of(cluster, "Audit")
    assert line.split("\x01")[3:5] == ["G", "T"]


def test_a_failed_send_leaves_no_trace_and_one_that_is_stored_less_safely_is_no_success(
    cluster: PlannedCluster,
) -> None:
    cluster.plan(less_safely(10))
    with Producer(traced(cluster), "G") as producer:
        producer.send(Message("T", b"body"))
        for broker in cluster.brokers.values():
            broker.plan = lambda broker, peer, command: (
                refuse(13)(broker, peer, command)
                if broker.header(command).topic == "T"
                else peer.send(broker.stored(command))
            )
        with pytest.raises(ResponseError):
            producer.send(Message("T", b"body"))
    ((line,),) = lines_of(cluster)
    assert line.endswith("\x01false")


def test_traces_that_are_refused_are_lost_with_a_log_line_and_harm_no_send(
    cluster: PlannedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    for broker in cluster.brokers.values():
        broker.plan = lambda broker, peer, command: (
            refuse(17)(broker, peer, command)
            if broker.header(command).topic == TRACE_TOPIC
            else peer.send(broker.stored(command))
        )
    with Producer(traced(cluster), "G") as producer:
        producer.send(Message("T", b"body"))
    assert "1 trace(s) for topic RMQ_SYS_TRACE_TOPIC are lost" in caplog.text


def test_messages_to_the_trace_topic_leave_no_trace(cluster: PlannedCluster) -> None:
    with Producer(traced(cluster, trace_topic="Audit"), "G") as producer:
        producer.send(Message("Audit", b"the program's own"))
    assert lines_of(cluster, "Audit") == [["the program's own"]]


def test_a_transaction_leaves_a_trace_of_its_half_and_of_its_end(cluster: PlannedCluster) -> None:
    class Commits:
        def execute(self, message: Message, transaction_id: str, arg: object) -> TransactionState:
            return TransactionState.COMMIT

        def check(self, message: MessageExt) -> None:
            """Nobody asks."""

    with TransactionProducer(traced(cluster), "G", Commits()) as producer:
        sent = producer.send_in_transaction(Message("T", b"body")).sent
    ((half, end),) = lines_of(cluster)
    assert half.split("\x01")[0::11] == ["Pub", "1"]
    assert end.split("\x01")[0:6:5] == ["EndTransaction", sent.message_id]


def test_no_trace_is_sent_unless_it_is_asked_for(cluster: PlannedCluster) -> None:
    with Producer(cluster.settings, "G") as producer:
        producer.send(Message("T", b"body"))
    assert lines_of(cluster) == []


@pytest.mark.parametrize(
    ("setting", "value"), [("trace_topic", "a b"), ("trace_batch_size", 21), ("trace_batch_size", 0)]
)
def test_settings_of_traces_are_checked(setting: str, value: object) -> None:
    with pytest.raises(ClientSettingError, match=setting):
        ClientSettings("127.0.0.1:9876", **{setting: value})  # type: ignore[arg-type]
