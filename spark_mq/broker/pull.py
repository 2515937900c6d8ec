"""Pulls: the checks in Java's order, the read, and what the answer says. Java: PullMessageProcessor, DefaultPullMessageResultHandler.

    request ─▶ checks ─▶ pending reset | get ─▶ code and header ─▶ static topic ─▶ offsets stored ─▶ answer | parked

A pull of a static topic whose messages are at another broker is forwarded there: it does not wait, and commits nothing.
Not supported: lite topics (a pull that names one is refused: the topic's own messages would be the wrong ones),
`coldDataFlowControlEnable`, the offsets of broadcasting groups for proxies (`enableBroadcastOffsetStore`, off by default).
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from spark_mq.broker.broker_store import BrokerStore
from spark_mq.broker.client_tables import Clients
from spark_mq.broker.consumer_filters import compiled, is_tag_type, message_filter, pull_subscription, retry_filter
from spark_mq.broker.group_offsets import GroupOffsets
from spark_mq.broker.held_pulls import MOST_WAIT_MS, HeldPull, Pulls
from spark_mq.broker.requests import Outcome, Request, Waiting, ask_broker
from spark_mq.broker.sql92 import Expression
from spark_mq.broker.traffic import Traffic
from spark_mq.remoting import HeaderError, RemotingCommand, RequestCode, read_header, write_header
from spark_mq.remoting.consumers import ConsumeType, SubscriptionData
from spark_mq.remoting.messages import PullMessageAnswer, PullMessageRequest
from storage import GetStatus
from storage.format.typed_json import SubscriptionGroupConfig
from storage.names import BUILT_IN_GROUPS, RETRY_PREFIX, is_system_group
from storage.rules.put_guards import lite_topic_refusal
from storage.rules.response_codes import REJECTED, RequestRefusedError, ResponseCode, with_advice
from storage.rules.static_topics import (
    LogicalQueue,
    PhysicalPull,
    PullPlace,
    committed_place,
    logical_pull,
    logical_queue,
    physical_pull,
)
from storage.service.served_store import MessageFilter, RawGet
from storage.settings.nouns import PullConfig
from storage.tables.topics import PERM_READ, TopicConfig

COMMITS_OFFSET, MAY_SUSPEND, HAS_SUBSCRIPTION = 0x1, 0x2, 0x4
_RESET = "OFFSET_RESET"
_PULLING_GROUPS = frozenset((*BUILT_IN_GROUPS, "DEFAULT_CONSUMER", "SCHEDULE_CONSUMER", "__MONITOR_CONSUMER"))
"""Java: MixAll.isSysConsumerGroupPullMessage."""
_FAQ_GROUP = with_advice("")
_FORBIDDEN_BROKER, _FORBIDDEN_GROUP, _FORBIDDEN_TOPIC, _FORBIDDEN_BROADCAST, _FORBIDDEN_SUBSCRIPTION = 1, 2, 3, 4, 5
"""Java: ForbiddenType."""
_CODES = {
    GetStatus.FOUND: ResponseCode.SUCCESS,
    GetStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}

_FORWARDED = frozenset(_CODES.values())
"""What another broker may answer to a forwarded pull."""


def pull_code(status: GetStatus, queue_offset: int) -> ResponseCode:
    """The answer's code. Java: composeResponseHeader."""
    if status in (GetStatus.NO_MATCHED_LOGIC_QUEUE, GetStatus.NO_MESSAGE_IN_QUEUE):
        return ResponseCode.PULL_OFFSET_MOVED if queue_offset else ResponseCode.PULL_NOT_FOUND
    return _CODES[status]


class _Refusal(RequestRefusedError):
    """A refused pull, with what is forbidden."""

    def __init__(self, code: ResponseCode, remark: str, forbidden_type: int | None = None) -> None:
        super().__init__(code, remark)
        self.forbidden_type = forbidden_type


class _Pull(NamedTuple):
    """A pull that passed all checks."""

    topic: TopicConfig
    group: SubscriptionGroupConfig
    subscription: SubscriptionData
    wanted: MessageFilter
    queue: LogicalQueue
    physical: PhysicalPull | None
    queue_id: int
    queue_offset: int
    max_messages: int


