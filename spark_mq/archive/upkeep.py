"""Upkeep of an archive: small files joined, days dropped that are older than their topic is kept, unused files deleted.

    compaction   rows keep their offsets and queues; one commit removes the small files and adds those that have their rows. Files
                 that have only gaps become one for each topic, of the day of now: a planning query opens each of them
    retention    one commit removes the files of whole days; how far queues are archived stays, so nothing is archived again
    vacuum       deletes files that no version of the table within the retention names, those of killed runs among them

Each may run beside archivers and readers. A commit that removes a file which another commit has removed fails and changes nothing.
A reader that planned before a commit has the removed files until VACUUM deletes them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from itertools import groupby
from typing import NamedTuple

from spark_mq.archive.commits import ArchiveConflictError, wait_a_little
from spark_mq.archive.data_files import LifeOfQueue, WrittenFile, write_gaps, write_messages
from spark_mq.conditions import ArchiveError, OptionError
from spark_mq.options import parse_duration_ms
from spark_mq.source.archive_files import read_rows
from spark_mq.source.archive_table import (
    DROPPED,
    FILE_SCHEMA,
    GAP_END,
    GAP_KIND,
    INCARNATION,
    KEY_COUNT,
    PARTITIONED_BY,
    ArchiveTable,
    Gap,
    GapFile,
    Life,
    Part,
    Place,
    last_place,
    opened_parts,
)
from storage.epoch_times import current_time_ms

SMALL_BYTES = 64 << 20
"""A file below this is joined with its neighbours."""
JOINED_BYTES = 256 << 20
"""Of stored files that become one, at most."""
FILES_A_COMMIT = 2_000
FILE_COLUMNS = [name for name in FILE_SCHEMA.names if name not in (INCARNATION, KEY_COUNT, GAP_END, GAP_KIND)]
_DAY_MS = 86_400_000


class Join(NamedTuple):
    """Files of one life of one queue on one day, with nothing else in them, that become one."""

    place: Place
    parts: tuple[Part, ...]


def write_joined(join: Join) -> list[WrittenFile]:
    """A task: the rows of the files, in queue order, in new files."""
    first = join.parts[0]
    life = LifeOfQueue(*first.queue, first.incarnation)
    start, end = min(part.start for part in join.parts), max(part.end for part in join.parts)
    return write_messages(join.place, life, read_rows(join.place, join.parts, start, end, FILE_COLUMNS))


@dataclass(slots=True)
class UpkeepReport:
    """What was done, or of a dry run what would be."""

    joined_files: int = 0
    into_files: int = 0
    dropped_files: dict[str, int] = field(default_factory=dict)
    """By topic."""
    dropped_rows: dict[str, int] = field(default_factory=dict)
    deleted_files: list[str] = field(default_factory=list)
    conflicts: int = 0
    unread: dict[str, str] = field(default_factory=dict)
    """Topics that were left, as one of their files cannot be read, and why."""


def plan_joins(lives: Iterable[Life], place: Place, small_bytes: int = SMALL_BYTES) -> list[Join]:
    """Runs of neighbouring small files of a day. Files with rows of several queues, of other tools, are left. Pure."""
    found = []
    for life in lives:
        by_day: dict[date, list[Part]] = {}
        for part in life.parts:
            by_day.setdefault(part.day, []).append(part)
        found += [Join(place, run) for parts in by_day.values() for run in _runs(parts, small_bytes)]
    return found


def lives_of(table: ArchiveTable, topics: Callable[[str], bool], report: UpkeepReport) -> list[Life]:
    """All lives of the topics' queues; a topic with a file that cannot be read is noted."""
    found = []
    for queue in table.queues():
        if topics(queue.topic):
            try:
                found += table.lives(queue)
            except ArchiveError as error:
                report.unread[queue.topic] = error.describe()
    return found


def _runs(parts: Sequence[Part], small_bytes: int) -> Iterator[tuple[Part, ...]]:
    run: list[Part] = []
    for part in parts:
        fits = part.is_alone and part.size_bytes < small_bytes
        if run and (not fits or sum(each.size_bytes for each in run) + part.size_bytes > JOINED_BYTES):
            if len(run) > 1:
                yield tuple(run)
            run = []
        if fits:
            run.append(part)
    if len(run) > 1:
        yield tuple(run)


