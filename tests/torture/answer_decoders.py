"""Decoders of what name servers and brokers answer to the client, to queries and to a slave, and of what brokers ask a client.

An input of calls is a number, which says which call is made, and the answers that it gets, apart by a line `%%`:

    7
    %%
    105 0
    {"brokerDatas":…}
    %%
    30 0 offset=7
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, cast

from spark_mq.broker_server.escape_bridge import EscapeBridge
from spark_mq.broker_server.member_group import Member as GroupMember
from spark_mq.client.admin import AsyncAdmin, FoundMessages, NewTopic
from spark_mq.client.consumer_calls import ConsumerCalls
from spark_mq.client.errors import ClientError
from spark_mq.client.instance import ClientInstance
from spark_mq.client.members import BrokerRequests, Member
from spark_mq.client.message import MessageExt
from spark_mq.client.pulls import Pull, PullResult, pulled_messages, subscription
from spark_mq.client.remoting_client import NameServers, RemotingClient
from spark_mq.client.routes import TopicRoute, default_route, subscribe_address, vip_address
from spark_mq.client.send_results import end_after_send, read_send_answer
from spark_mq.client.settings import ClientSettings, ProducerSettings
from spark_mq.client.transaction_producer import TransactionChecks
from spark_mq.remoting import (
    ANSWER_BODIES,
    ANSWER_HEADERS,
    MessageQueue,
    RemotingCommand,
    RequestCode,
    make_request,
    make_response,
    read_header,
    write_body,
)
from spark_mq.remoting import administration as admin
from spark_mq.remoting import routes as route
from spark_mq.remoting.messages import CheckTransactionStateRequest, SendMessageRequest
from storage.errors import StorageError
from storage.format.properties import CRC_NAME, decode_properties
from storage.format.record import encode_record
from storage.format.typed_json import SubscriptionGroupConfig
from storage.names import MASTER_ID
from storage.rules.half_messages import TransactionState
from storage.rules.inner_messages import InnerMessage
from tests.support.declared import declared_answer, declared_request
from tests.support.message_builder import make_message
from tests.torture.decoders import JSON_BOMBS, Decoder
from tests.torture.mutations import JSON_WORDS, PROPERTY_WORDS
from tests.torture.samples import Samples

SEPARATOR = b"\n%%\n"
_SETTINGS = ClientSettings(("n:1",))
_ADDRESS = "b:10911"
_QUEUE = MessageQueue("T", "b", 0)
_TAGS = subscription("T", "TagA || TagB", 0)


def answer_parts(content: bytes) -> tuple[bytes, dict[int, tuple[int, dict[str, str], bytes]]]:
    """The first line, and the answers by the code of their request: code, fields, body."""
    first, *parts = content.split(SEPARATOR)
    found = {}
    for part in parts:
        head, _, body = part.partition(b"\n")
        asked, code, *fields = [*head.decode("utf-8", "replace").split(" "), "", ""][:30]
        pairs = (field.partition("=") for field in fields if "=" in field)
        found[_number(asked)] = _number(code), {name: value for name, _, value in pairs}, body
    return first, found


def _number(text: str) -> int:
    return int(text) if text.isdecimal() and text.isascii() and len(text) < 6 else 0


# Calls of the client


class _Answering(RemotingClient):
    """Every request is answered by the input, as any server could."""

    def __init__(self, answers: Mapping[int, tuple[int, dict[str, str], bytes]]) -> None:
        self._handlers = {}
        self._unknown_codes = {}
        self.on_connected = None
        self._answers = answers
        self.codes: list[int] = []
        """Of what was asked."""

    async def invoke(self, address: str, command: RemotingCommand, timeout_ms: int | None = None) -> RemotingCommand:
        self.codes.append(command.code)
        code, fields, body = self._answers.get(command.code, (0, {}, b""))
        return make_response(command, code, fields.get("remark"), fields, body)

    async def invoke_oneway(self, address: str, command: RemotingCommand, timeout_ms: int | None = None) -> None:
        return None


@cache
def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


def _instance(answers: Mapping[int, tuple[int, dict[str, str], bytes]]) -> ClientInstance:
    instance = ClientInstance(_SETTINGS, "127.0.0.1@1")
    instance.remoting = _Answering(answers)
    instance.name_servers = NameServers(instance.remoting, _SETTINGS)
    instance._loop = _loop()
    return instance


class _Admin(AsyncAdmin):
    """Over an instance that nobody shares."""

    def __init__(self, instance: ClientInstance) -> None:
        self._instance = instance


_ARGUMENTS: Mapping[str, Any] = {
    "topic": "T",
    "group": "G",
    "cluster": "c",
    "queue": _QUEUE,
    "queues": (_QUEUE,),
    "broker_name": "b",
    "broker_id": 0,
    "address": _ADDRESS,
    "client_id": "c@1",
    "offset": 7,
    "time_ms": 0,
    "key": "k",
    "name": "TOPIC_PUT_NUMS",
    "unique_key": "U0",
    "message_id": "7F00000100002A9F0000000000000000",
    "new": NewTopic("T"),
    "config": SubscriptionGroupConfig("G"),
    "pull": Pull(_QUEUE, 0, _TAGS, suspend_ms=0, sends_subscription=True),
}
"""By the name of a parameter."""
_Call = Callable[[_Admin], Awaitable[object]]


def _calls_of(kind: type, of: Callable[[_Admin], Any]) -> dict[str, _Call]:
    """The public calls of a class whose arguments are known by their names; one that may name a cluster is made without, and with."""
    found: dict[str, _Call] = {}
    for name, call in inspect.getmembers(kind, inspect.iscoroutinefunction):
        parameters = list(inspect.signature(call).parameters.values())[1:]
        required = [each.name for each in parameters if each.default is each.empty]
        if name.startswith("_") or not parameters or not _ARGUMENTS.keys() >= set(required):
            continue
        choices = ((), ("cluster",)) if any(each.name == "cluster" for each in parameters) else ((),)
        for more in choices:
            given = {each: _ARGUMENTS[each] for each in (*required, *more)}
            found[" of ".join((name, *more))] = partial(_made, of, name, given)
    return found


async def _made(of: Callable[[_Admin], Any], name: str, given: Mapping[str, Any], asked: _Admin) -> object:
    if (calls := of(asked)) is not asked:
        await asked.instance.route("T")  # a consumer knows where its brokers are
    return await getattr(calls, name)(**given)


_CALLS: Mapping[str, _Call] = {
    **_calls_of(AsyncAdmin, lambda asked: asked),
    **{
        f"consumer's {name}": call
        for name, call in _calls_of(ConsumerCalls, lambda asked: ConsumerCalls(asked.instance, "G")).items()
    },
    "publish queues": lambda asked: asked.instance.publish_queues("New", default_queue_count=4),
    "send": lambda asked: _sent(asked.instance),
}
_NUMBERS = {name: number for number, name in enumerate(_CALLS)}


async def _sent(instance: ClientInstance) -> object:
    """What a send's answer says, and the end of a transaction that goes by it."""
    code = RequestCode.SEND_MESSAGE_V2
    answer = await instance.invoke(_ADDRESS, make_request(code))
    message_id = "7F00000100002A9F0000000000000400"
    result = read_send_answer(answer, code, _ADDRESS, "b", "ns%T", message_id, "ns")
    if isinstance(result, ClientError):
        raise result
    return end_after_send("G", "T", result, TransactionState.COMMIT)


