"""The one Spark session in which peers are measured side by side."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, get_args

from pyspark.sql import SparkSession

from bench import input_rows, kafka_peer
from bench.kafka_peer import Jars
from spark_mq.session import build_session

Sockets = Literal["tcp", "unix"]
"""Between the JVM and the Python workers."""
SOCKETS: tuple[Sockets, ...] = get_args(Sockets)


@contextmanager
def bench_session(
    batch_rows: int, jars: Jars | None, sockets: Sockets, *, delta: bool = False
) -> Iterator[SparkSession]:
    """Two tasks at a time; with Kafka's source and sink where there are jars, and with Delta Lake. Stopped at the end."""
    config = {"spark.driver.memory": "2g", "spark.sql.execution.arrow.maxRecordsPerBatch": str(batch_rows)}
    if sockets == "unix":
        config["spark.python.unix.domain.socket.enabled"] = "true"
    if jars is not None:
        config |= kafka_peer.SPARK_CONFIG | {"spark.jars": ",".join(map(str, jars.spark))}
    if delta:  # the archive's codec
        config["spark.sql.parquet.compression.codec"] = "zstd"
    spark = build_session("spark_mq bench", master="local[2]", delta=delta, config=config | input_rows.SPARK_CONFIG)
    try:
        yield spark
    finally:
        spark.stop()
