"""Rows that consumers of a group failed on, at least once: on request, a broker puts its own message into the group's retry topic.

A request (36) names the message by its place in the broker's log; the broker takes body, properties and number of tries from its log.
So only rows that were read from these brokers can be sent back, and only as long as their log holds the messages.

A broker whose entry of the group has `retryQueueNums` 0 answers SUCCESS to a request 36 and drops the message. So each task asks each
broker for its entry once, before its first row. Rows for such a broker are not sent: by the rule of stores
(`storage/rules/retry_rows.py`) they are invalid. Brokers up to 4.9 do not know the request for one group (352): they get the
request for all groups (201). If the broker does not have the group, the broker creates or refuses it.

Java: DefaultMQPushConsumerImpl.sendMessageBack, AbstractSendMessageProcessor.consumerSendMsgBack,
AdminBrokerProcessor.getSubscriptionGroup, getAllSubscriptionGroup.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import pyarrow as pa

from spark_mq.client.admin import address_of_id
from spark_mq.client.calls import make_call, read_answer_body
from spark_mq.client.errors import ClientError, ResponseError
from spark_mq.client.settings import with_namespace
from spark_mq.conditions import SENT_ROWS_STAY, TASK_SENT_NONE
from spark_mq.remoting import MessageQueue, RemotingCommand, RequestCode
from spark_mq.remoting.administration import SubscriptionGroupTable
from spark_mq.remoting.consumers import GroupRequest
from spark_mq.remoting.messages import SendBackRequest
from spark_mq.sink.broker_lane import Lanes, QueueBatch
from spark_mq.sink.dead_letters import RejectedRows
from spark_mq.sink.live_routes import Routes
from spark_mq.sink.options import LiveSinkOptions
from spark_mq.sink.sends import is_not_there
from storage.format.arrays import as_texts, empty_as_null
from storage.format.record import decode_offset_message_id
from storage.format.typed_json import SubscriptionGroupConfig
from storage.names import retry_topic
from storage.rules.response_codes import ResponseCode
from storage.rules.retry_rows import read_origin_ids, read_origin_topics, return_refusal
from storage.rules.values import RejectedRow, Rejections, read_integers

_ONE, _ALL = RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG


class GroupRefusals:
    """The refusals of one group, which has the name that brokers know."""

    def __init__(self, routes: Routes, options: LiveSinkOptions, group: str) -> None:
        self._routes = routes
        self._options = options
        self._group = group
        self._refusals: dict[str, str | None] = {}

    def at(self, broker_names: Iterable[str]) -> dict[str, str | None]:
        """Why each of the brokers would lose what is sent back; None where it keeps it. Raises what stops a lane."""
        wanted = set(broker_names)
        for code in (_ONE, _ALL):
            if unknown := wanted - self._refusals.keys():
                self._ask(sorted(unknown), code)
        return {name: self._refusals[name] for name in wanted}

    def _ask(self, broker_names: list[str], code: RequestCode) -> None:
        header = GroupRequest(group=self._group) if code == _ONE else None
        lanes = Lanes(self._routes, self._options, self._answered, on_refused=self._refused)
        try:
            for name in broker_names:
                queue = MessageQueue(retry_topic(self._group), name, 0)
                lanes.offer(QueueBatch(queue, b"", 0, 0, make_call(code, header)))
            lanes.finish()
        finally:
            lanes.stop()

    def _answered(self, batch: QueueBatch, answer: RemotingCommand) -> None:
        name = batch.queue.broker_name
        if batch.code == _ONE:
            entry: SubscriptionGroupConfig | None = read_answer_body(SubscriptionGroupConfig, answer, name, _ONE)
        else:
            entry = read_answer_body(SubscriptionGroupTable, answer, name, _ALL).subscription_group_table.get(
                self._group
            )
        self._refusals[name] = None if entry is None else return_refusal(entry)

    def _refused(self, batch: QueueBatch, error: ClientError) -> bool:
        """A question that the broker does not know is followed by the other one."""
        code = error.code if isinstance(error, ResponseError) else None
        if code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
            self._refusals[batch.queue.broker_name] = None
            return True
        return code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED and batch.code == _ONE


_IN_FLIGHT = 32
"""Requests to one broker at a time."""


class ReturnWriter:
    """Sends one task's rows back, frame by frame: what a broker does not have any more is known while the frame is."""

    def __init__(self, routes: Routes, options: LiveSinkOptions, rejected: RejectedRows) -> None:
        assert options.consumer_group is not None, "sendBack=true needs it"
        self._routes = routes
        self._options = options
        self._group = with_namespace(options.namespace, options.consumer_group)
        self._rejected = rejected
        self._lanes = Lanes(routes, options, self._taken, on_refused=self._is_gone)
        self._refusals = GroupRefusals(routes, options, self._group)
        self._gone: list[tuple[int, str]] = []
        self._seen = 0
        self.row_count = 0
        self.overruled: Mapping[str, str] = {}

    def append(self, frame: pa.RecordBatch) -> None:
        """Returns when the frame's rows are where the broker puts them. Raises InvalidRowError and the client's errors."""
        rejections = Rejections()
        offered = 0
        calls = list(self._calls(frame, rejections))
        refusals = self._refusals.at(call.queue.broker_name for call in calls)
        for call in calls:
            if (refusal := refusals[call.queue.broker_name]) is not None:
                rejections.add(np.array([call.row]), "topic", f"broker {call.queue.broker_name}: {refusal}")
                continue
            self._lanes.offer(call)
            offered += 1
        self._lanes.settle()
        self.row_count += offered - len(self._gone)
        for row, rule in sorted(self._gone):
            rejections.add(np.array([row]), "msg_id", rule)
        self._gone.clear()
        indices = sorted(rejections)
        listed = [RejectedRow(self._seen + row, *rejections[row]) for row in indices]
        self._seen += len(frame)
        consequence = SENT_ROWS_STAY if self.row_count else TASK_SENT_NONE
        self._rejected.take(frame, listed, np.array(indices, np.int64), consequence=consequence)

    def finish(self) -> dict[int, int]:
        """Rows by the code of their answers: all of them by 0."""
        return self._lanes.finish()

    def stop(self) -> None:
        self._lanes.stop()

    def _calls(self, frame: pa.RecordBatch, rejections: Rejections) -> Iterator[QueueBatch]:
        """Those of the rows that keep the rules."""
        names = frame.schema.names
        topics = read_origin_topics(frame.column("topic"), rejections)
        ids = read_origin_ids(frame.column("msg_id"), rejections)
        wanted = frame.column("delay_level") if "delay_level" in names else None
        levels = read_integers("delay_level", wanted, len(frame), 0, np.int32, rejections)
        brokers: list[str | None] = [None] * len(frame)
        if "broker_name" in names:
            brokers = empty_as_null(as_texts(frame.column("broker_name"))).to_pylist()
        kept = [row for row in range(len(frame)) if row not in rejections]
        for row in kept:
            message_id = ids[row].as_py()
            try:
                host, port, offset = decode_offset_message_id(message_id)
            except ValueError as error:
                rejections.add(np.array([row]), "msg_id", str(error))
                continue
            broker_name = brokers[row] or self._routes.broker_at(address_of_id(host, port))
            header = SendBackRequest(
                commitlog_offset=offset,
                group=self._group,
                delay_level=int(levels[row]),
                origin_message_id=message_id,
                origin_topic=topics[row].as_py(),
                max_reconsume_times=self._options.max_reconsume_times,
                broker_name=broker_name,
            )
            lane = MessageQueue(retry_topic(self._group), broker_name, row % _IN_FLIGHT)
            yield QueueBatch(lane, b"", 1, 0, make_call(RequestCode.CONSUMER_SEND_MSG_BACK, header), row)

    def _taken(self, batch: QueueBatch, answer: RemotingCommand) -> None:
        """Nothing more to do."""

    def _is_gone(self, batch: QueueBatch, error: ClientError) -> bool:
        """Whether the broker does not have the message: then the row is invalid. Another refusal is about group or broker."""
        if not isinstance(error, ResponseError) or not is_not_there(error.code, error.remark):
            return False
        rule = f"broker {batch.queue.broker_name} does not hold the message (any more): {error.remark}"
        self._gone.append((batch.row, rule))
        return True
