"""Messages between masters and slaves on a replication connection, in both dialects, and the file of epochs.

    default      slave    | max_offset (8) |
                 master   | commitlog_offset (8) | n (4) | n bytes of the log |
    controller   slave    | 1 | from_last_file (2) | learner (2) | broker id (8) |
                          | 2 | max_offset (8) |
                 master   | 1 | 12k | max_offset (8) | epoch (4) | k × (epoch (4), start (8)) |
                          | 2 | n | commitlog_offset (8) | epoch (4) | epoch start (8) | confirm offset (8) | n bytes of the log |

Big-endian, signed. In the controller's dialect the first number says what follows: 1 a handshake, 2 a transfer. n = 0 is a heartbeat,
and says where the next bytes come from. A decoder gives a value with its size, `NeedMoreBytes`, or raises CorruptRecordError.

The file epochFileCheckpoint says since which place in the log which master's epoch holds; the last entry has no end:

    2                number of entries
    1725254278       CRC-32 of what follows, without its highest bit; 0 = not checked
    1-0              epoch-start, a line each
    2-1057

Java: EpochFileCache, CheckpointFile; DefaultHAConnection, DefaultHAClient, AutoSwitchHAConnection, AutoSwitchHAClient
(HAConnectionState.ordinal), RocketMQ 5.3.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from storage.errors import CorruptRecordError
from storage.format.record import NeedMoreBytes

_CRC_BITS = 0x7FFFFFFF


class EpochEntry(NamedTuple):
    """From `start_offset` on the log was written in this epoch. Java: EpochEntry."""

    epoch: int
    start_offset: int


def encode_epochs(entries: Sequence[EpochEntry]) -> bytes:
    """The file's content. Java writes no file without entries; this has one."""
    lines = "".join(f"{epoch}-{start}\n" for epoch, start in entries)
    return f"{len(entries)}\n{zlib.crc32(lines.encode()) & _CRC_BITS}\n{lines}".encode()


def decode_epochs(content: bytes) -> tuple[EpochEntry, ...]:
    """The entries of a file, in its order. Raises CorruptRecordError for what no broker has written whole."""
    try:
        count_text, crc_text, rest = content.decode("ascii").replace("\r\n", "\n").split("\n", 2)
        count, crc = int(count_text), int(crc_text)
        entries = tuple(_entry(line) for line in rest.splitlines())
    except (UnicodeDecodeError, ValueError) as error:
        raise CorruptRecordError("epochs", 0, "a count, a sum and lines epoch-start", content[:40]) from error
    if len(entries) != count:
        raise CorruptRecordError("epochs", 0, count, len(entries))
    found = zlib.crc32(rest.encode()) & _CRC_BITS
    if crc not in (0, found):
        raise CorruptRecordError("epochs' CRC", 0, crc, found)
    return entries


def _entry(line: str) -> EpochEntry:
    epoch, start = line.split("-")
    return EpochEntry(int(epoch), int(start))


HANDSHAKE, TRANSFER = 1, 2
MOST_BODY_BYTES = (4 << 20) - 12
"""A slave of Java's has a buffer of 4 MiB; a frame that does not fit into it never ends."""
MOST_EPOCHS = 1_000
"""Java's master has room for so many in a handshake."""
_REPORT = struct.Struct(">q")
_FRAME = struct.Struct(">qi")
_SLAVE_HANDSHAKE = struct.Struct(">ihhq")
_SLAVE_REPORT = struct.Struct(">iq")
_MASTER_HANDSHAKE = struct.Struct(">iiqi")
_EPOCH = struct.Struct(">iq")
_EPOCH_FRAME = struct.Struct(">iiqiqq")
_STATE = struct.Struct(">i")


class Dialect(Enum):
    """The two forms of the protocol."""

    DEFAULT = "default"
    CONTROLLER = "controller"
    """enableControllerMode: handshakes, and epochs in each frame."""


class Report(NamedTuple):
    """The log offset up to which a slave has the log. The first report requests what follows."""

    max_offset: int


class SlaveHandshake(NamedTuple):
    """A slave's identity."""

    broker_id: int
    syncs_from_last_file: bool = False
    is_learner: bool = False


class MasterHandshake(NamedTuple):
    """The end of a master's log, and the starts of its epochs."""

    max_offset: int
    last_epoch: int
    epochs: tuple[EpochEntry, ...]


class FrameEpoch(NamedTuple):
    """The additional fields of a frame in the controller's dialect."""

    epoch: int
    start_offset: int
    confirm_offset: int


class Frame(NamedTuple):
    """Bytes of the log and their place; without bytes a heartbeat."""

    commitlog_offset: int
    body: bytes | memoryview = b""
    epoch: FrameEpoch | None = None
    """None in the default dialect."""


class Decoded(NamedTuple):
    """A value, and how many bytes it took."""

    value: Report | SlaveHandshake | MasterHandshake | Frame
    size_bytes: int


def encode_from_slave(dialect: Dialect, value: Report | SlaveHandshake) -> bytes:
    """What a slave sends. A handshake is sent in one write: Java's master reads it when it has seen 12 of its 16 bytes."""
    if isinstance(value, SlaveHandshake):
        flags = int(value.syncs_from_last_file), int(value.is_learner)
        return _SLAVE_HANDSHAKE.pack(HANDSHAKE, *flags, value.broker_id)
    if dialect is Dialect.DEFAULT:
        return _REPORT.pack(value.max_offset)
    return _SLAVE_REPORT.pack(TRANSFER, value.max_offset)


