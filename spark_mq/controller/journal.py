"""A controller's decisions on disk, one record after the other, synced before they take effect.

    DIRECTORY/controller.journal     records; the first one holds a whole state
    DIRECTORY/controller.lock        byte 0 is locked by the controller that runs

A record is one decision with all of its events, so a torn one is no decision at all:

    0       4      8      12         20
    | magic | size | crc  | sequence | size | event | size | event …

All integers are big-endian. `size` at 4 counts the bytes after the header; `crc` is the CRC-32 of the sequence and those bytes.
Sequences go up by one, so bytes left by an older journal are not taken for the next record.

Append: record at the end · sync. Commit point: the sync. A crash before it leaves no record, a whole one, or a torn one. The next
opening cuts a torn record: its request was not answered. A whole record counts, and is synced before its use.

Rewriting, when the journal has grown, and when a torn end is cut: NAME.tmp, sync, rename, sync of the directory. Commit point: the
rename.

A bad record before a good one is damage, not a torn end: the opening is refused. After a failed append, the content of the disk is
unknown, and no later sync tells it (fsync(2), EIO). So nothing more is appended: the next decision first rewrites the journal, without
the failed one, which has no effect. While that fails, too, no decision is made.

Java: DLedger's log, which holds the same events; its oldest files are deleted, with the events.
"""

from __future__ import annotations

import errno
import logging
import posixpath
import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from spark_mq.controller.state import ControllerState, Event, decode_event, encode_event
from spark_mq.remoting import BodyError
from storage.errors import StateFileError
from storage.files.local_file_system import LocalFileSystem

FILE_NAME = "controller.journal"
LOCK_NAME = "controller.lock"
MAGIC = b"SMQC"
_HEADER = struct.Struct(">4sIIQ")
_SIZE = struct.Struct(">I")
_SEQUENCE_PLACE = 12
_REWRITTEN_AT_BYTES = 1 << 20
_LOG = logging.getLogger(__name__)


class Record(NamedTuple):
    """One decision, and where its record ends."""

    sequence: int
    events: tuple[Event, ...]
    end: int


class Records(NamedTuple):
    """The content of a journal's bytes."""

    records: tuple[Record, ...]
    end: int
    """The end of the last good record."""
    damage: int | None
    """The place of damage that is no torn end: good records follow it, or the record is good and its content is unknown here."""


def encode_record(sequence: int, events: Sequence[Event]) -> bytes:
    """A record of these events."""
    encoded = [encode_event(event) for event in events]
    payload = b"".join(_SIZE.pack(len(content)) + content for content in encoded)
    crc = zlib.crc32(payload, zlib.crc32(sequence.to_bytes(8)))
    return _HEADER.pack(MAGIC, len(payload), crc, sequence) + payload


def read_records(content: bytes) -> Records:
    """All good records from the beginning on, up to the first that is none."""
    records: list[Record] = []
    position = 0
    while (found := _frame_at(content, position)) is not None:
        if records and found.sequence != records[-1].sequence + 1:
            break
        events = _events(content, position + _HEADER.size, found.end)
        if events is None:
            return Records(tuple(records), position, position)
        records.append(Record(found.sequence, events, found.end))
        position = found.end
    last = records[-1].sequence if records else -1
    damage = position if any(each.sequence > last for each in _frames_from(content, position)) else None
    return Records(tuple(records), position, damage)


class _Frame(NamedTuple):
    """A record whose checksum is right."""

    sequence: int
    end: int


def _frames_from(content: bytes, position: int) -> Iterator[_Frame]:
    """Records whose checksums are right that begin there or behind, wherever."""
    at = content.find(MAGIC, position)
    while at >= 0:
        found = _frame_at(content, at)
        if found is not None:
            yield found
        at = content.find(MAGIC, at + 1)


def _frame_at(content: bytes, position: int) -> _Frame | None:
    """The record that begins there; None where none does, or not all of it is there."""
    if position + _HEADER.size > len(content):
        return None
    magic, size, crc, sequence = _HEADER.unpack_from(content, position)
    end = position + _HEADER.size + size
    if magic != MAGIC or end > len(content):
        return None
    found = zlib.crc32(memoryview(content)[position + _SEQUENCE_PLACE : end])
    return _Frame(sequence, end) if found == crc else None


