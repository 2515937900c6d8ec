"""`python -m bench.first_query STORE`: how long a session waits for its first row, and how much memory reads and writes take at most.

`--project` names other checkouts of this project, which run in turns with this one: a version before, beside the one now. Each run is a
driver of its own. "no cache" runs with an empty cache of compiled code, "cache" with one that a run before has filled.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from bench.cpu import below

HERE = Path(__file__).resolve().parent.parent
ROUNDS, LOOK_SECONDS = 5, 0.01
START = """
import sys, time
began = time.perf_counter()
from spark_mq.session import build_session
spark = build_session("first query", master="local[2]")
spark.sparkContext.setLogLevel("ERROR")
spark.range(1).collect()
ready = time.perf_counter()
"""
FIRST_ROWS = """
def first_row():
    start = time.perf_counter()
    assert spark.read.format("spark_mq").option("subscribePattern", ".*").load(sys.argv[1]).limit(1).count() == 1
    return time.perf_counter() - start
print("FIGURES", ready - began, first_row(), first_row())
"""
READ = """
spark.read.format("spark_mq").option("subscribePattern", ".*").load(sys.argv[1]).write.format("noop").mode("append").save()
"""
WRITE = """
rows = spark.range(1_000_000).selectExpr("'T' topic", "cast(repeat('x', 1024) as binary) body", "cast(id as string) keys")
rows.write.format("spark_mq").option("path", sys.argv[2]).option("writeId", "w").mode("append").save()
"""
_WORKER = re.compile(r"pyspark[.\w]*")


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.first_query", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("store", type=Path, help="a store with many messages")
    parser.add_argument("--project", type=Path, action="append", default=[], help="another checkout (may be repeated)")
    parser.add_argument(
        "--rounds", type=int, default=ROUNDS, help="of starts, 0 for memory alone (default %(default)s)"
    )
    asked = parser.parse_args(arguments)
    projects = [*asked.project, HERE]
    console = Console(width=None if sys.stdout.isatty() else 140)
    with tempfile.TemporaryDirectory() as directory:
        if asked.rounds:
            console.print(_starts(projects, asked.store, Path(directory), asked.rounds))
        console.print(_memory(projects, asked.store, Path(directory)))


def _starts(projects: list[Path], store: Path, home: Path, rounds: int) -> Table:
    ways = [(project, has_cache) for project in projects for has_cache in (False, True)]
    found: dict[tuple[Path, bool], list[list[float]]] = {way: [] for way in ways}
    for _ in range(rounds):
        for project, has_cache in ways:
            cache = home / ("cache" if has_cache else "no-cache")
            if not has_cache:
                shutil.rmtree(cache, ignore_errors=True)
            output = _run(project, START + FIRST_ROWS, cache, store)
            found[project, has_cache].append([float(text) for text in output.split("FIGURES", 1)[1].split()[:3]])
    table = Table(title="Seconds", caption="median (least - greatest)")
    for name in ("project", "compiled code", "session", "first row", "first row of the next query"):
        table.add_column(name)
    for (project, has_cache), figures in found.items():
        columns = [f"{median(each):.2f} ({min(each):.2f} - {max(each):.2f})" for each in zip(*figures, strict=True)]
        table.add_row(project.name, "cache" if has_cache else "no cache", *columns)
    return table


def _memory(projects: list[Path], store: Path, home: Path) -> Table:
    table = Table(title="Memory at most, MiB", caption="of the largest process of a kind: anonymous pages")
    for name in ("project", "work", "process", "MiB"):
        table.add_column(name)
    for project in projects:
        for work, program in (("read all columns", READ), ("write 1,000,000 rows", WRITE)):
            target = home / "target"
            shutil.rmtree(target, ignore_errors=True)
            peaks: dict[str, int] = {}
            _run(project, START + program, home / "cache", store, target, peaks)
            for process, size in sorted(peaks.items()):
                table.add_row(project.name, work, process, f"{size >> 20:,}")
    return table


def _run(
    project: Path,
    program: str,
    cache: Path,
    store: Path,
    target: Path | None = None,
    peaks: dict[str, int] | None = None,
) -> str:
    """What the driver writes; `peaks` gets the greatest memory of each kind of process that it starts."""
    environment = {**os.environ, "PYTHONPATH": str(project), "XDG_CACHE_HOME": str(cache)}
    command = [sys.executable, "-c", program, str(store), str(target)]
    with (
        tempfile.TemporaryFile("w+") as output,
        subprocess.Popen(command, cwd=project, env=environment, stdout=output, stderr=subprocess.STDOUT) as driver,
    ):
        with _watching(driver.pid, peaks):
            code = driver.wait()
        output.seek(0)
        text = output.read()
    if code:
        raise RuntimeError(f"{project}: the driver ended with {code}: {text[-2_000:]}")
    return text


@contextmanager
def _watching(pid: int, peaks: dict[str, int] | None) -> Iterator[None]:
    ended = threading.Event()

    def watch(peaks: dict[str, int]) -> None:
        while not ended.wait(LOOK_SECONDS):
            for child in below(pid):
                if (found := _memory_of(child)) is not None:
                    kind, size = found
                    peaks[kind] = max(size, peaks.get(kind, 0))

    thread = threading.Thread(target=watch, args=(peaks,)) if peaks is not None else None
    if thread is not None:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        if thread is not None:
            thread.join()


def _memory_of(pid: int) -> tuple[str, int] | None:
    """Which kind of Python process it is, and its anonymous pages, in bytes; None of others, and of one that has ended."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    kinds = [word for word in words if _WORKER.fullmatch(word)]
    sizes = [int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:")]
    return (kinds[-1], sizes[0]) if kinds and sizes else None


if __name__ == "__main__":
    started = time.monotonic()
    main(sys.argv[1:])
    print(f"{time.monotonic() - started:.0f} s")