def _read_call(content: bytes, directory: Path) -> bool:
    first, answers = answer_parts(content)
    calls = list(_CALLS.values())
    call = calls[_number(first.decode("latin-1")) % len(calls)]
    result = _loop().run_until_complete(_as_coroutine(call, _Admin(_instance(answers))))
    _look_into(result)
    return True


async def _as_coroutine(call: Callable[[_Admin], Awaitable[object]], asked: _Admin) -> object:
    return await call(asked)


def _look_into(result: object) -> None:
    """What a program does with a result."""
    if isinstance(result, TopicRoute):
        _look_into_route(result)
    elif isinstance(result, PullResult):
        for message in pulled_messages(result, _QUEUE, _TAGS, lambda record: record.topic):
            look_into_message(message)
    elif isinstance(result, FoundMessages):
        for message in result.messages:
            look_into_message(message)
    elif isinstance(result, MessageExt):
        look_into_message(result)


def _look_into_route(found: TopicRoute) -> None:
    assert all(queue.topic == found.topic for queue in (*found.publish_queues, *found.subscribe_queues))
    assert len(found.master_addresses) <= len(found.read_addresses)
    default_route("New", found, 8)
    for addresses in found.brokers.values():
        for address in addresses.values():
            with suppress(ClientError):
                vip_address(address)
        assert addresses.get(MASTER_ID) == subscribe_address(addresses, MASTER_ID, only_this=True)


