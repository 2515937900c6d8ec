"""Listeners, and all connections of a server, on one event loop.

    server = RemotingServer(settings, tls, on_close=peer_has_gone)
    address = await server.listen(settings.bind_address, settings.listen_port, Processors(…))
    …
    await server.close()

Several listeners may have processors of their own; connections, limits and settings are shared. Java: NettyRemotingServer.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import logging
import socket
import threading
from collections.abc import Callable, Mapping

from spark_mq.remoting_server.arrivals import Arrivals
from spark_mq.remoting_server.channel import Channel
from spark_mq.remoting_server.peer import Peer
from spark_mq.remoting_server.pools import RequestPool
from spark_mq.remoting_server.processors import Processors
from spark_mq.remoting_server.settings import ServerSettings, TlsServerSettings
from spark_mq.remoting_server.shared import Shared
from spark_mq.remoting_server.tls import TlsContexts
from storage.addresses import address_text, plain_host
from storage.files.file_limit import need_files

_ACCEPTED_IN_A_TURN = 256
_OWN_FILES = 128
FILES_LEAST = 256
"""Open files of a server: its own, and some connections."""
_PAUSE_SECONDS = 1
_SWEEP_SECONDS = 5
_END_SECONDS = 5
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_LOG = logging.getLogger(__name__)


class ListenError(Exception):
    """An address that cannot be listened on."""

    def __init__(self, host: str, port: int, reason: str) -> None:
        super().__init__(host, port, reason)
        self.host = host
        self.port = port
        self.reason = reason

    def __str__(self) -> str:
        return f"cannot listen on {address_text(self.host, self.port)}: {self.reason}"


class RemotingServer:
    """Made and used on the loop's thread. `on_close` hears of each connection that has ended, whoever ended it."""

    def __init__(
        self,
        settings: ServerSettings,
        tls: TlsServerSettings,
        *,
        on_close: Callable[[Peer], None] = lambda peer: None,
    ) -> None:
        """Raises ConfigurationError where a certificate cannot be read, or the process may open too few files."""
        files = need_files(FILES_LEAST, "a server")
        self._loop = asyncio.get_running_loop()
        self._settings = settings
        self._shared = Shared(settings, on_close)
        self._arrivals = Arrivals(TlsContexts(tls), settings.idle_seconds)
        self._listeners: list[socket.socket] = []
        self._pools: dict[RequestPool, None] = {}
        self._connections_most = settings.connections_most or files - _OWN_FILES
        self._refused_count = 0
        self._said_at = 0.0
        self._sweeping = self._loop.call_later(self._sweep_seconds(), self._sweep)

    @property
    def connection_count(self) -> int:
        """How many there are, with those that have said nothing yet."""
        return len(self._shared.channels) + self._arrivals.count_besides(self._shared.channels)

    @property
    def peers(self) -> tuple[Peer, ...]:
        """Who is connected."""
        return tuple(channel.peer for channel in self._shared.channels)

    @property
    def unsupported_counts(self) -> Mapping[int, int]:
        """By code, how many requests were answered that they are not supported (`Unsupported.counts`). From any thread."""
        return self._shared.unsupported.counts

    @property
    def pools(self) -> tuple[RequestPool, ...]:
        """The pools of all listeners."""
        return tuple(self._pools)

    def call_soon(self, call: Callable[[], None]) -> None:
        """A call to be made on the loop's thread, from any thread; those of one moment cost one wake-up."""
        self._shared.outbox.put(call)

    async def listen(self, host: str, port: int, processors: Processors) -> tuple[str, int]:
        """Takes connections at an address, whose requests the processors answer; the address. Raises ListenError."""
        try:
            listener = await self._bound(host, port)
        except OSError as error:
            raise ListenError(host, port, error.strerror or str(error)) from None
        self._pools.update(dict.fromkeys(processors.pools()))
        self._listeners.append(listener)
        self._loop.add_reader(listener, self._accept, listener, processors)
        name = listener.getsockname()
        return str(name[0]), int(name[1])

    async def _bound(self, host: str, port: int) -> socket.socket:
        found = await self._loop.getaddrinfo(plain_host(host), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, sockaddr = found[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            for option, size in (
                (socket.SO_SNDBUF, self._settings.send_buffer_bytes),
                (socket.SO_RCVBUF, self._settings.receive_buffer_bytes),
            ):
                if size:
                    listener.setsockopt(socket.SOL_SOCKET, option, size)
            listener.setblocking(False)
            listener.bind(sockaddr)
            listener.listen(self._settings.backlog)
        except BaseException:
            listener.close()
            raise
        return listener

    async def close(self) -> None:
        """Takes and reads nothing new, answers what was read, says what is said, and hangs up.

        It waits for requests that were read as long as any of them ends within five seconds.
        With `enableShutdownGracefully` clients are told to go away first, and have `shutdownWaitTimeSeconds` for it.
        """
        if self._settings.shuts_down_gracefully and not self._shared.is_going_away:
            self._shared.is_going_away = True
            await asyncio.sleep(self._settings.shutdown_wait_seconds)
        for listener in self._listeners:
            self._loop.remove_reader(listener)
            listener.close()
        self._listeners.clear()
        self._arrivals.close()
        self._shared.is_ending = True
        for channel in list(self._shared.channels):
            channel.go_on()
        await self._answer_what_was_read()
        for pool in self._pools:
            pool.close()
        self._sweeping.cancel()
        self._shared.unsupported.close()
        await asyncio.sleep(0)  # what threads have left in the outbox
        for channel in list(self._shared.channels):
            channel.close("the server shuts down")
        await asyncio.sleep(0)

    async def _answer_what_was_read(self) -> None:
        ended, end = self._shared.ended_count, self._loop.time() + _END_SECONDS
        while self._is_answering and self._loop.time() < end:
            await asyncio.sleep(0.01)
            if self._shared.ended_count != ended:
                ended, end = self._shared.ended_count, self._loop.time() + _END_SECONDS

    @property
    def _is_answering(self) -> bool:
        shared = self._shared
        return shared.request_count > 0 or bool(shared.behind) or any(pool.is_busy for pool in self._pools)

    # Connections.

    def _accept(self, listener: socket.socket, processors: Processors) -> None:
        for _ in range(_ACCEPTED_IN_A_TURN):
            try:
                sock, _address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    _LOG.error("no connection can be taken: %s", error)
                    self._loop.remove_reader(listener)
                    self._loop.call_later(_PAUSE_SECONDS, self._resume, listener, processors)
                    return
                raise
            if self.connection_count >= self._connections_most:
                self._refuse(sock)
                continue
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._arrivals.take(sock, lambda: Channel(self._shared, processors))

    def _resume(self, listener: socket.socket, processors: Processors) -> None:
        if listener.fileno() >= 0:
            self._loop.add_reader(listener, self._accept, listener, processors)

    def _refuse(self, sock: socket.socket) -> None:
        sock.close()
        self._refused_count += 1
        if self._loop.time() - self._said_at > _PAUSE_SECONDS:
            self._said_at = self._loop.time()
            _LOG.warning("%d connections were refused: there are %d", self._refused_count, self.connection_count)
            self._refused_count = 0

    def _sweep(self) -> None:
        now = self._loop.time()
        for channel in list(self._shared.channels):
            channel.close_if_idle(now, self._settings.idle_seconds)
        if self._shared.is_over_a_burst():
            threading.Thread(target=_give_memory_back, name="memory", daemon=True).start()
        self._sweeping = self._loop.call_later(self._sweep_seconds(), self._sweep)

    def _sweep_seconds(self) -> float:
        return min(_SWEEP_SECONDS, self._settings.idle_seconds / 4)


def _give_memory_back() -> None:
    """To the system: what glibc keeps of a burst's requests, whose heap shrinks by itself only from its end."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
