"""A TCP proxy on loopback that counts RocketMQ's requests by their code."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from spark_mq.remoting import FrameReader

CHUNK_BYTES = 1 << 16


class CountingProxy:
    """Between clients and a server. `requests` has those that came over so far, one-way ones too, by code."""

    def __init__(self, listen: tuple[str, int], target: tuple[str, int]) -> None:
        self.requests: Counter[int] = Counter()
        self.answer_bytes = 0
        self._target = target
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(listen)
        self.address = "{}:{}".format(*self._listener.getsockname())
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """End all connections, and take no more."""
        for one in (self._listener, *self._open):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(self._target, 5)
                except OSError:
                    client.close()
                    continue
                self._open += client, server
                for source, sink, is_answer in ((client, server, False), (server, client, True)):
                    source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    threading.Thread(target=self._pass_on, args=(source, sink, is_answer), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, is_answer: bool) -> None:
        reader = FrameReader()
        with suppress(OSError):
            while data := source.recv(CHUNK_BYTES):
                sink.sendall(data)
                codes = [] if is_answer else [command.code for command in reader.feed(data) if not command.is_response]
                with self._lock:
                    self.requests.update(codes)
                    self.answer_bytes += len(data) if is_answer else 0
        for one in (source, sink):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


@contextmanager
def counting_proxy(listen: tuple[str, int], target: str) -> Iterator[CountingProxy]:
    """Listens meanwhile; the port 0 stands for any that is free."""
    host, port = target.rsplit(":", 1)
    proxy = CountingProxy(listen, (host, int(port)))
    try:
        yield proxy
    finally:
        proxy.close()
