"""Decoders of what clients, brokers and operators ask our name server and our broker.

An input is what comes over one connection: requests as frames, one behind the other. Before it the broker has been asked for what gives
it a topic, a group with a client, a producer and messages.
"""

from __future__ import annotations

import atexit
import base64
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from types import SimpleNamespace
from typing import cast

from spark_mq.access.users import AccessRules, User
from spark_mq.broker.broker import Broker, BrokerParts
from spark_mq.broker.request_table import REQUEST_TABLE
from spark_mq.broker.requests import AskClients, ClientConnection, Outcome, RunAgain
from spark_mq.broker.send_run import RUN_FIELDS
from spark_mq.broker_server.name_servers import Registration
from spark_mq.broker_server.server import Gate
from spark_mq.broker_server.settings import ProcessSettings
from spark_mq.client.calls import signed
from spark_mq.client.errors import ClientError
from spark_mq.client.settings import Credentials
from spark_mq.namesrv.name_server import HANDLERS, NameServer
from spark_mq.namesrv.settings import Configuration
from spark_mq.namesrv.tables import KvConfig, parse_kv_config
from spark_mq.remoting import (
    FrameReader,
    RemotingCommand,
    RequestCode,
    make_request,
    make_response,
    write_body,
)
from spark_mq.remoting import consumers as client
from spark_mq.remoting import routes as route
from spark_mq.remoting.frames import RUN_LEAST, RequestRun, RunReader, encode_answers
from spark_mq.remoting_server.peer import Caller
from storage import open_store
from storage.errors import StateFileError
from storage.rules.response_codes import RequestRefusedError
from storage.service.put_service import PutService
from storage.settings.load import parse_config
from tests.broker.conversation import encode_batch_item
from tests.support.declared import commands_of, declared, declared_request, frame, request_body, request_frame
from tests.support.registrations import write_compressed
from tests.torture.decoders import Decoder, of_json
from tests.torture.mutations import JSON_WORDS, PROPERTY_WORDS
from tests.torture.samples import Samples

_NOW_MS = 1_800_000_000_000
_CREDENTIALS = Credentials("ann", "ann's")
_RULES = AccessRules(authenticates=True, authorizes=True, first_users=(User("ann", "ann's"),))
_VALUES: Mapping[str, object] = {
    "default_topic_queue_count": 4,
    "max_messages": 8,
    "sys_flag": 4,
    "end_time_ms": (1 << 63) - 1,
    "boundary_type": "UPPER",
    "count": 2,
    "commit_or_rollback": 8,
    "delay_level": 1,
    "stats_name": "TOPIC_PUT_NUMS",
    "is_order": False,
    "read_queue_count": 1,
    "write_queue_count": 1,
    "perm": 6,
    "attributes": "+message.type=NORMAL",
    "reconsume_times": 0,
    "max_reconsume_times": None,
    "is_batch": None,
    "request_source": None,
    "key": "k",
    "destination_group": "H",
    "filter_groups": "H",
    "group_name": "H",
    "expression_type": None,
    "recall_handle": base64.urlsafe_b64encode(b"v1 T b %d U" % (_NOW_MS + 60_000)).decode(),
}
"""Where another value than what a declaration gives does more."""
_PROPERTIES = "UNIQ_KEY\x01U\x02TAGS\x01red\x02KEYS\x01k\x02n\x010x1p3\x02REPLY_TO_CLIENT\x01c@1"
_SENT = {**_VALUES, "sys_flag": 0, "properties": _PROPERTIES}
_OWN_VALUES: Mapping[int, Mapping[str, object]] = {
    **dict.fromkeys((10, 310, 324, 325), _SENT),
    RequestCode.SEND_BATCH_MESSAGE: {**_SENT, "is_batch": True},
    RequestCode.UPDATE_AND_CREATE_TOPIC: {"topic": "New"},
    RequestCode.DELETE_TOPIC_IN_BROKER: {"topic": "New"},
    RequestCode.UNREGISTER_CLIENT: {"client_id": "d@1", "consumer_group": "H"},
}
_SQL = "n NOT BETWEEN 1.5 AND 9 OR n > 3 AND TAGS IN ('red', 'blue') OR KEYS CONTAINS 'k' AND NOT x IS NULL"


