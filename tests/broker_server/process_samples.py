"""Memory and descriptors of a process while it lives, and whether they rise: Linux's /proc, and least squares."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

WARM_UP_SECONDS = 120.0
_WARM_UP_SHARE = 0.4


class Sample(NamedTuple):
    """What a process had at a time."""

    seconds: float
    mapped_bytes: int
    """Pages of mapped files that are in memory (RssFile, RssShmem): the system's cache, which it takes back when it wants to."""
    own_bytes: int
    """What the process has allocated (RssAnon)."""
    descriptors: int
    open_files: int
    """Those of the descriptors that are files: of a broker mostly the store's, more as it grows."""


def take_sample(pid: int) -> Sample | None:
    """Now; None where the process has ended."""
    with suppress(OSError, KeyError):
        lines = (line.split() for line in Path(f"/proc/{pid}/status").read_text("ascii", "replace").splitlines())
        found = {words[0]: int(words[1]) << 10 for words in lines if words and words[0].startswith("Rss")}
        numbers = os.listdir(f"/proc/{pid}/fd")
        open_files = sum(_is_file(f"/proc/{pid}/fd/{number}") for number in numbers)
        return Sample(
            time.monotonic(), found["RssFile:"] + found["RssShmem:"], found["RssAnon:"], len(numbers), open_files
        )
    return None


def _is_file(link: str) -> bool:
    """False also where it was closed meanwhile."""
    try:
        return os.readlink(link).startswith("/")
    except OSError:
        return False


class Sampler:
    """Samples of one process after the other, each in a list of its own. A thread takes them, from `watch` to `pause`."""

    def __init__(self, interval_s: float = 1.0) -> None:
        self.lives: list[list[Sample]] = []
        self._interval_s = interval_s
        self._pid: int | None = None
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def watch(self, pid: int) -> None:
        """A process has begun."""
        with self._lock:
            self._pid = pid
            self.lives.append([])

    def pause(self) -> None:
        """It is about to end."""
        with self._lock:
            self._pid = None

    def close(self) -> None:
        """No more samples."""
        self._ending.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._ending.wait(self._interval_s):
            with self._lock:
                if self._pid is not None and (sample := take_sample(self._pid)) is not None:
                    self.lives[-1].append(sample)


def slope_per_minute(lives: Sequence[Sequence[Sample]], value: Callable[[Sample], float]) -> float | None:
    """How much a value rises in a minute within the lives: least squares with one slope for all and a level for each life.

    The beginning of each life does not count, two fifths of it, at most two minutes: caches fill, pools start their threads, and the
    allocator's areas grow to what the threads need at once. None for too few samples.
    """
    covariance = variance = 0.0
    for life in lives:
        settled = [sample for sample in life if sample.seconds >= life[0].seconds + _warm_up(life)]
        if len(settled) < 3:
            continue
        mean_s = sum(sample.seconds for sample in settled) / len(settled)
        mean = sum(map(value, settled)) / len(settled)
        covariance += sum((sample.seconds - mean_s) * (value(sample) - mean) for sample in settled)
        variance += sum((sample.seconds - mean_s) ** 2 for sample in settled)
    return None if variance == 0 else covariance / variance * 60


def _warm_up(life: Sequence[Sample]) -> float:
    return min(WARM_UP_SECONDS, _WARM_UP_SHARE * (life[-1].seconds - life[0].seconds))
