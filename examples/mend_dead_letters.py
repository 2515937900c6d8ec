"""Dead letters, mended and put back: of a consumer group that could not read some bodies.

    python examples/mend_dead_letters.py [STORE]    without a store it takes the example store, which has a group with dead letters

With a store it writes into that store: the copies go to the topic TopicMended.
The write has a name (writeId), so a second run writes nothing. The broker of the store must not run meanwhile. To put letters back
unchanged, use the job: spark-mq job replay_dead_letters STORE --group GROUP
"""

from __future__ import annotations

import sys
import tempfile

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import spark_mq

GROUP = "GroupR"
TOPIC = "TopicMended"


def letters(spark: SparkSession, store: str) -> DataFrame:
    rows = spark.read.format("spark_mq").option("path", store).option("topic", f"%DLQ%{GROUP}")
    return rows.option("columns", "origin_topic,origin_msg_id,keys,body").load()


def mended(dead: DataFrame) -> DataFrame:
    """What was wrong with the bodies is repaired here; the property says which message a copy is of."""
    return dead.select(
        F.lit(TOPIC).alias("topic"),
        "keys",
        F.upper(F.col("body").cast("string")).alias("body"),
        F.create_map(F.lit("MENDED_FROM"), "origin_msg_id").alias("properties"),
    )


def main(store: str | None = None) -> None:
    spark = spark_mq.build_session("mend dead letters")
    with tempfile.TemporaryDirectory() as directory:
        store = store or spark_mq.unpack_example_store(directory)
        dead = letters(spark, store)
        dead.groupBy("origin_topic").count().show()
        for run in ("first run", "second run"):
            writer = mended(dead).write.format("spark_mq").mode("append").option("path", store)
            writer.option("writeId", f"mended-{GROUP}-1").save()
            copies = spark.read.format("spark_mq").option("path", store).option("topic", TOPIC).load()
            print(f"{run}: {copies.count()} copies of {dead.count()} dead letters")


if __name__ == "__main__":
    main(*sys.argv[1:])
