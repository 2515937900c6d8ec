"""Both ends of a replication connection, without sockets: `MasterSession` and `SlaveSession`.

A session judges what the peer says, as events for its owner, and says what to send next, and when to ask it again.
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
"""Between two tries of a slave. Java: DefaultHAClient, not configurable."""
CONNECT_TIMEOUT_MS = 5_000


class Identified(NamedTuple):
    """A slave has said who it is. Only in the controller's dialect."""

    broker_id: int
    is_learner: bool
    syncs_from_last_file: bool


class Asked(NamedTuple):
    """A slave has said where its log ends. It gets nothing before `MasterSession.begin`, and counts for nothing."""

    offset: int


class Acknowledged(NamedTuple):
    """A slave has the log up to there."""

    offset: int


class Refused(NamedTuple):
    """The peer has said what cannot be; the connection is to be closed, and the reason told."""

    reason: str


class Introduced(NamedTuple):
    """A master has said which epochs its log has. Nothing is asked of it before `SlaveSession.begin`."""

    handshake: MasterHandshake


class Received(NamedTuple):
    """Bytes of the log that follow the slave's end, in one file of it. A heartbeat has none."""

    commitlog_offset: int
    body: bytes | memoryview
    epoch: FrameEpoch | None


SessionEvent = Identified | Asked | Acknowledged | Refused | Introduced | Received


class Incoming:
    """Bytes on their way into values. Holds less than one value, whose size its decoder bounds."""

    def __init__(self, decode: Callable[[memoryview], Decoded | NeedMoreBytes]) -> None:
        self._decode = decode
        self._pieces: list[bytes] = []
        self._held = 0
        self._needed = 1

    def feed(self, data: bytes) -> Iterator[Decoded]:
        """The values that are whole now; what they hold of the bytes is not copied. Raises CorruptRecordError for what is no value."""
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
    """What both ends go by."""

    heartbeat_ms: int = 5_000
    """haSendHeartbeatInterval: who has written nothing for so long writes where it is."""
    housekeeping_ms: int = 20_000
    """haHousekeepingInterval: who has read nothing for so long hangs up."""


class Silence:
    """When a connection was last read and written."""

    def __init__(self, timing: Timing, now_ms: int) -> None:
        self._timing = timing
        self.read_ms = self.written_ms = now_ms

    def is_over(self, now_ms: int) -> bool:
        """Whether the peer has been silent for too long."""
        return now_ms - self.read_ms > self._timing.housekeeping_ms

    def wants_word(self, now_ms: int) -> bool:
        """Whether this end has been silent for long enough."""
        return now_ms - self.written_ms >= self._timing.heartbeat_ms

    def deadline_ms(self, *, may_write: bool = True) -> int:
        """When one of both is so, if nothing happens before; without a word where none could be written."""
        is_over_ms = self.read_ms + self._timing.housekeeping_ms + 1
        return min(is_over_ms, self.written_ms + self._timing.heartbeat_ms) if may_write else is_over_ms


# A master's end of one replication connection, without a socket: judges what a slave reports, says what to send next.
#
#     receive(bytes, now) ─▶ Identified · Asked ─▶ begin(start) or refuse(reason) · Acknowledged · Refused
#     next_send(now, extent) ─▶ Outgoing: a header, and which bytes of the log follow it
#     deadline() ─▶ when to ask again though nothing happens
#
# Nothing is believed: an acknowledgement beyond what was sent, or behind the one before, ends the connection and counts nothing.
# A slave that asks for a place where it cannot go on is refused with the reason; Java's master sends it heartbeats for ever.
# Java: DefaultHAConnection, AutoSwitchHAConnection.


DEFAULT_BATCH_BYTES = ReplicationConfig().ha_transfer_batch_size
MOST_SENT_BYTES = MOST_BODY_BYTES - 64
"""In one frame: with either header it fits into the buffer of Java's slave."""
NOT_ASKED = -1
"""What a slave reports that does not know yet where it ends."""


CONFIRM_PAUSE_MS = 20
"""A slave that has all is told no sooner after the last frame what is confirmed by now."""


class LogExtent(Protocol):
    """What of a log may be sent, as it is now."""

    @property
    def minimum(self) -> int:
        """The first byte that is there."""

    @property
    def end(self) -> int:
        """Behind the last byte that may be sent: the end of a record, or of a file."""

    @property
    def last_file_start(self) -> int:
        """Where the file begins in which `end` lies, or will lie."""

    def cut(self, start: int, most_bytes: int) -> int:
        """Where a frame that begins at `start`, before `end`, is to end: in the same file, behind a whole record where one fits."""

    @property
    def epochs(self) -> tuple[EpochEntry, ...]:
        """Of the controller's dialect; else none."""

    @property
    def confirm_offset(self) -> int:
        """Up to where all replicas that must have the log have it."""


