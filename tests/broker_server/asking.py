"""Many requests over one connection, without waiting for each answer; and bytes that are none."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import islice

from spark_mq.remoting import FrameReader, RemotingCommand, encode_frame

_WINDOW = 100
_LIMIT_SECONDS = 60


def answers_of(address: str, commands: Iterable[RemotingCommand], may_wait: frozenset[int]) -> list[RemotingCommand]:
    """The answers, over one connection. AssertionError where one does not come, unless its code is among those that may wait."""
    found: list[RemotingCommand] = []
    with _connected(address) as sock:
        reader = FrameReader()
        rest = iter(commands)
        begun = 0
        while window := list(islice(rest, _WINDOW)):
            numbered = [command._replace(opaque=begun + at) for at, command in enumerate(window)]
            begun += len(window)
            found += _answered(sock, reader, numbered, may_wait)
    return found


def _connected(address: str) -> socket.socket:
    host, port = address.rsplit(":", 1)
    sock = socket.create_connection((host, int(port)), _LIMIT_SECONDS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def _answered(
    sock: socket.socket, reader: FrameReader, commands: Sequence[RemotingCommand], may_wait: frozenset[int]
) -> list[RemotingCommand]:
    data = b"".join(bytes(piece) for command in commands for piece in encode_frame(command))
    sending = threading.Thread(
        target=_send, args=(sock, data), daemon=True
    )  # the server may wait until it is read from
    sending.start()
    expected = {
        command.opaque: command for command in commands if not command.flag & 3 and command.code not in may_wait
    }
    found, end = [], time.monotonic() + _LIMIT_SECONDS
    while expected and time.monotonic() < end:
        received = sock.recv(1 << 20)
        assert received, f"the broker has hung up; not answered: {list(expected.values())[:3]}"
        for answer in reader.feed(received):
            if answer.is_response:
                found.append(answer)
                expected.pop(answer.opaque, None)
    assert not expected, f"{len(expected)} are not answered: {list(expected.values())[:3]}"
    sending.join(_LIMIT_SECONDS)
    return found


def _send(sock: socket.socket, data: bytes) -> None:
    with suppress(OSError):
        sock.sendall(data)


def await_end(address: str, data: bytes, *, says_no_more: bool = True) -> None:
    """Until the server closes the connection over which these bytes came; and nothing more will come, if that is said.

    Raises TimeoutError where it does not.
    """
    with _connected(address) as sock, suppress(ConnectionError):
        sock.sendall(data)
        if says_no_more:
            sock.shutdown(socket.SHUT_WR)
        while sock.recv(1 << 16):
            pass
