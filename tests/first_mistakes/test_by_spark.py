"""Wrong usages as a session shows them: in the first line that is not Spark's alone, behind Spark's prefix."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.first_mistakes.usages import Places
from tests.support.shares import one_in

pytestmark = [pytest.mark.spark, pytest.mark.slow]


class Wrong(NamedTuple):
    """As in `usages.py`, with a session."""

    what: str
    do: Callable[[SparkSession, Places], object]
    cause: str
    cure: str


def _rows(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([("one",)], "body string")


def _run(
    read: DataFrame, places: Places, *, checkpoint: str, mode: str = "append", topic: str | None = "copies"
) -> None:
    write = (
        read.writeStream.format("spark_mq").outputMode(mode).option("checkpointLocation", f"{places.root}/{checkpoint}")
    )
    if topic is not None:
        write = write.option("topic", topic)
    write.trigger(availableNow=True).start(f"{places.root}/written").awaitTermination()


def _stream(spark: SparkSession, places: Places, **options: str) -> DataFrame:
    given = {"startingOffsets": "earliest", **options}
    return spark.readStream.format("spark_mq").options(**given).load(places.store)


def _of_another_query(spark: SparkSession, places: Places) -> None:
    _run(_stream(spark, places, topic="orders"), places, checkpoint="other")
    _run(_stream(spark, places, topic="payments"), places, checkpoint="other")


def _table(spark: SparkSession, places: Places) -> None:
    spark.sql("DROP TABLE IF EXISTS lost")
    spark.sql(f"CREATE TABLE lost (body BINARY) USING spark_mq OPTIONS (path '{places.store}', topic 'orders')")
    try:
        spark.sql("SELECT * FROM lost").collect()
    finally:
        spark.sql("DROP TABLE IF EXISTS lost")


USAGES = (
    Wrong(
        "load() alone",
        lambda spark, places: spark.read.format("spark_mq").load(),
        "no option is given",
        "give path (a store) or nameServer (a running cluster), and topic",
    ),
    Wrong(
        "the servers of Kafka",
        lambda spark, places: spark.readStream.format("spark_mq").option("kafka.bootstrap.servers", "a:9092").load(),
        "there is no option kafka.bootstrap.servers",
        "did you mean nameServer?",
    ),
    Wrong(
        "the schema of the bodies",
        lambda spark, places: (
            spark.read.format("spark_mq").schema("amount DOUBLE").option("topic", "orders").load(places.store).collect()
        ),
        "there is no column 'amount'",
        '.load().select(from_json(col("body").cast("string"), "amount double"))',
    ),
    Wrong("a table that loses its options", _table, "no option is given", "CREATE TEMPORARY VIEW"),
    Wrong(
        "a stream's pattern that matches nothing",
        lambda spark, places: _run(_stream(spark, places, subscribePattern="order"), places, checkpoint="pattern"),
        "matches no topic",
        "allowEmpty=true",
    ),
    Wrong(
        "the checkpoint of another query", _of_another_query, "the checkpoint is another query's", "checkpointLocation"
    ),
    Wrong(
        "no topic",
        lambda spark, places: _rows(spark).write.format("spark_mq").mode("append").save(f"{places.root}/written"),
        "column topic: it is missing",
        "option topic",
    ),
    Wrong(
        "no topic of a stream",
        lambda spark, places: _run(
            _stream(spark, places, topic="orders").select("body"), places, checkpoint="nowhere", topic=None
        ),
        "column topic: it is missing",
        "option topic",
    ),
    Wrong(
        "mode overwrite",
        lambda spark, places: (
            _rows(spark).write.format("spark_mq").mode("overwrite").option("topic", "t").save(f"{places.root}/written")
        ),
        "overwrite would replace",
        "write in mode append",
    ),
    Wrong(
        "output mode complete",
        lambda spark, places: _run(
            _stream(spark, places, topic="orders").groupBy("topic").count().selectExpr("topic AS body"),
            places,
            checkpoint="complete",
            mode="complete",
        ),
        "complete would replace",
        "write in mode append",
    ),
    Wrong(
        "a null body",
        lambda spark, places: (
            spark.createDataFrame([(None,)], "body string")
            .write.format("spark_mq")
            .mode("append")
            .option("topic", "t")
            .save(f"{places.root}/written")
        ),
        "column body: it is null",
        "correct or filter such rows",
    ),
)

SPARKS_OWN = (
    Wrong(
        "a format with a dash",
        lambda spark, places: spark.read.format("spark-mq").load(),
        "DATA_SOURCE_NOT_FOUND",
        "spark-mq",
    ),
    Wrong(
        "no save mode",
        lambda spark, places: _rows(spark).write.format("spark_mq").option("topic", "t").save(f"{places.root}/written"),
        "UNSUPPORTED_DATA_SOURCE_SAVE_MODE",
        "",
    ),
    Wrong(
        "output mode update",
        lambda spark, places: _run(_stream(spark, places, topic="orders"), places, checkpoint="update", mode="update"),
        "does not support Update mode",
        "",
    ),
    Wrong(
        "a continuous trigger",
        lambda spark, places: (
            _stream(spark, places, topic="orders")
            .writeStream.format("noop")
            .option("checkpointLocation", f"{places.root}/continuous")
            .trigger(continuous="1 second")
            .start()
            .awaitTermination()
        ),
        "ontinuous",
        "",
    ),
    Wrong(
        "no checkpoint",
        lambda spark, places: (
            _stream(spark, places, topic="orders")
            .writeStream.format("spark_mq")
            .option("topic", "t")
            .start(f"{places.root}/written")
        ),
        "checkpointLocation must be specified",
        "option(",
    ),
    Wrong(
        "insert of other columns than the view's",
        lambda spark, places: _insert(spark, places),
        "INSERT_COLUMN_ARITY_MISMATCH",
        "",
    ),
)
"""What Spark says before it asks the source or the sink."""


def _insert(spark: SparkSession, places: Places) -> None:
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW seen USING spark_mq OPTIONS (path '{places.store}', topic 'orders')")
    spark.sql("INSERT INTO seen VALUES ('x')")


TASK_FAILED = "An exception was thrown from the Python worker:"


@pytest.mark.parametrize("wrong", one_in(3, USAGES, others=pytest.mark.long), ids=lambda wrong: wrong.what)
def test_a_session_shows_the_cause_and_the_cure(wrong: Wrong, spark: SparkSession, places: Places) -> None:
    first, *others = _answer(wrong, spark, places).splitlines()
    line = others[0] if first == TASK_FAILED else first
    assert wrong.cause in line
    assert wrong.cure in line


@pytest.mark.parametrize("wrong", SPARKS_OWN, ids=lambda wrong: wrong.what)
def test_spark_answers_by_itself(wrong: Wrong, spark: SparkSession, places: Places) -> None:
    answer = _answer(wrong, spark, places)
    assert wrong.cause in answer
    assert wrong.cure in answer
    assert "SPARK_MQ_" not in answer


def _answer(wrong: Wrong, spark: SparkSession, places: Places) -> str:
    try:
        wrong.do(spark, places)
    except Exception as error:
        return str(error)
    raise AssertionError("it was taken")
