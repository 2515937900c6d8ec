"""A master's listener: slaves connect, get the log, and acknowledge. One thread has all sockets.

    spark-mq broker, spark-mq replicate ─▶ ReplicationListener ─▶ MasterSession per connection ─▶ Replicas

`LogReader` reads the log for it; `Replicator` serves a log that another process writes. The sessions decide (`sessions.py`).
Java: DefaultHAService, AutoSwitchHAService, HAConnection.
"""

from __future__ import annotations

import errno
import ipaddress
import logging
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

import numpy as np

from storage.epoch_times import current_time_ms, steady_time_ms
from storage.errors import OffsetOutOfRangeError, StorageError
from storage.files.local_file_system import LocalFileSystem
from storage.files.os_errors import need_files
from storage.format.replication import Dialect, EpochEntry
from storage.ha.replicas import UNPROVEN, Replica, Replicas
from storage.ha.sessions import (
    DEFAULT_BATCH_BYTES,
    MOST_SENT_BYTES,
    Acknowledged,
    Identified,
    MasterSession,
    Outgoing,
    Place,
    Refused,
    SessionEvent,
    StartRequested,
    Timing,
    off_a_boundary,
    where_to_start,
    who_gives_way,
)
from storage.log.commit_log import CommitLog
from storage.names import address_text, host_of, peer_host, plain_host
from storage.put.settings import DEFAULT_LOG_FILE_SIZE
from storage.store import MessageStore

_NOTHING = np.empty(0, np.int64)


class LogReader:
    """The part of a growing log that may be sent: an `LogExtent`, as of the last `look`.

    It has files of its own, so that no put waits for it; for one thread. Java: DefaultMessageStore.getCommitLogData.
    """

    def __init__(
        self,
        open_log: Callable[[], CommitLog],
        end: Callable[[], int],
        file_size_bytes: int,
        epochs: Callable[[], tuple[EpochEntry, ...]] = tuple,
        confirm_offset: Callable[[], int] | None = None,
    ) -> None:
        """`end` gives the log offset up to which the log may be sent: the end of a record. `file_size_bytes` is for new files."""
        self._open_log = open_log
        self._end = end
        self._epochs = epochs
        self._confirm_offset = confirm_offset
        self._file_size_bytes = file_size_bytes
        self.log = open_log()
        self.end = 0
        self.epochs: tuple[EpochEntry, ...] = ()
        self._ends = _NOTHING
        self._ends_from = 0
        self.look()

    def look(self, *, at_files: bool = False) -> None:
        """Update the end of the log; with `at_files` also its start."""
        self.end, self.epochs = self._end(), self._epochs()
        if at_files:
            self.log.list_files()
        else:
            self.log.see(self.end)

    @property
    def confirm_offset(self) -> int:
        return self.end if self._confirm_offset is None else self._confirm_offset()

    @property
    def minimum(self) -> int:
        return self.log.minimum

    @property
    def last_file_start(self) -> int:
        return self._file_end(max(self.minimum, self.end)) - self._size

    @property
    def _size(self) -> int:
        return self.log.file_size_bytes or self._file_size_bytes

    def _file_end(self, place: int) -> int:
        return self.log.file_end(place, self._size)

    def cut(self, start: int, most_bytes: int) -> int:
        """Like `LogExtent.cut`. A record of more than `most_bytes` has its own frame; one larger than a frame has several."""
        stop = min(self.end, self._file_end(start))
        if stop - start <= most_bytes:
            return stop
        if not len(self._ends) or not self._ends_from <= start < self._ends[-1]:
            self._ends, self._ends_from = self._record_ends(start, stop), start
        number = int(np.searchsorted(self._ends, start + most_bytes, side="right"))
        if number and self._ends[number - 1] > start:
            return int(self._ends[number - 1])
        following = self._ends[number : number + 1]
        if len(following) and start < following[0] <= start + MOST_SENT_BYTES:
            return int(following[0])
        return min(stop, start + (MOST_SENT_BYTES if len(following) else most_bytes))

    def _record_ends(self, start: int, stop: int) -> np.ndarray:
        """The ends of some records that follow `start`; empty if none begins there, or it has expired."""
        if self.log.file_index(start) < 0:
            return _NOTHING
        for offsets, records in self.log.walk(start, check_crc=False, limit=stop):
            return np.asarray(offsets + records.column("size_bytes"))
        return _NOTHING

    def view(self, start: int, size_bytes: int) -> memoryview:
        """Bytes of one file of the log. Raises OffsetOutOfRangeError if they have expired."""
        number = self.log.file_index(start)
        file = self.log.files[number] if number >= 0 else None
        if file is None or start + size_bytes > file.end:
            raise OffsetOutOfRangeError("commit log", None, self.minimum, self.end, start)
        return self.log.open_file(file).view(start - file.start, size_bytes).data

    def is_boundary(self, place: int) -> bool:
        """Whether a record or a file begins at a place of the log; walks from its file's start. For any thread."""
        log = self._open_log()
        try:
            number = log.file_index(place)
            if number < 0:
                return False
            start = log.files[number].start
            if place == start:
                return True
            walk = log.walk(start, check_crc=False, limit=place)
            for _ in walk:
                pass
            return walk.end == place
        finally:
            log.close()

    def close(self) -> None:
        self.log.close()


