"""A master's end of one replication connection, without a socket: judges what a slave reports, says what to send next.

    receive(bytes, now) ─▶ Identified · Asked ─▶ begin(start) or refuse(reason) · Acknowledged · Refused
    next_send(now, extent) ─▶ Outgoing: a header, and which bytes of the log follow it
    deadline() ─▶ when to ask again though nothing happens

Nothing is believed: an acknowledgement beyond what was sent, or behind the one before, ends the connection and counts nothing.
A slave that asks for a place where it cannot go on is refused with the reason; Java's master sends it heartbeats for ever.
Java: DefaultHAConnection, AutoSwitchHAConnection.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from storage.errors import CorruptRecordError
from storage.format.replication import (
    MOST_BODY_BYTES,
    Dialect,
    EpochEntry,
    FrameEpoch,
    MasterHandshake,
    Report,
    SlaveHandshake,
    decode_from_slave,
    encode_from_master,
    encode_header,
)
from storage.ha.epochs import epoch_at, epoch_end
from storage.ha.replicas import UNPROVEN
from storage.ha.session import Acknowledged, Asked, Identified, Incoming, Refused, SessionEvent, Silence, Timing
from storage.settings.nouns import ReplicationConfig

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
                event = self._heed(found.value)  # type: ignore[arg-type]
                if event is not None:
                    events.append(event)
                if isinstance(event, Refused):
                    break
        except CorruptRecordError as error:
            events.append(self._refuse(f"it sends what no slave sends: {error.describe()}"))
        return events

    def _heed(self, value: Report | SlaveHandshake) -> SessionEvent | None:
        if isinstance(value, SlaveHandshake):
            return self._heed_handshake(value)
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

    def _heed_handshake(self, said: SlaveHandshake) -> SessionEvent | None:
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
        """The slave cannot go on where it asked: nothing more is sent, and nothing heeded."""
        self._is_over = True

    def _refuse(self, reason: str) -> Refused:
        self._is_over = True
        return Refused(reason)

    def is_past(self, extent: LogExtent) -> bool:
        """Whether the slave was sent what the log does not hold any more: it was cut, and what comes there next is something else."""
        return self._has_begun and self.sent > extent.end

    def next_send(self, now_ms: int, extent: LogExtent) -> Outgoing | None:
        """What to send now; None = nothing. Whoever asks has sent it when he asks again."""
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
