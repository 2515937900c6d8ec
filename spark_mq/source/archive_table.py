"""The archive of topics: a Delta table, read without Spark (delta-rs). Which rows it has, and how far each queue is archived.

A row is a message with all columns of the source, its body as the broker stored it, and

    day           the UTC day of its store time; the table is partitioned by topic and day
    incarnation   0, and one more each time that the topic was deleted and made again: equal offsets of two lives do not meet
    key_count     the keys in `keys`, 0 without any: where no message of a file has several, the least and greatest bound each key
    gap_end       null; otherwise the row is no message but a gap: it names offsets [queue_offset, gap_end) that have none
    gap_kind      of a gap: `expired` (the messages were gone before they were archived), `empty` (the queue had none there), or
                  `dropped` (by retention; then the row has the place and the store time of the last one)

How far a queue is archived stands in the table's log, as the version of a transaction whose application id names the queue
(`progress_id`). It is written in the commit that adds the queue's rows. Two commits that name one queue conflict, so the second fails
(delta-rs: ConflictChecker; Delta's protocol: SetTransaction). The version is `incarnation × 2^48 + end`: it never falls.

A file's statistics name its queue and its offsets. Files with rows of several queues, which other tools may write, are opened to see
which rows they have.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.conditions import ArchiveError, OptionError
from spark_mq.source.offsets import QueueId, RecordPlace
from spark_mq.source.rows import COLUMN_NAMES, COLUMNS
from storage.files.remote import absolute_path, plain_path

if TYPE_CHECKING:
    from deltalake import DeltaTable

DAY, INCARNATION, KEY_COUNT, GAP_END, GAP_KIND = "day", "incarnation", "key_count", "gap_end", "gap_kind"
EXPIRED, EMPTY, DROPPED = "expired", "empty", "dropped"
PARTITIONED_BY = ("topic", DAY)
_NEVER_NULL = frozenset(("topic", DAY, "broker_name", "queue_id", "queue_offset", INCARNATION))
STATISTICS = ("broker_name", "queue_id", "queue_offset", INCARNATION, GAP_END, "store_timestamp", "unique_key", "keys",
              KEY_COUNT)  # fmt: skip
"""The columns whose least and greatest value each file states, whichever program writes it."""
MAY_BE_USED = frozenset(("timestampNtz", "v2Checkpoint", "vacuumProtocolCheck", "invariants", "appendOnly"))
"""Features of Delta that do not change how a data file is read."""
_END_BITS = 48
_ENDS = (1 << _END_BITS) - 1


def _schema() -> pa.Schema:
    own = {DAY: pa.date32(), INCARNATION: pa.int32(), KEY_COUNT: pa.int32(), GAP_END: pa.int64(), GAP_KIND: pa.string()}
    types = {name: COLUMNS[name].arrow_type for name in COLUMN_NAMES} | own
    return pa.schema([pa.field(name, kind, name not in _NEVER_NULL) for name, kind in types.items()])


SCHEMA = _schema()
FILE_SCHEMA = pa.schema([each for each in SCHEMA if each.name not in PARTITIONED_BY])
"""Of a data file: Delta keeps the columns of the partition in its log."""


class Place(NamedTuple):
    """Where a table is, and the storage options of delta-rs as pairs. It goes to tasks."""

    url: str
    storage: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, url: str, storage: Mapping[str, str] | None = None) -> Place:
        """A path is made absolute: tasks have other working directories."""
        where = absolute_path(plain_path(url))
        return cls(where.rstrip("/") or "/", tuple(sorted((storage or {}).items())))

    @classmethod
    def given(cls, url: str, storage: Sequence[str] | None) -> Place:
        """By a command line's `--storage NAME=VALUE`. Raises OptionError."""
        parts = [text.partition("=") for text in storage or ()]
        if any(not equals or not name for name, equals, _ in parts):
            raise OptionError("--storage", "expected NAME=VALUE")
        return cls.of(url, {name: value for name, _, value in parts})

    def __repr__(self) -> str:
        """Without the values of storage options: they may be secrets, and tasks and plans are printed."""
        return f"Place(url={self.url!r}, storage={[name for name, _ in self.storage]})"

    @property
    def is_local(self) -> bool:
        return "://" not in self.url


class Progress(NamedTuple):
    """How far a queue is archived: all of a life before `end`, but for named gaps."""

    incarnation: int
    end: int

    def encoded(self) -> int:
        return (self.incarnation << _END_BITS) | self.end

    @classmethod
    def decoded(cls, version: int) -> Progress:
        return cls(version >> _END_BITS, version & _ENDS)


