"""Periodic duties of a broker, each in its own thread: the same code as the jobs, on the open store.

Java: ScheduleMessageService, TimerMessageStore, TransactionalMessageCheckService, DefaultMessageStore.addScheduleTask,
TopicQueueMappingCleanService, EscapeBridge.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from spark_mq.broker.broker import Broker
from spark_mq.broker.broker_metrics import TimerState
from spark_mq.broker_server.escape_bridge import Escapes
from spark_mq.broker_server.static_topics import CLEAN_MS
from storage.delay.schedule import deliver_due
from storage.delay.timer_store import deliver_timed
from storage.epoch_times import current_time_ms, steady_time_ms
from storage.files.local_file_system import LocalFileSystem
from storage.put.store_writer import StoreWriter
from storage.retention import ExpiryPlan, apply_expiry, delete_derived, plan_run, prepare_expiry
from storage.service.put_service import PutService
from storage.store import MessageStore
from storage.tables.put_statistics import NO_QUEUE, PutStatistics

TICK_MS = 100
LEVELS_MS = 200
TIMER_MS = 500
RELIEF_MS = 100
"""Java looks each 10 ms whether a put has held the log for a second."""
_LOG = logging.getLogger(__name__)


class _Delivered(PutStatistics):
    """What one turn delivers. Its puts are noted for the broker's metrics after it: an error of these must not fail a put."""

    __slots__ = ("_puts",)

    def __init__(self) -> None:
        super().__init__()
        self._puts: list[tuple[Sequence[tuple[str, int]], np.ndarray, np.ndarray]] = []

    def put_columns(
        self,
        queues: Sequence[tuple[str, int]],
        queue_codes: np.ndarray,
        sizes_bytes: np.ndarray,
        *,
        are_single: bool = False,
    ) -> None:
        super().put_columns(queues, queue_codes, sizes_bytes, are_single=are_single)
        self._puts.append((queues, queue_codes, sizes_bytes))

    def note(self, delivered: Callable[[str, np.ndarray], None]) -> None:
        """Call it with each topic and the sizes of its records."""
        for queues, queue_codes, sizes_bytes in self._puts:
            for code in np.unique(queue_codes).tolist():
                delivered(queues[code][0], sizes_bytes[queue_codes == code])


