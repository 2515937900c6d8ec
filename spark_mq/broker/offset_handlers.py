"""Where groups go on, and where queues begin and end. Java: ConsumerManageProcessor, AdminBrokerProcessor (29–32, 222).

Of a static topic the leader's physical queue is meant. Departure: what an earlier link at another broker knows is not asked of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from spark_mq.broker.asked import NO_FIELDS, Asked, Handler
from spark_mq.broker.client_tables import too_old_to_ask
from spark_mq.broker.parts import BrokerParts
from spark_mq.remoting import MessageQueue, RemotingCommand, RequestCode, write_body, write_header
from spark_mq.remoting.consumers import (
    MaxOffsetRequest,
    OffsetAnswer,
    OffsetTable,
    QueryConsumerOffsetRequest,
    QueueRequest,
    ResetOffsetRequest,
    SearchOffsetRequest,
    TimeAnswer,
    UpdateConsumerOffsetRequest,
)
from storage.rules.response_codes import RequestRefusedError, ResponseCode
from storage.rules.static_topics import LogicalQueue, logical_queue, physical_queue_id
from storage.tables.topics import TopicConfig


class OffsetHandlers:
    """Answers 14, 15, 29, 30, 31, 32 and 222."""

    def __init__(self, parts: BrokerParts) -> None:
        self._parts = parts

    def table(self) -> Mapping[int, Handler]:
        """Who answers which code."""
        code = RequestCode
        return {
            code.QUERY_CONSUMER_OFFSET: self.query,
            code.UPDATE_CONSUMER_OFFSET: self.update,
            code.SEARCH_OFFSET_BY_TIMESTAMP: self.search,
            code.GET_MAX_OFFSET: self.maximum,
            code.GET_MIN_OFFSET: self.minimum,
            code.GET_EARLIEST_MSG_STORETIME: self.earliest,
            code.INVOKE_BROKER_TO_RESET_OFFSET: self.reset,
        }

    # Of groups

    def query(self, asked: Asked) -> RemotingCommand:
        """14. A group without an offset begins at 0 where the queue is young, whatever its consumers asked for."""
        request: QueryConsumerOffsetRequest = asked.header
        group, topic = request.consumer_group, request.topic
        try:
            queue = self._queue(request)
            queue_id = physical_queue_id(queue, request.queue_id)
        except RequestRefusedError as refused:
            return asked.answer(refused.code, refused.remark)
        with self._parts.lock:
            offset = self._parts.offsets.offset(group, topic, queue_id)
        if offset >= 0:
            return asked.answer(header=OffsetAnswer(queue_offset=_logical(queue, offset)))
        if request.set_zero_if_not_found is False:
            remark = "Not found, do not set to zero, maybe this group boot first"
            return asked.answer(ResponseCode.QUERY_NOT_FOUND, remark, NO_FIELDS)
        served = self._parts.served
        if served.minimum(topic, queue_id) <= 0 and served.is_in_memory(
            topic, queue_id, 0, self._parts.limits.memory_bytes
        ):
            return asked.answer(header=OffsetAnswer(queue_offset=_logical(queue, 0)))
        remark = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
        return asked.answer(ResponseCode.QUERY_NOT_FOUND, remark, NO_FIELDS)

    def update(self, asked: Asked) -> RemotingCommand:
        """15. Offsets may go back; while a reset waits for the group's next pull they are dropped."""
        request: UpdateConsumerOffsetRequest = asked.header
        parts, group, topic = self._parts, request.consumer_group, request.topic
        try:
            queue = self._queue(request)
            queue_id = physical_queue_id(queue, request.queue_id)
        except RequestRefusedError as refused:
            return asked.answer(refused.code, refused.remark)
        if group not in parts.groups:
            remark = f"Group {group} not exist!"
            return asked.answer(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark, NO_FIELDS)
        if topic not in parts.topics:
            return asked.answer(ResponseCode.TOPIC_NOT_EXIST, f"Topic {topic} not exist!", NO_FIELDS)
        with parts.lock:
            if parts.config.clients.use_server_side_reset_offset and parts.offsets.has_reset(group, topic, queue_id):
                return asked.answer(remark="Offset has been previously reset", header=NO_FIELDS)
            parts.offsets.commit(group, topic, queue_id, _physical(queue, request.commit_offset), asked.now_ms)
        return asked.answer(header=NO_FIELDS)

    def reset(self, asked: Asked) -> RemotingCommand:
        """222: a group goes on elsewhere, by an offset of one queue or by a time (below 0: the end) of one or of all."""
        request: ResetOffsetRequest = asked.header
        parts, group, topic = self._parts, request.group, request.topic
        if not parts.config.clients.use_server_side_reset_offset:
            return self._reset_by_clients(asked, request)
        if parts.is_slave:
            return asked.answer(ResponseCode.SYSTEM_ERROR, "Can not reset offset in slave broker")
        config = parts.topics.get(topic)
        if config is None:
            return asked.answer(ResponseCode.TOPIC_NOT_EXIST, f"Topic {topic} does not exist")
        if not group.strip() or group not in parts.groups:
            return asked.answer(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group} does not exist")
        offset = request.queue_offset
        if request.queue_id >= 0 and offset is not None and offset != -1:
            minimum, maximum = (
                parts.served.minimum(topic, request.queue_id),
                parts.served.maximum(topic, request.queue_id),
            )
            if not minimum <= offset <= maximum + 1:
                remark = f"Target offset {offset} not in consume queue range [{minimum}-{maximum}]"
                return asked.answer(ResponseCode.SYSTEM_ERROR, remark)
            offsets = {request.queue_id: offset}
        else:
            ids = [request.queue_id] if request.queue_id >= 0 else range(config.read_queue_count)
            offsets = {queue_id: self._at_time(topic, queue_id, request.time_ms) for queue_id in ids}
        if not offsets:
            return asked.answer(ResponseCode.SYSTEM_ERROR, "No queues to reset.")
        with parts.lock:
            for queue_id, target in offsets.items():
                parts.offsets.reset(group, topic, queue_id, target)
        return asked.answer(body=self._offset_table(topic, offsets))

    def _at_time(self, topic: str, queue_id: int, time_ms: int) -> int:
        if time_ms < 0:
            return self._parts.served.maximum(topic, queue_id)
        return self._parts.served.offset_by_time(topic, queue_id, time_ms)

    def _offset_table(self, topic: str, offsets: dict[int, int]) -> OffsetTable:
        name = self._parts.broker_name
        return OffsetTable(
            offset_table={MessageQueue(topic, name, queue_id): offset for queue_id, offset in offsets.items()}
        )

    def _reset_by_clients(self, asked: Asked, request: ResetOffsetRequest) -> RemotingCommand:
        """The way of before: the group's clients are told (220), and store the offsets themselves. Java: Broker2Client.resetOffset.

        Departure: of all queues that are read. Java takes those that are written, and leaves the others of a topic that shrinks.
        """
        parts, group, topic = self._parts, request.group, request.topic
        config: TopicConfig | None = parts.topics.get(topic)
        if config is None:
            remark = f"[reset-offset] reset offset failed, no topic in this broker. topic={topic}"
            return asked.answer(ResponseCode.TOPIC_NOT_EXIST, remark)
        offsets = {}
        for queue_id in range(config.read_queue_count):
            with parts.lock:
                known = parts.offsets.offset(group, topic, queue_id)
            if known == -1:
                return asked.answer(ResponseCode.SYSTEM_ERROR, f"THe consumer group <{group}> not exist")
            target = max(0, self._at_time(topic, queue_id, request.time_ms))
            offsets[queue_id] = target if request.is_force or target < known else known
        table = self._offset_table(topic, offsets)
        fields = write_header(ResetOffsetRequest(topic=topic, group=group, time_ms=request.time_ms, is_force=False))
        with parts.lock:
            found = parts.consumers.groups.get(group)
            clients = list(found.clients.values()) if found is not None else []
            if not clients:
                remark = f"Consumer not online, so can not reset offset, Group: {group} Topic: {topic} Timestamp: {request.time_ms}"
                return asked.answer(ResponseCode.CONSUMER_NOT_ONLINE, remark)
            for client in clients:
                if (refusal := too_old_to_ask(client)) is not None:
                    return asked.answer(ResponseCode.SYSTEM_ERROR, refusal)
                parts.tell(client.connection, RequestCode.RESET_CONSUMER_CLIENT_OFFSET, fields, write_body(table))
        return asked.answer(body=table)

    # Of queues

    def search(self, asked: Asked) -> RemotingCommand:
        """29: the first message from a time on; with UPPER the last one up to it."""
        request: SearchOffsetRequest = asked.header
        return self._of_queue(
            asked,
            request,
            lambda queue_id: self._parts.served.offset_by_time(
                request.topic, queue_id, request.time_ms, upper=(request.boundary_type or "").upper() == "UPPER"
            ),
        )

    def maximum(self, asked: Asked) -> RemotingCommand:
        """30."""
        request: MaxOffsetRequest = asked.header
        return self._of_queue(asked, request, lambda queue_id: self._parts.served.maximum(request.topic, queue_id))

    def minimum(self, asked: Asked) -> RemotingCommand:
        """31. The remark is empty, and not absent."""
        request: QueueRequest = asked.header
        answer = self._of_queue(asked, request, lambda queue_id: self._parts.served.minimum(request.topic, queue_id))
        return answer._replace(remark="") if answer.code == ResponseCode.SUCCESS else answer

    def earliest(self, asked: Asked) -> RemotingCommand:
        """32."""
        request: QueueRequest = asked.header
        time_ms = self._parts.served.earliest_store_time(request.topic, request.queue_id)
        return asked.answer(header=TimeAnswer(time_ms=time_ms))

    def _of_queue(
        self, asked: Asked, request: SearchOffsetRequest | MaxOffsetRequest | QueueRequest, read: Callable[[int], int]
    ) -> RemotingCommand:
        try:
            queue = self._queue(request)
            offset = read(physical_queue_id(queue, request.queue_id))
        except RequestRefusedError as refused:
            return asked.answer(refused.code, refused.remark)
        return asked.answer(header=OffsetAnswer(queue_offset=_logical(queue, offset)))

    def _queue(self, request: _OfQueue) -> LogicalQueue:
        return logical_queue(self._parts.mappings, request.topic, request.queue_id, logical=request.is_logical)


_OfQueue = (
    QueryConsumerOffsetRequest | UpdateConsumerOffsetRequest | SearchOffsetRequest | MaxOffsetRequest | QueueRequest
)


def _logical(queue: LogicalQueue, offset: int) -> int:
    """The offset as clients of a static topic count."""
    return offset if queue.leader is None else queue.leader.logical(offset)


def _physical(queue: LogicalQueue, offset: int) -> int:
    return offset if queue.leader is None else queue.leader.physical(offset)
