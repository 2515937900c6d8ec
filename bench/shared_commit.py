"""`python -m bench.shared_commit`: how long another producer's sends take while our broker commits a sink's batch.

The broker is a process of its own. One thread here sends message after message and waits for each answer; another hands over a batch
that was staged before. The sends of the time before, during and after the commit are told apart.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from spark_mq.client.message import Message
from spark_mq.client.producer import Producer
from spark_mq.client.settings import ClientSettings
from spark_mq.sink.columns import InputColumns
from spark_mq.sink.commit import commit_rows
from spark_mq.sink.options import SinkOptions
from spark_mq.sink.partition_writer import StagedRows, stage_rows
from storage.batch.ledger import Batch

COMMAND = (sys.executable, "-c", "from spark_mq.cli import main; main()")
BOOT_SECONDS = 60
QUIET_SECONDS = 3.0
FRAME_ROWS = 10_000
_TICKS = os.sysconf("SC_CLK_TCK")


@contextmanager
def server(words: Sequence[str], log: Path) -> Iterator[int]:
    """One of our servers, by its process id, until the end of the context."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*COMMAND, *words], stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        deadline = time.monotonic() + BOOT_SECONDS
        while b"boot success" not in log.read_bytes():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(log.read_text())
            time.sleep(0.05)
        yield process.pid
    finally:
        process.terminate()
        process.wait(BOOT_SECONDS)


def processor_seconds(pid: int) -> float:
    """What a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def staged_rows(options: SinkOptions, rows: int, body_size: int, batch_id: int) -> StagedRows:
    """A batch as one task leaves it."""

    def frames() -> Iterator[pa.RecordBatch]:
        for start in range(0, rows, FRAME_ROWS):
            count = min(FRAME_ROWS, rows - start)
            bodies = pa.array([b"%016d" % number + bytes(body_size - 16) for number in range(start, start + count)])
            yield pa.record_batch({"body": bodies})

    batch = Batch("bench", "bench", batch_id)
    return stage_rows(options, InputColumns(("body",)), batch, 0, batch_id, frames())


def shown(console: Console, title: str, phases: dict[str, np.ndarray]) -> None:
    """A row for each phase."""
    table = Table(title=title)
    for name in ("sends", "count", "p50 ms", "p99 ms", "p99.9 ms", "longest ms"):
        table.add_column(name, justify="left" if name == "sends" else "right")
    for name, took in phases.items():
        if len(took):
            values = (*np.percentile(took, (50, 99, 99.9)), took.max())
            table.add_row(name, f"{len(took):,}", *(f"{value * 1_000:.2f}" for value in values))
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description="Sends beside a sink's commit in our broker.")
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--body", type=int, default=1_000, help="bytes of a row's body, at least 16")
    parser.add_argument("--batches", type=int, default=3)
    parser.add_argument("--flush", choices=("ASYNC_FLUSH", "SYNC_FLUSH"), default="ASYNC_FLUSH")
    parser.add_argument("--port", type=int, default=24_911)
    given = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="shared-commit-"))
    try:
        _measure(given, home)
    finally:
        shutil.rmtree(home)


def _measure(given: argparse.Namespace, home: Path) -> None:
    console = Console()
    (home / "broker.conf").write_text(
        f"storePathRootDir={home}/store\nlistenPort={given.port}\nbrokerIP1=127.0.0.1\nbrokerName=bench\n"
        f"flushDiskType={given.flush}\nnamesrvAddr=127.0.0.1:{given.port + 10}\n"
    )
    (home / "names.conf").write_text(f"listenPort={given.port + 10}\nkvConfigPath={home}/kv.json\n")
    sends: list[tuple[float, float]] = []
    commits: list[tuple[float, float]] = []
    is_over = threading.Event()
    with (
        server(("namesrv", "-c", str(home / "names.conf")), home / "names.log"),
        server(("broker", "-c", str(home / "broker.conf")), home / "broker.log") as broker,
        Producer(ClientSettings((f"127.0.0.1:{given.port + 10}",)), "bench") as producer,
    ):

        def send() -> None:
            while not is_over.is_set():
                began = time.monotonic()
                producer.send(Message("Others", b"x" * 1_000))
                sends.append((began, time.monotonic()))

        options = SinkOptions.parse(
            {"path": f"{home}/store", "conf": str(home / "broker.conf"), "topic": "Rows", "sinkId": "bench"},
            "streaming",
        )
        staged = [staged_rows(options, given.rows, given.body, number) for number in range(given.batches)]
        sending = threading.Thread(target=send)
        sending.start()
        time.sleep(QUIET_SECONDS)
        used = processor_seconds(broker)
        quiet = time.monotonic()
        time.sleep(QUIET_SECONDS)
        idle = (processor_seconds(broker) - used) / (time.monotonic() - quiet)
        spent = []
        for number, rows in enumerate(staged):
            used, began = processor_seconds(broker), time.monotonic()
            commit_rows(options, [rows], number, mirrored=True)
            commits.append((began, time.monotonic()))
            spent.append(processor_seconds(broker) - used)
            time.sleep(QUIET_SECONDS)
        is_over.set()
        sending.join()
    times = np.array(sends)
    took = times[:, 1] - times[:, 0]
    is_beside = np.zeros(len(times), bool)
    for began, ended in commits:
        is_beside |= (times[:, 1] > began) & (times[:, 0] < ended)
    first = commits[0][0]
    phases = {"before": took[times[:, 1] < first], "beside a commit": took[is_beside]}
    phases["between and after"] = took[(times[:, 0] >= first) & ~is_beside]
    shown(console, f"{given.flush}, {given.batches} batches of {given.rows:,} rows of {given.body:,} bytes", phases)
    for (began, ended), busy in zip(commits, spent, strict=True):
        console.print(
            f"commit {ended - began:.2f} s, of the broker's processor {busy:.2f} s (sends alone {idle:.2f} a second)"
        )


if __name__ == "__main__":
    main()