class Duties:
    """The duties of one broker, from `start` to `close`."""

    def __init__(
        self,
        service: PutService,
        broker: Broker,
        *,
        check_interval_ms: int,
        clean_interval_ms: int,
        relieve: Callable[[], None] | None = None,
        clean_mappings: Callable[[int], None] | None = None,
        escapes: Escapes | None = None,
        clock: Callable[[], int] = current_time_ms,
    ) -> None:
        """`relieve` refuses requests that wait behind a put that holds the log for too long. `clean_mappings` cleans static
        topics. `escapes` puts what a slave in its master's place has due into other masters' logs; it is closed with this.
        """
        self._escapes = escapes
        self._service = service
        self._broker = broker
        self._clock = clock
        self._ending = threading.Event()
        self._checking = threading.Lock()
        due: dict[str, tuple[int, Callable[[], None]]] = {}
        turns = {"tick": (TICK_MS, self._tick), "retention": (clean_interval_ms, self._expire)}
        if not broker.parts.store.is_slave:  # what these put, a slave gets from its master
            due["transaction check"] = (check_interval_ms, self._check_transactions)
            due["delay levels"] = (LEVELS_MS, self._deliver_levels)
            if service.config.timer.timer_wheel_enable:
                due["timer"] = (TIMER_MS, self._deliver_timed)
            if clean_mappings is not None:
                turns["static topics"] = (CLEAN_MS, partial(self._clean_mappings, clean_mappings))
            if relieve is not None:
                turns["fast failure"] = (RELIEF_MS, relieve)
        elif escapes is not None:
            turns["delay levels"] = (LEVELS_MS, partial(self._escape, escapes.deliver_levels))
            turns["transaction check"] = (check_interval_ms, partial(self._escape, escapes.send_halves))
            if service.config.timer.timer_wheel_enable:
                turns["timer"] = (TIMER_MS, partial(self._escape, escapes.deliver_timed))
        self._due = {name: turn for name, (_, turn) in due.items()}
        self._threads = [
            threading.Thread(target=partial(self._work, name, interval_ms / 1_000, turn), name=name, daemon=True)
            for name, (interval_ms, turn) in (turns | due).items()
        ]

    def start(self, *, delivers: bool = True) -> None:
        """Begins. Without `delivers` what puts messages does not: it begins with another call."""
        for thread in self._threads:
            if thread.ident is None and (delivers or thread.name not in self._due):
                thread.start()

    def catch_up(self) -> None:
        """One turn of delay levels, timer and transaction check, now, by the caller: for a clock that was moved. A slave has none.

        Raises what a turn raises.
        """
        for turn in self._due.values():
            turn()

    def close(self) -> None:
        """Ends when what runs is done."""
        self._ending.set()
        if self._escapes is not None:
            self._escapes.end_soon()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        if self._escapes is not None:
            self._escapes.close()

    def _work(self, name: str, interval_s: float, turn: Callable[[], None]) -> None:
        logged: str | None = None
        while not self._ending.wait(interval_s):
            try:
                turn()
            except Exception as error:  # whatever it is, the next turn is made
                if (text := f"{type(error).__name__}: {error}") != logged:
                    _LOG.exception("%s of %s failed; it is tried again", name, self._service.root)
                logged = text
            else:
                if logged is not None:
                    _LOG.warning("%s of %s goes on", name, self._service.root)
                logged = None

    def _tick(self) -> None:
        self._broker.tick(self._clock())

    def _deliver_levels(self) -> None:
        metrics = self._broker.parts.traffic.metrics
        self._deliver(deliver_due, None if metrics is None else metrics.delivered)

    def _deliver_timed(self) -> None:
        metrics = self._broker.parts.traffic.metrics
        if metrics is None:
            self._deliver(deliver_timed)
            return

        def deliver(store: MessageStore, now_ms: int) -> None:
            report = deliver_timed(store, now_ms, notes=metrics)
            metrics.timer = TimerState(report.pending, report.due_within) if report.due_within else TimerState()

        self._deliver(deliver)

    def _deliver(
        self,
        deliver: Callable[[MessageStore, int], object],
        delivered: Callable[[str, np.ndarray], None] | None = None,
    ) -> None:
        """Each delivered message is a put, by its topic, in the broker's figures. Java: enableScheduleMessageStats.

        `delivered` is called with each topic and the sizes of its records.
        """
        noted = None if delivered is None else _Delivered()
        counts = PutStatistics() if noted is None else noted
        try:
            with self._service.exclusive() as store:
                others, store.writer.statistics = store.writer.statistics, counts
                began_ms = steady_time_ms()
                try:
                    deliver(store, self._clock())
                finally:
                    store.writer.statistics = others
                    self._count(counts, steady_time_ms() - began_ms)
        finally:
            if noted is not None and delivered is not None:
                noted.note(delivered)

    def _count(self, counts: PutStatistics, took_ms: int) -> None:
        """What one turn has delivered; each message took an equal part of its time."""
        for topic, found in counts.topics.items():
            self._service.times.add(took_ms // counts.broker_put_nums, found.messages)
            self._broker.parts.traffic.puts.put(topic, NO_QUEUE, found.messages, found.size_bytes, found.messages)

    def _escape(self, turn: Callable[[int], None]) -> None:
        turn(self._clock())

    def _check_transactions(self) -> None:
        with self._checking:  # a turn by `catch_up` asks no producer twice
            self._broker.check_transactions(self._clock())

    def _clean_mappings(self, clean: Callable[[int], None]) -> None:
        clean(self._clock())

    def _expire(self) -> None:
        parts = self._broker.parts
        config = parts.store.config.retention
        with parts.clients.lock:
            cleans_left = parts.store.manual_cleans_left
            parts.store.manual_cleans_left = max(0, cleans_left - 1)
        with self._service.exclusive() as store:
            files = store.writer.file_system
            assert isinstance(files, LocalFileSystem)
            plan = plan_run(store, files, self._clock(), config, is_requested=cleans_left > 0)
            self._broker.set_writable(is_writable=not plan.occasion.is_full)  # also if nothing can be deleted
            writer, is_trimmed = store.writer, bool(plan.log_files) and store.writer.is_of_group
            if is_trimmed:
                prepare_expiry(writer, plan)
            else:
                apply_expiry(writer, plan, config, sleep=lambda seconds: None)
        if is_trimmed:
            self._trim(writer, files, plan)
        if not plan.is_empty:
            parts.store.list_files()

    def _trim(self, writer: StoreWriter, files: LocalFileSystem, plan: ExpiryPlan) -> None:
        """A group's member deletes files of its log: outside of the put lock, as its thread may be busy, and files are large."""
        writer.trim_log(plan.minimum)
        with self._service.exclusive() as store:
            delete_derived(store, files, store.config.retention, now_ms=self._clock())
            begin = store.log.minimum
        if begin > plan.log_files[0].start:  # a member keeps what is not durable on its disk
            _LOG.log(
                logging.WARNING if plan.occasion.whatever_age else logging.INFO,
                "%s: files of the log are deleted, because %s; it begins at %d now",
                *(writer.root, "; ".join(plan.occasion.reasons), begin),
            )
