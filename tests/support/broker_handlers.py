"""The handlers of a broker as tests call them: by one thread in front of an open store, or in front of its service."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_mq.broker.end_transaction import TransactionEnder
from spark_mq.broker.put_plan import CURRENT_VERSION
from spark_mq.broker.requests import ClientConnection, Request, Verdict
from spark_mq.broker.send import SendMessageHandler
from spark_mq.broker.send_back import SendBackHandler
from spark_mq.remoting import RemotingCommand, RequestCode, make_request
from spark_mq.remoting.messages import EndTransactionRequest, SendBackRequest, SendMessageRequest
from storage import MessageStore
from storage.format.record import host_text
from storage.pending import Pending, PutStatus
from storage.put.put import NO_RESULTS, Places
from storage.rules.inner_messages import encode_properties
from storage.rules.put_guards import BrokerState
from storage.rules.response_codes import ResponseCode
from storage.rules.topics import AUTO_CREATE_TOPIC, DEFAULT_TOPIC_QUEUE_COUNT
from storage.service.put_group import PutMessageResult, Rows
from storage.service.put_service import DirectService, PutService
from storage.tables.put_statistics import PutStatistics

_OWN_HOST = bytes([127, 0, 0, 1]) + (10911).to_bytes(4, "big")


def service_of(store: MessageStore | PutService) -> PutService:
    return store if isinstance(store, PutService) else DirectService(store)


class FakedPuts(DirectService):
    """A service whose puts end as a test says: by what `end` makes of their messages and of the put itself, which it may call."""

    def __init__(
        self, store: MessageStore, end: Callable[[Rows, Callable[[], PutMessageResult]], PutMessageResult]
    ) -> None:
        super().__init__(store)
        self._end = end

    def put_later(self, messages: Rows, **options: Any) -> Pending[PutMessageResult]:
        put = super().put_later
        return Pending(lambda: self._end(messages, lambda: put(messages, **options)()))


def ending(store: MessageStore, status: PutStatus, rows: Places = NO_RESULTS, reason: str | None = None) -> FakedPuts:
    """A service whose puts end so, with nothing stored."""
    return FakedPuts(store, lambda messages, put: PutMessageResult(status, rows, reason))


def request_of(
    header: Any,
    code: int,
    body: bytes = b"",
    *,
    host: bytes | None = None,
    version: int = CURRENT_VERSION,
    is_heard: bool = True,
    now_ms: int = 0,
) -> Request:
    """A decoded request of a client."""
    command = make_request(code, None, body, is_oneway=not is_heard)._replace(version=version)
    connection = ClientConnection(host or _OWN_HOST, "" if host is None else host_text(host))
    return Request(connection, command, header, now_ms)


@dataclass(frozen=True, kw_only=True)
class Send:
    """A send as a client makes it; None of `born_host` is a client of which nothing is known."""

    topic: str
    body: bytes = b""
    properties: Mapping[str, str] = field(default_factory=dict, hash=False)
    queue_id: int = -1
    producer_group: str = ""
    default_topic: str = AUTO_CREATE_TOPIC
    default_topic_queue_count: int = DEFAULT_TOPIC_QUEUE_COUNT
    flag: int = 0
    sys_flag: int = 0
    born_time_ms: int = 0
    born_host: bytes | None = None
    reconsume_times: int | None = None
    max_reconsume_times: int | None = None
    unit_mode: bool = False
    is_batch: bool = False
    logical: bool | None = None
    client_version: int = CURRENT_VERSION
    is_heard: bool = True

    @property
    def request(self) -> Request:
        header = SendMessageRequest(
            producer_group=self.producer_group,
            topic=self.topic,
            default_topic=self.default_topic,
            default_topic_queue_count=self.default_topic_queue_count,
            queue_id=self.queue_id,
            sys_flag=self.sys_flag,
            born_time_ms=self.born_time_ms,
            flag=self.flag,
            properties=encode_properties(self.properties).decode("utf-8", "surrogatepass"),
            reconsume_times=self.reconsume_times,
            unit_mode=self.unit_mode,
            max_reconsume_times=self.max_reconsume_times,
            is_batch=self.is_batch,
            is_logical=self.logical,
        )
        code = RequestCode.SEND_BATCH_MESSAGE if self.is_batch else RequestCode.SEND_MESSAGE
        body, version = self.body, self.client_version
        return request_of(header, code, body, host=self.born_host, version=version, is_heard=self.is_heard)


@dataclass(frozen=True)
class Answered:
    """The answer to a send."""

    code: ResponseCode
    remark: str | None = None
    msg_id: str | None = None
    queue_id: int | None = None
    queue_offset: int | None = None
    transaction_id: str | None = None
    recall_handle: str | None = None
    ext_fields: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, command: RemotingCommand) -> Answered:
        fields = dict(command.ext_fields or {})
        queue_id, offset = fields.pop("queueId", None), fields.pop("queueOffset", None)
        return cls(
            ResponseCode(command.code),
            command.remark,
            fields.pop("msgId", None),
            None if queue_id is None else int(queue_id),
            None if offset is None else int(offset),
            fields.pop("transactionId", None),
            fields.pop("recallHandle", None),
            fields,
        )

    @property
    def is_stored(self) -> bool:
        return self.msg_id is not None


class _Handler:
    """What both handlers show."""

    handler: SendMessageHandler | SendBackHandler

    @property
    def statistics(self) -> PutStatistics:
        return self.handler.statistics

    @property
    def state(self) -> BrokerState:
        return self.handler.state

    @state.setter
    def state(self, state: BrokerState) -> None:
        self.handler.state = state


class Sender(_Handler):
    """A `SendMessageHandler`."""

    handler: SendMessageHandler

    def __init__(self, store: MessageStore | PutService, **options: Any) -> None:
        self.handler = SendMessageHandler(service_of(store), **options)

    def send(self, send: Send) -> Answered:
        return Answered.of(self.handler.send(send.request))

    def begin(self, send: Send) -> Pending[Answered]:
        return self.handler.begin(send.request).then(lambda answer: Answered.of(answer()))

    def close(self) -> None:
        self.handler.close()


def back_request(commitlog_offset: int, group: str, delay_level: int = 0, **fields: Any) -> SendBackRequest:
    """What a consumer says of a message that it failed on."""
    return SendBackRequest(commitlog_offset=commitlog_offset, group=group, delay_level=delay_level, **fields)


class Returner(_Handler):
    """A `SendBackHandler`."""

    handler: SendBackHandler

    def __init__(self, store: MessageStore | PutService, **options: Any) -> None:
        self.handler = SendBackHandler(service_of(store), **options)

    def send_back(
        self, header: SendBackRequest, *, client_version: int = CURRENT_VERSION, is_heard: bool = True
    ) -> Verdict:
        code = RequestCode.CONSUMER_SEND_MSG_BACK
        answer = self.handler.send_back(request_of(header, code, version=client_version, is_heard=is_heard))
        return Verdict(ResponseCode(answer.code), answer.remark)


def end_transaction(store: MessageStore, request: EndTransactionRequest, now_ms: int) -> Verdict | None:
    """What one request is answered; its op message is written before this returns."""
    ender = TransactionEnder.of(store, now_ms)
    verdict = ender.end(request, now_ms)
    ender.close(now_ms)
    return verdict
