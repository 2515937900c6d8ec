"""What a consumer group asks the cluster, without sockets: so that rebalance, pulling and listeners are tested without any.

Topics and groups are as brokers know them, with their namespace. Every call raises a ClientError where it fails.
Java: the calls of MQClientAPIImpl that consumers make.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from spark_mq.client.message import Message, MessageExt, MessageQueue
from spark_mq.client.pulls import Pull, PullResult


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
        """Where the group goes on; None where nothing is stored."""

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
