"""Both ends of a replication connection, without sockets: `MasterSession` and `SlaveSession`.

A session checks the peer's data and returns events to its owner. It returns what to send next, and when to call it again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from storage.errors import CorruptRecordError
from storage.format.record import NeedMoreBytes
from storage.format.replication import (
    MOST_BODY_BYTES,
    Decoded,
    Dialect,
    EpochEntry,
    Frame,
    FrameEpoch,
    MasterHandshake,
    Report,
    SlaveHandshake,
    decode_from_master,
    decode_from_slave,
    encode_from_master,
    encode_from_slave,
    encode_header,
)
from storage.ha.epochs import epoch_at, epoch_end, flaw_of
from storage.ha.replicas import UNPROVEN
from storage.settings.nouns import ReplicationConfig

RECONNECT_MS = 5_000
"""Pause between two attempts of a slave. Java: DefaultHAClient, not configurable."""
CONNECT_TIMEOUT_MS = 5_000


class Identified(NamedTuple):
    """A slave has sent its identity. Only in the controller's dialect."""

    broker_id: int
    is_learner: bool
    syncs_from_last_file: bool


class StartRequested(NamedTuple):
    """A slave has sent the end of its log. Until `MasterSession.begin` it gets nothing, and does not count."""

    offset: int


class Acknowledged(NamedTuple):
    """A slave has the log up to there."""

    offset: int


class Refused(NamedTuple):
    """The peer broke the protocol; close the connection, and report the reason."""

    reason: str


class Introduced(NamedTuple):
    """A master has sent its log's epochs. It is not requested to send bytes before `SlaveSession.begin`."""

    handshake: MasterHandshake


class Received(NamedTuple):
    """Bytes of the log that follow the slave's end, in one file of it. A heartbeat has none."""

    commitlog_offset: int
    body: bytes | memoryview
    epoch: FrameEpoch | None


SessionEvent = Identified | StartRequested | Acknowledged | Refused | Introduced | Received


class Incoming:
    """Decodes received bytes into values. Holds less than one value, whose size its decoder limits."""

    def __init__(self, decode: Callable[[memoryview], Decoded | NeedMoreBytes]) -> None:
        self._decode = decode
        self._pieces: list[bytes] = []
        self._held = 0
        self._needed = 1

    def feed(self, data: bytes) -> Iterator[Decoded]:
        """The complete values; they refer to the bytes without a copy. Raises CorruptRecordError for an invalid value."""
        self._pieces.append(data)
        self._held += len(data)
        if self._held < self._needed:
            return
        whole = memoryview(b"".join(self._pieces) if len(self._pieces) > 1 else data)
        position = 0
        while True:
            found = self._decode(whole[position:])
            if isinstance(found, NeedMoreBytes):
                break
            position += found.size_bytes
            yield found
        self._pieces = [bytes(whole[position:])]
        self._held, self._needed = len(whole) - position, found.size_bytes


@dataclass(frozen=True, slots=True)
class Timing:
    """Time limits of both ends."""

    heartbeat_ms: int = 5_000
    """haSendHeartbeatInterval: after so long without writing, send the present position."""
    housekeeping_ms: int = 20_000
    """haHousekeepingInterval: after so long without reading, close the connection."""


class Silence:
    """When a connection was last read and written."""

    def __init__(self, timing: Timing, now_ms: int) -> None:
        self._timing = timing
        self.read_ms = self.written_ms = now_ms

    def is_over(self, now_ms: int) -> bool:
        """Whether the peer has been silent for too long."""
        return now_ms - self.read_ms > self._timing.housekeeping_ms

    def wants_word(self, now_ms: int) -> bool:
        """Whether this end must send something."""
        return now_ms - self.written_ms >= self._timing.heartbeat_ms

    def deadline_ms(self, *, may_write: bool = True) -> int:
        """When the first of the two limits is reached if nothing happens before; only the read limit if nothing can be written."""
        is_over_ms = self.read_ms + self._timing.housekeeping_ms + 1
        return min(is_over_ms, self.written_ms + self._timing.heartbeat_ms) if may_write else is_over_ms


