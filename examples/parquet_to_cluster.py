"""Parquet files into a running cluster, exactly once: a repeated batch, and files that come later, make no row twice.

    python examples/parquet_to_cluster.py [NAME_SERVER]    without an address it starts a broker of its own

With an address it makes the topic example-measures in that cluster and leaves 1,500 messages in it. The checkpoint ends with the
program, so a second run is another query and writes its rows beside them.
"""

from __future__ import annotations

import sys
import tempfile

from local_cluster import cluster
from pyspark.sql import SparkSession

import spark_mq

TOPIC = "example-measures"
SCHEMA = "sensor STRING, value DOUBLE"


def copy(spark: SparkSession, source: str, checkpoint: str, name_server: str) -> None:
    """One run of the query; beside the checkpoint it keeps the rows that are not sent yet."""
    rows = spark.readStream.schema(SCHEMA).parquet(source).selectExpr("sensor AS keys", "to_json(struct(*)) AS body")
    writer = (
        rows.writeStream.format("spark_mq")
        .option("nameServer", name_server)
        .option("topic", TOPIC)
        .option("guarantee", "exactlyOnce")
        .option("checkpointLocation", checkpoint)
    )
    writer.trigger(availableNow=True).start().awaitTermination()


def main(address: str | None = None) -> None:
    spark = spark_mq.build_session("Parquet to cluster")
    with cluster(address) as name_server, tempfile.TemporaryDirectory() as directory:
        source, checkpoint = f"{directory}/measures", f"{directory}/checkpoint"
        for first, last in ((0, 1000), (1000, 1500)):
            measures = spark.range(first, last).selectExpr("concat('sensor-', id % 7) AS sensor", "id / 10 AS value")
            measures.write.mode("append").parquet(source)
            copy(spark, source, checkpoint, name_server)
            copy(spark, source, checkpoint, name_server)  # nothing new: nothing is written
            messages = spark.read.format("spark_mq").option("nameServer", name_server).option("topic", TOPIC).load()
            bodies = messages.selectExpr("CAST(body AS STRING) AS body")
            print(f"{bodies.count()} messages, {bodies.distinct().count()} of them different")


if __name__ == "__main__":
    main(*sys.argv[1:])
