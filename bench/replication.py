"""`python -m bench.replication`: sends that wait for 0 to 2 slaves, and how fast a new slave catches up; Apache's groups beside ours.

    puts      Java's producer sends with 8 threads, one message a request, to a SYNC_MASTER whose `inSyncReplicas` counts all slaves
    catch-up  a slave without a log starts beside a master with one, until the master has heard of all of it
    batches   a sink's batch of rows through our broker, done when all slaves have its end

Master and slaves of a group are of one kind, each a process of its own, all on this machine: they share its cores and its disk.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from bench.broker_latency import COMMITTED_TOPIC, TIMES
from bench.client_peer import ClientPeer, java_peer
from bench.measure import Peer
from bench.messages import BATCH_MESSAGES, BODY_SIZE_BYTES, QUEUES
from bench.ports import free_port
from bench.rocketmq_broker import (
    INDEX_GEOMETRY,
    LOG_FILE_SIZE_BYTES,
    QUEUE_FILE_SIZE_BYTES,
    UNHURRIED,
    Oracle,
    RunningBroker,
)
from bench.shared_commit import server, staged_rows
from spark_mq.client.calls import make_call
from spark_mq.remoting import RequestCode
from spark_mq.remoting.administration import HaRuntimeInfo
from spark_mq.sink.commit import commit_rows
from spark_mq.sink.options import SinkOptions
from spark_mq.source.cluster_questions import ClusterQuestions

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("puts", "catch-up", "batches")
NAMES: dict[Peer, str] = {"java": "Apache's", "spark_mq": "ours"}
TOPIC = "bench_replicated"
THREADS = 8
PATIENCE_S = 900.0
POLL_SECONDS = 0.02


class Group:
    """A name server, a master and its slaves, all of Apache's or all of ours."""

    def __init__(self, peer: Peer, script: Path, directory: Path) -> None:
        self._peer = peer
        self.directory = directory
        directory.mkdir(parents=True)
        self._port, self._names_port = free_port(-2, 1), free_port()
        environment = os.environ | {"NAMESRV_PORT": str(self._names_port), "TMPDIR": str(directory)}
        self._oracle = Oracle(script.resolve(), environment)
        self._oracle.run("build")
        self._running = ExitStack()

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def start_master(self, *settings: str) -> RunningBroker:
        """The name server and the master."""
        names = self.directory / "namesrv"
        if self._peer == "java":
            self._running.enter_context(self._oracle.server("namesrv", names))
        else:
            conf = self.directory / "names.conf"
            conf.write_text(f"listenPort={self._names_port}\nkvConfigPath={self.directory}/kv.json\n")
            self._running.enter_context(server(("namesrv", "-c", str(conf)), self.directory / "names.log"))
        return self._start("master", self._port, "brokerId=0", *settings)

    def start_slave(self, number: int, *settings: str) -> RunningBroker:
        """One more slave; it finds the master by the name server."""
        return self._start(f"slave-{number}", free_port(-2, 1), f"brokerId={number}", "brokerRole=SLAVE", *settings)

    def _start(self, name: str, port: int, *settings: str) -> RunningBroker:
        store = self.directory / name / "store"
        store.parent.mkdir()
        conf = store.parent / "broker.conf"
        address = f"127.0.0.1:{self._names_port}"
        lines = (
            "brokerName=broker-bench",
            f"namesrvAddr={address}",
            f"listenPort={port}",
            f"haListenPort={port + 1}",
            *INDEX_GEOMETRY,
            *UNHURRIED,
            *settings,
        )
        conf.write_text(self._oracle.run("conf", store, LOG_FILE_SIZE_BYTES, QUEUE_FILE_SIZE_BYTES, *lines))
        if self._peer == "java":
            directory = store.parent / "broker"
            self._running.enter_context(self._oracle.server("broker", directory, conf))
            pid = int((directory / "pid").read_text())
        else:
            words = ("broker", "-c", str(conf))
            pid = self._running.enter_context(server(words, store.parent / "broker.log"))
        return RunningBroker(self._oracle, address, f"127.0.0.1:{port}", pid, store)


def in_sync(master: RunningBroker, questions: ClusterQuestions) -> list[int]:
    """How far behind the master's end each slave is, as the master tells operators."""
    (answer,) = questions.ask(master.address, [make_call(RequestCode.GET_BROKER_HA_STATUS)])
    return [slave.diff for slave in answer.body(HaRuntimeInfo).connections]


