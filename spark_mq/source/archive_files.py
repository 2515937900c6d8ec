"""Data files of an archive, read by tasks and by the driver: rows of one life of one queue, in queue order, as the source shows them.

Rows become slices of records, so that columns, filters and corrupt bodies have the code that records of a log have (`rows.to_batches`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as fs
import pyarrow.parquet as pq

from spark_mq.conditions import ArchiveError, named_for_spark
from spark_mq.source.archive_table import FILE_SCHEMA, GAP_END, INCARNATION, Part, Place, overlapping
from spark_mq.source.offsets import QueueId, RecordPlace
from spark_mq.source.rows import RowRequest, rows_with_key, to_batches, wanted_of
from storage.errors import CorruptMessageError, CorruptRecordError
from storage.format.arrays import crcs_between
from storage.format.properties import PropertyMaps
from storage.format.record_batch import Records
from storage.format.window_decoder import Wanted
from storage.queues.scan import SLICE_ROWS, QueueSlice

_FIELDS = {
    "born_time_ms": "born_timestamp",
    "store_time_ms": "store_timestamp",
    "size_bytes": "store_size",
    "body_size_bytes": "body",
}
"""Fields of a record whose columns have other names."""
_TEXTS = {"TAGS": "tags", "KEYS": "keys", "UNIQ_KEY": "unique_key"}
"""Properties that have columns of their own."""
_OF_QUEUES = ("broker_name", "queue_id", INCARNATION, GAP_END, "queue_offset")
_PLACE = ("commitlog_offset", "store_timestamp")


class ArchivedRecords(Records):
    """Rows of an archive as records. Only columns that were read can be asked for."""

    def __init__(self, topic: str, rows: pa.RecordBatch) -> None:
        self._topic = topic
        self._rows = rows
        self.decoded = None

    def __len__(self) -> int:
        return self._rows.num_rows

    def take(self, rows: np.ndarray | slice) -> ArchivedRecords:
        if isinstance(rows, slice):
            return ArchivedRecords(self._topic, self._rows.slice(rows.start, rows.stop - rows.start))
        taken = self._rows.filter(pa.array(rows)) if rows.dtype == bool else self._rows.take(pa.array(rows))
        return ArchivedRecords(self._topic, taken)

    def column(self, name: str) -> np.ndarray:
        if name == "body_size_bytes":
            return np.asarray(pc.binary_length(self._rows.column("body")))
        found = self._rows.column(_FIELDS.get(name, name))
        if pa.types.is_timestamp(found.type):
            return np.asarray(found.view(pa.int64())) // 1_000
        return np.asarray(found.fill_null(0) if found.null_count else found)  # of a file from before the column was

    def topics(self) -> pa.Array:
        return pa.repeat(pa.scalar(self._topic.encode()), len(self))

    def host_texts(self, name: str) -> pa.Array:
        return self._rows.column(name)

    def message_ids(self) -> pa.Array:
        return self._rows.column("msg_id")

    def properties(self) -> PropertyMaps:
        maps = self._rows.column("properties")
        offsets = np.asarray(maps.offsets)
        first, last = int(offsets[0]), int(offsets[-1])
        return PropertyMaps(offsets - first, maps.keys[first:last], maps.items[first:last])

    def property(self, name: str) -> pa.Array | None:
        column = _TEXTS.get(name)
        return self._rows.column(column) if column in self._rows.schema.names else None

    def bodies(self) -> pa.Array:
        return self._rows.column("body")

    def crc_agrees(self) -> np.ndarray:
        bodies = self.bodies()
        _, offsets, data = bodies.buffers()
        places = np.frombuffer(offsets, np.int32)[bodies.offset : bodies.offset + len(bodies) + 1].astype(np.int64)
        sums = crcs_between(np.frombuffer(data or b"", np.uint8), places[:-1], places[1:])
        return (sums == self.column("body_crc")) | (places[:-1] == places[1:])

    def corrupt_sums(self, *, force_property_crc: bool) -> Iterator[tuple[int, CorruptMessageError]]:
        """The sum of the body alone: the record's bytes are not there."""
        for row in np.flatnonzero(~self.crc_agrees()).tolist():
            error = CorruptRecordError("body CRC", 0, int(self.column("body_crc")[row]), "another")
            yield row, self.corrupt_message(row, error)


def columns_for(wanted: Wanted) -> list[str]:
    """The columns of a file that have the wanted parts of messages."""
    names = {_FIELDS.get(name, name) for name in wanted.fields}
    names |= {_TEXTS.get(name, "properties") for name in wanted.properties}
    if wanted.bodies:
        names |= {"body", "sys_flag"}
    if wanted.all_properties:
        names.add("properties")
    if wanted.message_ids:
        names.add("msg_id")
    return sorted(names)


