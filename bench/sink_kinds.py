"""What rows ask of our sink: a plain send, or one of those that take another way into the store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from bench.messages import TOPIC

DELAY_LEVEL = 3
GROUP = "bench"


class SinkKind(NamedTuple):
    """One way in."""

    name: str
    """As the table shows it; empty for plain sends."""
    options: Mapping[str, str]
    topic: str
    """Where all rows can be read afterwards."""
    shaped: Callable[[DataFrame], DataFrame]
    """The rows with the columns that it needs."""


def _as_consumed(rows: DataFrame) -> DataFrame:
    """As our source gives them: with an id, all properties in the map."""
    properties = f.create_map(f.lit("KEYS"), "keys", f.lit("TAGS"), "tags", f.lit("UNIQ_KEY"), f.lpad("keys", 32, "0"))
    return rows.select(
        f.lit(TOPIC).alias("topic"),
        f.lpad("keys", 32, "0").alias("msg_id"),
        properties.alias("properties"),
        "body",
        f.lit(0).alias("reconsume_times"),
    )


PLAIN = SinkKind("", {"topic": TOPIC}, TOPIC, lambda rows: rows)
KINDS = (
    PLAIN,
    SinkKind(
        "delay_level",
        {"topic": TOPIC},
        "SCHEDULE_TOPIC_XXXX",
        lambda rows: rows.withColumn("delay_level", f.lit(DELAY_LEVEL)),
    ),
    SinkKind("sendBack", {"sendBack": "true", "consumerGroup": GROUP}, "SCHEDULE_TOPIC_XXXX", _as_consumed),
    SinkKind(
        "transactional",
        {"topic": TOPIC, "transactional": "true", "producerGroup": GROUP},
        TOPIC,
        lambda rows: rows,
    ),
)
