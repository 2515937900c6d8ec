"""Sockets that were accepted and have not shown yet whether they speak TLS: their first byte is looked at, and left where it is."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Container

from spark_mq.remoting_server.tls import HANDSHAKE, TlsContexts

_HANDSHAKE_SECONDS = 10
_SHUTDOWN_SECONDS = 1
_LOG = logging.getLogger(__name__)


class Arrivals:
    """Turns accepted sockets into connections of protocols that `made` makes. For the loop's thread."""

    def __init__(self, tls: TlsContexts, idle_seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._tls = tls
        self._idle_seconds = idle_seconds
        self._silent: dict[socket.socket, asyncio.TimerHandle] = {}
        self._tasks: dict[asyncio.Task[None], asyncio.BaseProtocol] = {}

    def count_besides(self, connected: Container[asyncio.BaseProtocol]) -> int:
        """How many sockets are none of these connections yet."""
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
        speaks_tls = first == HANDSHAKE
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
