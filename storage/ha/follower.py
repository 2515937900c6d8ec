"""A running follower: it connects to a master, appends and reports what it receives, and reconnects when the connection ends.

    spark-mq follow ─▶ Following (a store that follows) ─▶ Follower (a thread) ─▶ SlaveSession, FollowedLog

The session decides (`sessions.py`). `truncate_store` cuts the log where it differs from its master's.
Java: DefaultHAClient.
"""

from __future__ import annotations

import logging
import select
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import NamedTuple

from storage.epoch_times import steady_time_ms
from storage.errors import (
    CorruptRecordError,
    OffsetOutOfRangeError,
    StoreNotWritableError,
    StoreRefusedError,
)
from storage.files.file_system import end_of_data
from storage.files.local_file_system import LocalFileSystem
from storage.format.replication import EpochEntry, MasterHandshake, SlaveHandshake
from storage.ha.epochs import EpochFile, FollowedEpochs
from storage.ha.sessions import CONNECT_TIMEOUT_MS, RECONNECT_MS, Introduced, Received, Refused, SlaveSession, Timing
from storage.log.commit_log import CommitLog, RecordIdentity, boot_left, read_checkpoint, write_checkpoint
from storage.log.dispatch import RawCheck
from storage.names import split_address
from storage.put.store_writer import StoreWriter
from storage.recovery.mending import cut_log
from storage.recovery.opening import mark_open
from storage.service.put_service import PutService
from storage.settings.load import BY_APACHE, StoreConfig
from storage.store import WritesAs, open_store, writer_of
from storage.tables.masters import (
    copied_topics_end,
    followed_master,
    forget_copied_topics,
    forget_followed_master,
    note_followed_master,
)
from storage.tables.surroundings import refuse_foreign_log
from storage.tables.topics import TopicTable

# Cutting a store's log where it starts to differ from its master's, with queues and index. Java: truncateFiles.
#
#     order: abort · checkpoint lowered to the last record that stays · log cut, zeroed · opened, which recovers · closed · epochs cut
#
# A crash at any step leaves a store with `abort` that ends at the cut, or after it as before: the next comparison cuts it again.
# Departure: Java only moves positions; what it has cut comes back after a crash (apache/rocketmq#10666).


def truncate_store(
    root: str,
    end: int,
    *,
    config: StoreConfig | str | None = None,
    confirm_offset: int = 0,
    writes_as: WritesAs = "follower",
    holds_back: bool = False,
    file_system: LocalFileSystem | None = None,
) -> Sequence[EpochEntry]:
    """Cut the log of a closed store at `end`, where a record or a file begins; returns the epochs that stay.

    `holds_back` is that of `open_store`.
    Raises StoreRefusedError if no record begins there, or all replicas have what would be cut (`confirm_offset`);
    OffsetOutOfRangeError outside of the log; StoreLockedError; with nothing changed. OSError.
    """
    files = file_system or LocalFileSystem()
    with open_store(root, config=config, file_system=files) as store:
        refuse_foreign_log(store.root, store.config, files, writer_of(writes_as, "follower"))
        log_end, directories = store.log_end, store.log.directories
        minimum, size = store.log.minimum, store.log.file_size_bytes
    if not minimum <= end <= log_end:
        raise OffsetOutOfRangeError("commit log", None, minimum, log_end, end)
    if end < confirm_offset:
        reason = f"its log must be cut at {end}, and all replicas have it up to {confirm_offset}"
        raise StoreRefusedError(root, reason, hint="look which of the logs is the right one; nothing was changed")
    with files.locked(f"{root}/lock", holder="follower"):
        log = CommitLog(files, directories, size)
        last = _last_record(log, root, end)
        mark_open(files, root, boot_left(files, root))
        checkpoint = read_checkpoint(files, root)
        lowered = {
            "physic_msg_timestamp": min(checkpoint.physic_msg_timestamp, last.store_time_ms),
            "logics_physical_offset": checkpoint.queue_position(
                min(checkpoint.logics_physical_offset, last.commitlog_offset)
            ),
        }
        write_checkpoint(files, root, checkpoint._replace(**lowered))
        cut_log(files, log, end, "its master's log differs from there on")
        log.close()
    open_store(
        root,
        config=config,
        read_only=False,
        holder="follower",
        writes_as=writes_as,
        holds_back=holds_back,
        file_system=files,
    ).close()
    epochs = EpochFile(files, root)
    epochs.cut(end)
    return epochs.entries