def progress_id(queue: QueueId) -> str:
    """The application id of a queue's transactions."""
    return "spark_mq.archive" + json.dumps(list(queue), separators=(",", ":"), ensure_ascii=False)


class Gap(NamedTuple):
    """Offsets [start, end) of a life that have no message in the archive."""

    queue: QueueId
    incarnation: int
    start: int
    end: int
    kind: str = EXPIRED
    last: RecordPlace | None = None
    """Of dropped messages: where in the log the last one was, which was at `end - 1`."""


class GapFile(NamedTuple):
    """A file that has nothing but gaps of a topic's queues."""

    path: str
    topic: str
    day: date
    size_bytes: int
    gaps: tuple[Gap, ...]


_WHY = {EXPIRED: "expired before they were archived", DROPPED: "were dropped from the archive"}


class Loss(NamedTuple):
    """Offsets [start, end) of a life that cannot be read, and why. `is_named`: the archiver knows of it, or will."""

    queue: QueueId
    incarnation: int
    start: int
    end: int
    why: str
    is_named: bool = True

    def __str__(self) -> str:
        return f"queue {self.queue}: offsets [{self.start}, {self.end}) {self.why}"


class Part(NamedTuple):
    """The messages of one life of one queue in one file: offsets [start, end), which need not be all there."""

    path: str
    queue: QueueId
    incarnation: int
    start: int
    end: int
    day: date
    rows: int
    size_bytes: int
    """Of the whole file."""
    times_ms: tuple[int, int]
    """Of the first and the last message that was stored."""
    key_bounds: tuple[tuple[str, str] | None, tuple[str, str] | None]
    """Least and greatest of unique_key and of keys; None where that is not known."""
    is_alone: bool = True
    """Whether the file has rows of nothing else."""

    @property
    def topic(self) -> str:
        return self.queue.topic

    def may_have_key(self, key: str) -> bool:
        """Whether a message with this key or unique key may be there. Pure."""
        unique, keys = self.key_bounds
        if unique is None or keys is None:
            return True
        return unique[0] <= key <= unique[1] or keys[0] <= key <= keys[1]


class Life(NamedTuple):
    """What the table has of one incarnation of a queue. `parts` are sorted by their starts."""

    queue: QueueId
    incarnation: int
    end: int
    parts: tuple[Part, ...]
    gaps: tuple[Gap, ...]

    @property
    def start(self) -> int:
        """The first offset that has a message; `end` if none has."""
        return self.parts[0].start if self.parts else self.end

    def between(self, start: int, end: int) -> list[Part]:
        """The parts that may have messages at offsets [start, end)."""
        return [part for part in self.parts if part.start < end and part.end > start]

    def losses_between(self, start: int, end: int) -> list[Loss]:
        """What a reader of [start, end) does not get, though the queue had or may have had it. Pure.

        Each offset is in a part or in a gap. Those in neither are lost, whatever took them.
        """
        lost = [
            Loss(self.queue, self.incarnation, max(gap.start, start), min(gap.end, end), _WHY[gap.kind])
            for gap in self.gaps
            if gap.kind != EMPTY and gap.start < end and gap.end > start
        ]
        at = start
        there = [*((part.start, part.end) for part in self.parts), *((gap.start, gap.end) for gap in self.gaps)]
        for low, high in [*sorted(there), (end, end)]:
            if (stop := min(low, end)) > at:
                lost += self._holes(at, stop)
            at = max(at, high)
        return sorted(lost)

    def _holes(self, start: int, end: int) -> Iterator[Loss]:
        begins, ends = self.start, self.end
        for low, high, why, is_named in (
            (start, min(end, begins, ends), "are older than the archive's first message", False),
            (max(start, begins), min(end, ends), "are missing in the archive, and no gap names them", False),
            (max(start, ends), end, _WHY[EXPIRED], True),
        ):
            if low < high:
                yield Loss(self.queue, self.incarnation, low, high, why, is_named)


