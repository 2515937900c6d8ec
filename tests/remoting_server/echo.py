"""A server that answers each request with what it was asked, in a thread of the test's process; and a plain socket towards it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_mq.remoting import FrameReader, RemotingCommand, encode_frame, make_request, make_response
from spark_mq.remoting.frames import NUMBER_VALUE, RunFields
from spark_mq.remoting_server.peer import Peer
from spark_mq.remoting_server.pools import Answering, AnsweringRun, PoolSettings, Processor, Processors, RequestPool
from spark_mq.remoting_server.server import RemotingServer
from spark_mq.remoting_server.settings import ServerSettings, TlsServerSettings, read_settings

LIMIT_SECONDS = 20
NO_FRAMES: Mapping[str, bytes] = {
    "negative": struct.pack(">i", -1),
    "2 GB": struct.pack(">i", 0x7FFF_FFFF),
    "type": struct.pack(">iI", 100, 9 << 24 | 20),
    "header": struct.pack(">iI", 100, 97),
    "json": struct.pack(">iI", 12, 8) + b"no json!",
    "http": b"GET / HTTP/1.1\r\n\r\n",
    "http2, as gRPC's clients": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0",
    "tls": b"\x16\x03\x01\x02\x00",
}
"""Bytes that begin no frame, by what they are instead."""


def echo(request: RemotingCommand, peer: Peer) -> RemotingCommand | None:
    """The same fields and body."""
    return make_response(request, 0, None, request.ext_fields, request.body)


@dataclass
class Running:
    """A server on its loop; `gone` holds the peers whose connections have ended."""

    address: tuple[str, int]
    server: RemotingServer
    loop: asyncio.AbstractEventLoop
    pool: RequestPool
    gone: list[Peer] = field(default_factory=list)

    def call(self, function: Callable[[], Any]) -> Any:
        """A call on the loop."""

        async def run() -> Any:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(LIMIT_SECONDS)

    def until(self, is_so: Callable[[], bool], what: str) -> None:
        """Waits for it."""
        end = time.monotonic() + LIMIT_SECONDS
        while not self.call(is_so):
            assert time.monotonic() < end, what
            time.sleep(0.01)

    def close(self) -> None:
        """Ends the server, as a process does."""
        asyncio.run_coroutine_threadsafe(self.server.close(), self.loop).result(LIMIT_SECONDS)


@contextlib.contextmanager
def running(
    answer: Answering = echo,
    pool: PoolSettings = PoolSettings("Echo", 10_000),  # noqa: B008
    rejects: Callable[[], bool] = lambda: False,
    tls: TlsServerSettings | None = None,
    answer_run: AnsweringRun | None = None,
    **settings: str,
) -> Iterator[Running]:
    """A server that answers code 105, with `answer_run` in runs too; `settings` by Java's names."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    gone: list[Peer] = []

    async def start() -> Running:
        server_settings = read_settings(ServerSettings, settings)
        server = RemotingServer(server_settings, tls or TlsServerSettings(), on_close=gone.append)
        requests = RequestPool(pool)
        table = {105: Processor(answer, requests, rejects, answer_run)}
        run_fields = {} if answer_run is None else {105: RunFields({"n": NUMBER_VALUE})}
        address = await server.listen("127.0.0.1", 0, Processors(table, run_fields=run_fields))
        return Running(address, server, loop, requests, gone)

    found = asyncio.run_coroutine_threadsafe(start(), loop).result(LIMIT_SECONDS)
    try:
        yield found
    finally:
        found.close()
        loop.call_soon_threadsafe(loop.stop)
        thread.join(LIMIT_SECONDS)
        loop.close()


class Client:
    """A plain socket. What it receives is commands; `ended` waits for the server to hang up."""

    def __init__(self, server: Running, tls: ssl.SSLContext | None = None) -> None:
        self.sock = socket.create_connection(server.address, LIMIT_SECONDS)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self.sock = tls.wrap_socket(self.sock)
        self._reader = FrameReader()
        self._commands: list[RemotingCommand] = []

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def send(self, *commands: RemotingCommand) -> None:
        """Whole frames, in one write."""
        self.sock.sendall(b"".join(frame(command) for command in commands))

    def receive(self) -> RemotingCommand:
        """The next command; EOFError where the server has hung up."""
        while not self._commands:
            data = self.sock.recv(1 << 16)
            if not data:
                raise EOFError
            self._commands += self._reader.feed(data)
        return self._commands.pop(0)

    def ask(self, command: RemotingCommand) -> RemotingCommand:
        """One answer."""
        self.send(command)
        return self.receive()

    def ended(self) -> bool:
        """Whether the server hangs up without a word."""
        try:
            return self.sock.recv(1) == b""
        except ConnectionResetError:
            return True


def frame(command: RemotingCommand) -> bytes:
    """A command as bytes."""
    return b"".join(bytes(piece) for piece in encode_frame(command))


def request(opaque: int = 0, code: int = 105, body: bytes = b"", **given: Any) -> RemotingCommand:
    """A request with its number among its fields."""
    return make_request(code, {"n": str(opaque)}, body)._replace(opaque=opaque, **given)
