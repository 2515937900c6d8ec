"""Files that a log lacks amid others: found by the names of those that are there, and bridged when a person says so.

Java only logs such a gap (MappedFileQueue.checkSelf). Records behind it are sound, and so are those before it. What was between them is
lost, unless the file can be brought back. A file behind a gap that holds no record is none of it: a broker makes files ahead, and a
power loss may keep the later name only.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from storage.errors import LogFileMissingError
from storage.files.local_file_system import LocalFileSystem
from storage.format.record import BLANK, MAGIC_BLANK
from storage.log.commit_log import FILE_NAME_DIGITS, CommitLog, LogFile
from storage.log.intact_records import intact_records


class LogGap(NamedTuple):
    """Bytes `start` to `end` of the log, which no file holds, and the files on both sides of them."""

    start: int
    end: int
    before: LogFile
    behind: LogFile

    @property
    def paths(self) -> list[str]:
        """Where the missing files belong."""
        directory, size = posixpath.dirname(self.before.path), self.before.end - self.before.start
        return [f"{directory}/{start:0{FILE_NAME_DIGITS}d}" for start in range(self.start, self.end, size)]

    def error(self) -> LogFileMissingError:
        return LogFileMissingError(
            self.paths[0], self.before.path, self.behind.path, self.start, self.end, len(self.paths)
        )


def find_gaps(log: CommitLog, log_end: int, claimed_end: int, *, is_local: bool) -> Iterator[LogGap]:
    """The gaps that held records: those before the log's validated end, before `claimed_end`, up to which records are known to have
    been, and before records that stand behind the end (looked for in local files only).
    """
    for before, behind in pairwise(log.files):
        is_known = behind.start <= log_end or before.end < claimed_end
        if before.end != behind.start and (is_known or (is_local and _has_records(log, behind.start))):
            yield LogGap(before.end, behind.start, before, behind)


def _has_records(log: CommitLog, start: int) -> bool:
    files = (file for file in log.files if file.start >= start)
    return any(len(records) for file in files for records in intact_records(log.open_file(file), file.start))


def bridge(file_system: LocalFileSystem, log: CommitLog, gaps: Sequence[LogGap]) -> None:
    """Put a file of nothing but a filler, which leads on to the next one, in place of each that is missing; durable on return.

    Each is made beside the log's directory and renamed into it whole: a file of zeros there would end the log.
    """
    for gap in gaps:
        size = gap.before.end - gap.before.start
        for path in gap.paths:
            directory, name = posixpath.split(path)
            temporary = f"{posixpath.dirname(directory)}/{name}.tmp"
            if file_system.exists(temporary):  # of a run that was killed
                file_system.unlink(temporary)
            file_system.create_file(temporary, size)
            file_system.write(temporary, 0, BLANK.pack(size, MAGIC_BLANK))
            file_system.sync(temporary)
            file_system.rename(temporary, path)
            file_system.sync(directory)
    log.list_files()


def warning_of(root: str, gaps: Iterable[LogGap]) -> str | None:
    """What a reader of such a store is told; None without a gap."""
    texts = [gap.error().describe() for gap in gaps]
    return f"store {root}: {'; '.join(texts)}. Messages in the files that are there are served" if texts else None
