"""What a user of Spark sees when something is wrong: the cause on the first line, and no traceback of ours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.support.python_script import run_script

from .conftest import ReadStore
from .streams import Stream

pytestmark = pytest.mark.slow

# Spark's own first line for an error of a task; what a worker said begins on the second.
TASK_FAILED = "An exception was thrown from the Python worker:"


def cause_of(error: PySparkException) -> str:
    """The first line that is not Spark's alone. The whole text has no traceback."""
    text = str(error)
    assert "Traceback" not in text
    assert "\n  File " not in text
    first, *others = text.splitlines()
    return others[0] if first == TASK_FAILED else first


def test_a_wrong_option_is_named_on_the_first_line(read_store: ReadStore, tmp_path: Path) -> None:
    with pytest.raises(PySparkException) as caught:
        read_store(tmp_path, topics="T")
    assert cause_of(caught.value).endswith("[SPARK_MQ_UNKNOWN_OPTION] there is no option topics; did you mean topic?")


def test_a_missing_store_is_named_on_the_first_line(read_store: ReadStore, tmp_path: Path) -> None:
    with pytest.raises(PySparkException) as caught:
        read_store(tmp_path / "none", topic="T").collect()
    assert f"[SPARK_MQ_STORE_NOT_FOUND] no RocketMQ store at {tmp_path}/none: " in cause_of(caught.value)


def test_a_stream_without_a_store_is_named_on_the_first_line(
    stream_store: Callable[..., Stream], tmp_path: Path
) -> None:
    with pytest.raises(PySparkException) as caught:
        stream_store(tmp_path / "none", topic="T").run()
    assert "[SPARK_MQ_STORE_NOT_FOUND]" in cause_of(caught.value)


def test_a_batch_option_of_a_stream_is_named_on_the_first_line(
    stream_store: Callable[..., Stream], tmp_path: Path
) -> None:
    with pytest.raises(PySparkException) as caught:
        stream_store(tmp_path / "none", topic="T", endingOffsets="latest").run()
    assert "[SPARK_MQ_INVALID_OPTION] option endingOffsets: is for batch queries only" in cause_of(caught.value)


def test_an_error_without_a_name_keeps_its_traceback(spark: SparkSession) -> None:
    broken = spark.udf.register("broken", lambda value: 1 // value, "int")
    with pytest.raises(PySparkException, match="in <lambda>"):
        spark.range(1).select(broken("id")).collect()


INVALID_ROWS = """
import spark_mq
spark = spark_mq.build_session(master="local[1]")
rows = spark.createDataFrame([("T", None)] * 300, "tags string, body string")
try:
    rows.write.format("spark_mq").mode("append").option("topic", "T").save("store")
except Exception as error:
    print(error)
"""


def test_invalid_rows_are_one_line_of_the_log(tmp_path: Path) -> None:
    ran = run_script(INVALID_ROWS, tmp_path)
    said = ran.stdout.splitlines()
    assert said[:2] == [
        TASK_FAILED,
        "spark_mq.conditions.InvalidRowError: [SPARK_MQ_INVALID_ROW] partition 0: row 0, column body: it is null; and 299 more; "
        "correct or filter such rows, or put them aside with onInvalidRow=deadLetter and a deadLetterPath",
    ]
    assert "onInvalidRow=deadLetter" in ran.stdout
    # The JVM itself says the first line, before any setting of ours can reach it.
    (line,) = [line for line in ran.stderr.splitlines() if "incubator modules" not in line]
    assert "[SPARK_MQ_INVALID_ROW] partition 0: row 0, column body: it is null; and 299 more" in line
