"""What a replication session tells whoever has its connection. Values; nothing happens here."""

from __future__ import annotations

from typing import NamedTuple

from storage.format.replication import FrameEpoch, MasterHandshake


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
