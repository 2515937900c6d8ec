"""`python -m bench.startup`: processor seconds until a command has ended, a server is ready, or a first query has its first row.

Each round runs every case once, so a change of the machine's speed meets all of them. The figures are the median, and in brackets the
least and the greatest round. The load is the machine's, in the minute before the first round.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from bench.cpu import own_cpu_seconds
from bench.ports import free_port
from spark_mq.example_store import unpack_example_store
from spark_mq.testing import Cluster

ROUNDS = 5
COMMAND = Path(sys.executable).with_name("spark-mq")
READY = "boot success"
FIRST_QUERY = """
import sys, time
from bench.cpu import Below, own_cpu_seconds
from spark_mq.session import build_session
seen = []

def look():
    python = time.process_time() + (workers.seconds() if jvm else 0)
    seen.append((time.perf_counter() - began, own_cpu_seconds(jvm) if jvm else 0, python))

began, jvm = time.perf_counter(), 0
look()
spark = build_session("first query", master="local[2]")
jvm = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
workers = Below(jvm)
look()
spark.range(1).collect()
look()
spark.read.format("spark_mq").option("subscribePattern", ".*").load(sys.argv[1]).limit(1).collect()
look()
spark.read.format("spark_mq").option("subscribePattern", ".*").load(sys.argv[1]).limit(1).collect()
look()
for before, after in zip(seen, seen[1:]):
    print("FIGURES", *(end - start for start, end in zip(before, after)))
"""
STEPS = ("the session", "a first query of Spark alone", "the first row of a store", "the first row of the next query")

Case = Callable[[], float]


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.startup", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="(default %(default)s)")
    parser.add_argument("--without-spark", action="store_true", help="leave out the first query")
    asked = parser.parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 140)
    console.print(f"load {os.getloadavg()[0]:.2f}, {os.cpu_count()} processors, Python {sys.version.split()[0]}")
    with tempfile.TemporaryDirectory() as directory, Cluster() as cluster:
        store = unpack_example_store(directory)
        cluster.create_topic("Orders")
        cases = _cases(store, cluster.name_server, Path(directory))
        found: dict[str, list[float]] = {name: [] for name in cases}
        for run in cases.values():  # bytecode and pages are in the caches
            run()
        for _ in range(asked.rounds):
            for name, run in cases.items():
                found[name].append(run())
    table = Table(
        "what", "processor seconds", title="Until it has ended, or is ready", caption="median (least - greatest)"
    )
    for name, figures in found.items():
        table.add_row(name, _figure(figures))
    console.print(table)
    if not asked.without_spark:
        with tempfile.TemporaryDirectory() as directory:
            console.print(_first_query(unpack_example_store(directory), asked.rounds))


def _cases(store: str, name_server: str, home: Path) -> dict[str, Case]:
    return {
        "python -c pass": partial(_ended, [sys.executable, "-c", "pass"]),
        "import typer": partial(_ended, [sys.executable, "-c", "import typer"]),
        "spark-mq --version": partial(_ended, [COMMAND, "--version"]),
        "spark-mq --help": partial(_ended, [COMMAND, "--help"]),
        "completion of a command, bash": partial(_completed, "bash", "spark-mq top"),
        "completion of a command, zsh": partial(_completed, "zsh", "spark-mq top"),
        "completion of an option, bash": partial(_completed, "bash", "spark-mq topics --que"),
        "completion of an option, zsh": partial(_completed, "zsh", "spark-mq topics --que"),
        "spark-mq topics STORE": partial(_ended, [COMMAND, "topics", store]),
        "spark-mq topics -n": partial(_ended, [COMMAND, "topics", "-n", name_server]),
        "spark-mq namesrv": partial(_ready, "namesrv", home, "listenPort={port}\nkvConfigPath={home}/kv.json\n"),
        "spark-mq broker": partial(_ready, "broker", home, "listenPort={port}\nstorePathRootDir={home}/broker\n"),
    }


def _figure(figures: list[float]) -> str:
    return f"{median(figures):.2f} ({min(figures):.2f} - {max(figures):.2f})"


def _ended(command: list[str | Path], given: dict[str, str] | None = None) -> float:
    """What a process takes from its start to its end. Raises RuntimeError where it fails."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    child = subprocess.Popen(command, env=environment | (given or {}), stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise RuntimeError(f"{command} ended with {child.returncode}")
    return used.ru_utime + used.ru_stime


def _completed(shell: str, typed: str) -> float:
    """What the shell's Tab key takes, as the script of --show-completion calls the command."""
    given = {"_SPARK_MQ_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_ARGS": typed, "COMP_WORDS": typed}
    return _ended([COMMAND], given | {"COMP_CWORD": str(len(typed.split()) - 1)})


def _ready(server: str, home: Path, settings: str) -> float:
    """What a server takes until it says that it runs."""
    file = home / f"{server}.conf"
    file.write_text(settings.format(port=free_port(), home=home))
    with subprocess.Popen([COMMAND, server, "-c", file], stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            line = child.stdout.readline()
            used = own_cpu_seconds(child.pid)
        finally:
            child.terminate()
    if READY not in line:
        raise RuntimeError(f"{server} said {line!r}")
    return used


def _first_query(store: str, rounds: int) -> Table:
    """Seconds and processor seconds of a new session's steps; each round is a driver of its own."""
    found: list[list[list[float]]] = [[] for _ in STEPS]
    for _ in range(rounds):
        ran = subprocess.run(
            [sys.executable, "-c", FIRST_QUERY, store], capture_output=True, text=True, check=True, timeout=300
        )
        lines = [line.split()[1:] for line in ran.stdout.splitlines() if line.startswith("FIGURES ")]
        for step, figures in zip(found, lines, strict=True):
            step.append(list(map(float, figures)))
    table = Table(
        *("step", "seconds", "processor seconds: JVM", "Python"),
        title="The first row of a first query",
        caption="median (least - greatest)",
    )
    for name, step in zip(STEPS, found, strict=True):
        table.add_row(name, *(_figure(list(each)) for each in zip(*step, strict=True)))
    return table


if __name__ == "__main__":
    started = time.monotonic()
    main(sys.argv[1:])
    print(f"{time.monotonic() - started:.0f} s")
