"""Decoders of what name servers and brokers answer to the client and to queries, and of what brokers ask a client.

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
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, cast

from spark_mq.client.admin import AsyncAdmin, FoundMessages
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
    write_body,
)
from spark_mq.remoting import administration as admin
from spark_mq.remoting import consumers as client
from spark_mq.remoting import routes as route
from spark_mq.remoting.messages import CheckTransactionStateRequest
from storage.errors import StorageError
from storage.format.record import encode_record
from storage.names import MASTER_ID
from storage.rules.half_messages import TransactionState
from tests.support.declared import declared_answer
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

    async def invoke(self, address: str, command: RemotingCommand, timeout_ms: int | None = None) -> RemotingCommand:
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


_PULL = Pull(_QUEUE, 0, _TAGS, suspend_ms=0, sends_subscription=True)
_CALLS: Mapping[str, tuple[Callable[[_Admin], Awaitable[object]], Sequence[int]]] = {
    "route": (lambda asked: asked.route("T"), ()),
    "publish queues": (lambda asked: asked.instance.publish_queues("New", default_queue_count=4), ()),
    "subscribe queues": (lambda asked: asked.instance.subscribe_queues("T"), ()),
    "topics": (lambda asked: asked.topics(), (206,)),
    "topics of a cluster": (lambda asked: asked.topics("c"), (224,)),
    "topic stats": (lambda asked: asked.topic_stats("T"), (202,)),
    "topic config": (lambda asked: asked.topic_config("T"), (351,)),
    "delete topic": (lambda asked: asked.delete_topic("T"), (215,)),
    "broker addresses": (lambda asked: asked.broker_addresses("c"), ()),
    "figures": (lambda asked: asked.runtime_info(_ADDRESS), (28,)),
    "groups": (lambda asked: asked.groups(), (201,)),
    "topics of a group": (lambda asked: asked.topics_of_group("G"), (343,)),
    "ids": (lambda asked: asked.consumer_ids("G", "T"), (38,)),
    "consumers": (lambda asked: asked.consumer_connection("G"), (203,)),
    "producers": (lambda asked: asked.producer_connection("G", "T"), (204,)),
    "progress": (lambda asked: asked.consume_stats("G"), (208,)),
    "running info": (lambda asked: asked.running_info("G", "c@1"), (307,)),
    "reset": (lambda asked: asked.reset_offsets("G", "T", 0), (222,)),
    "reset of a queue": (lambda asked: asked.reset_queue_offset("G", _QUEUE, 0), (222,)),
    "end": (lambda asked: asked.max_offset(_QUEUE), (30,)),
    "ends": (lambda asked: asked.max_offsets("T"), (30,)),
    "beginnings": (lambda asked: asked.min_offsets("T"), (31,)),
    "time": (lambda asked: asked.earliest_time_ms(_QUEUE), (32,)),
    "search": (lambda asked: asked.search_offset(_QUEUE, 0), (29,)),
    "group's offset": (lambda asked: asked.group_offset("G", _QUEUE), (14,)),
    "offset stored": (lambda asked: asked.store_group_offset("G", _QUEUE, 7), (15,)),
    "pull": (lambda asked: asked.pull(_PULL, "G"), (11,)),
    "by id": (lambda asked: asked.view_message("7F00000100002A9F0000000000000400"), (33,)),
    "by key": (lambda asked: asked.query_by_key("TopicA", "k"), (12,)),
    "clients of a consumer": (lambda asked: ConsumerCalls(asked.instance, "G").client_ids("T"), (38,)),
    "locks": (lambda asked: ConsumerCalls(asked.instance, "G").lock("b", [_QUEUE]), (41,)),
    "send": (lambda asked: _sent(asked.instance), (310,)),
}


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
    call, _ = calls[_number(first.decode("latin-1")) % len(calls)]
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


def _records(count: int = 3) -> bytes:
    made = (
        make_message(queue_offset=at, body=b"%d" % at, properties={"TAGS": "TagA", "KEYS": "k", "UNIQ_KEY": f"U{at}"})
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
    bodies = {11: _records(), 12: _records(), 33: _records(1)}
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
    honest = honest_answers()
    return [
        SEPARATOR.join([b"%d" % number, *(answer(asked, *honest[asked]) for asked in (105, 106, *codes))])
        for number, (_, codes) in enumerate(_CALLS.values())
    ]


def _call_bombs() -> Sequence[bytes]:
    """Routes of as many queues as an int says, and bodies without end."""
    lists = b'{"brokerDatas":[],"queueDatas":[%s]}'
    queue = b'{"brokerName":"b","perm":6,"readQueueNums":2147483647,"writeQueueNums":2147483647,"topicSysFlag":0}'
    orders = [b'{"orderTopicConf":"b:%s"}' % count for count in (b"9" * 9, b"9" * 5_000, b"1;b:" * 50_000 + b"1")]
    routes = [lists % queue, lists % b",".join([queue.replace(b"2147483647", b"65536")] * 100), *orders]
    bodies = [SEPARATOR.join((b"%d" % number, answer(105, "", body))) for number in (0, 2) for body in routes]
    return [*bodies, *(SEPARATOR.join((b"5", answer(202, "", bomb))) for bomb in JSON_BOMBS)]


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
    offsets = write_body(client.OffsetTable(offset_table={_QUEUE: 7}))
    said = {
        39: ("tranStateTableOffset=1 commitLogOffset=2 msgId=U transactionId=U bname=b", encode_record(half)),
        40: ("consumerGroup=G", b""),
        220: ("topic=T group=G timestamp=7 isForce=true", offsets),
        221: ("topic=T group=G clientAddr=c", b""),
        307: ("consumerGroup=G clientId=c jstackEnable=true", b""),
        309: ("consumerGroup=G clientId=c msgId=U brokerName=b", _records(1)),
        326: ("bornHost=h storeHost=h bornTimestamp=1 storeTimestamp=1 topic=T queueId=0 sysFlag=0 flag=0", b"body"),
    }
    one_each = [SEPARATOR.join((b"", answer(code, *asked))) for code, asked in said.items()]
    return [*one_each, SEPARATOR.join([b"", *(answer(code, *asked) for code, asked in said.items())])]


FIELD_WORDS = (*JSON_WORDS, *(b"=", b" ", SEPARATOR, b"105 0\n", b"-1", b"+7", b"offset=", b"remark=", b"{{", b"}:"))

ANSWER_DECODERS: Sequence[Decoder] = (
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
        "requests to a client", _requests, _read_request, (ClientError, StorageError), words=FIELD_WORDS, inputs=500
    ),
)
