"""What brokers are asked of one queue: where it begins and ends, what lies at a time, where a group is, its messages.

Java: MQAdminImpl, MQClientAPIImpl. A queue's master is asked; while it is away, reads go to a slave.
"""

from __future__ import annotations

import asyncio
from typing import TypeVar

from spark_mq.client.calls import make_call, read_answer_header
from spark_mq.client.errors import request_text, response_error
from spark_mq.client.instance import ClientInstance
from spark_mq.client.pulls import Pull, PullResult, PullStatus
from spark_mq.remoting import Header, MessageQueue, RemotingCommand, RequestCode
from spark_mq.remoting.consumers import (
    MaxOffsetRequest,
    OffsetAnswer,
    QueryConsumerOffsetRequest,
    QueueRequest,
    SearchOffsetRequest,
    TimeAnswer,
    UpdateConsumerOffsetRequest,
)
from spark_mq.remoting.messages import PullMessageAnswer, PullMessageRequest
from storage.names import MASTER_ID
from storage.rules.response_codes import ResponseCode

H = TypeVar("H", bound=Header)

_WAS_RESET = "Offset has been previously reset"
_STATUSES = {int(status.value): status for status in PullStatus}


class QueueCalls:
    """Calls about one queue; topics and groups are as brokers know them (with namespace)."""

    def __init__(self, instance: ClientInstance) -> None:
        self._instance = instance

    async def max_offset(self, queue: MessageQueue) -> int:
        """The queue's end: the offset that the next message will have."""
        header = MaxOffsetRequest(topic=queue.topic, queue_id=queue.queue_id, broker_name=queue.broker_name)
        return (await self._read(OffsetAnswer, RequestCode.GET_MAX_OFFSET, header, queue)).queue_offset

    async def min_offset(self, queue: MessageQueue) -> int:
        """The queue's first offset."""
        return (await self._read(OffsetAnswer, RequestCode.GET_MIN_OFFSET, _of(queue), queue)).queue_offset

    async def earliest_time_ms(self, queue: MessageQueue) -> int:
        """When the queue's first message was stored; −1 of an empty queue."""
        return (await self._read(TimeAnswer, RequestCode.GET_EARLIEST_MSG_STORETIME, _of(queue), queue)).time_ms

    async def search_offset(self, queue: MessageQueue, time_ms: int, *, upper: bool = False) -> int:
        """The first message stored at that time or later; with `upper` the last one of those stored at it."""
        header = SearchOffsetRequest(
            topic=queue.topic,
            queue_id=queue.queue_id,
            time_ms=time_ms,
            boundary_type="UPPER" if upper else "LOWER",
            broker_name=queue.broker_name,
        )
        return (await self._read(OffsetAnswer, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header, queue)).queue_offset

    async def group_offset(self, group: str, queue: MessageQueue) -> int | None:
        """Where the group goes on. None: nothing is stored.

        A broker answers 0 for a group that never was in a young queue, which begins at 0 and lies in memory.
        """
        code = RequestCode.QUERY_CONSUMER_OFFSET
        header = QueryConsumerOffsetRequest(
            consumer_group=group, topic=queue.topic, queue_id=queue.queue_id, broker_name=queue.broker_name
        )
        address = await self._address(queue)
        answer = await self._instance.invoke(
            address, make_call(code, header), self._instance.settings.question_timeout_ms
        )
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        if answer.code != ResponseCode.SUCCESS:
            raise response_error(answer.code, answer.remark, address, request_text(code), queue.topic, group)
        return read_answer_header(OffsetAnswer, answer, address, code).queue_offset

    async def store_group_offset(self, group: str, queue: MessageQueue, offset: int) -> bool:
        """Store where the group goes on, also backwards. False: a reset of that queue waits for the group, and wins."""
        header = UpdateConsumerOffsetRequest(
            consumer_group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            commit_offset=offset,
            broker_name=queue.broker_name,
        )
        address = await self._address(queue, must_write=True)
        request = make_call(RequestCode.UPDATE_CONSUMER_OFFSET, header)
        timeout_ms = self._instance.settings.question_timeout_ms
        answer = await self._instance.remoting.ask(address, request, timeout_ms, topic=queue.topic, group=group)
        return not (answer.remark or "").startswith(_WAS_RESET)

    async def pull(
        self, pull: Pull, group: str, *, broker_id: int = MASTER_ID, timeout_ms: int | None = None
    ) -> PullResult:
        """Messages of one queue, as they stand in the log, from the master or the slave of that id, else from another.

        The time-out counts on top of the time for which the broker may hold the pull.
        """
        address = await self._address(pull.queue, broker_id)
        at_master = self._instance.broker_addresses(pull.queue.broker_name).get(MASTER_ID) == address
        wait_ms = timeout_ms or self._instance.settings.request_timeout_ms
        command = pull_command(pull, group, at_master=at_master)
        unknown = self._instance.remoting.unknown_codes(address)
        if command.code in unknown:
            command = command._replace(code=RequestCode.PULL_MESSAGE)
        answer = await self._instance.invoke(address, command, wait_ms + pull.suspend_ms)
        is_unknown = answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        if is_unknown and command.code == RequestCode.LITE_PULL_MESSAGE:  # brokers up to 4.9 know 11 alone
            unknown.add(command.code)
            command = command._replace(code=RequestCode.PULL_MESSAGE)
            answer = await self._instance.invoke(address, command, wait_ms + pull.suspend_ms)
        return pull_result(answer, pull, group, address)

    async def max_offsets(self, topic: str) -> dict[MessageQueue, int]:
        """The end of each readable queue, asked for at once."""
        queues = await self._instance.subscribe_queues(topic)
        return dict(zip(queues, await asyncio.gather(*map(self.max_offset, queues)), strict=True))

    async def min_offsets(self, topic: str) -> dict[MessageQueue, int]:
        """The beginning of each readable queue, asked for at once."""
        queues = await self._instance.subscribe_queues(topic)
        return dict(zip(queues, await asyncio.gather(*map(self.min_offset, queues)), strict=True))

    async def _read(self, header_class: type[H], code: RequestCode, header: Header, queue: MessageQueue) -> H:
        address = await self._address(queue)
        answer = await self._instance.remoting.ask(
            address, make_call(code, header), self._instance.settings.question_timeout_ms, topic=queue.topic
        )
        return read_answer_header(header_class, answer, address, code)

    async def _address(self, queue: MessageQueue, broker_id: int = MASTER_ID, *, must_write: bool = False) -> str:
        if not self._instance.broker_addresses(queue.broker_name):
            await self._instance.route(queue.topic)
        return await self._instance.broker_address(queue.broker_name, broker_id, only_this=must_write)


