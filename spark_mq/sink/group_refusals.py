"""Whether brokers keep what is sent back for a group: each one's entry of the group is asked for once a task, before its first row.

A broker whose entry has `retryQueueNums` 0 answers SUCCESS to a request 36 and forgets the message. So its rows are not sent: by the
rule of stores (`storage/rules/retry_rows.py`) they are invalid. Brokers up to 4.9 do not know the question about one group (352):
they get the one for all groups (201). A group that the broker does not have is for the broker to make or to refuse.
Java: AdminBrokerProcessor.getSubscriptionGroup, getAllSubscriptionGroup.
"""

from __future__ import annotations

from collections.abc import Iterable

from spark_mq.client.calls import make_call, read_answer_body
from spark_mq.client.errors import ClientError, ResponseError
from spark_mq.remoting import MessageQueue, RemotingCommand, RequestCode
from spark_mq.remoting.administration import (
    SubscriptionGroupTable,
)
from spark_mq.remoting.consumers import GroupRequest
from spark_mq.sink.broker_lane import QueueBatch
from spark_mq.sink.live_lanes import Lanes, Routes
from spark_mq.sink.live_options import LiveSinkOptions
from storage.format.table_entries import SubscriptionGroupConfig
from storage.names import retry_topic
from storage.rules.response_codes import ResponseCode
from storage.rules.retry_rows import return_refusal

_ONE, _ALL = RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG


class GroupRefusals:
    """Of one group, named as brokers name it."""

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
