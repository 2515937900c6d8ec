"""A name server and brokers on loopback that take sends as 5.3.3 does, or do what a test plans."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

from spark_mq.client.settings import ClientSettings
from spark_mq.remoting import RemotingCommand, RequestCode, make_response, read_header, write_body, write_header
from spark_mq.remoting.messages import SendMessageAnswer, SendMessageRequest
from spark_mq.remoting.routes import BrokerData, QueueData, TopicRouteData
from storage.format.properties import decode_properties
from storage.format.record import encode_offset_message_id
from tests.support.planned_server import Peer, PlannedServer, planned_server

SENDS = (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2)
Plan = Callable[["PlannedBroker", Peer, RemotingCommand], None]


def store(broker: PlannedBroker, peer: Peer, command: RemotingCommand) -> None:
    """A plan: the message is stored."""
    peer.send(broker.stored(command))


def less_safely(code: int) -> Plan:
    """A plan: the message is stored, with a status that is not SEND_OK."""
    return lambda broker, peer, command: peer.send(broker.stored(command, code))


def refuse(code: int, remark: str = "no") -> Plan:
    """A plan: every send is refused so."""
    return lambda broker, peer, command: peer.send(make_response(command, code, remark, {"MSG_REGION": "R"}))


def hang_up(broker: PlannedBroker, peer: Peer, command: RemotingCommand) -> None:
    """A plan: the connection breaks."""
    peer.hang_up()


def keep_silent(broker: PlannedBroker, peer: Peer, command: RemotingCommand) -> None:
    """A plan: no answer."""


class PlannedBroker:
    """A broker; `plan` says what becomes of a send, all else is answered with success. It is a slave where `broker_id` is not 0."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.plan: Plan = store
        self.broker_id = 0
        self.server: PlannedServer
        self._offsets = itertools.count()

    def serve(self, peer: Peer, command: RemotingCommand) -> None:
        if command.code in SENDS:
            self.plan(self, peer, command)
        elif not command.is_oneway:
            peer.send(make_response(command, 0))

    @property
    def sends(self) -> list[SendMessageRequest]:
        """The headers of all sends that came."""
        return [self.header(command) for command in self.server.commands if command.code in SENDS]

    def header(self, command: RemotingCommand) -> SendMessageRequest:
        return read_header(SendMessageRequest, command)

    def stored(self, command: RemotingCommand, code: int = 0) -> RemotingCommand:
        """The answer of a broker that has it."""
        header = self.header(command)
        offset = next(self._offsets)
        answer = SendMessageAnswer(
            message_id=encode_offset_message_id(b"\x7f\x00\x00\x01", 10911, 100 * offset),
            queue_id=header.queue_id,
            queue_offset=offset,
            transaction_id=decode_properties((header.properties or "").encode()).get("UNIQ_KEY"),
        )
        fields = write_header(answer) | {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
        return make_response(command, code, None, fields)


class PlannedCluster:
    """Brokers by name, and the name server's topics: the number of queues that each has at every broker."""

    def __init__(self, stack: ExitStack, *names: str) -> None:
        self.topics = {"T": 4, "TBW102": 8}
        self.brokers: dict[str, PlannedBroker] = {}
        self.asked: list[str] = []
        for name in names:
            broker = self.brokers[name] = PlannedBroker(name)
            broker.server = stack.enter_context(planned_server(broker.serve))
        self.name_server = stack.enter_context(planned_server(self._route))

    @property
    def settings(self) -> ClientSettings:
        return ClientSettings((self.name_server.address,))

    def plan(self, plan: Plan, *names: str) -> None:
        """What these brokers, or all, do about sends from now on."""
        for name in names or self.brokers:
            self.brokers[name].plan = plan

    @property
    def sends(self) -> list[SendMessageRequest]:
        """The headers of all sends that came, by broker."""
        return [header for broker in self.brokers.values() for header in broker.sends]

    def commands(self, code: int) -> list[RemotingCommand]:
        """What all brokers were asked with that code."""
        return [
            command for broker in self.brokers.values() for command in broker.server.commands if command.code == code
        ]

    def _route(self, peer: Peer, command: RemotingCommand) -> None:
        fields: Mapping[str, str] = command.ext_fields or {}
        self.asked.append(fields["topic"])
        count = self.topics.get(fields["topic"])
        if count is None:
            peer.send(make_response(command, 17, "No topic route info"))
            return
        route = TopicRouteData(
            queue_datas=tuple(
                QueueData(broker_name=name, read_queue_count=count, write_queue_count=count, perm=6)
                for name in self.brokers
            ),
            broker_datas=tuple(
                BrokerData(broker_name=name, broker_addresses={broker.broker_id: broker.server.address})
                for name, broker in self.brokers.items()
            ),
        )
        peer.send(make_response(command, 0, None, None, write_body(route)))


@contextmanager
def planned_cluster(*names: str) -> Iterator[PlannedCluster]:
    """The cluster, closed with the context."""
    with ExitStack() as stack:
        yield PlannedCluster(stack, *names)
