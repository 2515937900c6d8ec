"""What writers, a sink and a reader do to a small store whose disk may fail, and what they were told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pyarrow as pa

from storage import MessageStore, open_store
from storage.batch_commit import abort_batch, commit_batch
from storage.batch_ledger import Batch
from storage.errors import StorageError
from storage.files.file_system import LocalFileSystem
from tests.crash.sink_store import QUEUE_COUNT, SinkStore
from tests.support.failing_file_system import FailingFileSystem
from tests.support.queue_history import Answer, History, Sent, see
from tests.support.stage_rows import BatchRows

_LOG_SYNC = "sync of /commitlog"
_WEIGHTS = {"put": 5, "put_batch": 4, "commit": 4, "flush": 2, "release": 2, "close": 1, "consume": 1}


class Story:
    """Steps that follow from the seed alone, whatever fails. After an error the store is let go of, and the next step opens it."""

    def __init__(self, root: Path, files: FailingFileSystem, seed: int, steps: int, *, sync_flush: bool) -> None:
        random = Random(seed)
        names = random.choices(list(_WEIGHTS), list(_WEIGHTS.values()), k=steps)
        self.root = str(root)
        self.history = History()
        self.errors: list[str] = []
        """Of each step that failed: step and error."""
        self.wrong: list[str] = []
        self._steps = [(name, random.getrandbits(32)) for name in names]
        self._files = files
        self._sinks = SinkStore(root, files, sync_flush=sync_flush)
        self._store: MessageStore | None = None
        self._durable: set[str] = set()
        self._batches = 0
        self._asked: dict[str, Sent] = {}

    def run(self) -> None:
        """All steps; at the end the store is let go of, not closed."""
        for number, (name, seed) in enumerate(self._steps):
            met = len(self._files.met)
            try:
                getattr(self, f"_{name}")(number, Random(seed))
            except (StorageError, OSError) as error:
                self._note(f"step {number}, {name}", error)
                if any(_LOG_SYNC in what for what in self._files.met[met:]):
                    self._expect_refusal(number)
                self._let_go(error)
        self._let_go(OSError("the process ends"))

    def not_durable(self) -> set[str]:
        """Keys of messages that a power loss may take under ASYNC_FLUSH: no flush and no close has returned since they were put."""
        return {sent.key for sent in self.history.sent} - self._durable

    @contextmanager
    def reopened(self, files: LocalFileSystem) -> Iterator[MessageStore]:
        """For writing, by a process that knows nothing of the story."""
        with SinkStore(Path(self.root), files, days=1).open() as store:
            yield store

    # Steps

    def _put(self, number: int, random: Random) -> None:
        store = self._open()
        topic, queue_id = random.choice(("orders", "bills", "letters")), random.randrange(QUEUE_COUNT)
        body = random.randbytes(random.choice((0, 10, 300, 3_000)))
        sent = self.history.ask(f"put-{number}", topic, queue_id, body, "putter")
        placed = store.put(topic, body, keys=sent.key, tags="a", queue_id=queue_id, queue_count=QUEUE_COUNT)
        self.history.acknowledge(sent, placed.queue_offset, placed.commitlog_offset)

    def _put_batch(self, number: int, random: Random) -> None:
        store = self._open()
        bodies = [random.randbytes(random.randrange(200)) for _ in range(random.randint(2, 40))]
        queue_ids = [random.randrange(QUEUE_COUNT) for _ in bodies]
        asked = [
            self.history.ask(f"batch-{number}-{row}", "orders", queue_id, body, "batcher")
            for row, (body, queue_id) in enumerate(zip(bodies, queue_ids, strict=True))
        ]
        columns = {
            "body": pa.array(bodies, pa.binary()),
            "keys": pa.array([sent.key for sent in asked]),
            "queue_id": pa.array(queue_ids, pa.int32()),
        }
        placed = store.put_batch(pa.record_batch(columns), topic="orders", queue_count=QUEUE_COUNT).to_pylist()
        for sent, place in zip(asked, placed, strict=True):
            self.history.acknowledge(sent, place["queue_offset"], place["commitlog_offset"])

    def _commit(self, number: int, random: Random) -> None:
        """The sink's next batch; one that failed comes again, as Spark brings it."""
        rows = BatchRows(Batch("sink", "query", self._batches), (1 + self._batches % 7, 5), ("orders", "bills"))
        segments = self._sinks.stage(rows)
        store = self._open()
        for row in rows.rows:
            if row.key not in self._asked:
                self._asked[row.key] = self.history.ask(row.key, row.topic, None, row.body.encode(), "sink")
        try:
            commit_batch(store.writer, rows.batch, segments, topics=dict.fromkeys(rows.topics, QUEUE_COUNT))
        except (StorageError, OSError):
            abort_batch(self._files, self.root, segments)
            raise
        for row in rows.rows:
            self.history.acknowledge(self._asked[row.key])
            self._durable.add(row.key)
        self._batches += 1

    def _flush(self, number: int, random: Random) -> None:
        self._open().flush()
        self._all_is_durable()

    def _release(self, number: int, random: Random) -> None:
        store, self._store = self._open(), None
        store.release()

    def _close(self, number: int, random: Random) -> None:
        store, self._store = self._open(), None
        store.close()
        self._all_is_durable()

    def _consume(self, number: int, random: Random) -> None:
        with open_store(self.root, file_system=self._files) as store:
            self.history.consume(see(store))

    # In between

    def _open(self) -> MessageStore:
        if self._store is None:
            self._store = self._sinks.open()
        return self._store

    def _all_is_durable(self) -> None:
        self._durable |= {sent.key for sent in self.history.sent if sent.answer is Answer.OK}

    def _let_go(self, error: Exception) -> None:
        """As a `with` block does it."""
        store, self._store = self._store, None
        if store is not None:
            try:
                store.__exit__(type(error), error, None)
            except (StorageError, OSError) as another:
                self._note("letting go", another)

    def _expect_refusal(self, number: int) -> None:
        """A sync of the log has failed: this store takes nothing more, though the disk is well again."""
        if self._store is None:
            return
        fault, self._files.fault = self._files.fault, None
        sent = self.history.ask(f"probe-{number}", "orders", 0, b"probe", "prober")
        try:
            self._store.put("orders", b"probe", keys=sent.key, queue_id=0)
        except StorageError:
            self.history.refuse(sent)
        else:
            self.wrong.append(f"step {number}: a put is taken after a failed sync of the log")
        finally:
            self._files.fault = fault

    def _note(self, what: str, error: StorageError | OSError) -> None:
        self.errors.append(f"{what}: {type(error).__name__}: {error}")
        if isinstance(error, OSError) and (error.errno is None or error.filename is None):
            self.wrong.append(f"{what}: an error without number or path: {error!r}")
