"""Data files of an archive, written by tasks: each has messages of one life of one queue on one day, in queue order.

A local file is synced before its task ends, so a commit names nothing that a power loss can take. A file that no commit names is
garbage, which VACUUM deletes. Its name is new each time, so no two attempts of a task meet.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_mq.source.archive_files import file_system
from spark_mq.source.archive_table import FILE_SCHEMA, GAP_END, GAP_KIND, INCARNATION, KEY_COUNT, STATISTICS, Gap, Place
from storage.epoch_times import current_time_ms
from storage.files.local_file_system import LocalFileSystem

GROUP_ROWS = 1 << 16
GROUP_BYTES = 32 << 20
"""Of a row group: what a reader decodes at a time."""
FILE_BYTES = 512 << 20
"""Of values, before compression: then the next file begins."""
_DAY_US = 86_400_000_000
_DICTIONARIES = ["broker_name", "tags", "born_host", "store_host"]
_EPOCH = date(1970, 1, 1)


class WrittenFile(NamedTuple):
    """A data file that is on disk and in no commit yet: what Delta's log says of it."""

    path: str
    topic: str
    day: str
    size_bytes: int
    modified_ms: int
    rows: int
    statistics: str


class LifeOfQueue(NamedTuple):
    """Whose messages a task writes."""

    topic: str
    broker_name: str
    queue_id: int
    incarnation: int


def write_messages(place: Place, life: LifeOfQueue, batches: Iterable[pa.RecordBatch]) -> list[WrittenFile]:
    """Write the messages, of one life of one queue and in queue order, into files by day; they have all columns of the source.

    Messages whose days alternate (a broker's clock went back) still make one file a day.
    """
    open_files: dict[int, _DataFile] = {}
    written: list[WrittenFile] = []
    try:
        for batch in batches:
            for day, rows in _by_day(batch):
                file = open_files.get(day)
                if file is not None and file.is_full:
                    written.append(open_files.pop(day).finish())
                    file = None
                if file is None:
                    file = open_files[day] = _DataFile(place, life.topic, _day_text(day))
                file.add(_with_own_columns(rows, life.incarnation))
        return [*written, *(file.finish() for file in open_files.values())]
    except BaseException:
        for file in open_files.values():
            file.give_up()
        raise


def write_gaps(place: Place, topic: str, gaps: Iterable[Gap]) -> WrittenFile:
    """Write named gaps of a topic's queues into one file, of the day of now."""
    listed = sorted(gaps)
    columns: dict[str, pa.Array] = {
        name: pa.nulls(len(listed), FILE_SCHEMA.field(name).type) for name in FILE_SCHEMA.names
    }
    for name, values in {
        "broker_name": [gap.queue.broker_name for gap in listed],
        "queue_id": [gap.queue.queue_id for gap in listed],
        "queue_offset": [gap.start for gap in listed],
        INCARNATION: [gap.incarnation for gap in listed],
        GAP_END: [gap.end for gap in listed],
        GAP_KIND: [gap.kind for gap in listed],
        "commitlog_offset": [None if gap.last is None else gap.last[0] for gap in listed],
        "store_timestamp": [None if gap.last is None else _moment(gap.last[1]) for gap in listed],
    }.items():
        columns[name] = pa.array(values, FILE_SCHEMA.field(name).type)
    file = _DataFile(place, topic, datetime.fromtimestamp(current_time_ms() / 1000, UTC).date().isoformat())
    try:
        file.add(pa.record_batch([columns[each.name] for each in FILE_SCHEMA], schema=FILE_SCHEMA))
        return file.finish()
    except BaseException:
        file.give_up()
        raise


def _moment(time_ms: int) -> datetime:
    return datetime.fromtimestamp(time_ms / 1000, UTC)


def directory_of(topic: str, day: str) -> str:
    """Where files of a topic and day lie, as Spark names it: some readers (Polars) take the values of the partition from there.

    It begins with a letter: VACUUM leaves directories that begin with _ alone.
    """
    return f"topic={quote(topic, safe='')}/day={day}"


