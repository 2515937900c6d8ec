"""PySpark's classes for a data source, as the installed release has them. Every module that needs Spark takes them from here.

Raises SparkNotFoundError, which says what to install, where there is no PySpark or one without Python data sources. Classes that an
older release lacks have stand-ins, so that the modules load: `spark_versions.py` says what such a release cannot do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_mq.spark_versions import ADMISSION_CONTROL, ARROW_STREAM_WRITER, FILTERS, SparkNotFoundError, not_installed

try:
    from pyspark import TaskContext
    from pyspark.sql import Column, DataFrame, SparkSession, functions
    from pyspark.sql.datasource import (
        DataSource,
        DataSourceArrowWriter,
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        InputPartition,
        WriterCommitMessage,
    )
    from pyspark.sql.types import (
        ArrayType,
        BinaryType,
        BooleanType,
        DataType,
        DateType,
        DoubleType,
        IntegralType,
        LongType,
        MapType,
        StringType,
        StructField,
        StructType,
        TimestampType,
    )
except ImportError as error:
    raise SparkNotFoundError(not_installed(error), name=error.name) from error

if TYPE_CHECKING or FILTERS.is_here:
    from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual
else:

    class Filter:
        """Of no release before 4.1; nothing makes one there."""

    class EqualTo(Filter): ...

    class GreaterThan(Filter): ...

    class GreaterThanOrEqual(Filter): ...

    class In(Filter): ...

    class LessThan(Filter): ...

    class LessThanOrEqual(Filter): ...


if TYPE_CHECKING or ARROW_STREAM_WRITER.is_here:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
else:

    class DataSourceStreamArrowWriter(DataSourceStreamWriter, DataSourceArrowWriter):
        """Spark 4.0 gives a writer Arrow batches if it is a DataSourceArrowWriter, in a stream too."""


if TYPE_CHECKING or ADMISSION_CONTROL.is_here:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )
else:

    class SupportsTriggerAvailableNow:
        """Spark fixes the end itself: one batch with all that is there."""

    class ReadLimit:
        """Spark passes none."""

    class ReadAllAvailable(ReadLimit): ...

    class _Limit(ReadLimit):
        def __init__(self, most: int) -> None:
            self.most = most

    class ReadMaxBytes(_Limit): ...

    class ReadMaxRows(_Limit): ...

    class ReadMinRows(_Limit): ...


__all__ = [
    "ArrayType",
    "BinaryType",
    "BooleanType",
    "Column",
    "DataFrame",
    "DataSource",
    "DataSourceArrowWriter",
    "DataSourceReader",
    "DataSourceStreamArrowWriter",
    "DataSourceStreamReader",
    "DataSourceStreamWriter",
    "DataType",
    "DateType",
    "DoubleType",
    "EqualTo",
    "Filter",
    "GreaterThan",
    "GreaterThanOrEqual",
    "In",
    "InputPartition",
    "IntegralType",
    "LessThan",
    "LessThanOrEqual",
    "LongType",
    "MapType",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxRows",
    "ReadMinRows",
    "SparkSession",
    "StringType",
    "StructField",
    "StructType",
    "SupportsTriggerAvailableNow",
    "TaskContext",
    "TimestampType",
    "WriterCommitMessage",
    "functions",
]
