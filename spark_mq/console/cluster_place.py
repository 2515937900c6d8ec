"""A cluster as pages ask it: what the brokers that answer have, and why that of the others is missing.

One rule for all pages: each question is one of those that give what some brokers have (`spark_mq/cli/live_place.py`). A broker that
has not answered in the time that a page waits for it counts as one that does not answer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from spark_mq.cli.cluster import connection_of
from spark_mq.cli.live_place import LivePlace, together
from spark_mq.cli.places import FoundMessage, FoundOffset, KeySearch
from spark_mq.client.admin import brokers_of, joined_connections
from spark_mq.client.errors import ClientError
from spark_mq.client.event_loop import run
from spark_mq.client.pulls import PullResult
from spark_mq.client.routes import read_address
from spark_mq.client.settings import ClientSettings
from spark_mq.remoting.administration import ConsumerConnection, TopicOffset
from spark_mq.source.offsets import QueueId
from storage import Message
from storage.names import retry_topic

T = TypeVar("T")


class SlowBrokerError(ClientError):
    """A broker that has not answered in the time that a page waits for it."""

    template = "it has not answered all that the page asks within {seconds:g} s"
    hint = "Load the page again, or use the command, which waits longer: spark-mq query, dump, topics."
    seconds: float


@dataclass(slots=True)
class _Waited:
    """How long a page has waited for one broker: the time in which at least one request was on its way."""

    calls: int = 0
    since_s: float = 0.0
    before_s: float = 0.0

    @property
    def seconds(self) -> float:
        return self.before_s + (time.monotonic() - self.since_s if self.calls else 0.0)

    @contextmanager
    def counted(self) -> Iterator[None]:
        """The block waits."""
        if not self.calls:
            self.since_s = time.monotonic()
        self.calls += 1
        try:
            yield
        finally:
            self.calls -= 1
            if not self.calls:
                self.before_s += time.monotonic() - self.since_s


class ClusterPlace(LivePlace):
    """The place of one page. A topic of which no broker answers has no queues here."""

    def __init__(self, settings: ClientSettings, wait_s: float | None) -> None:
        """`wait_s` is how long it waits for each broker, over all requests; None: as long as the requests do."""
        super().__init__(settings)
        self.incomplete: set[str] = set()
        """The topics that miss queues."""
        self._wait_s = wait_s
        self._waited: dict[str, _Waited] = {}

    # What a broker says, or why it does not

    async def answered(self, broker_name: str, call: Callable[[], Awaitable[T]]) -> T:
        """The broker's answer, while the page waits for it. Raises ClientError, also where the records of an answer are cut."""
        waited = self._waited.setdefault(broker_name, _Waited())
        left_s = None if self._wait_s is None else max(0.0, self._wait_s - waited.seconds)
        try:
            with waited.counted():
                async with asyncio.timeout(left_s):
                    return await super().answered(broker_name, call)
        except TimeoutError:
            raise SlowBrokerError(self._wait_s or 0.0) from None

    # Messages by the names of this place, so that links lead back to them

    def shown(self, message: Message) -> Message:
        """With the topic's name as this place has it."""
        here = self.here(message.topic)
        return message if here == message.topic else replace(message, topic=here)

    def by_message_id(self, msg_id: str, topic: str | None) -> list[FoundMessage]:
        return [each._replace(message=self.shown(each.message)) for each in super().by_message_id(msg_id, topic)]

    def messages(self, queue: QueueId, start: int, end: int) -> Iterator[Message]:
        return map(self.shown, super().messages(queue, start, end))

    # Requests to several brokers

    def by_key(self, search: KeySearch) -> list[FoundMessage]:
        return [each._replace(message=self.shown(each.message)) for each in super().by_key(search)]

    def offsets_by_time(self, topic: str, time_ms: int, *, upper: bool, with_times: bool = True) -> list[FoundOffset]:
        find = partial(self.offset_by_time, time_ms=time_ms, upper=upper, with_time=with_times)
        queues = self.queues(topic)
        found = together([partial(self.asked, queue.broker_name, partial(find, queue)) for queue in queues])
        return [each for each in found if each is not None]

    def groups(self) -> list[str]:
        found = self.from_each(self._brokers(), lambda address: self.admin.groups(address=address))
        return self._shown({group for _, groups in found for group in groups})

    def members(self, group: str) -> ConsumerConnection | None:
        """The group's clients; None where no broker that answers knows one."""
        brokers = run(self.brokers_of(retry_topic(self.at_brokers(group)))) or self._brokers()
        found = [each for _, each in self.from_each(brokers, partial(connection_of, self, group)) if each is not None]
        return joined_connections(found) if found else None

    async def pulled(self, queue: QueueId, offset: int, limit: int, tags: str = "*") -> PullResult:
        return await self.answered(queue.broker_name, partial(super().pulled, queue, offset, limit, tags))

    async def _stats_of(self, topic: str) -> dict[QueueId, TopicOffset]:
        found, missing = await self.known_stats_of(topic)
        if missing:
            self.incomplete.add(topic)
        return found

    def _brokers(self) -> list[tuple[str, str]]:
        """Name and an address of each broker."""
        known = brokers_of(run(self.admin.cluster_info()), None)
        return [(name, read_address(found)) for name, found in known.items() if found]