def compact(
    table: ArchiveTable,
    run_tasks: Callable[[Sequence[Join]], list[list[WrittenFile]]],
    report: UpkeepReport,
    *,
    topics: Callable[[str], bool] = lambda topic: True,
    small_bytes: int = SMALL_BYTES,
    dry_run: bool = False,
) -> None:
    """Join small files. Raises ArchiveError where the new files do not have as many rows as the old ones; then nothing is committed."""
    joins = plan_joins(lives_of(table, topics, report), table.place, small_bytes)
    of_gaps = [each for each in _gap_joins(table) if topics(each[0].topic)]
    if dry_run:
        report.joined_files += sum(len(join.parts) for join in joins) + sum(map(len, of_gaps))
        report.into_files += len(joins) + len(of_gaps)
        return
    for files_of_topic in of_gaps:
        gaps = [gap for file in files_of_topic for gap in file.gaps]
        _replace(table, files_of_topic, [write_gaps(table.place, files_of_topic[0].topic, gaps)], report)
    for start in range(0, len(joins), FILES_A_COMMIT):
        some = joins[start : start + FILES_A_COMMIT]
        written = run_tasks(some)
        for join, files in zip(some, written, strict=True):
            before, after = sum(part.rows for part in join.parts), sum(file.rows for file in files)
            if before != after:
                rule = (
                    f"joining files of queue {join.parts[0].queue} gave {after} rows of {before}; nothing was changed"
                )
                raise ArchiveError(table.place.url, rule)
        old = [part for join in some for part in join.parts]
        new = [file for files in written for file in files]
        _replace(table, old, new, report)


def _gap_joins(table: ArchiveTable) -> list[list[GapFile]]:
    """The files of gaps of each topic that has several."""
    by_topic = [list(files) for _, files in groupby(table.gap_files(), lambda file: file.topic)]
    return [files for files in by_topic if len(files) > 1]


def _replace(
    table: ArchiveTable, old: Sequence[Part | GapFile], new: Sequence[WrittenFile], report: UpkeepReport
) -> None:
    try:
        replace_files(table, old, new, is_change=False)
    except ArchiveConflictError:
        report.conflicts += 1
        table.refresh()
        return
    report.joined_files += len(old)
    report.into_files += len(new)


class Keep(NamedTuple):
    """How long topics whose whole name the pattern matches are kept."""

    pattern: re.Pattern[str]
    time_ms: int


def parse_keep(text: str, option: str) -> list[Keep]:
    """`orders=400d, audit.*=10y`: the first pattern that matches a topic holds. Raises OptionError."""
    found = []
    for part in text.split(","):
        pattern, equals, time_text = part.strip().rpartition("=")
        years = re.fullmatch(r"([0-9]+)\s*y", time_text.strip())
        if not equals or not pattern.strip():
            raise OptionError(option, f"expected TOPICS=TIME, such as orders=400d, found {part.strip()!r}")
        try:
            compiled = re.compile(pattern.strip(), re.ASCII)
        except re.error as error:
            raise OptionError(option, f"{pattern.strip()!r} is not a regular expression: {error}") from error
        time_ms = int(years[1]) * 365 * _DAY_MS if years else parse_duration_ms(time_text.strip(), option)
        if time_ms < _DAY_MS:
            raise OptionError(
                option, f"{part.strip()!r}: whole days are dropped, so a topic is kept for a day at least"
            )
        found.append(Keep(compiled, time_ms))
    return found


def drop_old_days(
    table: ArchiveTable,
    keep: Sequence[Keep],
    report: UpkeepReport,
    *,
    topics: Callable[[str], bool] = lambda topic: True,
    now_ms: int | None = None,
    dry_run: bool = False,
) -> None:
    """Remove the files of days all of whose messages are older than their topic is kept. Raises ArchiveConflictError.

    A queue loses them from its front, as its log does: an old day behind a younger one (a clock went back) waits for that. Where a
    queue's newest life has none left, a row says where its last message was: by that the archiver knows whether the log is the same.
    """
    now = current_time_ms() if now_ms is None else now_ms
    first_days: dict[str, date] = {}
    for topic in {queue.topic for queue in table.queues() if topics(queue.topic)}:
        rule = next((each for each in keep if each.pattern.fullmatch(topic)), None)
        if rule is not None:
            first_days[topic] = datetime.fromtimestamp((now - rule.time_ms) / 1000, UTC).date()
    lives = lives_of(table, first_days.__contains__, report)
    old, marks = _dropped(table, lives, first_days)
    if old and not dry_run:
        files = [write_gaps(table.place, topic, gaps) for topic, gaps in sorted(marks.items())]
        replace_files(table, list({part.path: part for part in old}.values()), files, is_change=True)
    for topic, paths in Counter(topic for topic, _ in {(part.queue.topic, part.path) for part in old}).items():
        report.dropped_files[topic] = report.dropped_files.get(topic, 0) + paths
        report.dropped_rows[topic] = report.dropped_rows.get(topic, 0) + sum(
            part.rows for part in old if part.queue.topic == topic
        )


