"""Assignment of queues to this consumer, and first offsets: computed at start, every 20 s and when the group changes.

    wanted and not here ─▶ (orderly: lock) ─▶ first offset ─▶ read
    here and not wanted ─▶ dropped ─▶ (orderly: until its listener is done) ─▶ offset stored ─▶ (orderly: unlock) ─▶ gone

A queue that is handed over stays in the table until its lock is released, so it is not taken again before.

    stored at the broker ─▶ begin there
    nothing stored       ─▶ by `ConsumeFrom`:      LAST       FIRST       TIMESTAMP
                            of a topic              the end    0           the first stored at that time or later
                            of the retry topic      0          0           the end

If a queue still has its first message in memory, the broker answers 0 for a new group, whatever `ConsumeFrom` is: for a young topic
LAST means FIRST. If the broker does not answer, the queue is not taken now.

Java: RebalanceImpl, RebalancePushImpl, RebalanceService. Departures: an orderly queue is handed over as soon as its
listener is done, not at the next rebalance; its offset is stored and acknowledged before the lock is released, and includes
what the listener has done meanwhile. The first pull does not wait half a second, because the broker has already answered the
heartbeat with the new version of the subscription.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import NamedTuple, Protocol

from spark_mq.client.allocation import sorted_client_ids
from spark_mq.client.consumer_calls import GroupBrokers
from spark_mq.client.errors import ClientError, MessageQueueNotFoundError, TopicRouteNotFoundError
from spark_mq.client.message import MessageQueue
from spark_mq.client.offset_stores import OffsetStore
from spark_mq.client.process_queue import ProcessQueue
from spark_mq.client.pulls import Subscription
from spark_mq.client.settings import ConsumeFrom, PullSettings, PushSettings
from spark_mq.remoting.consumers import MessageModel
from storage.epoch_times import current_time_ms
from storage.names import RETRY_PREFIX

REBALANCE_INTERVAL_MS = 20_000
UNBALANCED_INTERVAL_MS = 1_000
"""The pause after a rebalance that could not do all of it, and the shortest between two."""
LOCK_INTERVAL_MS = 20_000
FIRST_LOCK_MS = 1_000
FORCED_HAND_OVER_MS = 20_000
"""After so long without a lock request a queue is handed over although a listener still works. Java: UNLOCK_DELAY_TIME_MILLS."""
RETRY_LOOKS = 10
"""Number of looks for the retry topic of a new group, one each second. Java looks with each rebalance only."""
_LOOK_MS = 10
_LOG = logging.getLogger(__name__)


class Readers(Protocol):
    """The reader of queues that a rebalance takes."""

    def begin(self, queue: MessageQueue, process_queue: ProcessQueue, offset: int) -> None:
        """Read from the offset on."""

    def end(self, queue: MessageQueue) -> None:
        """Stop reading; the queue is dropped."""

    def share_changed(self, topic: str, all_queues: list[MessageQueue], own: list[MessageQueue]) -> None:
        """Another share of a topic is read from now on."""


class _Taken(NamedTuple):
    """A queue that is this client's now, and where to begin in it."""

    queue: MessageQueue
    process_queue: ProcessQueue
    offset: int


