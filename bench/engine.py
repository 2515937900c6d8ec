"""The storage engine alone, without Spark: what one core does with a store."""

from __future__ import annotations

import random
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

from rich.table import Table

from bench.messages import TOPIC, key_of
from spark_mq.source.rows import COLUMNS, KAFKA_COLUMNS, Column, RowSource, arrow_schema, to_record_batch, wanted_of
from storage import MessageStore, open_store
from storage.files.file_system import Scratch
from storage.files.local_file_system import LocalFileSystem
from storage.queues.scan import scan_queue

ROUNDS = 5
LOOKUPS = 2_000
DECODED_MESSAGES = 500_000


@dataclass(frozen=True, slots=True)
class EngineRow:
    what: str
    figure: str
    """With its unit."""


def engine_rows(store: Path, opening_store: Path | None) -> list[EngineRow]:
    """The engine's figures over `store`; the opening time is `opening_store`'s (10 GiB of log), if made."""
    with open_store(store) as opened:
        kafka = [column for column in KAFKA_COLUMNS.values() if column.name != "headers"]
        rows = [
            EngineRow("decode, Kafka's columns", _decode_rate(opened, kafka)),
            EngineRow("decode, all columns", _decode_rate(opened, list(COLUMNS.values()))),
            EngineRow("key look-up", _lookup_times(opened)),
        ]
    rows.append(EngineRow("queues and index rebuilt from the log", _rebuild_rate(store)))
    for path in (store, opening_store):
        if path is not None:
            rows.append(EngineRow(f"open for reading, log of {_log_bytes(path) / 2**30:.1f} GiB", _opening_time(path)))
    return rows


def shown(figures: Sequence[float], form: str) -> str:
    low, middle, high = (format(figure, form) for figure in (min(figures), median(figures), max(figures)))
    return f"{middle} ({low} - {high})"


def _decode_rate(store: MessageStore, columns: list[Column]) -> str:
    schema = arrow_schema(columns)
    log = store.layout.commit_log(LocalFileSystem(), Scratch())  # as Spark's tasks read it

    def decode() -> int:
        done = 0
        for queue in (queue for queue in store.queues if queue.topic == TOPIC):
            end = min(store.max_offset(TOPIC, queue.queue_id), DECODED_MESSAGES // len(store.queue_ids(TOPIC)))
            for part in scan_queue(queue, log, store.log_end, 0, end, wanted=wanted_of(columns)):
                done += to_record_batch(RowSource(part, TOPIC, "broker", queue.queue_id), columns, schema).num_rows
        return done

    messages = decode()
    decode()  # a process loads compiled code when it has had so many rows
    return shown([messages / seconds / 1_000 for seconds in seconds_of(decode)], ",.0f") + " k messages/s"


def seconds_of(work: Callable[[], object], rounds: int = ROUNDS) -> list[float]:
    """Seconds of each round."""
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return seconds


def _lookup_times(store: MessageStore) -> str:
    messages = sum(store.max_offset(TOPIC, queue_id) for queue_id in store.queue_ids(TOPIC))
    keys = [key_of(number) for number in random.Random(1).choices(range(messages), k=LOOKUPS)]
    times = []
    for key in keys:
        start = time.perf_counter()
        found = store.query(TOPIC, key)
        times.append((time.perf_counter() - start) * 1e6)
        if key not in [one for message in found for one in message.keys]:
            raise RuntimeError(f"key {key} was not found")
    percent = quantiles(times, n=100)
    return f"p50 {percent[49]:,.0f} us, p99 {percent[98]:,.0f} us ({LOOKUPS:,} of {messages:,} keys)"


def _rebuild_rate(store: Path) -> str:
    copy = store.parent / "rebuilt" / "store"  # not beside the other store's broker.conf
    mebibytes = _log_bytes(store) / 2**20
    rates = []
    for _ in range(3):
        shutil.rmtree(copy, ignore_errors=True)
        copy.parent.mkdir(exist_ok=True)
        subprocess.run(["cp", "-a", "--sparse=always", "--reflink=auto", store, copy], check=True)
        shutil.rmtree(copy / "consumequeue")
        shutil.rmtree(copy / "index")
        subprocess.run(["sync", "-f", store], check=True)
        start = time.perf_counter()
        open_store(copy, read_only=False).close()
        rates.append(mebibytes / (time.perf_counter() - start))
    shutil.rmtree(copy.parent)
    return shown(rates, ",.0f") + " MiB/s"


def _opening_time(store: Path) -> str:
    return shown([1_000 * seconds for seconds in seconds_of(lambda: open_store(store).close())], ",.0f") + " ms"


def _log_bytes(store: Path) -> int:
    with open_store(store) as opened:
        return opened.log_end - opened.log.minimum


def table(title: str, rows: Sequence[EngineRow], *, heading: str = "engine alone, one core") -> Table:
    made = Table(heading, "figure", title=title, caption="median (least - greatest)")
    for row in rows:
        made.add_row(row.what, row.figure)
    return made
