"""How a sink that has the store itself hears of replicas: it asks `spark-mq replicate`, which serves the log beside it.

    sink        {"copies": n, "end": …, "timeoutMs": …}    which copies hold the log until there; end null: which are in sync
    replicator  {"state": "waiting"}                       once a second
                {"copies": n}                              so many there are, as soon as they are enough, or after that time

The master's copy counts. One question a connection.
"""

from __future__ import annotations

import logging
import socket
import socketserver
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from spark_mq.hand_over import local_socket
from spark_mq.hand_over.local_socket import FrameError

NAME = "replicas.sock"
BEAT_SECONDS = 1.0
SILENCE_SECONDS = 30.0
_REQUEST_SECONDS = 10.0
_FRAME_BYTES_MOST = 4_096
_LOG = logging.getLogger(__name__)


class Copies(NamedTuple):
    """Who knows how many copies there are. Each answers as soon as they are enough, or when the time is over."""

    in_sync: Callable[[int, float], int]
    """(needed, seconds): how many are in sync."""
    holding: Callable[[int, int, float], int]
    """(end, needed, seconds): how many hold the log until there."""


# The replicator's side


class ReplicaServer:
    """Answers sinks of this user, from `start` to `close`."""

    def __init__(self, root: str, copies: Copies) -> None:
        """Raises OSError where no socket can be made, or where another replicator answers already."""
        self._root = root
        self.copies = copies
        if _is_answered(root):
            raise FileExistsError("another replicator serves this store")
        self._server = _Server(local_socket.bind(root, NAME), copies)
        self._thread = threading.Thread(target=self._server.serve_forever, name="sinks' questions", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Whoever asks now is not answered."""
        local_socket.remove(self._root, NAME)
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _is_answered(root: str) -> bool:
    with suppress(OSError):
        local_socket.connect(root, SILENCE_SECONDS, NAME).close()
        return True
    return False


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, listener: socket.socket, copies: Copies) -> None:
        super().__init__(b"", _Question, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.copies = copies

    def handle_error(self, request: object, client_address: object) -> None:
        _LOG.warning("a sink's question was not answered", exc_info=True)


class _Question(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        connection, server = self.request, self.server
        assert isinstance(server, _Server)
        if not local_socket.is_own_user(local_socket.peer_user(connection)):
            return
        asked = local_socket.receive_frame(connection, _FRAME_BYTES_MOST, _REQUEST_SECONDS)
        if asked is None:
            return
        needed, end, timeout_ms = _number(asked, "copies"), asked.get("end"), _number(asked, "timeoutMs")
        deadline_s = time.monotonic() + timeout_ms / 1_000
        while True:
            left_s = max(0.0, deadline_s - time.monotonic())
            beat_s = min(left_s, BEAT_SECONDS)
            if end is None:
                there = server.copies.in_sync(needed, beat_s)
            else:
                there = server.copies.holding(_number(asked, "end"), needed, beat_s)
            if there >= needed or left_s <= BEAT_SECONDS:
                local_socket.send_frame(connection, {"copies": there}, _FRAME_BYTES_MOST)
                return
            local_socket.send_frame(connection, {"state": "waiting"}, _FRAME_BYTES_MOST)


def _number(asked: dict[str, Any], name: str) -> int:
    value = asked.get(name)
    if type(value) is not int or value < 0:
        raise FrameError(f"{name} is a whole number from 0, found {value!r:.40}")
    return value


# The sink's side


def ask_for_copies(root: str, needed: int, end: int | None, timeout_ms: int) -> int:
    """How many copies hold the log until `end`, or, where that is None, are in sync; 1, the sink's own, where nobody can say."""
    try:
        with local_socket.connect(root, SILENCE_SECONDS, NAME) as connection:
            if not local_socket.is_own_user(local_socket.peer_user(connection)):
                return 1
            question = {"copies": needed, "end": end, "timeoutMs": timeout_ms}
            local_socket.send_frame(connection, question, _FRAME_BYTES_MOST)
            while (answer := local_socket.receive_frame(connection, _FRAME_BYTES_MOST, SILENCE_SECONDS)) is not None:
                if "copies" in answer:
                    return _number(answer, "copies")
    except (OSError, FrameError) as error:
        _LOG.warning("no replicator of %s says how many copies there are: %s", root, error)
    return 1