class ArchiveTable:
    """A table as it was at the last look."""

    def __init__(self, place: Place, delta: DeltaTable) -> None:
        self.place = place
        self._delta = delta
        self._lives: dict[QueueId, dict[int, Life]] | None = None
        self._seen: dict[str, tuple[Part | Gap, ...]] = {}
        """What each file has, by its path."""
        self._unread: dict[str, ArchiveError] = {}
        """Topics with a file that must be opened and cannot be."""
        self._progress: dict[QueueId, Progress | None] = {}
        _refuse_features(place, delta)

    @classmethod
    def open(cls, place: Place) -> ArchiveTable:
        """Raises ArchiveError where there is no archive, or one that this package cannot read."""
        delta = open_delta(place)
        if delta is None:
            raise ArchiveError(place.url, "there is no Delta table", _MAKE_ONE)
        names = {each.name for each in delta.schema().fields}
        if missing := [name for name in (*PARTITIONED_BY, *_NEVER_NULL) if name not in names]:
            raise ArchiveError(
                place.url, f"the table is no archive of topics: it has no column {missing[0]}", _MAKE_ONE
            )
        return cls(place, delta)

    @property
    def delta(self) -> DeltaTable:
        return self._delta

    @property
    def version(self) -> int:
        return int(self._delta.version())

    def refresh(self) -> bool:
        """Look at the commits since; returns whether there are any."""
        before = self.version
        self._delta.update_incremental()
        if self.version == before:
            return False
        _refuse_features(self.place, self._delta)
        self._lives, self._progress, self._unread = None, {}, {}
        return True

    # What it has

    def queues(self) -> list[QueueId]:
        """The queues that the table has rows of, sorted."""
        return sorted(self._all())

    def progress(self, queue: QueueId) -> Progress | None:
        """How far the queue is archived; None if it was never."""
        if queue not in self._progress:
            version = self._delta.transaction_version(progress_id(queue))
            self._progress[queue] = None if version is None else Progress.decoded(version)
        return self._progress[queue]

    def lives(self, queue: QueueId) -> list[Life]:
        """What the table has of the queue, oldest first; the newest is there even if it has no rows.

        Raises ArchiveError where a file of its topic that must be opened is gone.
        """
        found = dict(self._all().get(queue, {}))
        if queue.topic in self._unread:
            raise self._unread[queue.topic]
        progress = self.progress(queue)
        if progress is not None:
            newest = found.get(progress.incarnation, Life(queue, progress.incarnation, 0, (), ()))
            found[progress.incarnation] = newest._replace(end=progress.end)
        return [found[number] for number in sorted(found)]

    def newest(self, queue: QueueId) -> Life | None:
        """The life that the archiver last saw; None of a queue that was never archived."""
        lives = self.lives(queue)
        return lives[-1] if lives else None

    def unknown_rows(self, queue: QueueId) -> int | None:
        """The newest incarnation of which the table has messages that the queue's progress does not know; None if there are none."""
        progress = self.progress(queue)
        incarnation, end = (-1, 0) if progress is None else progress
        lives = [life for life in self.lives(queue) if life.parts]
        if not lives or lives[-1].incarnation < incarnation:
            return None
        newest = lives[-1]
        is_known = newest.incarnation == incarnation and max(part.end for part in newest.parts) <= end
        return None if is_known else newest.incarnation

    def files(self) -> list[str]:
        """The paths of all files of the table, below its directory."""
        return self._actions().column("path").to_pylist()

    def _actions(self) -> pa.Table:
        """What the table's log has of each file. A path is a URL there; here it is plain."""
        found = pa.table(self._delta.get_add_actions(flatten=True))
        paths = pa.array([unquote(path) for path in found.column("path").to_pylist()], pa.string())
        return found.set_column(found.column_names.index("path"), "path", paths)

    def gap_files(self) -> list[GapFile]:
        """The files that have nothing but gaps, sorted by topic and day."""
        self._all()
        columns = ["path", "partition.topic", "partition.day", "size_bytes"]
        rows = self._actions().select(columns).to_pylist()
        found = []
        for path, topic, day, size_bytes in (row.values() for row in rows):
            gaps = tuple(each for each in self._seen.get(path, ()) if isinstance(each, Gap))
            if gaps and len(gaps) == len(self._seen[path]):
                found.append(GapFile(path, topic, day, size_bytes, gaps))
        return sorted(found, key=lambda file: (file.topic, file.day, file.path))

    def _all(self) -> dict[QueueId, dict[int, Life]]:
        if self._lives is None:
            parts: dict[tuple[QueueId, int], list[Part]] = {}
            gaps: dict[tuple[QueueId, int], list[Gap]] = {}
            for part in self._parts():
                if isinstance(part, Gap):
                    gaps.setdefault((part.queue, part.incarnation), []).append(part)
                else:
                    parts.setdefault((part.queue, part.incarnation), []).append(part)
            found: dict[QueueId, dict[int, Life]] = {}
            for queue, incarnation in {**parts, **gaps}:
                of_life = sorted(
                    parts.get((queue, incarnation), []), key=lambda each: (each.start, each.end, each.path)
                )
                named = sorted(set(gaps.get((queue, incarnation), [])))
                end = max([0, *(each.end for each in of_life), *(gap.end for gap in named)])
                life = Life(queue, incarnation, end, tuple(of_life), tuple(named))
                found.setdefault(queue, {})[incarnation] = life
            self._lives = found
        return self._lives

    def _parts(self) -> Iterator[Part | Gap]:
        """Of all files; those that an earlier look has seen are not looked at again, as files do not change."""
        files = self._actions()
        paths = files.column("path").to_pylist()
        self._seen = {path: self._seen[path] for path in paths if path in self._seen}
        for row in files.filter(pa.array([path not in self._seen for path in paths], pa.bool_())).to_pylist():
            part, topic = part_of(row), row["partition.topic"]
            try:
                self._seen[row["path"]] = (
                    opened_parts(self.place, row["path"], topic, row["partition.day"], row["size_bytes"])
                    if part is None
                    else (part,)
                )
            except ArchiveError as error:
                self._unread.setdefault(topic, error)
        for found in self._seen.values():
            yield from found