def _of(queue: MessageQueue) -> QueueRequest:
    return QueueRequest(topic=queue.topic, queue_id=queue.queue_id, broker_name=queue.broker_name)


def pull_command(pull: Pull, group: str, *, at_master: bool = True) -> RemotingCommand:
    """The request: 361 for a lite pull, else 11. The group is as brokers know it. Java: MQClientAPIImpl.pullMessage."""
    says_what = pull.sends_subscription
    header = PullMessageRequest(
        consumer_group=group,
        topic=pull.queue.topic,
        queue_id=pull.queue.queue_id,
        queue_offset=pull.offset,
        max_messages=pull.limit,
        sys_flag=pull.sys_flag(at_master=at_master),
        commit_offset=pull.committed_offset or 0,
        suspend_timeout_ms=pull.suspend_ms,
        subscription=pull.subscription.expression if says_what else None,
        sub_version=pull.subscription_version(),
        expression_type=pull.subscription.expression_type,
        max_message_bytes=pull.limit_bytes,
        broker_name=pull.queue.broker_name,
    )
    return make_call(RequestCode.LITE_PULL_MESSAGE if pull.is_lite else RequestCode.PULL_MESSAGE, header)


def pull_result(answer: RemotingCommand, pull: Pull, group: str, address: str) -> PullResult:
    """What the broker gave. Raises ResponseError where it refused, MalformedResponseError where it makes no sense.

    Java: MQClientAPIImpl.processPullResponse.
    """
    code = RequestCode.LITE_PULL_MESSAGE if pull.is_lite else RequestCode.PULL_MESSAGE
    status = _STATUSES.get(answer.code)
    if status is None:
        raise response_error(answer.code, answer.remark, address, request_text(code), pull.queue.topic, group)
    header = read_answer_header(PullMessageAnswer, answer, address, code)
    return PullResult(
        status,
        header.next_begin_offset,
        header.min_offset,
        header.max_offset,
        header.suggested_broker_id,
        header.offset_delta or 0,
        answer.body if answer.code == ResponseCode.SUCCESS else b"",
    )
