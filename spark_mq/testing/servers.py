"""One server that runs: in a thread of this process, or in a process of its own.

    OwnLoop                an event loop in a thread, for servers of any kind
    BrokerInThread         a broker on such a loop
    BrokerInProcess        a broker in a child process, which can be killed

The two brokers are used alike (`Broker`).
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Protocol, Self, TypeVar

from spark_mq.broker_server.server import RunningBroker
from spark_mq.broker_server.settings import Configuration, read_configuration
from spark_mq.remoting_server.server import Closing, ListenError
from storage.epoch_times import current_time_ms

_START_S, _CLOSE_S = 60.0, 60.0
_ANSWER_S = 120.0
"""How long a broker's process may take for its start, or for what is due when its clock has moved."""
_ROOT = Path(__file__).resolve().parents[2]
_CHILD = "spark_mq.testing.child"
_T = TypeVar("_T")


class ClusterError(Exception):
    """A cluster for tests that cannot do what it was asked to."""


class MovedClock:
    """The machine's clock, moved by `offset_ms`."""

    def __init__(self, offset_ms: int = 0) -> None:
        self.offset_ms = offset_ms

    def __call__(self) -> int:
        return current_time_ms() + self.offset_ms


S = TypeVar("S", bound=Closing)


class OwnLoop:
    """An event loop in a daemon thread, from the beginning until `close`."""

    def __init__(self, name: str = "own-loop") -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, _T], timeout_s: float = _START_S) -> _T:
        """The coroutine's result; TimeoutError after the time."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(timeout_s)

    def close(self) -> None:
        """Ends thread and loop."""
        try:
            self.run(self.loop.shutdown_default_executor(), _CLOSE_S)  # the caller's thread may have a loop that runs
        finally:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(_CLOSE_S)
            self.loop.close()


@contextmanager
def on_own_loop(start: Callable[[], Awaitable[S]], name: str) -> Iterator[tuple[S, asyncio.AbstractEventLoop]]:
    """The running server and its loop; it is closed with the context."""
    own = OwnLoop(name)

    async def started() -> S:
        return await start()

    try:
        running = own.run(started())
        try:
            yield running, own.loop
        finally:
            own.run(running.close(), _CLOSE_S)
    finally:
        own.close()


class Broker(Protocol):
    """A broker that runs, of either kind."""

    @property
    def is_running(self) -> bool:
        """Whether it does."""

    def catch_up(self, offset_ms: int) -> None:
        """Its clock is moved by so much; what is due by it is delivered and checked when this returns."""

    def stop(self) -> None:
        """A clean end."""

    def kill(self) -> None:
        """SIGKILL. Raises ClusterError where it runs in a thread."""


class BrokerInThread:
    """It runs when this is made. Raises ListenError, StorageError."""

    def __init__(self, settings: Mapping[str, str], offset_ms: int) -> None:
        self._clock = MovedClock(offset_ms)
        self._own: OwnLoop | None = OwnLoop(f"broker {settings['brokerName']}")
        try:
            self._running = self._own.run(RunningBroker.start(configuration_of(settings), clock=self._clock))
        except BaseException:
            self._own.close()
            raise

    @property
    def is_running(self) -> bool:
        return self._own is not None

    def catch_up(self, offset_ms: int) -> None:
        self._clock.offset_ms = offset_ms
        self._running.catch_up()

    def stop(self) -> None:
        own, self._own = self._own, None
        if own is not None:
            try:
                own.run(self._running.close(), _CLOSE_S)
            finally:
                own.close()

    def kill(self) -> None:
        raise ClusterError("a broker in a thread cannot be killed: use Cluster(processes=True), or stop()")


class BrokerInProcess:
    """A process that loads what a broker needs, and is one from `begin` on: several load side by side, and begin in their order."""

    def __init__(self, output: Path) -> None:
        self._output = output
        with output.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", _CHILD],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")])},
                start_new_session=True,  # Ctrl-C is for the test, which ends this one
            )

    def begin(self, settings: Mapping[str, str], offset_ms: int) -> Self:
        """It runs when this returns. Raises ListenError, ClusterError with what the process has written; then it is gone."""
        try:
            found = self._asked({"settings": dict(settings), "offset_ms": offset_ms})
        except BaseException:
            self.kill()
            raise
        if "not listening" in found:
            self.kill()
            raise ListenError(*found["not listening"])
        return self

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def catch_up(self, offset_ms: int) -> None:
        self._asked({"offset_ms": offset_ms})

    def stop(self) -> None:
        try:
            with suppress(BrokenPipeError):  # it has ended by itself, and a request is left in the pipe
                self._pipes()[0].close()  # tells it to close
            self._process.wait(_CLOSE_S)
        finally:
            self.kill()
        if self._process.returncode:
            raise self._failure()

    def kill(self) -> None:
        stdin, stdout = self._pipes()
        self._process.kill()
        self._process.wait(_CLOSE_S)
        for pipe in (stdin, stdout):
            with suppress(BrokenPipeError):
                pipe.close()

    def _pipes(self) -> tuple[IO[str], IO[str]]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        return self._process.stdin, self._process.stdout

    def _asked(self, line: Mapping[str, Any]) -> dict[str, Any]:
        stdin, stdout = self._pipes()
        try:
            stdin.write(json.dumps(line) + "\n")
            stdin.flush()
            if not select.select([stdout], [], [], _ANSWER_S)[0]:
                self.kill()
                raise ClusterError(
                    f"the broker's process has not answered for {_ANSWER_S:g} s: it is killed\n{self._written()}"
                )
            answer = stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            self._process.wait(_CLOSE_S)
            raise self._failure()
        found: dict[str, Any] = json.loads(answer)
        return found

    def _failure(self) -> ClusterError:
        return ClusterError(f"the broker's process ended with {self._process.returncode}:\n{self._written()}")

    def _written(self) -> str:
        return self._output.read_text("utf-8", "replace").strip()[-4_000:]


def configuration_of(settings: Mapping[str, str]) -> Configuration:
    """The settings of a broker.conf with these lines. Raises ConfigurationError."""
    text = "".join(f"{name}={value}\n" for name, value in settings.items())
    return read_configuration(text.encode(), None, {})
