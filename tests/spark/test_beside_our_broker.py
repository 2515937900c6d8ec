"""Spark reads and writes a store by its path while a broker of ours has it open and producers send."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from spark_mq.client.message import Message
from spark_mq.client.producer import Producer
from spark_mq.client.settings import ClientSettings
from tests.broker_server.test_running_broker import running
from tests.support.java_broker import free_ports
from tests.support.own_servers import our_name_server
from tests.support.store_builder import StoreBuilder

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_a_stream_and_a_batch_are_written_once_while_a_producer_sends(spark: SparkSession, tmp_path: Path) -> None:
    source = StoreBuilder(tmp_path / "broker-a")
    sent = source.send_many("Topic", 300)
    target = tmp_path / "target"
    ended, theirs = threading.Event(), []
    with (
        our_name_server(tmp_path) as names,
        running(target, free_ports(), names.address),
        Producer(ClientSettings((names.address,)), "G") as producer,
    ):

        def send() -> None:
            while not ended.is_set():
                theirs.append(producer.send(Message("Topic", b"theirs")).message_id)

        sending = threading.Thread(target=send)
        sending.start()
        try:
            rows = spark.readStream.format("spark_mq").option("topic", "Topic").option("startingOffsets", "earliest")
            stream = rows.option("maxOffsetsPerTrigger", "100").load(str(source.root)).writeStream.format("spark_mq")
            for _ in range(2):
                stream = stream.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
                query = stream.start(str(target))
                assert query.awaitTermination(120)
                query.stop()
            frame = spark.createDataFrame([("batch", "Topic")], "body string, topic string")
            for _ in range(2):
                frame.write.format("spark_mq").mode("append").option("writeId", "one").save(str(target))
        finally:
            ended.set()
            sending.join()
        read = spark.read.format("spark_mq").option("topic", "Topic").load(str(target))
        found = Counter(bytes(row.body).decode() for row in read.select("body").collect())
    assert found.pop("theirs") == len(theirs)
    assert found.pop("batch") == 1
    assert found == Counter(sent)


def test_the_options_topic_wins_in_a_running_cluster_too(spark: SparkSession, tmp_path: Path) -> None:
    with our_name_server(tmp_path) as names, running(tmp_path / "store", free_ports(), names.address):
        with Producer(ClientSettings((names.address,)), "G") as producer:
            for number in range(8):
                producer.send(Message("MA", b"%d" % number))
        live = {"nameServer": names.address}
        reading = {**live, "topic": "MA", "columns": "kafka", "startingOffsets": "earliest"}
        stream = spark.readStream.format("spark_mq").options(**reading).load().writeStream.format("spark_mq")
        for topic, is_refused in (("MD", False), ("MA", True)):
            writing = stream.options(**live, topic=topic).option("checkpointLocation", str(tmp_path / topic))
            query = writing.trigger(availableNow=True).start()
            if is_refused:
                with pytest.raises(StreamingQueryException, match="SPARK_MQ_WRITES_OWN_SOURCE"):
                    query.awaitTermination(120)
            else:
                assert query.awaitTermination(120)
        batch = spark.read.format("spark_mq").options(**live, topic="MA", columns="kafka").load()
        batch.write.format("spark_mq").mode("append").options(**live, topic="MB").save()
        counts = {
            topic: spark.read.format("spark_mq").options(**live, topic=topic).load().count()
            for topic in ("MA", "MB", "MD")
        }
    assert counts == {"MA": 8, "MB": 8, "MD": 8}
