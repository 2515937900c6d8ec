"""Spark's part of a replay: which dead letters are meant, and the Delta table that says what became of each, a row for each attempt.

    planned     the attempt is decided; whether it was made, the log says (`replay.find_copies`)
    replayed    its copy is in the log, synced; `new_msg_id` says where
    refused     no copy was made; `reason` says why
    not_made    the run that planned it ended before, and there is no copy
    unknown     the run that planned it ended, and what of the log could tell has expired

A dead letter that was replayed, or whose fate is unknown, is not replayed again except on request.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from spark_mq.conditions import OptionError, SparkMqError
from spark_mq.replay import PLANNED, SETTLED, DeadLetter, OpenPlan, Outcome
from spark_mq.source.rows import EARLIER_PLACE_COLUMN_NAMES
from spark_mq.spark_versions import SparkNotFoundError, not_installed
from storage.names import dead_letter_topic

try:
    from pyspark.errors import AnalysisException, ParseException, PySparkException
    from pyspark.logger import PySparkLogger
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql import functions as f
except ImportError as error:
    raise SparkNotFoundError(not_installed(error), name=error.name) from error

_LETTER = ("queue_id", "queue_offset", "msg_id", "unique_key", "origin_topic")
_SCHEMA = """
    run STRING NOT NULL, time TIMESTAMP NOT NULL, consumer_group STRING NOT NULL,
    dead_letter_queue INT NOT NULL, dead_letter_offset BIGINT NOT NULL, dead_letter_msg_id STRING NOT NULL,
    unique_key STRING, origin_topic STRING NOT NULL,
    result STRING NOT NULL, reason STRING, new_msg_id STRING, log_end BIGINT NOT NULL
"""


def select_letters(
    spark: SparkSession,
    source: Mapping[str, str],
    group: str,
    *,
    since_ms: int | None = None,
    until_ms: int | None = None,
    where: str | None = None,
) -> DataFrame:
    """The group's dead letters that became such in [since_ms, until_ms) and meet a predicate over the source's columns, as rows of
    `DeadLetter`. `source` names the store or the cluster, as options of Spark's source. Raises OptionError for a predicate that is
    none.
    """
    reader = spark.read.format("spark_mq").options(**source).option("topic", dead_letter_topic(group))
    columns = [*_LETTER, "store_timestamp"] if where is None else ["*", *EARLIER_PLACE_COLUMN_NAMES]
    letters = reader.option("columns", ",".join(columns)).load()
    if since_ms is not None:
        letters = letters.where(f.col("store_timestamp") >= f.timestamp_millis(f.lit(since_ms)))
    if until_ms is not None:
        letters = letters.where(f.col("store_timestamp") < f.timestamp_millis(f.lit(until_ms)))
    # PySpark logs an error of SQL as JSON with a Python traceback before the caller can catch it; OptionError says it in a line.
    PySparkLogger.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    try:
        letters = letters if where is None else letters.where(where)
    except (AnalysisException, ParseException) as error:
        raise OptionError("--where", _cause(error)) from error
    return letters.select(*_LETTER)


@contextmanager
def failures_in_one_line(what: str) -> Iterator[None]:
    """Turn Spark's errors within the block into a SparkMqError of one line."""
    try:
        yield
    except PySparkException as error:
        raise SparkMqError(f"{what}: {_cause(error)}") from error


def _cause(error: PySparkException) -> str:
    """The line that says it: our source's own condition where there is one, else Spark's first."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    own = (line[line.index("[SPARK_MQ_") :] for line in lines if "[SPARK_MQ_" in line)
    return next(own, lines[0] if lines else type(error).__name__)


def table_location(path: str) -> str:
    """The path for Delta: without a scheme, absolute. Delta takes a relative path for a table's name."""
    return path if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", path) else os.path.abspath(path)


class ReplayAudit:
    """The audit of one consumer group in the table at `path`, which is made when the first row is written.

    A relative path is one of the working directory.
    """

    def __init__(self, spark: SparkSession, path: str, group: str) -> None:
        self._spark = spark
        self._path = table_location(path)
        self._group = group
        self._what = f"audit {self._path}"

    def open_plans(self) -> list[OpenPlan]:
        """The planned letters of earlier runs. The caller holds the lock under which runs plan."""
        rows = self._rows()
        if rows is None:
            return []
        with failures_in_one_line(self._what):
            found = rows.where(f.col("result") == PLANNED).orderBy("run", "dead_letter_queue", "dead_letter_offset")
            planned = found.collect()
        plans: dict[str, OpenPlan] = {}
        for row in planned:
            letter = DeadLetter(
                row.dead_letter_queue,
                row.dead_letter_offset,
                row.dead_letter_msg_id,
                row.unique_key,
                row.origin_topic,
            )
            plans.setdefault(row.run, OpenPlan(row.run, row.log_end, [])).letters.append(letter)
        return list(plans.values())

    def without_settled(self, letters: DataFrame) -> DataFrame:
        """Those rows (with a column `msg_id`) that are not replayed yet."""
        rows = self._rows()
        if rows is None:
            return letters
        settled = rows.where(f.col("result").isin(*SETTLED)).select(f.col("dead_letter_msg_id").alias("msg_id"))
        return letters.join(settled.distinct(), "msg_id", "left_anti").select(*letters.columns)

    def plan(self, run: str, letters: Sequence[DeadLetter], log_end: int) -> None:
        """Note what a run is going to do, before it does it: one commit of the table."""
        rows = [(run, self._group, *letter, PLANNED, log_end) for letter in letters]
        names = (
            "run STRING, consumer_group STRING, dead_letter_queue INT, dead_letter_offset BIGINT, "
            "dead_letter_msg_id STRING, unique_key STRING, origin_topic STRING, result STRING, log_end BIGINT"
        )
        planned = self._spark.createDataFrame(rows, names).withColumn("time", f.current_timestamp())
        with failures_in_one_line(self._what):
            self._make_table()
            planned.write.format("delta").mode("append").save(self._path)

    def note(self, run: str, outcomes: Iterable[Outcome]) -> None:
        """Say what became of planned attempts of a run: one commit of the table."""
        from delta.tables import DeltaTable

        rows = [(outcome.letter.msg_id, outcome.result, outcome.reason, outcome.new_msg_id) for outcome in outcomes]
        if not rows:
            return
        noted = self._spark.createDataFrame(rows, "msg_id STRING, result STRING, reason STRING, new_msg_id STRING")
        is_meant = (
            (f.col("audit.run") == run)
            & (f.col("audit.consumer_group") == self._group)
            & (f.col("audit.dead_letter_msg_id") == f.col("noted.msg_id"))
        )
        news = {name: f.col(f"noted.{name}") for name in ("result", "reason", "new_msg_id")}
        with failures_in_one_line(self._what):
            table = DeltaTable.forPath(self._spark, self._path).alias("audit").merge(noted.alias("noted"), is_meant)
            table.whenMatchedUpdate(set={"time": f.current_timestamp(), **news}).execute()

    def _rows(self) -> DataFrame | None:
        """The group's rows; None where there is no table yet."""
        from delta.tables import DeltaTable

        with failures_in_one_line(self._what):
            if not DeltaTable.isDeltaTable(self._spark, self._path):
                return None
            return self._spark.read.format("delta").load(self._path).where(f.col("consumer_group") == self._group)

    def _make_table(self) -> None:
        from delta.tables import DeltaTable

        columns = self._spark.createDataFrame([], _SCHEMA).schema
        DeltaTable.createIfNotExists(self._spark).location(self._path).addColumns(columns).execute()
