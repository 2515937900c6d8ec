"""A slave's end of one replication connection, without a socket: judges what a master sends, reports what is appended.

    receive(bytes, now) ─▶ Introduced ─▶ begin(end) · Received ─▶ appended(end) · Refused
    next_send(now) ─▶ bytes to send; deadline() ─▶ when to ask again though nothing happens

Each frame must follow the slave's end exactly, lie within one file of its log and be of no older epoch; what else comes ends the
connection, with nothing appended. Departure: it reports at once where it ends, where Java waits up to five seconds.
Java: DefaultHAClient, AutoSwitchHAClient.
"""

from __future__ import annotations

from storage.errors import CorruptRecordError
from storage.format.replication import (
    Dialect,
    Frame,
    MasterHandshake,
    Report,
    SlaveHandshake,
    decode_from_master,
    encode_from_slave,
)
from storage.ha.epochs import flaw_of
from storage.ha.session import Incoming, Introduced, Received, Refused, SessionEvent, Silence, Timing


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
                event = self._heed_frame(value) if isinstance(value, Frame) else self._heed_handshake(value)
                events.append(event)
                if isinstance(event, Refused):
                    break
        except CorruptRecordError as error:
            events.append(self._refuse(f"it sends what no master sends: {error.describe()}"))
        return events

    def _heed_handshake(self, value: object) -> SessionEvent:
        assert isinstance(value, MasterHandshake)
        if self._has_begun:
            return self._refuse("it says again who it is")
        flaw = flaw_of(value.epochs)
        if flaw is None and value.epochs and value.epochs[-1].start_offset > max(0, value.max_offset):
            flaw = f"its last epoch begins behind its log's end, {value.max_offset}"
        return Introduced(value) if flaw is None else self._refuse(f"its epochs cannot be: {flaw}")

    def _heed_frame(self, frame: Frame) -> SessionEvent:
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
        """What to send now; None = nothing. Whoever asks has sent it when he asks again."""
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