# A master's end of one replication connection, without a socket: checks a slave's reports, and decides what to send next.
#
#     receive(bytes, now) ─▶ Identified · StartRequested ─▶ begin(start) or refuse(reason) · Acknowledged · Refused
#     next_send(now, extent) ─▶ Outgoing: a header, and which bytes of the log follow it
#     deadline() ─▶ when to call again though nothing happens
#
# Reports are not trusted: an acknowledgement beyond what was sent, or before an earlier one, ends the connection and does not count.
# A slave that wants to start where it cannot is refused with the reason; Java's master sends it heartbeats forever.
# Java: DefaultHAConnection, AutoSwitchHAConnection.


DEFAULT_BATCH_BYTES = ReplicationConfig().ha_transfer_batch_size
MOST_SENT_BYTES = MOST_BODY_BYTES - 64
"""The most in one frame: with either header it fits into the buffer of Java's slave."""
END_UNKNOWN = -1
"""The report of a slave that does not know its end yet."""


CONFIRM_PAUSE_MS = 20
"""Shortest pause after the last frame before an up-to-date slave is sent the confirmed offset."""


class LogExtent(Protocol):
    """The part of a log that may be sent now."""

    @property
    def minimum(self) -> int:
        """The first byte that is there."""

    @property
    def end(self) -> int:
        """After the last byte that may be sent: the end of a record, or of a file."""

    @property
    def last_file_start(self) -> int:
        """Start of the file in which `end` lies, or will lie."""

    def cut(self, start: int, most_bytes: int) -> int:
        """The end of a frame that begins at `start`, before `end`: in the same file, after a whole record if one fits."""

    @property
    def epochs(self) -> tuple[EpochEntry, ...]:
        """Only in the controller's dialect."""

    @property
    def confirm_offset(self) -> int:
        """The log offset that all required replicas have."""


class Outgoing(NamedTuple):
    """What to send: the header, then these bytes of the log."""

    header: bytes
    start: int = 0
    size_bytes: int = 0


