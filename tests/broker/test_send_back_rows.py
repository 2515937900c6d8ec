"""The same as the broker of the fixtures did it, record by record, for one message and for a table of rows; and what rows are refused.

Java: AbstractSendMessageProcessor.consumerSendMsgBack.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_mq.broker.send_back import plan_send_back
from storage import Message, MessageStore, open_store
from storage.format.delay import DEFAULT_LEVELS, parse_delay_levels
from storage.format.properties import decode_properties
from storage.format.record import HOST_FLAGS, host_text
from storage.format.typed_json import SubscriptionGroupConfig
from storage.names import dead_letter_topic, retry_topic
from storage.rules.delays import route_delayed
from storage.rules.inner_messages import InnerMessage, InnerMessages
from storage.rules.retry_rows import ReturnedRows, ReturnRules, SentBack, send_back_rows
from storage.rules.values import Rejections
from storage.settings.load import StoreConfig
from storage.settings.nouns import TimerConfig
from storage.tables.topics import TopicConfig
from tests.support.broker_handlers import back_request
from tests.support.fixture_stores import Fixture
from tests.support.message_builder import make_message, raw_properties
from tests.support.served import served

DELAYS_MS = parse_delay_levels(DEFAULT_LEVELS)
NOW_MS = 1_750_000_000_000

# As the broker did it


@pytest.fixture(params=["clean", "ext", "syncflush"])
def broker_store(request: pytest.FixtureRequest, pristine_store: Callable[[str], Fixture]) -> Iterator[MessageStore]:
    with open_store(pristine_store(request.param).root) as opened:
        yield opened


def sent_back_by_the_broker(store: MessageStore) -> list[tuple[Message, Message, str]]:
    """Each message that a consumer of the fixture gave back, what the broker put for it, and the group."""
    retried = {
        (message.properties["ORIGIN_MESSAGE_ID"], message.topic, message.reconsume_times): message
        for topic in store.topics()
        if topic.startswith("%RETRY%")
        for message in served(store, topic)
    }
    put = [m for m in served(store, "SCHEDULE_TOPIC_XXXX") if m.properties["REAL_TOPIC"].startswith("%RETRY%")]
    put += [m for topic in store.topics() if topic.startswith("%DLQ%") for m in served(store, topic)]
    pairs = []
    for message in put:
        origin, times = message.properties["ORIGIN_MESSAGE_ID"], message.reconsume_times - 1
        target = message.properties["REAL_TOPIC"] if message.topic.startswith("SCHEDULE") else message.topic
        group = target.removeprefix("%RETRY%").removeprefix("%DLQ%")
        before = retried.get((origin, retry_topic(group), times))
        pairs.append((before or store.message_by_commitlog_offset(int(origin[-16:], 16)), message, group))
    return pairs


def asked_by(group: str) -> dict[str, Any]:
    """What the fixtures' consumers say with each request (Produce.java: setMaxReconsumeTimes)."""
    return {"group": group, "max_reconsume_times": 2 if group == "GroupR" else 5}


def test_a_message_is_put_as_the_broker_put_it(broker_store: MessageStore) -> None:
    pairs = sent_back_by_the_broker(broker_store)
    kinds = {(put.topic, put.reconsume_times) for _, put, _ in pairs}
    assert kinds == {("SCHEDULE_TOPIC_XXXX", 1), ("SCHEDULE_TOPIC_XXXX", 2), ("%DLQ%GroupR", 3)}
    for original, put, group in pairs:
        made = plan_send_back(
            original,
            back_request(commitlog_offset=original.commitlog_offset, **asked_by(group)),
            {},
            {},
            config=StoreConfig(),
        ).message
        assert made is not None
        config = broker_store.config
        routed = route_delayed(made, delays_ms=config.delay.delays_ms, timer=config.timer, now_ms=NOW_MS)
        assert routed == InnerMessage.of(put)


@pytest.mark.parametrize(
    ("raised_to", "written", "read", "expected"),
    [(8, 1, 1, 1), (8, 4, 2, 2), (8, 2, 4, 2), (8, 8, 8, 8), (2, 8, 8, 2), (3, 0, 0, 1)],
)
def test_retries_go_to_queues_that_the_groups_retry_topic_has(
    raised_to: int, written: int, read: int, expected: int
) -> None:
    """Of a group that was raised Java's lie in queues that no consumer reads."""
    group = SubscriptionGroupConfig("G", retry_queue_count=raised_to)
    topics = {"%RETRY%G": TopicConfig("%RETRY%G", read, written)}
    request, drawn = back_request(commitlog_offset=0, group="G"), list[int]()

    def choose(count: int) -> int:
        drawn.append(count)
        return 0

    original = make_message("T", b"failed")
    plan_send_back(original, request, {"G": group}, topics, config=StoreConfig(), choose_queue=choose)
    assert drawn == [expected]
    rows = ReturnedRows(ReturnRules(group, bytes(8), topics)).prepare(as_rows([original] * 16), NOW_MS)
    queues = {decode_properties(text)["REAL_QID"] for part in rows.parts for text in part.properties.to_pylist()}
    assert queues == {str(queue_id) for queue_id in range(expected)}


