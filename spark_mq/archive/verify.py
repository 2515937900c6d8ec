"""What is wrong with an archive: files that are gone, rows that are there twice, offsets that are missing and that no gap names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow.fs as fs

from spark_mq.conditions import ArchiveError
from spark_mq.source.archive_files import file_system, read_rows
from spark_mq.source.archive_table import ArchiveTable, Gap, Life

MISSING, DOUBLED, UNNAMED, UNREAD = "missing file", "doubled row", "unnamed gap", "unread queue"
_SHOWN = 20


class Finding(NamedTuple):
    """A thing that an operator must look at."""

    kind: str
    text: str


def verify(table: ArchiveTable, topics: Callable[[str], bool] = lambda topic: True) -> list[Finding]:
    """Read the offsets of all rows, and compare. Reads only."""
    found = list(_missing_files(table))
    gone = {finding.text.partition(" ")[0] for finding in found}
    for queue in table.queues():
        if topics(queue.topic):
            try:
                lives = table.lives(queue)
            except ArchiveError as error:
                found.append(Finding(UNREAD, f"queue {queue} cannot be checked: {error.describe()}"))
                continue
            for life in lives:
                found += _of_life(table, life, gone)
    return found


def _missing_files(table: ArchiveTable) -> Iterator[Finding]:
    files = file_system(table.place)
    for path in table.files():
        if files.get_file_info(path).type != fs.FileType.File:
            yield Finding(MISSING, f"{path} is named by the table's log, and is not there")


def _of_life(table: ArchiveTable, life: Life, gone: set[str]) -> Iterator[Finding]:
    offsets, whose = [], f"queue {life.queue}, incarnation {life.incarnation}"
    for part in life.parts:
        if part.path in gone:
            yield Finding(
                UNNAMED, f"{whose}: offsets in [{part.start}, {part.end}) were in the missing file {part.path}"
            )
            offsets.append(np.arange(part.start, part.end))
            continue
        try:
            read = [
                np.asarray(rows.column("queue_offset"))
                for rows in read_rows(table.place, [part], part.start, part.end, [])
            ]
        except (ArchiveError, OSError) as error:
            yield Finding(MISSING, f"{part.path}: {error}")
            continue
        rows = np.concatenate(read) if read else np.zeros(0, np.int64)
        if len(rows) != part.rows:
            yield Finding(MISSING, f"{part.path} has {len(rows)} rows of {whose}, and its statistics say {part.rows}")
        offsets.append(rows)
    if not offsets:
        last = max((gap.end for gap in life.gaps), default=0)
        if last < life.end:
            yield Finding(UNNAMED, f"{whose}: offsets [{last}, {life.end}) are not there, and no gap names them")
        return
    there = np.sort(np.concatenate(offsets))
    steps = np.diff(there)
    for offset in there[1:][steps == 0][:_SHOWN].tolist():
        yield Finding(DOUBLED, f"{whose}: offset {offset} is there more than once")
    last = int(there[-1]) + 1
    holes = [(int(low) + 1, int(high)) for low, high in zip(there[:-1][steps > 1], there[1:][steps > 1], strict=True)]
    if life.end > last:
        holes.append((last, life.end))
    for start, end in _unnamed(holes, life.gaps):
        yield Finding(UNNAMED, f"{whose}: offsets [{start}, {end}) are not there, and no gap names them")


def _unnamed(holes: Sequence[tuple[int, int]], gaps: Sequence[Gap]) -> Iterator[tuple[int, int]]:
    """What no gap covers."""
    for start, end in holes:
        at = start
        for gap in gaps:
            if gap.end <= at or gap.start >= end:
                continue
            if gap.start > at:
                yield at, gap.start
            at = max(at, gap.end)
        if at < end:
            yield at, end
