"""Requests that wait in a bounded queue, and run on the event loop or in the pool's threads.

A request that waited longer than its pool's limit is refused when its turn comes; while all threads are busy, within ten milliseconds
after the limit (Java: BrokerFastFailure.cleanExpiredRequest). If the queue is full, a request is refused at once.
Departure: time in which this process did not run, because the machine was busy with others, does not count. The event loop notices it
by a timer of ten milliseconds that comes late. Java counts that time, and gets more of the machine by its many threads.
Departure: a request whose peer would get no refusal, such as a one-way one, is run however late it is. Java drops it.

A pool without threads runs requests on the loop, a few milliseconds at a time, so that sockets are served in between. A pool whose
requests are mostly quick does so, too: passing a request to a thread, and its answer back, often costs more than the answer. After a
request that takes long, for example one that waits for a disk, the requests of the next second go to the threads.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import NamedTuple, TypeAlias

from spark_mq.remoting import RemotingCommand
from spark_mq.remoting.frames import RequestRun, RunAnswers, RunFields
from spark_mq.remoting_server.peer import Peer
from storage.pending import Pending

_TURN_SECONDS = 0.005
_SLOW_SECONDS = 1.0
_CLEANING_SECONDS = 0.01
_STARTING_SECONDS = 0.1
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """A pool by the name that Java's watermarks have for its queue."""

    name: str
    capacity: int
    """Limit of the queue."""
    thread_count: int = 0
    """0 = they run on the event loop, and must not block."""
    wait_limit_ms: int | None = None
    """None = they wait for ever."""
    quick_seconds: float | None = None
    """They run on the loop as long as none takes longer than that; None = all run in threads, where there are any."""
    together: int = 1
    """So many that wait are taken by one thread, one after the other, before it does what they have left for later (`afterwards`)."""


class Task(NamedTuple):
    """A request in a queue: what runs it, what refuses it with a remark, and when it came.

    `refuse` returns whether it did: if the peer would get no refusal, the request must be run.
    """

    run: Callable[[], None]
    refuse: Callable[[str], bool]
    came_at: float
    """By the pool's clock."""
    request_count: int = 1
    """Number of requests."""


