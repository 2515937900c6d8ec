"""A TCP proxy on loopback that treats connections badly, in a process of its own.

    python -m tests.broker_server.bad_proxy SEED SECONDS LISTEN=TARGET …

While it is rough, about every SECONDS one direction of one connection is met by one of these:

    delay   its next chunks come late
    bytes   its next chunks come a byte at a time
    cut     of its next chunk some bytes come, then the connection ends, by a reset or without one
    freeze  nothing is passed on any more in either direction, and nothing is closed, for seconds; then it is reset

It reads words from its input: `rough`, `calm` (what is frozen is reset at once), `say` (the counts of what it did, as JSON in a line).
It ends with its input.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from tests.support.places import PROJECT

MISDEEDS = ("delay", "bytes", "cut", "freeze")
CHUNK_BYTES = 1 << 16
_DELAYED_CHUNKS, _DELAY_SECONDS = 10, 0.3
_BYTEWISE_CHUNKS, _BYTEWISE_BYTES = 3, 4_096
_FREEZE_SECONDS = (4.0, 15.0)
_RESET = struct.pack("ii", 1, 0)


class BadProxy:
    """The proxy of a test: what it is told, and what it says."""

    def __init__(self, process: subprocess.Popen[str], addresses: Sequence[str]) -> None:
        self._process = process
        self.addresses = addresses
        """Where it listens, in the order of its ways."""

    def tell(self, word: str) -> None:
        """`rough` or `calm`."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()

    def counts(self) -> Counter[str]:
        """How often it did each of the misdeeds so far, and how many `connections` there were."""
        self.tell("say")
        assert self._process.stdout is not None
        return Counter(json.loads(self._process.stdout.readline()))


@contextmanager
def bad_proxy(seed: int, seconds: float, ways: Sequence[tuple[str, str]]) -> Iterator[BadProxy]:
    """Listens meanwhile; each way is the address where it listens and the one where what comes goes on. It is calm at first."""
    words = [f"{listen}={target}" for listen, target in ways]
    command = [sys.executable, "-m", "tests.broker_server.bad_proxy", str(seed), str(seconds), *words]
    with subprocess.Popen(command, cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            listening = process.stdout.readline().split()
            assert len(listening) == len(ways), "the proxy does not listen"
            yield BadProxy(process, listening)
            assert process.poll() is None, "the proxy has died"
        finally:
            process.kill()


class _Direction:
    """What becomes of the next chunks of one direction of a connection."""

    def __init__(self) -> None:
        self.delayed = 0
        self.bytewise = 0
        self.is_cut = False


class _Link:
    """A connection: both its sockets, both its directions."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.writers = client, server
        self.directions = _Direction(), _Direction()
        self.is_frozen = False
        self.thawed = asyncio.Event()
        self.thawed.set()

    def end(self, *, with_reset: bool) -> None:
        for writer in self.writers:
            sock = writer.get_extra_info("socket")
            if with_reset and sock is not None:
                with suppress(OSError):
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.transport.abort()
        self.thawed.set()


class _Proxy:
    """All connections, on one loop."""

    def __init__(self, seed: int, seconds: float) -> None:
        self._random = random.Random(seed)
        self._seconds = seconds
        self._is_rough = False
        self._links: dict[_Link, None] = {}
        self.counts: Counter[str] = Counter()

    async def run(self, ways: Sequence[str]) -> None:
        """Until the input ends."""
        servers, listening = [], []
        for way in ways:
            listen, target = (part.rsplit(":", 1) for part in way.split("="))

            async def connected(
                reader: asyncio.StreamReader, writer: asyncio.StreamWriter, to: list[str] = target
            ) -> None:
                await self._connected(reader, writer, to[0], int(to[1]))

            server = await asyncio.start_server(connected, listen[0], int(listen[1]))
            listening.append("{}:{}".format(*server.sockets[0].getsockname()))
            servers.append(server)
        misdoing = asyncio.create_task(self._misdo())
        print(*listening, flush=True)
        loop = asyncio.get_running_loop()
        while word := (await loop.run_in_executor(None, sys.stdin.readline)).strip():
            if word == "say":
                print(json.dumps(self.counts), flush=True)
                continue
            self._is_rough = word == "rough"
            if not self._is_rough:
                self._calm_down()
        misdoing.cancel()

    def _calm_down(self) -> None:
        for link in list(self._links):
            for direction in link.directions:
                direction.delayed = direction.bytewise = 0
                direction.is_cut = False
            if link.is_frozen:
                link.end(with_reset=True)

    async def _misdo(self) -> None:
        while True:
            await asyncio.sleep(self._random.expovariate(1 / self._seconds))
            if not self._is_rough or not self._links:
                continue
            link, misdeed = self._random.choice(list(self._links)), self._random.choice(MISDEEDS)
            if link.is_frozen:
                continue
            direction = self._random.choice(link.directions)
            self.counts[misdeed] += misdeed != "cut"  # which is counted when it is done
            if misdeed == "delay":
                direction.delayed = _DELAYED_CHUNKS
            elif misdeed == "bytes":
                direction.bytewise = _BYTEWISE_CHUNKS
            elif misdeed == "cut":
                direction.is_cut = True
            else:
                link.is_frozen = True
                link.thawed.clear()
                loop = asyncio.get_running_loop()
                loop.call_later(self._random.uniform(*_FREEZE_SECONDS), lambda ended=link: ended.end(with_reset=True))

    async def _connected(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, port: int
    ) -> None:
        try:
            to_server, server = await asyncio.open_connection(host, port)
        except OSError:
            writer.transport.abort()
            return
        self.counts["connections"] += 1
        link = _Link(writer, server)
        self._links[link] = None
        for one in link.writers:
            one.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            await asyncio.gather(
                self._pass_on(reader, server, link, link.directions[0]),
                self._pass_on(to_server, writer, link, link.directions[1]),
            )
        finally:
            self._links.pop(link, None)
            link.end(with_reset=False)

    async def _pass_on(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, link: _Link, direction: _Direction
    ) -> None:
        with suppress(OSError):
            while data := await source.read(CHUNK_BYTES):
                await link.thawed.wait()
                if direction.is_cut:
                    self.counts["cut"] += 1
                    sink.write(data[: self._random.randrange(len(data))])
                    with suppress(TimeoutError):
                        await asyncio.wait_for(sink.drain(), 1)
                    break
                await self._deliver(data, sink, direction)
        link.end(with_reset=direction.is_cut and self._random.random() < 0.5)

    async def _deliver(self, data: bytes, sink: asyncio.StreamWriter, direction: _Direction) -> None:
        if direction.delayed > 0:
            direction.delayed -= 1
            await asyncio.sleep(self._random.random() * _DELAY_SECONDS)
        if direction.bytewise > 0:
            direction.bytewise -= 1
            for at in range(min(len(data), _BYTEWISE_BYTES)):
                sink.write(data[at : at + 1])
                await sink.drain()
                await asyncio.sleep(0)
            data = data[_BYTEWISE_BYTES:]
        sink.write(data)
        await sink.drain()


def main() -> None:
    seed, seconds, *ways = sys.argv[1:]
    asyncio.run(_Proxy(int(seed), float(seconds)).run(ways))


if __name__ == "__main__":
    main()
