"""Rows under the names of Spark's Kafka sink and source, turned into ours.

| Kafka's | here |
| --- | --- |
| `value` | `body` |
| `key` | `sharding_key` and `keys` |
| `topic` | `topic` |
| `partition` | `queue_id` |
| `headers` | `properties`; the headers TAGS and KEYS become `tags` and `keys` |

`offset`, `timestamp`, `timestampType` and `_corrupt` are not looked at. Spark: KafkaRowWriter.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from storage.format.arrays import as_texts

COLUMNS = ("key", "value", "topic", "partition", "headers", "offset", "timestamp", "timestampType", "_corrupt")
_TEXT = pa.large_string()


def is_kafka(names: list[str]) -> bool:
    """Whether columns of these names are Kafka's: there is a `value` and no `body`."""
    return "value" in names and "body" not in names


def from_kafka_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows under our names. Bytes of keys and headers are taken for UTF-8 unseen.

    Of equal header names the last one counts, as for every reader of properties; a header without a value is left out. An empty
    key is as good as none.
    """
    given = {name: batch.column(name) for name in COLUMNS if name in batch.schema.names}
    columns = {"body": given["value"]}
    if "topic" in given:
        columns["topic"] = given["topic"]
    if "partition" in given:
        columns["queue_id"] = given["partition"]
    if "key" in given:
        columns["sharding_key"] = columns["keys"] = as_texts(given["key"])
    if "headers" in given:
        columns["properties"] = maps = _maps(given["headers"])
        for name, column in (("TAGS", "tags"), ("KEYS", "keys")):
            if pc.any(pc.equal(maps.keys, name)).as_py():
                stated = _text_of(maps, name)
                columns[column] = pc.coalesce(stated, columns[column]) if column in columns else stated
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _text_of(maps: pa.Array, name: str) -> pa.Array:
    """The last value of a header in each row."""
    return pc.map_lookup(maps, pa.scalar(name, _TEXT), "last")


def _maps(headers: pa.Array) -> pa.Array:
    """`array<struct<key: string, value: binary>>` as `map<string, string>`; a null key becomes an empty one, which the rules refuse."""
    offsets = headers.offsets.cast(pa.int32())
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    pairs = headers.values.slice(first, last - first)
    names, values = as_texts(pc.struct_field(pairs, "key")).fill_null(""), as_texts(pc.struct_field(pairs, "value"))
    mask = headers.is_null() if headers.null_count else None
    return pa.MapArray.from_arrays(pc.subtract(offsets, offsets[0]), names, values, pa.map_(_TEXT, _TEXT), mask=mask)
