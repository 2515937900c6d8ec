"""A message that a consumer failed on: each retry goes to the group's retry topic with a longer delay, and at last to its dead letters.

There are two ways back. First, a consumer names the message's place in the log (code 36): `plan_send_back` decides; `SendBackHandler`
looks the message up, saves the entries that the plan makes, and puts. Second, a client sends the message to the group's retry topic:
`put_plan.retry_or_dead_letter`. Orderly consumers do so when they give a message up, and any client does so whose code 36 failed.
This way moves the properties RECONSUME_TIME and MAX_RECONSUME_TIMES into the request.
The same rules for tables of rows: `storage/rules/retry_rows.py`. Requests are not remembered: a request repeated after a lost answer
puts a second copy, as in Java. Not supported: passing a request on to a master in the same process.
Java: AbstractSendMessageProcessor.consumerSendMsgBack, ConsumerSendMsgBackRequestHeader, SendMessageProcessor.handleRetryAndDLQ; of the
client: ConsumeMessageOrderlyService.sendMessageBack.
Departures: a dead letter is put as it is. Java's put path may treat one that had a deliver time as a timer message again, and then
parks or refuses it. Retries go only to existing queues (`retry_queue_count`).
"""

from __future__ import annotations

import ipaddress
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

from spark_mq.broker.broker_metrics import BrokerMetrics
from spark_mq.broker.put_plan import (
    CURRENT_VERSION,
    PutPlan,
    PutRules,
    allowed_retries,
    changed,
    known_group,
    plan_inner,
    put_result,
    save_entries,
    state_now,
)
from spark_mq.broker.requests import Request, Verdict
from spark_mq.remoting import RemotingCommand
from spark_mq.remoting.messages import SendBackRequest
from storage.epoch_times import current_time_ms
from storage.errors import CorruptRecordError, OffsetOutOfRangeError, PutRefusedError
from storage.format.delay import SCHEDULE_TOPIC
from storage.format.record import Message
from storage.format.typed_json import SubscriptionGroupConfig
from storage.pending import PutStatus
from storage.rules.inner_messages import InnerMessage
from storage.rules.put_guards import BrokerState
from storage.rules.response_codes import REJECTED, RequestRefusedError, ResponseCode
from storage.rules.retries import (
    ReturnBar,
    dead_letter_topic_config,
    next_reconsume_times,
    retry_queue_count,
    retry_topic_config,
    return_bar,
    sent_back_properties,
    sent_back_to,
)
from storage.service.put_service import PutService
from storage.settings.load import StoreConfig
from storage.tables.put_statistics import PutStatistics
from storage.tables.topics import TopicConfig

_DONE = Verdict(ResponseCode.SUCCESS)


class SendBackPlan(NamedTuple):
    """The result of a request: entries to save in any case, and a message to put, or else the answer."""

    message: InnerMessage | None = None
    verdict: Verdict = _DONE
    topics: tuple[TopicConfig, ...] = ()
    groups: tuple[SubscriptionGroupConfig, ...] = ()
    is_dead_letter: bool = False


def plan_send_back(
    original: Message | None,
    request: SendBackRequest,
    groups: Mapping[str, SubscriptionGroupConfig],
    topics: Mapping[str, TopicConfig],
    *,
    config: StoreConfig,
    client_version: int = CURRENT_VERSION,
    broker_address: str = "127.0.0.1",
    choose_queue: Callable[[int], int] = random.randrange,
) -> SendBackPlan:
    """The plan for `original`, the message at the request's offset, None where there is none. Pure but for `choose_queue`, which takes
    one of so many retry queues.

    Checks run in Java's order, because the answer and the created entries depend on it. A retry is not yet delayed: the caller passes
    it through `route_delayed`. Raises nothing.
    """
    try:
        group = known_group(request.group, groups, config)
    except RequestRefusedError as refused:
        return SendBackPlan(verdict=Verdict(refused.code, refused.remark))
    new_groups = () if request.group in groups else (group,)

    def refusal(code: ResponseCode, remark: str, new_topics: tuple[TopicConfig, ...] = ()) -> SendBackPlan:
        return SendBackPlan(None, Verdict(code, remark), new_topics, new_groups)

    retry_target = retry_topic_config(group, topics, unit_mode=request.unit_mode)
    bar = return_bar(group, retry_target, config.send.broker_permission)
    if bar is ReturnBar.BROKER_FORBIDS:
        return refusal(ResponseCode.NO_PERMISSION, f"the broker[{broker_address}] sending message is forbidden")
    if bar is ReturnBar.NO_RETRIES:
        return SendBackPlan(groups=new_groups)  # the message is given up
    new_topics = changed(retry_target, topics)
    if bar is ReturnBar.TOPIC_FORBIDS:
        remark = f"the topic[{retry_target.topic}] sending message is forbidden"
        return refusal(ResponseCode.NO_PERMISSION, remark, new_topics)
    if original is None:
        remark = f"look message by offset failed, {request.commitlog_offset}"
        return refusal(ResponseCode.SYSTEM_ERROR, remark, new_topics)
    maximum = allowed_retries(group, request.max_reconsume_times, client_version)
    destination = sent_back_to(original.reconsume_times, request.delay_level, maximum)
    target, queue_id = retry_target, choose_queue(retry_queue_count(group, retry_target))
    if destination.dead:
        target, queue_id = dead_letter_topic_config(request.group, topics), 0
        new_topics += changed(target, topics)
    level = int(destination.levels)
    message = replace(
        InnerMessage.of(original),
        topic=target.topic,
        queue_id=queue_id,
        properties=sent_back_properties(original.properties, original.topic, original.msg_id, level),
        reconsume_times=int(next_reconsume_times(original.reconsume_times)),
        prepared_transaction_offset=0,
    )
    return SendBackPlan(message, _DONE, new_topics, new_groups, bool(destination.dead))


