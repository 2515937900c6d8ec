"""Rows that a consumer group failed on, sent back: to the group's retry topic, later each time, and at last to its dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter


def send_back(
    df: DataFrame, *, path: str | None = None, consumer_group: str, **options: str | int | bool
) -> DataStreamWriter | None:
    """Send the rows of a frame back on behalf of `consumer_group`: rows of this format's source that could not be dealt with.

        failed = spark.read.format("spark_mq").option("topic", "orders").load("/data/store").where("keys IS NULL")
        spark_mq.send_back(failed, path="/data/store", consumer_group="billing", maxReconsumeTimes=5)

    In place of `path`, nameServer="host:9876" asks the running brokers that the rows were read from, at least once.
    Of a batch frame the rows are written, as one batch, when this returns. Of a streaming one the configured writer is returned, to
    which a checkpoint belongs: `.option("checkpointLocation", …).start()`; each micro-batch is then sent back once. `options`
    are the sink's, under their names. Column `delay_level`, where there is one, is the consumer's wish: 0 or null = level
    3 + reconsume_times, negative = a dead letter at once.
    Java: DefaultMQPushConsumer.sendMessageBack.
    """
    given = {name: _text(value) for name, value in options.items()}
    given |= {"sendBack": "true", "consumerGroup": consumer_group}
    if path is None:
        given.setdefault("guarantee", "atLeastOnce")  # the only one that there is for it
    else:
        given["path"] = path
    if df.isStreaming:
        return df.writeStream.format("spark_mq").outputMode("append").options(**given)
    df.write.format("spark_mq").mode("append").options(**given).save()
    return None


def _text(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