class Rebalancer:
    """The queues of one consumer. Owned by the event loop's thread."""

    def __init__(
        self,
        brokers: GroupBrokers,
        offsets: OffsetStore,
        subscriptions: dict[str, Subscription],
        settings: PushSettings | PullSettings,
        readers: Readers,
        clock_ms: Callable[[], int],
        *,
        is_orderly: bool = False,
    ) -> None:
        self._brokers = brokers
        self._offsets = offsets
        self._subscriptions = subscriptions
        self._settings = settings
        self.locks = is_orderly and settings.model is MessageModel.CLUSTERING
        self._readers = readers
        self._clock_ms = clock_ms
        self._table: dict[MessageQueue, ProcessQueue] = {}
        self._handing_over: dict[MessageQueue, asyncio.Task[None]] = {}
        self._retry_looks = 0
        self._not_shared: set[str] = set()

    @property
    def table(self) -> Mapping[MessageQueue, ProcessQueue]:
        """All queues that are read or being handed over."""
        return self._table

    def owned(self, topic: str | None = None) -> list[MessageQueue]:
        """The queues that are read, of one topic or of all, sorted."""
        return sorted(
            queue
            for queue, process_queue in self._table.items()
            if not process_queue.is_dropped and topic in (None, queue.topic)
        )

    async def rebalance(self) -> bool:
        """Take and give up queues of all topics; whether everything is now as it should be."""
        balanced = [await self._rebalanced(topic) for topic in list(self._subscriptions)]
        await self._give_up(queue for queue in list(self._table) if queue.topic not in self._subscriptions)
        return all(balanced)

    async def _rebalanced(self, topic: str) -> bool:
        try:
            all_queues = await self._brokers.queues(topic)
            share = await self._share(topic, all_queues)
        except (TopicRouteNotFoundError, MessageQueueNotFoundError) as error:
            return self._is_missing_for_now(topic, error)
        except (ClientError, ValueError) as error:
            level = logging.DEBUG if topic in self._not_shared else logging.WARNING
            _LOG.log(level, "the queues of topic %s are not shared anew: %s", topic, error)
            self._not_shared.add(topic)
            return False
        self._not_shared.discard(topic)
        if await self._changed(topic, share):
            own = self.owned(topic)
            _LOG.info(
                "client %s reads %d of %d queues of topic %s", self._brokers.client_id, len(own), len(all_queues), topic
            )
            self._readers.share_changed(topic, all_queues, own)
        return self.owned(topic) == sorted(share)

    def _is_missing_for_now(self, topic: str, error: ClientError) -> bool:
        """A topic without queues is looked for again with the next rebalance, but a retry topic soon: a heartbeat makes it."""
        if not topic.startswith(RETRY_PREFIX):
            _LOG.warning("topic %s is not read: %s", topic, error)
            return True
        self._retry_looks += 1
        return self._retry_looks > RETRY_LOOKS

    async def _share(self, topic: str, queues: list[MessageQueue]) -> list[MessageQueue]:
        """The queues for this client. Raises ClientError, and ValueError if the strategy does not fit."""
        if self._settings.model is MessageModel.BROADCASTING:
            return queues
        client_ids = sorted_client_ids(await self._brokers.client_ids(topic))
        return (
            self._settings.allocation.allocate(self._brokers.client_id, sorted(queues), client_ids)
            if client_ids
            else []
        )

    async def _changed(self, topic: str, share: list[MessageQueue]) -> bool:
        """Give up what is no more in the share, take what is new in it; whether that was anything."""
        now_ms, wanted = self._clock_ms(), set(share)
        given_up = await self._give_up(
            queue
            for queue, process_queue in list(self._table.items())
            if queue.topic == topic and (queue not in wanted or process_queue.is_pull_expired(now_ms))
        )
        taken = await self._take_all([queue for queue in share if queue not in self._table])
        if not taken and not given_up:
            return False
        if topic in self._subscriptions:
            self._subscriptions[topic] = self._subscriptions[topic].renewed(current_time_ms())
        await self._announced()
        for queue, process_queue, offset in taken:
            if not process_queue.is_dropped:
                process_queue.last_pull_ms = self._clock_ms()
                self._readers.begin(queue, process_queue, offset)
        return True

    async def _announced(self) -> None:
        try:
            await self._brokers.announce()
        except ClientError as error:
            _LOG.warning("no heartbeat after a rebalance: %s", error)

    async def _take_all(self, queues: list[MessageQueue]) -> list[_Taken]:
        """Those of the queues that could be taken. Cancelled, it first waits until all have given their locks back."""
        outcomes = await asyncio.gather(*map(self._take, queues), return_exceptions=True)
        for queue, outcome in zip(queues, outcomes, strict=True):
            if isinstance(outcome, Exception):
                _LOG.error("%s is not read now", queue, exc_info=outcome)
        return [outcome for outcome in outcomes if outcome is not None and not isinstance(outcome, BaseException)]

    async def _take(self, queue: MessageQueue) -> _Taken | None:
        """The queue in the table, and where to begin; None where that does not work now. No lock is left of what is not taken."""
        if not self.locks:
            return await self._taken_at_offset(queue)
        taken, is_refused = None, False
        try:
            is_refused = not await self.lock(queue)
            taken = None if is_refused else await self._taken_at_offset(queue)
        finally:
            if taken is None and not is_refused:
                await self._unlock([queue])
        return taken

    async def _taken_at_offset(self, queue: MessageQueue) -> _Taken | None:
        self._offsets.forget(queue)
        try:
            offset = await self.first_offset(queue)
        except ClientError as error:
            _LOG.warning("%s is not read now: no broker says where to begin: %s", queue, error)
            return None
        process_queue = ProcessQueue(self._clock_ms())
        self._table[queue] = process_queue
        return _Taken(queue, process_queue, offset)

    async def first_offset(self, queue: MessageQueue) -> int:
        """The first offset in a queue. Raises ClientError."""
        stored, settings = await self._offsets.stored(queue), self._settings
        found = first_offset(stored, settings.consume_from, is_retry_topic=queue.topic.startswith(RETRY_PREFIX))
        if found is Lookup.END:
            return await self._brokers.end_offset(queue)
        if found is Lookup.TIME:
            return await self._brokers.offset_at(queue, settings.consume_time_ms)
        return found

    # Giving up.

    async def _give_up(self, queues: Iterable[MessageQueue]) -> bool:
        """Drop queues; whether any was not dropped before. Those without a listener at work are handed over at once."""
        dropped = [queue for queue in queues if not self._table[queue].is_dropped]
        for queue in dropped:
            self.drop(queue)
        at_once = [queue for queue in dropped if not self._table[queue].is_in_use]
        await _ended(self._handing_over[queue] for queue in at_once if queue in self._handing_over)
        return bool(dropped)

    def drop(self, queue: MessageQueue) -> None:
        """Read it no more, and hand it over."""
        process_queue = self._table[queue]
        if not process_queue.is_dropped:
            process_queue.is_dropped = True
            self._readers.end(queue)
            task = asyncio.get_running_loop().create_task(self._hand_over(queue, process_queue))
            self._handing_over[queue] = task
            task.add_done_callback(lambda _: self._handing_over.pop(queue, None))

    async def _hand_over(self, queue: MessageQueue, process_queue: ProcessQueue) -> None:
        try:
            await self._listener_done(queue, process_queue)
            process_queue.is_handed_over = True
            await self._offsets.write([queue], wait=self.locks)
            self._offsets.forget(queue)
            if self.locks:
                await self._unlock([queue])
        except Exception:
            _LOG.exception("%s was not handed over in good order; a lock of it ends by itself within a minute", queue)
        finally:
            self._table.pop(queue, None)

    async def _listener_done(self, queue: MessageQueue, process_queue: ProcessQueue) -> None:
        """Wait until no listener works on it, but not for ever."""
        while process_queue.is_in_use:
            if self._clock_ms() > process_queue.last_lock_ms + FORCED_HAND_OVER_MS:
                process_queue.unlock_tries += 1
                _LOG.warning("%s is handed over while a listener still works on it", queue)
                return
            await asyncio.sleep(_LOOK_MS / 1000)

    async def give_up_all(self) -> None:
        """Drop all queues and hand them over; those too whose hand-over has started. No rebalance may run."""
        for queue in list(self._table):
            self.drop(queue)
        await _ended(self._handing_over.values())

    # Locks.

    async def lock(self, queue: MessageQueue) -> bool:
        """Lock one queue; whether this client has it now."""
        locked = await self._locked(queue.broker_name, [queue])
        return locked is not None and queue in locked

    async def lock_all(self) -> None:
        """Renew the locks of all queues that are read."""
        by_broker: dict[str, list[MessageQueue]] = {}
        for queue in self.owned():
            by_broker.setdefault(queue.broker_name, []).append(queue)
        for broker_name, queues in by_broker.items():
            locked = await self._locked(broker_name, queues)
            for queue in queues:
                process_queue = self._table.get(queue)
                if locked is not None and process_queue is not None and queue not in locked:
                    process_queue.is_locked = False

    async def _locked(self, broker_name: str, queues: list[MessageQueue]) -> set[MessageQueue] | None:
        """Those that this client has the lock of, marked so; None where the broker did not answer."""
        try:
            locked = await self._brokers.lock(broker_name, queues)
        except ClientError as error:
            _LOG.warning("queues of broker %s were not locked: %s", broker_name, error)
            return None
        for queue in locked & self._table.keys():
            if not self._table[queue].is_dropped:
                self._table[queue].set_locked(self._clock_ms())
        return locked

    async def _unlock(self, queues: list[MessageQueue]) -> None:
        try:
            await self._brokers.unlock(queues[0].broker_name, queues)
        except ClientError as error:
            _LOG.warning("%s was not unlocked; its lock ends by itself within a minute: %s", queues[0], error)


async def _ended(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Wait for all of them. They go on where the waiting is cancelled: a hand-over is never left half done."""
    waited_for = list(tasks)
    if waited_for:
        await asyncio.wait(waited_for)


class Lookup(Enum):
    """The offset that must be looked up at the broker."""

    END = "the queue's end"
    TIME = "the first offset stored at a time or later"


def first_offset(stored_offset: int | None, where: ConsumeFrom, *, is_retry_topic: bool) -> int | Lookup:
    """The offset to begin at, or the lookup that finds it; `stored_offset` is None if the broker has none."""
    if stored_offset is not None:
        return stored_offset
    if where is ConsumeFrom.FIRST:  # too small perhaps: the first pull is answered with the queue's first offset
        return 0
    if where is ConsumeFrom.LAST:
        return 0 if is_retry_topic else Lookup.END
    return Lookup.END if is_retry_topic else Lookup.TIME
