"""A log's records one after the other, straight from its files, and messages to be put, row by row: two sides of a comparison."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from storage.format.properties import decode_properties
from storage.format.record import Message, decode_record
from storage.format.record_batch import Records
from storage.rules.inner_messages import InnerMessage, InnerMessages


class LogRecord(NamedTuple):
    """One record: what it holds, and its bytes."""

    message: Message
    raw: bytes


def log_records(root: Path) -> Iterator[LogRecord]:
    """All records of a store, up to each file's end or filler. A broken one raises CorruptRecordError."""
    for path in sorted((root / "commitlog").iterdir()):
        content, at = path.read_bytes(), 0
        while content[at : at + 4].strip(b"\0"):
            message = decode_record(content, at)
            if not isinstance(message, Message):
                break
            yield LogRecord(message, content[at : at + message.size_bytes])
            at += message.size_bytes


def columns_of(records: Sequence[LogRecord]) -> Records:
    """The same as the columns that our functions take."""
    positions = np.cumsum([0, *(len(record.raw) for record in records)])[:-1]
    return Records(np.frombuffer(b"".join(record.raw for record in records), np.uint8), positions)


def rows_of(columns: InnerMessages) -> list[InnerMessage]:
    """The messages of columns that have born hosts, one by one."""
    hosts = columns.born_hosts
    assert hosts is not None
    return [
        InnerMessage(
            topic=columns.topics[row].as_py(),
            queue_id=int(columns.queue_ids[row]),
            body=columns.bodies[row].as_py(),
            properties=decode_properties(columns.properties[row].as_py()),
            flag=int(columns.flags[row]),
            sys_flag=int(columns.sys_flags[row]),
            born_time_ms=int(columns.born_times_ms[row]),
            born_host=hosts[row].tobytes(),
            reconsume_times=int(columns.reconsume_times[row]),
            prepared_transaction_offset=int(columns.prepared_transaction_offsets[row]),
        )
        for row in range(columns.row_count)
    ]
