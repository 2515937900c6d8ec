"""One message as a batch of one row, and a table as one batch: what a put of single messages and of tables has in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from storage.errors import ColumnIllegalError

_TYPES = {
    "topic": pa.string(),
    "body": pa.binary(),
    "tags": pa.string(),
    "properties": pa.map_(pa.string(), pa.string()),
    "flag": pa.int32(),
    "born_timestamp": pa.timestamp("ms", "UTC"),
    "queue_id": pa.int32(),
    "sharding_key": pa.string(),
    "transaction_state": pa.string(),
}


def one_row(
    message: Mapping[str, object],
    *,
    keys: str | Sequence[str] | None = None,
    properties: Mapping[str, str] | None = None,
) -> pa.RecordBatch:
    """The columns of one message (`columns.COLUMNS`): those of `message`, by their names, with `keys` and `properties`.

    Raises ColumnIllegalError for a value of another type.
    """
    columns = {column: _one_value(column, value, _TYPES[column]) for column, value in message.items()}
    listed = keys if keys is None or isinstance(keys, str) else list(keys)
    columns["keys"] = _one_value("keys", listed, pa.list_(pa.string()) if isinstance(listed, list) else pa.string())
    columns["properties"] = _one_value("properties", list((properties or {}).items()), _TYPES["properties"])
    return pa.record_batch(columns)


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
