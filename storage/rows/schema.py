"""Which columns a table of messages may have, told by its schema before a row is looked at. Pure.

`rows.columns.COLUMNS` become messages. What else the Spark source gives of a message belongs to its place in a store, or to its
earlier life; it is accepted and not looked at, so that what was read can be written as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import pyarrow as pa

from storage.errors import ColumnIllegalError
from storage.nearest_name import advice
from storage.rows.columns import COLUMNS

LEFT_COLUMNS = (
    *("broker_name", "queue_offset", "msg_id", "store_timestamp", "born_host", "store_host", "sys_flag"),
    *("body_crc", "prepared_transaction_offset", "commitlog_offset", "store_size"),
    *("real_topic", "real_queue_id", "origin_topic", "_corrupt"),
)
"""The source's other columns."""


def check_columns(schema: pa.Schema) -> None:
    """Raises ColumnIllegalError for a column that no message has, that is there twice, or whose type does not fit; or without `body`.

    A column of Arrow's type null is as good as none, and a dictionary's values count, not its codes.
    """
    check_names(schema.names, COLUMNS, LEFT_COLUMNS, needed="body")
    for column in schema:
        kind = _KINDS.get(column.name)
        if kind is not None and not (pa.types.is_null(column.type) or kind.fits(column.type)):
            raise ColumnIllegalError(column.name, f"it is {column.type}, expected {kind.expected}")


def check_names(names: Sequence[str], known: Collection[str], left: Collection[str], *, needed: str) -> None:
    """Raises ColumnIllegalError for a name that is neither known nor left, for a known one that is there twice, and where the needed
    one is not there.
    """
    if needed not in names:
        raise ColumnIllegalError(needed, f"it is missing; there are {', '.join(names) or 'no columns'}")
    for name in names:
        if name not in known and name not in left:
            raise ColumnIllegalError(name, "no message has such a column" + (advice(name, [*left, *known]) or _DROP_IT))
        if name in known and names.count(name) > 1:
            raise ColumnIllegalError(name, "it is there twice")


_DROP_IT = "; drop it, or put it into the column properties"


class _Kind(NamedTuple):
    expected: str
    fits: Callable[[pa.DataType], bool]


def _is_text(found: pa.DataType) -> bool:
    if pa.types.is_dictionary(found):
        return _is_text(found.value_type)
    return bool(pa.types.is_string(found) or pa.types.is_large_string(found) or pa.types.is_string_view(found))


def _is_bytes_or_text(found: pa.DataType) -> bool:
    types = pa.types
    if types.is_dictionary(found):
        return _is_bytes_or_text(found.value_type)
    is_bytes = types.is_binary(found) or types.is_large_binary(found) or types.is_binary_view(found)
    return is_bytes or types.is_fixed_size_binary(found) or _is_text(found)


def _is_keys(found: pa.DataType) -> bool:
    is_list = pa.types.is_list(found) or pa.types.is_large_list(found)
    return _is_text(found) or (is_list and (_is_text(found.value_type) or pa.types.is_null(found.value_type)))


def _is_text_map(found: pa.DataType) -> bool:
    return bool(pa.types.is_map(found)) and _is_text(found.key_type) and _is_text(found.item_type)


def _is_integer(found: pa.DataType) -> bool:
    return bool(pa.types.is_integer(found))


def _is_time(found: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(found)) or _is_integer(found)


_TEXT = _Kind("string", _is_text)
_INTEGER = _Kind("a whole number", _is_integer)
_KINDS = {
    "body": _Kind("binary or string", _is_bytes_or_text),
    "topic": _TEXT,
    "tags": _TEXT,
    "keys": _Kind("string or list<string>", _is_keys),
    "properties": _Kind("map<string, string>", _is_text_map),
    "flag": _INTEGER,
    "born_timestamp": _Kind("timestamp, or whole milliseconds", _is_time),
    "queue_id": _INTEGER,
    "sharding_key": _TEXT,
    "unique_key": _TEXT,
    "delay_level": _INTEGER,
    "deliver_at": _Kind("timestamp, or whole milliseconds", _is_time),
    "retry_group": _TEXT,
    "reconsume_times": _INTEGER,
    "origin_msg_id": _TEXT,
    "transaction_state": _TEXT,
    "producer_group": _TEXT,
}
