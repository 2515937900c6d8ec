"""Requests that carry or ask for messages, from their typed headers to the handlers that decide, and back.

Java: SendMessageProcessor, EndTransactionProcessor, QueryMessageProcessor, SendMessageRequestHeader.parseRequestHeader.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from spark_mq.broker.asked import NO_FIELDS, UNSET, Asked, Handler
from spark_mq.broker.connections import AskClients, ClientConnection, Outcome
from spark_mq.broker.end_transaction import TransactionEnder
from spark_mq.broker.end_transaction_rules import EndTransactionRequest
from spark_mq.broker.named_messages import message_in, place_of_id
from spark_mq.broker.parts import BrokerParts
from spark_mq.broker.put_response import SendResponse
from spark_mq.broker.recall import read_recall_handle, recall_properties
from spark_mq.broker.request_table import SENDS
from spark_mq.broker.send import SendMessageHandler
from spark_mq.broker.send_back import SendBackHandler, SendBackRequest
from spark_mq.broker.send_request import NO_TEMPLATE, SendRequest, broker_properties
from spark_mq.broker.send_run import SendRun
from spark_mq.remoting import HeaderError, RemotingCommand, RequestCode, make_request, read_header, write_header
from spark_mq.remoting import messages as wire
from spark_mq.remoting.request_runs import RequestRun, RunAnswers
from storage.format.properties import decode_properties
from storage.rules.half_messages import DISCARD_TOPIC, HALF_TOPIC
from storage.rules.inner_messages import encode_properties
from storage.rules.response_codes import ResponseCode
from storage.service.pending import Pending
from storage.transaction.check_plan import CheckRules
from storage.transaction.discard import redrive_one


class MessageHandlers:
    """Answers 10, 310, 320, 324, 325, 370, 36, 37, 323, 12 and 33."""

    def __init__(self, parts: BrokerParts) -> None:
        self._parts = parts
        service, clock = parts.service, parts.clock
        self.sender = SendMessageHandler(service, clock=clock, holds_order_lock=self._holds_lock)
        self.sender.statistics = parts.statistics
        self.returner = SendBackHandler(service, parts.config, statistics=parts.statistics, clock=clock)
        self.ender = TransactionEnder(service, clock(), statistics=parts.statistics)
        for handler in (self.sender, self.returner, self.ender):
            handler.state = replace(handler.state, is_slave=parts.is_slave)
            parts.heed_settings.append(handler.configure)

    def table(self) -> Mapping[int, Handler]:
        """Who answers which code."""
        code = RequestCode
        return {
            **dict.fromkeys(SENDS, self.send),
            code.SEND_REPLY_MESSAGE: self.reply,
            code.SEND_REPLY_MESSAGE_V2: self.reply,
            code.RECALL_MESSAGE: self.recall,
            code.CONSUMER_SEND_MSG_BACK: self.send_back,
            code.END_TRANSACTION: self.end_transaction,
            code.RESUME_CHECK_HALF_MESSAGE: self.resume_check,
            code.QUERY_MESSAGE: self.query,
            code.VIEW_MESSAGE_BY_ID: self.view,
        }

    def set_writable(self, *, is_writable: bool) -> None:
        """Whether messages are taken."""
        for handler in (self.sender, self.returner, self.ender):
            handler.state = replace(handler.state, is_writable=is_writable)

    def _holds_lock(self, group: str) -> bool:
        with self._parts.lock:
            return self._parts.locks.holds_any(group, self._parts.steady())

    def send(self, asked: Asked) -> RemotingCommand:
        """10, 310, 320."""
        return _sent(asked, self.sender.send(send_request(asked, asked.header)))

    def begin_send(self, asked: Asked) -> Pending[RemotingCommand]:
        """The same in two steps: what is returned waits for the put."""
        return self.sender.begin(send_request(asked, asked.header)).then(lambda response: _sent(asked, response()))

    def begin_run(self, connection: ClientConnection, run: RequestRun, now_ms: int) -> Pending[RunAnswers] | None:
        """Many sends in two steps. None, with nothing done: they must be taken one by one, where one may be refused and others not."""
        if (sends := SendRun.of(run)) is None:
            return None
        requests = []
        for command in sends.requests():
            try:
                header = read_header(wire.SendMessageRequest, command)
                requests.append(send_request(Asked(connection, command, header, now_ms), header))
            except (HeaderError, ValueError):
                return None
        return self.sender.begin_run(sends, requests)

    def reply(self, asked: Asked) -> Outcome:
        """324, 325: an answer to a message, handed to the client that waits for it, and stored.

        Departures: it is stored first, as any send with CLUSTER; `storeReplyMessageEnable` is not followed.
        """
        header: wire.SendMessageRequest = asked.header
        request = send_request(asked, header)
        stored = self.sender.send(request)
        if stored.msg_id is None:
            return asked.answer(stored.code, stored.remark, dict(stored.ext_fields) or None)
        client_id = request.properties.get("REPLY_TO_CLIENT")
        place = wire.SendMessageAnswer(
            message_id=stored.msg_id, queue_id=stored.queue_id or 0, queue_offset=stored.queue_offset or 0
        )
        fields = dict(stored.ext_fields) | write_header(place)
        if client_id is None:
            remark = "reply message properties[REPLY_TO_CLIENT] is null"
            return asked.answer(ResponseCode.SYSTEM_ERROR, remark, fields)
        with self._parts.lock:
            connection = self._parts.producers.of_client(client_id)
        if connection is None:
            remark = f"push reply message fail, channel of <{client_id}> not found."
            return asked.answer(ResponseCode.SYSTEM_ERROR, remark, fields)

        def answer(answers: tuple[RemotingCommand | None, ...]) -> RemotingCommand:
            if answers[0] is None or answers[0].code != ResponseCode.SUCCESS:
                remark = f"push reply message to {client_id}fail."
                return asked.answer(ResponseCode.SYSTEM_ERROR, remark, fields)
            return asked.answer(header=fields)

        return AskClients(((connection, self._pushed_reply(asked, header, request)),), _PUSH_MS, answer)

    def _pushed_reply(self, asked: Asked, header: wire.SendMessageRequest, request: SendRequest) -> RemotingCommand:
        own = broker_properties(self._parts.config.send) | {"PUSH_REPLY_TIME": str(asked.now_ms)}
        properties = dict(request.properties) | own
        pushed = wire.ReplyMessageRequest(
            producer_group=request.producer_group,
            topic=header.topic,
            default_topic=request.default_topic,
            default_topic_queue_count=request.default_topic_queue_count,
            queue_id=header.queue_id,
            sys_flag=header.sys_flag,
            born_time_ms=header.born_time_ms,
            flag=header.flag,
            properties=encode_properties(properties).decode("utf-8", "surrogatepass"),
            reconsume_times=header.reconsume_times,
            unit_mode=bool(header.unit_mode),
            born_host=asked.connection.address,
            store_host=self._parts.address,
            store_time_ms=asked.now_ms,
        )
        code = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
        return make_request(code, write_header(pushed), asked.body, encoding=self._parts.encoding)

    def recall(self, asked: Asked) -> RemotingCommand:
        """370: a timed message shall not be delivered. A message is put that deletes it when its time comes."""
        header: wire.RecallMessageRequest = asked.header
        parts, send = self._parts, self._parts.config.send
        region = {"MSG_REGION": send.region_id}

        def refusal(code: ResponseCode, why: str) -> RemotingCommand:
            return asked.answer(code, f"recall failed, {why}", region)

        if not send.recall_message_enable:
            return refusal(ResponseCode.NO_PERMISSION, "operation is forbidden")
        if parts.is_slave:
            return refusal(ResponseCode.SLAVE_NOT_AVAILABLE, "broker service not available")
        if asked.now_ms < send.start_accept_send_request_time_stamp:
            return refusal(ResponseCode.SERVICE_NOT_AVAILABLE, "broker service not available")
        if header.topic not in parts.topics:
            return refusal(ResponseCode.TOPIC_NOT_EXIST, f"the topic[{header.topic}] not exist")
        handle = read_recall_handle(header.recall_handle)
        if handle is None:
            return asked.answer(ResponseCode.ILLEGAL_OPERATION, "recall handle is invalid", region)
        if handle.topic != header.topic:
            return refusal(ResponseCode.ILLEGAL_OPERATION, "topic not match")
        if handle.broker_name != parts.broker_name:
            return refusal(ResponseCode.ILLEGAL_OPERATION, "broker service not available")
        left_ms = handle.time_ms - asked.now_ms
        if not 0 < left_ms < parts.config.timer.timer_max_delay_sec * 1_000:
            return refusal(ResponseCode.ILLEGAL_OPERATION, "timestamp invalid")
        response = self.sender.send(
            SendRequest(
                topic=header.topic,
                body=b"0",
                properties=recall_properties(handle, header.producer_group, asked.now_ms),
                queue_id=0,
                producer_group=header.producer_group or "",
                born_time_ms=asked.now_ms,
                born_host=asked.connection.host,
                is_heard=not asked.command.is_oneway,
            )
        )
        if response.msg_id is None:
            return refusal(ResponseCode.SYSTEM_ERROR, "execute error")
        answer = write_header(wire.RecallMessageAnswer(message_id=handle.unique_key))
        return asked.answer(remark=UNSET, header=answer | region)

    def send_back(self, asked: Asked) -> RemotingCommand:
        """36."""
        header: wire.SendBackRequest = asked.header
        response = self.returner.send_back(
            SendBackRequest(
                commitlog_offset=header.commitlog_offset,
                group=header.group,
                delay_level=header.delay_level,
                max_reconsume_times=header.max_reconsume_times,
                unit_mode=header.unit_mode,
                client_version=asked.command.version,
                origin_msg_id=header.origin_message_id,
                origin_topic=header.origin_topic,
                client_address=asked.connection.address,
                is_heard=not asked.command.is_oneway,
            )
        )
        return asked.answer(response.code, response.remark)

    def end_transaction(self, asked: Asked) -> Outcome:
        """37; no answer where the state is not known."""
        header: wire.EndTransactionRequest = asked.header
        response = self.ender.end(
            EndTransactionRequest(
                producer_group=header.producer_group,
                tran_state_table_offset=header.half_queue_offset,
                commit_log_offset=header.half_commitlog_offset,
                commit_or_rollback=header.commit_or_rollback,
                from_transaction_check=bool(header.from_transaction_check),
                msg_id=header.message_id or "",
                transaction_id=header.transaction_id,
                topic=header.topic,
                client_address=asked.connection.address,
                is_heard=not asked.command.is_oneway,
            ),
            asked.now_ms,
        )
        return None if response is None else asked.answer(response.code, response.remark)

    def resume_check(self, asked: Asked) -> RemotingCommand:
        """323: a half message that was given up is asked about again.

        Departure: once, and not where its transaction has ended meanwhile, or of a message that is none. Java puts whatever the id
        names into the half topic, as often as it is told.
        """
        header: wire.ResumeCheckHalfMessageRequest = asked.header
        parts, failed = self._parts, f"Put message back to {HALF_TOPIC} failed."
        place = place_of_id(header.message_id)
        record = None if place is None else parts.served.record_at(place)
        half = None if record is None else message_in(record)
        if half is None or half.topic != DISCARD_TOPIC:
            why = f"{header.message_id} names no message of {DISCARD_TOPIC}"
            return asked.answer(ResponseCode.SYSTEM_ERROR, f"{failed} {why}")
        if parts.is_slave:
            return asked.answer(ResponseCode.SYSTEM_ERROR, f"{failed} this broker is a slave")
        with parts.service.exclusive() as store:
            report = redrive_one(store, half, asked.now_ms, CheckRules.of(parts.config))
        if not report.put_back:
            why = "was put back before" if report.back_before else "has ended" if report.ended else "is too old"
            return asked.answer(ResponseCode.SYSTEM_ERROR, f"{failed} It {why}")
        return asked.answer()

    def query(self, asked: Asked) -> RemotingCommand:
        """12: messages by key, or by unique key as the extFields say. The client compares the keys.

        Departure: those of other topics, whose keys have the same hash, are left out. Java leaves that to the client, too.
        """
        header: wire.QueryMessageRequest = asked.header
        most = min(header.max_messages, _MOST_QUERIED)
        if (asked.command.ext_fields or {}).get("_UNIQUE_KEY_QUERY") == "true":
            most = self._parts.config.pull.default_query_max_num
        served = self._parts.served
        found = served.records_by_key(header.topic, header.key, most, header.begin_time_ms, header.end_time_ms)
        records = [record for record in found if message_in(record).topic == header.topic]
        time_ms, place = served.index_end() if records else (0, 0)
        answer = wire.QueryMessageAnswer(index_last_update_time_ms=time_ms, index_last_update_commitlog_offset=place)
        if not records:
            remark = "can not find message, maybe time range not correct"
            return asked.answer(ResponseCode.QUERY_NOT_FOUND, remark, answer)
        return asked.answer(header=answer, body=b"".join(records))

    def view(self, asked: Asked) -> RemotingCommand:
        """33: the message at a place of the log."""
        header: wire.ViewMessageRequest = asked.header
        record = self._parts.served.record_at(header.commitlog_offset)
        if record is None:
            remark = f"can not find message by the offset, {header.commitlog_offset}"
            return asked.answer(ResponseCode.SYSTEM_ERROR, remark)
        return asked.answer(body=record)


_PUSH_MS = 10_000
_MOST_QUERIED = 64
"""Java: MessageStoreConfig.maxMsgsNumBatch."""


def _sent(asked: Asked, response: SendResponse) -> RemotingCommand:
    fields = dict(response.ext_fields)
    if response.msg_id is not None:
        answer = wire.SendMessageAnswer(
            message_id=response.msg_id,
            queue_id=response.queue_id or 0,
            queue_offset=response.queue_offset or 0,
            transaction_id=response.transaction_id,
            recall_handle=response.recall_handle,
        )
        fields = write_header(answer) | fields
    return asked.answer(response.code, response.remark, fields or None)


def send_request(asked: Asked, header: wire.SendMessageRequest) -> SendRequest:
    """A send as its handler takes it."""
    command = asked.command
    queue_count = header.default_topic_queue_count
    return SendRequest(
        topic=header.topic,
        body=asked.body,
        properties=decode_properties((header.properties or "").encode("utf-8", "surrogatepass")),
        queue_id=header.queue_id,
        producer_group=header.producer_group or "",
        default_topic=NO_TEMPLATE if queue_count is None else header.default_topic or NO_TEMPLATE,
        default_topic_queue_count=queue_count or 0,
        flag=header.flag,
        sys_flag=header.sys_flag,
        born_time_ms=header.born_time_ms,
        born_host=asked.connection.host,
        reconsume_times=header.reconsume_times,
        max_reconsume_times=header.max_reconsume_times,
        unit_mode=bool(header.unit_mode),
        is_batch=bool(header.is_batch),
        logical=header.is_logical,
        client_version=command.version,
        are_properties_read=True,
        is_heard=not command.is_oneway,
        ext_fields=command.ext_fields or NO_FIELDS,
    )
