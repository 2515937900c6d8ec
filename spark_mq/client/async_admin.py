"""What an operator asks of a cluster, for those who live on the event loop. Java: DefaultMQAdminExt."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from spark_mq.client.group_calls import GroupCalls
from spark_mq.client.instance import ClientInstance
from spark_mq.client.message_calls import MessageCalls
from spark_mq.client.queue_calls import QueueCalls
from spark_mq.client.settings import ClientSettings
from spark_mq.client.topic_calls import TopicCalls


class AsyncAdmin(TopicCalls, QueueCalls, GroupCalls, MessageCalls):
    """All calls about topics, queues, groups and messages, over a client instance that is shared with producers and consumers.

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
