"""Sends that look alike are put as columns, and become what each of them becomes alone: records, answers, counts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_mq.broker import send
from spark_mq.broker.broker import Broker
from spark_mq.broker.requests import ClientConnection
from spark_mq.broker.send_run import RUN_FIELDS
from spark_mq.remoting import FrameReader, RemotingCommand
from spark_mq.remoting.frames import RUN_LEAST, RequestRun, RunReader, encode_answers
from storage import MessageStore, open_store
from storage.pending import Pending
from storage.rules.inner_messages import InnerMessage
from storage.rules.priorities import PRIORITY
from storage.rules.response_codes import ResponseCode
from storage.service.put_service import PutService
from storage.settings.load import parse_config
from storage.tables.topics import TopicConfig
from tests.broker.put_cases.case import CONFS, KEY, PAST_MS, PutCase
from tests.broker.put_stores import open_case_store
from tests.broker.put_ways import ROW_CASES
from tests.broker.remoting_client import frame_of
from tests.support.broker_handlers import Send
from tests.support.shares import one_in

CLIENT = ClientConnection(bytes((127, 0, 0, 1)) + (4711).to_bytes(4, "big"), "127.0.0.1:4711")
CLIENT_V6 = ClientConnection(b"\xfd" + bytes(15) + (4711).to_bytes(4, "big"), "[fd00::]:4711")
NOW_MS = 1_800_000_000_000
COUNT = RUN_LEAST + 2
NAMES = """
    KEYS TAGS WAIT DELAY RETRY_TOPIC REAL_TOPIC REAL_QID TRAN_MSG PGROUP MIN_OFFSET MAX_OFFSET BUYER_ID ORIGIN_MESSAGE_ID
    TRANSFER_FLAG CORRECTION_FLAG MQ2_FLAG RECONSUME_TIME MSG_REGION TRACE_ON UNIQ_KEY EXTEND_UNIQ_INFO MAX_RECONSUME_TIMES
    CONSUME_START_TIME INNER_NUM INNER_BASE DUP_INFO CHECK_IMMUNITY_TIME_IN_SECONDS TRAN_PREPARED_QUEUE_OFFSET __transactionId__
    TRANSACTION_CHECK_TIMES INSTANCE_ID CORRELATION_ID REPLY_TO_CLIENT TTL ARRIVE_TIME PUSH_REPLY_TIME CLUSTER MSG_TYPE POP_CK
    POP_CK_OFFSET 1ST_POP_TIME __SHARDINGKEY INNER_MULTI_DISPATCH INNER_MULTI_QUEUE_OFFSET TIMER_DELAY_LEVEL TIMER_ENQUEUE_MS
    TIMER_DEQUEUE_MS TIMER_ROLL_TIMES TIMER_OUT_MS TIMER_DEL_UNIQKEY TIMER_DELAY_SEC TIMER_DELIVER_MS TIMER_DELAY_MS __CRC32#
    DLQ_ORIGIN_TOPIC DLQ_ORIGIN_MESSAGE_ID user
