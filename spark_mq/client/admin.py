"""What an operator asks of a cluster. Java: DefaultMQAdminExt, mqadmin.

with Admin(ClientSettings("ns1:9876;ns2:9876")) as admin:
    admin.create_topic(NewTopic("orders", 4, 4))
    for queue, offsets in admin.topic_stats("orders").items():
        print(queue, offsets.min_offset, offsets.max_offset)
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

from spark_mq.client.event_loop import run
from spark_mq.client.group_calls import GroupCalls
from spark_mq.client.instance import ClientInstance
from spark_mq.client.message import MessageExt
from spark_mq.client.message_calls import FoundMessages, MessageCalls
from spark_mq.client.pulls import Pull, PullResult
from spark_mq.client.queue_calls import QueueCalls
from spark_mq.client.routes import TopicRoute
from spark_mq.client.settings import ClientSettings
from spark_mq.client.topic_calls import NewTopic, TopicCalls
from spark_mq.remoting import MessageQueue
from spark_mq.remoting.administration import (
    ConsumerConnection,
    OffsetWrapper,
    ProducerConnection,
    TopicOffset,
)
from spark_mq.remoting.consumers import ConsumerRunningInfo
from spark_mq.remoting.routes import (
    ClusterInfo,
)
from storage.format.table_entries import SubscriptionGroupConfig, TopicConfig

T = TypeVar("T")


class AsyncAdmin(TopicCalls, QueueCalls, GroupCalls, MessageCalls):
    """All calls, for those who live on the event loop, over a client instance that is shared with producers and consumers.

    Names of topics and groups are as brokers know them (`namespace%name`). Every call raises ClientError: no answer in time, no
    connection, no route, a refusal. Made on any thread, used and closed on the loop's.
    """

    def __init__(self, settings: ClientSettings) -> None:
        super().__init__(ClientInstance.of(settings))
        self._is_closed = False

    @property
    def instance(self) -> ClientInstance:
        """The instance behind it."""
        return self._instance

    async def close(self) -> None:
        """Give the instance back; a second call does nothing."""
        if not self._is_closed:
            self._is_closed = True
            await self._instance.release_async()

    def release(self) -> None:
        """The same from a thread that is not the loop's."""
        if not self._is_closed:
            self._is_closed = True
            self._instance.release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class Admin:
    """The calls of AsyncAdmin for a thread that waits; safe for several threads. Each call raises ClientError, none hangs."""

    def __init__(self, settings: ClientSettings) -> None:
        self._admin = AsyncAdmin(settings)

    def close(self) -> None:
        """Give back what it shares; a second call does nothing."""
        self._admin.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Topics and brokers.

    def route(self, topic: str) -> TopicRoute:
        """Where the topic's queues are. Raises TopicRouteNotFoundError."""
        return self._run(self._admin.route(topic))

    def cluster_info(self) -> ClusterInfo:
        """All brokers with their addresses, and which cluster has which."""
        return self._run(self._admin.cluster_info())

    def broker_addresses(self, cluster: str | None = None) -> list[str]:
        """An address for each broker of a cluster or of all: its master's, else a slave's."""
        return self._run(self._admin.broker_addresses(cluster))

    def runtime_info(self, address: str) -> Mapping[str, str]:
        """A broker's figures, as texts by name."""
        return self._run(self._admin.runtime_info(address))

    def topics(self, cluster: str | None = None) -> tuple[str, ...]:
        """The names of all topics, or of a cluster's; sorted."""
        return self._run(self._admin.topics(cluster))

    def topic_stats(self, topic: str) -> dict[MessageQueue, TopicOffset]:
        """Beginning, end and last store time of each queue at each broker."""
        return self._run(self._admin.topic_stats(topic))

    def topic_config(self, topic: str) -> dict[str, TopicConfig]:
        """The topic as each of its brokers holds it, by broker name."""
        return self._run(self._admin.topic_config(topic))

    def create_topic(self, new: NewTopic, *, cluster: str | None = None, address: str | None = None) -> None:
        """Make the topic, or change it, on one broker, on a cluster's masters, or on all masters."""
        self._run(self._admin.create_topic(new, cluster=cluster, address=address))

    def delete_topic(self, topic: str, *, cluster: str | None = None) -> None:
        """Delete it on the brokers of a cluster, or on all, and then at every name server; one that is not there is no error."""
        self._run(self._admin.delete_topic(topic, cluster=cluster))

    # Queues.

    def max_offset(self, queue: MessageQueue) -> int:
        """The queue's end: the offset that the next message will have."""
        return self._run(self._admin.max_offset(queue))

    def min_offset(self, queue: MessageQueue) -> int:
        """The queue's first offset."""
        return self._run(self._admin.min_offset(queue))

    def max_offsets(self, topic: str) -> dict[MessageQueue, int]:
        """The end of each readable queue, asked for at once."""
        return self._run(self._admin.max_offsets(topic))

    def min_offsets(self, topic: str) -> dict[MessageQueue, int]:
        """The beginning of each readable queue, asked for at once."""
        return self._run(self._admin.min_offsets(topic))

    def earliest_time_ms(self, queue: MessageQueue) -> int:
        """When the queue's first message was stored; −1 of an empty queue."""
        return self._run(self._admin.earliest_time_ms(queue))

    def search_offset(self, queue: MessageQueue, time_ms: int, *, upper: bool = False) -> int:
        """The first message stored at that time or later; with `upper` the last one of those stored at it."""
        return self._run(self._admin.search_offset(queue, time_ms, upper=upper))

    def pull(self, pull: Pull, group: str, *, broker_id: int = 0, timeout_ms: int | None = None) -> PullResult:
        """Messages of one queue, as they stand in the log."""
        return self._run(self._admin.pull(pull, group, broker_id=broker_id, timeout_ms=timeout_ms))

    # Groups.

    def group_offset(self, group: str, queue: MessageQueue) -> int | None:
        """Where the group goes on. None: nothing is stored."""
        return self._run(self._admin.group_offset(group, queue))

    def store_group_offset(self, group: str, queue: MessageQueue, offset: int) -> bool:
        """Store where the group goes on, also backwards. False: a reset of that queue waits for the group, and wins."""
        return self._run(self._admin.store_group_offset(group, queue, offset))

    def consume_stats(self, group: str, topic: str | None = None) -> dict[MessageQueue, OffsetWrapper]:
        """How far the group is in each queue of its topics, or of one."""
        return self._run(self._admin.consume_stats(group, topic))

    def groups(self, cluster: str | None = None) -> dict[str, SubscriptionGroupConfig]:
        """All consumer groups with their settings."""
        return self._run(self._admin.groups(cluster))

    def create_group(
        self, config: SubscriptionGroupConfig, *, cluster: str | None = None, address: str | None = None
    ) -> None:
        """Make the group, or change it, on one broker, on a cluster's masters, or on all masters."""
        self._run(self._admin.create_group(config, cluster=cluster, address=address))

    def delete_group(
        self, group: str, *, clean_offset: bool = True, with_topics: bool = True, cluster: str | None = None
    ) -> None:
        """Forget the group, with its offsets, and its retry and dead letter topics."""
        call = self._admin.delete_group(group, clean_offset=clean_offset, with_topics=with_topics, cluster=cluster)
        self._run(call)

    def topics_of_group(self, group: str) -> tuple[str, ...]:
        """The topics in which the group has offsets, over all brokers; sorted."""
        return self._run(self._admin.topics_of_group(group))

    def consumer_ids(self, group: str, topic: str) -> tuple[str, ...]:
        """The ids of the group's clients, as the brokers of the topic know them; sorted. None of them: empty."""
        return self._run(self._admin.consumer_ids(group, topic))

    def consumer_connection(self, group: str) -> ConsumerConnection:
        """The group's consumers, over all brokers, and what they subscribe to. Raises ResponseError 206 where none is online."""
        return self._run(self._admin.consumer_connection(group))

    def producer_connection(self, group: str, topic: str) -> ProducerConnection:
        """The group's producers at the brokers of a topic. Raises ResponseError where there is none."""
        return self._run(self._admin.producer_connection(group, topic))

    def running_info(self, group: str, client_id: str) -> ConsumerRunningInfo:
        """How one consumer of the group is doing, as it says itself."""
        return self._run(self._admin.running_info(group, client_id))

    def reset_offsets(self, group: str, topic: str, time_ms: int, *, is_force: bool = True) -> dict[MessageQueue, int]:
        """Let the group go on at a time in all queues of the topic, −1 the end; where it now is."""
        return self._run(self._admin.reset_offsets(group, topic, time_ms, is_force=is_force))

    def reset_queue_offset(self, group: str, queue: MessageQueue, offset: int) -> dict[MessageQueue, int]:
        """Let the group go on at an offset of one queue, which must lie within it."""
        return self._run(self._admin.reset_queue_offset(group, queue, offset))

    # Messages.

    def view_message(self, message_id: str, topic: str | None = None) -> MessageExt:
        """The message of a broker's id, which names its address and its place in the log."""
        return self._run(self._admin.view_message(message_id, topic))

    def query_by_key(
        self, topic: str, key: str, *, limit: int = 32, begin_ms: int = 0, end_ms: int = 0x7FFF_FFFF_FFFF_FFFF
    ) -> FoundMessages:
        """Messages of the topic with that key, stored between the times, over all its brokers."""
        return self._run(self._admin.query_by_key(topic, key, limit=limit, begin_ms=begin_ms, end_ms=end_ms))

    def query_by_unique_key(self, topic: str, unique_key: str, *, begin_ms: int = 0) -> FoundMessages:
        """Messages with that UNIQ_KEY."""
        return self._run(self._admin.query_by_unique_key(topic, unique_key, begin_ms=begin_ms))

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        return run(call)