def wait_for_slaves(master: RunningBroker, count: int) -> None:
    """Until so many hold all of its log. Raises RuntimeError where they do not."""
    questions, end = ClusterQuestions(master.settings), time.monotonic() + PATIENCE_S
    try:
        while sum(diff == 0 for diff in in_sync(master, questions)) < count:
            if time.monotonic() > end:
                raise RuntimeError(f"{master.store}: {count} slaves do not hold its log after {PATIENCE_S:.0f} s")
            time.sleep(POLL_SECONDS)
    finally:
        questions.close()


@contextmanager
def replicated(peer: Peer, slaves: int, asked: argparse.Namespace, home: Path) -> Iterator[RunningBroker]:
    """The master of a group whose slaves are all in sync."""
    shutil.rmtree(home, ignore_errors=True)
    with Group(peer, asked.oracle, home) as group:
        role = ("brokerRole=SYNC_MASTER", f"inSyncReplicas={slaves + 1}", "slaveTimeout=60000")
        master = group.start_master(f"flushDiskType={asked.flush}", *role)
        for number in range(slaves):
            group.start_slave(number + 1)
        master.make_topics([TOPIC, COMMITTED_TOPIC], QUEUES)
        wait_for_slaves(master, slaves)
        yield master
    shutil.rmtree(home)


@dataclass(frozen=True, slots=True)
class Bench:
    asked: argparse.Namespace
    console: Console
    home: Path

    def puts(self) -> None:
        """Print how long sends take by how many slaves have them."""
        table = Table(title=f"Sends by {THREADS} threads, 1 KiB, {self.asked.flush}")
        table.add_column("group")
        for heading in ("slaves", "messages/s", "p50 ms", "p99 ms", "longest ms"):
            table.add_column(heading, justify="right")
        for slaves in self.asked.slaves:
            for peer in NAMES:
                rates, taken = self._sends(peer, slaves)
                values = (*np.percentile(taken, (50, 99)), taken.max())
                rate = f"{np.median(rates):,.0f} ({min(rates):,.0f} – {max(rates):,.0f})"
                table.add_row(NAMES[peer], str(slaves), rate, *(f"{value:.2f}" for value in values))
                self.console.print(f"sends: {NAMES[peer]}, {slaves} slaves: {rate}")
        self.console.print(table)

    def _sends(self, peer: Peer, slaves: int) -> tuple[list[float], np.ndarray]:
        rates, parts = [], []
        with ExitStack() as running:
            master = running.enter_context(replicated(peer, slaves, self.asked, self.home / "group"))
            client, file = running.enter_context(java_peer(master, master.store.parent)), master.store.parent / "taken"
            client.run("timed", TOPIC, self.asked.seconds, THREADS, file)  # warm
            for _ in range(self.asked.rounds):
                done = client.run("timed", TOPIC, self.asked.seconds, THREADS, file)
                rates.append(done.messages / done.seconds)
                parts.append(np.fromfile(file, TIMES)["taken_ns"].astype(np.float64) / 1e6)
        return rates, np.concatenate(parts)

    def catch_up(self) -> None:
        """Print how fast a new slave gets a log."""
        table = Table(title=f"A new slave catches up with a log of {self.asked.messages:,} messages of 1 KiB")
        table.add_column("group")
        for heading in ("MiB it got", "seconds", "MiB/s"):
            table.add_column(heading, justify="right")
        for peer in NAMES:
            directory = self.home / "catch-up"
            shutil.rmtree(directory, ignore_errors=True)
            with Group(peer, self.asked.oracle, directory) as group:
                master = group.start_master()
                master.make_topics([TOPIC], QUEUES)
                with java_peer(master, master.store.parent) as client:
                    self._load(client)
                for number in range(self.asked.rounds):
                    slave = group.start_slave(number + 1)  # the connection follows the start; Java's, up to 5 s later
                    seconds = self._caught_up(master, number + 1)
                    size = log_bytes(slave.store) / (1 << 20)  # Java's master sends no more than its last file
                    table.add_row(NAMES[peer], f"{size:,.0f}", f"{seconds:.1f}", f"{size / seconds:,.0f}")
                    self.console.print(f"catch-up: {NAMES[peer]}: {size / seconds:,.0f} MiB/s")
            shutil.rmtree(directory)
        self.console.print(table)

    def _load(self, client: ClientPeer) -> None:
        client.run("batch", TOPIC, self.asked.messages, 2, BATCH_MESSAGES)

    def _caught_up(self, master: RunningBroker, slaves: int) -> float:
        """From the moment in which the newest slave has got its first bytes until it has all."""
        questions, end = ClusterQuestions(master.settings), time.monotonic() + PATIENCE_S
        begun = None
        try:
            while time.monotonic() < end:
                behind = in_sync(master, questions)
                now = time.monotonic()
                if len(behind) == slaves and begun is None:
                    begun = now
                if len(behind) == slaves and not any(behind):
                    return now - (begun or now) or POLL_SECONDS
                time.sleep(POLL_SECONDS)
        finally:
            questions.close()
        raise RuntimeError(f"{master.store}: a new slave does not catch up within {PATIENCE_S:.0f} s")

    def batches(self) -> None:
        """Print how long a sink's batch takes by how many slaves have it."""
        rows = self.asked.rows
        table = Table(title=f"A sink's batch of {rows:,} rows of 1 KiB, handed to our broker")
        for heading in ("slaves", "seconds", "rows/s"):
            table.add_column(heading, justify="right")
        for slaves in self.asked.slaves:
            taken = []
            with replicated("spark_mq", slaves, self.asked, self.home / "group") as master:
                given = {"path": str(master.store), "conf": str(master.store.parent / "broker.conf")}
                options = SinkOptions.parse({**given, "topic": COMMITTED_TOPIC, "sinkId": "bench"}, "streaming")
                for number in range(self.asked.rounds + 1):
                    staged = staged_rows(options, rows, BODY_SIZE_BYTES, number)
                    begun = time.monotonic()
                    commit_rows(options, [staged], number, mirrored=True)
                    taken.append(time.monotonic() - begun)
            seconds = float(np.median(taken[1:]))  # the first one is the warm-up
            table.add_row(str(slaves), f"{seconds:.2f}", f"{rows / seconds:,.0f}")
            self.console.print(f"batches: {slaves} slaves: {seconds:.2f} s")
        self.console.print(table)


