"""A stream that is refused before it has a reader: PySpark's runner drops what `streamReader` raises, so it must not raise."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, cast

import pytest
from pyspark.sql.types import StringType, StructField, StructType

from spark_mq.conditions import OptionError
from spark_mq.data_source import SparkMqDataSource
from spark_mq.source.stream_reader import StreamReader
from spark_mq.spark_api import DataSourceStreamReader, ReadAllAvailable, SupportsTriggerAvailableNow

_SCHEMA = StructType([StructField("topic", StringType())])


def _stream(schema: StructType = _SCHEMA, **options: str) -> Any:
    return SparkMqDataSource({"path": "/nowhere", "topic": "TopicA", **options}).streamReader(schema)


_ASKED: dict[str, Callable[[Any], object]] = {
    "prepareForTriggerAvailableNow": lambda reader: reader.prepareForTriggerAvailableNow(),
    "getDefaultReadLimit": lambda reader: reader.getDefaultReadLimit(),
    "initialOffset": lambda reader: reader.initialOffset(),
    "latestOffset": lambda reader: reader.latestOffset({}, ReadAllAvailable()),
    "reportLatestOffset": lambda reader: reader.reportLatestOffset(),
    "partitions": lambda reader: reader.partitions({}, {}),
    "commit": lambda reader: reader.commit({}),
    "read": lambda reader: reader.read(None),
}


@pytest.mark.parametrize("asked", _ASKED)
def test_whatever_spark_asks_first_names_the_option_that_is_not_for_streams(asked: str) -> None:
    with pytest.raises(OptionError, match=r"^\[SPARK_MQ_INVALID_OPTION\] option key: is for batch queries only"):
        _ASKED[asked](_stream(key="k"))


@pytest.mark.parametrize(
    "options", [{"endingOffsets": "latest"}, {"endingTimestamp": "0"}, {"pushDown": "true"}, {"subscribe": "TopicB"}]
)
def test_no_refusal_of_a_stream_is_raised_before_there_is_a_reader(options: dict[str, str]) -> None:
    with pytest.raises(OptionError):
        _stream(**options).initialOffset()


def test_a_schema_with_a_strange_column_is_refused_by_the_reader() -> None:
    with pytest.raises(OptionError, match="there is no column 'nothing'"):
        _stream(StructType([StructField("nothing", StringType())])).initialOffset()


def test_spark_sees_of_a_refused_stream_what_it_sees_of_any_other_and_can_stop_it() -> None:
    refused = _stream(key="k")
    assert isinstance(refused, DataSourceStreamReader)
    assert isinstance(refused, SupportsTriggerAvailableNow)
    ours = cast(Any, StreamReader).latestOffset
    assert list(inspect.signature(refused.latestOffset).parameters) == list(inspect.signature(ours).parameters)[1:]
    refused.stop()


def test_every_method_of_a_stream_reader_has_its_refusal() -> None:
    named = {name for name in vars(DataSourceStreamReader) if not name.startswith("_")}
    assert named - {"stop"} <= _ASKED.keys()
