"""One message as a batch of one row, and a table as one batch: what a put of single messages and of tables has in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from storage.errors import ColumnIllegalError


def one_row(
    *,
    topic: str,
    body: bytes,
    tags: str | None,
    keys: str | Sequence[str] | None,
    properties: Mapping[str, str] | None,
    flag: int,
    born_time_ms: int | None,
    queue_id: int | None,
    sharding_key: str | None,
) -> pa.RecordBatch:
    """The columns of one message (`columns.COLUMNS`). Raises ColumnIllegalError for a value of another type."""
    listed = None if keys is None or isinstance(keys, str) else list(keys)
    values = {
        "topic": (topic, pa.string()),
        "body": (body, pa.binary()),
        "tags": (tags, pa.string()),
        "keys": (keys, pa.string()) if listed is None else (listed, pa.list_(pa.string())),
        "properties": (list((properties or {}).items()), pa.map_(pa.string(), pa.string())),
        "flag": (flag, pa.int32()),
        "born_timestamp": (born_time_ms, pa.timestamp("ms", "UTC")),
        "queue_id": (queue_id, pa.int32()),
        "sharding_key": (sharding_key, pa.string()),
    }
    return pa.record_batch({column: _one_value(column, value, kind) for column, (value, kind) in values.items()})


def _one_value(column: str, value: object, kind: pa.DataType) -> pa.Array:
    """A column of one row. Raises ColumnIllegalError for a value that is not of its type."""
    try:
        return pa.array([value], kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise ColumnIllegalError(column, f"{value!r:.80} is {type(value).__name__}, expected {kind}") from error


def one_batch(table: pa.Table) -> pa.RecordBatch:
    """All of the table, each column in one piece."""
    columns = [column.combine_chunks() for column in table.columns]
    return pa.record_batch(
        [c.chunk(0) if isinstance(c, pa.ChunkedArray) else c for c in columns], names=table.column_names
    )