def log_bytes(store: Path) -> int:
    """What the log takes on the disk."""
    return sum(file.stat().st_blocks * 512 for file in (store / "commitlog").iterdir())


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.replication", description=(__doc__ or "").splitlines()[0])
    home = Path(os.environ.get("SPARK_MQ_BENCH_HOME", ROOT / "build" / "bench"))
    oracle = ROOT / "tests" / "oracle" / "oracle.sh"
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="measure nothing else")
    parser.add_argument("--slaves", nargs="+", type=int, default=(0, 1, 2), help="groups with so many (0 1 2)")
    parser.add_argument("--messages", type=int, default=1_900_000, help="of the log to catch up (%(default)s: 2.6 GiB)")
    parser.add_argument("--rows", type=int, default=200_000, help="of a batch (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="of each (default %(default)s)")
    parser.add_argument("--seconds", type=int, default=10, help="of sends, a round (default %(default)s)")
    parser.add_argument("--flush", choices=("ASYNC_FLUSH", "SYNC_FLUSH"), default="ASYNC_FLUSH")
    parser.add_argument("--quick", action="store_true", help="a look at whether all of it works; no figures to quote")
    parser.add_argument("--home", type=Path, default=home, help="for stores (default %(default)s)")
    parser.add_argument("--oracle", type=Path, default=oracle, help="starts the Apache brokers (default %(default)s)")
    asked = parser.parse_args(arguments)
    if asked.quick:
        asked.messages, asked.rows, asked.rounds, asked.seconds = 50_000, 20_000, 1, 3
    return asked


def main(arguments: list[str]) -> None:
    asked = parse(arguments)
    console = Console(width=None if sys.stdout.isatty() else 160)
    home = Path(asked.home).resolve() / "replication"
    shutil.rmtree(home, ignore_errors=True)
    bench = Bench(asked, console, home)
    if "puts" in asked.only:
        bench.puts()
    if "catch-up" in asked.only:
        bench.catch_up()
    if "batches" in asked.only:
        bench.batches()
    shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # as an interrupt: brokers are stopped
    main(sys.argv[1:])