class SendBackHandler:
    """Sends messages back into the store of a service. Thread-safe."""

    def __init__(
        self,
        service: PutService,
        *,
        statistics: PutStatistics | None = None,
        metrics: BrokerMetrics | None = None,
        clock: Callable[[], int] = current_time_ms,
    ) -> None:
        """`clock` gives milliseconds; `statistics` are those of the sends to the same store."""
        settings = service.settings
        self.state = BrokerState()
        """Whether anything is taken back; the broker sets it."""
        self.statistics = statistics or PutStatistics(settings.broker_name, settings.cluster)
        self._metrics = metrics
        self._service = service
        self._config = service.config
        self._host = settings.host
        self._clock = clock

    def configure(self, config: StoreConfig) -> None:
        """An operator has changed settings: these hold from now on."""
        self._config = config

    def send_back(self, request: Request) -> RemotingCommand:
        """Put the message back, and answer as a broker does. With SUCCESS it is readable (a retry when it is due), and under
        SYNC_FLUSH on the disk; a time-out of disk or slave is SYSTEM_ERROR although the message stands.

        Raises OSError where a topic or group that the request makes cannot be saved, StateFileError.
        """
        if state_now(self._service, self.state, is_heard=request.is_heard).rejects_requests:
            return request.answer(ResponseCode.SYSTEM_BUSY, REJECTED)
        return request.answer(*self._verdict(request))

    def _verdict(self, request: Request) -> Verdict:
        """Java: AbstractSendMessageProcessor.consumerSendMsgBack."""
        address = str(ipaddress.ip_address(self._host[:-4]))
        if self.state.is_slave:
            return Verdict(ResponseCode.SYSTEM_ERROR, f"no master available along with {address}")
        header: SendBackRequest = request.header
        topics = self._service.settings.topics.topics
        plan = plan_send_back(
            self._look_up(header.commitlog_offset),
            header,
            self._service.groups,
            topics,
            config=self._config,
            client_version=request.command.version,
            broker_address=address,
        )
        if plan.is_dead_letter and self._metrics is not None:
            self._metrics.dead_letter(header.group, header.origin_topic or "")
        unsaved: PutStatus | None = None
        try:
            save_entries(self._service, plan.topics, plan.groups, topics)
        except PutRefusedError as refused:
            unsaved = refused.status
        if plan.message is None:
            return plan.verdict
        status = unsaved or self._put(plan.message, request, is_dead_letter=plan.is_dead_letter)
        return plan.verdict if status is PutStatus.PUT_OK else Verdict(ResponseCode.SYSTEM_ERROR, status.value)

    def _put(self, message: InnerMessage, request: Request, *, is_dead_letter: bool) -> PutStatus:
        rules = PutRules(
            config=self._config,
            host=self._host,
            now_ms=self._clock(),
            topics=self._service.settings.topics.topics,
            state=state_now(self._service, self.state, is_heard=request.is_heard),
            is_heard=request.is_heard,
        )
        try:
            put_plan = plan_inner(message, rules, may_wait=not is_dead_letter)
        except PutRefusedError as refused:
            return refused.status
        put = self._service.put_later(put_plan.messages, is_heard=request.is_heard)
        status = put_result(put, message.topic).status
        if status is PutStatus.PUT_OK:
            self._count(put_plan, request.header.group)
        return status

    def _count(self, put: PutPlan, group: str) -> None:
        """Java counts a send back apart from what is sent; what is put only where it waits, by its level."""
        if put.message.topic == SCHEDULE_TOPIC:
            self.statistics.put_by_topic(put.message.topic, put.message.queue_id, 1, put.size_bytes)
        self.statistics.send_back(group, put.message.properties["RETRY_TOPIC"])

    def _look_up(self, commitlog_offset: int) -> Message | None:
        try:
            return self._service.message_by_commitlog_offset(commitlog_offset)
        except (OffsetOutOfRangeError, CorruptRecordError):
            return None
