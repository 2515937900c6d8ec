"""`python -m bench.small_commits`: what a stream of small batches costs, commit by commit, without Spark.

One process commits batch after batch of one sink, as Spark's commit process does: the store opened, the batch appended, the store let
go. Its tasks, here in the same process, have staged the rows before and are not counted, but for their syncs.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple
from unittest import mock

import pyarrow as pa
from rich.console import Console
from rich.table import Table

from bench.messages import TOPIC
from bench.write_engine import SINK, begin_store, row_batches
from storage import open_store
from storage.batch.commit import commit_batch
from storage.batch.ledger import Batch
from storage.batch.staged_segment import SegmentWriter, StagedBatch, StagedSegment, sink_digest
from storage.files.local_file_system import LocalFileSystem
from storage.format.record_block import encode_block
from storage.put.settings import put_settings
from storage.rules.message_rows import MessageRows
from storage.rules.row_rules import MessageRules
from storage.settings.load import load_config

ROOT = Path(__file__).resolve().parent.parent
ROWS = (1_000, 10_000)
WARM_UP = 3
DIFFERENT = 16
"""Batches whose keys differ; then the first comes again."""


class Cost(NamedTuple):
    """Of one commit, in seconds."""

    clock: float
    user: float
    system: float
    syncs: int

    @property
    def busy(self) -> float:
        return self.user + self.system


class SmallCommits:
    """One store, its sink, and the batches one after the other."""

    def __init__(self, root: str, rows: int, body_size_bytes: int, queues: int, flush: str, pause_s: float) -> None:
        self._root = root
        self._rows = rows
        self._body_size_bytes = body_size_bytes
        self._queues = queues
        self._flush = flush
        self._pause_s = pause_s

    def costs(self, commits: int) -> Iterator[tuple[Cost, Cost]]:
        """Of each commit, and of its task, behind the first few."""
        begin_store(self._root, self._body_size_bytes, self._queues, self._rows, self._flush)
        batches = list(row_batches(DIFFERENT * self._rows, self._body_size_bytes, self._rows))
        for batch_id in range(WARM_UP + commits):
            with counted() as staging:
                segment = self._stage(batch_id, batches[batch_id % DIFFERENT])
            time.sleep(self._pause_s)
            with counted() as committing:
                self._commit(batch_id, segment)
            if batch_id >= WARM_UP:
                yield committing[0], staging[0]

    def _stage(self, batch_id: int, batch: pa.RecordBatch) -> StagedSegment:
        files = LocalFileSystem()
        settings = put_settings(self._root, load_config(self._root, read_bytes=files.read_file), files)
        messages = MessageRows(MessageRules(topic=TOPIC, topics=settings.topics.topics), batch_id.to_bytes(10, "big"))
        writer = SegmentWriter(files, self._root, sink_digest(SINK, SINK).hex(), f"{batch_id}-0")
        writer.append(encode_block(messages.prepare(batch, 0).messages, settings.host))
        segment = writer.finish()
        assert segment is not None
        return segment

    def _commit(self, batch_id: int, segment: StagedSegment) -> None:
        with open_store(
            self._root, read_only=False, create=True, lock_timeout_ms=60_000, flush_disk_type=self._flush
        ) as store:
            staged = StagedBatch(Batch(SINK, SINK, batch_id), [segment], {TOPIC: self._queues})
            if commit_batch(store.writer, staged).row_count != self._rows:
                raise RuntimeError(f"batch {batch_id} was not written")
            store.release()


@contextmanager
def counted() -> Iterator[list[Cost]]:
    """What happens inside, once it is over."""
    syncs: Counter[str] = Counter()
    found: list[Cost] = []

    def counting(name: str) -> Any:
        told = getattr(os, name)

        def call(descriptor: int) -> None:
            syncs[name] += 1
            told(descriptor)

        return call

    with mock.patch("os.fsync", counting("fsync")), mock.patch("os.fdatasync", counting("fdatasync")):
        clock, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
        yield found
        after = resource.getrusage(resource.RUSAGE_SELF)
        user, system = after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime
        found.append(Cost(time.perf_counter() - clock, user, system, syncs.total()))


def line(rows: int, costs: list[Cost]) -> list[str]:
    """A line of the table: milliseconds of the median commit, and microseconds a row."""
    clock, busy = median(one.clock for one in costs), median(one.busy for one in costs)
    parts = [f"{1e3 * median(seconds):.1f}" for seconds in zip(*((one.user, one.system) for one in costs), strict=True)]
    syncs = sum(one.syncs for one in costs) / len(costs)
    return [f"{1e3 * busy:.1f}", *parts, f"{1e6 * busy / rows:.2f}", f"{1e3 * clock:.1f}", f"{syncs:.1f}"]


def main() -> None:
    home = Path(os.environ.get("SPARK_MQ_BENCH_HOME", ROOT / "build" / "bench"))
    parser = argparse.ArgumentParser(prog="python -m bench.small_commits", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS, help="of a batch (default %(default)s)")
    parser.add_argument("--commits", type=int, default=100, help="of each size (default %(default)s)")
    parser.add_argument("--queues", type=int, default=4, help="of the topic (default %(default)s)")
    parser.add_argument("--body-size", type=int, default=100, help="bytes (default %(default)s)")
    parser.add_argument("--flush", default="ASYNC_FLUSH", choices=("ASYNC_FLUSH", "SYNC_FLUSH"))
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between two commits (default %(default)s)")
    parser.add_argument("--home", type=Path, default=home, help="where the store is made (default %(default)s)")
    asked = parser.parse_args()
    made = Table(title=f"Small commits, {asked.flush}", caption="milliseconds of the median commit")
    for heading in ("rows", "what", "processor", "user", "system", "µs a row", "clock", "syncs"):
        made.add_column(heading, justify="left" if heading == "what" else "right")
    root = asked.home / "small-commits" / "store"
    for rows in asked.rows:
        shutil.rmtree(root.parent, ignore_errors=True)
        root.mkdir(parents=True)
        try:
            played = SmallCommits(str(root), rows, asked.body_size, asked.queues, asked.flush, asked.pause)
            commits, tasks = zip(*played.costs(asked.commits), strict=True)
        finally:
            shutil.rmtree(root.parent, ignore_errors=True)
        made.add_row(f"{rows:,}", "commit", *line(rows, list(commits)))
        made.add_row("", "task", *line(rows, list(tasks)))
    Console(width=None if sys.stdout.isatty() else 130).print(made)


if __name__ == "__main__":
    main()