class MasterSession:
    """One connection. `acknowledged` and `sent` are log offsets; UNPROVEN until the slave has started."""

    def __init__(
        self, dialect: Dialect, now_ms: int, timing: Timing | None = None, batch_bytes: int = DEFAULT_BATCH_BYTES
    ) -> None:
        """`batch_bytes` is haTransferBatchSize: a frame is larger only for a single larger record."""
        self._dialect = dialect
        self._batch_bytes = batch_bytes
        self._silence = Silence(timing or Timing(), now_ms)
        self._ask_by_ms = now_ms + (timing or Timing()).housekeeping_ms
        self._incoming = Incoming(lambda buffer: decode_from_slave(dialect, buffer))
        self._slave: SlaveHandshake | None = None
        self._owes_handshake = False
        self._requested_start: int | None = None
        self._has_started = False
        self._is_over = False
        self._sent_confirmed = UNPROVEN
        self._owes_confirmed = False
        self.sent = UNPROVEN
        """The log offset up to which the slave was sent the log."""
        self.acknowledged = UNPROVEN

    def receive(self, data: bytes, now_ms: int) -> list[SessionEvent]:
        """The events in the slave's bytes, in order. Nothing follows `Refused`."""
        if self._is_over:
            return []
        events: list[SessionEvent] = []
        try:
            for found in self._incoming.feed(data):
                self._silence.read_ms = now_ms  # a part of a report does not count as a sign of life
                event = self._handle(found.value)  # type: ignore[arg-type]
                if event is not None:
                    events.append(event)
                if isinstance(event, Refused):
                    break
        except CorruptRecordError as error:
            events.append(self._refuse(f"it sends what no slave sends: {error.describe()}"))
        return events

    def _handle(self, value: Report | SlaveHandshake) -> SessionEvent | None:
        if isinstance(value, SlaveHandshake):
            return self._on_handshake(value)
        if self._dialect is Dialect.CONTROLLER and self._slave is None:
            return self._refuse("it reports an offset before it has said who it is")
        offset = value.max_offset
        if self._requested_start is None:
            if offset == END_UNKNOWN:
                return None
            if offset < 0:
                return self._refuse(f"it asks for place {offset}")
            self._requested_start = offset
            return StartRequested(offset)
        if not self._has_started:
            return (
                None
                if offset == self._requested_start
                else self._refuse("it reports again before it was sent anything")
            )
        if offset == self._requested_start == 0 and self.acknowledged == 0:
            return None  # it has nothing yet
        if offset > self.sent:
            return self._refuse(f"it acknowledges {offset}, and was sent the log up to {self.sent}")
        if offset < self.acknowledged:
            return self._refuse(f"it acknowledges {offset} behind {self.acknowledged}")
        if offset == self.acknowledged:
            return None
        self.acknowledged = offset
        return Acknowledged(offset)

    def _on_handshake(self, said: SlaveHandshake) -> SessionEvent | None:
        if self._requested_start is not None or (self._slave is not None and said != self._slave):
            return self._refuse(f"it says again who it is: {said.broker_id}")
        self._owes_handshake = True
        if self._slave is not None:  # Java's slave repeats it until it is answered
            return None
        self._slave = said
        return Identified(said.broker_id, said.is_learner, said.syncs_from_last_file)

    def begin(self, start: int) -> Acknowledged:
        """Let the slave start at its own end or, without a log, at `start`, the first byte of a file. Its data counts from now on."""
        assert self._requested_start is not None
        self._has_started = True
        self.sent = start
        self.acknowledged = self._requested_start
        return Acknowledged(self._requested_start)

    def refuse(self) -> None:
        """The slave cannot start there: nothing more is sent, and its data is ignored."""
        self._is_over = True

    def _refuse(self, reason: str) -> Refused:
        self._is_over = True
        return Refused(reason)

    def is_past(self, extent: LogExtent) -> bool:
        """Whether the slave was sent more than the log holds now: the log was cut, and will continue with other bytes."""
        return self._has_started and self.sent > extent.end

    def next_send(self, now_ms: int, extent: LogExtent) -> Outgoing | None:
        """What to send now; None = nothing. The next call implies that it was sent."""
        if self._is_over:
            return None
        found = self._next_send(now_ms, extent)
        if found is not None:
            self._silence.written_ms = now_ms
        return found

    def _next_send(self, now_ms: int, extent: LogExtent) -> Outgoing | None:
        if self._owes_handshake:
            self._owes_handshake = False
            epochs = extent.epochs
            return Outgoing(encode_from_master(MasterHandshake(extent.end, epochs[-1].epoch if epochs else -1, epochs)))
        if not self._has_started:
            return None
        start = self.sent
        epoch = self._epoch(extent, start)
        if start >= extent.end:
            if not self._silence.wants_word(now_ms) and not self._is_confirmed_due(epoch, now_ms):
                return None
            return Outgoing(encode_header(start, 0, self._telling(epoch)))
        end = extent.cut(start, self._batch_bytes)
        if epoch is not None:
            end = min(end, epoch_end(extent.epochs, epoch.epoch))
        self.sent = end
        return Outgoing(encode_header(start, end - start, self._telling(epoch)), start, end - start)

    def _is_confirmed_due(self, epoch: FrameEpoch | None, now_ms: int) -> bool:
        """Whether to send the confirmed offset now. Departure: Java sends it with the next message, or after 5 s."""
        self._owes_confirmed = epoch is not None and epoch.confirm_offset > self._sent_confirmed
        return self._owes_confirmed and now_ms >= self._silence.written_ms + CONFIRM_PAUSE_MS

    def _telling(self, epoch: FrameEpoch | None) -> FrameEpoch | None:
        if epoch is not None:
            self._sent_confirmed, self._owes_confirmed = epoch.confirm_offset, False
        return epoch

    def _epoch(self, extent: LogExtent, place: int) -> FrameEpoch | None:
        """The epoch of the byte there. Departure: Java assigns the last bytes of an epoch to the next one."""
        if self._dialect is Dialect.DEFAULT:
            return None
        found = epoch_at(extent.epochs, place)
        return FrameEpoch(found.epoch, found.start_offset, extent.confirm_offset)

    def is_silent(self, now_ms: int) -> bool:
        """Whether the slave has been silent for so long that it counts as gone. Java: haHousekeepingInterval.

        Departure: a slave that has not requested a start by then counts as gone; in Java any eight bytes hold a connection.
        """
        return self._silence.is_over(now_ms) or (self._requested_start is None and now_ms > self._ask_by_ms)

    def deadline(self, *, is_blocked: bool = False) -> int:
        """When to call again, ms, if nothing happens before. `is_blocked`: the last data has not been written."""
        if is_blocked or not self._has_started:
            return self._silence.deadline_ms(may_write=False)
        if self._owes_confirmed:
            return min(self._silence.deadline_ms(), self._silence.written_ms + CONFIRM_PAUSE_MS)
        return self._silence.deadline_ms()