def test_rows_are_put_as_the_broker_put_them(broker_store: MessageStore) -> None:
    pairs = sent_back_by_the_broker(broker_store)
    for group in {group for _, _, group in pairs}:
        of_group = [(original, put) for original, put, name in pairs if name == group]
        rejections = Rejections()
        sent = send_back_rows(
            as_rows([original for original, _ in of_group]),
            SubscriptionGroupConfig(group),
            rejections,
            delays_ms=broker_store.config.delay.delays_ms,
            now_ms=NOW_MS,
            max_reconsume_times=asked_by(group)["max_reconsume_times"],
        )
        assert not rejections
        assert inner_messages(sent.messages) == [InnerMessage.of(put) for _, put in of_group]
        assert sent.dead.tolist() == [put.topic == dead_letter_topic(group) for _, put in of_group]


def as_rows(messages: list[Message]) -> pa.RecordBatch:
    """The columns that the Spark source gives of these."""
    return pa.record_batch(
        {
            "topic": [message.topic for message in messages],
            "msg_id": [message.msg_id for message in messages],
            "properties": pa.array(
                [list(message.properties.items()) for message in messages], pa.map_(pa.string(), pa.string())
            ),
            "body": pa.array([message.plain_body for message in messages], pa.binary()),
            "reconsume_times": pa.array([message.reconsume_times for message in messages], pa.int32()),
            "born_timestamp": pa.array(
                [1_000 * message.born_time_ms for message in messages], pa.timestamp("us", "UTC")
            ),
            "born_host": [host_text(message.born_host) for message in messages],
            "flag": pa.array([message.flag for message in messages], pa.int32()),
            "sys_flag": pa.array([message.sys_flag for message in messages], pa.int32()),
        }
    )


def inner_messages(messages: InnerMessages) -> list[InnerMessage]:
    """The messages one by one."""
    hosts, are_v6 = messages.born_hosts, messages.born_v6
    return [
        InnerMessage(
            topic=messages.topics[row].as_py(),
            queue_id=int(messages.queue_ids[row]),
            body=messages.bodies[row].as_py(),
            properties=decode_properties(messages.properties[row].as_py()),
            flag=int(messages.flags[row]),
            sys_flag=int(messages.sys_flags[row]) & ~HOST_FLAGS,
            born_time_ms=int(messages.born_times_ms[row]),
            born_host=None
            if hosts is None
            else np.asarray(hosts[row]).tobytes()[: 20 if are_v6 is not None and are_v6[row] else 8],
            reconsume_times=int(messages.reconsume_times[row]),
            prepared_transaction_offset=int(messages.prepared_transaction_offsets[row]),
        )
        for row in range(messages.row_count)
    ]


# Rows and single messages alike

NAMES = [
    "TAGS",
    "own",
    "WAIT",
    "DELAY",
    "RETRY_TOPIC",
    "ORIGIN_MESSAGE_ID",
    "REAL_TOPIC",
    "REAL_QID",
    "TIMER_DELIVER_MS",
]
TEXTS = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=5)


def failed_before(topic: str, properties: dict[str, str], times: int, bits: int, v6: bool) -> Message:
    message = make_message(topic, properties=raw_properties(properties), sys_flag=bits | (16 if v6 else 0))
    return replace(message, reconsume_times=times, properties=properties)


MESSAGES = st.builds(
    failed_before,
    st.sampled_from(["Orders", "%RETRY%G"]),
    st.dictionaries(st.sampled_from(NAMES), TEXTS, max_size=6),
    st.integers(0, 20) | st.just(2**31 - 1),
    st.sampled_from([0, 2, 8]),
    st.booleans(),
)


@settings(max_examples=60)
@given(
    st.lists(st.tuples(MESSAGES, st.integers(-2, 30)), min_size=1, max_size=6), st.integers(0, 18), st.integers(1, 3)
)
def test_a_table_is_sent_back_as_its_messages_are_one_by_one(
    asked: list[tuple[Message, int]], maximum: int, queue_count: int
) -> None:
    config = SubscriptionGroupConfig("G", retry_queue_count=queue_count, retry_max_times=maximum)
    expected = []
    for row, (message, level) in enumerate(asked):
        request = back_request(commitlog_offset=0, group="G", delay_level=level)
        made = plan_send_back(
            message,
            request,
            {"G": config},
            {},
            config=StoreConfig(),
            choose_queue=(row + 5).__mod__,
        ).message
        assert made is not None
        if made.topic == "%RETRY%G":
            made = route_delayed(made, delays_ms=DELAYS_MS, timer=TimerConfig(), now_ms=NOW_MS)
        expected.append(made)
    rows = as_rows([message for message, _ in asked])
    rows = rows.append_column("delay_level", pa.array([level for _, level in asked], pa.int32()))
    assert inner_messages(send_back(rows, config, first_row=5).messages) == expected


