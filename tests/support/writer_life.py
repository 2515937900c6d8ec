"""One life of a process that writes into a store until it is killed, and tells what it asks for and what it was answered.

    recovery · puts of every kind, batches of a sink, readers, expiry, checkpoints, release or close and opening again · …
    recovery · puts of several threads through a `PutService` · close · …

It tells lines of JSON: `ask` before a put, `ack` when it has returned (by key: queue id, queue offset, place), `seen` of what a
reader was served. Bodies follow from key and size, so that no line tells them.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import pyarrow as pa

from storage import Message, MessageStore, StoreConfig, failpoints, open_store
from storage.batch.commit import commit_batch
from storage.batch.ledger import Batch
from storage.batch.staged_segment import StagedBatch
from storage.files.local_file_system import LocalFileSystem
from storage.pending import PutStatus
from storage.retention import Occasion, apply_expiry, plan_expiry
from storage.rules.inner_messages import InnerMessage
from storage.service.put_service import PutService
from storage.settings.load import load_config
from storage.settings.nouns import FlushConfig
from tests.support.stage_rows import BatchRows, stage
from tests.support.warm_process import WarmProcess, serve

TOPICS, QUEUES = ("orders", "bills"), 2
SINK = "sink"
FULL_DISK = Occasion(("the disk is full",), whatever_age=True)
_SIZES = (5, 40, 700, 3_000)
_MOST_BYTES = 128 << 10
"""Of log: with more, a life begins with an expiry. Who looks at what is left looks at all of it."""
_TURNS = 40
_THREADS = 3
_PUTS_OF_A_THREAD = 25


@dataclass(frozen=True, slots=True)
class LifePlan:
    """What a life is to do. All of it follows from that, but for the turns of threads."""

    root: str
    life: int
    seed: int
    now_ms: int
    """When it begins; the process lives by a clock of its own."""
    sync_flush: bool = False
    has_pool: bool = False
    """transientStorePoolEnable: acknowledged before it is written."""
    threads: bool = False
    """Several threads put, through the service."""
    first: str = ""
    """What it does first, a method of `_Life` without its underscore."""
    next_batch: int = 0
    """Of the sink: the one that is not known to be committed."""
    fault: str | None = None
    """A planted one, of FAULTS."""


def body_of(key: str, size_bytes: int) -> bytes:
    return key.encode().ljust(size_bytes, b".")


def live(plan: LifePlan, tell: Callable[[str], None]) -> None:
    """The whole life."""
    _Life(plan, tell).run()


FAULTS = ("acknowledges first",)
"""What a judge must notice: it tells that a put has returned before it begins."""


class _Life:
    def __init__(self, plan: LifePlan, tell: Callable[[str], None]) -> None:
        self._plan = plan
        self._tell = tell
        self._random = Random(f"{plan.seed}/{plan.life}")
        self._times = itertools.count(plan.now_ms)
        self._keys = itertools.count()
        self._config = self._configured()
        self._next_batch = plan.next_batch
        self._store: MessageStore | None = None
        self._actions: Mapping[str, Callable[[], None]] = {
            "put": self._put,
            "put_batch": self._put_batch,
            "put_inner": self._put_inner,
            "commit": self._commit,
            "consume": self._consume,
            "expire": self._expire,
            "checkpoint": lambda: self._open().writer.checkpoint(),
            "flush": lambda: self._open().flush(),
            "release": lambda: self._let_go(close=False),
            "close": lambda: self._let_go(close=True),
            "serve": self._serve,
        }

    def run(self) -> None:
        store = self._open()
        if store.log_end - store.log.minimum > _MOST_BYTES:
            self._expire()
        if self._plan.first:
            self._actions[self._plan.first]()
        if self._plan.threads:
            self._serve()
        kinds = {
            "put": 6,
            "put_batch": 4,
            "put_inner": 3,
            "commit": 3,
            "consume": 3,
            "release": 2,
            "close": 1,
            "flush": 1,
        }
        kinds |= {"expire": 1, "checkpoint": 1}
        for name in self._random.choices(list(kinds), list(kinds.values()), k=_TURNS):
            self._actions[name]()
        self._let_go(close=self._random.random() < 0.3)

    def _configured(self) -> StoreConfig:
        """The store's own, and what each life may choose."""
        config = load_config(self._plan.root, read_bytes=LocalFileSystem().read_file)
        choice = self._random.choice
        flush = FlushConfig(
            flush_disk_type="SYNC_FLUSH" if self._plan.sync_flush else "ASYNC_FLUSH",
            flush_interval_commit_log=choice((1, 10, 500)),
            flush_commit_log_least_pages=choice((0, 1, 4)),
            flush_commit_log_timed=choice((False, True)),
            wake_flush_when_put_message=choice((False, True)),
            transient_store_pool_enable=self._plan.has_pool,
            commit_interval_commit_log=choice((1, 20, 200)),
            commit_commit_log_least_pages=choice((1, 4)),
            wake_commit_when_put_message=choice((False, True)),
            flush_interval_consume_queue=choice((5, 100)),
            flush_consume_queue_least_pages=choice((0, 2)),
            flush_consume_queue_thorough_interval=choice((1, 60_000)),
        )
        return replace(config, flush=flush)

    def _now_ms(self) -> int:
        return next(self._times)

    def _open(self) -> MessageStore:
        if self._store is None:
            self._store = open_store(
                self._plan.root, config=self._config, read_only=False, create=True, clock=self._now_ms
            )
        return self._store

    def _let_go(self, *, close: bool) -> None:
        store, self._store = self._store, None
        if store is not None and close:
            store.close()
        elif store is not None:
            store.release()

    # Putting

    def _put(self) -> None:
        (asked,) = self._ask(1, "alone")
        key, topic, queue_id, size = asked
        result = self._open().put(topic, body_of(key, size), keys=key, queue_id=queue_id, queue_count=QUEUES)
        self._acknowledge([key], [(result.queue_id, result.queue_offset, result.commitlog_offset)])

    def _put_batch(self) -> None:
        asked = self._ask(self._random.randint(1, 8), "alone")
        results = self._open().put_batch(_table(asked), queue_count=QUEUES)
        self._acknowledge([one[0] for one in asked], _places(results))

    def _put_inner(self) -> None:
        asked = self._ask(self._random.randint(1, 4), "alone")
        results = self._open().put_inner([self._inner(*one) for one in asked])
        self._acknowledge([one[0] for one in asked], _places(results))

    def _serve(self) -> None:
        """Threads that put through a service, which closes the store."""
        store, self._store = self._open(), None
        self._say(serving=True)
        with PutService(store) as service, ThreadPoolExecutor(_THREADS) as threads:
            for ended in [threads.submit(self._put_many, service, number) for number in range(_THREADS)]:
                ended.result()
        self._say(serving=False)

    def _put_many(self, service: PutService, number: int) -> None:
        random = Random(f"{self._plan.seed}/{self._plan.life}/{number}")
        for _ in range(_PUTS_OF_A_THREAD):
            asked = self._ask(random.randint(1, 4), f"thread {number}", random)
            keys = [one[0] for one in asked]
            if random.random() < 0.5:
                receipt = service.put_batch(_table(asked), queue_count=QUEUES)
            else:
                receipt = service.put_inner([self._inner(*one) for one in asked])
            if receipt.status is PutStatus.PUT_OK:
                self._acknowledge(keys, _places(receipt.places))
            elif receipt.status is PutStatus.OS_PAGE_CACHE_BUSY:
                self._say(refused=keys)

    def _ask(self, count: int, producer: str, random: Random | None = None) -> list[tuple[str, str, int, int]]:
        """Messages that are told of: key, topic, queue id, size of the body."""
        choice = (random or self._random).choice
        life = self._plan.life
        asked = [
            (f"{life}.{next(self._keys)}", choice(TOPICS), choice(range(QUEUES)), choice(_SIZES)) for _ in range(count)
        ]
        self._say(ask=asked, producer=f"life {life}, {producer}")
        if self._plan.fault == "acknowledges first":
            self._say(ack=[[one[0], one[2], None, None] for one in asked])
        return asked

    def _acknowledge(self, keys: Sequence[str], places: Iterable[tuple[int, int, int]]) -> None:
        self._say(ack=[[key, *place] for key, place in zip(keys, places, strict=True)])

    def _say(self, **told: Any) -> None:
        self._tell(json.dumps(told))

    def _inner(self, key: str, topic: str, queue_id: int, size: int) -> InnerMessage:
        properties = {"KEYS": key, "UNIQ_KEY": f"unique-{key}", "TAGS": topic}
        return InnerMessage(
            topic=topic,
            queue_id=queue_id,
            body=body_of(key, size),
            properties=properties,
            born_time_ms=self._plan.now_ms,
        )

    # Batches

    def _commit(self) -> None:
        """The sink's next batch; of one whose commit was killed the same rows again."""
        store, number = self._open(), self._next_batch
        rows = batch_rows(number)
        self._say(batch=number)
        ends = {(topic, queue_id): store.max_offset(topic, queue_id) for topic in TOPICS for queue_id in range(QUEUES)}
        staged = stage(LocalFileSystem(), self._plan.root, store.config, rows, queue_count=QUEUES)
        outcome = commit_batch(store.writer, StagedBatch(rows.batch, staged, dict.fromkeys(TOPICS, QUEUES)))
        self._next_batch += 1
        places = []
        for (topic, queue_id), end in ends.items() if not outcome.already_done else ():
            places += [
                (message.keys[0], queue_id, message.queue_offset, message.commitlog_offset)
                for message in _messages(store, topic, queue_id, end)
            ]
        self._say(committed=number, places=places)

    # Readers and housekeeping

    def _consume(self) -> None:
        store = self._open()
        topic, queue_id = self._random.choice(TOPICS), self._random.randrange(QUEUES)
        minimum, maximum = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
        if minimum == maximum:
            return
        result = store.get(topic, queue_id, self._random.randrange(minimum, maximum), 8)
        self._say(
            seen=[
                [topic, queue_id, one.queue_offset, one.commitlog_offset, one.keys[0], len(one.body)]
                for one in result.messages
            ]
        )

    def _expire(self) -> None:
        store = self._open()
        retention = replace(store.config.retention, delete_file_batch_max=self._random.choice((1, 10, 20)))
        plan = plan_expiry(store, LocalFileSystem(), retention, FULL_DISK, now_ms=self._now_ms())
        apply_expiry(store.writer, plan, retention, sleep=lambda seconds: None)


