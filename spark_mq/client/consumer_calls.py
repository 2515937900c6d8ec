"""What a consumer group asks the cluster, over the connections of a client instance. Java: MQClientAPIImpl, MQClientInstance.

Topics and groups are as brokers know them (with namespace). Offsets, locks and pulls go to a queue's master; pulls also to the
slave that the broker suggested.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection

from spark_mq.client.calls import make_call, read_answer_body
from spark_mq.client.errors import (
    AccessDeniedError,
    BrokerNotFoundError,
    ClientClosedError,
    ClientError,
    NameServerUnreachableError,
    ResponseError,
)
from spark_mq.client.instance import INNER_PRODUCER_GROUP, ClientInstance
from spark_mq.client.message import Message, MessageExt, MessageQueue
from spark_mq.client.outgoing_messages import MessageMaker
from spark_mq.client.producer_settings import ProducerSettings
from spark_mq.client.pulls import Pull, PullResult
from spark_mq.client.queue_calls import QueueCalls
from spark_mq.client.sender import Sender
from spark_mq.client.subscriptions import Subscription
from spark_mq.client.unique_ids import UniqueIds
from spark_mq.remoting import RequestCode
from spark_mq.remoting.consumers import (
    CheckClientBody,
    ConsumerGroupRequest,
    ConsumerList,
    LockBody,
    LockedQueues,
    UpdateConsumerOffsetRequest,
)
from spark_mq.remoting.messages import SendBackRequest

PULL_TIMEOUT_MS = 15_000
"""For how long an answer may stay away after the time for which the broker may hold a pull. Java: 30 s in all."""
SEND_BACK_TIMEOUT_MS = 5_000
LOCK_TIMEOUT_MS = 1_000

_LOG = logging.getLogger(__name__)


class ConsumerCalls:
    """The cluster, as one group of an instance sees it: a GroupBrokers."""

    def __init__(self, instance: ClientInstance, group: str) -> None:
        self._instance = instance
        self._queues = QueueCalls(instance)
        self._group = group
        self._producing = ProducerSettings()
        ids = UniqueIds(instance.client_id.partition("@")[0])
        self._maker = MessageMaker(self._producing, ids.make, INNER_PRODUCER_GROUP)
        self._sender: Sender | None = None

    @property
    def client_id(self) -> str:
        return self._instance.client_id

    async def queues(self, topic: str) -> list[MessageQueue]:
        return list(await self._instance.subscribe_queues(topic))

    async def client_ids(self, topic: str) -> list[str]:
        """Asks the topic's brokers one after the other, until one answers."""
        code, route = RequestCode.GET_CONSUMER_LIST_BY_GROUP, await self._instance.route(topic)
        failure: ClientError = BrokerNotFoundError(topic, 0)
        for address in route.read_addresses:
            try:
                command = make_call(code, ConsumerGroupRequest(consumer_group=self._group))
                answer = await self._instance.remoting.ask(address, command, topic=topic, group=self._group)
                return list(read_answer_body(ConsumerList, answer, address, code).client_ids)
            except ClientError as error:
                failure = error
        raise failure

    async def stored_offset(self, queue: MessageQueue) -> int | None:
        return await self._queues.group_offset(self._group, queue)

    async def store_offset(self, queue: MessageQueue, offset: int, *, wait: bool = False) -> None:
        if wait:
            await self._queues.store_group_offset(self._group, queue, offset)
            return
        header = UpdateConsumerOffsetRequest(
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            commit_offset=offset,
            broker_name=queue.broker_name,
        )
        address = await self._instance.broker_address(queue.broker_name)
        await self._instance.invoke_oneway(address, make_call(RequestCode.UPDATE_CONSUMER_OFFSET, header))

    async def begin_offset(self, queue: MessageQueue) -> int:
        return await self._queues.min_offset(queue)

    async def end_offset(self, queue: MessageQueue) -> int:
        return await self._queues.max_offset(queue)

    async def offset_at(self, queue: MessageQueue, time_ms: int) -> int:
        return await self._queues.search_offset(queue, time_ms)

    async def lock(self, broker_name: str, queues: Collection[MessageQueue]) -> set[MessageQueue]:
        code, address = RequestCode.LOCK_BATCH_MQ, await self._instance.broker_address(broker_name)
        command = make_call(code, None, self._lock_body(queues))
        answer = await self._instance.remoting.ask(address, command, LOCK_TIMEOUT_MS, group=self._group)
        return set(read_answer_body(LockedQueues, answer, address, code).queues)

    async def unlock(self, broker_name: str, queues: Collection[MessageQueue]) -> None:
        address = await self._instance.broker_address(broker_name)
        command = make_call(RequestCode.UNLOCK_BATCH_MQ, None, self._lock_body(queues))
        await self._instance.remoting.ask(address, command, LOCK_TIMEOUT_MS, group=self._group)

    def _lock_body(self, queues: Collection[MessageQueue]) -> LockBody:
        return LockBody(consumer_group=self._group, client_id=self.client_id, queues=tuple(queues))

    async def pull(self, pull: Pull, broker_id: int) -> PullResult:
        return await self._queues.pull(pull, self._group, broker_id=broker_id, timeout_ms=PULL_TIMEOUT_MS)

    async def send_back(
        self, message: MessageExt, origin_topic: str, delay_level: int, max_reconsume_times: int
    ) -> None:
        header = SendBackRequest(
            commitlog_offset=message.commitlog_offset,
            group=self._group,
            delay_level=delay_level,
            origin_message_id=message.message_id,
            origin_topic=origin_topic,
            max_reconsume_times=max_reconsume_times,
            broker_name=message.broker_name,
        )
        address = await self._instance.broker_address(message.broker_name)
        command = make_call(RequestCode.CONSUMER_SEND_MSG_BACK, header)
        await self._instance.remoting.ask(address, command, SEND_BACK_TIMEOUT_MS, topic=origin_topic, group=self._group)

    async def send_as_new(self, message: Message) -> None:
        """As the inner producer, with its retries. How often the message failed goes into the request's header."""
        if self._sender is None:
            self._sender = Sender(self._instance, self._producing, INNER_PRODUCER_GROUP)
        await self._sender.send(self._maker.handed_on(message), self._producing.send_timeout_ms)

    def close(self) -> None:
        """End what is still being sent."""
        if self._sender is not None:
            self._sender.close(ClientClosedError(f"the consumer of group {self._group}", "it is closed"))

    async def announce(self) -> None:
        await self._instance.send_heartbeat()

    async def check(self, wanted: Subscription) -> None:
        """Whether the group may consume so, asked before it does: pulls would fail one after the other, and only the log would say so.

        Raises NameServerUnreachableError, AccessDeniedError, and ResponseError where an SQL92 expression is wrong, or SQL92 is off at
        the broker. A topic without a route, and brokers that do not answer, are waited for.
        """
        try:
            await self.client_ids(wanted.topic)
        except (AccessDeniedError, NameServerUnreachableError):
            raise
        except ResponseError:  # no client of the group is there yet
            pass
        except ClientError as error:
            _LOG.warning("topic %s is waited for: %s", wanted.topic, error)
            return
        if wanted.expression_type == "SQL92":
            await self._check_expression(wanted)

    async def _check_expression(self, wanted: Subscription) -> None:
        """Let a broker of the topic look at it (46)."""
        route = await self._instance.route(wanted.topic)
        body = CheckClientBody(client_id=self.client_id, group=self._group, subscription=wanted.wire_form())
        command = make_call(RequestCode.CHECK_CLIENT_CONFIG, None, body)
        addresses = route.read_addresses[:1]
        ask = self._instance.remoting.ask
        await asyncio.gather(*(ask(each, command, topic=wanted.topic, group=self._group) for each in addresses))
