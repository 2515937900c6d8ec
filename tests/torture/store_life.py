"""One store's life in steps, and what is known of it: asked for, acknowledged, promised."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random

import pyarrow as pa

from storage import MessageStore, StoreConfig, open_store
from storage.errors import (
    ColumnIllegalError,
    MessageIllegalError,
    PutRefusedError,
    RowIllegalError,
    StorageError,
)
from storage.files.local_file_system import LocalFileSystem
from storage.tables.topics import TopicConfig
from tests.support.queue_history import History, Seen, Sent, Violation, judge, see

FIRST_MS = 1_795_000_000_000
DAY_MS = 86_400_000
TOPICS, QUEUES = ("orders", "bills"), 2
PRODUCERS = ("p", "q")
REFUSALS = (ColumnIllegalError, RowIllegalError, MessageIllegalError, PutRefusedError)
"""Errors that promise that nothing was stored."""


class StoreLife(ABC):
    """Does one random thing after the other to the store at `root`, which it makes.

    A StorageError or OSError of a step ends that step: what it asked for stays unknown (or is refused, where the error promises
    that), the error is kept in `errors`, the store is let go of, and the next step opens it again.
    """

    def __init__(
        self,
        root: Path,
        file_system: LocalFileSystem,
        random: Random,
        *,
        sync_flush: bool,
        history: History | None = None,
        config: StoreConfig | None = None,
        days: int = 0,
    ) -> None:
        """`history` is that of what the store holds already; `days` is how much later than another one's this clock begins."""
        self.root = root
        self.file_system = file_system
        self.random = random
        self.sync_flush = sync_flush
        """The flush type of the next opening."""
        self.is_mixed = False
        """Each opening chooses its flush type anew."""
        self.history = history or History()
        self.config = config or StoreConfig.tiny()
        self.now_ms = FIRST_MS + days * DAY_MS
        self.mark: Callable[[str], object] = lambda text: None
        """Hears of each step when it begins, and of what was promised besides messages."""
        self.log_minimum = 0
        """Before this place in the log everything may have expired."""
        self.errors: list[BaseException] = []
        self.steps: list[str] = []
        self._store: MessageStore | None = None
        self._positions: dict[tuple[str, int], int] = {}

    @abstractmethod
    def _weights(self) -> Mapping[Callable[[], None], int]:
        """The steps that there are, and how often each is done."""

    def clock(self) -> int:
        """Goes on with each look."""
        self.now_ms += 1
        return self.now_ms

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()

    def step(self) -> None:
        """One thing of those that it does."""
        weights = self._weights()
        (action,) = self.random.choices(list(weights), list(weights.values()))
        self.do(action)

    def do(self, action: Callable[[], None]) -> None:
        """This thing, a step."""
        self.steps.append(action.__name__.strip("_"))
        self.mark(f"step {len(self.steps)} {self.steps[-1]}")
        try:
            action()
        except (StorageError, OSError) as error:
            self.errors.append(error)
            self._let_go(error)

    @property
    def store(self) -> MessageStore:
        """Open for writing."""
        if self._store is None:
            if self.is_mixed:
                self.sync_flush = self.random.random() < 0.5
            self._store = open_store(
                self.root,
                config=self.config,
                read_only=False,
                create=True,
                flush_disk_type="SYNC_FLUSH" if self.sync_flush else "ASYNC_FLUSH",
                file_system=self.file_system,
                clock=self.clock,
            )
        return self._store

    def let_go(self) -> None:
        """Release the store, if it is open, and let others have it."""
        if self._store is not None:
            self._release()

    def close(self) -> None:
        """Open it, if it is not, and close it cleanly."""
        self._close()

    def seen(self) -> list[Seen]:
        """What the open store serves."""
        return see(self.store)

    def judged(self) -> list[Violation]:
        """Where the store contradicts the history."""
        return judge(self.history, self.seen(), log_minimum=self.log_minimum)

    def _ask(self, topic: str, queue_id: int | None, **kind: object) -> Sent:
        number = len(self.history.sent)
        body = self.random.randbytes(self.random.choice((0, 8, 60, 300, 900, 2_000)))
        key = f"m{number}-{self.now_ms}"
        producer = self.random.choice(PRODUCERS)
        return self.history.ask(key, topic, queue_id, key.encode() + body, producer, **kind)  # type: ignore[arg-type]

    def _queue(self) -> tuple[str, int]:
        return self.random.choice(TOPICS), self.random.randrange(QUEUES)

    @contextmanager
    def _asking(self, *asked: Sent) -> Iterator[None]:
        try:
            yield
        except REFUSALS:
            for sent in asked:
                self.history.refuse(sent)
            raise
        if self.sync_flush:  # also what others have left that promised nothing: records are synced in their order
            self.history.promise()

    def _acknowledge(self, asked: Sequence[Sent], places: pa.RecordBatch) -> None:
        for sent, place in zip(asked, places.to_pylist(), strict=True):
            self.history.acknowledge(sent, place["queue_offset"], place["commitlog_offset"], place["queue_id"])
            self.mark(f"topic {sent.topic}")

    def _make_topics(self, *topics: str) -> None:
        """Before what makes none by itself."""
        for topic in topics:
            self.store.save_topic(TopicConfig(topic, QUEUES, QUEUES))
            self.mark(f"topic {topic}")

    def _release(self) -> None:
        store, self._store = self.store, None
        store.release()

    def _close(self) -> None:
        store, self._store = self.store, None
        store.close()
        self.history.promise()

    def _let_go(self, error: BaseException) -> None:
        store, self._store = self._store, None
        if store is not None:
            with suppress(StorageError, OSError):
                store.__exit__(type(error), error, None)
