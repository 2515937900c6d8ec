"""Decode kernels under random windows of random bytes, for as long as one likes, in processes of their own.

    python -m tests.format.kernels.fuzz_decode --minutes 60 [--seed 4711]

Two processes take turns. One holds every access of a kernel against its bounds (SPARK_MQ_KERNELS=check). In the other kernels are
compiled as they are used, and pages that may not be touched lie behind the bytes and behind what is written: an access that leaves
them kills the process, and Python's fault handler says where. Where the exact path may be asked, both must give the same arrays.
Exit code 1 where something was found; the last seed that is named plays it again.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import count
from random import Random, SystemRandom
from typing import Any

import numpy as np
import pyarrow as pa

from storage.format import window_decoder
from storage.format.arrays import is_utf8
from storage.format.record import MAGIC_V1, MAGIC_V2, encode_record
from storage.format.window_decoder import Wanted
from tests.support.decoded_rows import EVERYTHING, NAMES, Window, assert_as_exact, assert_walked_as_exact, decode
from tests.support.kernels import loaded
from tests.support.message_builder import make_message
from tests.support.places import PROJECT

WINDOWS_A_SEED = 200
TURN_SECONDS = 60.0
_GUARDED_BYTES = 1 << 20
_WORDS = [
    *(name.encode() for name in sorted(NAMES)),
    b"WAIT",
    b"true",
    b"v",
    b"\xc3",
    b"\xed\xa0\x80",
    b"\xf0\x9f\x98\x80",
    b"\0",
]
_ALIKE = [b"12345678a", b"12345678b", b"1234567812345678a", b"1234567812345678b"]
"""Names that differ late: those of one record are compared with those of the record before."""
_EDGES = (0, 1, 0x7F, 0x80, 0xFF)


class Guarded:
    """Memory whose last byte lies before a page that nobody may touch."""

    def __init__(self) -> None:
        page = mmap.PAGESIZE
        self._map = mmap.mmap(-1, _GUARDED_BYTES + page)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        if ctypes.CDLL(None, use_errno=True).mprotect(ctypes.c_void_p(address + _GUARDED_BYTES), page, 0):
            raise OSError(ctypes.get_errno(), "mprotect")

    def last(self, size_bytes: int) -> np.ndarray:
        return np.frombuffer(self._map, np.uint8, size_bytes, _GUARDED_BYTES - size_bytes)


class GuardedMemory(window_decoder.Memory):
    """What kernels gather into, guarded where it is not too much for that."""

    def __init__(self) -> None:
        super().__init__()
        self._guarded: dict[str, Guarded] = {}

    def take(self, name: str, size_bytes: int) -> np.ndarray:
        if size_bytes > _GUARDED_BYTES:
            return super().take(name, size_bytes)
        return self._guarded.setdefault(name, Guarded()).last(size_bytes)


def windows(random: Random) -> Iterator[tuple[Window, Wanted, list[int]]]:
    for _ in range(WINDOWS_A_SEED):
        window = _damaged(random, _laid_out(random)) if random.random() < 0.8 else _noise(random)
        ends = sorted(random.choices(range(1, 12), k=random.randrange(3)))
        yield window, EVERYTHING if random.random() < 0.5 else _projection(random), ends


def _projection(random: Random) -> Wanted:
    def some(names: frozenset[str]) -> frozenset[str]:
        return frozenset(name for name in sorted(names) if random.random() < 0.4)

    flags = (random.random() < 0.5 for _ in range(3))
    return Wanted(some(EVERYTHING.fields), next(flags), some(NAMES), next(flags), next(flags))


def _noise(random: Random) -> Window:
    content = random.randbytes(random.choice((0, 64, 91, 200, 5_000)))
    rows = random.randrange(6)
    near = [random.randint(-200, len(content) + 200) for _ in range(rows)]
    return Window(content, near, [random.getrandbits(40) for _ in near], [random.randint(0, 400) for _ in near])


def _laid_out(random: Random) -> Window:
    """Records of which many windows have none that is not regular: only those get far into a kernel."""
    content, positions, places, sizes = b"", [], [], []
    odds = random.choice((0.0, 0.0, 0.0, 0.05, 0.5))
    for _ in range(random.randrange(1, 12)):
        content += random.randbytes(random.choice((0, 0, 7)))
        place = random.getrandbits(random.choice((8, 40, 62)))
        row = encode_record(
            make_message(
                random.choice(("", "T" * 127)) if random.random() < odds / 2 else "TopicA",
                commitlog_offset=place,
                body=random.randbytes(random.choice((0, 1, 20, 700))),
                properties=_properties(random, odds),
                magic=random.choice((MAGIC_V1, MAGIC_V2)),
                sys_flag=random.choice((16, 32, 48)) if random.random() < odds / 2 else random.choice((0, 0, 1)),
            )
        )
        positions.append(len(content))
        places.append(place)
        sizes.append(len(row))
        content += row
    return Window(content, positions, places, sizes)


def _properties(random: Random, odds: float) -> bytes:
    if random.random() < odds:
        if random.random() < 0.5:
            return random.randbytes(random.choice((1, 63, 64, 65, 300)))
        return b"".join(random.choices((b"\1", b"\2", b"\0", *_WORDS), k=random.randrange(14)))
    words = _WORDS if random.random() < odds else [word for word in _WORDS if is_utf8(word)]
    entries = random.choice((0, 1, 5, 9, 63, 64, 65 if random.random() < odds else 2))
    if random.random() < 0.4:
        words, entries = _ALIKE, 1
    raw = b"".join(
        random.choice(words) + b"\1" + random.choice((*words, b"x" * random.randrange(1, 40))) + b"\2"
        for _ in range(entries)
    )
    return raw[:-1] if random.random() < 0.3 else raw


def _damaged(random: Random, window: Window) -> Window:
    content = bytearray(window.content)
    for _ in range(random.choice((0, 0, 0, 0, 1, 1, 2, 8))):
        at = random.randrange(len(content))
        if random.random() < 0.6:  # lengths stand at the beginning of records and before their properties
            at = min(len(content) - 1, random.choice(window.positions) + random.randrange(92))
        content[at] = random.choice((*_EDGES, random.randrange(256)))
    if random.random() < 0.1:
        del content[len(content) - random.randrange(1, min(len(content), 130)) :]
    columns = {name: list(getattr(window, name)) for name in ("positions", "places", "sizes")}
    if random.random() < 0.15:
        column = columns[random.choice(sorted(columns))]
        row = random.randrange(len(column))
        column[row] = max(0, column[row] + random.choice((-200, -1, 1, 64, 1 << 20)))
    if random.random() < 0.02:
        columns["positions"][-1] = random.choice((-1, -(1 << 62), 1 << 62, len(content) - 1))
    return Window(bytes(content), **columns)


def play(kernels: Any, seed: int, memory: window_decoder.Memory, bytes_of: Guarded | None = None) -> int:
    """One seed's windows; how many of them kernels decoded. AssertionError where they differ from the exact path."""
    done = 0
    for window, wanted, ends in windows(Random(seed)):
        buffer = None
        if bytes_of is not None and len(window.content) <= _GUARDED_BYTES:
            buffer = bytes_of.last(len(window.content))
            buffer[:] = np.frombuffer(window.content, np.uint8)
        found = decode(kernels, window, wanted, ends, memory=memory, buffer=buffer)
        content = np.frombuffer(window.content, np.uint8) if buffer is None else buffer
        for begin in window.positions[:2]:
            assert_walked_as_exact(kernels, content, begin)
        done += found is not None
        if window.is_for_the_exact_path:
            assert_as_exact(window, wanted, found)
        else:
            assert found is None, "a record was decoded that lies nowhere"
    return done


