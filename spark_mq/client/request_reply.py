"""Requests that wait for a reply: a message with an id, and the reply that a broker pushes to the client of that id.

    producer.request(message) ──send──▶ broker ──▶ consumer ──reply (325)──▶ broker ──push (326)──▶ here, by CORRELATION_ID

    CORRELATION_ID     joins the two
    REPLY_TO_CLIENT    the client id of the one who asks; the broker knows its connection by its heartbeats
    TTL                its time-out, in ms

A reply goes to topic `CLUSTER_REPLY_TOPIC`, at the broker that handed out the request: the client that asks is connected there. Of a
static topic it is the broker that stored the request, where a route has its address. Java sends it to any broker of the cluster, which
may not know that client.

Java: RequestResponseFuture, RequestFutureHolder, MessageUtil.createReplyMessage, ClientRemotingProcessor.receiveReplyMessage.
Departures: a request ends at its time-out, not at the next look of each second. In 5.3.1 to 5.3.3 most of Java's `request` methods end
as soon as the message is stored, mostly without the reply; here they wait for it.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Mapping
from concurrent.futures import Future

from spark_mq.client.errors import ClientClosedError, MessageRefusedError, ReplyTimeoutError, RequestTimeoutError
from spark_mq.client.message import MessageExt
from spark_mq.client.send_results import SendResult
from spark_mq.client.settings import without_namespace
from spark_mq.remoting.messages import ReplyMessageRequest
from storage.epoch_times import current_time_ms
from storage.format.properties import decode_properties
from storage.format.record import Message as Record
from storage.names import REPLY_TOPIC_SUFFIX, split_address

CORRELATION_ID, REPLY_TO_CLIENT, TTL = "CORRELATION_ID", "REPLY_TO_CLIENT", "TTL"
_CLUSTER = "CLUSTER"
_LOG = logging.getLogger(__name__)


class Asked:
    """A request on its way; the receiver of its send's outcome (`transport.Promise`)."""

    def __init__(
        self, pending: PendingRequests, correlation_id: str, topic: str, timeout_ms: int, reply: Future[MessageExt]
    ) -> None:
        self._pending = pending
        self.correlation_id = correlation_id
        self.topic = topic
        self.timeout_ms = timeout_ms
        self.reply = reply
        self.is_stored = False
        self.timer: asyncio.TimerHandle | None = None

    def done(self) -> bool:
        """Whether it has ended."""
        return self.reply.done()

    def set_result(self, result: SendResult) -> None:
        """It is stored: the reply is waited for."""
        self.is_stored = True

    def set_exception(self, error: Exception) -> None:
        """It was not sent."""
        self._pending.end(self, error)

    def too_late(self) -> None:
        """Its time is over."""
        if self.is_stored:
            self._pending.end(self, ReplyTimeoutError(self.topic, self.timeout_ms, self.correlation_id))
        else:
            self._pending.end(self, RequestTimeoutError(f"a request to topic {self.topic}", self.timeout_ms))


class PendingRequests:
    """The requests of one producer that wait for replies, by correlation id. On the loop's thread."""

    def __init__(self, namespace: str | None) -> None:
        self._namespace = namespace
        self._asked: dict[str, Asked] = {}

    def begin(self, asked: Asked, deadline: float) -> None:
        """Wait for its reply until then (the loop's clock)."""
        self._asked[asked.correlation_id] = asked
        asked.timer = asyncio.get_running_loop().call_at(deadline, asked.too_late)

    def receive(self, header: ReplyMessageRequest, body: bytes) -> bool:
        """Whether a request waits for that reply. It has its reply then."""
        properties = decode_properties((header.properties or "").encode())
        asked = self._asked.get(properties.get(CORRELATION_ID, ""))
        if asked is None:
            return False
        self.end(asked, self._reply(header, properties, body))
        return True

    def end(self, asked: Asked, outcome: MessageExt | Exception) -> None:
        """It has its reply, or an error. Only the first counts."""
        if self._asked.pop(asked.correlation_id, None) is None:
            return
        if asked.timer is not None:
            asked.timer.cancel()
        if isinstance(outcome, Exception):
            asked.reply.set_exception(outcome)
        else:
            asked.reply.set_result(outcome)

    def close(self, error: ClientClosedError) -> None:
        """No reply comes any more."""
        for asked in list(self._asked.values()):
            self.end(asked, error)

    def _reply(self, header: ReplyMessageRequest, properties: Mapping[str, str], body: bytes) -> MessageExt:
        record = Record(
            topic=header.topic,
            queue_id=header.queue_id,
            queue_offset=0,  # a broker does not say where it stores it, if it does
            commitlog_offset=0,
            size_bytes=len(body),
            flag=header.flag,
            sys_flag=header.sys_flag,
            born_time_ms=header.born_time_ms,
            born_host=_host(header.born_host),
            store_time_ms=header.store_time_ms,
            store_host=_host(header.store_host),
            reconsume_times=header.reconsume_times or 0,
            prepared_transaction_offset=0,
            body_crc=0,
            body=body,
            properties={**properties, "ARRIVE_TIME": str(current_time_ms())},
        )
        topic = without_namespace(self._namespace, header.topic)
        return MessageExt(topic, header.broker_name or "", header.queue_id, 0, record.reconsume_times, record)


def _host(address: str) -> bytes:
    """As a record has it; of what is no address zeros."""
    try:
        host, port = split_address(address)
        return ipaddress.ip_address(host).packed + port.to_bytes(4, "big")
    except (ValueError, OverflowError):
        return bytes(8)


def reply_topic_of(request: MessageExt) -> tuple[str, dict[str, str]]:
    """Topic and properties of the reply to a message. Raises MessageRefusedError where the message is no request.

    Java: MessageUtil.createReplyMessage, which looks for the cluster alone; the broker refuses the others.
    """
    properties = request.properties
    for name in (_CLUSTER, CORRELATION_ID, REPLY_TO_CLIENT):
        if not properties.get(name):
            rule = f"the message has no property {name}: nobody waits for a reply to it"
            raise MessageRefusedError(request.topic, "reply", rule)
    given = {name: properties[name] for name in (CORRELATION_ID, REPLY_TO_CLIENT, TTL) if name in properties}
    return properties[_CLUSTER] + REPLY_TOPIC_SUFFIX, {"MSG_TYPE": "reply", **given}