def _last_record(log: CommitLog, root: str, end: int) -> RecordIdentity:
    """The last record before a log offset, zeros without one. StoreRefusedError inside a record."""
    last = RecordIdentity(0, 0)
    for file in reversed(log.files[: log.file_index(max(0, end - 1)) + 1]):
        walk = log.walk(file.start, check_crc=False, limit=min(end, file.end))
        for offsets, records in walk:
            last = RecordIdentity(int(offsets[-1]), int(records.column("store_time_ms")[-1]))
        if file.start < end < file.end and walk.end != end and end_of_data(log.open_file(file), 0):
            raise StoreRefusedError(root, f"its log must be cut at {end}, where no record begins")
        if last.store_time_ms:
            break
    return last


_LOG = logging.getLogger(__name__)
_READ_BYTES = 1 << 20
_SETTLED_BYTES = 4 << 20
"""The most that is checked and dispatched together before it is acknowledged."""
_NO_MASTER = "no name server or controller knows a master: does it run, and is the broker's name right?"

MasterAddress = Callable[[], str | None]
"""The present host:port of the master's listener; None = unknown. Called before each attempt to connect."""


class MasterAsks(NamedTuple):
    """Requests to a master outside of this connection; None = it does not answer."""

    bounds: Callable[[], tuple[int, int] | None] = lambda: None
    """Start and end of its log."""
    record: Callable[[int, str], bytes | None] = lambda place, topic: None
    """The record at a place of its log, with the topic that this log has there; b"" = the master has no record there."""
    topics: Callable[[], TopicTable | None] = lambda: None
    """Its topics."""


@dataclass(frozen=True, slots=True)
class FollowerStatus:
    """How far a follower is, and what stops it."""

    master: str | None = None
    is_connected: bool = False
    end: int = 0
    """End of its log."""
    frames: int = 0
    """How many frames with bytes came since the start."""
    trouble: str | None = None
    """Why the last connection ended, or what is wrong with this one; None since bytes, or a matching heartbeat, came."""
    is_hopeless: bool = False
    """Whether only a new store helps."""


class Switching(NamedTuple):
    """What a follower needs to follow one master after another, as a controller names them. Java: AutoSwitchHAClient."""

    identity: SlaveHandshake
    epochs: FollowedEpochs
    diverged: Callable[[int, int], PutService | None]
    """Called in the follower's thread without a connection, when this log goes further than the part that it shares with the master's.
    Gets that part's end and the offset that all replicas have, by the masters' reports. Returns the store, cut there and opened again;
    None = this follower ends, and the caller that closes it cuts."""