def part_of(row: Mapping[str, Any]) -> Part | None:
    """The part that a file's statistics describe; None where they do not say that it has messages of one queue alone. Pure."""
    low: dict[str, Any] = {name: row.get(f"min.{name}") for name in STATISTICS}
    high: dict[str, Any] = {name: row.get(f"max.{name}") for name in STATISTICS}
    rows = row.get("num_records")
    if rows is None or row.get(f"null_count.{GAP_END}") != rows:
        return None
    for name in ("broker_name", "queue_id", "queue_offset", INCARNATION, "store_timestamp"):
        if low[name] is None or high[name] is None:
            return None
    if any(low[name] != high[name] for name in ("broker_name", "queue_id", INCARNATION)):
        return None
    if len(low["broker_name"]) >= 32:  # Delta may cut longer texts
        return None
    queue = QueueId(row["partition.topic"], low["broker_name"], low["queue_id"])
    times = milliseconds(low["store_timestamp"]), milliseconds(high["store_timestamp"])
    return Part(row["path"], queue, low[INCARNATION], low["queue_offset"], high["queue_offset"] + 1, row["partition.day"],
                rows, row["size_bytes"], times, (None, None))._replace(key_bounds=_key_bounds(row, rows))  # fmt: skip


def _key_bounds(row: Mapping[str, Any], rows: int) -> tuple[tuple[str, str] | None, tuple[str, str] | None]:
    """An empty range where no message has any. Spark cuts texts to 32 characters: a cut one bounds nothing, nor do lists of keys."""
    found: list[tuple[str, str] | None] = []
    has_lists = (row.get(f"max.{KEY_COUNT}") or 2) > 1
    for name in ("unique_key", "keys"):
        low, high = row.get(f"min.{name}"), row.get(f"max.{name}")
        if row.get(f"null_count.{name}") == rows:
            found.append(("\U0010ffff", ""))
        elif low is None or high is None or len(high) > 32 or (name == "keys" and has_lists):
            found.append(None)
        else:
            found.append((low, high))
    return found[0], found[1]


def milliseconds(moment: datetime) -> int:
    return round(moment.replace(tzinfo=moment.tzinfo or UTC).timestamp() * 1000)


@lru_cache(maxsize=4096)  # a file never changes
def opened_parts(place: Place, path: str, topic: str, day: date, size_bytes: int) -> tuple[Part | Gap, ...]:
    """What a file has, by its rows."""
    from spark_mq.source.archive_files import open_file

    names = [
        "broker_name",
        "queue_id",
        "queue_offset",
        INCARNATION,
        GAP_END,
        GAP_KIND,
        "store_timestamp",
        "commitlog_offset",
    ]
    with open_file(place, path) as file:
        table = file.read(columns=names)
    is_message = pc.is_null(table[GAP_END])
    gaps = [
        Gap(
            QueueId(topic, row["broker_name"], row["queue_id"]),
            row[INCARNATION],
            row["queue_offset"],
            row[GAP_END],
            row[GAP_KIND],
            None if row["store_timestamp"] is None else (row["commitlog_offset"], milliseconds(row["store_timestamp"])),
        )
        for row in table.filter(pc.invert(is_message)).to_pylist()
    ]
    of_lives = table.filter(is_message).group_by(["broker_name", "queue_id", INCARNATION])
    grouped = of_lives.aggregate([("queue_offset", "min"), ("queue_offset", "max"), ("queue_offset", "count"),
                                  ("store_timestamp", "min"), ("store_timestamp", "max")]).to_pylist()  # fmt: skip
    parts = [
        Part(path, QueueId(topic, row["broker_name"], row["queue_id"]), row[INCARNATION], row["queue_offset_min"],
             row["queue_offset_max"] + 1, day, row["queue_offset_count"], size_bytes,
             (milliseconds(row["store_timestamp_min"]), milliseconds(row["store_timestamp_max"])), (None, None),
             is_alone=len(grouped) == 1 and not gaps)
        for row in grouped
    ]  # fmt: skip
    return (*parts, *gaps)