def _dropped(
    table: ArchiveTable, lives: Sequence[Life], first_days: Mapping[str, date]
) -> tuple[list[Part], dict[str, list[Gap]]]:
    """The parts whose files go, and by topic the gaps that must be named then. A file of several queues goes when all of it may go."""
    held: set[str] = set()
    while True:
        by_life = [_front_before(life.parts, first_days[life.queue.topic], held) for life in lives]
        old = {part for parts in by_life for part in parts}
        shared = {part.path: part for part in old if not part.is_alone}
        inside = {
            path: opened_parts(table.place, path, part.queue.topic, part.day, part.size_bytes)
            for path, part in shared.items()
        }
        kept = {
            path for path, found in inside.items() if any(isinstance(one, Part) and one not in old for one in found)
        }
        if not kept:
            break
        held |= kept
    marks: dict[str, list[Gap]] = {}
    for found in inside.values():
        for one in found:
            if isinstance(one, Gap):
                marks.setdefault(one.queue.topic, []).append(one)
    for life, parts in zip(lives, by_life, strict=True):
        newest = table.newest(life.queue)
        if newest is not None and life.incarnation == newest.incarnation and parts and len(parts) == len(life.parts):
            if (last := last_place(table.place, life)) is None:
                rule = f"the files of queue {life.queue} have none of the messages that the table's log names"
                raise ArchiveError(table.place.url, rule)
            gap = Gap(life.queue, life.incarnation, life.start, last[0] + 1, DROPPED, last[1])
            marks.setdefault(life.queue.topic, []).append(gap)
    return sorted(old), marks


def _front_before(parts: Sequence[Part], day: date, held: Collection[str]) -> list[Part]:
    """The parts of older days that begin before all of younger days and of held files. Pure."""
    first_kept = min((part.start for part in parts if part.day >= day or part.path in held), default=None)
    return [
        part
        for part in parts
        if part.day < day and part.path not in held and (first_kept is None or part.start < first_kept)
    ]


def replace_files(
    table: ArchiveTable, old: Sequence[Part | GapFile], new: Sequence[WrittenFile], *, is_change: bool
) -> None:
    """One commit that removes files and adds others. Raises ArchiveConflictError where one is not there any more.

    delta-rs 1.6 does not compare what is removed with what other commits removed meanwhile. So a try is made for the very next version
    alone, on a look at the table that has all of the files.
    """
    from deltalake import CommitProperties
    from deltalake.exceptions import CommitFailedError, DeltaError
    from deltalake.transaction import AddAction, RemoveAction

    now_ms = current_time_ms()
    removes = [
        RemoveAction(part.path, is_change, now_ms, part.size_bytes, {"topic": part.topic, "day": part.day.isoformat()})
        for part in old
    ]
    adds = [
        AddAction(
            file.path,
            file.size_bytes,
            {"topic": file.topic, "day": file.day},
            file.modified_ms,
            is_change,
            file.statistics,
        )
        for file in new
    ]
    properties = CommitProperties(custom_metadata={"userMetadata": "spark_mq archive upkeep"}, max_commit_retries=0)
    for tries in range(_TRIES):
        there = set(table.files())
        if any(part.path not in there for part in old):
            raise ArchiveConflictError("another process has removed some of the files")
        try:
            table.delta.create_write_transaction(
                [*removes, *adds], "append", table.delta.schema(), list(PARTITIONED_BY), commit_properties=properties
            )
        except (DeltaError, OSError) as error:
            table.refresh()
            there = set(table.files())
            if not any(part.path in there for part in old) and all(file.path in there for file in new):
                return  # it is there, whatever the answer was
            if not isinstance(error, CommitFailedError):
                raise ArchiveError(table.place.url, f"a commit failed, and nothing was changed: {error}") from error
            wait_a_little(tries)
            continue
        table.refresh()
        return
    raise ArchiveConflictError("other processes commit all the time")


_TRIES = 50


def vacuum(table: ArchiveTable, keep_ms: int, report: UpkeepReport, *, dry_run: bool = False) -> None:
    """Delete files that no version younger than `keep_ms` names, and that are older themselves."""
    hours = -(-keep_ms // 3_600_000)
    report.deleted_files += table.delta.vacuum(retention_hours=hours, dry_run=dry_run, full=True)
    table.refresh()


LEAST_VACUUM_MS = 7 * _DAY_MS
"""Delta's own lower bound: readers and killed runs may still have files that young."""