def look_into_message(message: MessageExt) -> None:
    """All that a program can ask of it. Raises StorageError for a body that does not decompress."""
    assert message.tags is None or message.tags == message.properties["TAGS"]
    assert isinstance(message.message_id, str)
    assert all((message.offset_message_id, message.born_host, message.store_host))
    assert isinstance(message.keys, list)
    assert message.failed_once_more().reconsume_times == message.reconsume_times + 1
    assert isinstance(message.body, bytes)


def _records(topic: str, count: int = 3) -> bytes:
    said = {"TAGS": "TagA", "KEYS": "k"}
    made = (
        make_message(topic, queue_offset=at, body=b"%d" % at, properties={**said, "UNIQ_KEY": f"U{at}"})
        for at in range(count)
    )
    return b"".join(map(encode_record, made))


def honest_answers(topic: str = "T") -> Mapping[int, tuple[str, bytes]]:
    """Fields and body of an answer to each request, by its code, where one topic is."""
    queues = (route.QueueData(broker_name="b", read_queue_count=4, write_queue_count=4, perm=6),)
    broker = route.BrokerData(cluster="c", broker_name="b", broker_addresses={0: _ADDRESS, 1: "s:10911"})
    values: Mapping[int, Mapping[str, object]] = {
        11: {"next_begin_offset": 3, "max_offset": 9},
        **{code: {"queue_offset": offset} for code, offset in ((14, 7), (29, 7), (30, 9), (31, 0))},
        202: {"offset_table": {MessageQueue(topic, "b", 0): admin.TopicOffset(max_offset=9)}},
        105: {"queue_datas": queues, "broker_datas": (broker,), "order_topic_conf": "b:4"},
        106: {"broker_address_table": {"b": broker}, "cluster_address_table": {"c": ("b",)}},
        310: {"message_id": "7F00000100002A9F0000000000000400", "queue_offset": 7},
    }
    bodies = {11: _records(topic), 12: _records(topic), 33: _records(topic, 1)}
    topics = write_body(route.TopicList(topics=(topic, "U")))
    bodies |= dict.fromkeys((206, 224, 343), topics) | {300: write_body(admin.GroupList(groups=("G",)))}
    found = {}
    for code in (*_ANSWERED, *ANSWER_BODIES, *ANSWER_HEADERS, *bodies):
        said, body = declared_answer(code, topic, **values.get(code, {}))
        fields = [f"{name}={value}" for name, value in said.items() if value]
        found[code] = " ".join([*fields, "remark=FOUND"] if code == 11 else fields), bodies.get(code, body)
    return found


_ANSWERED = (15, 17, 215)
"""Of which an answer says nothing but its code."""


def answer(asked: int, fields: str, body: bytes, code: int = 0) -> bytes:
    """An answer as it stands in an input."""
    return f"{asked} {code} {fields}".rstrip().encode() + b"\n" + body


def _calls(samples: Samples) -> list[bytes]:
    """Each call with the honest answers that it gets."""
    honest = honest_answers()
    inputs = []
    for number, call in enumerate(_CALLS.values()):
        _loop().run_until_complete(_as_coroutine(call, found := _Admin(_instance(_ready(honest)))))
        codes = dict.fromkeys(cast(_Answering, found.instance.remoting).codes)
        inputs.append(
            SEPARATOR.join([b"%d" % number, *(answer(code, *honest[code]) for code in codes if code in honest)])
        )
    return inputs


def _ready(honest: Mapping[int, tuple[str, bytes]]) -> Mapping[int, tuple[int, dict[str, str], bytes]]:
    return answer_parts(SEPARATOR.join([b"", *(answer(code, *honest[code]) for code in honest)]))[1]


def _route_bombs() -> Sequence[bytes]:
    """Routes of as many queues as an int says."""
    lists = b'{"brokerDatas":[],"queueDatas":[%s]}'
    queue = b'{"brokerName":"b","perm":6,"readQueueNums":2147483647,"writeQueueNums":2147483647,"topicSysFlag":0}'
    orders = [b'{"orderTopicConf":"b:%s"}' % count for count in (b"9" * 9, b"9" * 5_000, b"1;b:" * 50_000 + b"1")]
    return [lists % queue, lists % b",".join([queue.replace(b"2147483647", b"65536")] * 100), *orders]


def _call_bombs() -> Sequence[bytes]:
    """Routes without end, and bodies without end."""
    taking = [b"%d" % _NUMBERS[name] for name in ("route", "consumer's queues")]
    bodies = [SEPARATOR.join((number, answer(105, "", body))) for number in taking for body in _route_bombs()]
    stats = b"%d" % _NUMBERS["topic_stats"]
    return [*bodies, *(SEPARATOR.join((stats, answer(202, "", bomb))) for bomb in JSON_BOMBS)]


