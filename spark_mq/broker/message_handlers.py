"""Requests that carry or ask for messages, from their typed headers to the handlers that decide, and back.

Java: SendMessageProcessor, EndTransactionProcessor, QueryMessageProcessor, SendMessageRequestHeader.parseRequestHeader.
"""

from __future__ import annotations

from spark_mq.broker.asked import NO_FIELDS, Asked
from spark_mq.broker.connections import Outcome
from spark_mq.broker.end_transaction import TransactionEnder
from spark_mq.broker.end_transaction_rules import EndTransactionRequest
from spark_mq.broker.parts import BrokerParts
from spark_mq.broker.send import SendMessageHandler
from spark_mq.broker.send_back import SendBackHandler, SendBackRequest
from spark_mq.broker.send_request import SendRequest
from spark_mq.remoting import RemotingCommand, RequestCode, write_header
from spark_mq.remoting import message_headers as wire
from storage.format.properties import decode_properties
from storage.rules.response_codes import ResponseCode


class MessageHandlers:
    """Answers 10, 310, 320, 36, 37, 12 and 33."""

    def __init__(self, parts: BrokerParts) -> None:
        self._parts = parts
        service, clock = parts.service, parts.clock
        self.sender = SendMessageHandler(service, clock=clock, holds_order_lock=self._holds_lock)
        self.sender.statistics = parts.statistics
        self.returner = SendBackHandler(service, parts.config, statistics=parts.statistics, clock=clock)
        self.ender = TransactionEnder(service, clock(), statistics=parts.statistics)

    def _holds_lock(self, group: str) -> bool:
        with self._parts.lock:
            return self._parts.locks.holds_any(group, self._parts.clock())

    def send(self, asked: Asked) -> RemotingCommand:
        """10, 310, 320."""
        header: wire.SendMessageRequest = asked.header
        response = self.sender.send(send_request(asked, header))
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
                msg_id=header.message_id,
                transaction_id=header.transaction_id,
                topic=header.topic,
                client_address=asked.connection.address,
            ),
            asked.now_ms,
        )
        return None if response is None else asked.answer(response.code, response.remark)

    def query(self, asked: Asked) -> RemotingCommand:
        """12: messages by key, or by unique key as the extFields say. The client compares the keys."""
        header: wire.QueryMessageRequest = asked.header
        most = min(header.max_messages, _MOST_QUERIED)
        if (asked.command.ext_fields or {}).get("_UNIQUE_KEY_QUERY") == "true":
            most = self._parts.config.pull.default_query_max_num
        served = self._parts.served
        records = served.records_by_key(header.topic, header.key, most, header.begin_time_ms, header.end_time_ms)
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


_MOST_QUERIED = 64
"""Java: MessageStoreConfig.maxMsgsNumBatch."""


def send_request(asked: Asked, header: wire.SendMessageRequest) -> SendRequest:
    """A send as its handler takes it."""
    command = asked.command
    return SendRequest(
        topic=header.topic,
        body=asked.body,
        properties=decode_properties((header.properties or "").encode("utf-8", "surrogatepass")),
        queue_id=header.queue_id,
        producer_group=header.producer_group,
        default_topic=header.default_topic,
        default_topic_queue_count=header.default_topic_queue_count,
        flag=header.flag,
        sys_flag=header.sys_flag,
        born_time_ms=header.born_time_ms,
        born_host=asked.connection.host,
        reconsume_times=header.reconsume_times,
        max_reconsume_times=header.max_reconsume_times,
        unit_mode=bool(header.unit_mode),
        is_batch=bool(header.is_batch) or command.code == RequestCode.SEND_BATCH_MESSAGE,
        logical=header.is_logical,
        client_version=command.version,
        ext_fields=command.ext_fields or NO_FIELDS,
    )