class _DataFile:
    """One Parquet file while it is written."""

    def __init__(self, place: Place, topic: str, day: str) -> None:
        self._place, self._topic, self._day = place, topic, day
        self.path = f"{directory_of(topic, day)}/{uuid.uuid4().hex}.parquet"
        self._files = file_system(place)
        if place.is_local:
            LocalFileSystem().make_directories(f"{place.url}/{self.path.rpartition('/')[0]}")
        self._sink = self._files.open_output_stream(self.path)
        self._writer = pq.ParquetWriter(self._sink, FILE_SCHEMA, compression="zstd", use_dictionary=_DICTIONARIES)
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = self._waiting_bytes = self._bytes = self._rows = 0
        self._statistics = _Statistics()

    @property
    def is_full(self) -> bool:
        return self._bytes >= FILE_BYTES

    def add(self, rows: pa.RecordBatch) -> None:
        self._waiting.append(rows)
        self._waiting_rows += rows.num_rows
        self._waiting_bytes += rows.nbytes
        self._bytes += rows.nbytes
        if self._waiting_rows >= GROUP_ROWS or self._waiting_bytes >= GROUP_BYTES:
            self._write_group()

    def _write_group(self) -> None:
        if self._waiting:
            table = pa.Table.from_batches(self._waiting, schema=FILE_SCHEMA)
            self._writer.write_table(table, row_group_size=max(table.num_rows, 1))
            self._statistics.add(table)
            self._rows += table.num_rows
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0

    def finish(self) -> WrittenFile:
        """Write the rest, sync, and close."""
        self._write_group()
        self._writer.close()
        self._sink.close()
        if self._place.is_local:
            whole = f"{self._place.url}/{self.path}"
            LocalFileSystem().sync_all([whole, whole.rpartition("/")[0]])
        size = self._files.get_file_info(self.path).size
        return WrittenFile(
            self.path, self._topic, self._day, size, current_time_ms(), self._rows, self._statistics.text(self._rows)
        )

    def give_up(self) -> None:
        """Close; the file stays, in no commit."""
        self._sink.close()


class _Statistics:
    """Least and greatest values, and nulls, of a file's columns, as Delta's log has them."""

    def __init__(self) -> None:
        self._low: dict[str, Any] = {}
        self._high: dict[str, Any] = {}
        self._nulls = dict.fromkeys(STATISTICS, 0)

    def add(self, table: pa.Table) -> None:
        for name in STATISTICS:
            column = table[name]
            self._nulls[name] += column.null_count
            found = pc.min_max(column).as_py()
            if found["min"] is not None:
                self._low[name] = min(self._low.get(name, found["min"]), found["min"])
                self._high[name] = max(self._high.get(name, found["max"]), found["max"])

    def text(self, rows: int) -> str:
        return json.dumps(
            {
                "numRecords": rows,
                "minValues": {name: _stated(self._low[name]) for name in self._low},
                "maxValues": {name: _stated(self._high[name]) for name in self._low},
                "nullCount": self._nulls,
            }
        )


def _stated(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{value.microsecond // 1000:03d}Z"
    return value


def _by_day(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each day, in the rows' order; days since 1970 in UTC."""
    days = np.asarray(batch.column("store_timestamp").view(pa.int64())) // _DAY_US
    if len(days) and (days == days[0]).all():
        yield int(days[0]), batch
        return
    for day in np.unique(days).tolist():
        yield day, batch.filter(pa.array(days == day))


def _day_text(day: int) -> str:
    return (_EPOCH + timedelta(days=day)).isoformat()


def _with_own_columns(rows: pa.RecordBatch, incarnation: int) -> pa.RecordBatch:
    own: Mapping[str, pa.Array] = {
        KEY_COUNT: pc.add(pc.count_substring(rows.column("keys"), " "), 1).fill_null(0),
        INCARNATION: pa.repeat(pa.scalar(incarnation, pa.int32()), rows.num_rows),
        GAP_END: pa.nulls(rows.num_rows, pa.int64()),
        GAP_KIND: pa.nulls(rows.num_rows, pa.string()),
    }
    names = set(rows.schema.names)
    return pa.record_batch(
        [rows.column(each.name) if each.name in names else own[each.name] for each in FILE_SCHEMA], schema=FILE_SCHEMA
    )
