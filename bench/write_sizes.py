"""`python -m bench.write_sizes DIRECTORY ...`: what new pages of the page cache cost, by the size of the write that makes them.

Each round writes a file of `--mebibytes` from its first byte to its last by pwrite(2), in writes of one size, and deletes it;
beside it one that is there and is written over. System seconds for a GiB: median (least - greatest). Before each file the machine is
left alone for some seconds, in which a virtual machine's host may take free memory back.
"""

from __future__ import annotations

import argparse
import os
import resource
import time
from collections import defaultdict
from pathlib import Path
from random import Random
from statistics import median

import numpy as np
from rich.console import Console
from rich.table import Table

SIZES_KIB = (16, 64, 128, 512, 1_024, 2_048, 4_096, 16_384)
PAUSE_S = 4.0
NEW, OVER = "new pages", "written over"


def _system_seconds() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_stime


def _write(path: Path, source: memoryview, length: int, size: int) -> float:
    """System seconds of writing the file from 0 to `length`; it is made where it is not there."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.ftruncate(descriptor, length)
        start = _system_seconds()
        for at in range(0, length, size):
            os.pwrite(descriptor, source[at % len(source) :][: min(size, length - at)], at)
        return _system_seconds() - start
    finally:
        os.close(descriptor)


def measure(directory: Path, mebibytes: int, rounds: int) -> Table:
    """One directory's table. The sizes take turns in an order that is another one each round."""
    source = np.random.default_rng(1).integers(0, 255, SIZES_KIB[-1] << 10, np.uint8).data
    length, new, over = mebibytes << 20, directory / "bench-new", directory / "bench-over"
    found: dict[tuple[int, str], list[float]] = defaultdict(list)
    try:
        _write(over, source, length, 128 << 10)
        for number in range(rounds):
            for kib in Random(number).sample(SIZES_KIB, len(SIZES_KIB)):
                os.sync()  # else one size pays for the pages of the last
                time.sleep(PAUSE_S)
                found[kib, NEW].append(_write(new, source, length, kib << 10))
                new.unlink()
                found[kib, OVER].append(_write(over, source, length, kib << 10))
    finally:
        new.unlink(missing_ok=True)
        over.unlink(missing_ok=True)
    made = Table("write, KiB", NEW, OVER, title=f"{directory}: system seconds a GiB")
    for kib in SIZES_KIB:
        shown = []
        for kind in (NEW, OVER):
            seconds = [one * 1_024 / mebibytes for one in found[kib, kind]]
            shown.append(f"{median(seconds):.2f} ({min(seconds):.2f} - {max(seconds):.2f})")
        made.add_row(f"{kib:,}", *shown)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.write_sizes", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("directories", nargs="+", type=Path, help="one on each file system to be measured")
    parser.add_argument("--mebibytes", type=int, default=512, help="of each file (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="(default %(default)s)")
    asked = parser.parse_args()
    for directory in asked.directories:
        Console(width=100).print(measure(directory, asked.mebibytes, asked.rounds))


if __name__ == "__main__":
    main()