@dataclass(frozen=True, slots=True)
class ArchiveSplit:
    """Ranges of offsets of one life of a queue, ascending, and the parts that have them."""

    place: Place
    queue: QueueId
    broker_rank: int
    ranges: tuple[tuple[int, int], ...]
    parts: tuple[Part, ...]
    request: RowRequest

    def read(self) -> Iterator[pa.RecordBatch]:
        """The messages as Arrow batches of the request's schema, in queue order. Raises ArchiveError for a file that is gone."""
        with named_for_spark():
            try:
                for start, end in self.ranges:
                    slices = self._slices(start, end)
                    yield from to_batches(slices, self.queue, self.broker_rank, self.request, None)
            except CorruptMessageError as error:
                raise error.of_broker(self.queue.broker_name) from None

    def _slices(self, start: int, end: int) -> Iterator[QueueSlice]:
        request = self.request
        wanted = wanted_of(request.columns)
        if request.tags is not None:
            wanted |= Wanted(properties=frozenset({"TAGS"}))
        if request.key is not None:
            wanted |= Wanted(properties=frozenset({"KEYS", "UNIQ_KEY"}))
        if request.verify_crc:
            wanted |= Wanted(fields=frozenset({"body_crc"}), bodies=True)
        names = [*columns_for(wanted), *_PLACE[:1]]
        for rows in read_rows(self.place, self.parts, start, end, names, request.key):
            found = QueueSlice(np.asarray(rows.column("queue_offset")), ArchivedRecords(self.queue.topic, rows))
            if request.verify_crc and not request.permissive:
                for _, error in found.records.corrupt_sums(force_property_crc=False):
                    raise error
            yield found


def read_rows(
    place: Place, parts: Sequence[Part], start: int, end: int, names: Sequence[str], key: str | None = None
) -> Iterator[pa.RecordBatch]:
    """The messages at offsets [start, end) of the parts of one life, in queue order, with these columns and `queue_offset`.

    With a `key` only the rows of row groups in which a message has it. A column that an older file does not have is null.
    """
    wanted = list(dict.fromkeys([*names, "queue_offset"]))
    for group in overlapping([part for part in parts if part.start < end and part.end > start]):
        if len(group) == 1:
            yield from _rows_of_part(place, group[0], start, end, wanted, key)
            continue
        found = [rows for part in group for rows in _rows_of_part(place, part, start, end, wanted, key)]
        if found:
            table = pa.Table.from_batches(found).sort_by("queue_offset").combine_chunks()
            yield from table.to_batches(max_chunksize=SLICE_ROWS)


def _rows_of_part(
    place: Place, part: Part, start: int, end: int, names: Sequence[str], key: str | None
) -> Iterator[pa.RecordBatch]:
    with open_file(place, part.path) as file:
        there = set(file.schema_arrow.names)
        wanted = [name for name in dict.fromkeys([*names, *_OF_QUEUES]) if name in there]
        for groups in _in_order(file, start, end):
            of_key = [number for number in groups if key is None or _has_key(file, number, key)]
            if not of_key:
                continue
            table = file.read_row_groups(of_key, columns=wanted)
            is_wanted = _of_part(table, part, start, end)
            if not pc.all(is_wanted, min_count=0).as_py():
                table = table.filter(is_wanted)
            if (np.diff(np.asarray(table["queue_offset"])) <= 0).any():
                table = table.sort_by("queue_offset")
            yield from _selected(table, names, there).to_batches(max_chunksize=SLICE_ROWS)


def _in_order(file: pq.ParquetFile, start: int, end: int) -> list[list[int]]:
    """The row groups that may have offsets of [start, end), in queue order; together those whose offsets meet.

    Another tool may have joined files in any order: delta-rs puts the newest first.
    """
    column = file.schema_arrow.names.index("queue_offset")
    found: list[tuple[int, int, int]] = []
    for number in range(file.num_row_groups):
        bounds = _bounds(file, number, column)
        if bounds is None:
            return [list(range(file.num_row_groups))]
        if bounds[0] < end and bounds[1] >= start:
            found.append((*bounds, number))
    groups: list[list[int]] = []
    highest = -1
    for low, high, number in sorted(found):
        if not groups or low > highest:
            groups.append([])
        groups[-1].append(number)
        highest = max(highest, high)
    return groups


def _of_part(table: pa.Table, part: Part, start: int, end: int) -> pa.ChunkedArray:
    offsets = table["queue_offset"]
    is_wanted = pc.and_(pc.greater_equal(offsets, max(start, part.start)), pc.less(offsets, min(end, part.end)))
    if part.is_alone:
        return is_wanted
    for name, value in (("broker_name", part.queue.broker_name), ("queue_id", part.queue.queue_id),
                        (INCARNATION, part.incarnation)):  # fmt: skip
        is_wanted = pc.and_(is_wanted, pc.equal(table[name], value))
    return pc.and_(is_wanted, pc.is_null(table[GAP_END]))


