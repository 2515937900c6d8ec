"""Requests about one queue, requests of a consumer group, and their answers.

Java: MQAdminImpl, MQClientAPIImpl, MQConsumerInner.

Topics and groups are as brokers know them, with their namespace. Requests go to a queue's master; if it is away, reads go to a slave.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from typing import Protocol, TypeVar

from spark_mq.client.calls import make_call, read_answer_body, read_answer_header
from spark_mq.client.errors import (
    AccessDeniedError,
    BrokerNotFoundError,
    ClientClosedError,
    ClientError,
    NameServerUnreachableError,
    ResponseError,
)
from spark_mq.client.instance import INNER_PRODUCER_GROUP, ClientInstance
from spark_mq.client.members import Kind, Member
from spark_mq.client.message import Message, MessageExt, MessageQueue
from spark_mq.client.outgoing_messages import MessageMaker, UniqueIds
from spark_mq.client.pulls import Pull, PullResult, Subscription, pull_command, pull_result
from spark_mq.client.routes import LOGICAL_PREFIX, TopicRoute
from spark_mq.client.sender import Sender
from spark_mq.client.settings import ProducerSettings, PullSettings, PushSettings
from spark_mq.remoting import Header, RequestCode
from spark_mq.remoting.consumers import (
    CheckClientBody,
    ConsumerData,
    ConsumerGroupRequest,
    ConsumerList,
    ConsumeType,
    LockBody,
    LockedQueues,
    MaxOffsetRequest,
    OffsetAnswer,
    QueryConsumerOffsetRequest,
    QueueRequest,
    SearchOffsetRequest,
    TimeAnswer,
    UpdateConsumerOffsetRequest,
)
from spark_mq.remoting.messages import SendBackRequest
from storage.names import MASTER_ID
from storage.rules.response_codes import ResponseCode

H = TypeVar("H", bound=Header)
_WAS_RESET = "Offset has been previously reset"
PULL_TIMEOUT_MS = 15_000
"""For how long an answer may stay away after the time for which the broker may hold a pull. Java: 30 s in all."""
SEND_BACK_TIMEOUT_MS = 5_000
LOCK_TIMEOUT_MS = 1_000
_LOG = logging.getLogger(__name__)


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

    async def group_offset(self, group: str, queue: MessageQueue, *, or_zero: bool = True) -> int | None:
        """The group's stored offset; None if nothing is stored.

        A broker answers 0 for a group that never was in a young queue, which begins at 0 and lies in memory; with `or_zero=False`
        a broker of 5.x does not.
        """
        code = RequestCode.QUERY_CONSUMER_OFFSET
        header = QueryConsumerOffsetRequest(
            consumer_group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            broker_name=queue.broker_name,
            set_zero_if_not_found=None if or_zero else False,
        )
        address = await self._address(queue)
        accepted = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)
        command = make_call(code, header)
        answer = await self._instance.ask(address, command, topic=queue.topic, group=group, accepted=accepted)
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
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
        answer = await self._instance.ask(address, request, topic=queue.topic, group=group)
        return not (answer.remark or "").startswith(_WAS_RESET)

    async def pull(
        self, pull: Pull, group: str, *, broker_id: int = MASTER_ID, timeout_ms: int | None = None
    ) -> PullResult:
        """Messages of one queue, as they stand in the log, from the master or the slave of that id, else from another.

        The time-out counts on top of the time for which the broker may hold the pull.
        """
        address = await self._address(pull.queue, broker_id)
        name = self._instance.broker_name_of(pull.queue)
        at_master = self._instance.broker_addresses(name).get(MASTER_ID) == address
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
        if answer.code == ResponseCode.NOT_LEADER_FOR_QUEUE:
            await self._instance.route(pull.queue.topic, refresh=True)
        return pull_result(answer, pull, group, address)

    async def max_offsets(self, topic: str) -> dict[MessageQueue, int]:
        """The end of each readable queue, from all brokers at once."""
        queues = await self._instance.subscribe_queues(topic)
        return dict(zip(queues, await asyncio.gather(*map(self.max_offset, queues)), strict=True))

    async def min_offsets(self, topic: str) -> dict[MessageQueue, int]:
        """The beginning of each readable queue, from all brokers at once."""
        queues = await self._instance.subscribe_queues(topic)
        return dict(zip(queues, await asyncio.gather(*map(self.min_offset, queues)), strict=True))

    async def _read(self, header_class: type[H], code: RequestCode, header: Header, queue: MessageQueue) -> H:
        address = await self._address(queue)
        answer = await self._instance.ask(address, make_call(code, header), topic=queue.topic)
        return read_answer_header(header_class, answer, address, code)

    async def _address(self, queue: MessageQueue, broker_id: int = MASTER_ID, *, must_write: bool = False) -> str:
        if not self._instance.broker_addresses(self._instance.broker_name_of(queue)):
            await self._instance.route(queue.topic)
        return await self._instance.queue_address(queue, broker_id, only_this=must_write)


def _of(queue: MessageQueue) -> QueueRequest:
    return QueueRequest(topic=queue.topic, queue_id=queue.queue_id, broker_name=queue.broker_name)


class GroupBrokers(Protocol):
    """The cluster, as one group of this client sees it."""

    @property
    def client_id(self) -> str:
        """This client among the group's."""

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues that may be read, sorted."""

    async def client_ids(self, topic: str) -> list[str]:
        """The group's clients, as one broker of the topic knows them."""

    async def stored_offset(self, queue: MessageQueue) -> int | None:
        """The group's stored offset; None if nothing is stored."""

    async def store_offset(self, queue: MessageQueue, offset: int, *, wait: bool = False) -> None:
        """Store where the group goes on; only with `wait` it is known whether that was done."""

    async def begin_offset(self, queue: MessageQueue) -> int:
        """The queue's first offset."""

    async def end_offset(self, queue: MessageQueue) -> int:
        """The queue's end: the offset of the next message."""

    async def offset_at(self, queue: MessageQueue, time_ms: int) -> int:
        """The first message stored at a time or later."""

    async def lock(self, broker_name: str, queues: Collection[MessageQueue]) -> set[MessageQueue]:
        """Lock queues of one broker for this client; those that it got, or had."""

    async def unlock(self, broker_name: str, queues: Collection[MessageQueue]) -> None:
        """Give locks back."""

    async def pull(self, pull: Pull, broker_id: int) -> PullResult:
        """Messages of one queue, from the master (0) or a slave."""

    async def send_back(
        self, message: MessageExt, origin_topic: str, delay_level: int, max_reconsume_times: int
    ) -> None:
        """Let the broker put the message into the group's retry topic, or among its dead letters."""

    async def send_as_new(self, message: Message) -> None:
        """Send a retry message as a producer does, to any broker."""

    async def announce(self) -> None:
        """Tell all brokers the group's subscriptions now."""


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
        address = await self._instance.queue_address(queue)
        await self._instance.invoke_oneway(address, make_call(RequestCode.UPDATE_CONSUMER_OFFSET, header))

    async def begin_offset(self, queue: MessageQueue) -> int:
        return await self._queues.min_offset(queue)

    async def end_offset(self, queue: MessageQueue) -> int:
        return await self._queues.max_offset(queue)

    async def offset_at(self, queue: MessageQueue, time_ms: int) -> int:
        return await self._queues.search_offset(queue, time_ms)

    async def lock(self, broker_name: str, queues: Collection[MessageQueue]) -> set[MessageQueue]:
        code, locked = RequestCode.LOCK_BATCH_MQ, set[MessageQueue]()
        for address, queues_there in (await self._by_address(broker_name, queues)).items():
            command = make_call(code, None, self._lock_body(queues_there))
            answer = await self._instance.remoting.ask(address, command, LOCK_TIMEOUT_MS, group=self._group)
            locked.update(read_answer_body(LockedQueues, answer, address, code).queues)
        return locked

    async def unlock(self, broker_name: str, queues: Collection[MessageQueue]) -> None:
        for address, queues_there in (await self._by_address(broker_name, queues)).items():
            command = make_call(RequestCode.UNLOCK_BATCH_MQ, None, self._lock_body(queues_there))
            await self._instance.remoting.ask(address, command, LOCK_TIMEOUT_MS, group=self._group)

    async def _by_address(
        self, broker_name: str, queues: Collection[MessageQueue]
    ) -> Mapping[str, Collection[MessageQueue]]:
        """The broker's address; of logical queues those of the brokers that lead them."""
        if not broker_name.startswith(LOGICAL_PREFIX):
            return {await self._instance.broker_address(broker_name): queues}
        found: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            found.setdefault(await self._instance.queue_address(queue), []).append(queue)
        return found

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
        """Check the subscription before the group consumes. Otherwise each pull would fail, and only the log would show it.

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


class ConsumerEngine(Protocol):
    """The parts of a consumer that take queues and know its offsets."""

    @property
    def subscriptions(self) -> Mapping[str, Subscription]:
        """The group's subscriptions, by topic."""

    async def start(self) -> None:
        """Begin."""

    def rebalance_soon(self) -> None:
        """The group, the subscriptions or the topics have changed."""

    def offsets(self, topic: str) -> Mapping[MessageQueue, int]:
        """The consumer's offsets in a topic (221)."""

    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Go on elsewhere in the queues of a topic that are read here (220)."""


class ConsumerMember(Member):
    """A consumer between start and close, as its client instance sees it. It answers by its engine, on the event loop's thread."""

    kind: Kind = "consumer"
    engine: ConsumerEngine

    def __init__(
        self, instance: ClientInstance, group: str, settings: PushSettings | PullSettings, consume_type: ConsumeType
    ) -> None:
        """`group` as brokers know it."""
        super().__init__(group)
        self.instance = instance
        self.calls = ConsumerCalls(instance, group)
        self.settings = settings
        self.consume_type = consume_type

    async def start(self) -> None:
        """Join the group."""
        try:
            await self.instance.add_member(self)
            await self.engine.start()
        except BaseException:
            await self.instance.remove_member(self)
            raise

    async def leave(self) -> None:
        """Leave the group. Without that a member whose engine has stopped would keep its share of the queues."""
        self.calls.close()
        await self.instance.remove_member(self)

    async def subscriptions_changed(self) -> None:
        """Tell the brokers, and take other queues."""
        await self.instance.send_heartbeat()
        self.engine.rebalance_soon()

    def topics(self) -> Collection[str]:
        return tuple(self.engine.subscriptions)

    def consumer_data(self) -> ConsumerData:
        return ConsumerData(
            group_name=self.group,
            consume_type=self.consume_type,
            message_model=self.settings.model,
            consume_from_where=self.settings.consume_from.value,
            subscriptions=tuple(wanted.wire_form() for wanted in self.engine.subscriptions.values()),
        )

    def on_route(self, route: TopicRoute) -> None:
        """Queues may have come or gone."""
        self.engine.rebalance_soon()

    def on_consumer_ids_changed(self) -> None:
        self.engine.rebalance_soon()

    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        await self.engine.reset_offsets(topic, offsets)

    async def consumer_status(self, topic: str) -> Mapping[MessageQueue, int]:
        return self.engine.offsets(topic)