_LOG = logging.getLogger(__name__)
_READ_BYTES = 64 << 10
_TURN_BYTES = 4 << 20
"""How much one slave is sent before the others have their turn."""
_MOST_CONNECTIONS = 64
_OWN_FILES = 64
_LEFT_KEPT = 16
_HOSTS_KEPT = 64
_MOST_LOOKS = 4
"""How many threads at a time check whether a record begins where slaves want to start."""
_PAUSE_SECONDS = 1.0
_DEAF_MS = 1_000
"""How long no connection is accepted after the process ran out of descriptors."""
_REFUSALS_KEPT = 64


@dataclass(frozen=True, slots=True)
class ListenerSettings:
    """How a master listens."""

    host: str = "127.0.0.1"
    port: int = 0
    """0 = any that is free."""
    dialect: Dialect = Dialect.DEFAULT
    timing: Timing = field(default_factory=Timing)
    batch_bytes: int = DEFAULT_BATCH_BYTES
    """haTransferBatchSize."""
    knows: Callable[[int], bool] = lambda broker_id: True
    """Whether a controller lists a broker id; called for slaves that are no learners."""
    is_known: Callable[[str], bool] = lambda host: False
    """Whether a slave is known at a host: if connections are too many, its own take precedence."""


class Refusal(NamedTuple):
    """A slave that was refused, and why."""

    time_ms: int
    address: str
    reason: str


class _Left(NamedTuple):
    """What a connection that has ended was sent, and has acknowledged."""

    acknowledged: int
    sent: int


@dataclass(slots=True, eq=False)
class _Connection:
    number: int
    socket: socket.socket
    address: str
    session: MasterSession
    identified: Identified | None = None
    requested_start: int | None = None
    unsent: deque[memoryview] = field(default_factory=deque)
    wants_write: bool = False
    since_ms: int = 0
    """When it connected, started, or acknowledged anything new."""

    def __hash__(self) -> int:
        """By number, so that turns of connections are deterministic."""
        return self.number

    @property
    def host(self) -> str:
        return host_of(self.address)

    @property
    def neighbourhood(self) -> str:
        """Its host; for IPv6 the network of 64 bits: a peer with one address there has all."""
        host = self.host.partition("%")[0]
        return str(ipaddress.ip_network((host, 64), strict=False)) if ":" in host else host

    def replica(self) -> Replica:
        is_loopback = ipaddress.ip_address(self.host.partition("%")[0]).is_loopback
        host = self.address if is_loopback else self.host  # several slaves on one machine are for tests
        if self.identified is None:
            return Replica(host, None, self.address, UNPROVEN)
        broker_id = self.identified.broker_id
        return Replica(f"id:{broker_id}", broker_id, self.address, UNPROVEN, self.identified.is_learner)


