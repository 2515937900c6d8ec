"""The whole log of the killed duties' store as its messages, read as a reader would, beside a writer."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from storage import MessageStore, open_store
from storage.format.properties import decode_properties


class Record(NamedTuple):
    """A message of the log."""

    topic: str
    queue_id: int
    name: str
    """Of its story; the body."""
    properties: dict[str, str]
    reconsume_times: int
    store_time_ms: int
    commitlog_offset: int
    queue_offset: int
    prepared_transaction_offset: int


def read_records(root: Path) -> list[Record]:
    """All records, in order; a torn one at the end is none."""
    with open_store(root) as store:
        return records_of(store)


def records_of(store: MessageStore) -> list[Record]:
    """All records of an open store."""
    found: list[Record] = []
    for _, records in store.log.walk(store.log.minimum):
        columns = (
            records.topics().to_pylist(),
            records.column("queue_id").tolist(),
            records.bodies().to_pylist(),
            records.raw_properties().to_pylist(),
            records.column("reconsume_times").tolist(),
            records.column("store_time_ms").tolist(),
            records.column("commitlog_offset").tolist(),
            records.column("queue_offset").tolist(),
            records.column("prepared_transaction_offset").tolist(),
        )
        found += [
            Record(topic.decode(), queue_id, body.decode(errors="replace"), decode_properties(properties), *numbers)
            for topic, queue_id, body, properties, *numbers in zip(*columns, strict=True)
        ]
    return found
