"""Producers and consumers in a client instance: their part of the heartbeat, and their answers to requests of brokers.

39, 40, 220 come one-way. 221, 307, 309, 326 are answered; without a member of the group, with SYSTEM_ERROR and Java's remark.

Java: MQProducerInner, MQConsumerInner, ClientRemotingProcessor. Everything is called on the event loop's thread; user
code must be handed to other threads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Literal, TypeVar

from spark_mq.client.calls import read_answer_body
from spark_mq.client.errors import MalformedResponseError, request_text
from spark_mq.client.remoting_client import RemotingClient
from spark_mq.client.routes import TopicRoute
from spark_mq.remoting import (
    Header,
    HeaderError,
    MessageQueue,
    RemotingCommand,
    RequestCode,
    WireBody,
    make_response,
    read_header,
    write_body,
)
from spark_mq.remoting.consumers import (
    ConsumeDirectlyResult,
    ConsumerData,
    ConsumerGroupRequest,
    ConsumerRunningInfo,
    ConsumerRunningInfoRequest,
    ConsumerStatus,
    ConsumerStatusRequest,
    OffsetTable,
    ResetOffsetRequest,
)
from spark_mq.remoting.messages import CheckTransactionStateRequest, ConsumeDirectlyRequest, ReplyMessageRequest
from storage.errors import CorruptRecordError
from storage.format.record import Message, decode_record
from storage.rules.response_codes import ResponseCode

Kind = Literal["producer", "consumer"]
_PRODUCER_GROUP = "PGROUP"
_LOG = logging.getLogger(__name__)
H = TypeVar("H", bound=Header)


class Member:
    """A producer or consumer group of one instance, one of a kind and name. It answers no requests; subclasses do.

    Topics and groups are as brokers know them (with namespace).
    """

    kind: Kind = "producer"

    def __init__(self, group: str) -> None:
        self.group = group

    def topics(self) -> Collection[str]:
        """Topics whose routes are kept fresh."""
        return ()

    def consumer_data(self) -> ConsumerData | None:
        """A consumer's part of the heartbeat; None: it has none now, or is a producer."""
        return None

    def on_route(self, route: TopicRoute) -> None:
        """A route of one of its topics has changed."""

    def on_consumer_ids_changed(self) -> None:
        """Clients of the group came or went at a broker (40)."""

    async def check_transaction(self, address: str, header: CheckTransactionStateRequest, record: bytes) -> None:
        """A broker asks what became of a half message (39), whose record is given. The answer is a request of its own (37);
        without one the broker asks again.
        """

    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Go on elsewhere, at a broker's wish (220)."""

    async def consumer_status(self, topic: str) -> Mapping[MessageQueue, int]:
        """Its offsets in the queues of a topic (221)."""
        return {}

    async def running_info(self, *, with_stacks: bool) -> ConsumerRunningInfo:
        """Its state (307)."""
        return ConsumerRunningInfo()

    async def consume_directly(self, record: bytes, broker_name: str) -> ConsumeDirectlyResult:
        """Hand one message to the listener, at an operator's wish (309)."""
        return ConsumeDirectlyResult(consume_result="CR_THROW_EXCEPTION", remark="this member has no listener")

    def receive_reply(self, header: ReplyMessageRequest, body: bytes) -> bool:
        """A broker hands on a reply (326); whether it belongs to a request of this producer."""
        return False


FindMember = Callable[[Kind, str], Member | None]


class BrokerRequests:
    """The seven requests, and the members that answer them."""

    def __init__(self, find: FindMember, producers: Callable[[], list[Member]]) -> None:
        self._find = find
        self._producers = producers

    def listen(self, remoting: RemotingClient) -> None:
        """Take what brokers send over this client's connections."""
        remoting.on_request(RequestCode.CHECK_TRANSACTION_STATE, self._check_transaction)
        remoting.on_request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, self._consumer_ids_changed)
        remoting.on_request(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, self._reset_offsets)
        remoting.on_request(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, self._consumer_status)
        remoting.on_request(RequestCode.GET_CONSUMER_RUNNING_INFO, self._running_info)
        remoting.on_request(RequestCode.CONSUME_MESSAGE_DIRECTLY, self._consume_directly)
        remoting.on_request(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, self._receive_reply)

    async def _check_transaction(self, address: str, command: RemotingCommand) -> None:
        header = _header(CheckTransactionStateRequest, command, address)
        record = bytes(command.body)
        group = _producer_group(record, address)
        member = self._find("producer", group) if group else None
        if member is not None:
            await member.check_transaction(address, header, record)

    async def _consumer_ids_changed(self, address: str, command: RemotingCommand) -> None:
        member = self._find("consumer", _header(ConsumerGroupRequest, command, address).consumer_group)
        if member is not None:
            member.on_consumer_ids_changed()

    async def _reset_offsets(self, address: str, command: RemotingCommand) -> None:
        header = _header(ResetOffsetRequest, command, address)
        table = read_answer_body(OffsetTable, command, address, command.code).offset_table
        member = self._find("consumer", header.group)
        if member is not None:
            await member.reset_offsets(header.topic, table)

    async def _consumer_status(self, address: str, command: RemotingCommand) -> RemotingCommand:
        header = _header(ConsumerStatusRequest, command, address)
        member = self._find("consumer", header.group)
        if member is None:
            return _no_member(command, header.group)
        return _answer(command, ConsumerStatus(message_queue_table=await member.consumer_status(header.topic)))

    async def _running_info(self, address: str, command: RemotingCommand) -> RemotingCommand:
        header = _header(ConsumerRunningInfoRequest, command, address)
        member = self._find("consumer", header.consumer_group)
        if member is None:
            return _no_member(command, header.consumer_group)
        return _answer(command, await member.running_info(with_stacks=header.jstack_enable))

    async def _consume_directly(self, address: str, command: RemotingCommand) -> RemotingCommand:
        header = _header(ConsumeDirectlyRequest, command, address)
        member = self._find("consumer", header.consumer_group)
        if member is None:
            return _no_member(command, header.consumer_group)
        broker_name = header.message_broker_name or ""
        return _answer(command, await member.consume_directly(bytes(command.body), broker_name))

    async def _receive_reply(self, address: str, command: RemotingCommand) -> RemotingCommand:
        header = _header(ReplyMessageRequest, command, address)
        body = bytes(command.body)
        if not any(member.receive_reply(header, body) for member in self._producers()):
            _LOG.warning("%s passes on a reply that no request waits for, or no more: %s", address, header.born_host)
        return make_response(command, ResponseCode.SUCCESS)


def _header(header_class: type[H], command: RemotingCommand, address: str) -> H:
    try:
        return read_header(header_class, command)
    except HeaderError as error:
        raise MalformedResponseError(address, request_text(command.code), error.describe()) from None


def _producer_group(record: bytes, address: str) -> str | None:
    """The producer group of a half message, from a property of its record."""
    try:
        message = decode_record(record, check_crc=False)  # it came over a connection, not from a disk
    except CorruptRecordError as error:
        what = request_text(RequestCode.CHECK_TRANSACTION_STATE)
        raise MalformedResponseError(address, what, error.describe()) from None
    return message.properties.get(_PRODUCER_GROUP) if isinstance(message, Message) else None


def _no_member(command: RemotingCommand, group: str) -> RemotingCommand:
    remark = f"The Consumer Group <{group}> not exist in this consumer"
    return make_response(command, ResponseCode.SYSTEM_ERROR, remark)


def _answer(command: RemotingCommand, body: WireBody) -> RemotingCommand:
    return make_response(command, ResponseCode.SUCCESS, None, None, write_body(body))
