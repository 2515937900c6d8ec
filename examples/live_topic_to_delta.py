"""A live topic into a Delta table, each message once.

    python examples/live_topic_to_delta.py [NAME_SERVER]    without an address it starts a broker of its own

With an address it makes the topic example-orders in that cluster and leaves 150 messages in it, at each run.
Delta's jars come from Maven Central when they are first used.
"""

from __future__ import annotations

import json
import sys
import tempfile

from local_cluster import cluster
from pyspark.sql import functions as F

import spark_mq
from spark_mq.client import ClientSettings, Message, Producer

TOPIC = "example-orders"


def send(name_server: str, numbers: range) -> None:
    with Producer(ClientSettings(name_server), "example-shop") as producer:
        for number in numbers:
            body = json.dumps({"order": number, "amount": number / 2}).encode()
            producer.send(Message(TOPIC, body, keys=[f"order-{number}"]))


def main(address: str | None = None) -> None:
    spark = spark_mq.build_session("live topic to Delta", delta=True)
    with cluster(address) as name_server, tempfile.TemporaryDirectory() as directory:
        table, checkpoint = f"{directory}/orders", f"{directory}/checkpoint"
        for numbers in (range(100), range(100, 150)):  # the second run goes on where the first has ended
            send(name_server, numbers)
            messages = (
                spark.readStream.format("spark_mq")
                .option("nameServer", name_server)
                .option("subscribe", TOPIC)
                .option("startingOffsets", "earliest")
                .load()
            )
            order = F.from_json(F.col("body").cast("string"), "order INT, amount DOUBLE").alias("json")
            orders = messages.select("store_timestamp", order).select("store_timestamp", "json.*")
            writer = orders.writeStream.format("delta").option("checkpointLocation", checkpoint)
            writer.trigger(availableNow=True).start(
                table
            ).awaitTermination()  # processingTime="5 seconds" in a permanent job
            count, distinct, amount = (
                spark.read.format("delta")
                .load(table)
                .agg(F.count("*"), F.count_distinct("order"), F.sum("amount"))
                .first()
            )
            print(f"{count} rows of {distinct} orders, {amount} in all")


if __name__ == "__main__":
    main(*sys.argv[1:])
