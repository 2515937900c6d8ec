"""What is cleaned away of static topics, in the hour of `deleteWhen`: links whose messages have expired, and queues that have moved on.

`storage/rules/static_topics.py` decides which; this module asks the other brokers. Java: TopicQueueMappingCleanService.
"""

from __future__ import annotations

import logging

from spark_mq.broker.broker import BrokerParts
from spark_mq.broker.requests import AskBroker
from spark_mq.broker_server.name_servers import OtherBrokers
from spark_mq.client.errors import ClientError
from spark_mq.remoting import BodyError, Header, RequestCode, make_request, read_body, write_header
from spark_mq.remoting.administration import TopicRequest, TopicStatsTable
from storage.errors import StateFileError
from storage.retention import is_hour
from storage.rules.response_codes import ResponseCode
from storage.rules.static_topics import QueueEnds, first_links, without_expired, without_passed_on
from storage.tables.document import decode_entry, parse_document, section
from storage.tables.topics import TopicQueueMapping

CLEAN_MS = 5 * 60_000
_SOURCE = "another broker's answer"
_LOG = logging.getLogger(__name__)


class MappingCleaning:
    """The duty of one broker."""

    def __init__(self, parts: BrokerParts, others: OtherBrokers) -> None:
        self._store = parts.store
        self._others = others

    def turn(self, now_ms: int) -> None:
        """Look at all static topics, if it is the hour. Raises StoreNotWritableError, OSError."""
        if not is_hour(self._store.config.retention.delete_when, now_ms):
            return
        for topic, mapping in self._store.mappings.mappings.items():
            if mapping.broker_name != self._store.broker_name:
                _LOG.warning("the mapping of static topic %s is that of broker %s", topic, mapping.broker_name)
                continue
            self.clean(topic, mapping)

    def clean(self, topic: str, mapping: TopicQueueMapping) -> None:
        """Look at one topic."""
        ends = self._ends_of_first_links(topic, mapping)
        self._store.service.change_mapping(topic, lambda present: without_expired(present, ends))
        leaders = self._leaders(topic, mapping)
        self._store.service.change_mapping(topic, lambda present: without_passed_on(present, leaders))

    def _ends_of_first_links(self, topic: str, mapping: TopicQueueMapping) -> dict[tuple[str, int], QueueEnds]:
        found: dict[tuple[str, int], QueueEnds] = {}
        served, others = self._store.served, set()
        for item in first_links(mapping).values():
            if item.broker_name == mapping.broker_name:
                ends = served.minimum(topic, item.queue_id), served.maximum(topic, item.queue_id)
                found[item.broker_name, item.queue_id] = QueueEnds(*ends)
            else:
                others.add(item.broker_name)
        for name in sorted(others):
            header = TopicRequest(topic=topic, is_logical=False, broker_name=name)
            if (body := self._asked(name, RequestCode.GET_TOPIC_STATS_INFO, header)) is None:
                continue
            try:
                table = read_body(TopicStatsTable, body).offset_table
            except BodyError as error:
                _LOG.warning("the queues of static topic %s at broker %s are not known: %s", topic, name, error)
                continue
            found |= {
                (name, queue.queue_id): QueueEnds(each.min_offset, each.max_offset) for queue, each in table.items()
            }
        return found

    def _leaders(self, topic: str, mapping: TopicQueueMapping) -> dict[int, TopicQueueMapping]:
        """The mappings of the brokers that lead, as name servers say, the queues that this broker has given away."""
        given = {
            queue_id
            for queue_id, items in mapping.hosted_queues.items()
            if items and items[-1].broker_name != mapping.broker_name
        }
        if not given:
            return {}
        try:
            names = self._others.leaders(topic)
        except ClientError as error:
            _LOG.warning("which brokers lead static topic %s is not known: %s", topic, error.describe())
            return {}
        there: dict[str, TopicQueueMapping | None] = {}
        found = {}
        for queue_id in given & names.keys():
            name = names[queue_id]
            if name not in there:
                there[name] = self._mapping_at(name, topic)
            if (leader := there[name]) is not None and leader.broker_name == name:
                found[queue_id] = leader
        return found

    def _mapping_at(self, name: str, topic: str) -> TopicQueueMapping | None:
        header = TopicRequest(topic=topic, is_logical=True, broker_name=name)
        if (body := self._asked(name, RequestCode.GET_TOPIC_CONFIG, header)) is None:
            return None
        try:
            entry = section(parse_document(body.decode(), _SOURCE), "mappingDetail", _SOURCE)
            return decode_entry(TopicQueueMapping, topic, entry, _SOURCE) if entry else None
        except (StateFileError, UnicodeDecodeError) as error:
            _LOG.warning("the mapping of static topic %s at broker %s is not known: %s", topic, name, error)
            return None

    def _asked(self, name: str, code: RequestCode, header: Header) -> bytes | None:
        """The body of a broker's answer; None without one."""
        command = make_request(code, write_header(header))
        answer = self._others.answer(AskBroker(name, command, lambda found: found))
        if answer.code != ResponseCode.SUCCESS:
            _LOG.warning("broker %s does not answer request %d: %s", name, int(code), answer.remark)
            return None
        return bytes(answer.body)