def batch_rows(number: int) -> BatchRows:
    """The rows of the sink's batch of that number, the same at each call."""
    counts = Random(number).choice(((3,), (5, 2), (20, 17)))
    return BatchRows(Batch(SINK, "query", number), counts, TOPICS)


def _messages(store: MessageStore, topic: str, queue_id: int, offset: int) -> Iterable[Message]:
    while offset < store.max_offset(topic, queue_id):
        result = store.get(topic, queue_id, offset, 100)
        yield from result.messages
        offset = result.next_begin_offset


def _table(asked: Sequence[tuple[str, str, int, int]]) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "topic": pa.array([topic for _, topic, _, _ in asked]),
            "queue_id": pa.array([queue_id for _, _, queue_id, _ in asked], pa.int32()),
            "body": pa.array([body_of(key, size) for key, _, _, size in asked]),
            "keys": pa.array([key for key, _, _, _ in asked]),
        }
    )


def _places(results: pa.RecordBatch) -> list[tuple[int, int, int]]:
    columns = (results[name].to_pylist() for name in ("queue_id", "queue_offset", "commitlog_offset"))
    return list(zip(*columns, strict=True))


def telling(descriptor: int) -> Callable[[str], None]:
    """Whole lines, whichever thread tells them."""
    lock = threading.Lock()

    def tell(line: str) -> None:
        data = line.encode() + b"\n"
        with lock:
            while data:
                data = data[os.write(descriptor, data) :]

    return tell