class ReplicationListener:
    """Serves a log to slaves until `close`. `replicas` is what it knows of them."""

    def __init__(self, reader: LogReader, settings: ListenerSettings, replicas: Replicas | None = None) -> None:
        """Listens from now on. Raises OSError if it cannot, and ConfigurationError if the process may open too few files."""
        need_files(_MOST_CONNECTIONS + _OWN_FILES, "a master")
        self._reader = reader
        self._settings = settings
        self.replicas = replicas or Replicas()
        self.refusals: deque[Refusal] = deque(maxlen=_REFUSALS_KEPT)
        """The last slaves that were refused."""
        host = plain_host(settings.host)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        is_dual = host == "::" and socket.has_dualstack_ipv6()  # like the listeners of requests
        self._server = socket.create_server((host, settings.port), family=family, backlog=50, dualstack_ipv6=is_dual)
        self._server.setblocking(False)
        name = self._server.getsockname()
        self.address = address_text(name[0], name[1])
        self._waker, self._woken = socket.socketpair()
        self._waker.setblocking(False)
        self._woken.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._server, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._connections: set[_Connection] = set()
        self._numbers = count(1)
        self._judged: deque[tuple[_Connection, bool]] = deque()
        self._left: dict[str, deque[_Left]] = {}
        self._looks = 0
        self._deaf_until_ms: int | None = None
        self._is_closed = False
        self._thread = threading.Thread(target=self._work, name=f"replication on {self.address}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """The log has grown. From any thread; cheap, and nearly free without slaves. A new slave has not requested a start yet."""
        if self._connections:
            self._wake()

    def _wake(self) -> None:
        with suppress(BlockingIOError, OSError):  # a full pipe also wakes it
            self._waker.send(b"\0")

    def close(self) -> None:
        """Close all connections."""
        self._is_closed = True
        self._wake()
        if self._thread.ident is not None:
            self._thread.join()
        for connection in list(self._connections):
            self._hang_up(connection)
        self._selector.close()
        for opened in (self._server, self._waker, self._woken):
            opened.close()
        self._reader.close()

    def _work(self) -> None:
        while not self._is_closed:
            try:
                self._turn()
            except Exception:  # after any error the slaves are served again
                _LOG.exception("the log is not served for now")
                time.sleep(_PAUSE_SECONDS)

    def _turn(self) -> None:
        """Handle the slaves' data, then send."""
        for key, mask in self._selector.select(self._patience_seconds()):
            if key.fileobj is self._server:
                self._accept()
            elif key.fileobj is self._woken:
                with suppress(BlockingIOError):
                    self._woken.recv(4096)
            elif mask & selectors.EVENT_READ:
                self._read(key.data)
        self._reader.look()
        while self._judged:
            self._begin(*self._judged.popleft())
        now_ms = steady_time_ms()
        if self._deaf_until_ms is not None and now_ms >= self._deaf_until_ms:
            self._deaf_until_ms = None
            self._selector.register(self._server, selectors.EVENT_READ)
        for connection in list(self._connections):
            if connection.session.is_silent(now_ms):
                self._refuse(connection, "it has said nothing for too long")
            else:
                self._send(connection)

    def _patience_seconds(self) -> float:
        if any(not connection.wants_write and self._has_more(connection) for connection in self._connections):
            return 0
        now_ms = steady_time_ms()
        deadlines = [
            connection.session.deadline(is_blocked=connection.wants_write) - now_ms for connection in self._connections
        ]
        return max(0, min([1_000, *deadlines])) / 1_000

    def _has_more(self, connection: _Connection) -> bool:
        return UNPROVEN < connection.session.sent < self._reader.end

    def _accept(self) -> None:
        try:
            accepted, name = self._server.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                _LOG.warning("no slave can connect: %s", error)
                self._selector.unregister(self._server)
                self._deaf_until_ms = steady_time_ms() + _DEAF_MS
            return  # else it has gone already
        address = address_text(peer_host(name[0]), name[1])
        settings, now_ms = self._settings, steady_time_ms()
        session = MasterSession(settings.dialect, now_ms, settings.timing, settings.batch_bytes)
        connection = _Connection(next(self._numbers), accepted, address, session, since_ms=now_ms)
        if len(self._connections) >= _MOST_CONNECTIONS and not self._make_room(connection):
            accepted.close()
            self._note_refusal(address, f"there are {_MOST_CONNECTIONS} connections")
            return
        accepted.setblocking(False)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connections.add(connection)
        self._selector.register(accepted, selectors.EVENT_READ, connection)
        if settings.dialect is Dialect.DEFAULT:
            self.replicas.connected(connection.number, connection.replica())

    def _make_room(self, newcomer: _Connection) -> bool:
        now_ms, held = steady_time_ms(), list(self._connections)
        found = who_gives_way([self._place(each, now_ms) for each in held], self._place(newcomer, now_ms))
        if found is None:
            return False
        self._refuse(held[found], f"there are {_MOST_CONNECTIONS} connections, and {newcomer.address} comes first")
        return True

    def _place(self, connection: _Connection, now_ms: int) -> Place:
        session, since_ms = connection.session, connection.since_ms
        takes_nothing = (
            session.acknowledged < session.sent and now_ms - since_ms > self._settings.timing.housekeeping_ms
        )
        is_known = self._settings.is_known(connection.host)
        return Place(connection.neighbourhood, is_known, connection.requested_start is None or takes_nothing, since_ms)

    def _read(self, connection: _Connection) -> None:
        try:
            data = connection.socket.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._hang_up(connection)
            return
        for event in connection.session.receive(data, steady_time_ms()):
            if connection in self._connections:  # earlier events have not ended it
                self._handle(connection, event)

    def _handle(self, connection: _Connection, event: SessionEvent) -> None:
        if isinstance(event, Acknowledged):
            connection.since_ms = steady_time_ms()
            self.replicas.acknowledged(connection.number, event.offset)
        elif isinstance(event, StartRequested):
            self._judge(connection, event.offset)
        elif isinstance(event, Identified):
            self._identify(connection, event)
        elif isinstance(event, Refused):
            self._refuse(connection, event.reason)

    def _identify(self, connection: _Connection, said: Identified) -> None:
        if not said.is_learner and not self._settings.knows(said.broker_id):
            self._refuse(connection, f"no broker of id {said.broker_id} is known")
            return
        is_known, others = (
            self._settings.is_known,
            [
                other
                for other in self._connections
                if other.identified is not None and other.identified.broker_id == said.broker_id
            ],
        )
        if any(is_known(other.host) for other in others) and not is_known(connection.host):
            self._refuse(
                connection, f"broker {said.broker_id} is connected from a host that is known, and this is none"
            )
            return
        connection.identified = said
        self.replicas.connected(connection.number, connection.replica())
        for other in others:  # a broker has one connection: the newest
            if other is not connection:
                self._refuse(other, f"another connection says that it is broker {said.broker_id}")

    def _judge(self, connection: _Connection, requested: int) -> None:
        connection.requested_start = requested
        self._reader.look(at_files=True)
        left = self._left.get(connection.host, ())
        found = where_to_start(
            requested,
            self._reader,
            from_last_file=connection.identified is not None and connection.identified.syncs_from_last_file,
            is_known_cut=any(known.acknowledged <= requested <= known.sent for known in left),
        )
        if isinstance(found, str):
            self._refuse(connection, found)
        elif found is not None:
            self._start(connection, found)
        elif self._looks >= _MOST_LOOKS:
            self._refuse(connection, "too many slaves ask for places within a file just now")
        else:
            self._looks += 1
            threading.Thread(
                target=self._look, args=(connection, requested), name="replication start", daemon=True
            ).start()

    def _look(self, connection: _Connection, requested: int) -> None:
        try:
            is_boundary = self._reader.is_boundary(requested)
        except Exception:  # any error must not keep the answer from the slave, or the place from others
            _LOG.exception("where %s may begin is not known", connection.address)
            is_boundary = False
        self._judged.append((connection, is_boundary))
        self._wake()

    def _begin(self, connection: _Connection, is_boundary: bool) -> None:
        self._looks -= 1
        if connection not in self._connections or connection.requested_start is None:
            return
        if is_boundary:
            self._start(connection, connection.requested_start)
        else:
            self._refuse(connection, off_a_boundary(connection.requested_start))

    def _start(self, connection: _Connection, start: int) -> None:
        _LOG.info(
            "slave %s has the log up to %s and is sent it from %d on",
            connection.address,
            connection.requested_start,
            start,
        )
        self._handle(connection, connection.session.begin(start))

    def _send(self, connection: _Connection) -> None:
        if connection.session.is_past(self._reader):
            self._refuse(connection, f"it was sent the log up to {connection.session.sent}, which was cut before that")
            return
        left = _TURN_BYTES
        try:
            while left > 0:
                if not connection.unsent and not self._take(connection):
                    break
                sent = connection.socket.sendmsg(connection.unsent)
                left -= sent
                _drop(connection.unsent, sent)
        except BlockingIOError:
            pass
        except StorageError as error:
            self._refuse(connection, f"the log that it needs has expired: {error.describe()}")
            return
        except OSError:
            self._hang_up(connection)
            return
        self._watch(connection, for_writing=bool(connection.unsent))

    def _take(self, connection: _Connection) -> bool:
        outgoing = connection.session.next_send(steady_time_ms(), self._reader)
        if outgoing is None:
            return False
        connection.unsent.extend(self._pieces(outgoing))
        return True

    def _pieces(self, outgoing: Outgoing) -> list[memoryview]:
        header = memoryview(outgoing.header)
        return [header, self._reader.view(outgoing.start, outgoing.size_bytes)] if outgoing.size_bytes else [header]

    def _watch(self, connection: _Connection, *, for_writing: bool) -> None:
        if connection.wants_write != for_writing:
            connection.wants_write = for_writing
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if for_writing else 0)
            self._selector.modify(connection.socket, events, connection)

    def _refuse(self, connection: _Connection, reason: str) -> None:
        connection.session.refuse()
        self._note_refusal(connection.address, reason)
        self._hang_up(connection)

    def _note_refusal(self, address: str, reason: str) -> None:
        self.refusals.append(Refusal(current_time_ms(), address, reason))
        _LOG.warning("slave %s is refused: %s", address, reason)

    def _hang_up(self, connection: _Connection) -> None:
        if connection not in self._connections:
            return
        self._connections.discard(connection)
        self._selector.unregister(connection.socket)
        connection.socket.close()
        session = connection.session
        if session.acknowledged != UNPROVEN:
            kept = self._left.pop(connection.host, None) or deque(maxlen=_LEFT_KEPT)
            self._left[connection.host] = kept  # becomes the newest
            if len(self._left) > _HOSTS_KEPT:
                del self._left[next(iter(self._left))]
            kept.append(_Left(session.acknowledged, session.sent))
        self.replicas.gone(connection.number)


