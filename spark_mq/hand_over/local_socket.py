"""The sockets under ROOT/spark_mq, and frames on them: at broker.sock a spark_mq broker takes batches, at replicas.sock
`spark-mq replicate` reports the copies.

    0        4
    | length | JSON object, UTF-8 |   big-endian; either side bounds the length before it takes the bytes

The socket is reached through an open directory (/proc/self/fd/N/broker.sock), because ROOT may be longer than a socket's address
(108 bytes). It has mode 0600, and each side asks the kernel for the other's user (SO_PEERCRED, unix(7)): only processes of one user
hand batches over. broker.json beside it names the socket's broker, for texts, and the broker's address for clients. Both files belong
to the broker that has the store's lock; it deletes those of an earlier broker.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import socketserver
import stat
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from spark_mq.hand_over import local_socket
from storage.files.local_file_system import LocalFileSystem, load_loose, save_loose
from storage.files.os_errors import host_name
from storage.tables.surroundings import own_directory

SOCKET_NAME = "broker.sock"
REQUEST_BYTES_MOST = 64 << 20
"""Some 200,000 segments."""
ANSWER_BYTES_MOST = 1 << 20
SOCKET_MODE = 0o600
_NOTE_NAME = "broker.json"
_BACKLOG = 64
_CHUNK_BYTES = 64 << 10
_SEND_SECONDS = 10.0
_LENGTH = struct.Struct(">I")
_CREDENTIALS = struct.Struct("3i")  # process, user, group


class FrameError(Exception):
    """Received bytes, or a message to send, are no frame of this protocol."""


class BrokerNote(NamedTuple):
    """A broker's note beside its socket."""

    host: str
    boot_id: str
    """The machine's boot id: another machine's socket cannot be reached."""
    pid: int
    store_host: str
    """Its address for clients, address:port: staged rows get it if the store holds no record yet."""


# The broker's side


def listen(root: str, store_host: str) -> socket.socket:
    """The broker's socket, at which it listens; its note says `store_host`. The caller holds the store's lock.

    Raises OSError where no socket can be made there: PermissionError where the directory is another user's.
    """
    files, note_path = LocalFileSystem(), f"{own_directory(root)}/{_NOTE_NAME}"
    with suppress(FileNotFoundError):
        os.unlink(note_path)
    listener = bind(root, SOCKET_NAME)
    try:
        note = BrokerNote(host_name(), files.boot_id(), os.getpid(), store_host)
        save_loose(files, note_path, json.dumps(note._asdict()).encode())
    except BaseException:
        listener.close()
        raise
    return listener


def bind(root: str, name: str) -> socket.socket:
    """A socket of that name that listens, in place of one that was left there. Raises OSError, PermissionError, FileExistsError."""
    directory = own_directory(root)
    LocalFileSystem().make_directories(directory)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _opened(root) as descriptor:
            owner = os.fstat(descriptor).st_uid
            if owner != os.geteuid():
                raise PermissionError(f"{directory} belongs to user {owner}, and this process to user {os.geteuid()}")
            _unlink(descriptor, name)
            os.fchmod(listener.fileno(), SOCKET_MODE)  # what bind makes takes it
            listener.bind(_through(descriptor, name))
            os.chmod(name, SOCKET_MODE, dir_fd=descriptor)
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def remove(root: str, name: str = SOCKET_NAME) -> None:
    """No socket of that name any more, nor a broker's note. The caller is who listened there."""
    with suppress(OSError), _opened(root) as descriptor:
        if name == SOCKET_NAME:
            with suppress(FileNotFoundError):
                os.unlink(_NOTE_NAME, dir_fd=descriptor)
        _unlink(descriptor, name)


def _unlink(descriptor: int, name: str) -> None:
    """Delete leftovers in the open directory. Raises FileExistsError for a file that is no socket."""
    try:
        found = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise FileExistsError(f"spark_mq/{name} is no socket, and is left as it is")
    os.unlink(name, dir_fd=descriptor)


# The sink's side


def connect(root: str, timeout_s: float, name: str = SOCKET_NAME) -> socket.socket:
    """Connects to the process that listens there. Raises FileNotFoundError or ConnectionRefusedError without one, and OSErrors."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout_s)
        with _opened(root) as descriptor:
            connection.connect(_through(descriptor, name))
    except BaseException:
        connection.close()
        raise
    return connection


def broker_note(root: str) -> BrokerNote | None:
    """The note of the socket's broker; None if there is no readable note."""
    with suppress(OSError, ValueError, TypeError, RecursionError):
        content = load_loose(LocalFileSystem(), f"{own_directory(root)}/{_NOTE_NAME}")
        note = None if content is None else BrokerNote(**json.loads(content))
        if note is not None and [type(value) for value in note] == [str, str, int, str]:
            return note
    return None