def _events(content: bytes, position: int, end: int) -> tuple[Event, ...] | None:
    events = []
    while position < end:
        if position + _SIZE.size > end:
            return None
        (size,) = _SIZE.unpack_from(content, position)
        position += _SIZE.size
        if position + size > end:
            return None
        try:
            events.append(decode_event(content[position : position + size]))
        except BodyError:
            return None
        position += size
    return tuple(events)


class Journal:
    """One open journal. The caller holds the lock."""

    def __init__(self, path: str, files: LocalFileSystem, state: ControllerState, rewritten_at_bytes: int) -> None:
        """For `open_journal`."""
        self.path = path
        self.state = state
        """The state of the records. The caller applies events to it after each append."""
        self._files = files
        self._rewritten_at_bytes = rewritten_at_bytes
        self._sequence = 0
        self._end = 0
        self._whole_bytes = 0
        self._is_broken = False
        self._directory: tuple[int, int] | None = None
        """Device and inode of the one that it was opened in."""

    @property
    def size_bytes(self) -> int:
        """Length of the file."""
        return self._end

    def append(self, events: Sequence[Event]) -> None:
        """One decision, durably. Raises OSError with nothing decided."""
        record = encode_record(self._sequence + 1, events)
        try:
            if self._is_broken or self._end + len(record) > self._whole_bytes + self._rewritten_at_bytes:
                self._rewrite()
                record = encode_record(self._sequence + 1, events)
            writer = self._files.open_for_writing(self.path)
            try:
                writer.write(self._end, record)
                writer.sync()
            finally:
                writer.close()
        except OSError as error:
            if not self._is_broken:
                _LOG.error("%s takes no decision until its disk does (%s)", self.path, error)
            self._is_broken = True
            raise
        if self._is_broken:
            _LOG.warning("%s takes decisions again", self.path)
        self._is_broken = False
        self._sequence += 1
        self._end += len(record)

    def _rewrite(self) -> None:
        """The state in one record, in place of those that led to it. Not into an empty mount point: what stands there is gone
        when the disk is back, and epochs would be given twice.
        """
        directory = posixpath.dirname(self.path)
        if self._directory is not None and self._files.directory_number(directory) != self._directory:
            raise OSError(
                errno.ESTALE, "it is not the directory that was opened: another disk is there, or none", directory
            )
        record = encode_record(self._sequence + 1, (self.state.whole(),))
        self._files.replace(self.path, record)
        self._sequence += 1
        self._end = self._whole_bytes = len(record)

    def _recover(self) -> None:
        content = self._files.read_file(self.path)
        if content is None:
            self._rewrite()
            return
        found = read_records(content)
        if found.damage is not None:
            rule = f"the record at byte {found.damage} is damaged, and good ones stand behind it: nothing was changed"
            raise StateFileError(self.path, 0, 0, rule)
        if not found.records:
            raise StateFileError(self.path, 0, 0, "it does not begin with a whole record: it is no journal, or damaged")
        for record in found.records:
            for event in record.events:
                self.state.apply(event)
        self._sequence = found.records[-1].sequence
        self._end, self._whole_bytes = found.end, found.records[0].end
        if found.end < len(content):
            self._files.replace(self.path, content[: found.end])
        else:
            self._files.sync(self.path)  # what is acted on from now on must not go with the power


def open_journal(
    directory: str, files: LocalFileSystem | None = None, *, rewritten_at_bytes: int = _REWRITTEN_AT_BYTES
) -> Journal:
    """The journal in a directory, made where there is none, and the state that it says. Raises StateFileError and OSError."""
    journal = Journal(f"{directory}/{FILE_NAME}", files or LocalFileSystem(), ControllerState(), rewritten_at_bytes)
    journal._recover()
    journal._directory = journal._files.directory_number(directory)
    return journal
