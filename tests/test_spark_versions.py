"""What a release of Spark cannot do is refused by name, and nothing is refused that it can do."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_mq import spark_versions
from spark_mq.conditions import SparkTooOldError
from spark_mq.data_source import SparkMqDataSource
from spark_mq.spark_api import StringType, StructField, StructType
from spark_mq.spark_versions import (
    ADMISSION_CONTROL,
    ARROW_STREAM_WRITER,
    FILTERS,
    LIMITS,
    Ability,
    Release,
    delta_artifact,
    refuse_options,
    release_of,
)
from tests.support.store_builder import StoreBuilder


@pytest.mark.parametrize(
    ("version", "release"),
    [
        ("4.0.5", (4, 0)),
        ("4.1.0.dev0", (4, 1)),
        ("4.1.0-amzn-1", (4, 1)),
        ("4.10.2", (4, 10)),
        ("4.3.0rc1", (4, 3)),
        ("4.2", (4, 2)),
    ],
)
def test_a_version_has_a_release(version: str, release: Release) -> None:
    assert release_of(version) == release


@pytest.mark.parametrize("release", [(4, 0), (4, 1)])
@pytest.mark.parametrize("option", LIMITS)
def test_a_limit_is_refused_where_spark_does_not_say_where_a_batch_begins(option: str, release: Release) -> None:
    with pytest.raises(SparkTooOldError) as caught:
        refuse_options(["path", option.lower()], "streaming", release)
    first = str(caught.value).splitlines()[0]
    assert first.startswith(f"[SPARK_MQ_SPARK_TOO_OLD] {option} needs Spark 4.2: ")
    assert f"this is Spark {release[0]}.{release[1]}" in first


def test_push_down_is_refused_where_spark_hands_on_no_filters() -> None:
    with pytest.raises(SparkTooOldError, match=r"pushDown needs Spark 4\.1: "):
        refuse_options(["pushdown"], "batch", (4, 0))
    refuse_options(["pushdown"], "batch", (4, 1))


def test_push_down_that_is_left_off_is_refused_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    StoreBuilder(tmp_path / "store").send_many("Topic", 1)
    monkeypatch.setattr(spark_versions, "spark_release", lambda: (4, 0))

    def plan(push_down: str) -> None:
        options = {"path": f"{tmp_path}/store", "topic": "Topic", "columns": "topic", "pushDown": push_down}
        SparkMqDataSource(options).reader(StructType([StructField("topic", StringType())])).partitions()

    plan("false")
    with pytest.raises(SparkTooOldError, match="pushDown"):
        plan("true")


@pytest.mark.parametrize("release", [(4, 2), (4, 3), (5, 0)])
@pytest.mark.parametrize("mode", ["batch", "streaming"])
def test_a_release_that_can_do_everything_refuses_nothing(release: Release, mode: str) -> None:
    refuse_options([*map(str.lower, LIMITS), "pushdown"], mode, release)


@pytest.mark.parametrize(
    ("ability", "releases"),
    [
        (FILTERS, [(4, 1), (4, 2), (4, 3)]),
        (ARROW_STREAM_WRITER, [(4, 1), (4, 2), (4, 3)]),
        (ADMISSION_CONTROL, [(4, 2), (4, 3)]),
    ],
)
def test_which_release_can_do_what(ability: Ability, releases: list[Release]) -> None:
    assert [release for release in [(4, 0), (4, 1), (4, 2), (4, 3)] if ability.is_in(release)] == releases


def test_pyspark_has_what_the_table_says() -> None:
    from pyspark.sql import datasource

    assert hasattr(datasource, "Filter") == FILTERS.is_here
    assert hasattr(datasource, "DataSourceStreamArrowWriter") == ARROW_STREAM_WRITER.is_here
    assert hasattr(datasource.DataSourceStreamReader, "getDefaultReadLimit") == ADMISSION_CONTROL.is_here


def test_deltas_artifact_is_named_after_sparks_release() -> None:
    assert delta_artifact((4, 2)) == "io.delta:delta-spark_4.2_2.13:4.4.0"
    with pytest.raises(
        ValueError, match=r"no artifact io\.delta:delta-spark_4\.3_2\.13 for Spark 4\.3; .* 4\.0, 4\.1, 4\.2"
    ):
        delta_artifact((4, 3))