def why_none_listens(root: str, error: OSError) -> str:
    """An error text: why no process takes batches."""
    note = broker_note(root)
    if note is not None and note.boot_id != LocalFileSystem().boot_id():
        return f"it runs on host {note.host}, and this is {host_name()}: a broker takes things over on one machine"
    if isinstance(error, ConnectionRefusedError):
        return f"no process listens at {root}/spark_mq/{SOCKET_NAME}, which a broker has left"
    return f"it has no socket at {root}/spark_mq/{SOCKET_NAME}; its log says why, if it has started"


# Both


def peer_user(connection: socket.socket) -> int:
    """The user of the process at the other end, as the kernel knows it."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(credentials)
    return int(user)


def is_own_user(user: int) -> bool:
    """Whether a batch is handed over between this process and one of that user."""
    return user == os.geteuid()


def directory_identity(root: str) -> tuple[int, int]:
    """Device and inode of ROOT: equal for all of its names. Raises OSError."""
    found = os.stat(root)
    return found.st_dev, found.st_ino


def send_frame(connection: socket.socket, document: dict[str, Any], size_most: int) -> None:
    """Raises FrameError, with nothing sent, for one that is too large, OSError."""
    content = json.dumps(document).encode()
    if len(content) > size_most:
        raise FrameError(f"a frame of {len(content)} bytes is too large, {size_most} is the most")
    connection.settimeout(_SEND_SECONDS)
    connection.sendall(_LENGTH.pack(len(content)) + content)


def receive_frame(connection: socket.socket, size_most: int, timeout_s: float) -> dict[str, Any] | None:
    """The next frame, whole within `timeout_s`; None where the other side has hung up.

    Raises FrameError, TimeoutError, ConnectionResetError where it hangs up amid one.
    """
    deadline_s = time.monotonic() + timeout_s
    head = _take(connection, _LENGTH.size, deadline_s)
    if not head:
        return None
    if len(head) < _LENGTH.size:
        raise ConnectionResetError("the other side has hung up amid a frame")
    (size,) = _LENGTH.unpack(head)
    if size > size_most:
        raise FrameError(f"a frame of {size} bytes is too large, {size_most} is the most")
    content = _take(connection, size, deadline_s)
    if len(content) < size:
        raise ConnectionResetError("the other side has hung up amid a frame")
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"a frame is no JSON: {error}") from error
    if not isinstance(document, dict):
        raise FrameError(f"a frame is a JSON object, found {type(document).__name__}")
    return document


def _take(connection: socket.socket, size: int, deadline_s: float) -> bytearray:
    """Read so many bytes, or fewer if the peer closes. Memory grows with received bytes, not with the announced length."""
    taken = bytearray()
    while len(taken) < size:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the other side is silent")
        connection.settimeout(left_s)
        part = connection.recv(min(_CHUNK_BYTES, size - len(taken)))
        if not part:
            break
        taken += part
    return taken


@contextmanager
def _opened(root: str) -> Iterator[int]:
    descriptor = os.open(own_directory(root), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _through(descriptor: int, name: str) -> str:
    return f"/proc/self/fd/{descriptor}/{name}"


# How a sink that has the store itself learns of replicas: it asks `spark-mq replicate`, which serves the log beside it.
#
#     sink        {"copies": n, "end": …, "timeoutMs": …}    which copies hold the log until there; end null: which are in sync
#     replicator  {"state": "waiting"}                       once a second
#                 {"copies": n}                              so many there are, as soon as they are enough, or after that time
#
# The master's copy counts. One question a connection.


NAME = "replicas.sock"
BEAT_SECONDS = 1.0
SILENCE_SECONDS = 30.0
_REQUEST_SECONDS = 10.0
_FRAME_BYTES_MOST = 4_096
_LOG = logging.getLogger(__name__)


class Copies(NamedTuple):
    """Counts copies. Each method answers as soon as there are enough, or when the time is over."""

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
        """New questions are not answered."""
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
        question = local_socket.receive_frame(connection, _FRAME_BYTES_MOST, _REQUEST_SECONDS)
        if question is None:
            return
        needed, end, timeout_ms = _number(question, "copies"), question.get("end"), _number(question, "timeoutMs")
        deadline_s = time.monotonic() + timeout_ms / 1_000
        while True:
            left_s = max(0.0, deadline_s - time.monotonic())
            beat_s = min(left_s, BEAT_SECONDS)
            if end is None:
                there = server.copies.in_sync(needed, beat_s)
            else:
                there = server.copies.holding(_number(question, "end"), needed, beat_s)
            if there >= needed or left_s <= BEAT_SECONDS:
                local_socket.send_frame(connection, {"copies": there}, _FRAME_BYTES_MOST)
                return
            local_socket.send_frame(connection, {"state": "waiting"}, _FRAME_BYTES_MOST)


def _number(question: dict[str, Any], name: str) -> int:
    value = question.get(name)
    if type(value) is not int or value < 0:
        raise FrameError(f"{name} is a whole number from 0, found {value!r:.40}")
    return value


# The sink's side


def ask_for_copies(root: str, needed: int, end: int | None, timeout_ms: int) -> int:
    """The number of copies that hold the log until `end`, or that are in sync if `end` is None; 1, the sink's own, if unknown."""
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
