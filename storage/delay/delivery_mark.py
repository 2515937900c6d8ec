"""What a delivery is about to put, noted down first, so that one that was killed is gone on with and not begun again.

The mark says where the log ended before the first record of a round, and which messages the round delivers, in order. Whoever delivers
holds the store, so what stands in the log of a delivery that was killed stands at that place, row after row, and is told by its
bytes. Others may append behind it, so who goes on saves that progress first, and drops the mark.

The file is ROOT/spark_mq/delivery.json; a broker does not read it, and delivers such messages twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from storage.errors import StateFileError
from storage.files.local_file_system import LocalFileSystem
from storage.format.property_encoding import with_crc_room
from storage.format.record_batch import Records

_COLUMNS = ("flag", "born_time_ms", "reconsume_times", "body_crc", "body_size_bytes")


class DueRange(NamedTuple):
    """Messages of one level at queue offsets [start, end)."""

    level: int
    start: int
    end: int


class DeliveryMark(NamedTuple):
    """One round of deliveries that may be under way."""

    log_end: int
    """Where the first record goes."""
    ranges: tuple[DueRange, ...]

    def is_current(self, offsets: Mapping[int, int]) -> bool:
        """Whether none of the round's progress has been saved, by us or by a broker."""
        return all(offsets.get(range_.level) == range_.start for range_ in self.ranges)


def save_mark(file_system: LocalFileSystem, root: str, mark: DeliveryMark) -> None:
    """Note a round down, durably."""
    file_system.replace(_path(root), json.dumps(mark._asdict()).encode())


def drop_mark(file_system: LocalFileSystem, root: str) -> None:
    """Forget the round; one that comes back with a power loss is no longer current."""
    file_system.unlink(_path(root))


def read_mark(file_system: LocalFileSystem, root: str) -> DeliveryMark | None:
    """The round that was under way; None if there was none. Raises StateFileError for a file that this module did not write."""
    path = _path(root)
    content = file_system.read_file(path)
    if content is None:
        return None
    try:
        document = json.loads(content)
        ranges = tuple(DueRange(*map(int, range_)) for range_ in document["ranges"])
        return DeliveryMark(int(document["log_end"]), ranges)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise StateFileError(path, 1, 1, f"it is no delivery mark: {error}") from error


def record_marks(records: Records, topics: pa.Array, queue_ids: np.ndarray) -> pa.Table:
    """What tells that a delivered record is a certain message's: everything but place, hosts and store time."""
    return pa.table(
        {
            "topic": topics.cast(pa.large_binary()),
            "queue_id": pa.array(queue_ids, pa.int32()),
            "properties": with_crc_room(records.raw_properties()),  # without the record's own sum
            **{name: pa.array(records.column(name)) for name in _COLUMNS},
        }
    )


def head_found_in(found: Sequence[pa.Table], expected: Sequence[pa.Table]) -> int:
    """How many rows of `expected`, from the first on, are among those of `found`, in their order. Either is of one round at most."""
    theirs = iter(_rows(found))
    count = 0
    for row in _rows(expected):
        if row not in theirs:  # looks from where the one before was found
            break
        count += 1
    return count


def _rows(tables: Sequence[pa.Table]) -> Iterator[tuple[object, ...]]:
    for table in tables:
        yield from zip(*(column.to_pylist() for column in table.columns), strict=True)


def _path(root: str) -> str:
    return f"{root}/spark_mq/delivery.json"