# Writers to be killed, forked by a warm process


@dataclasses.dataclass(frozen=True, slots=True)
class Kill:
    """Where a process dies: when it comes to a failpoint for the n-th time, or after so many seconds; else nowhere."""

    failpoint: str = ""
    time: int = 1
    seconds: float | None = None

    def __str__(self) -> str:
        if self.failpoint:
            return f"{self.failpoint}:{self.time}"
        return "nowhere" if self.seconds is None else f"after {self.seconds:.3f} s"


class Writers(WarmProcess):
    """The warm process."""

    module = __name__

    def live(self, plan: LifePlan, kill: Kill, hear: Callable[[dict[str, Any]], None]) -> bool:
        """Let one live, and hear what it tells; returns whether it was killed. AssertionError if it ended by an error."""
        order = {"plan": dataclasses.asdict(plan), "failpoint": kill.failpoint, "time": kill.time}
        return self.fork(order, kill_after_seconds=kill.seconds, hear=hear)


def _live(order: dict[str, Any]) -> None:
    if order["failpoint"]:
        os.environ[failpoints.ENVIRONMENT] = f"{order['failpoint']}:{order['time']}"
    live(LifePlan(**order["plan"]), telling(sys.stdout.fileno()))


if __name__ == "__main__":
    serve(_live)
