"""What a client instance asks of the producers and consumers in it: their part of the heartbeat, and answers to brokers.

Java: MQProducerInner, MQConsumerInner, ClientRemotingProcessor. Everything is called on the event loop's thread; user
code must be handed to other threads.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal, Protocol

from spark_mq.client.routes import TopicRoute
from spark_mq.remoting import MessageQueue
from spark_mq.remoting.consumers import ConsumeDirectlyResult, ConsumerData, ConsumerRunningInfo
from spark_mq.remoting.messages import CheckTransactionStateRequest, ReplyMessageRequest

Kind = Literal["producer", "consumer"]


class Member(Protocol):
    """A producer group or a consumer group of one instance. Topics and groups are as brokers know them (with namespace)."""

    @property
    def group(self) -> str:
        """The group; one member of a kind in an instance."""

    @property
    def kind(self) -> Kind:
        """Whether it produces or consumes."""

    def topics(self) -> Collection[str]:
        """Topics whose routes are kept fresh."""

    def consumer_data(self) -> ConsumerData | None:
        """A consumer's part of the heartbeat; None: it has none to tell now, or is a producer."""

    def on_route(self, route: TopicRoute) -> None:
        """A route of one of its topics has changed."""

    def on_consumer_ids_changed(self) -> None:
        """A broker tells that clients of the group came or went (40)."""

    async def check_transaction(self, address: str, header: CheckTransactionStateRequest, record: bytes) -> None:
        """A broker asks what became of a half message (39), whose record is given. The answer is a request of its own (37)."""

    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """A broker tells to go on elsewhere (220)."""

    async def consumer_status(self, topic: str) -> Mapping[MessageQueue, int]:
        """Where it is in the queues of a topic (221)."""

    async def running_info(self, *, with_stacks: bool) -> ConsumerRunningInfo:
        """How it is doing (307)."""

    async def consume_directly(self, record: bytes, broker_name: str) -> ConsumeDirectlyResult:
        """Hand one message to the listener, at an operator's wish (309)."""

    async def receive_reply(self, header: ReplyMessageRequest, body: bytes) -> None:
        """A broker hands on the answer to a request of this producer (326)."""


class QuietMember:
    """A member that is asked nothing; a base for those that answer some."""

    kind: Kind = "producer"

    def __init__(self, group: str) -> None:
        self.group = group

    def topics(self) -> Collection[str]:
        """None."""
        return ()

    def consumer_data(self) -> ConsumerData | None:
        """Nothing to tell."""
        return None

    def on_route(self, route: TopicRoute) -> None:
        """Nothing to do."""

    def on_consumer_ids_changed(self) -> None:
        """Nothing to do."""

    async def check_transaction(self, address: str, header: CheckTransactionStateRequest, record: bytes) -> None:
        """Unknown: the broker asks again."""

    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Nothing to reset."""

    async def consumer_status(self, topic: str) -> Mapping[MessageQueue, int]:
        """In no queue."""
        return {}

    async def running_info(self, *, with_stacks: bool) -> ConsumerRunningInfo:
        """Nothing to tell."""
        return ConsumerRunningInfo()

    async def consume_directly(self, record: bytes, broker_name: str) -> ConsumeDirectlyResult:
        """There is no listener."""
        return ConsumeDirectlyResult(consume_result="CR_THROW_EXCEPTION", remark="this member has no listener")

    async def receive_reply(self, header: ReplyMessageRequest, body: bytes) -> None:
        """Nobody has asked."""


class ConsumerEngine(Protocol):
    """What of a consumer takes queues and knows where it is in them."""

    def rebalance_soon(self) -> None:
        """The group, the subscriptions or the topics have changed."""

    def offsets(self, topic: str) -> Mapping[MessageQueue, int]:
        """Where the consumer is in a topic (221)."""

    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Go on elsewhere in the queues of a topic that are read here (220)."""


class ConsumerMember(QuietMember):
    """A consumer, which answers by its engine."""

    kind: Kind = "consumer"
    engine: ConsumerEngine

    def on_route(self, route: TopicRoute) -> None:
        """Queues may have come or gone."""
        self.engine.rebalance_soon()

    def on_consumer_ids_changed(self) -> None:
        """Another one may have come or gone."""
        self.engine.rebalance_soon()

    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """The engine goes on elsewhere."""
        await self.engine.reset_offsets(topic, offsets)

    async def consumer_status(self, topic: str) -> Mapping[MessageQueue, int]:
        """Where the engine is."""
        return self.engine.offsets(topic)
