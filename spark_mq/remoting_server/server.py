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
import os
import socket
import ssl
import threading
from collections.abc import Callable, Container, Mapping
from typing import Protocol

from spark_mq.remoting_server.channel import Answered, Channel, Shared
from spark_mq.remoting_server.peer import Peer
from spark_mq.remoting_server.pools import Processors, RequestPool
from spark_mq.remoting_server.settings import ServerSettings, TlsServerSettings
from storage.errors import ConfigurationError
from storage.files.os_errors import need_files
from storage.names import address_text, plain_host

_ACCEPTED_IN_A_TURN = 256
_OWN_FILES = 128
FILES_LEAST = 256
"""Open files of a server: its own, and some connections."""
_HANDSHAKE = b"\x16"
"""First byte of TLS; no frame begins so, unless it is 369 MB long."""
_HANDSHAKE_SECONDS = 10
_SHUTDOWN_SECONDS = 1
_CLIENT_AUTH = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "require": ssl.CERT_REQUIRED}
_PAUSE_SECONDS = 1
_SWEEP_SECONDS = 5
_END_SECONDS = 5
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_LOG = logging.getLogger(__name__)


class Closing(Protocol):
    """A server that runs."""

    async def close(self) -> None:
        """Ends it."""


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
    """Made and used on the loop's thread. `on_close` is called for each connection that has ended, by either side."""

    def __init__(
        self,
        settings: ServerSettings,
        tls: TlsServerSettings,
        *,
        on_close: Callable[[Peer], None] = lambda peer: None,
        on_answered: Answered | None = None,
    ) -> None:
        """`on_answered` notes each answer and how long it took (`channel.Answered`).

        Raises ConfigurationError where a certificate cannot be read, or the process may open too few files.
        """
        files = need_files(FILES_LEAST, "a server")
        self._loop = asyncio.get_running_loop()
        self._settings = settings
        self._shared = Shared(settings, on_close, on_answered)
        self._arrivals = Arrivals(TlsContexts(tls), settings.idle_seconds)
        self._listeners: list[socket.socket] = []
        self._pools: dict[RequestPool, None] = {}
        self._connections_most = settings.connections_most or files - _OWN_FILES
        self._refused_count = 0
        self._said_at = 0.0
        self._sweeping = self._loop.call_later(self._sweep_seconds(), self._sweep)

    @property
    def connection_count(self) -> int:
        """Number of connections, silent ones included."""
        return len(self._shared.channels) + self._arrivals.count_besides(self._shared.channels)

    @property
    def peers(self) -> tuple[Peer, ...]:
        """The connected peers."""
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
        listener = await self._bound(host, port)
        self._pools.update(dict.fromkeys(processors.pools()))
        self._listeners.append(listener)
        self._loop.add_reader(listener, self._accept, listener, processors)
        name = listener.getsockname()
        return str(name[0]), int(name[1])

    async def check(self, host: str, port: int) -> None:
        """Raises ListenError if an address cannot be listened at now."""
        (await self._bound(host, port)).close()

    async def _bound(self, host: str, port: int) -> socket.socket:
        try:
            return await self._open_listener(host, port)
        except OSError as error:
            raise ListenError(host, port, error.strerror or str(error)) from None

    async def _open_listener(self, host: str, port: int) -> socket.socket:
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
        With `enableShutdownGracefully` it asks clients to go away first, and gives them `shutdownWaitTimeSeconds`.
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