class Follower:
    """Follows a master from `start` until `close`. Does not close `service`."""

    def __init__(
        self,
        service: PutService,
        address: MasterAddress,
        timing: Timing | None = None,
        *,
        asks: MasterAsks | None = None,
        reconnect_ms: int = RECONNECT_MS,
        switching: Switching | None = None,
    ) -> None:
        """With `switching` the masters are a controller's."""
        self._log = FollowedLog(service)
        self._switching = switching
        self._diverged_at: int | None = None
        self._address = address
        self._asks = asks or MasterAsks()
        self._timing = timing or Timing()
        self._reconnect_s = reconnect_ms / 1_000
        self._closing = threading.Event()
        self._refusal: StoreRefusedError | None = None
        self._has_asked_topics = False
        self._changed = threading.Condition()
        self.status = FollowerStatus(end=self._log.end)
        self.agrees = False
        """Whether, at the last check, this log was no more than the master's. It is checked before every connection, with masters of a
        controller at its start.
        """
        self.error: Exception | None = None
        """The error that ended it; None = none did."""
        self._thread = threading.Thread(target=self._work, name="follower", daemon=True)

    @property
    def failure(self) -> str | None:
        """`error` as text."""
        return None if self.error is None else str(self.error) or type(self.error).__name__

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Close the connection; cut an incomplete record."""
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join()

    def refuse(self, error: StoreRefusedError) -> None:
        """End for good: the master's table has a topic that this package does not write. By any thread."""
        self._refusal = StoreRefusedError(self._log.root, f"its master has {error.reason}", BY_APACHE)
        self._closing.set()

    def wait(self, condition: Callable[[FollowerStatus], bool], timeout_seconds: float) -> bool:
        """Wait until the condition holds for the status; returns whether it did in time."""
        with self._changed:
            return self._changed.wait_for(lambda: condition(self.status), timeout_seconds)

    def _tell(self, status: FollowerStatus) -> None:
        with self._changed:
            if status.trouble != self.status.trouble and status.trouble is not None:
                _LOG.warning("following %s: %s", status.master or "no master", status.trouble)
            self.status = status
            self._changed.notify_all()

    def _work(self) -> None:
        try:
            while not self._closing.is_set():
                self._follow()
                self._tell(replace(self.status, is_connected=False))
                self._closing.wait(self._reconnect_s)
            self._log.cut_torn_end()
            if self._refusal is not None:
                raise self._refusal
        except Exception as error:  # any error ends the following, and is reported
            _LOG.exception("following has ended")
            self.error = error
            self._tell(replace(self.status, is_connected=False, trouble=f"it has ended: {error}", is_hopeless=True))

    def _follow(self) -> None:
        """Run one connection to its end. Raises StorageError, OSError if the store accepts nothing more."""
        self.agrees = False
        address = self._address()
        if address is None:
            self._tell(
                replace(
                    self.status,
                    master=None,
                    trouble=_NO_MASTER,
                )
            )
            return
        if not self._has_asked_topics and (topics := self._asks.topics()) is not None:
            self._has_asked_topics = True  # later ones come with the copies of its tables
            try:
                topics.refuse_batches(self._log.root)
            except StoreRefusedError as error:
                self.refuse(error)
                return
        end = self._log.cut_torn_end()
        if self._switching is not None:
            self._switching.epochs.file.cut(end)
        elif not end:
            end = self._first_place()
        elif (reason := self._difference()) is not None:
            self._tell(replace(self.status, master=address, end=end, trouble=reason, is_hopeless=True))
            return
        self.agrees = self._switching is None
        self._tell(replace(self.status, master=address, end=end))
        try:
            connection = socket.create_connection(split_address(address), CONNECT_TIMEOUT_MS / 1_000)
        except (OSError, ValueError, OverflowError) as error:  # a master may send any address
            self._end_with(f"the master is not reached ({error})")
            return
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            session = self._session(end)
            self._tell(replace(self.status, is_connected=True))
            trouble = self._converse(connection, session)
        if trouble is not None:
            self._end_with(trouble)
        if self._diverged_at is not None:
            self._diverged(self._diverged_at)

    def _end_with(self, trouble: str) -> None:
        """Note why a connection has ended, unless the known trouble is worse."""
        if not self.status.is_hopeless:
            self._tell(replace(self.status, trouble=trouble))

    def _session(self, end: int) -> SlaveSession:
        size, now_ms, switching = self._log.file_size_bytes, steady_time_ms(), self._switching
        if switching is None:
            return SlaveSession(end, size, now_ms, self._timing)
        last = switching.epochs.file.last_epoch
        return SlaveSession(end, size, now_ms, self._timing, handshake=switching.identity, last_epoch=last)

    def _compare(self, session: SlaveSession, said: MasterHandshake) -> str | None:
        """Continue where the logs agree; or return why not, or not yet."""
        assert self._switching is not None
        found = self._switching.epochs.agreed_end(said, session.end)
        if isinstance(found, str):
            return found
        if found < session.end:
            self._diverged_at = found
            return f"this log goes on behind {found} otherwise than the master's: it is cut there"
        self._switching.epochs.begin(found)
        session.begin(found)
        self.agrees = True
        return None

    def _diverged(self, end: int) -> None:
        assert self._switching is not None
        self._diverged_at = None
        service = self._switching.diverged(end, self._switching.epochs.confirm_offset)
        if service is None:
            self._closing.set()
            return
        self._log = FollowedLog(service)
        self._switching.epochs.file.cut(end)

    def _difference(self) -> str | None:
        """Why this log is not a prefix of the master's, by its last record; None = it may be one.

        Departure: Java's slave continues if the offsets fit, whatever precedes them.
        """
        own = self._log.last_record()
        found = None if own is None else self._asks.record(own.commitlog_offset, own.topic)
        if own is None or found is None or found == own.content:
            return None
        bounds = None if found else self._asks.bounds()
        if bounds is not None and own.commitlog_offset < bounds[0]:
            return None  # it has expired there; the first heartbeat shows whether this log can continue
        what = "another record" if found else "no record that begins there"
        where = f"the last record of this log, at {own.commitlog_offset}, is not the master's"
        return f"{where}, which has {what}: it is another log; nothing is acknowledged"

    def _first_place(self) -> int:
        """Where to start without a log: at the start of the master's, if that is known. Else the master decides."""
        bounds = self._asks.bounds()
        if bounds is None or max(0, bounds[0]) >= bounds[1]:  # an empty master's log begins at -1
            return 0
        start = max(1, bounds[0])
        self._log.begin_at(start)
        return start

    def _converse(self, connection: socket.socket, session: SlaveSession) -> str | None:
        """Returns why the connection must end; None = this follower is being closed."""
        while not self._closing.is_set():
            now_ms = steady_time_ms()
            if session.is_silent(now_ms):
                return "the master has said nothing for too long"
            try:
                if (data := session.next_send(now_ms)) is not None:
                    connection.sendall(data)
                connection.settimeout(max(1, min(500, session.deadline() - now_ms)) / 1_000)
                received = connection.recv(_READ_BYTES)
            except TimeoutError:
                continue
            except OSError as error:
                return f"the connection broke ({error})"
            if not received:
                return "the master has hung up" + (
                    "" if session.frames else " at once: the master's answer may not fit its log"
                )
            trouble = self._handle(connection, session, received)
            if trouble is not None:
                return trouble
        return None

    def _handle(self, connection: socket.socket, session: SlaveSession, data: bytes) -> str | None:
        """Handle received data, and what is readable right after it: records are checked and dispatched many at a time."""
        refused: str | None = None
        count = taken = 0
        while data:
            taken += len(data)
            for event in session.receive(data, steady_time_ms()):
                if isinstance(event, Introduced):
                    refused = self._compare(session, event.handshake)
                elif isinstance(event, Received):
                    if event.epoch is not None and self._switching is not None:
                        end = event.commitlog_offset + len(event.body)
                        self._switching.epochs.note(event.epoch, end, self._log.end)
                    self._log.take(event)
                    count += bool(event.body)
                elif isinstance(event, Refused):
                    refused = event.reason
            data = _what_is_there(connection) if refused is None and taken < _SETTLED_BYTES else b""
        try:
            confirmed = None if self._switching is None else self._switching.epochs.masters_confirm_offset
            session.appended(self._log.settle(confirmed))
        except CorruptRecordError as error:
            return f"the master sends what is no record: {error.describe()}"
        except StoreNotWritableError as error:
            if self._log.failure is not None:
                raise
            return error.describe()  # a full disk: retry with the master until there is room
        if refused is not None:
            return refused if self._diverged_at is not None else f"the master is refused: {refused}"
        frames = self.status.frames + count
        trouble = self._look_around(session) if session.heartbeats else None
        self._tell(
            replace(self.status, end=self._log.end, frames=frames, trouble=trouble, is_hopeless=trouble is not None)
        )
        return None

    def _look_around(self, session: SlaveSession) -> str | None:
        """After heartbeats only: is there nothing new, or does the master not have the next bytes?"""
        bounds = None if self._switching is not None else self._asks.bounds()  # epochs have shown it
        if bounds is None:
            return None
        minimum, maximum = bounds
        if 0 < session.end < minimum:
            return f"this log ends at {session.end}, and the master's begins at {minimum}: what lies between has expired there"
        if session.end > maximum:
            return (
                f"this log ends at {session.end}, and the master's at {maximum}: it is another log, or has lost its end"
            )
        return None


