"""Every put case that a row can express, in one DataFrame a kind of write, through Spark: what a request becomes, a row becomes."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.broker.put_cases.case import CONFS
from tests.broker.put_ways import ROW_CASES, assert_as_requested, by_request, by_spark

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.mark.parametrize("conf", CONFS)
def test_the_sink_in_spark_does_what_the_handler_does(spark: SparkSession, tmp_path: Path, conf: str) -> None:
    """Each case names its Java class and method."""
    requested, found = by_request(tmp_path / "requests", conf), by_spark(spark)(tmp_path / "rows", conf)
    cases = [case for case in ROW_CASES if case.conf == conf]
    assert set(requested) == set(found) == {case.name for case in cases}
    for case in cases:
        assert_as_requested(case, requested[case.name], found[case.name], by_sink=True)