# Rows that are refused

MAPS = pa.map_(pa.string(), pa.string())


def send_back(rows: pa.RecordBatch, config: SubscriptionGroupConfig, **rules: Any) -> SentBack:
    """Sent back, and every row of them."""
    rejections = Rejections()
    sent = send_back_rows(rows, config, rejections, delays_ms=DELAYS_MS, now_ms=NOW_MS, **rules)
    assert not rejections
    return sent


@pytest.mark.parametrize(
    ("column", "value", "rule"),
    [
        ("topic", pa.array([None], pa.string()), "it is null"),
        ("topic", pa.array(["a\x02b"]), "0x01 or 0x02"),
        ("topic", pa.array(["../x"]), "cannot be the name of a directory"),
        ("msg_id", pa.array([None], pa.string()), "it is null"),
        ("msg_id", pa.array(["7F\x02"]), "0x01 or 0x02"),
        ("body", pa.array([None], pa.binary()), "it is null"),
        ("body", pa.array([b""]), "it has no body, and a broker cannot deliver it later"),
        ("properties", pa.array([[("a\x01", "b")]], MAPS), "a name holds 0x01 or 0x02"),
        ("properties", pa.array([[("a", "b\x02c")]], MAPS), "a value holds 0x02"),
        ("properties", pa.array([[("", "b")]], MAPS), "a name is empty"),
        ("reconsume_times", pa.array([1 << 40], pa.int64()), "does not fit into 32 bits"),
        ("born_host", pa.array(["nowhere"]), "'nowhere' is no address:port"),
    ],
)
def test_a_row_that_cannot_be_sent_back_is_named(column: str, value: pa.Array, rule: str) -> None:
    """The other row goes back."""
    good, bad = as_rows([make_message()]), as_rows([make_message()])
    bad = bad.set_column(bad.schema.names.index(column), column, value)
    rows = pa.concat_tables([pa.table(good), pa.table(bad)], promote_options="permissive").combine_chunks()
    rejections = Rejections()
    sent = send_back_rows(
        rows.to_batches()[0], SubscriptionGroupConfig("G"), rejections, delays_ms=DELAYS_MS, now_ms=NOW_MS
    )
    assert list(rejections) == [1]
    assert rejections[1].column == column
    assert rule in rejections[1].rule
    assert sent.rows.tolist() == [0]
    assert sent.messages.row_count == 1


def test_a_dead_letter_of_a_group_with_a_long_name_is_refused_and_its_retry_is_not() -> None:
    """HookUtils.checkBeforePutMessage: a topic has at most 127 characters, a retry topic 255."""
    rows = as_rows([make_message(), replace(make_message(), reconsume_times=16)])
    rejections = Rejections()
    config = SubscriptionGroupConfig("G" * 140)
    sent = send_back_rows(rows, config, rejections, delays_ms=DELAYS_MS, now_ms=NOW_MS)
    assert list(rejections) == [1]
    assert sent.rows.tolist() == [0]


def test_rows_of_a_group_without_retry_queues_are_given_up() -> None:
    """consumerSendMsgBack: retryQueueNums of 0 is answered with success."""
    sent = send_back(as_rows([make_message()]), SubscriptionGroupConfig("G", retry_queue_count=0))
    assert (sent.messages.row_count, sent.rows.tolist()) == (0, [])


def test_columns_that_are_not_there_have_their_defaults() -> None:
    """A row needs topic, message id, properties and body."""
    rows = as_rows([make_message("Orders")]).select(["topic", "msg_id", "properties", "body"])
    (made,) = inner_messages(send_back(rows, SubscriptionGroupConfig("G")).messages)
    assert (made.born_time_ms, made.born_host, made.flag, made.sys_flag, made.reconsume_times) == (
        NOW_MS,
        None,
        0,
        0,
        1,
    )


def test_a_body_goes_back_as_the_source_gave_it_inflated() -> None:
    """The source inflates bodies, so the flag must not say that it is compressed."""
    rows = as_rows([make_message("Orders", body=b"plain")])
    at = rows.schema.names.index("sys_flag")
    rows = rows.set_column(at, "sys_flag", pa.array([0x8 | 0x1 | 0x300 | 0x30], pa.int32()))
    (made,) = inner_messages(send_back(rows, SubscriptionGroupConfig("G")).messages)
    assert (made.body, made.sys_flag) == (b"plain", 0x8)