def _what_is_there(connection: socket.socket) -> bytes:
    """The bytes that can be read without waiting; none also if the connection has ended, which the next read reports."""
    try:
        readable = select.poll()  # select() fails for the 1,025th file of a process
        readable.register(connection, select.POLLIN)
        return connection.recv(_READ_BYTES) if readable.poll(0) else b""
    except OSError:
        return b""


class LastRecord(NamedTuple):
    """The last whole record of a log, byte for byte."""

    commitlog_offset: int
    topic: str
    content: bytes


class FollowedLog:
    """The log of a follower: appends received bytes, checks and dispatches records, cuts a torn end.

    `service` has the store, opened by holder "follower"; one thread appends.

        received* ─▶ settle: whole records checked, in queues and index, acknowledged as far as their bytes are here

    A crash leaves a prefix of the master's log; the next opening cuts it after its last whole record, and zeroes the rest. Java:
    DefaultHAClient.dispatchReadRequest, ReputMessageService.
    """

    def __init__(self, service: PutService) -> None:
        self._service = service
        self._taken: list[Received] = []
        with service.exclusive() as store:
            config = store.config
            check_crc = config.commit_log.check_crc_on_recover
            self._check = RawCheck(store.log, config.delay.delays_ms, check_crc, store.root)
            self.root = store.root
            self.file_size_bytes = store.settings.log_file_size_bytes
            self.end = self.raw_end = store.writer.log_end if store.log.files else 0

    @property
    def failure(self) -> BaseException | None:
        """Why the store accepts nothing more until it is opened again; None = it does."""
        return self._service.failure

    def begin_at(self, start: int) -> None:
        """Start an empty log at a log offset where a record or a file of the master's begins.

        Offset 1 means 0: a Java master sends only its last file to a slave that reports 0, and the first byte of a log is 0.
        """
        assert self.raw_end == 0
        self.raw_end = start
        self.end = 0 if start == 1 else start

    def take(self, received: Received) -> None:
        """Add bytes that follow `raw_end`, within one file. `settle` writes them."""
        if received.body:
            if not self.raw_end:
                self.end = received.commitlog_offset
            self._taken.append(received)
            self.raw_end = received.commitlog_offset + len(received.body)

    def settle(self, confirmed: int | None = None) -> int:
        """Write, check and dispatch the added bytes; returns the log offset up to which they may be acknowledged.

        `confirmed` is the offset that a controller's master calls confirmed: later records wait in the log.

        Raises CorruptRecordError for bytes that are no record, StoreRefusedError for a record of a batch queue; they are cut, and were
        not acknowledged. StoreNotWritableError if
        the disk has no room: `cut_torn_end` then allows a retry. If the service has failed, and with OSError, the store is unusable.
        """
        if confirmed is not None:
            self._service.on_confirmed(confirmed)
        if self.raw_end == self.end:
            return self.end
        with self._service.exclusive() as store:
            self._write(store.writer)
            try:
                found = self._check.whole_records(self.end, self.raw_end)
            except (CorruptRecordError, StoreRefusedError):
                self._cut(store.writer)
                raise
            if found.end > self.end:
                store.writer.enter_raw(found)
                self.end = found.end
        return self.raw_end

    def cut_torn_end(self) -> int:
        """Cut an incomplete record; returns the log's end: the master continues there."""
        with self._service.exclusive() as store:
            self._cut(store.writer)
        return self.end

    def last_record(self) -> LastRecord | None:
        """The last record; None if it is unknown."""
        with self._service.exclusive() as store:
            last = store.writer.ends.last_record
            if last is None or not self.end:
                return None
            store.log.list_files()
            try:
                message = store.log.message_at(last.commitlog_offset, self.end)
                content = store.log.bytes_at(last.commitlog_offset, message.size_bytes)
            except (OffsetOutOfRangeError, CorruptRecordError):
                return None
            return LastRecord(last.commitlog_offset, message.topic, content)

    def _write(self, writer: StoreWriter) -> None:
        """Write the added bytes in as few pieces as there are files."""
        taken, self._taken = self._taken, []
        for _, of_file in groupby(taken, lambda received: received.commitlog_offset // self.file_size_bytes):
            pieces = list(of_file)
            writer.append_raw(pieces[0].commitlog_offset, b"".join(piece.body for piece in pieces))

    def _cut(self, writer: StoreWriter) -> None:
        self._taken.clear()
        if self.raw_end > self.end:
            writer.cut_raw(self.end)
            self.raw_end = self.end


class Following:
    """One store that follows a master, and its follower. A context manager that closes both.

        with open_following("/data/replica", "10.0.0.7:10912") as following: …

    The store is locked, and can be read meanwhile; nothing else writes there until `promote`.
    """

    def __init__(self, root: str, config: StoreConfig | str | None, service: PutService) -> None:
        self._root = root
        self._config = config
        self.service = service
        self.follower: Follower
        self.reopened: Callable[[PutService], None] = lambda service: None
        """Called with the newly opened store, in the follower's thread."""

    def switching(self, identity: SlaveHandshake) -> Switching:
        """What a follower of a controller's masters needs of this store."""
        return Switching(identity, FollowedEpochs(EpochFile(LocalFileSystem(), self._root)), self._cut)

    def _cut(self, end: int, confirm_offset: int) -> PutService:
        self.service.close()
        truncate_store(self._root, end, config=self._config, confirm_offset=confirm_offset, holds_back=True)
        store = open_store(self._root, config=self._config, read_only=False, holder="follower", holds_back=True)
        self.service = PutService(store)
        self.reopened(self.service)
        return self.service

    def close(self) -> None:
        """Close the connection, and the store cleanly."""
        self.follower.close()
        self.service.close()

    def __enter__(self) -> Following:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_following(
    root: str,
    master: str | MasterAddress,
    *,
    config: StoreConfig | str | None = None,
    timing: Timing | None = None,
    asks: MasterAsks | None = None,
    adopts: bool = False,
    reconnect_ms: int = RECONNECT_MS,
    identity: SlaveHandshake | None = None,
) -> Following:
    """Let the store at ROOT, made if missing, follow a master: `master` is its listener's address, or returns it.

    With `adopts` a store with messages that has followed no master counts as a copy of the master's. With `identity` a controller
    chooses and may change the master, and readers see only confirmed messages.
    Raises what `open_store` raises; StoreRefusedError for a store with messages of its own.
    """
    is_controlled = identity is not None
    store = open_store(root, config=config, read_only=False, create=True, holder="follower", holds_back=is_controlled)
    try:
        files = LocalFileSystem()
        followed = followed_master(files, store.root)
        if followed is None and store.log.files and store.config.mode.broker_role != "SLAVE" and not adopts:
            reason = "it has messages, and has followed no master: what it holds may be its own"
            hint = "begin with an empty directory, or say that it is a copy of the master's store (--adopt)"
            raise StoreRefusedError(store.root, reason, hint=hint)
        note_followed_master(files, store.root, master if isinstance(master, str) else followed or "its master")
        service = PutService(store)
    except BaseException:
        store.close()
        raise
    address = (lambda: master) if isinstance(master, str) else master
    following = Following(store.root, config, service)
    switching = None if identity is None else following.switching(identity)
    following.follower = Follower(service, address, timing, asks=asks, reconnect_ms=reconnect_ms, switching=switching)
    following.follower.start()
    return following


def promote(root: str, *, config: StoreConfig | str | None = None) -> bool:
    """End the following of the store at ROOT, which may be written then; returns whether it followed a master.

    It is opened once more as a follower, so that a torn last record does not count as a message of its own. Offsets in its tables that
    are ahead of its log are lowered; topics whose entries have not come get one, also where no table was copied (no --broker-name).
    Its follower must have ended. Raises StoreLockedError while it runs, and what `open_store` raises.
    """
    files = LocalFileSystem()
    if followed_master(files, root) is None:
        return False
    with open_store(root, config=config, read_only=False, holder="follower") as store:
        store.lower_offsets()
        store.make_missing_topics(copied_topics_end(files, root) or 0)
        forget_copied_topics(files, root)
        return forget_followed_master(files, root)
