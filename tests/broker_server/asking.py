"""Many requests over one connection, without waiting for each answer; and bytes that are none."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import islice

from spark_mq.remoting import FrameReader, RemotingCommand, encode_frame

_WINDOW = 100
_LIMIT_SECONDS = 60


def answers_of(address: str, commands: Iterable[RemotingCommand], may_wait: frozenset[int]) -> list[RemotingCommand]:
    """The answers, over one connection. AssertionError where one does not come, unless its code is among those that may wait."""
    host, port = address.rsplit(":", 1)
    found: list[RemotingCommand] = []
    with socket.create_connection((host, int(port)), _LIMIT_SECONDS) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        reader = FrameReader()
        rest = iter(commands)
        begun = 0
        while window := list(islice(rest, _WINDOW)):
            numbered = [command._replace(opaque=begun + at) for at, command in enumerate(window)]
            begun += len(window)
            found += _answered(sock, reader, numbered, may_wait)
    return found


def _answered(
    sock: socket.socket, reader: FrameReader, commands: Sequence[RemotingCommand], may_wait: frozenset[int]
) -> list[RemotingCommand]:
    for command in commands:
        sock.sendall(b"".join(bytes(piece) for piece in encode_frame(command)))
    expected = {command.opaque: command for command in commands if not command.flag & 3 and command.code not in may_wait}
    found, end = [], time.monotonic() + _LIMIT_SECONDS
    while expected and time.monotonic() < end:
        data = sock.recv(1 << 20)
        assert data, f"the broker has hung up; not answered: {list(expected.values())[:3]}"
        for answer in reader.feed(data):
            if answer.is_response:
                found.append(answer)
                expected.pop(answer.opaque, None)
    assert not expected, f"{len(expected)} are not answered: {list(expected.values())[:3]}"
    return found


def hangs_up_on(address: str, data: bytes) -> bool:
    """Whether the server closes the connection over which these bytes came, and no more will."""
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), _LIMIT_SECONDS) as sock, suppress(ConnectionError):
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(1 << 16):
            pass
    return True