# The name server


def _read_at_name_server(content: bytes, directory: Path) -> bool:
    """Each request is answered, and what is answered is a frame; routes can be asked for whatever was told before."""
    server = NameServer(Configuration.of({}), started_ms=_NOW_MS)
    caller = Caller("channel", "127.0.0.1")
    are_fine = []
    for number, command in enumerate(commands_of(content)):
        answer = server.answer(command, caller, _NOW_MS + number)
        assert (answer.opaque, answer.is_response) == (command.opaque, True)
        frame(answer)
        are_fine.append(answer.code == 0)
        for notice in server.settle():
            assert notice is not None
        route_of_it = make_request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
        frame(server.answer(route_of_it, caller, _NOW_MS + number))
    server.scan(_NOW_MS + 1_000_000)
    server.settle()
    return any(are_fine)


def _name_server_requests(samples: Samples) -> list[bytes]:
    settings = b"orderMessageEnable=true\nscanNotActiveBrokerInterval=70\n"
    register = partial(request_frame, RequestCode.REGISTER_BROKER, 0, compressed=False)
    first = register()
    made = [
        first + request_frame(code, number, settings if code == RequestCode.UPDATE_NAMESRV_CONFIG else None)
        for number, code in enumerate(sorted(HANDLERS))
    ]
    (old,) = commands_of(first)
    compressed = register(write_compressed(route.RegisterBrokerBody()), compressed=True)
    return [*made, frame(old._replace(version=200)), compressed]


def _read_texts(content: bytes, directory: Path) -> bool:
    """A name server's file, by Java's or by anybody."""
    text = content.decode("utf-8", "replace")
    found = parse_kv_config(text, "kvConfig.json")
    if "\\ud" not in text.lower():  # half of a surrogate pair is written with a question mark
        assert parse_kv_config(found.text(), "kvConfig.json") == found
    return bool(found.tables)


# The broker


class _Served:
    """A broker on a store of its own, opened anew after some hundred inputs."""

    _INPUTS = 200

    def __init__(self) -> None:
        self._open = ExitStack()
        atexit.register(lambda: self._open.close())
        self._left = 0
        self._logged = _Logged()
        self.broker: Broker

    def next(self) -> Broker:
        """The broker for an input."""
        if self._left == 0:
            self._open.close()
            self._open = ExitStack()
            self._begin()
            self._left = self._INPUTS
        self._left -= 1
        return self.broker

    def _begin(self) -> None:
        root = Path(mkdtemp(prefix="served-"))
        self._open.callback(rmtree, root)
        conf = root / "broker.conf"
        conf.write_text(
            "brokerName=b\nbrokerIP1=127.0.0.1\nmappedFileSizeCommitLog=1048576\nmappedFileSizeConsumeQueue=20000\n"
            "maxHashSlotNum=1000\nmaxIndexNum=2000\nenablePropertyFilter=true\nrecallMessageEnable=true\n"
            "timerWheelEnable=true\nmaxMessageSize=65536\n"
        )
        config = parse_config(conf.read_bytes(), str(conf))
        store = open_store(root / "store", config=config, read_only=False, create=True, clock=lambda: _NOW_MS)
        service = self._open.enter_context(PutService(store, starts_duties=False))
        self.broker = self._open.enter_context(
            Broker(service, clock=lambda: _NOW_MS, steady=lambda: _NOW_MS, access=_RULES)
        )
        for number, said in enumerate(_prologue()):
            for command in commands_of(said):
                outcome = self.broker.answer(_CONNECTION, command, _NOW_MS + number)
                assert isinstance(outcome, RemotingCommand), command
                assert outcome.code == 0, (command, outcome)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """What the broker logs as failed is raised: a client is told SYSTEM_ERROR, and nobody knows why."""
        logger = logging.getLogger("spark_mq.broker")
        logger.addHandler(self._logged)
        propagates, logger.propagate = logger.propagate, False
        try:
            yield
        finally:
            logger.propagate = propagates
            logger.removeHandler(self._logged)
            errors, self._logged.errors = self._logged.errors, []
        if errors:
            raise errors[0]


