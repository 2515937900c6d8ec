"""A Spark application whose executors do not see what the driver sees: `python -m tests.support.other_views DIRECTORY`.

Executors of local-cluster are processes of their own. Their Python workers are started in a mount namespace in which some directories
below DIRECTORY are hidden by an empty file system or by another directory. Prints one JSON object: what became of each case.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark

from spark_mq.session import prepare_environment, session_settings
from storage import open_store
from tests.support.spark_cluster import SHORT_LIFE
from tests.support.store_builder import StoreBuilder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MASTER = "local-cluster[2,1,1024]"
MESSAGES = 20
HIDDEN, OTHER, SAME = "hidden", "other", "same"
"""Below the directory: what executors see empty, as another store's, and as the driver does."""
UNSHARED = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
_OVERLOADED = "Python worker failed to connect back"
"""Spark gives a new worker ten seconds, which is short on a loaded machine."""
_PATIENCE = 5
_ON_EXECUTORS = "SPARK_MQ_TEST_OTHER_VIEW"


def mounts(directory: Path) -> str:
    """The shell's commands that make the executors' view."""
    return f"mount -t tmpfs none '{directory / HIDDEN}' && mount --bind '{directory / 'strange'}' '{directory / OTHER}'"


def run(directory: Path) -> dict[str, str]:
    """Case → the number of rows, or the error's text."""
    for view in (HIDDEN, OTHER, SAME, "strange"):
        store = StoreBuilder(directory / view / "broker-a")
        store.send_many("Topic", MESSAGES, prefix=view)
        StoreBuilder(directory / view / "sink").send_many("Topic", 1, prefix=view)
    os.chdir(directory)  # the driver's; executors have directories of their own
    spark = _session(directory)
    try:
        return {name: _outcome(case) for name, case in _cases(spark, directory).items()}
    finally:
        spark.stop()


def _session(directory: Path) -> SparkSession:
    prepare_environment(os.environ, local=True)
    python = directory / "python"
    python.write_text(
        f"""#!/bin/sh
if [ -z "${_ON_EXECUTORS}" ]; then exec {sys.executable} "$@"; fi
exec {" ".join(UNSHARED)} '{mounts(directory).replace("'", '"')} && exec {sys.executable} "$@"' python "$@"
""",
        encoding="utf-8",
    )
    python.chmod(0o755)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = str(python)
    os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
    os.environ["SPARK_SCALA_VERSION"] = "2.13"  # what Spark's scripts would set; without it workers start no executor
    from pyspark.sql import SparkSession

    config = {
        f"spark.executorEnv.{_ON_EXECUTORS}": "yes",
        "spark.driver.memory": "512m",
        "spark.local.dir": str(directory / "tmp"),
        "spark.task.maxFailures": "1",
        "spark.sql.shuffle.partitions": "1",
        "spark.executor.extraJavaOptions": SHORT_LIFE,
    }
    builder = SparkSession.builder.master(MASTER).appName("other views")
    for name, value in session_settings(config, {}, delta=False).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _cases(spark: SparkSession, directory: Path) -> dict[str, Callable[[], int]]:
    cases: dict[str, Callable[[], int]] = {}

    def read(path: str, fail: str) -> int:
        return spark.read.format("spark_mq").options(topic="Topic", failOnDataLoss=fail).load(path).count()

    def stream(path: str, fail: str, checkpoint: str) -> int:
        options = {"topic": "Topic", "failOnDataLoss": fail, "startingOffsets": "earliest"}
        rows = spark.readStream.format("spark_mq").options(**options).load(path)
        return _run(rows.writeStream.format("noop"), directory / "checkpoints" / checkpoint)

    def rows() -> DataFrame:
        return spark.range(4).selectExpr("CAST(id AS STRING) AS body")

    def write(path: Path) -> int:
        rows().write.format("spark_mq").mode("append").options(topic="Written").save(str(path))
        return _written(path)

    def stream_into(path: Path, checkpoint: str) -> int:
        source = directory / "rows"
        if not source.exists():
            rows().write.parquet(str(source))
        read_rows = spark.readStream.schema("body string").parquet(str(source))
        writer = read_rows.writeStream.format("spark_mq").options(topic="Written", path=str(path))
        _run(writer, directory / "checkpoints" / checkpoint)
        return _written(path)

    for fail in ("true", "false"):
        for view in (HIDDEN, OTHER, SAME):
            path = str(directory / view / "broker-a")
            cases[f"batch {view} {fail}"] = lambda path=path, fail=fail: read(path, fail)  # type: ignore[misc]
            name = f"stream {view} {fail}"
            cases[name] = lambda path=path, fail=fail, name=name: stream(path, fail, name)  # type: ignore[misc]
    cases["batch relative true"] = lambda: read(f"{SAME}/broker-a", "true")
    for view in (HIDDEN, OTHER, SAME):
        for place in ("sink", "new"):
            path = directory / view / place
            cases[f"write {place} {view}"] = lambda path=path: write(path)  # type: ignore[misc]
            name = f"stream into {place} {view}"
            cases[name] = lambda path=path, name=name: stream_into(path, name)  # type: ignore[misc]
    return cases


def _run(writer: Any, checkpoint: Path) -> int:
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()
    return sum(progress["numInputRows"] for progress in query.recentProgress)


def _written(root: Path) -> int:
    with open_store(root) as store:
        return sum(store.max_offset("Written", queue_id) for queue_id in store.queue_ids("Written"))


def _outcome(case: Callable[[], int]) -> str:
    for _ in range(_PATIENCE):
        try:
            return f"{case()} rows"
        except Exception as error:
            text = str(error)
            if _OVERLOADED not in text:
                break
    return text


if __name__ == "__main__":
    print(json.dumps(run(Path(sys.argv[1]))))