# What a slave that stands in for its master puts at another one


def _read_escape(content: bytes, directory: Path) -> bool:
    """A message, whose properties are the first line, put at a master that answers. The properties are sent as the log has them."""
    first, answers = answer_parts(content)
    properties = decode_properties(first)
    message = InnerMessage(topic="T", queue_id=0, body=b"half", properties=properties)
    bridge = EscapeBridge(GroupMember("c", "own", 1, "o:10911"), _SETTINGS, lambda: True)
    bridge._client = _Answering(answers)
    bridge._name_servers = NameServers(bridge._client, _SETTINGS)
    sent = read_header(SendMessageRequest, bridge._request(message, _QUEUE))
    kept = {name: value for name, value in properties.items() if name != CRC_NAME}
    assert decode_properties((sent.properties or "").encode()) == kept
    return bridge.put(message) is None


def _escapes(samples: Samples) -> list[bytes]:
    honest = honest_answers()
    said = [answer(code, *honest[code]) for code in (RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.SEND_MESSAGE_V2)]
    strings = [b"", b"PGROUP\x01G\x02__CRC32#\x011234567890\x02", *samples.property_strings[:8]]
    return [SEPARATOR.join((text, *said)) for text in strings]


def _escape_bombs() -> Sequence[bytes]:
    return [SEPARATOR.join((b"", answer(105, "", body))) for body in (*_route_bombs(), *JSON_BOMBS)]


# What brokers ask


class _Listening(Member):
    """A producer and a consumer of every group."""

    def __init__(self, checks: TransactionChecks) -> None:
        super().__init__("G")
        self._checks = checks

    async def check_transaction(self, address: str, header: CheckTransactionStateRequest, record: bytes) -> None:
        self._checks.ask(address, header, record)

    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        assert all(isinstance(offset, int) for offset in offsets.values())


def _read_request(content: bytes, directory: Path) -> bool:
    """Each request that the input holds, by the handler of its code."""
    _, requests = answer_parts(content)
    instance = _instance({})
    none = ProducerSettings(check_limit=1)
    checks = TransactionChecks(instance, none, "G", lambda message: TransactionState.UNKNOWN)
    checks._waiting = none.check_limit  # the listener's threads are not what is looked at
    member = _Listening(checks)
    remoting = cast(_Answering, instance.remoting)
    BrokerRequests(lambda kind, group: member, lambda: [member]).listen(remoting)
    for code, (_, fields, body) in requests.items():
        if code in remoting._handlers:
            _loop().run_until_complete(_handled(remoting._handlers[code], make_request(code, fields, body)))
    return any(code in remoting._handlers for code in requests)


async def _handled(handler: Callable[[str, RemotingCommand], Awaitable[Any]], command: RemotingCommand) -> None:
    await handler(_ADDRESS, command)


def _requests(samples: Samples) -> list[bytes]:
    half = make_message("RMQ_SYS_TRANS_HALF_TOPIC", properties={"PGROUP": "G", "REAL_TOPIC": "T", "UNIQ_KEY": "U"})
    bodies = {39: encode_record(half), 309: _records("T", 1), 326: b"body"}
    asked = [declared_request(code, bodies.get(code)) for code in (39, 40, 220, 221, 307, 309, 326)]
    texts = (" ".join(f"{name}={value}" for name, value in (each.ext_fields or {}).items()) for each in asked)
    said = [answer(each.code, text, bytes(each.body)) for each, text in zip(asked, texts, strict=True)]
    return [*(SEPARATOR.join((b"", each)) for each in said), SEPARATOR.join((b"", *said))]


FIELD_WORDS = (*JSON_WORDS, *(b"=", b" ", SEPARATOR, b"105 0\n", b"-1", b"+7", b"offset=", b"remark=", b"{{", b"}:"))

DECODERS: Sequence[Decoder] = (
    Decoder(
        "answers to a client",
        _calls,
        _read_call,
        (ClientError, StorageError),
        words=(*FIELD_WORDS, *PROPERTY_WORDS),
        inputs=1_500,
        bombs=_call_bombs,
    ),
    Decoder(
        "answers to a slave that stands in",
        _escapes,
        _read_escape,
        words=(*FIELD_WORDS, *PROPERTY_WORDS),
        inputs=300,
        bombs=_escape_bombs,
    ),
    Decoder(
        "requests to a client", _requests, _read_request, (ClientError, StorageError), words=FIELD_WORDS, inputs=500
    ),
)