class RequestPool:
    """One queue and who works it off. `submit` is for the loop's thread; what runs may be on any."""

    def __init__(self, settings: PoolSettings, gather: Callable[[], None] | None = None) -> None:
        """`gather` is called by a thread behind the requests that it has taken together, and before what they have left for later:
        until it returns, those that come wait for each other.
        """
        self.settings = settings
        self._gather = gather
        self._queue: deque[Task] = deque()
        self._unheard: deque[Task] = deque()
        """Checked requests, older than those in the queue: they must be run, because their peers would get no refusal."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_due = False
        self._is_cleaning = False
        self._cleaning_due = 0.0
        self._cleaning_cpu = 0.0
        self._stalled_seconds = 0.0
        """In which the process did not get to run."""
        self._is_start_refused = False
        self._may_take: SimpleQueue[None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._own = threading.local()
        self._is_taking = False
        self._running: list[None] = []
        """One for each that runs: threads append and pop without a lock."""
        self._slow_until = 0.0
        self._is_closed = False

    @property
    def name(self) -> str:
        """The queue's name."""
        return self.settings.name

    @property
    def size(self) -> int:
        """Number of waiting requests."""
        return len(self._unheard) + len(self._queue)

    @property
    def is_busy(self) -> bool:
        """Whether something waits or runs."""
        return self.size > 0 or bool(self._running)

    @property
    def is_closed(self) -> bool:
        """Whether it takes nothing more."""
        return self._is_closed

    def head_wait_ms(self) -> int:
        """The wait of the first request. Java: headSlowTimeMills."""
        return max(self._head_age_ms(self._unheard), self._head_age_ms(self._queue))

    def submit(self, run: Callable[[], None], refuse: Callable[[str], bool], count: int = 1) -> bool:
        """Takes a request, or so many that count as one in the queue; False where the queue is full or the pool closed."""
        if self.size >= self.settings.capacity or self._is_closed:
            return False
        self._queue.append(Task(run, refuse, self._now(), count))
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        if self.settings.thread_count and not self._is_quick:
            if not self._is_taking:
                self._is_taking = self.settings.together > 1
                self._wake_a_thread()
            self._clean_soon()
        elif not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._run_some)
        return True

    def afterwards(self, call: Callable[[], None]) -> None:
        """To call after the requests that run together with this one, in their thread; at once where none run together."""
        later: list[Callable[[], None]] | None = getattr(self._own, "later", None)
        if later is None:
            call()
        else:
            later.append(call)

    def refuse_all(self, remark: Callable[[int, int], str]) -> int:
        """Empties the queue: each gets the remark of its waiting time in ms and of the queue's size; how many they were.

        Those that cannot be refused stay.
        """
        count = 0
        kept = 0
        while (task := _first(self._queue)) is not None:
            if self._refuse(task, remark(self._age_ms(task), self.size)):
                count += 1
            else:
                self._unheard.append(task)
                kept += 1
        self._wake_for(kept)
        return count

    def close(self) -> None:
        """Takes nothing more, and lets the threads end when the queue is empty."""
        self._is_closed = True
        for _ in self._threads:
            self._may_take.put(None)

    # On the loop.

    @property
    def _is_quick(self) -> bool:
        """Whether requests are run on the loop now, though there are threads: none runs there, and none was slow in the last second."""
        quick = self.settings.quick_seconds
        return quick is not None and not self._running and time.monotonic() >= self._slow_until

    def _run_some(self) -> None:
        self._is_due = False
        began = now = time.monotonic()
        longest = self.settings.quick_seconds
        while now - began < _TURN_SECONDS and (task := self._taken()) is not None:
            self._run(task)
            took, now = time.monotonic() - now, time.monotonic()
            if longest is not None and took > longest:
                self._slow_until = now + _SLOW_SECONDS
                for _ in range(self.size):
                    self._wake_a_thread()
                return
        if self.size and self._loop is not None:
            self._is_due = True
            self._loop.call_soon(self._run_some)

    def _clean_soon(self) -> None:
        if not self._is_cleaning and self.settings.wait_limit_ms is not None and self._loop is not None:
            self._cleaning_due = time.monotonic() + _CLEANING_SECONDS
            self._cleaning_cpu = time.process_time()
            self._is_cleaning = True
            self._loop.call_later(_CLEANING_SECONDS, self._clean)

    def _overdue_seconds(self, now: float) -> float:
        """For how long the loop has not run since it was to look, but for what this process has computed meanwhile."""
        if not self._is_cleaning or now <= self._cleaning_due + _CLEANING_SECONDS:
            return 0.0
        idle = now - self._cleaning_due + _CLEANING_SECONDS - (time.process_time() - self._cleaning_cpu)
        return max(0.0, min(now - self._cleaning_due - _CLEANING_SECONDS, idle))

    def _now(self) -> float:
        """In seconds, while this process runs."""
        now = time.monotonic()
        return now - self._stalled_seconds - self._overdue_seconds(now)

    def _age_ms(self, task: Task) -> int:
        return int((self._now() - task.came_at) * 1_000)

    def _head_age_ms(self, tasks: deque[Task]) -> int:
        try:
            return max(0, self._age_ms(tasks[0]))
        except IndexError:
            return 0

    def _is_late(self, task: Task) -> bool:
        limit_ms = self.settings.wait_limit_ms
        return limit_ms is not None and self._age_ms(task) > limit_ms

    def _clean(self) -> None:
        """Try to refuse each late request once: one that cannot be refused now never can."""
        self._stalled_seconds += self._overdue_seconds(time.monotonic())
        self._is_cleaning = False
        kept = 0
        while self._head_age_ms(self._queue) > (self.settings.wait_limit_ms or 0) and (task := _first(self._queue)):
            is_late = self._is_late(task)  # or a thread has taken the late one meanwhile
            if is_late and self._refuse_late(task):
                continue
            kept += 1
            if is_late:
                self._unheard.append(task)
            else:
                self._queue.appendleft(task)
                break
        self._wake_for(kept)
        if self._queue:
            self._clean_soon()

    # In threads.

    def _wake_a_thread(self) -> None:
        self._may_take.put(None)
        # As Java's pools of a fixed size.
        if len(self._threads) < self.settings.thread_count and not self._is_start_refused:
            self._start_a_thread()

    def _start_a_thread(self) -> None:
        """If the system refuses a thread, try again a little later; requests wait meanwhile."""
        thread = threading.Thread(target=self._work, name=f"{self.name}-{len(self._threads)}", daemon=True)
        try:
            thread.start()
        except (RuntimeError, MemoryError) as error:
            _LOG.error("a thread of pool %s is not started: %s", self.name, error)
            if self._loop is not None:
                self._is_start_refused = True
                self._loop.call_later(_STARTING_SECONDS, self._start_again)
        else:
            self._threads.append(thread)

    def _start_again(self) -> None:
        self._is_start_refused = False
        if self.size:
            self._start_a_thread()

    def _work(self) -> None:
        while True:
            self._may_take.get()
            self._running.append(None)  # before anything is taken: a server that ends asks whether all is answered
            if self.settings.together > 1:
                self._run_together()
            else:
                self._run_one()
            self._running.pop()
            if self._is_closed and not self.size:
                return

    def _run_one(self) -> None:
        if (task := self._taken()) is not None:
            self._run(task)
            if self._may_take.empty():  # fewer tokens than requests were given
                self._wake_for(self.size)

    def _run_together(self) -> None:
        """Those that wait, and then what they have left for later. While one thread takes requests, none is woken for new ones."""
        later: list[Callable[[], None]] = []
        self._own.later = later
        count = 0
        while count < self.settings.together and (task := self._taken()) is not None:
            self._run(task)
            count += task.request_count
        if self._gather is not None and later:
            try:
                self._gather()
            except Exception:
                _LOG.exception("requests of pool %s failed together", self.name)
        self._is_taking = False
        self._wake_for(self.size)
        self._own.later = None
        for call in later:
            try:
                call()
            except Exception:
                _LOG.exception("a request of pool %s failed", self.name)

    # In both.

    def _wake_for(self, count: int) -> None:
        """So many wait, and threads that were woken for them may have found nothing. One that has run one looks for the next itself."""
        if self.settings.together > 1:
            if self._threads and self.size and not self._is_taking:
                self._is_taking = True
                self._may_take.put(None)
            return
        for _ in range(min(count, len(self._threads) - self._may_take.qsize())):
            self._may_take.put(None)

    def _taken(self) -> Task | None:
        return _first(self._unheard) or _first(self._queue)

    def _run(self, task: Task) -> None:
        if self._is_late(task) and self._refuse_late(task):
            return
        self._running.append(None)
        try:
            task.run()
        except Exception:
            _LOG.exception("a request of pool %s failed", self.name)
        finally:
            self._running.pop()

    def _refuse_late(self, task: Task) -> bool:
        return self._refuse(task, busy_remark("TIMEOUT_CLEAN_QUEUE", self._age_ms(task), self.size))

    def _refuse(self, task: Task, remark: str) -> bool:
        try:
            return task.refuse(remark)
        except Exception:  # the others' turn comes all the same
            _LOG.exception("a request of pool %s is refused without an answer", self.name)
            return True


