"""Damage in a log: missing files and torn records. Also a search for intact records after a bad one.

Java only logs a gap (MappedFileQueue.checkSelf), and has none of the searches here.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum, auto
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow.compute as pc

from storage.errors import LogFileMissingError
from storage.files.file_system import ReadableFile
from storage.files.local_file_system import LocalFileSystem
from storage.format.arrays import view_at
from storage.format.record import BLANK, MAGIC_BLANK, MINIMUM_RECORD_SIZE, find_candidates
from storage.format.record_batch import Records
from storage.log.commit_log import FILE_NAME_DIGITS, CommitLog, LogFile

_SCAN_BYTES = 8 << 20
_PLACE_POSITION = 28
_PLACE = np.dtype(">i8")


def intact_records(file: ReadableFile, file_start: int, position: int = 0) -> Iterator[Records]:
    """The intact records of a file from a position on, in ascending batches that do not overlap: a search after a bad record.

    A record is intact if its lengths add up, its body and (with `__CRC32#`) its whole have the right CRC, and it names its own
    place. So bytes of a body that look like a record are none, nor is a copy from elsewhere.

    `file_start` is the log offset of the file's first byte. Holes are skipped.
    """
    buffer = file.view(0, file.size_bytes)
    reach = 0
    for start, stop in file.data_ranges(position):
        for at in range(start, stop, _SCAN_BYTES):
            end = min(at + _SCAN_BYTES, stop, len(buffer) - MINIMUM_RECORD_SIZE + 1)
            positions = find_candidates(buffer, at, end)
            places = view_at(buffer, positions + _PLACE_POSITION, _PLACE)
            records = Records(buffer, positions[places == positions + file_start])
            records = records.take(records.is_whole)
            records = records.take(records.crc_agrees() & records.property_crc_agrees(required=False))
            ends = np.maximum.accumulate(np.concatenate(([reach], records.positions + records.column("size_bytes"))))
            reach = int(ends[-1])
            outer = records.positions >= ends[:-1]
            if outer.any():
                yield records.take(outer)


_SECTOR_BYTES = 512


class Crash(Enum):
    """What has died with the store open. Records may then lack bytes that no checksum covers, those of topic and properties: zeros.

    Recovery keeps such a record, as Java does: it may be the only copy. A follower's master has another copy, and the follower must not
    continue after bytes that the master does not have.
    """

    PROCESS = auto()
    """Its last write is incomplete: the log's last record ends in zeros (`is_unfinished`)."""
    MACHINE = auto()
    """Any unsynced sector may be zeros (`first_torn`)."""


def first_torn(offsets: np.ndarray, records: Records, vouched: int = 0) -> int | None:
    """The row of the first record that may lack its part in one sector of the disk, or its end. None if there is none.

    The first `vouched` rows are known to be on the disk. A property with a NUL of its own is no sign.
    """
    has_nul = pc.match_substring(records.raw_properties(), b"\0").to_numpy(zero_copy_only=False)
    rows = np.flatnonzero(has_nul[vouched:]) + vouched
    ends = records.body_ends[rows]
    for row, start in zip(rows.tolist(), ends.tolist(), strict=True):
        position = int(records.positions[row])
        size = int(records.column("size_bytes")[row])
        if _is_torn(records.buffer[start : position + size], int(offsets[row]) + start - position):
            return int(row)
    return None


def is_unfinished(records: Records) -> bool:
    """Whether the last of these records, a log's last one, may lack its end."""
    position = int(records.positions[-1])
    return bool(records.buffer[position + int(records.column("size_bytes")[-1]) - 1] == 0)


def _is_torn(unchecked: np.ndarray, place: int) -> bool:
    """Whether the last of these bytes, at a place of the log, is zero, or all of one sector."""
    if unchecked[-1] == 0:
        return True
    first = -place % _SECTOR_BYTES
    starts = [0, *range(first or _SECTOR_BYTES, len(unchecked), _SECTOR_BYTES)]
    return bool((np.maximum.reduceat(unchecked, starts) == 0).any())


class TornRow(NamedTuple):
    """The place of a torn row. Its record, when complete again, has the data for queue and index."""

    commitlog_offset: int
    size_bytes: int


class LogGap(NamedTuple):
    """Bytes `start` to `end` of the log, which no file holds, and the files on both sides of them.

    Records after and before a gap are sound. What was between them is lost, unless the file can be restored. An empty file after
    the end makes no gap: a broker makes files ahead, and a power loss may keep only the later name.
    """

    start: int
    end: int
    before: LogFile
    behind: LogFile

    @property
    def paths(self) -> list[str]:
        """Paths of the missing files."""
        directory, size = posixpath.dirname(self.before.path), self.before.end - self.before.start
        return [f"{directory}/{start:0{FILE_NAME_DIGITS}d}" for start in range(self.start, self.end, size)]

    def error(self) -> LogFileMissingError:
        return LogFileMissingError(
            self.paths[0], self.before.path, self.behind.path, self.start, self.end, len(self.paths)
        )


def find_gaps(log: CommitLog, log_end: int, claimed_end: int, *, is_local: bool) -> Iterator[LogGap]:
    """The gaps that held records: those before the log's validated end, before `claimed_end` (the known end of former records), and
    before records after the end (searched in local files only).
    """
    for before, behind in pairwise(log.files):
        is_known = behind.start <= log_end or before.end < claimed_end
        if before.end != behind.start and (is_known or (is_local and _has_records(log, behind.start))):
            yield LogGap(before.end, behind.start, before, behind)


def _has_records(log: CommitLog, start: int) -> bool:
    files = (file for file in log.files if file.start >= start)
    return any(len(records) for file in files for records in intact_records(log.open_file(file), file.start))


def bridge(file_system: LocalFileSystem, log: CommitLog, gaps: Sequence[LogGap]) -> None:
    """Put a file with only a filler, which leads to the next file, in place of each missing one; durable on return.

    Each is made beside the log's directory and renamed into it when complete: a file of zeros there would end the log.
    """
    for gap in gaps:
        size = gap.before.end - gap.before.start
        for path in gap.paths:
            directory, name = posixpath.split(path)
            temporary = f"{posixpath.dirname(directory)}/{name}.tmp"
            if file_system.exists(temporary):  # from a killed run
                file_system.unlink(temporary)
            file_system.create_file(temporary, size)
            file_system.write(temporary, 0, BLANK.pack(size, MAGIC_BLANK))
            file_system.sync(temporary)
            file_system.rename(temporary, path)
            file_system.sync(directory)
    log.list_files()


def warning_of(root: str, gaps: Iterable[LogGap]) -> str | None:
    """A warning for readers of such a store; None without a gap."""
    texts = [gap.error().describe() for gap in gaps]
    return f"store {root}: {'; '.join(texts)}. Messages in the files that are there are served" if texts else None