_MAKE_ONE = "spark-mq job archive makes one; name its directory, which holds _delta_log/"


def delta_lake() -> Any:
    """The package deltalake. Raises OptionError where it is not installed."""
    try:
        import deltalake
    except ImportError:
        rule = "needs the package deltalake, also where tasks run: pip install 'spark_mq[archive]'"
        raise OptionError("archive", rule) from None
    return deltalake


def open_delta(place: Place) -> DeltaTable | None:
    """The Delta table there; None if there is none. Raises ArchiveError where that cannot be seen."""
    lake = delta_lake()
    from deltalake.exceptions import DeltaError, TableNotFoundError

    try:
        return lake.DeltaTable(place.url, storage_options=dict(place.storage) or None)
    except TableNotFoundError:
        return None
    except (DeltaError, OSError, ValueError) as error:
        raise ArchiveError(place.url, str(error)) from error


def delta_rows(
    place: Place, delta: DeltaTable, columns: Sequence[str], where: Mapping[str, Collection[str]]
) -> pa.Table:
    """The rows of a Delta table, such as an audit, whose columns have one of the given texts. Raises ArchiveError.

    delta-rs reads them. Its `to_pyarrow_table` lets Arrow read through files of Python, and Arrow's threads may still hold buffers of
    these when it has returned. A thread that drops one while the interpreter ends aborts the process ("terminate called").
    """
    from deltalake import QueryBuilder
    from deltalake.exceptions import DeltaError

    conditions = [
        f"{_quoted(name)} IN ({', '.join(_literal(text) for text in sorted(texts))})" for name, texts in where.items()
    ]
    query = f"SELECT {', '.join(map(_quoted, columns))} FROM rows_there WHERE {' AND '.join(conditions)}"
    try:
        found = pa.table(QueryBuilder().register("rows_there", delta).execute(query))
    except (DeltaError, OSError, ValueError) as error:
        raise ArchiveError(place.url, f"its rows cannot be read: {error}") from error
    plain = [each.with_type(pa.string()) if each.type == pa.string_view() else each for each in found.schema]
    return found.cast(pa.schema(plain))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _refuse_features(place: Place, delta: DeltaTable) -> None:
    protocol = delta.protocol()
    unknown = set(protocol.reader_features or ()) - MAY_BE_USED
    mapping = delta.metadata().configuration.get("delta.columnMapping.mode", "none")
    if mapping not in (None, "none"):
        unknown.add("columnMapping")
    if unknown:
        rule = f"the table has features of Delta that are not read here: {', '.join(sorted(unknown))}"
        raise ArchiveError(place.url, rule)


def message_rows(lives: Iterable[Life]) -> int:
    """The number of messages."""
    return sum(part.rows for life in lives for part in life.parts)


def overlapping(parts: Sequence[Part]) -> Iterator[list[Part]]:
    """The parts, sorted by start, in groups whose offsets do not meet those of others. Compaction may have joined files around one."""
    group: list[Part] = []
    end = -1
    for part in parts:
        if group and part.start >= end:
            yield group
            group = []
        group.append(part)
        end = max(end, part.end)
    if group:
        yield group


def last_place(place: Place, life: Life, before: int | None = None) -> tuple[int, RecordPlace] | None:
    """Offset, and place in the log, of the last archived message of a life, below offset `before`; None if it has none.

    Where all were dropped it is the last dropped one, wherever `before` is.
    """
    from spark_mq.source.archive_files import last_record

    parts = [part for part in life.parts if before is None or part.start < before]
    for part in sorted(parts, key=lambda each: each.end, reverse=True):
        found = last_record(place, part, part.end if before is None else min(part.end, before))
        if found is not None:
            return found
    dropped = [(gap.end - 1, gap.last) for gap in life.gaps if gap.last is not None]
    return max(dropped) if dropped and not life.parts else None
