"""A streaming query that was refused before its reader was made, and that says so at the first thing Spark asks of the reader.

PySpark's runner of streaming readers drops an error of `DataSource.streamReader`: it calls `stop` on a reader that it has not got,
and Spark shows that `UnboundLocalError` alone (pyspark/sql/streaming/python_streaming_source_runner.py). It hands on what a reader's
methods raise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from spark_mq.worker_errors import named_for_spark


class RefusedStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Raises `refusal` whatever is asked of it, except `stop`. Spark looks at the signatures to learn what a reader can do."""

    def __init__(self, refusal: Exception) -> None:
        self.refusal = refusal

    def prepareForTriggerAvailableNow(self) -> None:
        self._refuse()

    def getDefaultReadLimit(self) -> ReadLimit:
        self._refuse()

    def initialOffset(self) -> dict[str, Any]:
        self._refuse()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        self._refuse()

    def reportLatestOffset(self) -> dict[str, Any]:
        self._refuse()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        self._refuse()

    def commit(self, end: dict[str, Any]) -> None:
        self._refuse()

    def read(self, partition: InputPartition) -> Iterator[Any]:
        self._refuse()

    def stop(self) -> None:
        """Nothing is open."""

    @named_for_spark()
    def _refuse(self) -> NoReturn:
        raise self.refusal


def reader_or_refusal(make: Callable[[], DataSourceStreamReader]) -> DataSourceStreamReader:
    """What `make` returns, or a reader that raises what it raised."""
    try:
        return make()
    except Exception as error:
        return RefusedStream(error)
