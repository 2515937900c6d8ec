"""Requests that carry or read messages: from typed headers to the handlers that decide, and back.

Java: SendMessageProcessor, EndTransactionProcessor, QueryMessageProcessor, SendMessageRequestHeader.parseRequestHeader.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from spark_mq.broker.broker_store import BrokerStore
from spark_mq.broker.client_tables import Clients
from spark_mq.broker.end_transaction import TransactionEnder
from spark_mq.broker.request_table import SENDS
from spark_mq.broker.requests import UNSET, AskClients, ClientConnection, Handler, Outcome, Request
from spark_mq.broker.send import SendMessageHandler, broker_properties, properties_of
from spark_mq.broker.send_back import SendBackHandler
from spark_mq.broker.send_run import SendRun
from spark_mq.broker.traffic import Traffic
from spark_mq.remoting import Header, HeaderError, RemotingCommand, RequestCode, make_request, read_header, write_header
from spark_mq.remoting import messages as wire
from spark_mq.remoting.frames import RequestRun, RunAnswers
from storage.format.record import Message, decode_offset_message_id, decode_record
from storage.names import is_system_topic
from storage.pending import Pending
from storage.rules.delays import REAL_TOPIC, TIMER_DELETED_KEY, deletion_key
from storage.rules.half_messages import DISCARD_TOPIC, HALF_TOPIC
from storage.rules.inner_messages import encode_properties
from storage.rules.response_codes import ResponseCode
from storage.rules.topics import AUTO_CREATE_TOPIC, DEFAULT_TOPIC_QUEUE_COUNT
from storage.service.served_store import ServedStore
from storage.transaction.check_plan import CheckRules
from storage.transaction.discard import redrive_one
from storage.transaction.progress import METRICS_FILE, TransactionCounts

_PUSH_MS = 10_000
_MOST_QUERIED = 64
"""Java: MessageStoreConfig.maxMsgsNumBatch."""
_MESSAGE_ID = "msgId"
"""Among the extFields of the answer to a send that is stored."""
_NOT_OF_REPLIES = ("transactionId", "recallHandle")
_TAG = "_RECALL_TAG_"


class MessageHandlers:
    """Answers 10, 310, 320, 324, 325, 370, 36, 37, 323, 12 and 33."""

    def __init__(self, store: BrokerStore, clients: Clients, traffic: Traffic) -> None:
        self._store = store
        self._clients = clients
        self._traffic = traffic
        service, clock = store.service, store.clock
        self.sender = SendMessageHandler(
            service,
            statistics=traffic.puts,
            metrics=traffic.metrics,
            clock=clock,
            holds_order_lock=self._holds_lock,
        )
        self.returner = SendBackHandler(service, statistics=traffic.puts, metrics=traffic.metrics, clock=clock)
        self.ender = TransactionEnder(service, clock(), statistics=traffic.puts, metrics=traffic.metrics)
        for handler in (self.sender, self.returner, self.ender):
            handler.state = replace(handler.state, is_slave=store.is_slave)
            store.on_settings_changed.append(handler.configure)

    def table(self) -> Mapping[int, Handler]:
        """Handlers by request code."""
        code = RequestCode
        return {
            **dict.fromkeys(SENDS, self.sender.send),
            code.SEND_REPLY_MESSAGE: self.reply,
            code.SEND_REPLY_MESSAGE_V2: self.reply,
            code.RECALL_MESSAGE: self.recall,
            code.CONSUMER_SEND_MSG_BACK: self.returner.send_back,
            code.END_TRANSACTION: self.end_transaction,
            code.RESUME_CHECK_HALF_MESSAGE: self.resume_check,
            code.QUERY_MESSAGE: self.query,
            code.VIEW_MESSAGE_BY_ID: self.view,
        }

    def set_writable(self, *, is_writable: bool) -> None:
        """Whether messages are taken."""
        for handler in (self.sender, self.returner, self.ender):
            handler.state = replace(handler.state, is_writable=is_writable)

    def halves_without_end(self) -> Mapping[str, int]:
        """Half messages without an end, by their real topic. Raises StateFileError. Java: TransactionMetrics.getTransactionCounts."""
        known = self._store.service.state(METRICS_FILE, TransactionCounts.load) or TransactionCounts()
        counts = dict(known.counts)
        for changes in (self.sender.prepared, self.ender.ended):
            for topic, change in changes.items():
                counts[topic] = counts.get(topic, 0) + change
        return counts

    def _holds_lock(self, group: str) -> bool:
        with self._clients.lock:
            return self._clients.locks.holds_any(group, self._clients.steady())

    def begin_run(self, connection: ClientConnection, run: RequestRun, now_ms: int) -> Pending[RunAnswers] | None:
        """Many sends in two steps. None, with nothing done: they must be taken one by one, where one may be refused and others not."""
        if (sends := SendRun.of(run)) is None:
            return None
        requests = []
        for command in sends.requests():
            try:
                header = read_header(wire.SendMessageRequest, command)
            except HeaderError:
                return None
            requests.append(Request(connection, command, header, now_ms))
        return self.sender.begin_run(sends, requests)

    def reply(self, request: Request) -> Outcome:
        """324, 325: an answer to a message, handed to the client that waits for it, and stored.

        Departure: it is stored first, as any send with CLUSTER.
        """
        send = self._store.config.send
        if send.store_reply_message_enable:
            stored = self.sender.send(request)
            fields = dict(stored.ext_fields or {})
            if _MESSAGE_ID not in fields:
                return stored
            for name in _NOT_OF_REPLIES:
                fields.pop(name, None)
            place: Mapping[str, str] = {}
        else:
            refusal = self.sender.checked(request)
            if refusal is not None:
                return refusal
            queue_id = max(request.header.queue_id, 0)
            fields = broker_properties(send)
            place = write_header(wire.SendMessageAnswer(message_id="0", queue_id=queue_id, queue_offset=0))
        properties = properties_of(request.header)
        client_id = properties.get("REPLY_TO_CLIENT")
        if client_id is None:
            remark = "reply message properties[REPLY_TO_CLIENT] is null"
            return request.answer(ResponseCode.SYSTEM_ERROR, remark, fields)
        with self._clients.lock:
            connection = self._clients.producers.of_client(client_id)
        if connection is None:
            remark = f"push reply message fail, channel of <{client_id}> not found."
            return request.answer(ResponseCode.SYSTEM_ERROR, remark, fields)

        def answer(answers: tuple[RemotingCommand | None, ...]) -> RemotingCommand:
            if answers[0] is None or answers[0].code != ResponseCode.SUCCESS:
                remark = f"push reply message to {client_id}fail."
                return request.answer(ResponseCode.SYSTEM_ERROR, remark, fields)
            return request.answer(header={**fields, **place})

        return AskClients(((connection, self._pushed_reply(request, properties)),), _PUSH_MS, answer)

    def _pushed_reply(self, request: Request, properties: Mapping[str, str]) -> RemotingCommand:
        header: wire.SendMessageRequest = request.header
        own = broker_properties(self._store.config.send) | {"PUSH_REPLY_TIME": str(request.now_ms)}
        pushed = wire.ReplyMessageRequest(
            producer_group=header.producer_group or "",
            topic=header.topic,
            default_topic="" if header.default_topic_queue_count is None else header.default_topic or "",
            default_topic_queue_count=header.default_topic_queue_count or 0,
            queue_id=header.queue_id,
            sys_flag=header.sys_flag,
            born_time_ms=header.born_time_ms,
            flag=header.flag,
            properties=_text_of({**properties, **own}),
            reconsume_times=header.reconsume_times,
            unit_mode=bool(header.unit_mode),
            born_host=request.connection.address,
            store_host=self._store.address,
            store_time_ms=request.now_ms,
        )
        code = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
        return make_request(code, write_header(pushed), request.body, encoding=self._clients.encoding)

    def recall(self, request: Request) -> RemotingCommand:
        """370: a timed message shall not be delivered. A message is put that deletes it when its time comes.

        Departure: one in each form of the key, where the release of the store's next broker is not named.
        """
        header: wire.RecallMessageRequest = request.header
        send = self._store.config.send
        region = {"MSG_REGION": send.region_id}

        def refusal(code: ResponseCode, why: str) -> RemotingCommand:
            return request.answer(code, f"recall failed, {why}", region)

        if not send.recall_message_enable:
            return refusal(ResponseCode.NO_PERMISSION, "operation is forbidden")
        if self._store.is_slave:
            return refusal(ResponseCode.SLAVE_NOT_AVAILABLE, "broker service not available")
        if request.now_ms < send.start_accept_send_request_time_stamp:
            return refusal(ResponseCode.SERVICE_NOT_AVAILABLE, "broker service not available")
        if header.topic not in self._store.topics:
            return refusal(ResponseCode.TOPIC_NOT_EXIST, f"the topic[{header.topic}] not exist")
        handle = wire.RecallHandle.read(header.recall_handle)
        if handle is None:
            return request.answer(ResponseCode.ILLEGAL_OPERATION, "recall handle is invalid", region)
        if handle.topic != header.topic:
            return refusal(ResponseCode.ILLEGAL_OPERATION, "topic not match")
        if handle.broker_name != self._store.broker_name:
            return refusal(ResponseCode.ILLEGAL_OPERATION, "broker service not available")
        left_ms = handle.time_ms - request.now_ms
        if not 0 < left_ms < self._store.config.timer.timer_max_delay_sec * 1_000:
            return refusal(ResponseCode.ILLEGAL_OPERATION, "timestamp invalid")
        for form in self._store.config.timer_deletion_keys:
            key = deletion_key(form, handle.topic, handle.unique_key)
            deletion = wire.SendMessageRequest(
                producer_group=header.producer_group,
                topic=header.topic,
                default_topic=AUTO_CREATE_TOPIC,
                default_topic_queue_count=DEFAULT_TOPIC_QUEUE_COUNT,
                queue_id=0,
                sys_flag=0,
                born_time_ms=request.now_ms,
                flag=0,
                properties=_text_of(recall_properties(handle, key, header.producer_group, request.now_ms)),
            )
            put = self.sender.send(request.like(deletion, b"0"))
            if _MESSAGE_ID not in (put.ext_fields or {}):
                return refusal(ResponseCode.SYSTEM_ERROR, "execute error")
        answer = write_header(wire.RecallMessageAnswer(message_id=handle.unique_key))
        return request.answer(remark=UNSET, header=answer | region)

    def end_transaction(self, request: Request) -> Outcome:
        """37; no answer where the state is not known."""
        verdict = self.ender.end(request.header, request.now_ms, is_heard=request.is_heard)
        return None if verdict is None else request.answer(*verdict)

    def resume_check(self, request: Request) -> RemotingCommand:
        """323: check a half message again that was given up.

        Departure: only once, only if it is a half message, and only while its transaction is open. Java puts any message that the id
        names into the half topic, at each request.
        """
        header: wire.ResumeCheckHalfMessageRequest = request.header
        failed = f"Put message back to {HALF_TOPIC} failed."
        place = place_of_id(header.message_id)
        record = None if place is None else self._store.served.record_at(place)
        half = None if record is None else message_in(record)
        if half is None or half.topic != DISCARD_TOPIC:
            why = f"{header.message_id} names no message of {DISCARD_TOPIC}"
            return request.answer(ResponseCode.SYSTEM_ERROR, f"{failed} {why}")
        if self._store.is_slave:
            return request.answer(ResponseCode.SYSTEM_ERROR, f"{failed} this broker is a slave")
        with self._store.service.exclusive() as store:
            report = redrive_one(store, half, request.now_ms, CheckRules.of(self._store.config))
        if not report.put_back:
            why = "was put back before" if report.back_before else "has ended" if report.ended else "is too old"
            return request.answer(ResponseCode.SYSTEM_ERROR, f"{failed} It {why}")
        return request.answer()

    def query(self, request: Request) -> RemotingCommand:
        """12: messages by key, by tag, or by unique key as the extFields say. The client compares the keys.

        `lastKey` means nothing, as for Java's index files. A tag is found where the release that the store is written for has it in the
        index (5.4.0 and later). Departure: messages of other topics, whose keys have the same hash, are left out. Java leaves that to
        the client, too.
        """
        header: wire.QueryMessageRequest = request.header
        most, index_type = min(header.max_messages, _MOST_QUERIED), header.index_type
        if (request.command.ext_fields or {}).get("_UNIQUE_KEY_QUERY") == "true":
            most, index_type = self._store.config.pull.default_query_max_num, None
        served = self._store.served
        times = header.begin_time_ms, header.end_time_ms
        found = served.records_by_key(header.topic, header.key, most, *times, index_type)
        records = [record for record in found if message_in(record).topic == header.topic]
        time_ms, place = served.index_end() if records else (0, 0)
        answer = wire.QueryMessageAnswer(index_last_update_time_ms=time_ms, index_last_update_commitlog_offset=place)
        if not records:
            remark = "can not find message, maybe time range not correct"
            return request.answer(ResponseCode.QUERY_NOT_FOUND, remark, answer)
        return request.answer(header=answer, body=b"".join(records))

    def view(self, request: Request) -> RemotingCommand:
        """33: the message at a place of the log."""
        header: wire.ViewMessageRequest = request.header
        record = self._store.served.record_at(header.commitlog_offset)
        if record is None:
            remark = f"can not find message by the offset, {header.commitlog_offset}"
            return request.answer(ResponseCode.SYSTEM_ERROR, remark)
        return request.answer(body=record)


def _text_of(properties: Mapping[str, str]) -> str:
    return encode_properties(properties).decode("utf-8", "surrogatepass")


# Recalling a timed message: what deletes it in the timer. The handle is made in `put_plan.py`.
# Java: RecallMessageProcessor, TimerMessageStore.buildDeleteKey.


def recall_properties(handle: wire.RecallHandle, key: str, producer_group: str | None, now_ms: int) -> dict[str, str]:
    """Properties of the message that deletes it, which it names by `key`: it goes through the timer to the same time."""
    properties = {
        "TAGS": _TAG,
        TIMER_DELETED_KEY: key,
        "UNIQ_KEY": handle.unique_key,
        "TIMER_DELIVER_MS": str(handle.time_ms),
        "BORN_TIMESTAMP": str(now_ms),
        "TRACE_CONTEXT": "",
    }
    return properties | ({"PGROUP": producer_group} if producer_group else {})


def named_topic(served: ServedStore, header: Header) -> str | None:
    """The topic that the message was sent to, also while it waits elsewhere; None where the header names no message that is there."""
    place = _place(header)
    raw = None if place is None else served.record_at(place)
    if raw is None:
        return None
    record = message_in(raw)
    return record.properties.get(REAL_TOPIC, record.topic) if is_system_topic(record.topic) else record.topic


def message_in(record: bytes) -> Message:
    """A record of the log as a message; its body is not looked at."""
    message = decode_record(record, check_crc=False)
    assert isinstance(message, Message)
    return message


def _place(header: Header) -> int | None:
    match header:
        case wire.ResumeCheckHalfMessageRequest():
            return place_of_id(header.message_id)
        case wire.ViewMessageRequest() | wire.SendBackRequest():
            return header.commitlog_offset
        case wire.EndTransactionRequest():
            return header.half_commitlog_offset
        case wire.ConsumeDirectlyRequest():
            return place_of_id(header.message_id)
    return None


def place_of_id(message_id: str | None) -> int | None:
    """The place in the log that an offset message id says; None where it is none."""
    try:
        return decode_offset_message_id(message_id or "")[2]
    except ValueError:
        return None
