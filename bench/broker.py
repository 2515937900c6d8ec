"""`python -m bench.broker`: our broker beside Apache's. Java's clients send to both and consume from both, in turn.

    sends      waited for by 1, 8 and 64 threads; 512 in flight; batches of 32. A round is a new topic
    consumers  Java's lite pull consumer and its push consumer, a topic that holds as many messages at both brokers
    latency    how long single sends take: alone, beside another producer's batches, and in ours beside a sink's commit

Each broker has a name server and a Java program of its own. Both brokers run all the time; the one whose turn it is not idles.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from bench.broker_latency import LatencyPeer, measure_latency
from bench.client_peer import ClientPeer, java_peer
from bench.live_clients import CONSUMED_TOPIC, IN_FLIGHT, ConsumerCase, ProducerCase, Way
from bench.live_sinks import FreshTopic
from bench.measure import BY_JAVA, Case, Peer, Processes, Result, measure, table
from bench.messages import BATCH_MESSAGES, QUEUES
from bench.ports import free_port
from bench.rocketmq_broker import CLEANS_AT_ONCE, UNHURRIED, Oracle, RunningBroker, running_broker
from bench.shared_commit import server

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("sends", "consumers", "latency")
HEADINGS = ("broker", "way")
NAMES: dict[Peer, str] = {"java": "Apache's", "spark_mq": "ours"}
BATCH_THREADS = 2
QUICK_MESSAGES = 4_000


def send_ways(messages: int) -> list[Way]:
    """Each moves a part of the messages that takes a few seconds."""
    return [
        Way("send, 1 thread", "sync", (1,), messages // 20),
        Way("send, 8 threads", "sync", (8,), messages // 5),
        Way("send, 64 threads", "sync", (64,), messages // 5),
        Way(f"send_async, {IN_FLIGHT} in flight", "async", (IN_FLIGHT,), messages // 2),
        Way(
            f"batches of {BATCH_MESSAGES}, {BATCH_THREADS} threads", "batch", (BATCH_THREADS, BATCH_MESSAGES), messages
        ),
    ]


def consumer_ways(messages: int) -> list[Way]:
    """The first of the numbers says whether the bodies' CRCs are summed up."""
    return [
        Way("lite pull consumer", "pull", (0,), messages),
        Way(f"push consumer, {BATCH_MESSAGES} a call", "push", (0, BATCH_MESSAGES), messages),
    ]


@dataclass(slots=True)
class SendCase(ProducerCase):
    """Java's producer sends to a new topic of one broker."""

    @property
    def labels(self) -> tuple[str, ...]:
        return NAMES[self.peer], self.way.name


@dataclass(slots=True)
class ConsumeCase(ConsumerCase):
    """Java's consumer reads a topic of one broker from its beginning, as a new group."""

    @property
    def labels(self) -> tuple[str, ...]:
        return NAMES[self.peer], self.way.name


@contextmanager
def our_broker(script: Path, directory: Path, store: Path, *settings: str) -> Iterator[RunningBroker]:
    """Our name server and our broker over `store`; both leave their settings and logs in `directory`."""
    name_server_port, port = free_port(), free_port(-2, 1)
    oracle = Oracle(script.resolve(), os.environ | {"TMPDIR": str(directory)})
    oracle.run("build")  # the client's classes
    (directory / "names.conf").write_text(f"listenPort={name_server_port}\nkvConfigPath={directory}/kv.json\n")
    name_server = f"127.0.0.1:{name_server_port}"
    lines = (
        f"storePathRootDir={store}",
        f"listenPort={port}",
        "brokerIP1=127.0.0.1",
        "brokerName=broker-bench",
        f"namesrvAddr={name_server}",
        *settings,
    )
    conf = directory / "broker.conf"
    conf.write_text("".join(f"{line}\n" for line in lines))
    with (
        server(("namesrv", "-c", str(directory / "names.conf")), directory / "names.log"),
        server(("broker", "-c", str(conf)), directory / "broker.log") as pid,
    ):
        yield RunningBroker(oracle, name_server, f"127.0.0.1:{port}", pid, store)


