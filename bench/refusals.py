"""`python -m bench.refusals`: sends that brokers refuse on a busy machine, ours beside Apache's.

Both brokers have Java's default limits: a send that has waited for 200 ms is refused. A process per core computes meanwhile. Java's
client sends each message once, at one broker and then at the other, round by round.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.broker import NAMES, ROOT, _made, our_broker
from bench.client_peer import java_peer
from bench.measure import Peer
from bench.rocketmq_broker import running_broker

WAYS = {"400 in flight, 400 messages": (400, 400), "256 in flight, 20,000 messages": (20_000, 256)}


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """So many processes that compute."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.refusals", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="beside two to warm up (default %(default)s)")
    parser.add_argument(
        "--loops", type=int, default=os.cpu_count(), help="processes that compute (default: one a core)"
    )
    parser.add_argument("--ours-only", action="store_true", help="without Apache's broker")
    parser.add_argument(
        "--home", type=Path, default=Path(os.environ.get("SPARK_MQ_BENCH_HOME", ROOT / "build" / "bench"))
    )
    asked = parser.parse_args(arguments)
    home = asked.home.resolve() / "refusals"
    shutil.rmtree(home, ignore_errors=True)
    oracle = ROOT / "tests" / "oracle" / "oracle.sh"
    table = Table("messages", "broker", "refused, each round", "refused", "k/s stored (least - greatest)")
    with ExitStack() as running:
        brokers = {}
        if not asked.ours_only:
            brokers["java"] = running.enter_context(
                running_broker(oracle, _made(home / "apache"), home / "apache" / "store")
            )
        brokers["spark_mq"] = running.enter_context(our_broker(oracle, _made(home / "ours"), home / "ours" / "store"))
        clients = {
            peer: running.enter_context(java_peer(broker, broker.store.parent)) for peer, broker in brokers.items()
        }
        for broker in brokers.values():
            broker.make_topics(["burst"], 4)
        running.enter_context(busy_loops(asked.loops))
        for name, (messages, in_flight) in WAYS.items():
            refused: dict[Peer, list[int]] = {peer: [] for peer in brokers}
            rates: dict[Peer, list[float]] = {peer: [] for peer in brokers}
            for _ in range(2 + asked.rounds):
                for peer, client in clients.items():
                    done = client.run("burst", "burst", messages, in_flight)
                    refused[peer].append(done.body_bytes)
                    rates[peer].append((messages - done.body_bytes) / done.seconds / 1_000)
            for peer in brokers:
                counts, found = refused[peer][2:], sorted(rates[peer][2:])
                share = sum(counts) / messages / len(counts)
                rate = f"{statistics.median(found):.1f} ({found[0]:.1f} - {found[-1]:.1f})"
                table.add_row(name, NAMES[peer], " ".join(map(str, counts)), f"{share:.1%}", rate)
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    shutil.rmtree(home)


if __name__ == "__main__":
    main(sys.argv[1:])