def _child(seed: int, seconds: float, only: bool) -> None:
    is_checked = os.environ["SPARK_MQ_KERNELS"] == "check"
    memory = window_decoder.Memory() if is_checked else GuardedMemory()
    guarded = None if is_checked else Guarded()
    if not is_checked:
        bodies, ordinary = Guarded(), pa.allocate_buffer
        pa.allocate_buffer = lambda size: pa.py_buffer(bodies.last(size)) if size <= _GUARDED_BYTES else ordinary(size)
    kernels, done = loaded(), 0
    end = time.monotonic() + seconds
    for number in count(seed):
        print(f"seed {number}", flush=True)
        done += play(kernels, number, memory, guarded)
        if only or time.monotonic() > end:
            print(f"windows {(number + 1 - seed) * WINDOWS_A_SEED} decoded {done}", flush=True)
            return


def run(seed: int, seconds: float, mode: str, *, only: bool = False) -> tuple[bool, str]:
    """A process of its own: whether nothing was found, and the last it said."""
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.format.kernels.fuzz_decode", "--child"]
    command += ["--seed", str(seed), "--minutes", str(seconds / 60), *(["--only"] if only else [])]
    environment = os.environ | {"SPARK_MQ_KERNELS": mode, "PYTHONFAULTHANDLER": "1"}
    ran = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True)
    said = ran.stdout.splitlines()[-1:] + (ran.stderr[-4000:].splitlines() if ran.returncode else [])
    return ran.returncode == 0, "\n".join(said)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--only", action="store_true", help="this seed and no other")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    seed = SystemRandom().getrandbits(31) if options.seed is None else options.seed
    if options.child:
        _child(seed, 60 * options.minutes, options.only)
        return 0
    end = time.monotonic() + 60 * options.minutes
    found = False
    for turn in count():
        for mode in ("on", "check"):
            own = seed if options.only else seed + (turn << 20)
            is_sound, said = run(own, TURN_SECONDS, mode, only=options.only)
            print(f"{mode}: {said}", flush=True)
            found |= not is_sound
        if found or options.only or time.monotonic() > end:
            return int(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