class PullHandler:
    """Answers pulls (11) and lite pulls (361)."""

    def __init__(
        self, store: BrokerStore, clients: Clients, pulls: Pulls, offsets: GroupOffsets, traffic: Traffic
    ) -> None:
        self._store = store
        self._clients = clients
        self._pulls = pulls
        self._offsets = offsets
        self._traffic = traffic

    @property
    def _config(self) -> PullConfig:
        return self._store.config.pull

    def pull(self, request: Request) -> Outcome:
        """A client's pull: it may wait for messages."""
        return self._answer(request, may_wait=True)

    def pull_again(self, request: Request) -> Outcome:
        """A pull that has waited."""
        return self._answer(request, may_wait=False)

    def _answer(self, request: Request, *, may_wait: bool) -> Outcome:
        header: PullMessageRequest = request.header
        if self._store.is_slave and not self._config.slave_read_enable:
            return request.answer(ResponseCode.SYSTEM_BUSY, REJECTED)
        if header.lite_topic:
            remark = lite_topic_refusal(header.topic, header.lite_topic)
            return request.answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
        if header.sys_flag & COMMITS_OFFSET and header.commit_offset is None:
            raise HeaderError(PullMessageRequest.__name__, "commitOffset", None, "sysFlag says that it counts")
        try:
            with self._clients.lock:
                topic, group = self._readable(request, header)
                queue = logical_queue(self._store.mappings, header.topic, header.queue_id, logical=header.is_logical)
                physical = physical_pull(queue, header.queue_offset, header.max_messages)
                if physical is not None and not physical.is_here:
                    return self._forwarded(request, header, queue, physical)
                pull = self._checked(request, header, topic, group, queue, physical)
                reset = self._offsets.take_reset(header.consumer_group, header.topic, pull.queue_id)
        except _Refusal as refused:
            forbidden = {} if refused.forbidden_type is None else {"forbiddenType": str(refused.forbidden_type)}
            return request.answer(refused.code, refused.remark, forbidden)
        except RequestRefusedError as refused:
            return request.answer(refused.code, refused.remark)
        started_ms = self._clients.steady()
        if reset is not None and self._store.config.clients.use_server_side_reset_offset:
            found = self._reset(header.topic, pull.queue_id, reset)
            code, remark = ResponseCode.PULL_OFFSET_MOVED, _RESET
        else:
            found = self._store.pulled.get(
                header.topic, pull.queue_id, pull.queue_offset, pull.max_messages, self._store.limits, pull.wanted
            )
            code, remark = pull_code(found.status, pull.queue_offset), found.status.value
        place = PullPlace(code, found.next_begin_offset, found.min_offset, found.max_offset)
        if pull.physical is not None:
            place = logical_pull(pull.queue, pull.physical, place)
        with self._clients.lock:
            if found.behind_bytes is not None and self._store.config.clients.disk_fall_recorded:
                behind = found.behind_bytes
                self._traffic.looked(header.consumer_group, header.topic, pull.queue_id, behind)
            self._store_offsets(header, pull, found.next_begin_offset, may_wait, request.now_ms)
            if place.code == ResponseCode.SUCCESS:
                self._traffic.pulled(
                    header.consumer_group,
                    header.topic,
                    pull.queue_id,
                    found.message_count,
                    len(found.body),
                    self._clients.steady() - started_ms,
                )
            else:
                self._traffic.missed(self._clients.steady() - started_ms)
        if place.code == ResponseCode.PULL_OFFSET_MOVED and self._store.is_slave and remark != _RESET:
            place = place._replace(  # the master may have what is not here yet (Java: offsetCheckInSlave=false)
                code=ResponseCode.PULL_RETRY_IMMEDIATELY, next_begin_offset=header.queue_offset
            )
        may_wait = may_wait and bool(header.sys_flag & MAY_SUSPEND)
        if place.code == ResponseCode.PULL_NOT_FOUND and may_wait and self._park(request, header, pull, found):
            return Waiting.PARKED
        return self._response(request, pull, found, place, remark)

    def _forwarded(
        self, request: Request, header: PullMessageRequest, queue: LogicalQueue, physical: PhysicalPull
    ) -> Outcome:
        """The pull at the broker that has the link. Java: PullMessageProcessor.rewriteRequestForStaticTopic."""
        item = physical.item
        sent = replace(
            header,
            queue_id=item.queue_id,
            queue_offset=physical.queue_offset,
            max_messages=header.max_messages if physical.max_count is None else physical.max_count,
            sys_flag=header.sys_flag & ~(COMMITS_OFFSET | MAY_SUSPEND),
            is_logical=False,
            broker_name=item.broker_name,
        )

        def settle(answer: RemotingCommand) -> RemotingCommand:
            found = read_header(PullMessageAnswer, answer)
            there = PullPlace(ResponseCode(answer.code), found.next_begin_offset, found.min_offset, found.max_offset)
            place = logical_pull(queue, physical, there)
            fields = replace(
                found,
                next_begin_offset=place.next_begin_offset,
                min_offset=place.min_offset,
                max_offset=place.max_offset,
                offset_delta=place.offset_delta,
            )
            return request.answer(place.code, None, fields, bytes(answer.body))

        return ask_broker(item.broker_name, RequestCode.PULL_MESSAGE, sent, settle, accepted=_FORWARDED)

    def _reset(self, topic: str, queue_id: int, offset: int) -> RawGet:
        served = self._store.pulled
        minimum = served.minimum(topic, queue_id)
        return RawGet(GetStatus.OFFSET_TOO_SMALL, offset, minimum, served.maximum(topic, queue_id))

    def _response(self, request: Request, pull: _Pull, found: RawGet, place: PullPlace, remark: str) -> RemotingCommand:
        suggested = 0
        if self._config.slave_read_enable:
            group = pull.group
            suggested = group.which_broker_when_consume_slowly if found.is_behind else group.broker_id
        header = PullMessageAnswer(
            suggested_broker_id=suggested,
            next_begin_offset=place.next_begin_offset,
            min_offset=place.min_offset,
            max_offset=place.max_offset,
            offset_delta=place.offset_delta if pull.physical is not None else None,
            topic_sys_flag=pull.topic.topic_sys_flag,
            group_sys_flag=pull.group.group_sys_flag,
        )
        fields = write_header(header)
        if place.code != ResponseCode.SUCCESS and pull.physical is not None:
            return request.answer(place.code, None, fields)
        return request.answer(place.code, remark, fields, found.body)

    def _store_offsets(
        self, request: PullMessageRequest, pull: _Pull, next_offset: int, may_wait: bool, now_ms: int
    ) -> None:
        """Java: tryCommitOffset."""
        offsets, group, topic = self._offsets, request.consumer_group, request.topic
        offsets.note_pull(group, topic, pull.queue_id, next_offset)
        if may_wait and request.sys_flag & COMMITS_OFFSET and request.commit_offset is not None:
            place = committed_place(pull.queue, pull.queue_id, request.commit_offset)
            if place is not None:
                offsets.commit(group, topic, *place, now_ms)

    def _park(self, request: Request, header: PullMessageRequest, pull: _Pull, found: RawGet) -> bool:
        """Let it wait, unless messages came since it looked. False: too many wait, so it is answered."""
        name = header.topic, pull.queue_id
        timeout_ms = min(header.suspend_timeout_ms, MOST_WAIT_MS)
        if not self._config.long_polling_enable:
            timeout_ms = self._config.short_polling_time_mills
        held = HeldPull(
            request.connection,
            request.command,
            pull.queue_offset,
            self._clients.steady(),
            timeout_ms,
            pull.wanted.tags_codes,
            request.command.size_bytes,
        )
        with self._pulls.held_lock:
            if not self._pulls.held.hold(name, held):
                return False
            maximum = self._store.served.maximum(*name)
            if maximum > found.max_offset:
                self._clients.run_again(self._pulls.held.arrived(name, maximum, None, self._clients.steady()))
        return True

    # Checks, in Java's order

    def _readable(self, request: Request, header: PullMessageRequest) -> tuple[TopicConfig, SubscriptionGroupConfig]:
        no_permission = ResponseCode.NO_PERMISSION
        if not self._store.config.send.broker_permission & PERM_READ:
            raise _Refusal(
                no_permission, f"the broker[{self._store.ip}] pulling message is forbidden", _FORBIDDEN_BROKER
            )
        if request.command.code == RequestCode.LITE_PULL_MESSAGE and not self._config.lite_pull_message_enable:
            remark = f"the broker[{self._store.ip}] for lite pull consumer is forbidden"
            raise _Refusal(no_permission, remark, _FORBIDDEN_BROKER)
        group_name = header.consumer_group
        group = self._store.find_group(group_name)
        if group is None:
            remark = f"subscription group [{group_name}] does not exist, {_FAQ_GROUP}"
            raise _Refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        if not group.consume_enable:
            raise _Refusal(no_permission, f"subscription group no permission, {group_name}", _FORBIDDEN_GROUP)
        topic = self._store.topics.get(header.topic)
        if topic is None:
            remark = f"topic[{header.topic}] not exist, apply first please! {_FAQ_GROUP}"
            raise _Refusal(ResponseCode.TOPIC_NOT_EXIST, remark)
        if not topic.perm & PERM_READ:
            remark = f"the topic[{header.topic}] pulling message is forbidden"
            raise _Refusal(no_permission, remark, _FORBIDDEN_TOPIC)
        return topic, group

    def _checked(
        self,
        request: Request,
        header: PullMessageRequest,
        topic: TopicConfig,
        group: SubscriptionGroupConfig,
        queue: LogicalQueue,
        physical: PhysicalPull | None,
    ) -> _Pull:
        queue_id = header.queue_id if physical is None else physical.item.queue_id
        if not 0 <= queue_id < topic.read_queue_count:
            remark = (
                f"queueId[{queue_id}] is illegal, topic:[{header.topic}] "
                f"topicConfig.readQueueNums:[{topic.read_queue_count}] consumer:[/{request.connection.address}]"
            )
            raise _Refusal(ResponseCode.INVALID_PARAMETER, remark)
        subscription, wanted = self._subscription(header, group, request.now_ms)
        self._refuse_active_consumer(request, header.consumer_group)
        return _Pull(
            topic,
            group,
            subscription,
            wanted,
            queue,
            physical,
            queue_id,
            header.queue_offset if physical is None else physical.queue_offset,
            header.max_messages if physical is None else physical.max_count or 0,
        )

    def _subscription(
        self, request: PullMessageRequest, group: SubscriptionGroupConfig, now_ms: int
    ) -> tuple[SubscriptionData, MessageFilter]:
        if request.sys_flag & HAS_SUBSCRIPTION:
            try:
                sent = pull_subscription(request.topic, request.subscription, request.expression_type, now_ms)
            except ValueError:
                remark = "parse the consumer's subscription failed"
                raise _Refusal(ResponseCode.SUBSCRIPTION_PARSE_FAILED, remark) from None
            self._clients.consumers.tell(group.group, sent, self._clients.steady())
            subscription, expression, bits = sent, compiled(sent), None
        else:
            subscription, expression, bits = self._heartbeat_subscription(request, group), None, None
            if not is_tag_type(subscription.expression_type):
                filters = self._clients.filters
                known = filters.find(request.topic, group.group)
                if known is None:
                    remark = "The broker's consumer filter data is not exist!Your expression may be wrong!"
                    raise _Refusal(ResponseCode.FILTER_DATA_NOT_EXIST, remark)
                if known.filter.client_version < request.sub_version:
                    remark = "the consumer's consumer filter data not latest"
                    raise _Refusal(ResponseCode.FILTER_DATA_NOT_LATEST, remark)
                expression, bits = known.expression, filters.bit_test(known)
        if not is_tag_type(subscription.expression_type) and not self._config.enable_property_filter:
            remark = f"The broker does not support consumer to filter message by {subscription.expression_type}"
            raise _Refusal(ResponseCode.SYSTEM_ERROR, remark)
        if self._store.config.filters.filter_support_retry and request.topic.startswith(RETRY_PREFIX):
            return subscription, retry_filter(subscription, lambda topic: self._expression(topic, group.group), bits)
        return subscription, message_filter(subscription, expression, bits)

    def _expression(self, topic: str, group: str) -> Expression | None:
        known = self._clients.filters.find(topic, group)
        return None if known is None else known.expression

    def _heartbeat_subscription(self, request: PullMessageRequest, config: SubscriptionGroupConfig) -> SubscriptionData:
        name = request.consumer_group
        group = self._clients.consumers.groups.get(name)
        if group is None:
            raise _Refusal(ResponseCode.SUBSCRIPTION_NOT_EXIST, with_advice("the consumer's group info not exist"))
        if not config.consume_broadcast_enable and group.is_broadcasting:
            remark = f"the consumer group[{name}] can not consume by broadcast way"
            raise _Refusal(ResponseCode.NO_PERMISSION, remark, _FORBIDDEN_BROADCAST)
        if self._store.is_forbidden(config.group, request.topic):
            remark = f"the consumer group[{name}] is forbidden for topic[{request.topic}]"
            raise _Refusal(ResponseCode.NO_PERMISSION, remark, _FORBIDDEN_SUBSCRIPTION)
        found = group.subscriptions.get(request.topic)
        if found is None:
            raise _Refusal(ResponseCode.SUBSCRIPTION_NOT_EXIST, with_advice("the consumer's subscription not exist"))
        if found.sub_version < request.sub_version:
            raise _Refusal(ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest")
        return found

    def _refuse_active_consumer(self, request: Request, name: str) -> None:
        """Refuse unknown connections if pull consumers are rejected. Java: isRejectPullConsumerEnable."""
        if not self._config.reject_pull_consumer_enable:
            return
        group = self._clients.consumers.groups.get(name)
        is_active = group is None or group.consume_type == ConsumeType.CONSUME_ACTIVELY
        is_known = group is not None and request.connection in group.clients
        if is_active and not is_known and name not in _PULLING_GROUPS and not is_system_group(name):
            remark = "the consumer's group info not exist, or the pull consumer is rejected by server."
            raise _Refusal(ResponseCode.SUBSCRIPTION_NOT_EXIST, with_advice(remark))
