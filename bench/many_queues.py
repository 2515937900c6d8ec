"""`python -m bench.many_queues`: what a store of 100,000 queues takes, step by step, and on the disk.

Each step is a process of its own that may have 1,024 files open, so that its greatest memory is the step's. It finds in the page cache
what the step before has left there: names and contents of all the files, where there is memory for them.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from jobs.verify_store import verify_store
from storage import MessageStore, open_store
from storage.queues.scan import scan_queue

if TYPE_CHECKING:
    from spark_mq.source.stream_reader import StreamReader

ROOT = Path(__file__).resolve().parent.parent
OPEN_FILES = 1_024
BATCH_ROWS = 10_000
BODY = bytes(100)
SOME = 1_000


class Queues(NamedTuple):
    """The queues of the store: so many a topic."""

    topics: int
    a_topic: int

    @property
    def in_all(self) -> int:
        return self.topics * self.a_topic

    def put_into_all(self, store: MessageStore) -> None:
        """A small message with a key into each, a batch at a time."""
        for start in range(0, self.in_all, BATCH_ROWS):
            numbers = range(start, min(start + BATCH_ROWS, self.in_all))
            topics, queue_ids = zip(*map(self.name, numbers), strict=True)
            keys, body = [f"order-{number}" for number in numbers], [BODY] * len(numbers)
            columns = {"topic": topics, "queue_id": np.array(queue_ids, np.int32), "keys": keys, "body": body}
            store.put_batch(pa.record_batch(columns), queue_count=self.a_topic)

    def name(self, number: int) -> tuple[str, int]:
        return f"bench-{number // self.a_topic}", number % self.a_topic

    def some(self) -> list[tuple[str, int]]:
        return [self.name(number) for number in random.Random(0).sample(range(self.in_all), min(SOME, self.in_all))]


class Step:
    """One process's work on the store, and the seconds of its parts, by the clock and of a processor."""

    def __init__(self, root: str, queues: Queues) -> None:
        self.root = root
        self.queues = queues
        self.seconds: dict[str, tuple[float, float]] = {}

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        start, busy = time.perf_counter(), time.process_time()
        yield
        self.seconds[what] = time.perf_counter() - start, time.process_time() - busy

    def open(self, what: str, *, read_only: bool = False) -> MessageStore:
        with self.timed(what):
            return open_store(self.root, read_only=read_only, create=not read_only)

    def make(self) -> None:
        store = self.open("make an empty store")
        with self.timed("put one message into each queue, all new"):
            self.queues.put_into_all(store)
        with self.timed("close"):
            store.close()

    def write(self) -> None:
        store = self.open("open for writing after a clean stop")
        with self.timed("put one message into each queue"):
            self.queues.put_into_all(store)

    def recover(self) -> None:
        store = self.open("open for writing after a kill")
        if store.recovery is None or store.recovery.was_clean:
            raise RuntimeError("nothing was recovered")
        self._check(store, 2)
        with self.timed(f"put one message into each of {SOME:,} queues, a call each"):
            for topic, queue_id in self.queues.some():
                store.put(topic, BODY, queue_id=queue_id)
        with self.timed("let go of it, with a hint"):
            store.release()

    def carry_on(self) -> None:
        store = self.open("open for writing by the hint")
        if store.recovery is not None:
            raise RuntimeError("the hint did not hold")
        with self.timed("put one message"):
            store.put(*self.queues.name(0)[:1], BODY, queue_id=0)
        with self.timed("close"):
            store.close()

    def read(self) -> None:
        store = self.open("open for reading", read_only=True)
        with self.timed("where each queue begins and ends"):
            self._check(store, 2)
        with self.timed("look again, nothing new"):
            store.refresh()
        with self.timed(f"read {SOME:,} queues"):
            for topic, queue_id in self.queues.some():
                queue = store.queues.get(topic, queue_id)
                assert queue is not None
                rows = sum(len(part.queue_offsets) for part in scan_queue(queue, store.log, store.log_end, 0, 3))
                if rows != 3:
                    raise RuntimeError(f"{topic}, queue {queue_id}: {rows} messages were read, expected 3")
        store.close()

    def verify(self) -> None:
        with self.timed("verify"):
            report = verify_store(self.root)
        if report.findings:
            raise RuntimeError(f"{report.findings[0]}")

    def plan(self) -> None:
        """A stream over all queues, as Spark drives it: what each batch costs before its tasks begin."""
        from spark_mq.source.options import SourceOptions  # Spark's classes would count as the memory of every step
        from spark_mq.source.stream_reader import StreamReader

        options = {"path": self.root, "subscribePattern": "bench-.*", "startingOffsets": "earliest"}
        parsed = SourceOptions.parse(options, "streaming")
        reader = StreamReader(parsed, parsed.column_names)
        with self.timed("plan a stream: open the store"):
            assert reader.cluster.queues()
        with self.timed("plan a stream: where it starts"):
            position = reader.initialOffset()
        position = self._batch(reader, position, "the first batch")
        self._batch(reader, position, "nothing new")
        with open_store(self.root, read_only=False) as store:
            store.put(*self.queues.name(0)[:1], BODY, queue_id=0)
        position = self._batch(reader, position, "one queue has grown")
        with open_store(self.root, read_only=False) as store:
            self.queues.put_into_all(store)
        self._batch(reader, position, "all have grown")
        reader.stop()

    def _batch(self, reader: StreamReader, position: dict[str, Any], what: str) -> dict[str, Any]:
        with self.timed(f"plan a stream: {what}"):
            end = reader.latestOffset(position, reader.getDefaultReadLimit())
            reader.reportLatestOffset()
            if end != position:
                reader.partitions(position, end)
        planned: dict[str, Any] = json.loads(json.dumps(end))
        return planned

    def _check(self, store: MessageStore, least: int) -> None:
        names = store.queues.names()
        ends = [(store.min_offset(*name), store.max_offset(*name)) for name in names]
        if len(ends) != self.queues.in_all or not all(start == 0 and end >= least for start, end in ends):
            raise RuntimeError(f"{len(ends):,} queues, expected {self.queues.in_all:,} with {least} messages or more")


