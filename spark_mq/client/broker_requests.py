"""What brokers ask a client, handed to the member that it concerns. Java: ClientRemotingProcessor.

39, 40, 220 come one-way. 221, 307, 309, 326 are answered; where no member of the group is there, with SYSTEM_ERROR and
Java's remark.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from spark_mq.client.calls import read_answer_body
from spark_mq.client.errors import MalformedResponseError, request_text
from spark_mq.client.member import Kind, Member
from spark_mq.client.remoting_client import RemotingClient
from spark_mq.remoting import (
    Header,
    HeaderError,
    RemotingCommand,
    RequestCode,
    WireBody,
    make_response,
    read_header,
    write_body,
)
from spark_mq.remoting.consumers import (
    ConsumerGroupRequest,
    ConsumerRunningInfoRequest,
    ConsumerStatus,
    ConsumerStatusRequest,
    OffsetTable,
    ResetOffsetRequest,
)
from spark_mq.remoting.messages import (
    CheckTransactionStateRequest,
    ConsumeDirectlyRequest,
    ReplyMessageRequest,
)
from storage.errors import CorruptRecordError
from storage.format.record import Message, decode_record
from storage.rules.response_codes import ResponseCode

_PRODUCER_GROUP = "PGROUP"
H = TypeVar("H", bound=Header)
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
        for member in self._producers():  # the correlation id in the properties says whose it is
            await member.receive_reply(header, bytes(command.body))
        return make_response(command, ResponseCode.SUCCESS)


def _header(header_class: type[H], command: RemotingCommand, address: str) -> H:
    try:
        return read_header(header_class, command)
    except HeaderError as error:
        raise MalformedResponseError(address, request_text(command.code), error.describe()) from None


def _producer_group(record: bytes, address: str) -> str | None:
    """Who sent a half message: a property of its record says so."""
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
