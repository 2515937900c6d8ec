"""Requests of clients about themselves: heartbeats, leaving, checks of subscriptions, locks of queues, and assignment of queues.

Java: ClientManageProcessor, ConsumerManageProcessor.getConsumerListByGroup, AdminBrokerProcessor.lockBatchMQ and unlockBatchMQ,
QueryAssignmentProcessor.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from spark_mq.broker.broker_store import BrokerStore, ServerFacts
from spark_mq.broker.client_tables import Clients, KnownClient
from spark_mq.broker.consumer_filters import SQL92, is_tag_type
from spark_mq.broker.requests import NO_FIELDS, Handler, Request
from spark_mq.broker.sql92 import SqlError, compile_expression
from spark_mq.client.allocation import Allocation, Averagely, AveragelyByCircle, sorted_client_ids
from spark_mq.remoting import MessageQueue, RemotingCommand, RequestCode, read_body
from spark_mq.remoting.consumers import (
    AssignmentQuestion,
    CheckClientBody,
    ConsumerData,
    ConsumerGroupRequest,
    ConsumerList,
    ConsumeType,
    HeartbeatData,
    LockBody,
    LockedQueues,
    MessageModel,
    QueueAssignment,
    QueueAssignments,
    RequestMode,
    RequestModeBody,
    UnregisterClientRequest,
)
from storage.format.typed_json import SubscriptionGroupConfig
from storage.names import RETRY_PREFIX, retry_topic
from storage.rules.response_codes import RequestRefusedError, ResponseCode
from storage.rules.retries import UNIT_SUBSCRIBED
from storage.tables.masters import REQUEST_MODES_FILE, with_request_mode
from storage.tables.topics import TopicConfig

_STRATEGIES: Mapping[str | None, Allocation] = {each.name: each for each in (Averagely(), AveragelyByCircle())}
_LOG = logging.getLogger(__name__)


class ClientHandlers:
    """Answers 34, 35, 38, 41, 42 and 46."""

    def __init__(self, store: BrokerStore, clients: Clients) -> None:
        self._store = store
        self._clients = clients

    def table(self) -> Mapping[int, Handler]:
        """Handlers by request code."""
        code = RequestCode
        return {
            code.HEART_BEAT: self.heartbeat,
            code.UNREGISTER_CLIENT: self.unregister,
            code.CHECK_CLIENT_CONFIG: self.check_client,
            code.GET_CONSUMER_LIST_BY_GROUP: self.consumer_list,
            code.LOCK_BATCH_MQ: self.lock,
            code.UNLOCK_BATCH_MQ: self.unlock,
        }

    def heartbeat(self, request: Request) -> RemotingCommand:
        """34. A group that cannot be made is passed over, and the answer is the same."""
        beat = read_body(HeartbeatData, request.body)
        command = request.command
        is_v2, is_changed = beat.heartbeat_fingerprint != 0, False
        seen_ms = self._clients.steady()
        with self._clients.lock:
            client = KnownClient(request.connection, beat.client_id, command.language.name, command.version, seen_ms)
            for data in beat.consumers:
                is_changed |= self._consumes(data, client, beat, is_v2=is_v2)
            for producer in beat.producers:
                self._clients.producers.register(
                    producer.group_name,
                    KnownClient(request.connection, beat.client_id, client.language, client.version, seen_ms),
                )
        changed = is_changed if is_v2 else True
        fields = {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": str(changed).lower()}
        return request.answer(header=fields)

    def _consumes(self, data: ConsumerData, client: KnownClient, beat: HeartbeatData, *, is_v2: bool) -> bool:
        """Whether the group's subscriptions may be others than the broker knows."""
        if self._store.config.pull.reject_pull_consumer_enable and data.consume_type == ConsumeType.CONSUME_ACTIVELY:
            return False
        known = self._clients.fingerprints.get(data.group_name)
        self._clients.fingerprints[data.group_name] = beat.heartbeat_fingerprint
        is_changed = known is not None and known != beat.heartbeat_fingerprint
        group = self._store.find_group(data.group_name)
        if group is None:
            return is_changed
        self._make_retry_topic(data, group)
        with_subscriptions = not (is_v2 and beat.without_sub)
        of_group = KnownClient(client.connection, client.client_id, client.language, client.version, client.seen_ms)
        change = self._clients.consumers.register(
            data,
            of_group,
            notifies=group.notify_consumer_ids_changed_enable,
            with_subscriptions=with_subscriptions,
        )
        self._clients.tell_of(change)
        if with_subscriptions:
            self._clients.filters.register(data.group_name, data.subscriptions)
        return is_changed

    def _make_retry_topic(self, data: ConsumerData, group: SubscriptionGroupConfig) -> None:
        """Java: TopicConfigManager.createTopicInSendMessageBackMethod."""
        topics = self._store.topics
        is_ordered = any((found := topics.get(sub.topic)) is not None and found.order for sub in data.subscriptions)
        name = retry_topic(data.group_name)
        known = topics.get(name)
        if known is None:
            count, flag = group.retry_queue_count, UNIT_SUBSCRIBED if data.unit_mode else 0
            new = TopicConfig(name, count, count, topic_sys_flag=flag, order=is_ordered)
            self._store.service.make_topic(new)
        elif known.order != is_ordered:
            self._store.change_topic(name, order=is_ordered)

    def unregister(self, request: Request) -> RemotingCommand:
        """35."""
        header: UnregisterClientRequest = request.header
        with self._clients.lock:
            if header.producer_group is not None:
                self._clients.producers.unregister(header.producer_group, request.connection, header.client_id or "")
            if header.consumer_group is not None:
                group = self._store.find_group(header.consumer_group)
                notifies = group is None or group.notify_consumer_ids_changed_enable
                is_gone, change = self._clients.consumers.unregister(
                    header.consumer_group, request.connection, notifies=notifies
                )
                if is_gone:
                    self._clients.filters.unregister(header.consumer_group)
                self._clients.tell_of(change)
        return request.answer(header=NO_FIELDS)

    def check_client(self, request: Request) -> RemotingCommand:
        """46: whether the broker takes a subscription's expression."""
        subscription = read_body(CheckClientBody, request.body).subscription if request.body else None
        if subscription is None or is_tag_type(subscription.expression_type):
            return request.answer()
        if not self._store.config.pull.enable_property_filter:
            remark = f"The broker does not support consumer to filter message by {subscription.expression_type}"
            return request.answer(ResponseCode.SYSTEM_ERROR, remark)
        if subscription.expression_type != SQL92:
            return request.answer(ResponseCode.SUBSCRIPTION_PARSE_FAILED)
        try:
            compile_expression(subscription.sub_string or "")
        except SqlError as error:
            return request.answer(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error))
        return request.answer()

    def consumer_list(self, request: Request) -> RemotingCommand:
        """38: the ids of a group's clients, which share the queues among themselves."""
        header: ConsumerGroupRequest = request.header
        with self._clients.lock:
            ids = self._clients.consumers.client_ids(header.consumer_group)
        if not ids:
            remark = f"no consumer for this group, {header.consumer_group}"
            return request.answer(ResponseCode.SYSTEM_ERROR, remark, NO_FIELDS)
        return request.answer(header=NO_FIELDS, body=ConsumerList(client_ids=ids))

    def lock(self, request: Request) -> RemotingCommand:
        """41."""
        body = read_body(LockBody, request.body)
        with self._clients.lock:
            granted = self._clients.locks.lock(
                body.consumer_group or "", body.queues, body.client_id or "", self._clients.steady()
            )
        return request.answer(body=LockedQueues(queues=granted))

    def unlock(self, request: Request) -> RemotingCommand:
        """42."""
        body = read_body(LockBody, request.body)
        with self._clients.lock:
            self._clients.locks.unlock(body.consumer_group or "", body.queues, body.client_id or "")
        return request.answer()


