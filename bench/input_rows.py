"""The rows that sinks are given: messages 0 … n - 1 of `bench.messages` as columns keys, tags, body.

HOME/rows-<messages>/    Parquet, a file for each of PARTITIONS tasks; not compressed, so that reading it costs little
"""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from bench.messages import TAGS, bodies

PARTITIONS = 2  # one for each core of the session
SCHEMA = "keys STRING, tags STRING, body BINARY"
SPARK_CONFIG = {
    "spark.sql.files.maxPartitionBytes": "64g",  # one task a file: else Spark cuts the larger of two files in two
    "spark.sql.adaptive.enabled": "false",  # streaming has none, and says so each time
}


def message_rows(spark: SparkSession, messages: int, partitions: int) -> DataFrame:
    """The columns of SCHEMA and `number`, the message's."""
    body = spark.createDataFrame(list(enumerate(bodies())), "body_id int, body binary")
    number = f.col("id")
    tags = f.array(*map(f.lit, TAGS))
    return (
        spark.range(0, messages, 1, partitions)
        .join(f.broadcast(body), number % body.count() == f.col("body_id"))
        .select(
            number.alias("number"),
            f.concat(f.lit("order-"), number.cast("string")).alias("keys"),
            f.get(tags, (f.floor(number / 7) % len(TAGS)).cast("int")).alias("tags"),
            "body",
        )
    )


def write_input(spark: SparkSession, home: Path, messages: int) -> Path:
    """The directory of the rows, written now unless an earlier run did."""
    directory = home.resolve() / f"rows-{messages}"
    if not (directory / "_SUCCESS").exists():
        rows = message_rows(spark, messages, PARTITIONS).drop("number")
        rows.write.mode("overwrite").option("compression", "none").parquet(str(directory))
    return directory
