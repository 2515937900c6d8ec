"""Offsets of groups and queues: committed offsets, progress, begin and end of queues, consume statistics.

For a static topic, requests name logical queues: what a link at another broker says or stores is asked for there.
Java: ConsumerManageProcessor (14, 15), AdminBrokerProcessor (29-32, 222; 43, 208, 303, 308, 314, 315, 317, 321).
"""

from __future__ import annotations

import json
import time
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

from spark_mq.broker.broker_store import BrokerStore
from spark_mq.broker.client_tables import Clients, too_old_to_ask
from spark_mq.broker.consumer_filters import message_filter
from spark_mq.broker.group_offsets import GroupOffsets
from spark_mq.broker.requests import NO_FIELDS, UNSET, Handler, Outcome, Request, ask_broker
from spark_mq.broker.traffic import Traffic
from spark_mq.remoting import MessageQueue, RemotingCommand, RequestCode, read_header, write_body, write_header
from spark_mq.remoting.administration import (
    BrokerConsumeStatsRequest,
    BrokerStatsRequest,
    ConsumeQueueEntries,
    ConsumeQueueEntry,
    ConsumeStats,
    ConsumeStatsList,
    ConsumeTimeSpans,
    CorrectionOffsets,
    OffsetWrapper,
    QueryConsumeQueueRequest,
    QueueTimeSpan,
)
from spark_mq.remoting.consumers import (
    CloneGroupOffsetRequest,
    ConsumeStatsRequest,
    ConsumeTimeSpanRequest,
    CorrectionOffsetRequest,
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
from storage.format.bloom_filter import bit_text
from storage.format.consume_queue import is_ext_address
from storage.rules.response_codes import ResponseCode
from storage.rules.static_topics import LogicalQueue, leader_here, link_place, logical_queue
from storage.service.served_store import ALL_MESSAGES, ServedEntry
from storage.tables.topics import MappingItem, TopicConfig

_LONG_MAX = 2**63 - 1
_MOST_ENTRIES = 4_096
"""In one answer to 321; Java returns as many as the request wants."""


class OffsetHandlers:
    """Answers 14, 15, 29, 30, 31, 32 and 222."""

    def __init__(self, store: BrokerStore, clients: Clients, offsets: GroupOffsets) -> None:
        self._store = store
        self._clients = clients
        self._offsets = offsets

    def table(self) -> Mapping[int, Handler]:
        """Handlers by request code."""
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

    def query(self, request: Request) -> Outcome:
        """14. A group without an offset begins at 0 if the queue is young, whatever its consumers are configured to.

        In a static topic the newest link in which the group stored anything counts.
        """
        header: QueryConsumerOffsetRequest = request.header
        queue = self._queue(header)
        if queue.mapping is None:
            return self._own_offset(request, header, header.queue_id)
        leader = leader_here(queue, header.queue_id)
        if len(queue.items) == 1 and leader.logic_offset == 0:
            return self._own_offset(request, header, leader.queue_id)
        links = [item for item in reversed(queue.items) if item.is_decided]
        return self._newest_offset(request, header, queue.mapping.broker_name, links)

    def _own_offset(self, request: Request, header: QueryConsumerOffsetRequest, queue_id: int) -> RemotingCommand:
        group, topic = header.consumer_group, header.topic
        with self._clients.lock:
            offset = self._offsets.offset(group, topic, queue_id)
        if offset >= 0:
            return request.answer(header=OffsetAnswer(queue_offset=offset))
        if header.set_zero_if_not_found is False:
            remark = "Not found, do not set to zero, maybe this group boot first"
            return request.answer(ResponseCode.QUERY_NOT_FOUND, remark, NO_FIELDS)
        served = self._store.served
        if served.minimum(topic, queue_id) <= 0 and served.is_in_memory(
            topic, queue_id, 0, self._store.limits.memory_bytes
        ):
            return request.answer(header=OffsetAnswer(queue_offset=0))
        remark = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
        return request.answer(ResponseCode.QUERY_NOT_FOUND, remark, NO_FIELDS)

    def _newest_offset(
        self, request: Request, header: QueryConsumerOffsetRequest, own_name: str, links: Sequence[MappingItem]
    ) -> Outcome:
        """Where the group is in the first of these links in which it is anywhere."""
        if not links:
            remark = "Not found, maybe this group consumer boot first"
            return request.answer(ResponseCode.QUERY_NOT_FOUND, remark, NO_FIELDS)
        item, earlier = links[0], links[1:]

        def found(offset: int) -> Outcome:
            if offset < 0:
                return self._newest_offset(request, header, own_name, earlier)
            return request.answer(header=OffsetAnswer(queue_offset=item.logical(offset)))

        if item.broker_name == own_name:
            with self._clients.lock:
                offset = self._offsets.offset(header.consumer_group, header.topic, item.queue_id)
            return found(offset)
        code, not_found = RequestCode.QUERY_CONSUMER_OFFSET, ResponseCode.QUERY_NOT_FOUND
        return ask_broker(
            item.broker_name,
            code,
            replace(_at(header, item), set_zero_if_not_found=False),
            lambda answer: found(-1 if answer.code == not_found else read_header(OffsetAnswer, answer).queue_offset),
            accepted=(ResponseCode.SUCCESS, not_found),
        )

    def update(self, request: Request) -> Outcome:
        """15. Offsets may go back; while a reset waits for the group's next pull they are dropped."""
        header: UpdateConsumerOffsetRequest = request.header
        group, topic = header.consumer_group, header.topic
        queue = self._queue(header)
        queue_id, offset = header.queue_id, header.commit_offset
        if queue.mapping is not None:
            place = link_place(queue, offset)
            queue_id, offset = place.item.queue_id, place.queue_offset
            if not place.is_here:
                sent = replace(_at(header, place.item), commit_offset=offset)
                return ask_broker(
                    place.item.broker_name,
                    RequestCode.UPDATE_CONSUMER_OFFSET,
                    sent,
                    lambda answer: request.answer(remark=answer.remark, header=NO_FIELDS),
                )
        if group not in self._store.groups:
            remark = f"Group {group} not exist!"
            return request.answer(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark, NO_FIELDS)
        if topic not in self._store.topics:
            return request.answer(ResponseCode.TOPIC_NOT_EXIST, f"Topic {topic} not exist!", NO_FIELDS)
        with self._clients.lock:
            if self._store.config.clients.use_server_side_reset_offset and self._offsets.has_reset(
                group, topic, queue_id
            ):
                return request.answer(remark="Offset has been previously reset", header=NO_FIELDS)
            self._offsets.commit(group, topic, queue_id, offset, request.now_ms)
        return request.answer(header=NO_FIELDS)

    def reset(self, request: Request) -> RemotingCommand:
        """222: a group goes on elsewhere, by an offset of one queue or by a time (below 0: the end) of one or of all.

        Departure: refused for a static topic. Java resets the physical queue that has the logical queue's number.
        """
        header: ResetOffsetRequest = request.header
        group, topic = header.group, header.topic
        if logical_queue(self._store.mappings, topic, None, logical=header.is_logical).mapping is not None:
            remark = (
                f"Offsets in static topic {topic} cannot be reset: seek and commit with a consumer of group {group}"
            )
            return request.answer(ResponseCode.SYSTEM_ERROR, remark)
        if not self._store.config.clients.use_server_side_reset_offset:
            return self._reset_by_clients(request, header)
        if self._store.is_slave:
            return request.answer(ResponseCode.SYSTEM_ERROR, "Can not reset offset in slave broker")
        config = self._store.topics.get(topic)
        if config is None:
            return request.answer(ResponseCode.TOPIC_NOT_EXIST, f"Topic {topic} does not exist")
        if not group.strip() or group not in self._store.groups:
            return request.answer(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group} does not exist")
        offset = header.queue_offset
        if header.queue_id >= 0 and offset is not None and offset != -1:
            minimum, maximum = (
                self._store.served.minimum(topic, header.queue_id),
                self._store.served.maximum(topic, header.queue_id),
            )
            if not minimum <= offset <= maximum + 1:
                remark = f"Target offset {offset} not in consume queue range [{minimum}-{maximum}]"
                return request.answer(ResponseCode.SYSTEM_ERROR, remark)
            offsets = {header.queue_id: offset}
        else:
            ids = [header.queue_id] if header.queue_id >= 0 else range(config.read_queue_count)
            offsets = {queue_id: self._at_time(topic, queue_id, header.time_ms) for queue_id in ids}
        if not offsets:
            return request.answer(ResponseCode.SYSTEM_ERROR, "No queues to reset.")
        with self._clients.lock:
            for queue_id, target in offsets.items():
                self._offsets.reset(group, topic, queue_id, target)
        return request.answer(body=self._offset_table(topic, offsets))

    def _at_time(self, topic: str, queue_id: int, time_ms: int) -> int:
        if time_ms < 0:
            return self._store.served.maximum(topic, queue_id)
        return self._store.served.offset_by_time(topic, queue_id, time_ms)

    def _offset_table(self, topic: str, offsets: dict[int, int]) -> OffsetTable:
        name = self._store.broker_name
        return OffsetTable(
            offset_table={MessageQueue(topic, name, queue_id): offset for queue_id, offset in offsets.items()}
        )

    def _reset_by_clients(self, request: Request, header: ResetOffsetRequest) -> RemotingCommand:
        """The older protocol: 220 notifies the group's clients, which store the offsets themselves. Java: Broker2Client.resetOffset.

        Departure: of all queues that are read. Java takes those that are written, and leaves the others of a topic that shrinks.
        """
        group, topic = header.group, header.topic
        config: TopicConfig | None = self._store.topics.get(topic)
        if config is None:
            remark = f"[reset-offset] reset offset failed, no topic in this broker. topic={topic}"
            return request.answer(ResponseCode.TOPIC_NOT_EXIST, remark)
        offsets = {}
        for queue_id in range(config.read_queue_count):
            with self._clients.lock:
                known = self._offsets.offset(group, topic, queue_id)
            if known == -1:
                return request.answer(ResponseCode.SYSTEM_ERROR, f"THe consumer group <{group}> not exist")
            target = max(0, self._at_time(topic, queue_id, header.time_ms))
            offsets[queue_id] = target if header.is_force or target < known else known
        table = self._offset_table(topic, offsets)
        fields = write_header(ResetOffsetRequest(topic=topic, group=group, time_ms=header.time_ms, is_force=False))
        with self._clients.lock:
            found = self._clients.consumers.groups.get(group)
            clients = list(found.clients.values()) if found is not None else []
            if not clients:
                remark = f"Consumer not online, so can not reset offset, Group: {group} Topic: {topic} Timestamp: {header.time_ms}"
                return request.answer(ResponseCode.CONSUMER_NOT_ONLINE, remark)
            for client in clients:
                if (refusal := too_old_to_ask(client)) is not None:
                    return request.answer(ResponseCode.SYSTEM_ERROR, refusal)
                self._clients.tell(
                    client.connection, RequestCode.RESET_CONSUMER_CLIENT_OFFSET, fields, write_body(table)
                )
        return request.answer(body=table)

    # Of queues

    def search(self, request: Request) -> Outcome:
        """29: the first message from a time on; with UPPER the last one up to it.

        In a static topic of the first link that has one. Departure: Java takes the last link that answers, and its physical offset 0
        where its messages are all later.
        """
        header: SearchOffsetRequest = request.header
        queue = self._queue(header)
        if queue.mapping is None:
            return request.answer(header=OffsetAnswer(queue_offset=self._by_time(header, header.queue_id)))
        link_place(queue, 0)
        links = [item for item in queue.items if item.is_decided]
        return self._searched(request, header, queue.mapping.broker_name, links)

    def _searched(
        self, request: Request, header: SearchOffsetRequest, own_name: str, links: Sequence[MappingItem]
    ) -> Outcome:
        item, later = links[0], links[1:]
        topic, queue_id, by_time = header.topic, item.queue_id, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP

        def shown(offset: int) -> Outcome:
            return request.answer(header=OffsetAnswer(queue_offset=item.logical(offset)))

        def found(offset: int, maximum: int) -> Outcome:
            end = min(item.end_offset, maximum) if item.has_end else maximum
            if offset >= end:
                return self._searched(request, header, own_name, later)
            return self._read(by_time, header, item, own_name, lambda: self._by_time(header, queue_id), shown)

        if not later:
            return self._read(by_time, header, item, own_name, lambda: self._by_time(header, queue_id), shown)
        first, most = replace(header, boundary_type=None), MaxOffsetRequest(topic=topic, queue_id=queue_id)
        return self._read(
            by_time,
            first,
            item,
            own_name,
            lambda: self._by_time(first, queue_id),
            lambda offset: self._read(
                RequestCode.GET_MAX_OFFSET,
                most,
                item,
                own_name,
                lambda: self._store.served.maximum(topic, queue_id),
                lambda maximum: found(offset, maximum),
            ),
        )

    def _by_time(self, header: SearchOffsetRequest, queue_id: int) -> int:
        is_upper = (header.boundary_type or "").upper() == "UPPER"
        return self._store.served.offset_by_time(header.topic, queue_id, header.time_ms, upper=is_upper)

    def maximum(self, request: Request) -> Outcome:
        """30."""
        header: MaxOffsetRequest = request.header
        read = partial(self._store.served.maximum, header.topic)
        return self._of_queue(request, header, _LONG_MAX, read, MappingItem.logical)

    def minimum(self, request: Request) -> Outcome:
        """31. The remark is empty, and not absent."""
        header: QueueRequest = request.header
        read = partial(self._store.served.minimum, header.topic)
        return self._of_queue(request, header, 0, read, MappingItem.logical_within, remark="")

    def earliest(self, request: Request) -> Outcome:
        """32. Departure: in a static topic of the first link's queue; Java takes that link's broker, and the logical queue's number."""
        header: QueueRequest = request.header
        read = partial(self._store.served.earliest_store_time, header.topic)
        queue = self._queue(header)

        def answer(time_ms: int) -> RemotingCommand:
            return request.answer(header=TimeAnswer(time_ms=time_ms))

        if queue.mapping is None:
            return answer(read(header.queue_id))
        item = link_place(queue, 0).item
        own = queue.mapping.broker_name
        return self._read(RequestCode(request.command.code), header, item, own, lambda: read(item.queue_id), answer)

    def _of_queue(
        self,
        request: Request,
        header: MaxOffsetRequest | QueueRequest,
        logical_offset: int,
        read: Callable[[int], int],
        shown: Callable[[MappingItem, int], int],
        remark: str | None = None,
    ) -> Outcome:
        """A bound of a queue; in a static topic that of the link with the logical offset, `shown` in logical offsets."""
        queue = self._queue(header)
        if queue.mapping is None:
            return request.answer(remark=remark, header=OffsetAnswer(queue_offset=read(header.queue_id)))
        item, own = link_place(queue, logical_offset).item, queue.mapping.broker_name

        def answer(offset: int) -> RemotingCommand:
            return request.answer(remark=remark, header=OffsetAnswer(queue_offset=shown(item, offset)))

        return self._read(RequestCode(request.command.code), header, item, own, lambda: read(item.queue_id), answer)

    def _read(
        self,
        code: RequestCode,
        header: _OfQueue,
        item: MappingItem,
        own_name: str,
        read: Callable[[], int],
        then: Callable[[int], Outcome],
    ) -> Outcome:
        """Go on with what a link's queue says: here by `read`, at the broker that has it by the request."""
        if item.broker_name == own_name:
            return then(read())

        def settle(answer: RemotingCommand) -> Outcome:
            if code == RequestCode.GET_EARLIEST_MSG_STORETIME:
                return then(read_header(TimeAnswer, answer).time_ms)
            return then(read_header(OffsetAnswer, answer).queue_offset)

        return ask_broker(item.broker_name, code, _at(header, item), settle)

    def _queue(self, request: _OfQueue) -> LogicalQueue:
        return logical_queue(self._store.mappings, request.topic, request.queue_id, logical=request.is_logical)


_OfQueue = (
    QueryConsumerOffsetRequest | UpdateConsumerOffsetRequest | SearchOffsetRequest | MaxOffsetRequest | QueueRequest
)
_Q = TypeVar(
    "_Q",
    QueryConsumerOffsetRequest,
    UpdateConsumerOffsetRequest,
    SearchOffsetRequest,
    MaxOffsetRequest,
    QueueRequest,
    _OfQueue,
)


def _at(header: _Q, item: MappingItem) -> _Q:
    """The request for the physical queue of a link, as the broker that has it takes it."""
    return replace(header, queue_id=item.queue_id, is_logical=False, broker_name=item.broker_name)


class ProgressHandlers:
    """Answers what operators ask of progress."""

    def __init__(self, store: BrokerStore, clients: Clients, offsets: GroupOffsets, traffic: Traffic) -> None:
        self._store = store
        self._clients = clients
        self._offsets = offsets
        self._traffic = traffic

    def table(self) -> Mapping[int, Handler]:
        """Handlers by request code."""
        code = RequestCode
        return {
            code.GET_ALL_CONSUMER_OFFSET: self.all_offsets,
            code.GET_CONSUME_STATS: self.consume_stats,
            code.QUERY_CONSUME_TIME_SPAN: self.time_spans,
            code.QUERY_CORRECTION_OFFSET: self.corrections,
            code.CLONE_GROUP_OFFSET: self.clone,
            code.VIEW_BROKER_STATS_DATA: self.figures,
            code.GET_BROKER_CONSUME_STATS: self.all_stats,
            code.QUERY_CONSUME_QUEUE: self.entries,
        }

    def all_offsets(self, request: Request) -> RemotingCommand:
        """43: what consumerOffset.json is to hold, the progress of the broker's own duties and of sinks too."""
        with self._clients.lock:
            known = self._offsets.table()
        return request.answer(body=self._store.with_own_groups(known).to_text().encode())

    def consume_stats(self, request: Request) -> RemotingCommand:
        """208."""
        header: ConsumeStatsRequest = request.header
        group = header.consumer_group
        listed = [topic for topic in (header.topic_list or "").split(";") if topic]
        if listed:
            topics: Iterable[str] = dict.fromkeys(listed)
        else:
            with self._clients.lock:
                own = [header.topic] if (header.topic or "").strip() else self._offsets.topics_of(group)
            topics = [topic for topic in own if topic and self._is_subscribed(group, topic)]
        offsets: dict[MessageQueue, OffsetWrapper] = {}
        rate = 0.0
        for topic in topics:
            if (config := self._store.topics.get(topic)) is not None:
                offsets |= self._wrappers(group, config, config.read_queue_count, with_pulls=True)
                rate += self._rate(group, topic)
        return request.answer(body=ConsumeStats(offset_table=offsets, consume_tps=rate))

    def all_stats(self, request: Request) -> RemotingCommand:
        """317: of all groups. Departure: of all queues that are read, as 208 says; Java counts those that are written."""
        header: BrokerConsumeStatsRequest = request.header
        found, behind, in_flight = [], 0, 0
        times = self._last_times()
        for group in self._store.groups:
            with self._clients.lock:
                topics = self._offsets.topics_of(group)
            stats = []
            for topic in topics:
                config = self._store.topics.get(topic)
                if config is None or (header.is_order and not config.order) or not self._is_subscribed(group, topic):
                    continue
                offsets = self._wrappers(group, config, config.read_queue_count, with_pulls=False, times=times)
                stats.append(ConsumeStats(offset_table=offsets, consume_tps=self._rate(group, topic)))
                behind += sum(each.broker_offset - each.consumer_offset for each in offsets.values())
                in_flight += sum(each.pull_offset - each.consumer_offset for each in offsets.values())
            found.append({group: tuple(stats)})
        body = ConsumeStatsList(
            consume_stats=tuple(found),
            broker_address=self._store.address,
            total_diff=behind,
            total_inflight_diff=in_flight,
        )
        return request.answer(body=body)

    def _last_times(self) -> Mapping[tuple[str, int, int], int]:
        """Store times of the last messages that any group has consumed, by topic, queue and queue offset."""
        with self._clients.lock:
            places = self._offsets.places()
        return self._store.served.store_times(
            {(topic, queue_id, offset - 1) for topic, queue_id, offset in places if offset > 0}
        )

    def _is_subscribed(self, group: str, topic: str) -> bool:
        """Whether the group subscribes to the topic, as far as anything is known of it."""
        with self._clients.lock:
            consumers = self._clients.consumers
            return consumers.subscription(group, topic) is not None or consumers.subscription_count(group) == 0

    def _rate(self, group: str, topic: str) -> float:
        with self._clients.lock:
            return self._traffic.per_second("GROUP_GET_NUMS", f"{topic}@{group}")

    def _wrappers(
        self,
        group: str,
        topic: TopicConfig,
        queue_count: int,
        *,
        with_pulls: bool,
        times: Mapping[tuple[str, int, int], int] = MappingProxyType({}),
    ) -> dict[MessageQueue, OffsetWrapper]:
        """`times` are store times that are known, by topic, queue and queue offset."""
        name = topic.topic
        found = {}
        for queue_id in range(queue_count):
            with self._clients.lock:
                offset = self._offsets.offset(group, name, queue_id)
                pulled = self._offsets.pulled(group, name, queue_id) if with_pulls else 0
            if name not in self._store.mappings.mappings:
                offset = max(0, offset)
            time_ms = times.get((name, queue_id, offset - 1)) if offset > 0 else 0
            if time_ms is None:
                time_ms = self._store.served.store_time(name, queue_id, offset - 1)
            found[MessageQueue(name, self._store.broker_name, queue_id)] = OffsetWrapper(
                broker_offset=self._store.served.maximum(name, queue_id),
                consumer_offset=offset,
                pull_offset=max(offset, pulled) if with_pulls else 0,
                last_time_ms=max(0, time_ms),
            )
        return found

    def time_spans(self, request: Request) -> RemotingCommand:
        """303: how old the messages of a topic's queues are, and where a group is among them."""
        header: ConsumeTimeSpanRequest = request.header
        topic = header.topic
        config = self._store.topics.get(topic)
        if config is None:
            return request.answer(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
        spans = []
        for queue_id in range(config.write_queue_count):
            maximum, first_ms = (
                self._store.served.maximum(topic, queue_id),
                self._store.served.earliest_store_time(topic, queue_id),
            )
            with self._clients.lock:
                offset = self._offsets.offset(header.group, topic, queue_id)
            read_ms = self._store.served.store_time(topic, queue_id, offset - 1) if offset > 0 else first_ms
            delay_ms = 0
            if offset < maximum:
                delay_ms = self._store.clock() - self._store.served.store_time(topic, queue_id, offset)
            last_ms = self._store.served.store_time(topic, queue_id, maximum - 1)
            spans.append(
                QueueTimeSpan(
                    queue=MessageQueue(topic, self._store.broker_name, queue_id),
                    min_time_ms=first_ms,
                    max_time_ms=last_ms,
                    consume_time_ms=read_ms,
                    delay_ms=delay_ms,
                    min_time=_shown(first_ms),
                    max_time=_shown(last_ms),
                    consume_time=_shown(read_ms),
                )
            )
        return request.answer(body=ConsumeTimeSpans(spans=tuple(spans)))

    def corrections(self, request: Request) -> RemotingCommand:
        """308: the smallest offset of any group by queue; the greatest number where the compared group is before it."""
        header: CorrectionOffsetRequest = request.header
        topic = header.topic
        minimums = {
            queue_id: self._store.served.minimum(topic, queue_id) for queue_id in self._store.served.queue_ids(topic)
        }
        without = (
            frozenset((header.filter_groups or "").split(",")) if (header.filter_groups or "").strip() else frozenset()
        )
        with self._clients.lock:
            smallest = self._offsets.smallest(topic, minimums, without)
            compared = dict(self._offsets.of(header.compare_group, topic))
        for queue_id, offset in compared.items():
            if smallest.get(queue_id, _LONG_MAX) > offset:
                smallest[queue_id] = _LONG_MAX
        return request.answer(body=CorrectionOffsets(correction_offsets=smallest))

    def clone(self, request: Request) -> RemotingCommand:
        """314. As in Java a blank topic clones nothing that exists."""
        header: CloneGroupOffsetRequest = request.header
        source = header.source_group
        if (header.topic or "").strip():
            topic = header.topic or ""
            if topic in self._store.topics and (header.offline or self._is_subscribed(source, topic)):
                with self._clients.lock:
                    self._offsets.clone(source, header.destination_group, topic)
        return request.answer()

    def figures(self, request: Request) -> RemotingCommand:
        """315."""
        header: BrokerStatsRequest = request.header
        with self._clients.lock:
            found = self._traffic.stats(header.stats_name, header.stats_key)
        if found is None:
            return request.answer(
                ResponseCode.SYSTEM_ERROR, f"The stats <{header.stats_name}> <{header.stats_key}> not exist"
            )
        return request.answer(body=found)

    def entries(self, request: Request) -> RemotingCommand:
        """321."""
        header: QueryConsumeQueueRequest = request.header
        topic, queue_id = header.topic or "", header.queue_id
        maximum = self._store.served.maximum(topic, queue_id)
        if not maximum:
            return request.answer(ResponseCode.SYSTEM_ERROR, f"{queue_id}@{topic} is not exist!")
        subscription, filter_data, wanted = None, None, ALL_MESSAGES
        if (group := header.consumer_group) is not None:
            with self._clients.lock:
                subscription = self._clients.consumers.subscription(group, topic)
                known = self._clients.filters.find(topic, group)
            filter_data = f"{group}@{topic} is not online!"
            if subscription is not None:
                filter_data = "null" if known is None else known.filter.to_text()
                bits = None if known is None else self._clients.filters.bit_test(known)
                wanted = message_filter(subscription, None if known is None else known.expression, bits)
        if not 0 <= header.index < maximum:
            return request.answer(remark=f"Index {header.index} of {queue_id}@{topic} is not exist!")
        rows = self._store.served.entries(
            topic, queue_id, header.index, min(max(0, header.count), _MOST_ENTRIES), wanted
        )
        found = tuple(_shown_entry(row, is_judged=subscription is not None) for row in rows)
        body = ConsumeQueueEntries(
            subscription=subscription,
            filter_data=filter_data,
            entries=found,
            max_queue_index=maximum,
            min_queue_index=self._store.served.minimum(topic, queue_id),
        )
        return request.answer(remark=UNSET, body=body)


def _shown_entry(row: ServedEntry, *, is_judged: bool) -> ConsumeQueueEntry:
    """Java gives data of filters only for entries with extension units."""
    place, size, code, unit, passes = row
    if unit is None:
        message = f"Cq extend not exist!addr: {code}" if is_ext_address(np.array(code)) else None
        return ConsumeQueueEntry(commitlog_offset=place, size_bytes=size, tags_code=code, message=message)
    shown: dict[str, Any] = {"msgStoreTime": unit.store_time_ms, "size": unit.size_bytes, "tagsCode": unit.tags_code}
    if unit.bit_map:
        shown = {"filterBitMap": b64encode(unit.bit_map).decode()} | shown
    return ConsumeQueueEntry(
        commitlog_offset=place,
        size_bytes=size,
        tags_code=unit.tags_code,
        extension=json.dumps(shown, separators=(",", ":")),
        bit_map=bit_text(unit.bit_map) if unit.bit_map else None,
        passes=is_judged and passes,
    )


def _shown(time_ms: int) -> str:
    """In the broker's local time. Java: UtilAll.YYYY_MM_DD_HH_MM_SS_SSS."""
    seconds, millis = divmod(time_ms, 1_000)
    return f"{time.strftime('%Y-%m-%d#%H:%M:%S', time.localtime(seconds))}:{millis:03d}"
