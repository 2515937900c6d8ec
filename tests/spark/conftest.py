"""Reading and streaming a store through the shared Spark session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_mq.spark_versions import FILTERS

from .streams import Stream

collect_ignore = [] if FILTERS.is_here else ["test_pushdown.py"]  # it is about what such a Spark has not


class ReadStore(Protocol):
    def __call__(self, path: Path | str, **options: str) -> DataFrame: ...


@pytest.fixture
def read_store(spark: SparkSession) -> ReadStore:
    """`read_store(path, topic=…)`: a batch read."""
    return lambda path, **options: spark.read.format("spark_mq").options(**options).load(str(path))


@pytest.fixture
def stream_store(spark: SparkSession, tmp_path: Path) -> Iterator[Callable[..., Stream]]:
    """`stream_store(path, topic=…)`: a `Stream` with a checkpoint of its own, stopped after the test."""
    made: list[Stream] = []

    def make(path: Path | str, **options: str) -> Stream:
        made.append(Stream(spark, path, tmp_path / f"checkpoint-{len(made)}", options))
        return made[-1]

    yield make
    for stream in made:
        stream.stop()