def busy_remark(why: str, waited_ms: int, queue_size: int) -> str:
    """The remark for a request that was taken out of a queue. Java: BrokerFastFailure."""
    waited = f"period in queue: {waited_ms}ms, size of queue: {queue_size}"
    return f"[{why}]broker busy, start flow control for a while, {waited}"


def watermark(pools: Iterable[RequestPool]) -> str:
    """How many wait in each queue, and for how long the first has waited."""
    texts = [f"{pool.name}QueueSize:{pool.size} {pool.name}QueueSlowTime:{pool.head_wait_ms()}" for pool in pools]
    return f"[WATERMARK] {' '.join(texts)}"


def _first(tasks: deque[Task]) -> Task | None:
    try:
        return tasks.popleft()
    except IndexError:
        return None


PendingAnswer: TypeAlias = Pending[RemotingCommand | None]
PendingAnswers: TypeAlias = Pending[RunAnswers]
Answering: TypeAlias = Callable[[RemotingCommand, Peer], RemotingCommand | PendingAnswer | None]
"""The answer to a request of a peer. None: it is answered later with `Peer.respond`, or never.

A pending one is settled when the requests beside this one have been looked at: first in the thread of the pool, then on the loop.
Both may raise RequestRefusedError, which says what is answered; any other error is answered as SYSTEM_ERROR with its text.
"""


AnsweringRun: TypeAlias = Callable[[RequestRun, Peer], PendingAnswers | None]
"""The answers to requests that look alike. None, with nothing done: each must be answered by itself."""


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Processor:
    """Who answers, and where the requests wait. With `rejects` they are turned away unread while it says so."""

    answer: Answering
    pool: RequestPool
    rejects: Callable[[], bool] = _never
    answer_run: AnsweringRun | None = None
    """None: requests of this code do not come in runs."""


@dataclass(frozen=True, slots=True)
class Processors:
    """By code; a code that is not there goes to `default`, or is not supported."""

    table: Mapping[int, Processor] = field(default_factory=dict)
    default: Processor | None = None
    run_fields: Mapping[int, RunFields] = field(default_factory=dict)
    """Fields of the codes that may come in runs."""

    def find(self, code: int) -> Processor | None:
        """Who answers requests of the code."""
        return self.table.get(code, self.default)

    def pools(self) -> tuple[RequestPool, ...]:
        """All pools, each once."""
        every = [*self.table.values(), *([] if self.default is None else [self.default])]
        return tuple(dict.fromkeys(processor.pool for processor in every))