class AssignmentHandlers:
    """Answers 400 and 401: which queues a client reads, where it leaves that to the broker (clientRebalance=false).

        queues of the topic at all brokers + ids of the group's clients ─▶ a strategy by its name ─▶ the client's queues

    Without an answer to that the client keeps what it has, and asks again; an empty answer takes all from it.

    Departure: every mode is PULL. This broker has no POP requests: defaultMessageRequestMode does not count, nor do modes that an
    Apache broker has kept, and one that a request sets is refused.
    """

    def __init__(self, store: BrokerStore, clients: Clients, server: ServerFacts) -> None:
        self._store = store
        self._clients = clients
        self._server = server

    def table(self) -> Mapping[int, Handler]:
        """Handlers by request code."""
        code = RequestCode
        return {code.QUERY_ASSIGNMENT: self.assignment, code.SET_MESSAGE_REQUEST_MODE: self.set_mode}

    def assignment(self, request: Request) -> RemotingCommand:
        """400."""
        question = read_body(AssignmentQuestion, request.body)
        queues = self._share(question)
        if queues is None:
            return request.answer(body=QueueAssignments())
        found = tuple(QueueAssignment(message_queue=queue, mode=RequestMode.PULL) for queue in queues)
        return request.answer(body=QueueAssignments(assignments=found))

    def _share(self, question: AssignmentQuestion) -> Sequence[MessageQueue] | None:
        """The queues that the client must read; None if unknown."""
        topic, group = question.topic, question.consumer_group
        if question.message_model is None:
            raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, "messageModel: CLUSTERING or BROADCASTING is expected")
        queues = self._server.subscribed_queues(topic, self._store.own_queues)
        if queues is None:
            if not topic.startswith(RETRY_PREFIX):
                _LOG.warning("group %.255s gets no queues of topic %.127s: it does not exist", group, topic)
            return None
        if (
            question.message_model == MessageModel.BROADCASTING
            or not self._store.config.clients.server_load_balancer_enable
        ):
            return queues
        with self._clients.lock:
            client_ids = self._clients.consumers.client_ids(group)
        strategy, client_id = _STRATEGIES.get(question.strategy_name), question.client_id or ""
        if strategy is None:
            _LOG.warning(
                "group %.255s gets no queues: this broker has no strategy %.100r", group, question.strategy_name
            )
            return None
        if not client_ids or not queues or not client_id:
            return None
        return strategy.allocate(client_id, sorted(queues), sorted_client_ids(client_ids))

    def set_mode(self, request: Request) -> RemotingCommand:
        """401: it is kept for an Apache broker that may have the store later."""
        wanted = read_body(RequestModeBody, request.body)
        if wanted.topic.startswith(RETRY_PREFIX):
            return request.answer(ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode")
        if wanted.topic not in self._store.topics:
            return request.answer(ResponseCode.TOPIC_NOT_EXIST, f"topic[{wanted.topic}] not exist")
        if self._store.find_group(wanted.consumer_group) is None:
            return request.answer(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "subscription group does not exist")
        if wanted.mode != RequestMode.PULL:
            remark = (
                f"mode {wanted.mode} is not supported: this broker answers no POP requests, so PULL is the only mode"
            )
            return request.answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
        store = self._store.service.store
        with store.tables_lock:
            known = self._store.service.state(REQUEST_MODES_FILE, lambda text, _: text)
            text = with_request_mode(
                known, wanted.topic, wanted.consumer_group, wanted.mode, wanted.pop_share_queue_num
            )
            store.save_state(REQUEST_MODES_FILE, text)
        return request.answer()
