"""A consumer gives a message back that it failed on: it goes to the group's retry topic, later each time, and to its dead letters.

`plan_send_back` decides, `SendBackHandler` looks the message up, saves what the plan makes and puts. Rows by the table:
`storage/rules/retry_rows.py`. Nothing here remembers requests: one that is repeated after a lost answer puts a second copy, as Java's.
Java: AbstractSendMessageProcessor.consumerSendMsgBack, ConsumerSendMsgBackRequestHeader. Not supported: handing a request on to a
master in the same process. Departure: a dead letter is put as it is, where Java's put path may take one that once asked for a
deliver time for a timer message again, and park or refuse it; retries go to queues that there are (`retry_queue_count`).
"""

from __future__ import annotations

import ipaddress
import logging
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from spark_mq.broker.put_plan import PutPlan, PutRules, plan_inner
from spark_mq.broker.retry import CURRENT_VERSION, allowed_retries, changed, known_group
from spark_mq.broker.send_hooks import RpcHook, answer_between, namespace_of
from spark_mq.broker.store_put import HandlerStore, Put, put_into, save_entries, state_now
from storage.epoch_times import current_time_ms
from storage.errors import CorruptRecordError, OffsetOutOfRangeError, PutRefusedError
from storage.format.delay import SCHEDULE_TOPIC
from storage.format.record import Message
from storage.put_status import PutStatus
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
from storage.settings.load import StoreConfig
from storage.settings.nouns import SendConfig
from storage.tables.put_statistics import PutStatistics
from storage.tables.subscription_groups import SubscriptionGroupConfig
from storage.tables.topics import TopicConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class SendBackRequest:
    """What a consumer says of a message that it failed on."""

    commitlog_offset: int
    """Where it stands in this broker's log."""
    group: str
    delay_level: int = 0
    """0 leaves it to the broker; below 0 nothing is tried again."""
    max_reconsume_times: int | None = None
    """How often the consumer would try again; None = as the group's entry says."""
    unit_mode: bool = False
    client_version: int = CURRENT_VERSION
    origin_msg_id: str | None = None
    """What the consumer calls the message; hooks are told of requests that say it."""
    origin_topic: str | None = None
    client_address: str = ""
    """address:port of the consumer, for hooks."""
    is_heard: bool = True
    """False: one-way, or of a client that has gone. It is not refused because the store is busy: its put waits."""


@dataclass(frozen=True, slots=True)
class ConsumeMessageContext:
    """What hooks are told when a message was sent back. Java: ConsumeMessageContext."""

    namespace: str
    topic: str | None
    """As the request says."""
    consumer_group: str
    is_dead_letter: bool
    is_stored: bool


ConsumeMessageHook = Callable[[ConsumeMessageContext], None]


class SendBackResponse(NamedTuple):
    """The broker's answer."""

    code: int
    """A ResponseCode, or what a hook has said."""
    remark: str | None = None


_LOG = logging.getLogger(__name__)
_DONE = SendBackResponse(ResponseCode.SUCCESS)


class SendBackPlan(NamedTuple):
    """What a request comes to: the entries to be saved, in any case, and a message to be put, or else the answer."""

    message: InnerMessage | None = None
    response: SendBackResponse = _DONE
    topics: tuple[TopicConfig, ...] = ()
    groups: tuple[SubscriptionGroupConfig, ...] = ()
    is_dead_letter: bool = False