class Place(NamedTuple):
    """A connection's claim to one of the master's few places."""

    host: str
    is_known: bool
    """Whether a slave is known at its host."""
    is_idle: bool
    """Whether it has not requested a start yet, or has not read for long."""
    since_ms: int
    """Since when it has neither connected nor acknowledged anything new."""


def who_gives_way(places: Sequence[Place], newcomer: Place) -> int | None:
    """The connection that gives its place to a newcomer if all are taken; None = the newcomer is refused.

    Known slaves take precedence. Among others the host with the most places gives one up: an idle one if it has any, and the one
    without progress for longest. The newcomer's own host gives up an idle one or none. Departure: Java takes any number of connections.
    """
    counts = Counter(place.host for place in places)

    def rank(index: int) -> tuple[bool, int, bool, int]:
        place = places[index]
        return not place.is_known, counts[place.host], place.is_idle, -place.since_ms

    found = max(range(len(places)), key=rank)
    place = places[found]
    if place.is_known != newcomer.is_known:
        return found if newcomer.is_known else None
    return found if place.is_idle or counts[place.host] > counts[newcomer.host] + 1 else None


def where_to_start(
    requested: int, extent: LogExtent, *, from_last_file: bool = False, is_known_cut: bool = False
) -> int | str | None:
    """Where a slave with the log up to `requested` starts; the reason why it cannot; or None: it depends on whether a record
    begins there, which the log must show (`off_a_boundary`).

    A slave without a log gets all of it. Departure: in the default dialect Java sends it the last file only. `is_known_cut` = this
    master itself has ended a frame there for this slave.
    """
    if requested == 0:
        return extent.last_file_start if from_last_file else extent.minimum
    if requested < extent.minimum:
        return (
            f"its log ends at {requested}, and the master's begins at {extent.minimum}: what lies between has expired"
        )
    if requested > extent.end:
        return f"its log ends at {requested}, and the master's at {extent.end}: it has what the master has not"
    is_first_byte = requested == 1 and extent.minimum == 0  # which is 0 in every log (`FollowedLog.begin_at`)
    is_boundary = is_known_cut or is_first_byte or requested in (extent.end, extent.minimum)
    return requested if is_boundary else None


def off_a_boundary(requested: int) -> str:
    """The reason if the log shows that no record begins there."""
    return f"its log ends at {requested}, where no record of the master's begins: it is another log, or a record is cut there"


# A slave's end of one replication connection, without a socket: checks a master's data, and reports what is appended.
#
#     receive(bytes, now) ─▶ Introduced ─▶ begin(end) · Received ─▶ appended(end) · Refused
#     next_send(now) ─▶ bytes to send; deadline() ─▶ when to call again though nothing happens
#
# Each frame must follow the slave's end exactly, lie within one file of its log and not be of an older epoch; any other frame ends the
# connection, with nothing appended. Departure: it reports its end at once; Java waits up to five seconds.
# Java: DefaultHAClient, AutoSwitchHAClient.


