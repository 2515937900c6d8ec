"""A TCP proxy on loopback behind which somebody can be cut off: what was sent is not passed on, and nothing is closed."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self


class Line:
    """The way to `target`. Who connects while it is parted is accepted, and hears nothing."""

    def __init__(self, target: str) -> None:
        host, port = target.rsplit(":", 1)
        self._target = host, int(port)
        self._is_parted = threading.Event()
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()
        self.heal()

    def part(self) -> None:
        """From now on nothing gets through, in either direction."""
        self._is_parted.set()

    def heal(self) -> None:
        """What was parted is closed; who connects gets through."""
        self._is_parted.clear()
        while self._sockets:
            sock = self._sockets.pop()
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._sockets.append(client)
                if self._is_parted.is_set():
                    continue
                try:
                    server = socket.create_connection(self._target, 5)
                except OSError:
                    client.close()
                    continue
                server.settimeout(None)
                self._sockets.append(server)
                for source, sink in ((client, server), (server, client)):
                    threading.Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if self._is_parted.is_set():
                    return  # `heal` closes both
                sink.sendall(data)
        if not self._is_parted.is_set():
            for one in (source, sink):
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
