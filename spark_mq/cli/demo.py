"""The command demo: a store that an Apache RocketMQ broker wrote, read, streamed and copied by Spark, in a minute."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from spark_mq.cli.sinks import print_status, status_of
from spark_mq.example_store import example_store
from spark_mq.session import build_session
from spark_mq.source.offsets import QueueOffsets
from spark_mq.spark_versions import ADMISSION_CONTROL, INSTALL
from spark_mq.terminal import CommandError, body_text, busy, console, print_table
from storage import open_store
from storage.epoch_times import current_time_ms

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TOPIC = "TopicA"
_USER_TOPICS = (
    "[^%].*"  # without those that begin with %: a consumer group's retries and dead letters, which it fills itself
)
_BATCH_ROWS = 250
_HEADINGS = ("topic", "queue", "offset", "stored", "tags", "keys", "body")
_SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",  # a stream cannot use it and warns
}


def demo() -> None:
    """Read, stream and copy an example store with Spark.

    An Apache RocketMQ 5.3.3 broker wrote the store, which ships with spark_mq.
    """
    with example_store() as path:
        _say(f"A store that an Apache RocketMQ 5.3.3 broker wrote, unpacked to {path}")
        if find_spec("pyspark") is None:
            _look(path)
            _say(
                f"Spark is not installed here. With it, the demo also reads, streams and copies the store: {INSTALL}",
                ahead=1,
            )
            return
        from pyspark.errors import PySparkException  # slow to import, and only this command needs it

        with busy("starting Spark"):
            spark = build_session("spark_mq demo", master="local[2]", config=_SETTINGS)
        try:
            counts = _read(spark, path)
            _stream(spark, path, expected=counts[_TOPIC])
            _copy(spark, path)
        except PySparkException as error:
            raise CommandError(str(error).partition("\n")[0], "spark-mq doctor looks for the cause") from error
        finally:
            spark.stop()
    _say(
        "Your own: give the path of your broker's store, also while the broker runs; nothing in it is changed.", ahead=1
    )


def _look(path: str) -> None:
    """Prints how many messages each topic has, and the first ones of one topic, without Spark."""
    _say("Read in three lines, without Spark:", ahead=1)
    _say_code(
        "from storage import open_store",
        "with open_store(path) as store:",
        f'    messages = store.get("{_TOPIC}", queue_id=0, offset=0, max_count=5).messages',
    )
    with open_store(path) as store:
        queues = {topic: [store.bounds(topic, number) for number in store.queue_ids(topic)] for topic in store.topics()}
        counts = {topic: sum(most - least for least, most in filter(None, found)) for topic, found in queues.items()}
        few = store.get(_TOPIC, queue_id=0, offset=0, max_count=5).messages
    _print_counts(counts)
    _say("")
    print_table(
        _HEADINGS,
        [
            (
                one.topic,
                one.queue_id,
                one.queue_offset,
                f"{datetime.fromtimestamp(one.store_time_ms / 1000, UTC):%H:%M:%S.%f}"[:-3],
                one.tags,
                " ".join(one.keys),
                body_text(one.plain_body),
            )
            for one in few
        ],
    )


def _print_counts(counts: Mapping[str, int]) -> None:
    _say("")
    most_first = sorted(counts.items(), key=lambda count: (-count[1], count[0]))
    print_table(("topic", "messages"), [(_short(topic), count) for topic, count in most_first if count])


def _say(text: str, *, ahead: int = 0) -> None:
    console().print("\n" * ahead + text, markup=False)


def _say_code(*lines: str) -> None:
    for line in lines:
        console().print(f"    {line}", style="cyan", markup=False)


def _read(spark: SparkSession, path: str) -> dict[str, int]:
    """Prints and returns how many messages each topic has."""
    _say("A batch read, in two lines:", ahead=1)
    _say_code(
        "spark = spark_mq.build_session()",
        'messages = spark.read.format("spark_mq").option("subscribePattern", ".*").load(path)',
    )
    messages = spark.read.format("spark_mq").option("subscribePattern", ".*").load(path)
    with busy("reading"):
        counts = {row["topic"]: row["count"] for row in messages.groupBy("topic").count().collect()}
        one_topic = spark.read.format("spark_mq").option("topic", _TOPIC).load(path)
        few = one_topic.orderBy("commitlog_offset").limit(5).collect()
    _print_counts(counts)
    _say("")
    print_table(
        _HEADINGS,
        [
            (
                row.topic,
                row.queue_id,
                row.queue_offset,
                f"{row.store_timestamp:%H:%M:%S.%f}"[:-3],
                row.tags,
                row["keys"],
                body_text(bytes(row.body)),
            )
            for row in few
        ],
    )
    return counts


def _stream(spark: SparkSession, path: str, *, expected: int) -> None:
    is_limited = ADMISSION_CONTROL.is_here
    limit = f'.option("maxOffsetsPerTrigger", {_BATCH_ROWS})' if is_limited else ""
    _say(f"The same topic as a stream{f', {_BATCH_ROWS} messages at a time' if is_limited else ''}:", ahead=1)
    _say_code(
        f'spark.readStream.format("spark_mq").option("topic", "{_TOPIC}").option("startingOffsets", "earliest")',
        f"    {limit}.load(path).writeStream…trigger(availableNow=True).start()",
    )
    reader = spark.readStream.format("spark_mq").option("topic", _TOPIC).option("startingOffsets", "earliest")
    source = (reader.option("maxOffsetsPerTrigger", _BATCH_ROWS) if is_limited else reader).load(path)
    writer = (
        source.writeStream.format("memory")
        .queryName("demo")
        .option("checkpointLocation", str(Path(path).with_name("checkpoint")))
        .trigger(availableNow=True)
    )
    with busy("streaming"):
        query = writer.start()
        query.awaitTermination()
    _say("")
    print_table(
        ("batch", "messages", "next offset of each queue"),
        [
            (progress.batchId, progress.numInputRows, _next_offsets(progress.sources[0].endOffset))
            for progress in query.recentProgress
            if progress.numInputRows
        ],
    )
    streamed = spark.table("demo").count()
    if streamed != expected:
        raise CommandError(f"the stream gave {streamed} messages, the batch read {expected}")
    _say(f"{streamed} messages, as many as the batch read found; each once.", ahead=1)


def _copy(spark: SparkSession, path: str) -> None:
    """Streams the user topics into a new store, exactly once, and compares what both stores hold."""
    copy = str(Path(path).parent / "copy" / "store")
    _say("The other way: all user topics streamed into a new store, exactly once:", ahead=1)
    _say_code(
        f'rows = spark.readStream.format("spark_mq").option("subscribePattern", "{_USER_TOPICS}")…load(path)',
        'rows.coalesce(2).writeStream.format("spark_mq").option("checkpointLocation", …).outputMode("append").start(new)',
    )
    rows = (
        spark.readStream.format("spark_mq")
        .option("subscribePattern", _USER_TOPICS)
        .option("startingOffsets", "earliest")
        .load(path)
    )
    # Two tasks are enough for so few rows; a queue's rows stay in one task, and so in order.
    writer = (
        rows.coalesce(2)
        .writeStream.format("spark_mq")
        .option("queueNum", 4)
        .option("checkpointLocation", str(Path(copy).with_name("checkpoint")))
        .outputMode("append")
        .trigger(availableNow=True)
    )
    with busy("writing"):
        writer.start(copy).awaitTermination()
        written, source = _contents(spark, copy), _contents(spark, path)
    if written != source:
        raise CommandError(f"the copy holds {written}, the store {source}")
    _say("")
    print_table(
        ("topic", "messages", "sum of the bodies' CRCs"),
        [(_short(topic), count, crcs) for (topic, count, crcs) in written],
    )
    count = sum(count for _, count, _ in written)
    _say(f"{count} messages, the same in both stores. `spark-mq sink-status` says of the new one:", ahead=1)
    _say("")
    print_status(status_of(copy), now_ms=current_time_ms())


def _contents(spark: SparkSession, path: str) -> list[tuple[str, int, int]]:
    """For each user topic: its name, how many messages it has, the sum of the CRCs of their bodies."""
    messages = (
        spark.read.format("spark_mq")
        .option("subscribePattern", _USER_TOPICS)
        .option("columns", "topic,body")
        .load(path)
    )
    sums = messages.selectExpr("topic", "crc32(body) AS crc").groupBy("topic").agg({"*": "count", "crc": "sum"})
    found = sums.select("topic", "count(1)", "sum(crc)").collect()
    return sorted((str(topic), int(count), int(crcs)) for topic, count, crcs in found)


def _next_offsets(end_offset: str) -> str:
    offsets = QueueOffsets.from_json_dict(json.loads(end_offset)).next_offsets()
    return ", ".join(f"{queue.broker_name} {queue.queue_id}: {offset}" for queue, offset in offsets.items())


def _short(text: str, characters: int = 40) -> str:
    return text if len(text) <= characters else text[:characters] + "…"
