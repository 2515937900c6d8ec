"""How long single sends take at a broker: alone, beside another producer's batches, and in ours beside a sink's commit.

One thread of a Java program sends message after message and notes begin and end of each (nanoseconds of the machine's monotonic clock,
which Python's `time.monotonic_ns` is too). Meanwhile something else is done now and then. A send that ran while it was done counts
as beside it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from bench.client_peer import ClientPeer
from bench.messages import BATCH_MESSAGES, BODY_SIZE_BYTES, QUEUES
from bench.rocketmq_broker import RunningBroker
from bench.shared_commit import staged_rows
from spark_mq.sink.commit import commit_rows
from spark_mq.sink.options import SinkOptions

TIMED_TOPIC, BATCHED_TOPIC, COMMITTED_TOPIC = "bench_timed", "bench_batched", "bench_committed"
ALONE, BATCHES, COMMIT = "alone", f"beside batches of {BATCH_MESSAGES}", "beside a sink's commit"
PAUSE_SECONDS = 1.0
TIMES = np.dtype([("begun_ns", ">i8"), ("taken_ns", ">i8")])


@dataclass(slots=True)
class LatencyPeer:
    """A broker, and the two programs that send to it."""

    name: str
    broker: RunningBroker
    timed: ClientPeer
    beside: ClientPeer
    file: Path
    """Where the timed program notes its sends."""
    conf: Path | None
    """The settings of a broker that takes a sink's commit; None = it takes none."""
    taken_ms: dict[str, list[np.ndarray]] = field(default_factory=dict)
    """By what they ran beside."""

    def note(self, kind: str, spans: Sequence[tuple[int, int]]) -> None:
        """Sort the sends of one round: those within `spans` under `kind`, the others as alone."""
        times = np.fromfile(self.file, TIMES)
        begun = times["begun_ns"].astype(np.int64)
        ended = begun + times["taken_ns"]
        is_beside = np.zeros(len(times), bool)
        for start, end in spans:
            is_beside |= (ended > start) & (begun < end)
        taken_ms = times["taken_ns"].astype(np.float64) / 1e6
        self.taken_ms.setdefault(ALONE, []).append(taken_ms[~is_beside])
        self.taken_ms.setdefault(kind, []).append(taken_ms[is_beside])


def measure_latency(console: Console, peers: Sequence[LatencyPeer], *, rows: int, rounds: int, seconds: int) -> None:
    """Print the percentiles of all rounds; `rows` are sent or committed beside the single sends, each time."""
    for peer in peers:
        peer.broker.make_topics([TIMED_TOPIC, BATCHED_TOPIC], QUEUES)
        peer.timed.run("timed", TIMED_TOPIC, 2, 1, peer.file)  # warm
    for number in range(rounds):
        for peer in peers:
            _round(peer, BATCHES, lambda: _send_batches(peer, rows), seconds)  # noqa: B023 (run at once)
            if peer.conf is not None:
                _round(peer, COMMIT, _commits(peer.conf, peer.broker.store, rows, number), seconds)
            console.print(f"latency, round {number + 1}: {peer.name}")
    console.print(latency_table(peers, rows))


def _round(peer: LatencyPeer, kind: str, beside: Callable[[], bool], seconds: int) -> None:
    """Single sends for so long; `beside` is done now and then, until it returns False."""
    spans: list[tuple[int, int]] = []
    with ThreadPoolExecutor(1) as threads:
        end = time.monotonic() + seconds
        sending = threads.submit(peer.timed.run, "timed", TIMED_TOPIC, seconds, 1, peer.file)
        goes_on = True
        while goes_on and time.monotonic() + PAUSE_SECONDS < end:
            time.sleep(PAUSE_SECONDS)
            begun = time.monotonic_ns()
            goes_on = beside()
            spans.append((begun, time.monotonic_ns()))
        sending.result()
    peer.note(kind, spans)


def _send_batches(peer: LatencyPeer, rows: int) -> bool:
    peer.beside.run("batch", BATCHED_TOPIC, rows, 1, BATCH_MESSAGES)
    return True


def _commits(conf: Path, store: Path, rows: int, number: int) -> Callable[[], bool]:
    """What commits one staged batch after another, two of them in a round."""
    given = {"path": str(store), "conf": str(conf), "topic": COMMITTED_TOPIC, "sinkId": "bench"}
    options = SinkOptions.parse(given, "streaming")
    waiting = [
        (batch_id, staged_rows(options, rows, BODY_SIZE_BYTES, batch_id)) for batch_id in (2 * number, 2 * number + 1)
    ]

    def commit() -> bool:
        batch_id, staged = waiting.pop(0)
        commit_rows(options, [staged], batch_id, mirrored=True)
        return bool(waiting)

    return commit


def latency_table(peers: Sequence[LatencyPeer], rows: int) -> Table:
    """A row for each broker and what its sends ran beside."""
    caption = f"1 KiB, one thread; batches and commits of {rows:,} messages, of another producer and of a sink"
    table = Table(title="Single sends, ms", caption=caption)
    for heading in ("broker", "sends"):
        table.add_column(heading, no_wrap=True)
    for heading in ("count", "p50", "p99", "p99.9", "longest"):
        table.add_column(heading, justify="right", no_wrap=True)
    for peer in peers:
        for kind, parts in peer.taken_ms.items():
            taken = np.concatenate(parts)
            if len(taken):
                values = (*np.percentile(taken, (50, 99, 99.9)), taken.max())
                table.add_row(peer.name, kind, f"{len(taken):,}", *(f"{value:,.2f}" for value in values))
    return table
