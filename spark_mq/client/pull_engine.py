"""A pull consumer without sockets: readers fill a buffer ahead of the program; the program takes messages and marks them consumed.

    pulled ──▶ buffered ──take──▶ with the program ──done──▶ consumed ──commit──▶ stored
                  ▲ seek, hand-over: forgotten

Queues are shared by rebalance (subscribe), or the program names them (assign); not both.
Java: DefaultLitePullConsumerImpl, AssignedMessageQueue, RebalanceLitePullImpl. Departures: taking does not consume, the next
call of the program does; one take gives the messages of several pulls. Owned by the event loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from spark_mq.client.consumer_calls import GroupBrokers
from spark_mq.client.errors import ClientError, MessageQueueNotFoundError, ResponseError, SeekError
from spark_mq.client.listeners import QueueListener
from spark_mq.client.message import MessageExt, MessageQueue, origin_topic
from spark_mq.client.offset_stores import OffsetStore
from spark_mq.client.process_queue import ProcessQueue
from spark_mq.client.pulls import (
    BROKER_BUSY_MS,
    FAILED_MS,
    FULL_MS,
    Filtered,
    Pull,
    PullResult,
    PullStatus,
    Subscription,
    pulled_messages,
    subscription,
)
from spark_mq.client.rebalance import (
    REBALANCE_INTERVAL_MS,
    UNBALANCED_INTERVAL_MS,
    Rebalancer,
)
from spark_mq.client.settings import PullSettings, without_namespace
from storage.epoch_times import is_time
from storage.errors import CorruptRecordError
from storage.format.record import Message as Record
from storage.rules.response_codes import ResponseCode

SUSPEND_MS = 20_000
_ANY_BYTES = 2**31 - 1
_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class _Read:
    """One queue that is read."""

    process_queue: ProcessQueue
    next_offset: int | None
    """Where the next pull begins; None: the broker must say."""
    consumed_offset: int | None = None
    """All before it is consumed; None: nothing was."""
    broker_id: int = 0
    is_failing: bool = False
    task: asyncio.Task[None] | None = None
    resumed: asyncio.Event = field(default_factory=asyncio.Event)


class PullEngine:
    """One pull consumer at work."""

    def __init__(
        self,
        brokers: GroupBrokers,
        offsets: OffsetStore,
        settings: PullSettings,
        clock_ms: Callable[[], int],
        *,
        namespace: str | None = None,
        write_interval_ms: int = 5_000,
        filtered: Filtered | None = None,
        on_share: QueueListener | None = None,
    ) -> None:
        self.subscriptions: dict[str, Subscription] = {}
        self.expressions: dict[str, Subscription] = {}
        """The subscriptions of assigned queues' topics."""
        self._brokers = brokers
        self._offsets = offsets
        self._settings = settings
        self._clock_ms = clock_ms
        self._namespace = namespace
        self._write_interval_ms = write_interval_ms
        self._filtered = filtered
        self._on_share = on_share
        self.rebalancer = Rebalancer(brokers, offsets, self.subscriptions, settings, self, clock_ms)
        self._reads: dict[MessageQueue, _Read] = {}
        self._paused: set[MessageQueue] = set()
        self._buffer: deque[tuple[ProcessQueue, list[MessageExt]]] = deque()
        self._buffered = 0
        self._arrived = asyncio.Event()
        self._woken = asyncio.Event()
        self._duties: list[asyncio.Task[None]] = []
        self._committed_ms = clock_ms()  # or would have been, where nothing was consumed
        self._leaving: dict[MessageQueue, asyncio.Task[None]] = {}
        self._is_closed = False

    async def start(self) -> None:
        """Begin the duties; queues are read from when they are assigned or shared."""
        await self._offsets.load()
        self._duties = [
            asyncio.ensure_future(self._rebalance_for_ever()),
            asyncio.ensure_future(self._write_for_ever()),
        ]

    def rebalance_soon(self) -> None:
        """The group, the subscriptions or the topics have changed."""
        self._woken.set()

    async def _rebalance_for_ever(self) -> None:
        while not self._is_closed:
            self._woken.clear()
            is_balanced = True
            if self.subscriptions or self.rebalancer.table:
                try:
                    is_balanced = await self.rebalancer.rebalance()
                except Exception:  # the next one may work; without any the consumer stands still
                    _LOG.exception("a rebalance failed")
                    is_balanced = False
                await asyncio.sleep(UNBALANCED_INTERVAL_MS / 1000)
            if is_balanced:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._woken.wait(), REBALANCE_INTERVAL_MS / 1000)

    async def _write_for_ever(self) -> None:
        while not self._is_closed:
            await asyncio.sleep(self._write_interval_ms / 1000)
            try:
                await self._offsets.write(list(self._reads))
            except Exception:  # it comes round again
                _LOG.exception("offsets could not be written")

    # Which queues are read.

    def assignment(self) -> list[MessageQueue]:
        """The queues that are read, sorted."""
        return sorted(self._reads)

    def assign(self, queues: Collection[MessageQueue]) -> None:
        """Read these queues and no others; those that are read already go on where they are, of the others the offset is stored."""
        left = [queue for queue in self._reads if queue not in queues]
        for queue in left:
            self.end(queue)
        if left:
            self._leaving |= dict.fromkeys(left, asyncio.ensure_future(self._leave(left)))
        for queue in queues:
            if queue not in self._reads:
                self._begin(queue, ProcessQueue(self._clock_ms()), None)

    async def _leave(self, queues: list[MessageQueue]) -> None:
        """Store the offsets of queues that are read no more, then forget them."""
        try:
            await self._offsets.write(queues, wait=True)
        except Exception:
            _LOG.exception("the offsets of %d queues that are read no more were not stored", len(queues))
        for queue in queues:
            if self._leaving.get(queue) is asyncio.current_task():
                del self._leaving[queue]
            if queue not in self._reads:
                self._offsets.forget(queue)

    def begin(self, queue: MessageQueue, process_queue: ProcessQueue, offset: int) -> None:
        """For the rebalancer: read from the offset on."""
        self._begin(queue, process_queue, offset)

    def _begin(self, queue: MessageQueue, process_queue: ProcessQueue, offset: int | None) -> None:
        read = self._reads[queue] = _Read(process_queue, offset)
        self._start_reader(queue, read)

    def _start_reader(self, queue: MessageQueue, read: _Read) -> None:
        read.task = asyncio.ensure_future(self._pull_for_ever(queue, read))

    def end(self, queue: MessageQueue) -> None:
        """Read it no more; with auto_commit what was consumed of it is stored, what is buffered is forgotten."""
        read = self._reads.pop(queue, None)
        if read is None:
            return
        if self._settings.auto_commit:
            self._note_consumed(queue, read)
        read.process_queue.is_dropped = True
        if read.task is not None:
            read.task.cancel()

    def share_changed(self, topic: str, all_queues: list[MessageQueue], own: list[MessageQueue]) -> None:
        """For the rebalancer: the program may want to know."""
        if self._on_share is not None:
            self._on_share(topic, all_queues, own)

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Pull nothing more of them; what is buffered is still given out."""
        self._paused.update(queues)

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Pull again."""
        for queue in queues:
            self._paused.discard(queue)
            if queue in self._reads:
                self._reads[queue].resumed.set()

    # Pulling.

    async def _pull_for_ever(self, queue: MessageQueue, read: _Read) -> None:
        while self._is_reader(read):
            read.process_queue.last_pull_ms = self._clock_ms()
            if queue in self._paused:
                read.resumed.clear()
                with contextlib.suppress(TimeoutError):  # a rebalance gives up queues that are not pulled for long
                    await asyncio.wait_for(read.resumed.wait(), REBALANCE_INTERVAL_MS / 1000)
                continue
            if queue in self.rebalancer.table and queue.topic not in self.subscriptions:
                await asyncio.sleep(FULL_MS / 1000)  # unsubscribed: the next rebalance gives it up
                continue
            limits = self._settings.flow_limits()
            if self._buffered > self._settings.buffer_limit or read.process_queue.is_full(limits):
                await asyncio.sleep(FULL_MS / 1000)
                continue
            try:
                await self._pull(queue, read)
            except (ClientError, CorruptRecordError) as error:
                _LOG.log(logging.DEBUG if read.is_failing else logging.WARNING, "pulls of %s fail: %s", queue, error)
                read.is_failing = True
                is_busy = isinstance(error, ResponseError) and error.code == ResponseCode.FLOW_CONTROL
                await asyncio.sleep((BROKER_BUSY_MS if is_busy else FAILED_MS) / 1000)
            except Exception:  # a queue without pulls stands still
                _LOG.exception("a pull of %s failed; it is tried again", queue)
                await asyncio.sleep(FAILED_MS / 1000)

    @staticmethod
    def _is_reader(read: _Read) -> bool:
        """Whether the running task still is the queue's reader: a cancellation may come too late to be seen."""
        return read.task is asyncio.current_task() and not read.process_queue.is_dropped

    async def _pull(self, queue: MessageQueue, read: _Read) -> None:
        if read.next_offset is None:
            if queue in self._leaving:  # given up a moment ago: the broker does not know yet how far this consumer came
                await asyncio.wait([self._leaving[queue]])
            read.next_offset = await self.rebalancer.first_offset(queue)
        wanted = self._wanted(queue.topic)
        pull = Pull(
            queue,
            read.next_offset,
            wanted,
            self._settings.pull_limit,
            SUSPEND_MS,
            _ANY_BYTES,
            sends_subscription=True,
            is_lite=True,
        )
        result = await self._brokers.pull(pull, read.broker_id)
        messages = pulled_messages(result, queue, wanted, self._topic_of) if self._is_reader(read) else []
        if self._filtered is not None:
            messages = await self._filtered(messages, queue)
        if self._is_reader(read):
            self._take_in(queue, read, result, messages)

    def _take_in(self, queue: MessageQueue, read: _Read, result: PullResult, messages: list[MessageExt]) -> None:
        read.broker_id = result.suggested_broker_id
        read.is_failing = False
        read.next_offset = result.next_offset
        if result.status is PullStatus.OFFSET_ILLEGAL:
            _LOG.warning("the next offset of %s is not in the queue; going on at %d", queue, result.next_offset)
        if messages:
            read.process_queue.put(messages)
            self._buffer.append((read.process_queue, messages))
            self._buffered += len(messages)
            self._arrived.set()
        elif read.process_queue.count == 0:  # the program has nothing of it: what the filter left out is consumed too
            read.consumed_offset = result.next_offset

    def _wanted(self, topic: str) -> Subscription:
        return self.subscriptions.get(topic) or self.expressions.get(topic) or subscription(topic, "*", 0)

    def _topic_of(self, record: Record) -> str:
        return without_namespace(self._namespace, origin_topic(record))

    # What the program does.

    async def take(self, done: Sequence[MessageExt], limit: int, timeout_ms: int) -> list[MessageExt]:
        """The next messages, waited for; before that, `done` ones of earlier takes are consumed, and stored when it is time.

        `close` ends the waiting, with no messages.
        """
        self.finish(done)
        now_ms = self._clock_ms()
        if self._settings.auto_commit and is_time(now_ms, self._committed_ms, self._settings.auto_commit_interval_ms):
            self._committed_ms = now_ms
            self._note_all_consumed()
        taken = self._taken(limit)
        if not taken and timeout_ms > 0:
            deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
            while not taken and not self._is_closed and (left := deadline - asyncio.get_running_loop().time()) > 0:
                self._arrived.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._arrived.wait(), left)
                taken = self._taken(limit)
        return taken

    def _taken(self, limit: int) -> list[MessageExt]:
        taken: list[MessageExt] = []
        while self._buffer and len(taken) < limit and not self._is_closed:
            process_queue, messages = self._buffer.popleft()
            self._buffered -= len(messages)
            if process_queue.is_dropped:
                continue
            room = limit - len(taken)
            taken += messages[:room]
            if messages[room:]:
                self._buffer.appendleft((process_queue, messages[room:]))
                self._buffered += len(messages) - room
        return taken

    def finish(self, done: Sequence[MessageExt]) -> None:
        """The program has consumed these."""
        by_queue: dict[MessageQueue, list[MessageExt]] = {}
        for message in done:
            by_queue.setdefault(message.queue, []).append(message)
        for queue, messages in by_queue.items():
            read = self._reads.get(queue)
            if read is not None and any(map(read.process_queue.holds, messages)):
                read.consumed_offset = read.process_queue.remove(messages, self._clock_ms())

    def _note_all_consumed(self) -> None:
        for queue, read in self._reads.items():
            self._note_consumed(queue, read)

    def _note_consumed(self, queue: MessageQueue, read: _Read) -> None:
        if read.consumed_offset is not None:
            self._offsets.update(queue, read.consumed_offset, only_forward=False)

    async def commit(self, done: Sequence[MessageExt]) -> None:
        """Store what is consumed, with the brokers' word for it."""
        self.finish(done)
        self._note_all_consumed()
        await self._offsets.write(list(self._reads), wait=True)

    async def commit_offset(self, queue: MessageQueue, offset: int) -> None:
        """Store an offset of a queue that is read."""
        self._read_of(queue)
        self._offsets.update(queue, offset, only_forward=False)
        await self._offsets.write([queue], wait=True)

    async def committed(self, queue: MessageQueue) -> int | None:
        """The group's offset in a queue: this consumer's committed one, else the stored one."""
        known = self._offsets.known(queue)
        return known if known is not None else await self._offsets.stored(queue)

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on at an offset; what is buffered of the queue is forgotten. Raises SeekError, MessageQueueNotFoundError."""
        self._read_of(queue)
        first, end = await asyncio.gather(self._brokers.begin_offset(queue), self._brokers.end_offset(queue))
        if not first <= offset <= end:
            raise SeekError(queue, offset, first, end)
        read = self._read_of(queue)
        if read.task is not None:
            read.task.cancel()
        self._buffer = deque(each for each in self._buffer if each[0] is not read.process_queue)
        self._buffered = sum(len(messages) for _, messages in self._buffer)
        read.process_queue.clear()
        read.next_offset = read.consumed_offset = offset
        self._start_reader(queue, read)

    def _read_of(self, queue: MessageQueue) -> _Read:
        read = self._reads.get(queue)
        if read is None:
            raise MessageQueueNotFoundError(
                queue.topic, f"queue {queue.queue_id} of {queue.broker_name} is not assigned to this consumer"
            )
        return read

    def offsets(self, topic: str) -> dict[MessageQueue, int]:
        """This consumer's offsets in a topic (221)."""
        return self._offsets.snapshot(topic)

    def process_queues(self) -> dict[MessageQueue, tuple[ProcessQueue, int]]:
        """The queues that are read, and their consumed offsets."""
        return {queue: (read.process_queue, read.consumed_offset or 0) for queue, read in self._reads.items()}

    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Go on elsewhere in the queues of a topic that are read here (220)."""
        for queue in [queue for queue in self._reads if queue.topic == topic and queue in offsets]:
            await self.seek(queue, offsets[queue])

    async def close(self) -> None:
        """Pull no more; store what was committed and give the queues up, those too that are being given up already."""
        self._is_closed = True
        self._arrived.set()
        for task in self._duties:
            task.cancel()
        if self._duties:  # the first is the rebalance
            await asyncio.wait(self._duties[:1], timeout=UNBALANCED_INTERVAL_MS / 1000)
        queues = list(self._reads)
        if self._settings.auto_commit:
            self._note_all_consumed()
        for read in self._reads.values():
            read.process_queue.is_dropped = True
            if read.task is not None:
                read.task.cancel()
        await self._offsets.write(queues, wait=True)
        await self.rebalancer.give_up_all()
        if self._leaving:
            await asyncio.wait(set(self._leaving.values()))
        self._reads.clear()