STEPS: dict[str, Callable[[Step], None]] = {
    "make": Step.make,
    "write": Step.write,
    "recover": Step.recover,
    "read": Step.read,
    "carry on": Step.carry_on,
    "verify": Step.verify,
    "plan": Step.plan,
}
KILLED = ("write",)
"""Steps that end by SIGKILL, with the store open."""


def play(name: str, root: str, queues: Queues) -> None:
    """A step, in this process; its figures as JSON on the standard output."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, OPEN_FILES))
    step = Step(root, queues)
    STEPS[name](step)
    print(json.dumps({"seconds": step.seconds, "memory_bytes": greatest_memory_bytes()}), flush=True)
    if name in KILLED:
        os.kill(os.getpid(), signal.SIGKILL)


def measure(root: Path, queues: Queues) -> Table:
    """All steps, one process after the other, over a store that is not there yet."""
    made = Table(title=f"{queues.in_all:,} queues in {queues.topics:,} topics, {OPEN_FILES:,} open files at most")
    for heading in ("step", "seconds", "of a processor", "memory, MiB"):
        made.add_column(heading, justify="left" if heading == "step" else "right")
    for name in STEPS:
        os.sync()  # else a step pays for the last one's dirty pages
        command = [sys.executable, "-m", __spec__.name, "--step", name, "--home", str(root)]
        command += ["--queues", str(queues.in_all), "--topics", str(queues.topics)]
        process = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
        if process.returncode != (-signal.SIGKILL if name in KILLED else 0):
            raise RuntimeError(f"step {name!r} ended with {process.returncode}")
        figures = json.loads(process.stdout)
        for number, (what, (seconds, busy)) in enumerate(figures["seconds"].items()):
            memory = "" if number else f"{figures['memory_bytes'] / 2**20:,.0f}"
            made.add_row(what, f"{seconds:,.2f}", f"{busy:,.2f}", memory)
        made.add_section()
    made.caption = f"{disk_bytes(root) / 2**20:,.0f} MiB of disk"
    return made


def greatest_memory_bytes() -> int:
    """The most that this process has had in memory. Not `ru_maxrss`: that begins with what the process had that started it."""
    found = re.search(r"^VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def disk_bytes(root: Path) -> int:
    """What files and directories take of the disk; holes take nothing."""
    places = [root, *root.rglob("*")]
    return sum(place.lstat().st_blocks * 512 for place in places)


def main(arguments: list[str]) -> None:
    home = Path(os.environ.get("SPARK_MQ_BENCH_HOME", ROOT / "build" / "bench"))
    parser = argparse.ArgumentParser(prog="python -m bench.many_queues", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--queues", type=int, default=100_000, help="in all (default %(default)s)")
    parser.add_argument("--topics", type=int, default=1_000, help="that they are spread over (default %(default)s)")
    parser.add_argument("--home", type=Path, default=home, help="where the store is made (default %(default)s)")
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    queues = Queues(asked.topics, asked.queues // asked.topics)
    if asked.step:
        play(asked.step, str(asked.home), queues)
        return
    root = asked.home / "many-queues"
    shutil.rmtree(root, ignore_errors=True)  # what a killed run has left
    root.parent.mkdir(parents=True, exist_ok=True)
    try:
        Console(width=None if sys.stdout.isatty() else 130).print(measure(root, queues))
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1:])
