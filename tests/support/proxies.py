"""TCP proxies on loopback: one behind which somebody can be cut off, and one that cuts a connection amid a request or its answer."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self


class Proxy:
    """Passes on what comes, between its clients and `target`."""

    def __init__(self, target: str) -> None:
        host, port = target.rsplit(":", 1)
        self._target = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if not self._is_let_through(client):
                    continue
                try:
                    server = socket.create_connection(self._target, 5)
                except OSError:
                    client.close()
                    continue
                server.settimeout(None)
                self._connected(server)
                for source, sink, is_answer in ((client, server, False), (server, client, True)):
                    threading.Thread(target=self._pass_on, args=(source, sink, is_answer), daemon=True).start()

    def _is_let_through(self, client: socket.socket) -> bool:
        return True

    def _connected(self, server: socket.socket) -> None:
        """To the target, for a client."""

    def _pass_on(self, source: socket.socket, sink: socket.socket, is_answer: bool) -> None:
        raise NotImplementedError


class Line(Proxy):
    """What is sent while it is parted is not passed on, and nothing is closed. Who connects then is accepted, and hears nothing."""

    def __init__(self, target: str) -> None:
        self._is_parted = threading.Event()
        self._sockets: list[socket.socket] = []
        super().__init__(target)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
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

    def _is_let_through(self, client: socket.socket) -> bool:
        self._sockets.append(client)
        return not self._is_parted.is_set()

    def _connected(self, server: socket.socket) -> None:
        self._sockets.append(server)

    def _pass_on(self, source: socket.socket, sink: socket.socket, is_answer: bool) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if self._is_parted.is_set():
                    return  # `heal` closes both
                sink.sendall(data)
        if not self._is_parted.is_set():
            for one in (source, sink):
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)


class CuttingProxy(Proxy):
    """The first connection that passes `after_bytes` in the direction is cut; later ones pass."""

    def __init__(self, target: str, *, after_bytes: int, cuts_answers: bool) -> None:
        self._after = after_bytes
        self._cuts_answers = cuts_answers
        self._lock = threading.Lock()
        self.cuts = 0
        super().__init__(target)

    def _pass_on(self, source: socket.socket, sink: socket.socket, is_answer: bool) -> None:
        passed = 0
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if is_answer is self._cuts_answers and passed + len(data) > self._after and self._is_first():
                    sink.sendall(data[: self._after - passed])
                    break
                sink.sendall(data)
                passed += len(data)
        for one in (source, sink):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _is_first(self) -> bool:
        with self._lock:
            self.cuts += 1
            return self.cuts == 1