class Arrivals:
    """Turns accepted sockets into connections of protocols that `made` makes. For the loop's thread.

    One that has not shown yet whether it speaks TLS waits: its first byte is looked at, and left where it is.
    """

    def __init__(self, tls: TlsContexts, idle_seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._tls = tls
        self._idle_seconds = idle_seconds
        self._silent: dict[socket.socket, asyncio.TimerHandle] = {}
        self._tasks: dict[asyncio.Task[None], asyncio.BaseProtocol] = {}

    def count_besides(self, connected: Container[asyncio.BaseProtocol]) -> int:
        """Number of sockets that are no connections yet."""
        return len(self._silent) + sum(protocol not in connected for protocol in self._tasks.values())

    def take(self, sock: socket.socket, made: Callable[[], asyncio.BaseProtocol]) -> None:
        """A socket that was accepted, non-blocking."""
        if not self._tls.is_spoken and not self._tls.is_enforced:
            self._connect(sock, made, None)
            return
        timer = self._loop.call_later(self._idle_seconds, self._drop, sock)
        self._silent[sock] = timer
        self._loop.add_reader(sock, self._look, sock, made)

    def close(self) -> None:
        """Drops all of them."""
        for sock in list(self._silent):
            self._drop(sock)
        for task in self._tasks:
            task.cancel()

    def _look(self, sock: socket.socket, made: Callable[[], asyncio.BaseProtocol]) -> None:
        try:
            first = sock.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            first = b""
        speaks_tls = first == _HANDSHAKE
        if not first or (self._tls.is_enforced and not speaks_tls):
            self._drop(sock)
            return
        self._loop.remove_reader(sock)
        self._silent.pop(sock).cancel()
        self._connect(sock, made, self._tls.context if speaks_tls else None)

    def _drop(self, sock: socket.socket) -> None:
        timer = self._silent.pop(sock, None)
        if timer is not None:
            timer.cancel()
            self._loop.remove_reader(sock)
        sock.close()

    def _connect(
        self, sock: socket.socket, made: Callable[[], asyncio.BaseProtocol], tls: ssl.SSLContext | None
    ) -> None:
        protocol = made()
        task = self._loop.create_task(self._connected(sock, protocol, tls))
        self._tasks[task] = protocol
        task.add_done_callback(self._tasks.pop)

    async def _connected(self, sock: socket.socket, protocol: asyncio.BaseProtocol, tls: ssl.SSLContext | None) -> None:
        try:
            if tls is None:
                await self._loop.connect_accepted_socket(lambda: protocol, sock)
            else:
                await self._loop.connect_accepted_socket(
                    lambda: protocol,
                    sock,
                    ssl=tls,
                    ssl_handshake_timeout=_HANDSHAKE_SECONDS,
                    ssl_shutdown_timeout=_SHUTDOWN_SECONDS,
                )
        except (OSError, EOFError) as error:  # SSLError, and ConnectionAbortedError for one that takes too long
            _LOG.info("a connection was not made: %s", error)
            sock.close()
        except asyncio.CancelledError:
            sock.close()
            raise


class TlsContexts:
    """The context of new connections; made anew after certificate and key have both changed. Raises ConfigurationError.

    TLS is spoken in RocketMQ's three modes: disabled, permissive (a connection's first byte says what it speaks), enforcing.
    Java: TlsModeHandler, TlsHelper, NamesrvController.initiateSslContext. Departures: there is no test mode, in which a server makes a
    certificate for itself: without one configured nothing but enforcing differs from disabled. Settings stand in the configuration
    file.
    """

    def __init__(self, settings: TlsServerSettings) -> None:
        self.settings = settings
        self._stamps = self._read_stamps()
        self._context = _context_of(settings) if self.is_spoken else None

    @property
    def is_spoken(self) -> bool:
        """Whether TLS is spoken at all."""
        return self.settings.mode != "disabled" and self.settings.cert_file is not None

    @property
    def is_enforced(self) -> bool:
        """Whether nothing else is."""
        return self.settings.mode == "enforcing"

    @property
    def context(self) -> ssl.SSLContext | None:
        """What a new connection uses; None where TLS is not spoken. Files that cannot be read leave the one before."""
        if self._context is not None:
            stamps = self._read_stamps()
            if all(new != old for new, old in zip(stamps, self._stamps, strict=True)):
                self._stamps = stamps
                try:
                    self._context = _context_of(self.settings)
                except ConfigurationError as error:
                    _LOG.error("the changed certificate is not used: %s", error)
        return self._context

    def _read_stamps(self) -> list[int | None]:
        """When certificate and key were written; one file that holds both counts once."""
        paths = {path: None for path in (self.settings.cert_file, self.settings.key_file) if path is not None}
        return [_modified_ns(path) for path in paths]


def _modified_ns(path: str) -> int | None:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return None


def _context_of(settings: TlsServerSettings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(str(settings.cert_file), settings.key_file, settings.key_password or "")
    except (OSError, ssl.SSLError) as error:
        rule = f"the certificate or its key cannot be read: {error}"
        raise ConfigurationError(None, None, "tls.server.certPath", rule) from None
    if settings.trust_file is not None and settings.verifies_clients:
        try:
            context.load_verify_locations(settings.trust_file)
        except (OSError, ssl.SSLError) as error:
            raise ConfigurationError(None, None, "tls.server.trustCertPath", str(error)) from None
    context.verify_mode = _CLIENT_AUTH[settings.client_auth]
    return context
