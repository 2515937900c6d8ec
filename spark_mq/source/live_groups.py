"""A query's position as a consumer group's at running brokers (request 15), where `mqadmin consumerProgress` shows it.

A group that is new to a broker gets its `%RETRY%` topic and its entry first, in this order, as in stores: tools fail on a group without
its retry topic, the topic alone does no harm. Both are asked for before each write, because somebody may delete the group while the
query runs; brokers up to 4.9 cannot be asked, and get both once.
Java: DefaultMQAdminExt.createAndUpdateSubscriptionGroupConfig, updateConsumerOffset.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from spark_mq.client.errors import BrokerNotFoundError, ResponseError, request_text
from spark_mq.remoting import RequestCode, write_body
from spark_mq.remoting.administration import (
    CreateTopicRequest,
    TopicRequest,
)
from spark_mq.remoting.consumers import GroupRequest, UpdateConsumerOffsetRequest
from spark_mq.source.cluster_questions import ClusterQuestions, request
from spark_mq.source.group_offsets import WriteOffsets
from spark_mq.source.live_topics import MASTER
from spark_mq.source.live_view import LiveView
from storage.format.table_entries import SubscriptionGroupConfig
from storage.names import retry_topic
from storage.rules.response_codes import ResponseCode

_READ_WRITE = 6
_WAS_RESET = "Offset has been previously reset"


class LiveGroup:
    """Writes one group's offsets at one broker, wherever that broker is when it is asked."""

    def __init__(self, questions: ClusterQuestions, view: LiveView, broker_name: str) -> None:
        self._questions = questions
        self._view = view
        self._broker_name = broker_name
        self._is_made = False

    def write(self, group: str, offsets: Mapping[tuple[str, int], int], now_ms: int) -> None:
        """Store the next offsets by (topic, queue id). Raises the client's errors."""
        if not self._is_made:
            self._is_made = self._make(group)
        asked = [
            request(
                RequestCode.UPDATE_CONSUMER_OFFSET,
                UpdateConsumerOffsetRequest(
                    consumer_group=group, topic=topic, queue_id=queue_id, commit_offset=next_offset
                ),
            )
            for (topic, queue_id), next_offset in offsets.items()
        ]
        for answer in self._questions.ask(self._address(), asked):
            answer.expect()
            if _WAS_RESET in (answer.command.remark or ""):
                what = request_text(RequestCode.UPDATE_CONSUMER_OFFSET)
                raise ResponseError(answer.code, answer.command.remark, answer.address, what, None, group)

    def _make(self, group: str) -> bool:
        """Make what is not there; whether that was done blindly."""
        config = SubscriptionGroupConfig(group=group)
        retry = retry_topic(group)
        entry, topic = self._questions.ask(
            self._address(),
            [
                request(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, GroupRequest(group=group)),
                request(RequestCode.GET_TOPIC_CONFIG, TopicRequest(topic=retry)),
            ],
        )
        is_old = ResponseCode.REQUEST_CODE_NOT_SUPPORTED in (entry.code, topic.code)  # up to 4.9: both are made again
        if entry.code == ResponseCode.SUCCESS:
            config = entry.body(SubscriptionGroupConfig)
        if topic.code != ResponseCode.SUCCESS:
            header = CreateTopicRequest(
                topic=retry,
                default_topic=group,
                read_queue_count=config.retry_queue_count,
                write_queue_count=config.retry_queue_count,
                perm=_READ_WRITE,
                topic_filter_type="SINGLE_TAG",
                topic_sys_flag=0,
            )
            self._questions.ask(self._address(), [request(RequestCode.UPDATE_AND_CREATE_TOPIC, header)])[0].expect()
        if entry.code != ResponseCode.SUCCESS or is_old:
            asked = request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=write_body(config))
            self._questions.ask(self._address(), [asked])[0].expect()
        return is_old

    def _address(self) -> str:
        address = self._view.brokers.get(self._broker_name, {}).get(MASTER)
        if address is None:
            raise BrokerNotFoundError(self._broker_name, MASTER)
        return address


class _Writers(Mapping[str, WriteOffsets]):
    """A writer for any broker by name, made when it is first asked for: brokers join while a query runs."""

    def __init__(self, questions: ClusterQuestions, view: LiveView) -> None:
        self._questions = questions
        self._view = view
        self._made: dict[str, LiveGroup] = {}

    def __getitem__(self, broker_name: str) -> WriteOffsets:
        if broker_name not in self._made:
            self._made[broker_name] = LiveGroup(self._questions, self._view, broker_name)
        return self._made[broker_name].write

    def __iter__(self) -> Iterator[str]:
        return iter(self._view.brokers)

    def __len__(self) -> int:
        return len(self._view.brokers)


def group_writers(questions: ClusterQuestions, view: LiveView) -> Mapping[str, WriteOffsets]:
    """What stores a group's offsets, by broker name."""
    return _Writers(questions, view)