class Outgoing(NamedTuple):
    """What is to be sent: the header, then these bytes of the log."""

    header: bytes
    start: int = 0
    size_bytes: int = 0


class MasterSession:
    """One connection. `acknowledged` and `sent` are places in the log; UNPROVEN until the slave has begun."""

    def __init__(
        self, dialect: Dialect, now_ms: int, timing: Timing | None = None, batch_bytes: int = DEFAULT_BATCH_BYTES
    ) -> None:
        """`batch_bytes` is haTransferBatchSize: a frame has more only where one record does."""
        self._dialect = dialect
        self._batch_bytes = batch_bytes
        self._silence = Silence(timing or Timing(), now_ms)
        self._ask_by_ms = now_ms + (timing or Timing()).housekeeping_ms
        self._incoming = Incoming(lambda buffer: decode_from_slave(dialect, buffer))
        self._slave: SlaveHandshake | None = None
        self._owes_handshake = False
        self._asked: int | None = None
        self._has_begun = False
        self._is_over = False
        self._told_confirmed = UNPROVEN
        self._owes_confirmed = False
        self.sent = UNPROVEN
        """Up to where the slave was sent the log."""
        self.acknowledged = UNPROVEN

    def receive(self, data: bytes, now_ms: int) -> list[SessionEvent]:
        """What the slave's bytes say, in order. Behind `Refused` nothing comes."""
        if self._is_over:
            return []
        events: list[SessionEvent] = []
        try:
            for found in self._incoming.feed(data):
                self._silence.read_ms = now_ms  # a part of a report is no sign of life
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
        if self._asked is None:
            if offset == NOT_ASKED:
                return None
            if offset < 0:
                return self._refuse(f"it asks for place {offset}")
            self._asked = offset
            return Asked(offset)
        if not self._has_begun:
            return None if offset == self._asked else self._refuse("it reports again before it was sent anything")
        if offset == self._asked == 0 and self.acknowledged == 0:
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
        if self._asked is not None or (self._slave is not None and said != self._slave):
            return self._refuse(f"it says again who it is: {said.broker_id}")
        self._owes_handshake = True
        if self._slave is not None:  # Java's slave repeats it until it is answered
            return None
        self._slave = said
        return Identified(said.broker_id, said.is_learner, said.syncs_from_last_file)

    def begin(self, start: int) -> Acknowledged:
        """The slave may go on where it asked, or, without a log, at `start`: the first byte of a file. What it has counts now."""
        assert self._asked is not None
        self._has_begun = True
        self.sent = start
        self.acknowledged = self._asked
        return Acknowledged(self._asked)

    def refuse(self) -> None:
        """The slave cannot go on where it asked: nothing more is sent, and what it says is dropped."""
        self._is_over = True

    def _refuse(self, reason: str) -> Refused:
        self._is_over = True
        return Refused(reason)

    def is_past(self, extent: LogExtent) -> bool:
        """Whether the slave was sent what the log does not hold any more: it was cut, and what comes there next is something else."""
        return self._has_begun and self.sent > extent.end

    def next_send(self, now_ms: int, extent: LogExtent) -> Outgoing | None:
        """What to send now; None = nothing. The next call means that it was sent."""
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
        if not self._has_begun:
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
        """Whether what is confirmed is told now. Departure: Java tells it with the next message, or after 5 s."""
        self._owes_confirmed = epoch is not None and epoch.confirm_offset > self._told_confirmed
        return self._owes_confirmed and now_ms >= self._silence.written_ms + CONFIRM_PAUSE_MS

    def _telling(self, epoch: FrameEpoch | None) -> FrameEpoch | None:
        if epoch is not None:
            self._told_confirmed, self._owes_confirmed = epoch.confirm_offset, False
        return epoch

    def _epoch(self, extent: LogExtent, place: int) -> FrameEpoch | None:
        """The epoch of the byte there. Departure: Java calls the last bytes of an epoch those of the next one."""
        if self._dialect is Dialect.DEFAULT:
            return None
        found = epoch_at(extent.epochs, place)
        return FrameEpoch(found.epoch, found.start_offset, extent.confirm_offset)

    def is_silent(self, now_ms: int) -> bool:
        """Whether the slave has said nothing for so long that it counts as gone. Java: haHousekeepingInterval.

        Departure: who has asked for no place by then is gone whatever it says; in Java any eight bytes hold a connection.
        """
        return self._silence.is_over(now_ms) or (self._asked is None and now_ms > self._ask_by_ms)

    def deadline(self, *, is_blocked: bool = False) -> int:
        """When to look again, ms, if nothing happens before. `is_blocked`: what was taken has not been written."""
        if is_blocked or not self._has_begun:
            return self._silence.deadline_ms(may_write=False)
        if self._owes_confirmed:
            return min(self._silence.deadline_ms(), self._silence.written_ms + CONFIRM_PAUSE_MS)
        return self._silence.deadline_ms()