class _Logged(logging.Handler):
    """Exceptions that are logged."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[BaseException] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            self.errors.append(record.exc_info[1])


_CONNECTION = ClientConnection(bytes((127, 0, 0, 1, 0, 0, 0xAF, 0xC8)), "127.0.0.1:45000")
_OTHER = ClientConnection(bytes((127, 0, 0, 1, 0, 0, 0xAF, 0xC9)), "127.0.0.1:45001")


@cache
def _served(directory: Path) -> _Served:
    return _Served()


def _read_at_broker(content: bytes, directory: Path) -> bool:
    """Each request is answered, waits or asks clients, and what it comes to is a frame; nothing in the broker fails."""
    served = _served(directory)
    broker = served.next()
    are_fine = []
    with served.watching():
        for command in commands_of(content):
            if command.code in REQUEST_TABLE:
                with suppress(RequestRefusedError):
                    Gate(broker.parts).check(signed(command, _CREDENTIALS), "203.0.113.7")
            outcome = broker.answer(_OTHER, command, _NOW_MS)
            are_fine.append(_settle(outcome, command))
            for event in broker.take_events():
                if isinstance(event, RunAgain):
                    _settle(broker.answer_again(event.connection, event.command, _NOW_MS), event.command)
        broker.closed(_OTHER)
        broker.take_events()
    return any(are_fine)


def _settle(outcome: Outcome, command: RemotingCommand) -> bool:
    if isinstance(outcome, AskClients):
        for _, question in outcome.questions:
            frame(question)
        answers = tuple(make_response(question, 0, None, {}, command.body) for _, question in outcome.questions)
        outcome = outcome.answer(answers)
    if not isinstance(outcome, RemotingCommand):
        return outcome is not None
    assert (outcome.opaque, outcome.is_response) == (command.opaque, True)
    frame(outcome)
    return outcome.code == 0


def _bodies() -> Mapping[int, bytes]:
    """Where another body than what a declaration gives does more."""
    tags = client.SubscriptionData(topic="T", sub_string="red", tags=("red",), codes=(112785,), sub_version=1)
    sql = client.SubscriptionData(topic="T", sub_string=_SQL, expression_type="SQL92", sub_version=1)
    consumer = declared(client.ConsumerData, group_name="H", subscriptions=(tags, sql))
    return {
        RequestCode.HEART_BEAT: request_body(34, client_id="d@1", consumers=(consumer,)),
        RequestCode.CHECK_CLIENT_CONFIG: request_body(46, subscription=sql),
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: b'{"topicConfigList":[{"topicName":"New","readQueueNums":1,'
        b'"writeQueueNums":1,"perm":6,"attributes":{"+message.type":"FIFO"}}]}',
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: request_body(200, group="H", attributes={}),
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: b'{"groupConfigList":[{"groupName":"H"}]}',
        RequestCode.UPDATE_BROKER_CONFIG: b"maxTransferCountOnMessageInMemory=32\nno.such.setting=1\n",
        **dict.fromkeys((10, 310, 325), b"body"),
        RequestCode.SEND_BATCH_MESSAGE: b"".join(encode_batch_item(b"item", 0, b"TAGS\x01t") for _ in range(3)),
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: b'{"messageQueueTable":{{"brokerName":"b","queueId":0,"topic":"T"}:7}}',
    }


def _prologue() -> list[bytes]:
    """What gives a broker a topic, messages, and clients on a connection of their own."""
    consumer = declared(client.ConsumerData, subscriptions=(client.SubscriptionData(topic="T", sub_string="*"),))
    producers = (client.ProducerData(group_name="P"),)
    return [
        request_frame(RequestCode.UPDATE_AND_CREATE_TOPIC, 0, **{**_VALUES, "attributes": ""}),
        request_frame(34, 0, request_body(34, consumers=(consumer,), producers=producers)),
        *(request_frame(310, 0, b"body %d" % number, **_SENT) for number in range(3)),
        request_frame(RequestCode.UPDATE_CONSUMER_OFFSET, 0),
    ]


def _broker_requests(samples: Samples) -> list[bytes]:
    bodies = _bodies()
    made = [
        request_frame(code, number, bodies.get(code), **{**_VALUES, **_OWN_VALUES.get(code, {})})
        for number, code in enumerate(sorted(REQUEST_TABLE))
    ]
    pull = partial(request_frame, RequestCode.PULL_MESSAGE)
    waiting = {**_VALUES, "queue_offset": 3, "sys_flag": 6, "suspend_timeout_ms": 1_000}
    more = [
        pull(0, **{**_VALUES, "subscription": _SQL, "expression_type": "SQL92"}),
        pull(1, **waiting) + request_frame(310, 0, b"wakes it", **_SENT),
        request_frame(34, 0, bodies[34])
        + pull(1, **{**_VALUES, "consumer_group": "H", "sys_flag": 0, "sub_version": 1}),
    ]
    return [*made, *more]


def _read_in_runs(content: bytes, directory: Path) -> bool:
    """What comes over one connection says the same whether requests that look alike come together or not; and runs are answered."""
    reader = FrameReader(runs=RunReader(RUN_FIELDS))
    found, runs = [], []
    read = reader.feed_runs(content, 16)
    while read:
        for each in read:
            if isinstance(each, RequestRun):
                runs.append(each)
            found += each.commands() if isinstance(each, RequestRun) else [each]
        read = reader.feed_runs(b"", 16) if reader.unread_bytes else []
    alone = FrameReader()
    assert [each._replace(body=bytes(each.body)) for each in found] == [
        each._replace(body=bytes(each.body)) for each in alone.feed(content)
    ]
    assert (reader.error is None) == (alone.error is None)
    served = _served(directory)
    broker = served.next()
    is_taken = False
    with served.watching():
        for run in runs:
            if (begun := broker.begin_run(_OTHER, run, _NOW_MS)) is not None:
                answers = FrameReader().feed(encode_answers(begun(), run.opaques))
                assert [answer.opaque for answer in answers] == list(run.opaques)
                is_taken = True
    return is_taken


def _runs(samples: Samples) -> list[bytes]:
    """One and those like it; with the names of code 10, and of 310."""
    keyed = "UNIQ_KEY\x01key{}\x02KEYS\x01k\x02"
    return [
        b"".join(
            frame(
                declared_request(code, b"body %d" % number, **{**_SENT, "properties": keyed.format(number)})._replace(
                    opaque=number
                )
            )
            for number in range(RUN_LEAST + 2)
        )
        for code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_MESSAGE)
    ]


# What a name server answers to the broker


def _read_order(content: bytes, directory: Path) -> bool:
    """Its word of ordered topics."""
    topics = {"T": SimpleNamespace(order=False)}
    changed: list[str] = []

    def change(name: str, *, order: bool) -> None:
        assert name in topics
        assert order
        changed.append(name)

    parts = cast(BrokerParts, SimpleNamespace(store=SimpleNamespace(topics=topics, change_topic=change)))
    registration = Registration(parts, None, ProcessSettings())
    registration._on_order(make_response(make_request(RequestCode.REGISTER_BROKER), 0, None, {}, content), "n:1")
    return bool(changed)


_WORDS = (
    *JSON_WORDS,
    *PROPERTY_WORDS,
    *(b"-1", b"2147483647", b"9223372036854775807", b"../../x", b"%RETRY%", b"\x00\x00\x00\x05", b"\xff\xff\xff\xff"),
    *(b"0x1p99999", b"n > 1", b"'", b"(", b"NOT ", b" IN (", b"--", b"/*"),
)
DECODERS: Sequence[Decoder] = (
    Decoder("runs of requests", _runs, _read_in_runs, words=_WORDS, inputs=1_000),
    Decoder("requests to a name server", _name_server_requests, _read_at_name_server, words=_WORDS, inputs=1_000),
    of_json(
        "texts of a name server",
        lambda samples: [KvConfig({"N": {"k": "v", "l": "é"}}).text().encode()],
        _read_texts,
        (StateFileError,),
        inputs=300,
    ),
    Decoder("requests to a broker", _broker_requests, _read_at_broker, words=_WORDS, inputs=2_000),
    of_json(
        "what a name server says of ordered topics",
        lambda samples: [write_body(route.KvTable(table={"T": "b:4", "U": ""}))],
        _read_order,
        (ClientError,),
        inputs=300,
    ),
)