def _selected(table: pa.Table, names: Sequence[str], there: set[str]) -> pa.Table:
    columns = {}
    for name in names:
        kind = FILE_SCHEMA.field(name).type
        columns[name] = table[name].cast(kind) if name in there else pa.nulls(table.num_rows, kind)
    return pa.table(columns).combine_chunks()


def _bounds(file: pq.ParquetFile, row_group: int, column: int) -> tuple[int, int] | None:
    statistics = file.metadata.row_group(row_group).column(column).statistics
    return None if statistics is None or not statistics.has_min_max else (statistics.min, statistics.max)


def _has_key(file: pq.ParquetFile, row_group: int, key: str) -> bool:
    table = file.read_row_group(row_group, columns=["keys", "unique_key"]).combine_chunks()
    return any(_rows_have_key(batch, key) for batch in table.to_batches())


def _rows_have_key(rows: pa.RecordBatch, key: str) -> bool:
    records = ArchivedRecords("", rows)
    from spark_mq.source.rows import RowSource

    source = RowSource(QueueSlice(np.zeros(rows.num_rows, np.int64), records), "", "", 0)
    return bool(rows_with_key(source, key).any())


@lru_cache(maxsize=8)
def file_system(place: Place) -> fs.FileSystem:
    """The file system whose root is the table's directory, with the storage options of delta-rs."""
    if place.is_local:
        return fs.SubTreeFileSystem(place.url, fs.LocalFileSystem())
    from deltalake.fs import DeltaStorageHandler

    return fs.PyFileSystem(DeltaStorageHandler(place.url, dict(place.storage) or None))


@contextmanager
def open_file(place: Place, path: str) -> Iterator[pq.ParquetFile]:
    """A data file by its path below the table's directory. Raises ArchiveError where it is gone."""
    try:
        source = file_system(place).open_input_file(path)
    except FileNotFoundError as error:
        raise ArchiveError(place.url, f"the file {path} is gone, which its log names", _GONE) from error
    with source, pq.ParquetFile(source) as file:
        yield file


_GONE = "Start the query again: a compaction and VACUUM may have replaced it. Else restore the file; --verify names all that are gone"


def place_at(place: Place, part: Part, offset: int) -> RecordPlace | None:
    """(commit log offset, store time) of the message at an offset of a part; None if none is there."""
    for rows in read_rows(place, [part], offset, offset + 1, _PLACE):
        records = ArchivedRecords(part.queue.topic, rows)
        return int(records.column("commitlog_offset")[0]), int(records.column("store_time_ms")[0])
    return None


@lru_cache(maxsize=4096)  # a file never changes
def last_record(place: Place, part: Part, before: int) -> tuple[int, RecordPlace] | None:
    """Offset and place of the last message of a part below an offset; None if it has none there."""
    start = before - 1 if before == part.end else part.start  # the part ends behind its last message
    found = None
    for rows in read_rows(place, [part], start, before, _PLACE):
        records = ArchivedRecords(part.queue.topic, rows)
        at = int(rows.column("commitlog_offset")[-1].as_py()), int(records.column("store_time_ms")[-1])
        found = int(rows.column("queue_offset")[-1].as_py()), at
    return found


def first_not_older(place: Place, parts: Iterable[Part], timestamp_ms: int) -> int | None:
    """The first offset of a life whose message was stored at or after a time; None if none was."""
    for part in sorted(parts, key=lambda each: each.start):
        if part.times_ms[1] < timestamp_ms:
            continue
        for rows in read_rows(place, [part], part.start, part.end, ["store_timestamp"]):
            found = np.flatnonzero(ArchivedRecords("", rows).column("store_time_ms") >= timestamp_ms)
            if len(found):
                return int(rows.column("queue_offset")[int(found[0])].as_py())
    return None


@lru_cache(maxsize=64)
def sizes_of(place: Place, part: Part) -> tuple[np.ndarray, np.ndarray]:
    """The offsets of a part's messages, and the sum of the records' sizes up to and with each."""
    offsets, sizes = [], []
    for rows in read_rows(place, [part], part.start, part.end, ["store_size"]):
        offsets.append(np.asarray(rows.column("queue_offset")))
        sizes.append(np.asarray(rows.column("store_size")))
    if not offsets:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    return np.concatenate(offsets), np.cumsum(np.concatenate(sizes).astype(np.int64))


@lru_cache(maxsize=1 << 16)
def total_size(place: Place, part: Part) -> int:
    """The bytes of all records of a part."""
    return sum(
        int(np.asarray(rows.column("store_size")).astype(np.int64).sum())
        for rows in read_rows(place, [part], part.start, part.end, ["store_size"])
    )
