"""Requests to create, change, delete and list topics.

Java: AdminBrokerProcessor (17, 18, 21, 513, 202, 215, 300, 305, 306, 316, 329, 351).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from spark_mq.broker.broker_store import BrokerStore
from spark_mq.broker.client_tables import Clients
from spark_mq.broker.entries import (
    AttributeRefusedError,
    changed_attributes,
    page_of,
    parse_attributes,
    topic_attributes,
)
from spark_mq.broker.group_offsets import GroupOffsets
from spark_mq.broker.requests import NO_FIELDS, UNSET, Handler, Request, timed
from spark_mq.broker.traffic import Traffic
from spark_mq.remoting import Header, MessageQueue, RemotingCommand, RequestCode, read_body
from spark_mq.remoting.administration import (
    CreateTopicRequest,
    GroupList,
    TopicConfigList,
    TopicOffset,
    TopicPageAnswer,
    TopicPageRequest,
    TopicRequest,
    TopicStatsTable,
)
from spark_mq.remoting.routes import TopicConfigTable, TopicList
from storage.errors import NameIllegalError
from storage.format import fastjson
from storage.format.typed_json import BATCH_QUEUES
from storage.names import SYSTEM_TOPICS, is_system_topic, validate_path_element
from storage.rules.response_codes import RequestRefusedError, ResponseCode
from storage.rules.static_topics import accepted_mapping
from storage.rules.topics import built_in_topics, topic_name_remark
from storage.settings.load import BATCHES_RULE
from storage.tables.document import encode_entry
from storage.tables.topics import MAPPINGS, QUEUE_COUNT_LIMIT, TopicConfig, TopicQueueMapping

MANUAL_CLEANS = 20
"""Turns of retention. Java: CleanCommitLogService.MAX_MANUAL_DELETE_FILE_TIMES."""


class TopicHandlers:
    """Answers what operators ask of topics."""

    def __init__(self, store: BrokerStore, clients: Clients, offsets: GroupOffsets, traffic: Traffic) -> None:
        self._store = store
        self._clients = clients
        self._offsets = offsets
        self._traffic = traffic

    def table(self) -> Mapping[int, Handler]:
        """Handlers by request code."""
        code = RequestCode
        return {
            code.UPDATE_AND_CREATE_TOPIC: self._timed(self.update),
            code.UPDATE_AND_CREATE_TOPIC_LIST: self._timed(self.update_list),
            code.UPDATE_AND_CREATE_STATIC_TOPIC: self.update_static,
            code.DELETE_TOPIC_IN_BROKER: self.delete,
            code.GET_ALL_TOPIC_CONFIG: self.all_topics,
            code.GET_TOPIC_CONFIG: self.config,
            code.GET_TOPIC_STATS_INFO: self.stats,
            code.QUERY_TOPIC_CONSUME_BY_WHO: self.groups_of,
            code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self.system_topics,
            code.CLEAN_UNUSED_TOPIC: self.clean_unused,
            code.CLEAN_EXPIRED_CONSUMEQUEUE: self.clean_expired,
            code.DELETE_EXPIRED_COMMITLOG: self.delete_expired,
        }

    def _timed(self, handler: Handler) -> Handler:
        """The handler, with its duration in the broker's metrics if there are any."""
        if (metrics := self._traffic.metrics) is None:
            return handler

        def note(request: Request, took_ms: int, is_done: bool) -> None:
            metrics.topics_changed(took_ms, is_done=is_done, topic=getattr(request.header, "topic", ""))

        return timed(handler, note)

    # Changes

    def update(self, request: Request) -> RemotingCommand:
        """17. An entry that is wanted as it is changes nothing. The remark of success is Java's, which sets none."""
        header: CreateTopicRequest = request.header
        try:
            wanted = self._wanted(header)
            if wanted != self._store.topics.get(header.topic):
                self._save([wanted])
        except RequestRefusedError as refused:
            return request.answer(refused.code, refused.remark)
        except AttributeRefusedError as refused:
            return request.answer(ResponseCode.SYSTEM_ERROR, str(refused))
        return request.answer(remark=UNSET)

    def _wanted(self, header: CreateTopicRequest) -> TopicConfig:
        """The topic, with changes in place of attributes. Raises RequestRefusedError, AttributeRefusedError."""
        self._check_name(header.topic)
        change = parse_attributes(header.attributes)
        wanted = TopicConfig(
            header.topic,
            header.read_queue_count,
            header.write_queue_count,
            header.perm,
            header.topic_filter_type,
            header.topic_sys_flag or 0,
            header.is_order,
            change,
        )
        self._check_type(change)
        _check_counts(wanted)
        _check_filter_type(wanted)
        return wanted

    def update_list(self, request: Request) -> RemotingCommand:
        """18. As in Java one topic that is as it is wanted ends it, with nothing done."""
        wanted = list(read_body(TopicConfigList, request.body).topics)
        try:
            for topic in wanted:
                self._check_name(topic.topic)
                self._check_type(topic.attributes)
                _check_counts(topic)
                if topic == self._store.topics.get(topic.topic):
                    return request.answer(remark=UNSET)
            self._save(wanted)
        except RequestRefusedError as refused:
            return request.answer(refused.code, refused.remark)
        except AttributeRefusedError as refused:
            return request.answer(ResponseCode.SYSTEM_ERROR, str(refused))
        return request.answer(remark=UNSET)

    def update_static(self, request: Request) -> RemotingCommand:
        """513: the part of a static topic that this broker has. Departures: a mapping that is refused changes nothing (Java keeps the
        entry); the mapping is saved before the entry; order and attributes are the request's as with 17 (Java's topic loses its order);
        answered when the queues that the broker leads no more get no further message, and with SYSTEM_ERROR while they may.
        """
        header: CreateTopicRequest = request.header
        told = read_body(TopicQueueMapping, request.body)
        try:
            wanted = self._changed(self._wanted(header))
            if told.topic != header.topic:
                raise ValueError(f"the mapping is that of topic {told.topic!r}, and the request names {header.topic!r}")
            self._store.service.save_static_topic(
                wanted,
                lambda before: accepted_mapping(before, told, self._store.broker_name, force=bool(header.force)),
            )
        except RequestRefusedError as refused:
            return request.answer(refused.code, refused.remark)
        except (AttributeRefusedError, ValueError, TimeoutError) as refused:
            return request.answer(ResponseCode.SYSTEM_ERROR, str(refused))
        return request.answer()

    def _save(self, wanted: Iterable[TopicConfig]) -> None:
        for topic in wanted:
            self._store.service.save_topic(self._changed(topic))

    def _changed(self, topic: TopicConfig) -> TopicConfig:
        """The topic, its changes made to the present attributes. Raises AttributeRefusedError."""
        present, known = self._store.topics.get(topic.topic), topic_attributes(self._store.config.release)
        attributes = changed_attributes(None if present is None else present.attributes, topic.attributes, known)
        if "+reserve.time" in topic.attributes:
            raise AttributeRefusedError("Update topic reserveTime not supported")
        return replace(topic, attributes=attributes)

    def delete(self, request: Request) -> RemotingCommand:
        """215: entry, offsets and queues; messages stay in the log until they expire.

        Departure: a name that no directory can have is refused; Java says that it is deleted.
        """
        header: TopicRequest = request.header
        if not header.topic.strip():
            return request.answer(ResponseCode.INVALID_PARAMETER, "The specified topic is blank.")
        try:
            self._check_system(header.topic)
            validate_path_element("topic", header.topic)
        except RequestRefusedError as refused:
            return request.answer(refused.code, refused.remark)
        except NameIllegalError as illegal:
            return request.answer(ResponseCode.INVALID_PARAMETER, str(illegal))
        self._store.service.delete_topic(header.topic)
        with self._clients.lock:  # behind the entry, without which no offset is taken
            self._offsets.forget_topic(header.topic)
            self._traffic.forget(topic=header.topic)
        self._store.list_files()
        return request.answer()

    def clean_unused(self, request: Request) -> RemotingCommand:
        """316: queues of topics that have no entry."""
        kept = self._store.topics
        for topic in self._store.served.topics():
            if topic not in kept and not self._is_system(topic):
                self._store.service.delete_queues(topic)
        self._store.list_files()
        return request.answer()

    def clean_expired(self, request: Request) -> RemotingCommand:
        """306. Files of queues whose messages have expired are left to retention, which deletes the log's."""
        self._store.list_files()
        return request.answer()

    def delete_expired(self, request: Request) -> RemotingCommand:
        """329: the next turns of retention do not wait for the hour. Java: executeDeleteFilesManually."""
        with self._clients.lock:
            self._store.manual_cleans_left = MANUAL_CLEANS
        return request.answer()

    def _check_name(self, topic: str) -> None:
        if (remark := topic_name_remark(topic)) is not None:
            raise RequestRefusedError(ResponseCode.INVALID_PARAMETER, remark)
        self._check_system(topic)

    def _check_system(self, topic: str) -> None:
        if self._store.config.clients.validate_system_topic_when_update_topic and self._is_system(topic):
            remark = f"The topic[{topic}] is conflict with system topic."
            raise RequestRefusedError(ResponseCode.INVALID_PARAMETER, remark)

    def _check_type(self, change: Mapping[str, str]) -> None:
        mixes = change.get("+message.type") == "MIXED"
        if mixes and not self._store.config.clients.enable_mixed_message_type:
            raise RequestRefusedError(ResponseCode.INVALID_PARAMETER, "MIXED message type is not supported.")
        if change.get("+queue.type") == BATCH_QUEUES:
            raise RequestRefusedError(ResponseCode.INVALID_PARAMETER, f"The topic would have {BATCHES_RULE}.")

    def _is_system(self, topic: str) -> bool:
        settings = self._store.service.settings
        return is_system_topic(topic, broker_name=settings.broker_name, cluster_name=settings.cluster)

    # Requests that read

    def all_topics(self, request: Request) -> RemotingCommand:
        """21: all topics, or the page that the request asks for.

        Departure: `enableSplitMetadata` and `splitMetadataSize` are not followed; a page has 2,000 topics, Java's defaults.
        """
        header: TopicPageRequest = request.header
        table = self._store.service.settings.topics
        topics = dict(self._store.topics)
        mappings: Mapping[str, Any] = self._store.mappings.document.get(MAPPINGS) or {}
        fields: Header | Mapping[str, str] = NO_FIELDS
        if header.topic_seq is not None:
            fields = TopicPageAnswer(total_topic_num=len(topics))
            topics = page_of(topics, table.version, header.topic_seq, header.data_version, header.max_topic_num)
            mappings = {topic: mapping for topic, mapping in mappings.items() if topic in topics}
        body = TopicConfigTable(
            topic_config_table=topics,
            data_version=table.version,
            mapping_data_version=self._store.mappings_version,
            topic_queue_mapping_info_map={},
            topic_queue_mapping_detail_map=mappings,
        )
        return request.answer(header=fields, body=body)

    def config(self, request: Request) -> RemotingCommand:
        """351; of a static topic with the mapping, if the request says `lo=true`."""
        header: TopicRequest = request.header
        found = self._store.topics.get(header.topic)
        if found is None:
            return request.answer(ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {header.topic}")
        mappings: Mapping[str, Any] = self._store.mappings.document.get("topicQueueMappingInfoMap") or {}
        if not header.is_logical or header.topic not in mappings:
            return request.answer(body=found)
        entry = {**encode_entry(found, None), "mappingDetail": mappings[header.topic]}
        return request.answer(body=fastjson.to_text(entry).encode())

    def stats(self, request: Request) -> RemotingCommand:
        """202: where the topic's queues begin and end, and when their last messages were stored."""
        header: TopicRequest = request.header
        topic, served = header.topic, self._store.served
        found = self._store.topics.get(topic)
        if found is None:
            return request.answer(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
        offsets = {}
        for queue_id in range(max(found.write_queue_count, found.read_queue_count)):
            maximum = served.maximum(topic, queue_id)
            time_ms = served.store_time(topic, queue_id, maximum - 1) if maximum > 0 else 0
            offsets[MessageQueue(topic, self._store.broker_name, queue_id)] = TopicOffset(
                min_offset=max(0, served.minimum(topic, queue_id)), max_offset=maximum, last_update_time_ms=time_ms
            )
        with self._clients.lock:
            rate = self._traffic.per_second("TOPIC_PUT_NUMS", topic)
        return request.answer(body=TopicStatsTable(offset_table=offsets, topic_put_tps=rate))

    def groups_of(self, request: Request) -> RemotingCommand:
        """300: groups that subscribe to the topic, and groups with offsets in it."""
        header: TopicRequest = request.header
        with self._clients.lock:
            groups = self._clients.consumers.groups_of(header.topic) | set(self._offsets.groups_of(header.topic))
        return request.answer(body=GroupList(groups=tuple(sorted(groups))))

    def system_topics(self, request: Request) -> RemotingCommand:
        """305."""
        settings, config = self._store.service.settings, self._store.config
        built_in = built_in_topics(settings.broker_name, settings.cluster, config.send, config.timer)
        return request.answer(body=TopicList(topics=tuple(sorted(SYSTEM_TOPICS | built_in.keys()))))


def _check_filter_type(topic: TopicConfig) -> None:
    """Java: CreateTopicRequestHeader.checkFields."""
    if topic.topic_filter_type not in ("SINGLE_TAG", "MULTI_TAG"):
        remark = f"topicFilterType = [{topic.topic_filter_type}] value invalid"
        raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, remark)


def _check_counts(topic: TopicConfig) -> None:
    """Departure: Java sets no limit, and its answer about the topic's figures has an entry for each of them."""
    for count in (topic.read_queue_count, topic.write_queue_count):
        if not 0 <= count <= QUEUE_COUNT_LIMIT:
            remark = f"The topic can have 0 to {QUEUE_COUNT_LIMIT} queues, not {count}."
            raise RequestRefusedError(ResponseCode.INVALID_PARAMETER, remark)