def decode_from_slave(dialect: Dialect, buffer: bytes | memoryview) -> Decoded | NeedMoreBytes:
    """The first value of what a slave has sent."""
    if dialect is Dialect.DEFAULT:
        if len(buffer) < _REPORT.size:
            return NeedMoreBytes(_REPORT.size)
        return Decoded(Report(*_REPORT.unpack_from(buffer)), _REPORT.size)
    state = _state(buffer)
    if isinstance(state, NeedMoreBytes):
        return state
    layout = _SLAVE_HANDSHAKE if state == HANDSHAKE else _SLAVE_REPORT
    if len(buffer) < layout.size:
        return NeedMoreBytes(layout.size)
    if state == HANDSHAKE:
        _, from_last, learner, broker_id = layout.unpack_from(buffer)
        return Decoded(SlaveHandshake(broker_id, from_last == 1, learner == 1), layout.size)
    return Decoded(Report(layout.unpack_from(buffer)[1]), layout.size)


def encode_header(frame_start: int, body_bytes: int, epoch: FrameEpoch | None = None) -> bytes:
    """What stands before the bytes of a frame; `epoch` says which dialect it is."""
    if epoch is None:
        return _FRAME.pack(frame_start, body_bytes)
    start, confirm = epoch.start_offset, epoch.confirm_offset
    return _EPOCH_FRAME.pack(TRANSFER, body_bytes, frame_start, epoch.epoch, start, confirm)


def encode_from_master(value: MasterHandshake | Frame) -> bytes:
    """What a master sends, whole."""
    if isinstance(value, Frame):
        return encode_header(value.commitlog_offset, len(value.body), value.epoch) + bytes(value.body)
    entries = b"".join(_EPOCH.pack(*entry) for entry in value.epochs)
    return _MASTER_HANDSHAKE.pack(HANDSHAKE, len(entries), value.max_offset, value.last_epoch) + entries


def decode_from_master(dialect: Dialect, buffer: bytes | memoryview) -> Decoded | NeedMoreBytes:
    """The first value of what a master has sent. A frame's body is a part of `buffer`, without a copy of a memoryview's.

    Raises CorruptRecordError for lengths that no frame has, as soon as its header is there.
    """
    if dialect is Dialect.DEFAULT:
        if len(buffer) < _FRAME.size:
            return NeedMoreBytes(_FRAME.size)
        offset, size = _FRAME.unpack_from(buffer)
        return _frame(buffer, _FRAME.size, size, offset, None)
    state = _state(buffer)
    if isinstance(state, NeedMoreBytes):
        return state
    layout = _MASTER_HANDSHAKE if state == HANDSHAKE else _EPOCH_FRAME
    if len(buffer) < layout.size:
        return NeedMoreBytes(layout.size)
    if state == HANDSHAKE:
        return _master_handshake(buffer)
    _, size, offset, epoch, epoch_start, confirm = layout.unpack_from(buffer)
    return _frame(buffer, layout.size, size, offset, FrameEpoch(epoch, epoch_start, confirm))


def _state(buffer: bytes | memoryview) -> int | NeedMoreBytes:
    if len(buffer) < _STATE.size:
        return NeedMoreBytes(_STATE.size)
    state: int = _STATE.unpack_from(buffer)[0]
    if state not in (HANDSHAKE, TRANSFER):
        raise CorruptRecordError("state", 0, f"{HANDSHAKE} or {TRANSFER}", state)
    return state


def _frame(
    buffer: bytes | memoryview, header_bytes: int, body_bytes: int, offset: int, epoch: FrameEpoch | None
) -> Decoded | NeedMoreBytes:
    if not 0 <= body_bytes <= MOST_BODY_BYTES:
        raise CorruptRecordError("body size", 0, f"0 to {MOST_BODY_BYTES}", body_bytes)
    if offset < (0 if body_bytes or epoch is None else -1):  # an empty master of a controller says −1
        raise CorruptRecordError("offset", 0, "a place in the log", offset)
    size = header_bytes + body_bytes
    if len(buffer) < size:
        return NeedMoreBytes(size)
    return Decoded(Frame(offset, buffer[header_bytes:size], epoch), size)


def _master_handshake(buffer: bytes | memoryview) -> Decoded | NeedMoreBytes:
    _, body_bytes, max_offset, last_epoch = _MASTER_HANDSHAKE.unpack_from(buffer)
    if body_bytes % _EPOCH.size or not 0 <= body_bytes <= MOST_EPOCHS * _EPOCH.size:
        raise CorruptRecordError("epochs", 0, f"at most {MOST_EPOCHS} of {_EPOCH.size} bytes", body_bytes)
    size = _MASTER_HANDSHAKE.size + body_bytes
    if len(buffer) < size:
        return NeedMoreBytes(size)
    entries = tuple(EpochEntry(*entry) for entry in _EPOCH.iter_unpack(buffer[_MASTER_HANDSHAKE.size : size]))
    return Decoded(MasterHandshake(max_offset, last_epoch, entries), size)