def _drop(unsent: deque[memoryview], size_bytes: int) -> None:
    """Remove the sent bytes."""
    while size_bytes:
        first = unsent[0]
        if len(first) > size_bytes:
            unsent[0] = first[size_bytes:]
            return
        size_bytes -= len(first)
        unsent.popleft()


_LOOK_SECONDS = 0.05


class Replicator:
    """Serves the whole records of a store's log, beside its writer, from now until `close`. It only reads, and takes no lock.

    `store` is open for reading, and closed at the end.
    """

    def __init__(self, store: MessageStore, settings: ListenerSettings, replicas: Replicas | None = None) -> None:
        """Raises OSError if it cannot listen."""
        self._store = store
        self._end = store.log_end
        files = store.layout
        file_size = files.log_file_size_bytes or store.log.file_size_bytes or DEFAULT_LOG_FILE_SIZE
        reader = LogReader(lambda: files.commit_log(LocalFileSystem()), lambda: self._end, file_size)
        self.listener = ReplicationListener(reader, settings, replicas)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._look, name="replicator", daemon=True)

    @property
    def log_end(self) -> int:
        """End of the last known whole record."""
        return self._end

    def start(self) -> None:
        self.listener.start()
        self._thread.start()

    def _look(self) -> None:
        while not self._closing.wait(_LOOK_SECONDS):
            try:
                self._store.refresh()
            except (StorageError, OSError):
                _LOG.exception("how far %s goes is not known for now", self._store.root)
                self._closing.wait(_PAUSE_SECONDS)
                continue
            if self._store.log_end != self._end:
                self._end = self._store.log_end
                self.listener.wake()

    def close(self) -> None:
        """Close all connections."""
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join()
        self.listener.close()
        self._store.close()