@dataclass(frozen=True, slots=True)
class Bench:
    """What is asked for, the brokers that run, and a Java program at each."""

    asked: argparse.Namespace
    console: Console
    brokers: Mapping[Peer, RunningBroker]
    clients: Mapping[Peer, ClientPeer]

    def sends(self) -> None:
        """Print how fast they take messages."""
        topics = {peer: FreshTopic(self.brokers[peer], self.clients[peer]) for peer in self.brokers}
        results: list[Result] = []
        for way in self._chosen(send_ways(self.asked.messages)):
            cases = [SendCase(peer, self.clients[peer], way, topics[peer]) for peer in self.brokers]
            results += self._measured(cases, way.messages)
        self.console.print(table("Sending to a broker, bodies of 1 KiB", HEADINGS, results, (BY_JAVA,)))

    def consumers(self) -> None:
        """Print how fast they give messages."""
        messages = self.asked.messages * 2
        for peer, broker in self.brokers.items():
            broker.make_topics([CONSUMED_TOPIC], QUEUES)
            self.clients[peer].run("batch", CONSUMED_TOPIC, messages, BATCH_THREADS, BATCH_MESSAGES)
        results: list[Result] = []
        for way in self._chosen(consumer_ways(messages)):
            cases = [ConsumeCase(peer, self.clients[peer], way) for peer in self.brokers]
            results += self._measured(cases, way.messages)
        self.console.print(table("Consuming from a broker, bodies of 1 KiB", HEADINGS, results, (BY_JAVA,)))

    def latency(self, home: Path) -> None:
        """Print how long single sends take."""
        with ExitStack() as running:
            peers = [
                LatencyPeer(
                    NAMES[peer],
                    broker,
                    self.clients[peer],
                    running.enter_context(java_peer(broker, _made(home / f"beside-{peer}"))),
                    home / f"{peer}.latencies",
                    broker.store.parent / "broker.conf" if peer == "spark_mq" else None,
                )
                for peer, broker in self.brokers.items()
            ]
            measure_latency(
                self.console, peers, rows=self.asked.messages, rounds=self.asked.rounds, seconds=self.asked.seconds
            )

    def _chosen(self, ways: list[Way]) -> list[Way]:
        only = self.asked.ways
        return [way for way in ways if not only or any(word in way.name for word in only)]

    def _measured(self, cases: list[SendCase] | list[ConsumeCase], messages: int) -> list[Result]:
        def processes(case: Case) -> Processes:
            return Processes(jvm=self.clients[case.peer].pid, broker=self.brokers[case.peer].pid)

        progress: Callable[[str], None] = self.console.print
        rounds = self.asked.rounds
        return measure(list(cases), messages=messages, rounds=rounds, processes=processes, progress=progress)


def _made(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.broker", description=(__doc__ or "").splitlines()[0])
    home = Path(os.environ.get("SPARK_MQ_BENCH_HOME", ROOT / "build" / "bench"))
    oracle = ROOT / "tests" / "oracle" / "oracle.sh"
    parser.add_argument(
        "--messages", type=int, default=200_000, help="in batches; other ways move parts or twice as many (%(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=5, help="beside the warm-up (default %(default)s)")
    parser.add_argument("--seconds", type=int, default=15, help="of single sends, a round (default %(default)s)")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="measure nothing else")
    parser.add_argument("--ways", nargs="+", default=(), help="only the ways whose names hold one of these texts")
    parser.add_argument("--flush", choices=("ASYNC_FLUSH", "SYNC_FLUSH"), default="ASYNC_FLUSH")
    parser.add_argument("--ours-only", action="store_true", help="without Apache's broker")
    parser.add_argument("--quick", action="store_true", help="a look at whether all of it works; no figures to quote")
    parser.add_argument("--home", type=Path, default=home, help="for stores (default %(default)s)")
    parser.add_argument("--oracle", type=Path, default=oracle, help="starts the Apache broker (default %(default)s)")
    asked = parser.parse_args(arguments)
    if asked.quick:
        asked.messages, asked.rounds, asked.seconds = QUICK_MESSAGES, 1, 4
    return asked


def main(arguments: list[str]) -> None:
    asked = parse(arguments)
    console = Console(width=None if sys.stdout.isatty() else 160)
    home = Path(asked.home).resolve() / "broker"
    shutil.rmtree(home, ignore_errors=True)
    settings = (f"flushDiskType={asked.flush}", CLEANS_AT_ONCE, *UNHURRIED)
    with ExitStack() as running:
        brokers: dict[Peer, RunningBroker] = {}
        if not asked.ours_only:
            directory = _made(home / "apache")
            broker = running_broker(asked.oracle, directory, directory / "store", *settings)
            brokers["java"] = running.enter_context(broker)
        directory = _made(home / "ours")
        brokers["spark_mq"] = running.enter_context(our_broker(asked.oracle, directory, directory / "store", *settings))
        clients = {
            peer: running.enter_context(java_peer(broker, broker.store.parent)) for peer, broker in brokers.items()
        }
        bench = Bench(asked, console, brokers, clients)
        if "sends" in asked.only:
            bench.sends()
        if "consumers" in asked.only:
            bench.consumers()
        if "latency" in asked.only:
            bench.latency(_made(home / "latency"))
    shutil.rmtree(home)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # as an interrupt: brokers are stopped
    main(sys.argv[1:])
