"""Which columns a row may have, and the option that names them. Their values: `rows.py`."""

from __future__ import annotations

from spark_mq.conditions import OptionError
from storage.names import advice

COLUMN_NAMES = (
    *("topic", "broker_name", "queue_id", "queue_offset", "msg_id", "unique_key", "tags", "keys", "body", "properties"),
    *(
        "born_timestamp",
        "store_timestamp",
        "born_host",
        "store_host",
        "flag",
        "sys_flag",
        "reconsume_times",
        "body_crc",
    ),
    *("prepared_transaction_offset", "commitlog_offset", "store_size"),
)
"""What a row has unless option `columns` or a schema says otherwise."""
EARLIER_PLACE_COLUMN_NAMES = ("origin_topic", "origin_msg_id", "real_topic", "real_queue_id")
"""What a row has only where it is asked for: in retry, dead-letter, schedule, timer and half topics it says whose message it is."""
KAFKA_COLUMN_NAMES = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
KAFKA_HEADERS = "headers"
CORRUPT_COLUMN = "_corrupt"
"""What a row has only with mode=PERMISSIVE, and then always, last unless it is named."""


def parse_columns(text: str, option: str) -> tuple[str, ...]:
    """`kafka`, or names of our columns between commas, in the order wanted; `*` stands for COLUMN_NAMES."""
    if text.strip().lower() == "kafka":
        return KAFKA_COLUMN_NAMES
    columns: list[str] = []
    for part in text.split(","):
        columns += COLUMN_NAMES if part.strip() == "*" else [part.strip()]
    known = (*COLUMN_NAMES, *EARLIER_PLACE_COLUMN_NAMES, CORRUPT_COLUMN)
    for column in columns:
        if column not in known:
            if column in (*KAFKA_COLUMN_NAMES, KAFKA_HEADERS):
                rule = f"there is no column {column!r}: write columns=kafka for Kafka's columns"
                raise OptionError(option, rule + (", with includeHeaders=true" if KAFKA_HEADERS in text else ""))
            instead = advice(column, known) or f"; there are {', '.join(known)}"
            raise OptionError(option, f"there is no column {column!r}{instead}")
    if len(set(columns)) != len(columns):
        raise OptionError(option, f"a column is named twice in {text!r}")
    return tuple(columns)
