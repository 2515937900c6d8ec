"""What a broker's handlers take: sends a second by 1 and by 8 threads, and what it costs to end a transaction with much behind it.

    one lock   the handler in front of a `DirectService`, one request at a time: all that a store without a service allows
    service    the handler in front of a `PutService`: the put lock for the append only, one sync for all that wait

Without Spark and without sockets. Processor time is the whole process's; it holds still where other load moves the clock.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from spark_mq.broker.end_transaction import TransactionEnder, request_for
from spark_mq.broker.requests import ClientConnection, Request
from spark_mq.broker.send import SendMessageHandler
from spark_mq.remoting import RequestCode, make_request
from spark_mq.remoting.messages import SendMessageRequest
from storage import MessageStore, open_store
from storage.format.record import TRANSACTION_COMMIT
from storage.rules.half_messages import half_message
from storage.rules.inner_messages import InnerMessage
from storage.service.put_service import DirectService, PutService
from storage.tables.topics import TopicConfig

TOPIC, QUEUES, BODY_BYTES = "Orders", 8, 1_024
WAYS = ("one lock", "service")
FLUSHES = ("SYNC_FLUSH", "ASYNC_FLUSH")
THREADS = (1, 8)
BEHIND = (1_000, 10_000, 50_000)
_CLIENT = ClientConnection(bytes((127, 0, 0, 1)) + (4711).to_bytes(4, "big"), "127.0.0.1:4711")
Send = Callable[[Request], bool]


class SendFigure(NamedTuple):
    """Of one way to send."""

    way: str
    flush: str
    threads: int
    rates: list[float]
    """Messages a second, round by round."""
    cpu_us: list[float]
    """Processor time of a message, round by round."""


class EndFigure(NamedTuple):
    """Of a transaction that is committed with so many records behind its half."""

    behind: int
    cpu_ms: float
    seconds: float


@contextmanager
def sender(way: str, flush: str, root: Path) -> Iterator[Send]:
    """What sends in this way, into a new store."""
    store = open_store(root, read_only=False, create=True, flush_disk_type=flush)
    store.save_topic(TopicConfig(TOPIC, QUEUES, QUEUES))
    if way == "service":
        with PutService(store) as service:
            handler = SendMessageHandler(service)
            yield lambda request: handler.send(request).code == 0
        return
    lock, alone = threading.Lock(), SendMessageHandler(DirectService(store))

    def send(request: Request) -> bool:
        with lock:
            return alone.send(request).code == 0

    with store:
        yield send


def cpu_seconds() -> float:
    """Of this process: user and system."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def send_many(send: Send, threads: int, messages: int) -> tuple[float, float]:
    """Seconds by the clock and of processors for so many messages by so many threads. Raises RuntimeError where one was not stored."""
    command = make_request(RequestCode.SEND_MESSAGE, None, bytes(BODY_BYTES))

    def send_some(thread: int) -> int:
        header = SendMessageRequest(
            producer_group="bench", topic=TOPIC, queue_id=thread % QUEUES, sys_flag=0, born_time_ms=0, flag=0
        )
        own = Request(_CLIENT, command, header, 0)
        return sum(send(own) for _ in range(messages // threads))

    with ThreadPoolExecutor(threads) as pool:
        cpu, start = cpu_seconds(), time.perf_counter()
        stored = sum(pool.map(send_some, range(threads)))
        taken = time.perf_counter() - start, cpu_seconds() - cpu
    if stored != messages // threads * threads:
        raise RuntimeError(f"{messages - stored} of {messages} messages were not stored")
    return taken


def send_figures(home: Path, messages: int, rounds: int, ways: Sequence[str] = WAYS) -> list[SendFigure]:
    """All ways, in turn in each round; a round before the first warms up."""
    figures = [SendFigure(way, flush, threads, [], []) for way in ways for flush in FLUSHES for threads in THREADS]
    home.mkdir(parents=True, exist_ok=True)
    for number in range(rounds + 1):
        for figure in figures:
            directory = Path(tempfile.mkdtemp(dir=home))
            try:
                with sender(figure.way, figure.flush, directory / "store") as send:
                    seconds, cpu = send_many(send, figure.threads, messages)
            finally:
                shutil.rmtree(directory)
            if number:
                figure.rates.append(messages / seconds)
                figure.cpu_us.append(cpu / messages * 1e6)
    return figures


def end_figures(home: Path, behind: Sequence[int] = BEHIND, rounds: int = 5) -> list[EndFigure]:
    """Medians of committing one transaction, each with as many records more behind its half."""
    home.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(dir=home))
    try:
        with open_store(directory / "store", read_only=False, create=True, flush_disk_type="ASYNC_FLUSH") as store:
            return [_end_figure(store, count, rounds) for count in behind]
    finally:
        shutil.rmtree(directory)


def _end_figure(store: MessageStore, behind: int, rounds: int) -> EndFigure:
    now_ms = store.writer.clock()
    message = InnerMessage(topic=TOPIC, queue_id=0, body=bytes(100), properties={}, born_time_ms=now_ms)
    ender = TransactionEnder.of(store, now_ms)
    taken = []
    for number in range(rounds + 1):
        half = half_message(replace(message, properties={"UNIQ_KEY": f"K{behind}-{number}"}), "bench")
        place = store.put_inner([half]).column("commitlog_offset")[0].as_py()
        store.put_inner([message] * behind)
        request = request_for(store.message_by_commitlog_offset(place), TRANSACTION_COMMIT)
        cpu, start = cpu_seconds(), time.perf_counter()
        ender.end(request, now_ms)
        taken.append((cpu_seconds() - cpu, time.perf_counter() - start))
    ender.close(now_ms)
    cpus, seconds = zip(*taken[1:], strict=True)
    return EndFigure(behind, median(cpus) * 1e3, median(seconds))


def send_table(figures: Sequence[SendFigure]) -> Table:
    """Medians (least - greatest) of the rounds."""
    table = Table(title=f"Send handler, {BODY_BYTES} byte bodies", caption="processor: µs a message, the whole process")
    for heading in ("way", "flush", "threads"):
        table.add_column(heading, no_wrap=True)
    for heading in ("messages/s", "processor"):
        table.add_column(heading, justify="right", no_wrap=True)
    for figure in figures:
        rates = figure.rates
        shown = f"{median(rates):,.0f} ({min(rates):,.0f} - {max(rates):,.0f})"
        table.add_row(figure.way, figure.flush, str(figure.threads), shown, f"{median(figure.cpu_us):,.0f}")
    return table


def end_table(figures: Sequence[EndFigure]) -> Table:
    """By what lies behind."""
    table = Table(title="End-transaction handler: one commit")
    for heading in ("records behind the half", "processor ms", "ms"):
        table.add_column(heading, justify="right", no_wrap=True)
    for figure in figures:
        table.add_row(f"{figure.behind:,}", f"{figure.cpu_ms:.2f}", f"{figure.seconds * 1e3:.2f}")
    return table


def print_tables(
    console: Console, home: Path, messages: int = 1_000, rounds: int = 3, ways: Sequence[str] = WAYS
) -> None:
    """Measure, and print both tables."""
    console.print(send_table(send_figures(home, messages, rounds, ways)))
    console.print(end_table(end_figures(home)))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.handlers", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--home", type=Path, default=Path("build/bench/handlers"), help="for stores (%(default)s)")
    parser.add_argument("--messages", type=int, default=1_000, help="a round (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="beside the warm-up (default %(default)s)")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS, help="measure nothing else")
    asked = parser.parse_args()
    print_tables(Console(), asked.home, asked.messages, asked.rounds, asked.ways)


if __name__ == "__main__":
    main()
