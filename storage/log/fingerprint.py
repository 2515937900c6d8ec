"""Distinguishes one log from another at the same path, by the first record of its newest file and by its last record.

A process that plans a read takes the fingerprint of the log that it sees. Another process, maybe on another machine, compares
it with the log that it sees, before it concludes that a message has expired: an unmounted store, an older copy and another
broker's store look as if everything had expired.

    the newest file is there, with the same records               the same log, whatever was appended since
    it is gone, older files are there                             not the same log: files expire from the oldest on
    it is gone, only newer files are there                        it has expired, if these files can be a continuation of it
    a directory that had files has none                           not the same log: the last file of a log never expires

A log may have several directories (storePathCommitLog with commas); each has its newest file in the fingerprint. Equal records at
one place mean one log, or a copy of it that reaches at least as far, which is equivalent.
"""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from storage.format.record import HEADER_SIZE, HEADERS, HOST_FLAGS, MAGIC_V1, MAGIC_V2
from storage.log.commit_log import FILE_NAME_DIGITS, CommitLog, LogFile, RecordIdentity

_DIGEST_SIZE = 16
_LONGEST_HEADER = HEADERS[HOST_FLAGS].itemsize


class RecordHead(NamedTuple):
    """The compared fields of a record. None of them changes after the record is written."""

    commitlog_offset: int
    store_time_ms: int
    store_host: bytes
    digest: bytes
    """Digest of the header's first 88 bytes, which include body CRC, queue, both offsets and times."""


class FileMark(NamedTuple):
    """A file of the log: its directory, the offset of its first byte, and its first record."""

    directory: str
    start: int
    first: RecordHead

    @property
    def path(self) -> str:
        return f"{self.directory}/{self.start:0{FILE_NAME_DIGITS}d}"


class LogFingerprint(NamedTuple):
    """For each directory the newest file that begins with a record, ascending; and the log's last record, if known."""

    files: tuple[FileMark, ...]
    last: RecordHead | None = None


def take_fingerprint(log: CommitLog, log_end: int, last: RecordIdentity | None) -> LogFingerprint | None:
    """The fingerprint of a log that is validated up to `log_end`; None for a log without a record.

    Reads the heads of one record for each directory and of the last one. Raises OffsetOutOfRangeError if a file expires meanwhile.
    """
    marks: dict[str, FileMark] = {}
    for file in reversed(log.files):
        directory = posixpath.dirname(file.path)
        if directory not in marks and file.start < log_end:
            first = record_head(log, file.start)
            if first is not None:
                marks[directory] = FileMark(directory, file.start, first)
        if len(marks) == len(log.directories):
            break
    if not marks:
        return None
    newest = max(mark.start for mark in marks.values())
    known = last is not None and last.commitlog_offset > newest
    head = record_head(log, last.commitlog_offset) if known and last is not None else None
    return LogFingerprint(tuple(sorted(marks.values(), key=lambda mark: mark.start)), head)


def record_head(log: CommitLog, commitlog_offset: int) -> RecordHead | None:
    """The head of the record at a place, or of the one that the file which begins there begins with; None if there is none."""
    number = log.file_index(commitlog_offset)
    if number >= 0 and log.files[number].start == commitlog_offset:
        commitlog_offset = log.files[number].first_record
    for _, records in log.records(np.array([commitlog_offset]), np.array([_LONGEST_HEADER])):
        if int(records.column("magic")[0]) not in (MAGIC_V1, MAGIC_V2):
            return None
        if int(records.column("commitlog_offset")[0]) != commitlog_offset:
            return None
        at = int(records.positions[0])
        digest = hashlib.blake2b(records.buffer[at : at + HEADER_SIZE].tobytes(), digest_size=_DIGEST_SIZE).digest()
        return RecordHead(
            commitlog_offset,
            int(records.column("store_time_ms")[0]),
            records.column("store_host")[0].tobytes(),
            digest,
        )
    return None


def difference(
    seen: LogFingerprint, files: Sequence[LogFile], head_at: Callable[[int], RecordHead | None]
) -> str | None:
    """Why the log with these files is not the one of the fingerprint, in words; None if it is. Pure.

    `files` ascend; `head_at` gives the record at a place of one of them. Files that have expired since are no difference.
    """
    for mark in seen.files:
        if not any(posixpath.dirname(file.path) == mark.directory for file in files):
            return f"{mark.directory} is not there, or empty; the driver saw {mark.path} in it"
    starts, newest = {file.start for file in files}, seen.files[-1]
    reaches_as_far = (
        newest.start in starts and seen.last is not None and head_at(seen.last.commitlog_offset) == seen.last
    )
    for mark in seen.files:
        if mark.start in starts:
            if not (reaches_as_far and mark is newest) and head_at(mark.start) != mark.first:
                return f"{mark.path} begins with another record than the driver saw there: it is another store's"
        elif files[0].start < mark.start:
            return f"{mark.path} is missing, though older files of the log are there: this is another store, or an older copy"
    if newest.start not in starts:
        return None if _continues(seen, files, head_at) else _no_continuation(newest, files)
    if seen.last is not None and not reaches_as_far:
        return (
            f"{newest.path} does not hold the last record that the driver saw, at place {seen.last.commitlog_offset} of the log: "
            "this is an older copy of the store, or a recovery has cut the log since"
        )
    return None


def _continues(seen: LogFingerprint, files: Sequence[LogFile], head_at: Callable[[int], RecordHead | None]) -> bool:
    """Whether the oldest file can have followed all that was seen: later in time, of the same broker, at a possible file start."""
    newest, oldest = seen.files[-1], files[0]
    reference, found = seen.last or newest.first, head_at(oldest.start)
    return (
        found is not None
        and found.store_time_ms >= reference.store_time_ms
        and found.store_host == reference.store_host
        and (oldest.start - newest.start) % (oldest.end - oldest.start) == 0
    )


def _no_continuation(newest: FileMark, files: Sequence[LogFile]) -> str:
    return (
        f"{newest.path} is not there, and {files[0].path}, the oldest file, cannot have followed it, "
        "by its first record's time or broker: it is another store's"
    )
