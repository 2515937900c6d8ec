"""What the golden lines of a fixture say a row must hold, column by column; bodies as their SHA-256."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.support.fixture_stores import Fixture, golden_lines

Row = dict[str, Any]
BROKER_NAME = "broker-lab"  # in every fixture's broker.conf
_EPOCH = datetime.fromtimestamp(0, UTC)


def golden_rows(fixture: Fixture, *topics: str) -> list[Row]:
    """A row for each message line, of these topics or of all, sorted by queue and offset."""
    lines = (line for line in golden_lines(fixture.golden, "message") if not topics or line["cqTopic"] in topics)
    return in_order(_row(line) for line in lines)


def hashed(rows: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Rows of the source, made comparable: bodies as SHA-256, properties as dict, in the order of the golden ones."""
    return in_order(
        {**row, "body": hashlib.sha256(row["body"]).hexdigest(), "properties": dict(row["properties"])} for row in rows
    )


def in_order(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row["topic"], row["queue_id"], row["queue_offset"]))


def utc(milliseconds: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=milliseconds)


def _row(line: Mapping[str, Any]) -> Row:
    properties = line["properties"]
    return {
        "topic": line["topic"],
        "broker_name": BROKER_NAME,
        "queue_id": line["cqQueueId"],
        "queue_offset": line["cqOffset"],
        "msg_id": line["msgId"],
        "unique_key": properties.get("UNIQ_KEY"),
        "tags": properties.get("TAGS"),
        "keys": properties.get("KEYS"),
        "body": line.get("plainBodySha256", line["bodySha256"]),
        "properties": properties,
        "born_timestamp": utc(line["bornTimestamp"]),
        "store_timestamp": utc(line["storeTimestamp"]),
        "born_host": line["bornHost"],
        "store_host": line["storeHost"],
        "flag": line["flag"],
        "sys_flag": line["sysFlag"],
        "reconsume_times": line["reconsumeTimes"],
        "body_crc": line["bodyCRC"],
        "prepared_transaction_offset": line["preparedTransactionOffset"],
        "commitlog_offset": line["physicalOffset"],
        "store_size": line["storeSize"],
    }
