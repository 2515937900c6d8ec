"""A TCP proxy on loopback that cuts a connection after so many bytes of one direction: amid a request, or amid its answer."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self


class CuttingProxy:
    """Between a client and `target`. The first connection that passes `after_bytes` in the direction is cut; later ones pass."""

    def __init__(self, target: str, *, after_bytes: int, cuts_answers: bool) -> None:
        host, port = target.rsplit(":", 1)
        self._target = host, int(port)
        self._after = after_bytes
        self._cuts_answers = cuts_answers
        self._lock = threading.Lock()
        self.cuts = 0
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
                try:
                    server = socket.create_connection(self._target, 5)
                except OSError:
                    client.close()
                    continue
                for source, sink, is_answer in ((client, server, False), (server, client, True)):
                    threading.Thread(target=self._pass_on, args=(source, sink, is_answer), daemon=True).start()

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
