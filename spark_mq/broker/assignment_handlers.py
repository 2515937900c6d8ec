"""Which queues a client reads, where it leaves that to the broker (clientRebalance=false). Java: QueryAssignmentProcessor.

    queues of the topic at all brokers + ids of the group's clients ─▶ a strategy by its name ─▶ the client's queues

Without an answer to that the client keeps what it has, and asks again; an empty answer takes all from it.

Departure: every mode is PULL. This broker has no POP requests: defaultMessageRequestMode does not count, nor do modes that an Apache
broker has kept, and one that a request sets is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from spark_mq.broker.asked import Asked, Handler
from spark_mq.broker.parts import BrokerParts
from spark_mq.client.allocation import Allocation, Averagely, AveragelyByCircle, sorted_client_ids
from spark_mq.remoting import MessageQueue, RemotingCommand, RequestCode, read_body
from spark_mq.remoting.client_bodies import (
    AssignmentQuestion,
    MessageModel,
    QueueAssignment,
    QueueAssignments,
    RequestMode,
    RequestModeBody,
)
from storage.names import RETRY_PREFIX
from storage.rules.response_codes import RequestRefusedError, ResponseCode
from storage.tables.master_copies import REQUEST_MODES_FILE, with_request_mode

_STRATEGIES: Mapping[str | None, Allocation] = {each.name: each for each in (Averagely(), AveragelyByCircle())}
_LOG = logging.getLogger(__name__)


class AssignmentHandlers:
    """Answers 400 and 401."""

    def __init__(self, parts: BrokerParts) -> None:
        self._parts = parts

    def table(self) -> Mapping[int, Handler]:
        """Who answers which code."""
        code = RequestCode
        return {code.QUERY_ASSIGNMENT: self.assignment, code.SET_MESSAGE_REQUEST_MODE: self.set_mode}

    def assignment(self, asked: Asked) -> RemotingCommand:
        """400."""
        question = read_body(AssignmentQuestion, asked.body)
        queues = self._share(question)
        if queues is None:
            return asked.answer(body=QueueAssignments())
        found = tuple(QueueAssignment(message_queue=queue, mode=RequestMode.PULL) for queue in queues)
        return asked.answer(body=QueueAssignments(assignments=found))

    def _share(self, asked: AssignmentQuestion) -> Sequence[MessageQueue] | None:
        """What the client is to read; None where nobody can say."""
        parts, topic, group = self._parts, asked.topic, asked.consumer_group
        if asked.message_model is None:
            raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, "messageModel: CLUSTERING or BROADCASTING is expected")
        queues = parts.subscribed_queues(topic)
        if queues is None:
            if not topic.startswith(RETRY_PREFIX):
                _LOG.warning("group %.255s gets no queues of topic %.127s: it does not exist", group, topic)
            return None
        if asked.message_model == MessageModel.BROADCASTING or not parts.config.clients.server_load_balancer_enable:
            return queues
        with parts.lock:
            client_ids = parts.consumers.client_ids(group)
        strategy, client_id = _STRATEGIES.get(asked.strategy_name), asked.client_id or ""
        if strategy is None:
            _LOG.warning("group %.255s gets no queues: this broker has no strategy %.100r", group, asked.strategy_name)
            return None
        if not client_ids or not queues or not client_id:
            return None
        return strategy.allocate(client_id, sorted(queues), sorted_client_ids(client_ids))

    def set_mode(self, asked: Asked) -> RemotingCommand:
        """401: it is kept for an Apache broker that may have the store later."""
        told = read_body(RequestModeBody, asked.body)
        parts = self._parts
        if told.topic.startswith(RETRY_PREFIX):
            return asked.answer(ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode")
        if told.topic not in parts.topics:
            return asked.answer(ResponseCode.TOPIC_NOT_EXIST, f"topic[{told.topic}] not exist")
        if parts.find_group(told.consumer_group) is None:
            return asked.answer(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "subscription group does not exist")
        if told.mode != RequestMode.PULL:
            remark = f"mode {told.mode} is not supported: this broker answers no POP requests, so PULL is the only mode"
            return asked.answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
        store = parts.service.store
        with store.tables_lock:
            known = parts.service.state(REQUEST_MODES_FILE, lambda text, _: text)
            text = with_request_mode(known, told.topic, told.consumer_group, told.mode, told.pop_share_queue_num)
            store.save_state(REQUEST_MODES_FILE, text)
        return asked.answer()
