"""A streaming query that can be stopped and started again on one checkpoint, and what its batches held."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StreamingQuery

from spark_mq.spark_versions import ADMISSION_CONTROL

needs_limits = pytest.mark.skipif(not ADMISSION_CONTROL.is_here, reason="needs Spark 4.2: limits of a micro-batch")
"""For tests of queries with limits; `test_releases.py` shows that an older Spark refuses them."""


class Stream:
    """`batches[batch id]` are the rows (topic, queue_id, queue_offset, body) of the last run of that batch; `runs` lists
    the ids in the order in which they ran.
    """

    def __init__(self, spark: SparkSession, path: Path | str, checkpoint: Path, options: dict[str, str]) -> None:
        self.batches: dict[int, list[Row]] = {}
        self.runs: list[int] = []
        self.checkpoint = checkpoint
        self.options = options
        self._spark = spark
        self._path = str(path)
        self._query: StreamingQuery | None = None

    def start(self, *, available_now: bool = False) -> StreamingQuery:
        """Start the query, or start it again: with Spark's default trigger unless `available_now`."""
        loaded = self._spark.readStream.format("spark_mq").options(**self.options).load(self._path)
        writer = loaded.select("topic", "queue_id", "queue_offset", "body").writeStream.foreachBatch(self._collect)
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        if available_now:
            writer = writer.trigger(availableNow=True)
        self._query = writer.start()
        return self._query

    def run(self) -> StreamingQuery:
        """Read what is there and end. Raises what the query raised."""
        query = self.start(available_now=True)
        assert query.awaitTermination(60)
        return query

    def stop(self) -> None:
        if self._query is not None:
            self._query.stop()

    def bodies(self, batch_id: int | None = None) -> list[str]:
        """Bodies of one batch, or of all, by queue and offset."""
        ids = sorted(self.batches) if batch_id is None else [batch_id]
        rows = [row for number in ids for row in self.batches[number]]
        return [bytes(row.body).decode() for row in sorted(rows, key=lambda row: row[:3])]

    def logged_offsets(self) -> dict[int, Any]:
        """Batch id → the end that the checkpoint holds."""
        logged = {}
        for file in (self.checkpoint / "offsets").iterdir():
            if file.name.isdigit():
                logged[int(file.name)] = json.loads(file.read_text("utf-8").splitlines()[-1])
        return logged

    def forget_commit(self, batch_id: int) -> None:
        """As if the driver had died between the batch's output and its commit."""
        for name in (f"{batch_id}", f".{batch_id}.crc"):
            (self.checkpoint / "commits" / name).unlink(missing_ok=True)

    def _collect(self, frame: DataFrame, batch_id: int) -> None:
        self.batches[batch_id] = frame.collect()
        self.runs.append(batch_id)