def plan_send_back(
    original: Message | None,
    request: SendBackRequest,
    groups: Mapping[str, SubscriptionGroupConfig],
    topics: Mapping[str, TopicConfig],
    *,
    send: SendConfig,
    broker_address: str = "127.0.0.1",
    choose_queue: Callable[[int], int] = random.randrange,
) -> SendBackPlan:
    """The plan for `original`, the message at the request's offset, None where there is none. Pure but for `choose_queue`, which takes
    one of so many retry queues.

    Checks in Java's order, of which the answer and the entries that are made depend. A retry is not yet delayed: it goes
    through `route_delayed`. Raises nothing.
    """
    try:
        config = known_group(request.group, groups, send)
    except RequestRefusedError as refused:
        return SendBackPlan(response=SendBackResponse(refused.code, refused.remark))
    new_groups = () if request.group in groups else (config,)

    def refusal(code: ResponseCode, remark: str, new_topics: tuple[TopicConfig, ...] = ()) -> SendBackPlan:
        return SendBackPlan(None, SendBackResponse(code, remark), new_topics, new_groups)

    retry_target = retry_topic_config(config, topics, unit_mode=request.unit_mode)
    bar = return_bar(config, retry_target, send.broker_permission)
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
    maximum = allowed_retries(config, request.max_reconsume_times, request.client_version)
    destination = sent_back_to(original.reconsume_times, request.delay_level, maximum)
    target, queue_id = retry_target, choose_queue(retry_queue_count(config, retry_target))
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
    """Sends messages back into a store that is open for writing.

    Thread-safe in front of a `PutService`; hooks must then be, too.
    """

    def __init__(
        self,
        store: HandlerStore,
        config: StoreConfig,
        *,
        put: Put | None = None,
        statistics: PutStatistics | None = None,
        hooks: Sequence[ConsumeMessageHook] = (),
        rpc_hooks: Sequence[RpcHook] = (),
        clock: Callable[[], int] = current_time_ms,
        choose_queue: Callable[[int], int] = random.randrange,
    ) -> None:
        """`clock` gives milliseconds; `put` stores (the default: `put_into`); `statistics` are those of the sends to the same store."""
        settings = store.settings
        self.state = BrokerState()
        """Whether anything is taken back; whoever runs the broker sets it."""
        self.statistics = statistics or PutStatistics(settings.broker_name, settings.cluster)
        self._store = store
        self._config = config
        self._host = settings.host
        self._put = put or put_into(store)
        self._hooks = tuple(hooks)
        self._rpc_hooks = tuple(rpc_hooks)
        self._clock = clock
        self._choose_queue = choose_queue

    def configure(self, config: StoreConfig) -> None:
        """An operator has changed settings: these hold from now on."""
        self._config = config

    def send_back(self, request: SendBackRequest) -> SendBackResponse:
        """Put the message back, and answer as a broker does. With SUCCESS it is readable (a retry when it is due), and under
        SYNC_FLUSH on the disk; a time-out of disk or slave is SYSTEM_ERROR although the message stands.

        Raises OSError where a topic or group that the request makes cannot be saved, StateFileError.
        """
        if state_now(self._store, self.state, is_heard=request.is_heard).rejects_requests:
            return SendBackResponse(ResponseCode.SYSTEM_BUSY, REJECTED)
        return answer_between(self._rpc_hooks, request.client_address, request, self._answer, SendBackResponse)

    def _answer(self, request: SendBackRequest) -> SendBackResponse:
        """Java: AbstractSendMessageProcessor.consumerSendMsgBack."""
        address = str(ipaddress.ip_address(self._host[:-4]))
        if self.state.is_slave:
            return SendBackResponse(ResponseCode.SYSTEM_ERROR, f"no master available along with {address}")
        topics = self._store.settings.topics.topics
        plan = plan_send_back(
            self._look_up(request.commitlog_offset),
            request,
            self._store.groups,
            topics,
            send=self._config.send,
            broker_address=address,
            choose_queue=self._choose_queue,
        )
        unsaved: PutStatus | None = None
        try:
            save_entries(self._store, plan.topics, plan.groups, topics)
        except PutRefusedError as refused:
            unsaved = refused.status
        if plan.message is None:
            return plan.response
        status = unsaved or self._stored(plan.message, request, is_dead_letter=plan.is_dead_letter)
        self._tell_hooks(request, plan.is_dead_letter, status)
        if status is PutStatus.PUT_OK:
            return plan.response
        return SendBackResponse(ResponseCode.SYSTEM_ERROR, status.value)

    def _stored(self, message: InnerMessage, request: SendBackRequest, *, is_dead_letter: bool) -> PutStatus:
        rules = PutRules(
            config=self._config,
            host=self._host,
            now_ms=self._clock(),
            topics=self._store.settings.topics.topics,
            state=state_now(self._store, self.state, is_heard=request.is_heard),
            is_heard=request.is_heard,
        )
        try:
            put_plan = plan_inner(message, message.body, rules, may_wait=not is_dead_letter)
        except PutRefusedError as refused:
            return refused.status
        outcome = self._put(put_plan)
        if outcome.status is PutStatus.PUT_OK:
            self._count(put_plan, request.group)
        return outcome.status

    def _count(self, put: PutPlan, group: str) -> None:
        """Java counts a send back apart from what is sent; what is put only where it waits, by its level."""
        if put.message.topic == SCHEDULE_TOPIC:
            self.statistics.put_by_topic(put.message.topic, put.message.queue_id, 1, put.size_bytes)
        self.statistics.send_back(group, put.message.properties["RETRY_TOPIC"])

    def _look_up(self, commitlog_offset: int) -> Message | None:
        try:
            return self._store.message_by_commitlog_offset(commitlog_offset)
        except (OffsetOutOfRangeError, CorruptRecordError):
            return None

    def _tell_hooks(self, request: SendBackRequest, is_dead_letter: bool, status: PutStatus) -> None:
        """Java: executeConsumeMessageHookAfter, which takes no notice of what a hook throws."""
        if not (request.origin_msg_id or "").strip():
            return
        is_stored = status is PutStatus.PUT_OK
        namespace = namespace_of(request.group)
        context = ConsumeMessageContext(namespace, request.origin_topic, request.group, is_dead_letter, is_stored)
        for hook in self._hooks:
            try:
                hook(context)
            except Exception:  # a stranger's code, whatever it raises, changes no answer
                _LOG.exception("a hook after a message of group %s was sent back failed", request.group)
