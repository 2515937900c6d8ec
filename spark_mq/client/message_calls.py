"""Messages by where they are, by key, by unique key. Java: MQAdminImpl."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from spark_mq.client.broker_calls import ask_all
from spark_mq.client.calls import make_call, read_answer_header
from spark_mq.client.errors import MalformedResponseError, request_text
from spark_mq.client.instance import ClientInstance
from spark_mq.client.message import MessageExt, decode_records
from spark_mq.remoting import RemotingCommand, RequestCode
from spark_mq.remoting.codes import ProtocolVersion
from spark_mq.remoting.command import UNIQUE_KEY_QUERY
from spark_mq.remoting.messages import QueryMessageAnswer, QueryMessageRequest, ViewMessageRequest
from storage.errors import CorruptRecordError
from storage.format.record import Message as Record
from storage.format.record import decode_offset_message_id
from storage.names import address_text, same_address
from storage.rules.response_codes import ResponseCode

_END_OF_TIME = 0x7FFF_FFFF_FFFF_FFFF
_QUERY_TIMEOUTS = 3  # Java gives an index look-up three times as long


@dataclass(frozen=True, slots=True)
class FoundMessages:
    """What brokers found, and until when their index knows."""

    messages: tuple[MessageExt, ...]
    index_time_ms: int


class MessageCalls:
    """Calls about messages; topics are as brokers know them (with namespace)."""

    def __init__(self, instance: ClientInstance) -> None:
        self._instance = instance

    async def view_message(self, message_id: str, topic: str | None = None) -> MessageExt:
        """The message of a broker's id, which names its address and its place in the log (33).

        Raises ValueError where it is no such id, ResponseError where nothing is there. `topic` is for access control.
        """
        host, port, offset = decode_offset_message_id(message_id)
        address = address_of_id(host, port)
        code = RequestCode.VIEW_MESSAGE_BY_ID
        request = make_call(code, ViewMessageRequest(topic=topic, commitlog_offset=offset))
        answer = await self._instance.remoting.ask(
            address, request, self._instance.settings.question_timeout_ms, topic=topic
        )
        (record, *_) = _records(answer, address, code)
        return MessageExt.of(record, await self._broker_name(address))

    async def query_by_key(
        self, topic: str, key: str, *, limit: int = 32, begin_ms: int = 0, end_ms: int = _END_OF_TIME
    ) -> FoundMessages:
        """Messages of the topic with that key, stored between the times, over all its brokers (12)."""
        found = await self._query(topic, key, limit, begin_ms, end_ms, is_unique=False)
        return FoundMessages(
            tuple(each for each in found.messages if key in each.keys and each.record.topic == topic),
            found.index_time_ms,
        )

    async def query_by_unique_key(self, topic: str, unique_key: str, *, begin_ms: int = 0) -> FoundMessages:
        """Messages with that UNIQ_KEY: one, and after tries on several brokers more.

        Java looks back three days; here it is as far as the index goes, unless `begin_ms` says otherwise.
        """
        found = await self._query(topic, unique_key, 32, begin_ms, _END_OF_TIME, is_unique=True)
        return FoundMessages(
            tuple(each for each in found.messages if each.message_id == unique_key), found.index_time_ms
        )

    async def _broker_name(self, address: str) -> str:
        """Whose address it is; "" where no name server knows it."""
        name = self._instance.broker_name_at(address)
        if not name:
            brokers = (await self._instance.name_servers.cluster_info()).broker_address_table
            name = next(
                (
                    each
                    for each in brokers
                    if any(same_address(address, known) for known in brokers[each].broker_addresses.values())
                ),
                "",
            )
        return name

    async def _query(
        self, topic: str, key: str, limit: int, begin_ms: int, end_ms: int, *, is_unique: bool
    ) -> FoundMessages:
        code = RequestCode.QUERY_MESSAGE
        header = QueryMessageRequest(
            topic=topic, key=key, max_messages=limit, begin_time_ms=begin_ms, end_time_ms=end_ms
        )
        request = make_call(code, header)
        fields = {**(request.ext_fields or {}), UNIQUE_KEY_QUERY: str(is_unique).lower()}
        request = request._replace(
            ext_fields=fields, version=ProtocolVersion.V4_9_3
        )  # whose signature all brokers check alike
        route = await self._instance.route(topic)
        accepted = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)
        timeout_ms = _QUERY_TIMEOUTS * self._instance.settings.question_timeout_ms
        answers = await ask_all(
            self._instance, route.read_addresses, request, topic=topic, accepted=accepted, timeout_ms=timeout_ms
        )
        messages: list[MessageExt] = []
        index_time_ms = 0
        for address, answer in answers:
            if answer.code == ResponseCode.SUCCESS:
                told = read_answer_header(QueryMessageAnswer, answer, address, code)
                index_time_ms = max(index_time_ms, told.index_last_update_time_ms)
                name = self._instance.broker_name_at(address)
                messages += [MessageExt.of(record, name) for record in _records(answer, address, code)]
        messages.sort(key=lambda each: each.store_time_ms)
        return FoundMessages(tuple(messages), index_time_ms)


def _records(answer: RemotingCommand, address: str, code: int) -> list[Record]:
    try:
        records = decode_records(answer.body)
    except CorruptRecordError as error:
        raise MalformedResponseError(address, request_text(code), error.describe()) from None
    if not records:
        raise MalformedResponseError(address, request_text(code), "success without a record")
    return records


def address_of_id(host: bytes, port: int) -> str:
    """`address:port` as name servers spell it, of what an offset message id says."""
    return address_text(str(ipaddress.ip_address(host)), port)