class SlaveSession:
    """One connection. `end` is the slave's log end after everything received is appended."""

    def __init__(
        self,
        end: int,
        file_size_bytes: int,
        now_ms: int,
        timing: Timing | None = None,
        *,
        handshake: SlaveHandshake | None = None,
        last_epoch: int = -1,
    ) -> None:
        """`end` of the slave's log; 0 = it has none. With `handshake` the dialect is the controller's."""
        self._dialect = Dialect.DEFAULT if handshake is None else Dialect.CONTROLLER
        self._file_size_bytes = file_size_bytes
        self._silence = Silence(timing or Timing(), now_ms)
        dialect = self._dialect
        self._incoming = Incoming(lambda buffer: decode_from_master(dialect, buffer))
        self._handshake = handshake
        self._has_started = handshake is None
        self._owes_handshake = handshake is not None
        self._owes_report = handshake is None
        self._is_over = False
        self._last_epoch = last_epoch
        self.end = end
        self.reported = end
        """The acknowledged log offset: appended, and checked."""
        self.heartbeats = 0
        """How many came since the last bytes."""
        self.frames = 0
        """How many came, including heartbeats."""

    def begin(self, end: int) -> None:
        """After `Introduced`: the slave's log agrees with the master's up to `end`, which is its end now."""
        self.end = self.reported = end
        self._has_started = self._owes_report = True

    def receive(self, data: bytes, now_ms: int) -> list[SessionEvent]:
        """The events in the master's bytes, in order. Nothing follows `Refused`."""
        if self._is_over:
            return []
        self._silence.read_ms = now_ms
        events: list[SessionEvent] = []
        try:
            for found in self._incoming.feed(data):
                value = found.value
                event = self._on_frame(value) if isinstance(value, Frame) else self._on_handshake(value)
                events.append(event)
                if isinstance(event, Refused):
                    break
        except CorruptRecordError as error:
            events.append(self._refuse(f"it sends what no master sends: {error.describe()}"))
        return events

    def _on_handshake(self, value: object) -> SessionEvent:
        assert isinstance(value, MasterHandshake)
        if self._has_started:
            return self._refuse("it says again who it is")
        flaw = flaw_of(value.epochs)
        if flaw is None and value.epochs and value.epochs[-1].start_offset > max(0, value.max_offset):
            flaw = f"its last epoch begins behind its log's end, {value.max_offset}"
        return Introduced(value) if flaw is None else self._refuse(f"its epochs cannot be: {flaw}")

    def _on_frame(self, frame: Frame) -> SessionEvent:
        if not self._has_started:
            return self._refuse("it sends the log before it has said which epochs that has")
        start, size = frame.commitlog_offset, len(frame.body)
        if start < 0:
            start = 0  # an empty master's heartbeat
        if self.end == 0:
            if start % self._file_size_bytes:
                return self._refuse(f"its first bytes are those at {start}, where no file of this log begins")
        elif start != self.end:
            return self._refuse(f"it sends the log from {start} on, and it ends here at {self.end}")
        if size and start // self._file_size_bytes != (start + size - 1) // self._file_size_bytes:
            sizes = f"files of {self._file_size_bytes} bytes"
            return self._refuse(
                f"its bytes {start} to {start + size} lie in two {sizes}: mappedFileSizeCommitLog differs"
            )
        if frame.epoch is not None:
            if frame.epoch.epoch < self._last_epoch:
                return self._refuse(f"it is of epoch {frame.epoch.epoch}, and this log has epoch {self._last_epoch}")
            self._last_epoch = frame.epoch.epoch
        self.frames += 1
        self.heartbeats = 0 if size else self.heartbeats + 1
        if size:
            self.end = start + size
        return Received(start, frame.body, frame.epoch)

    def _refuse(self, reason: str) -> Refused:
        self._is_over = True
        return Refused(reason)

    def appended(self, end: int) -> None:
        """Received bytes are in the log up to there: it is reported next."""
        if end > self.reported:
            self.reported = end
            self._owes_report = True

    def next_send(self, now_ms: int) -> bytes | None:
        """What to send now; None = nothing. The next call implies that it was sent."""
        if self._is_over:
            return None
        data: bytes | None = None
        if not self._has_started:
            if self._handshake is not None and (self._owes_handshake or self._silence.wants_word(now_ms)):
                self._owes_handshake = False
                data = encode_from_slave(self._dialect, self._handshake)
        elif self._owes_report or self._silence.wants_word(now_ms):
            self._owes_report = False
            data = encode_from_slave(self._dialect, Report(self.reported))
        if data is not None:
            self._silence.written_ms = now_ms
        return data

    def is_silent(self, now_ms: int) -> bool:
        """Whether the master has been silent for so long that it counts as gone. Java: haHousekeepingInterval."""
        return self._silence.is_over(now_ms)

    def deadline(self) -> int:
        """When to call again, ms, if nothing happens before."""
        return self._silence.deadline_ms()
