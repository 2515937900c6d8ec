"""Stores on a disk as the console shows them: no broker is asked, no lock is taken, nothing is changed."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from queue import Empty, LifoQueue

import numpy as np

from spark_mq.cli.message_lines import Unreadable, queue_messages
from spark_mq.cli.places import FoundMessage
from spark_mq.cli.sinks import status_in
from spark_mq.cli.stores import StorePlace, open_cluster
from spark_mq.console.views import (
    HALVES_LOOKED_AT,
    LONGEST_WAIT_S,
    OFFSETS_LOOKED_AT,
    OPEN_TRANSACTIONS,
    PAGE_BYTES,
    TIMED_MESSAGES,
    VIEWS_AT_A_TIME,
    BrokerState,
    BusyError,
    DelayLevel,
    OpenTransaction,
    Page,
    Sinks,
    TimedMessage,
    Timers,
    Transactions,
    one_of,
)
from spark_mq.lag.figures import LagReport
from spark_mq.lag.of_stores import StoreLag
from spark_mq.source.cluster import Cluster
from spark_mq.source.offsets import QueueId
from storage import Message, MessageStore
from storage.delay.schedule import read_plan
from storage.delay.timer_files import ALL_TICKS, TimerLog, TimerWheel
from storage.delay.timer_store import due_units
from storage.epoch_times import current_time_ms
from storage.errors import CorruptRecordError, OffsetOutOfRangeError
from storage.files.local_file_system import UNKNOWN, LocalFileSystem, disk_used_percent
from storage.files.remote import file_system_of
from storage.format.delay import due_times_ms, effective_precision_ms
from storage.queues.get import MAX_TRANSFER_BYTES
from storage.rules.delays import REAL_TOPIC, TIMER_TOPIC
from storage.rules.half_messages import HALF_TOPIC, OP_TOPIC, QUEUE_ID
from storage.tables.masters import read_timer_checkpoint
from storage.tables.sink_notes import load_batch_notes
from storage.transaction.half_queue import Halves, read_halves
from storage.transaction.outcomes import read_ended
from storage.transaction.progress import read_progress


class StoreViews:
    """Opened stores. A store is not for several threads, so each of VIEWS_AT_A_TIME has them opened for itself, and the lag, too.

    A page that looks for long holds up neither the others nor the samples.
    """

    is_cluster = False

    def __init__(self, path: str, conf: str | None = None, checkpoints: Sequence[str] = ()) -> None:
        """`checkpoints` are directories of Spark queries, shown beside the groups. Raises what `Cluster.open` raises."""
        self.name = path
        self._conf = conf
        self._free: LifoQueue[Cluster | None] = LifoQueue()
        for _ in range(VIEWS_AT_A_TIME):
            self._free.put(None)  # it is opened when the others are taken
        self._of_lag = open_cluster(path, conf)
        self._lag = StoreLag(self._of_lag, checkpoints=checkpoints)
        self._lag_lock = threading.Lock()

    @contextmanager
    def opened(self, wait_s: float | None = None) -> Iterator[StoreView]:
        try:
            cluster = self._free.get(timeout=LONGEST_WAIT_S)
        except Empty:
            raise BusyError from None
        try:
            if cluster is None:
                cluster = open_cluster(self.name, self._conf)
            else:
                cluster.refresh()
            yield StoreView(cluster)
        finally:
            self._free.put(cluster)

    def lags(self) -> LagReport:
        with self._lag_lock:
            return self._lag.look()

    def close(self) -> None:
        """Waits for the views that are open."""
        for _ in range(VIEWS_AT_A_TIME):
            if (cluster := self._free.get()) is not None:
                cluster.close()
        with self._lag_lock:
            self._of_lag.close()


class StoreView:
    """The view of stores."""

    def __init__(self, cluster: Cluster) -> None:
        self.place = StorePlace(cluster)
        self._cluster = cluster
        self._stores = cluster.stores
        self.troubles: Mapping[str, Exception] = {}
        self.incomplete: Collection[str] = ()

    def brokers(self) -> list[BrokerState]:
        names = self._cluster.cluster_names
        return [_state(names[name], name, store) for name, store in self._stores.items()]

    def newest_ms(self, queue: QueueId) -> int | None:
        store, end = self._store(queue), self._cluster.maximum(queue)
        position = store.position(queue.topic, queue.queue_id, end - 1)
        return None if position is None else position.store_time_ms

    def page(self, queue: QueueId, start: int, count: int) -> Page:
        store, (minimum, maximum) = self._store(queue), self._cluster.bounds(queue)
        start = min(max(start, minimum), maximum)
        end = min(start + count, maximum)
        found: list[Message | Unreadable] = []
        room = PAGE_BYTES
        for one in queue_messages(store, queue.topic, queue.queue_id, start, end):
            found.append(one)
            room -= one.size_bytes if isinstance(one, Message) else 0
            if room <= 0:
                end = one.queue_offset + 1
                break
        return Page(found, start, end)

    def tagged(self, queue: QueueId, start: int, count: int, tags: str, offsets: int = OFFSETS_LOOKED_AT) -> Page:
        store, (minimum, maximum) = self._store(queue), self._cluster.bounds(queue)
        start = at = min(max(start, minimum), maximum)
        found: list[Message | Unreadable] = []
        room = PAGE_BYTES
        while at < maximum and at - start < offsets and len(found) < count and room > 0:
            got = store.get(
                queue.topic, queue.queue_id, at, count - len(found), tags=tags, max_bytes=min(room, MAX_TRANSFER_BYTES)
            )
            found += got.messages
            room -= sum(each.size_bytes for each in got.messages)
            if got.next_begin_offset <= at:
                break
            at = got.next_begin_offset
        return Page(found, start, at)

    def by_message_id(self, msg_id: str) -> list[FoundMessage]:
        return self.place.by_message_id(msg_id, None)

    def here(self, topic: str) -> str:
        return topic

    def log_place(self, found: FoundMessage) -> str | None:
        place = found.message.commitlog_offset
        for file in self._stores[found.broker_name].log.files:
            if file.start <= place < file.end:
                return f"{file.path} at {place - file.start:,}"
        return None

    def members(self, group: str) -> None:
        return None

    def transactions(self) -> list[Transactions]:
        return [_transactions(name, store) for name, store in self._stores.items()]

    def timers(self) -> list[Timers]:
        now_ms = current_time_ms()
        return [_timers(name, store, now_ms) for name, store in self._stores.items()]

    def sinks(self) -> list[Sinks] | None:
        files = LocalFileSystem()
        if not all(files.exists(store.root) for store in self._stores.values()):
            return None
        return [
            Sinks(name, status_in(store), load_batch_notes(files, store.root)) for name, store in self._stores.items()
        ]

    def _store(self, queue: QueueId) -> MessageStore:
        store = self._stores[one_of(queue.broker_name, self._stores, "broker")]
        one_of(str(queue.queue_id), [str(each) for each in store.queue_ids(queue.topic)], f"queue of {queue.topic}:")
        return store


def _state(cluster_name: str, name: str, store: MessageStore) -> BrokerState:
    mode, plan = store.config.mode, store.plan
    trouble = None
    if plan.damage is not None:
        trouble = plan.damage.describe()
    elif plan.gaps:
        trouble = f"{len(plan.gaps)} stretch(es) of the log are missing"
    figures: dict[str, str | int | float | None] = {
        "log begins at": store.log.minimum,
        "log ends at": store.log_end,
        "bytes that no queue names yet": store.undispatched_bytes,
        "topics": len(store.topics()),
        "log files": len(store.log.files),
    }
    if LocalFileSystem().exists(store.root):
        used = disk_used_percent(store.root)
        figures["disk used"] = None if used == UNKNOWN else f"{used} %"
        figures["last stop before the console's start"] = (
            "clean" if plan.was_clean else "none: open in a broker, or killed"
        )
    role = mode.broker_role.lower().replace("_", " ")
    broker_id = store.config.settings.get("brokerId", "")
    number = int(broker_id) if broker_id.isdecimal() and len(broker_id) < 10 else None
    return BrokerState(cluster_name, name, number, role, store.root, None, figures, trouble)


def _transactions(name: str, store: MessageStore) -> Transactions:
    progress = read_progress(store)
    end, op_end = (store.max_offset(topic, QUEUE_ID) for topic in (HALF_TOPIC, OP_TOPIC))
    stop = min(end, progress.half_offset + HALVES_LOOKED_AT)
    halves = read_halves(store, progress.half_offset, stop)
    ended = read_ended(store, progress.op_offset, op_end).half_offsets
    return open_transactions(name, halves, ended, end - stop)


def open_transactions(name: str, halves: Halves, ended_offsets: np.ndarray, not_looked_at: int) -> Transactions:
    """The halves that no op message names, the oldest first."""
    waiting = halves.take(~np.isin(halves.queue_offsets, ended_offsets))
    first = waiting.take(np.arange(min(waiting.row_count, OPEN_TRANSACTIONS)))
    rows = zip(
        first.real_topics.to_pylist(),
        first.keys.to_pylist(),
        first.queue_offsets.tolist(),
        first.born_times_ms.tolist(),
        np.maximum(first.check_times, 0).tolist(),
        strict=True,
    )
    return Transactions(name, [OpenTransaction(*row) for row in rows], waiting.row_count, not_looked_at)


def _timers(name: str, store: MessageStore, now_ms: int) -> Timers:
    plan = read_plan(store, now_ms)
    levels = [
        DelayLevel(each.level, each.maximum - each.start, each.end - each.start, each.next_due_ms)
        for each in plan.levels
        if each.maximum > each.start
    ]
    levels += [DelayLevel(level, count, None, None) for level, count in plan.stranded.items()]
    figures, timed = _timer(store)
    return Timers(name, levels, figures, timed)


def _timer(store: MessageStore) -> tuple[dict[str, str | int | None], list[TimedMessage]]:
    """Figures of the timer, and its next messages. Wheel and log belong to the broker and may change meanwhile."""
    files = file_system_of(store.root)
    end = store.max_offset(TIMER_TOPIC, 0)
    if not isinstance(files, LocalFileSystem) or not (end or files.exists(f"{store.root}/timerwheel")):
        return {}, []
    settings, checkpoint = store.config.timer, read_timer_checkpoint(files, store.root)
    wheel = TimerWheel(files, store.root)
    precision_ms = effective_precision_ms(settings.timer_precision_ms)
    slots = wheel.waiting(checkpoint.last_read_time_ms // precision_ms, ALL_TICKS)
    figures: dict[str, str | int | None] = {
        "waiting in the wheel": int(slots["count"].sum()),
        "not yet in the wheel": max(0, end - checkpoint.queue_offset),
        "delivered up to": checkpoint.last_read_time_ms or None,
    }
    enough = int(np.searchsorted(np.cumsum(slots["count"]), TIMED_MESSAGES)) + 1
    ticks = slots["tick"][:enough]
    if not len(ticks):
        return figures, []
    log = TimerLog(files, store.root, settings.mapped_file_size_timer_log)
    try:
        for _ in log.walk(checkpoint.log_position):
            pass
        due = due_units(wheel, log, int(ticks[0]), int(ticks[-1]) + 1, precision_ms)
        units = due.units[:TIMED_MESSAGES]
        return figures, [
            _timed(store, place, due_ms)
            for place, due_ms in zip(units["commitlog_offset"].tolist(), due_times_ms(units).tolist(), strict=True)
        ]
    finally:
        log.close()


def _timed(store: MessageStore, commitlog_offset: int, due_ms: int) -> TimedMessage:
    try:
        message = store.message_by_commitlog_offset(commitlog_offset)
    except (CorruptRecordError, OffsetOutOfRangeError):
        return TimedMessage(due_ms, None, None, "")
    return TimedMessage(due_ms, message.properties.get(REAL_TOPIC), message.unique_key, message.msg_id)