class Place(NamedTuple):
    """A connection to the master as one of few."""

    host: str
    is_known: bool
    """Whether a slave is known to be there."""
    is_idle: bool
    """Whether it has not asked yet, or has been taking nothing in for long."""
    since_ms: int
    """Since when it has neither come nor acknowledged anything new."""


def who_gives_way(places: Sequence[Place], newcomer: Place) -> int | None:
    """Whose place a newcomer gets where all are taken; None = nobody's.

    Known slaves come first. Among others the host with the most places gives one up: an idle one if it has any, and the one that has
    brought nothing for longest. The newcomer's own host gives up an idle one or none. Departure: Java takes any number of connections.
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
    asked: int, extent: LogExtent, *, from_last_file: bool = False, is_known_cut: bool = False
) -> int | str | None:
    """Where a slave that has the log up to `asked` begins; the reason why it cannot; or None: that depends on whether a record
    begins there, which the log itself must tell (`off_a_boundary`).

    A slave without a log gets all of it. Departure: in the default dialect Java sends it the last file only. `is_known_cut` = this
    master itself has ended a frame there for this slave.
    """
    if asked == 0:
        return extent.last_file_start if from_last_file else extent.minimum
    if asked < extent.minimum:
        return f"its log ends at {asked}, and the master's begins at {extent.minimum}: what lies between has expired"
    if asked > extent.end:
        return f"its log ends at {asked}, and the master's at {extent.end}: it has what the master has not"
    is_first_byte = asked == 1 and extent.minimum == 0  # which is 0 in every log (`FollowedLog.begin_at`)
    is_boundary = is_known_cut or is_first_byte or asked in (extent.end, extent.minimum)
    return asked if is_boundary else None


def off_a_boundary(asked: int) -> str:
    """The reason, where the log has shown that no record begins there."""
    return (
        f"its log ends at {asked}, where no record of the master's begins: it is another log, or a record is cut there"
    )


# A slave's end of one replication connection, without a socket: judges what a master sends, reports what is appended.
#
#     receive(bytes, now) ─▶ Introduced ─▶ begin(end) · Received ─▶ appended(end) · Refused
#     next_send(now) ─▶ bytes to send; deadline() ─▶ when to ask again though nothing happens
#
# Each frame must follow the slave's end exactly, lie within one file of its log and be of no older epoch; what else comes ends the
# connection, with nothing appended. Departure: it reports at once where it ends, where Java waits up to five seconds.
# Java: DefaultHAClient, AutoSwitchHAClient.


class SlaveSession:
    """One connection. `end` is where the slave's log will end when all that was received is appended."""

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
        self._has_begun = handshake is None
        self._owes_handshake = handshake is not None
        self._owes_report = handshake is None
        self._is_over = False
        self._last_epoch = last_epoch
        self.end = end
        self.reported = end
        """What is acknowledged: appended, and checked."""
        self.heartbeats = 0
        """How many came since the last bytes."""
        self.frames = 0
        """How many came, heartbeats among them."""

    def begin(self, end: int) -> None:
        """Behind `Introduced`: the slave's log agrees with the master's up to its end, which this is now."""
        self.end = self.reported = end
        self._has_begun = self._owes_report = True

    def receive(self, data: bytes, now_ms: int) -> list[SessionEvent]:
        """What the master's bytes say, in order. Behind `Refused` nothing comes."""
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
        if self._has_begun:
            return self._refuse("it says again who it is")
        flaw = flaw_of(value.epochs)
        if flaw is None and value.epochs and value.epochs[-1].start_offset > max(0, value.max_offset):
            flaw = f"its last epoch begins behind its log's end, {value.max_offset}"
        return Introduced(value) if flaw is None else self._refuse(f"its epochs cannot be: {flaw}")

    def _on_frame(self, frame: Frame) -> SessionEvent:
        if not self._has_begun:
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
        """What was received stands in the log up to there: it is reported next."""
        if end > self.reported:
            self.reported = end
            self._owes_report = True

    def next_send(self, now_ms: int) -> bytes | None:
        """What to send now; None = nothing. The next call means that it was sent."""
        if self._is_over:
            return None
        data: bytes | None = None
        if not self._has_begun:
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
        """Whether the master has said nothing for so long that it counts as gone. Java: haHousekeepingInterval."""
        return self._silence.is_over(now_ms)

    def deadline(self) -> int:
        """When to look again, ms, if nothing happens before."""
        return self._silence.deadline_ms()
