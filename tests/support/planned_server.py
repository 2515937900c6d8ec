"""A server of the remoting protocol that does what a test plans: answers, lies, says half of a frame, hangs up, keeps silent.

It listens on loopback, on a free port, with a thread for each connection. Brokers are judged by the real one; this is for what no
real broker does on demand.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from spark_mq.client.blocking_connection import PROBE_CODE
from spark_mq.remoting import FrameReader, RemotingCommand, encode_frame, make_response
from storage.rules.response_codes import ResponseCode

Plan = Callable[["Peer", RemotingCommand], None]
"""What to do about a command of a client."""


class Peer:
    """A client's connection, as the server has it."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.lock = threading.Lock()

    def send(self, command: RemotingCommand) -> None:
        """A whole frame."""
        self.send_bytes(frame(command))

    def send_bytes(self, data: bytes) -> None:
        """Any bytes."""
        with self.lock, contextlib.suppress(OSError):
            self.sock.sendall(data)

    def hang_up(self) -> None:
        """Close the connection."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()


class PlannedServer:
    """`commands` holds what came, `peers` every connection so far."""

    def __init__(self, plan: Plan, tls: ssl.SSLContext | None = None, *, is_permissive: bool = False) -> None:
        self.plan = plan
        self.commands: list[RemotingCommand] = []
        self.peers: list[Peer] = []
        self._accepted: list[socket.socket] = []
        self._tls = tls
        self._is_permissive = is_permissive
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def until(self, code: int, count: int = 1) -> list[RemotingCommand]:
        """The commands of that code, as soon as so many have come; AssertionError after ten seconds."""
        end = time.monotonic() + 10
        while len(found := [command for command in self.commands if command.code == code]) < count:
            assert time.monotonic() < end, f"only {len(found)} commands of code {code} have come"
            time.sleep(0.005)
        return found

    def close(self) -> None:
        """Hang up on all and listen no more."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join(10)
        for peer in self.peers:
            peer.hang_up()
        for sock in self._accepted:  # also those of which nothing has come yet
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._accepted.append(sock)
                thread = threading.Thread(target=self._serve, args=(sock,), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _serve(self, sock: socket.socket) -> None:
        with sock, contextlib.suppress(OSError):
            if self._tls is not None:
                speaks_tls = sock.recv(1, socket.MSG_PEEK) == b"\x16"
                if not speaks_tls and not self._is_permissive:
                    return  # as an enforcing broker: closed without a word
                sock = self._tls.wrap_socket(sock, server_side=True) if speaks_tls else sock
            peer = Peer(sock)
            self.peers.append(peer)
            reader = FrameReader()
            while data := sock.recv(1 << 16):
                for command in reader.feed(data):
                    if command.code == PROBE_CODE and not command.is_response:
                        peer.send(make_response(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED))
                        continue
                    self.commands.append(command)
                    self.plan(peer, command)
                    if sock.fileno() < 0:  # it has hung up: what came behind is not heard
                        return
                if reader.error is not None:
                    break  # as a broker: closed without a word
            sock.close()


@contextlib.contextmanager
def planned_server(
    plan: Plan, tls: ssl.SSLContext | None = None, *, is_permissive: bool = False
) -> Iterator[PlannedServer]:
    """The server, closed with the context. With `tls` it speaks nothing else, unless it is permissive."""
    server = PlannedServer(plan, tls, is_permissive=is_permissive)
    try:
        yield server
    finally:
        server.close()


def frame(command: RemotingCommand) -> bytes:
    """The command as bytes."""
    return b"".join(encode_frame(command))


def echo(peer: Peer, command: RemotingCommand) -> None:
    """A plan: success, with the request's fields and body."""
    if not command.is_oneway and not command.is_response:
        peer.send(make_response(command, 0, None, command.ext_fields, command.body))


def keep_silent(peer: Peer, command: RemotingCommand) -> None:
    """A plan: nothing."""


def closed_port() -> str:
    """An address where nobody listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{sock.getsockname()[1]}"


class Certificate:
    """A self-signed certificate for localhost and 127.0.0.1, made by openssl in `directory`."""

    def __init__(self, directory: Path) -> None:
        self.cert, self.key = directory / "cert.pem", directory / "key.pem"
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
        names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
        files = ["-keyout", str(self.key), "-out", str(self.cert)]
        subprocess.run([*command, *names, *files], check=True, capture_output=True, timeout=60)

    def server_context(self) -> ssl.SSLContext:
        """For a server that shows it."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.cert, self.key)
        return context