""".split()  # noqa: SIM905 (MessageConst, and one of a user's)


def run_of(requests: list[Send]) -> RequestRun:
    frames = [frame_of(request, number) for number, request in enumerate(requests)]
    reader = FrameReader(runs=RunReader(RUN_FIELDS))
    _, *found = reader.feed_runs(b"".join([frames[0], *frames]), 16)
    (run,) = found
    assert isinstance(run, RequestRun), "they do not look alike"
    assert len(run.opaques) == len(requests)
    return run


def answered_alone(broker: Broker, client: ClientConnection, run: RequestRun) -> list[RemotingCommand]:
    begun: list[Any] = [broker.begin(client, command, NOW_MS) for command in run.commands()]
    return [each() if isinstance(each, Pending) else each for each in begun]


def answered(broker: Broker, client: ClientConnection, run: RequestRun) -> list[RemotingCommand] | None:
    """As a run; None where it is none."""
    pending = broker.begin_run(client, run, NOW_MS)
    return None if pending is None else FrameReader().feed(encode_answers(pending(), run.opaques))


@contextmanager
def case_broker(root: Path, conf: str, **settings: str) -> Iterator[Broker]:
    with PutService(open_case_store(root, conf, **settings)) as service, Broker(service) as broker:
        yield broker


def records(broker: Broker, start: int) -> list[InnerMessage]:
    """All behind that place."""
    with broker.parts.store.service.exclusive() as store:
        return [InnerMessage.of(message) for message in _messages(store, start)]


def _messages(store: MessageStore, start: int) -> Iterator[Any]:
    for offsets, _ in store.log.walk(start, check_crc=True):
        yield from map(store.message_by_commitlog_offset, offsets.tolist())


def told(answers: list[RemotingCommand]) -> list[tuple[object, ...]]:
    """All that is answered."""
    return [(a.code, a.opaque, a.flag, a.remark, list((a.ext_fields or {}).items()), bytes(a.body)) for a in answers]


def requests_of(case: PutCase) -> list[Send]:
    properties = {"WAIT": "true", "UNIQ_KEY": KEY, **case.request.properties}
    return [replace(case.request, properties={**properties, "KEYS": f"k{n}"}) for n in range(COUNT)]


@pytest.mark.parametrize("conf", CONFS)
def test_each_case_is_answered_and_stored_as_it_is_alone(conf: str, tmp_path: Path) -> None:
    taken, unlike = [], []
    with case_broker(tmp_path / "run", conf) as in_runs, case_broker(tmp_path / "alone", conf) as alone:
        for case in ROW_CASES:
            if case.conf != conf or case.request.queue_id < 0 or not case.request.body or case.request.is_batch:
                continue
            try:
                run = run_of(requests_of(case))
            except ValueError:  # it does not look plain, and its frames are read one by one
                unlike.append(case.name)
                continue
            start = in_runs.parts.store.service.log_end, alone.parts.store.service.log_end
            if (answers := answered(in_runs, CLIENT, run)) is not None:
                taken.append(case.name)
            else:
                assert in_runs.parts.store.service.log_end == start[0], "nothing is done"
                answers = answered_alone(in_runs, CLIENT, run)
            assert told(answers) == told(answered_alone(alone, CLIENT, run)), case.name
            assert records(in_runs, start[0]) == records(alone, start[1]), case.name
    assert conf != "plain" or (len(taken) >= 3 and len(unlike) <= 8), (taken, unlike)
    assert not [name for name in taken if "delay" in name or "half" in name or "transaction" in name]


@pytest.fixture(autouse=True)
def _no_random_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send, "unique_keys", lambda: lambda: KEY)


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[tuple[Broker, Broker]]:
    """One is sent runs, the other what the runs hold."""
    with open_pair(tmp_path) as made:
        yield made


@contextmanager
def open_pair(directory: Path, **settings: str) -> Iterator[tuple[Broker, Broker]]:
    def opened(name: str) -> MessageStore:
        text = "".join(f"{key}={value}\n" for key, value in settings.items())
        store = open_store(directory / name, config=parse_config(text.encode()), read_only=False, create=True)
        store.save_topic(TopicConfig("Orders", 4, 4))
        store.save_topic(TopicConfig("Paid", 2, 2))
        store.save_topic(TopicConfig("Compacted", 2, 2, attributes={"cleanup.policy": "COMPACTION"}))
        return store

    with (
        PutService(opened("run")) as one,
        PutService(opened("alone")) as other,
        Broker(one) as in_runs,
        Broker(other) as alone,
    ):
        for broker in (in_runs, alone):
            broker._messages.sender._clock = lambda: NOW_MS
        yield in_runs, alone


def orders(count: int = COUNT, *, topic: str = "Orders", **properties: str) -> list[Send]:
    return [
        Send(
            topic=topic,
            body=b"body %d" % n * (n + 1),
            queue_id=n % 2,
            born_time_ms=PAST_MS + n,
            properties={"UNIQ_KEY": f"key-{n}", **properties, "KEYS": f"ä{n}"},
        )
        for n in range(count)
    ]


def assert_equal(brokers: tuple[Broker, Broker], requests: list[Send], client: ClientConnection = CLIENT) -> bool:
    """Whether it was a run."""
    in_runs, alone = brokers
    run, start = run_of(requests), in_runs.parts.store.service.log_end
    answers = answered(in_runs, client, run)
    expected = answered_alone(alone, client, run)
    if (is_run := answers is not None) is False:
        assert in_runs.parts.store.service.log_end == start, "nothing is done"
        answers = answered_alone(in_runs, client, run)
    assert answers is not None
    assert told(answers) == told(expected)
    assert records(in_runs, start) == records(alone, start)
    for name in ("topic_put_nums", "topic_put_size", "broker_put_nums_without_system_topic"):
        assert getattr(in_runs.parts.traffic.puts, name) == getattr(alone.parts.traffic.puts, name)
    return is_run


@pytest.mark.parametrize("client", [CLIENT, CLIENT_V6], ids=["IPv4", "IPv6"])
def test_plain_sends_are_a_run(brokers: tuple[Broker, Broker], client: ClientConnection) -> None:
    assert assert_equal(brokers, orders(), client)
    mixed = [replace(each, topic="Orders" if n % 3 else "Paid") for n, each in enumerate(orders(WAIT="true"))]
    assert assert_equal(brokers, mixed, client)
    other_names = [*orders(), *orders(TAGS="paid", own="x")]
    assert assert_equal(brokers, other_names, client)
    in_runs, alone = brokers
    by_key = []
    for broker in brokers:
        with broker.parts.store.service.exclusive() as store:
            by_key.append([(m.queue_id, m.queue_offset, m.body) for m in store.messages_by_key("Orders", "ä4")])
    assert by_key[0] == by_key[1] != []
    assert in_runs.parts.traffic.puts.topic_put_latency.keys() == alone.parts.traffic.puts.topic_put_latency.keys()
    counted = {name: each.times for name, each in in_runs.parts.traffic.puts.topic_put_latency.items()}
    assert counted == {name: each.times for name, each in alone.parts.traffic.puts.topic_put_latency.items()}


@pytest.mark.parametrize("name", one_in(8, NAMES, always=["DELAY", "TIMER_DELIVER_MS"]))
def test_any_property_has_the_effect_that_it_has_alone(brokers: tuple[Broker, Broker], name: str) -> None:
    """Of the first, of the last, of one in the middle, of all; with values by which a broker decides."""
    for value in ("true", "0", "3", str(PAST_MS), "x"):
        with_name = orders(own="1", **{name: value})
        for rows in ({5}, set(range(COUNT))):
            assert_equal(brokers, [with_name[n] if n in rows else each for n, each in enumerate(orders(own="1"))])
        differs = [
            replace(each, properties={**each.properties, name: value if n else "1"}) for n, each in enumerate(with_name)
        ]
        assert_equal(brokers, differs)


def test_a_priority_is_the_queue_also_in_a_run(tmp_path: Path) -> None:
    with open_pair(tmp_path, rocketmqVersion="5.4.0") as brokers:
        for value, queue_id in (("2", 2), ("9", 3)):
            assert_equal(brokers, orders(**{PRIORITY: value}))
            for broker in brokers:
                assert {message.queue_id for message in records(broker, 0)[-COUNT:]} == {queue_id}


WRONG: Mapping[str, dict[str, Any]] = {
    "queue that is not there": {"queue_id": 4},
    "topic that is not there": {"topic": "rmq_sys_absent"},
    "topic that a broker makes": {"topic": "Made"},
    "system topic": {"topic": "SCHEDULE_TOPIC_XXXX"},
    "retry topic": {"topic": "%RETRY%g"},
    "compacted topic": {"topic": "Compacted", "properties": {"UNIQ_KEY": "u", "KEYS": " "}},
    "no key": {"properties": {"KEYS": "k"}},
    "empty key": {"properties": {"UNIQ_KEY": "", "KEYS": "k"}},
    "key to be quoted": {"properties": {"UNIQ_KEY": "\x7fü", "KEYS": "k"}},
    "no properties": {"properties": {}},
    "empty property": {"properties": {"UNIQ_KEY": "u", "own": "", "KEYS": "k"}},
    "no body": {"body": b""},
    "large body": {"body": b"x" * 2_001},
    "long properties": {"properties": {"UNIQ_KEY": "u", "own": "x" * 32_760}},
}


@pytest.mark.parametrize("row", [1, 5, COUNT - 1])
@pytest.mark.parametrize("wrong", WRONG)
def test_one_that_is_wrong_is_refused_alone(tmp_path: Path, wrong: str, row: int) -> None:
    requests = orders()
    requests[row] = replace(requests[row], **WRONG[wrong])
    with open_pair(tmp_path, maxMessageSize="2000") as brokers:
        assert_equal(brokers, requests)


def test_properties_that_are_no_map_are_read_as_alone(brokers: tuple[Broker, Broker]) -> None:
    for text in (
        "a\x01b\x02a\x01c\x02",
        "a\x02b\x01c\x02",
        "\x01\x02",
        "a\x01b\x01c\x02",
        "a\x01b\x00c\x02",
        "a\x00\x01b\x02",
        "a\x01b",
    ):
        run = run_of(orders(own="x"))
        properties = [b"UNIQ_KEY\\u0001u\\u0002" + text.replace("\x01", "\\u0001").encode() for _ in run.opaques]
        frames = b"".join(
            _with_properties(bytes(run.frames[start:end]), encoded)
            for start, end, encoded in zip(run.starts, [*run.starts[1:], len(run.frames)], properties, strict=True)
        )
        reader = FrameReader(runs=RunReader(RUN_FIELDS))
        found = reader.feed_runs(frames + frames, 16)
        runs = [each for each in found if isinstance(each, RequestRun)]
        in_runs, alone = brokers
        start = in_runs.parts.store.service.log_end
        for each in runs:
            answers = answered(in_runs, CLIENT, each) or answered_alone(in_runs, CLIENT, each)
            assert told(answers) == told(answered_alone(alone, CLIENT, each))
        assert records(in_runs, start) == records(alone, start)


def test_a_name_without_a_value_is_dropped_beside_sends_that_have_one(brokers: tuple[Broker, Broker]) -> None:
    run = run_of(orders(own="x"))
    texts = [b"UNIQ_KEY\\u0001u\\u0002a\\u0001x\\u0002b\\u0001c\\u0002" for _ in run.opaques]
    texts[5] = b"UNIQ_KEY\\u0001u\\u0002a\\u0002b\\u0001c\\u0002"
    ends = [*run.starts[1:], len(run.frames)]
    frames = [
        _with_properties(bytes(run.frames[start:end]), text)
        for start, end, text in zip(run.starts, ends, texts, strict=True)
    ]
    *_, found = FrameReader(runs=RunReader(RUN_FIELDS)).feed_runs(frames[0] + b"".join(frames), 16)
    assert isinstance(found, RequestRun)
    in_runs, alone = brokers
    answers = answered(in_runs, CLIENT, found) or answered_alone(in_runs, CLIENT, found)
    assert told(answers) == told(answered_alone(alone, CLIENT, found))
    assert records(in_runs, 0) == records(alone, 0)


def test_each_topic_says_whether_its_messages_have_many_tags(brokers: tuple[Broker, Broker]) -> None:
    for broker in brokers:
        broker.parts.store.service.make_topic(TopicConfig("Many", 4, 4, topic_filter_type="MULTI_TAG"))
    assert_equal(brokers, [replace(each, topic=("Orders", "Many")[n % 2]) for n, each in enumerate(orders(TAGS="x"))])
    assert assert_equal(brokers, orders(topic="Many", TAGS="x"))


def test_one_that_fits_no_log_file_is_refused_alone(tmp_path: Path) -> None:
    requests = orders()
    requests[5] = replace(requests[5], body=b"x" * 70_000)
    with open_pair(tmp_path, mappedFileSizeCommitLog="65536") as brokers:
        assert_equal(brokers, requests)


def _with_properties(frame: bytes, text: bytes) -> bytes:
    size = int.from_bytes(frame[4:8], "big")
    header, body = frame[8 : 8 + size], frame[8 + size :]
    begin = header.index(b'"properties":"') + len(b'"properties":"')
    header = header[:begin] + text + header[header.index(b'"', begin) :]
    return (4 + len(header) + len(body)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header + body


def test_a_store_that_takes_nothing_says_so_to_each(brokers: tuple[Broker, Broker]) -> None:
    for broker in brokers:
        broker.parts.store.service.refuse_puts()
    in_runs, alone = brokers
    run = run_of(orders())
    answers = answered(in_runs, CLIENT, run) or answered_alone(in_runs, CLIENT, run)
    assert {answer.code for answer in answers} == {ResponseCode.SERVICE_NOT_AVAILABLE}
    assert [a.code for a in answers] == [a.code for a in answered_alone(alone, CLIENT, run)]


def test_a_run_waits_for_its_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_pair(tmp_path, flushDiskType="SYNC_FLUSH") as brokers:
        assert assert_equal(brokers, orders())
        service = brokers[0].parts.store.service
        assert service._writer.synced_end == service.log_end
