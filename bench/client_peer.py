"""A client program that is kept warm between rounds, Java's or ours: a process that takes commands by line, and answers each by one.

    sync TOPIC COUNT THREADS           one message a request, each waited for
    async TOPIC COUNT IN_FLIGHT        one message a request, so many requests in flight
    burst TOPIC COUNT IN_FLIGHT        as async; refused messages are counted in the place of the bytes (Java only)
    batch TOPIC COUNT THREADS SIZE     so many messages a request, each waited for
    timed TOPIC SECONDS THREADS FILE   as sync, for so long; begin and duration of each send go into FILE (Java only)
    pull TOPIC COUNT CHECKED           a pull consumer, all queues assigned to it; from `assign` to the last poll
    push TOPIC COUNT CHECKED SIZE      a push consumer, its listener given SIZE messages at most; from the first call to the last

    idle PREFIX TOPICS SECONDS         a push consumer of the topics PREFIX_0, PREFIX_1, … for so long

    DONE seconds messages bytes crcs   or   FAILED why

Bytes and sum of CRC-32 are of the bodies consumed; 0 of what was sent, and of CRCs unless CHECKED is 1.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from bench.messages import BODY_SIZE_BYTES
from bench.rocketmq_broker import RunningBroker
from bench.rocketmq_store import write_bodies

PACKAGES_ROOT = Path(__file__).resolve().parent.parent


class Done(NamedTuple):
    """What a command came to."""

    seconds: float
    messages: int
    body_bytes: int
    crc_sum: int


class ClientPeer:
    """The process, and its answers."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process = process
        self._log = log

    @property
    def pid(self) -> int:
        return self._process.pid

    def run(self, *command: object) -> Done:
        """Raises RuntimeError where the client fails, or has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(" ".join(map(str, command)) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            word, _, rest = line.strip().partition(" ")
            if word == "DONE":
                seconds, *sums = rest.split()
                return Done(float(seconds), *map(int, sums))
            if word == "FAILED":
                raise RuntimeError(f"{command}: {rest}")
        raise RuntimeError(f"{command}: the client has ended; it says why in {self._log}")


@contextmanager
def java_peer(broker: RunningBroker, directory: Path) -> Iterator[ClientPeer]:
    """Java's clients (JavaPeer.java), ended with the context. What they log lies in `directory`."""
    source = Path(__file__).with_name("JavaPeer.java")
    with _running([str(broker.oracle.script), "java", str(source)], broker, directory, "java-peer") as peer:
        yield peer


@contextmanager
def python_peer(broker: RunningBroker, directory: Path) -> Iterator[ClientPeer]:
    """Our clients (python_peer.py), ended with the context."""
    with _running([sys.executable, "-m", "bench.python_peer"], broker, directory, "python-peer") as peer:
        yield peer


@contextmanager
def _running(program: Sequence[str], broker: RunningBroker, directory: Path, name: str) -> Iterator[ClientPeer]:
    bodies = directory / "bodies"
    write_bodies(bodies)
    log = directory / f"{name}.log"
    environment = {**os.environ, **broker.oracle.environment, "PYTHONPATH": str(PACKAGES_ROOT)}
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            [*program, broker.name_server, str(bodies), str(BODY_SIZE_BYTES)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment,
            start_new_session=True,  # an interrupt from the keyboard is ours to handle
        ) as process,
    ):
        try:
            yield ClientPeer(process, log)
        finally:
            process.kill()
