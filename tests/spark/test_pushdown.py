"""Pushed filters cut what is read and never change a result."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from spark_mq.source.batch_reader import BatchReader, Bounds, Cuts
from spark_mq.source.options import SourceOptions
from tests.support.fixture_stores import Fixture

from .conftest import ReadStore
from .golden_rows import Row, golden_rows
from .in_process import plan_batch, planned_size, read_batch, rows_of

pytestmark = pytest.mark.slow

PristineStore = Callable[[str], Fixture]
FLAG = "spark.sql.python.filterPushdown.enabled"


# Through Spark


@pytest.fixture(params=["true", "false"], ids=["push-down on", "push-down off"])
def flag(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[str]:
    """Spark's switch for pushing filters to Python sources; off is Spark's own default."""
    before = spark.conf.get(FLAG)
    spark.conf.set(FLAG, request.param)
    yield request.param
    spark.conf.set(FLAG, before)


def predicates(golden: list[Row]) -> list[str]:
    row = next(row for row in golden if row["keys"] and " " in row["keys"] and row["tags"])
    early, late = golden[len(golden) // 3]["store_timestamp"], golden[-20]["store_timestamp"]
    first_key = row["keys"].split(" ")[0]
    return [
        "queue_id = 1",
        "queue_id IN (0, 2, NULL)",
        "queue_id > 0 AND tags <> 'TagB'",
        "queue_offset >= 10 AND queue_offset < 13",
        "queue_offset = 7 OR queue_offset = 9",
        f"store_timestamp >= '{early}'",
        f"store_timestamp BETWEEN '{early}' AND '{late}'",
        f"store_timestamp = '{late}'",
        "tags = 'TagA'",
        "tags IN ('TagA', 'TagC', NULL)",
        "tags <=> NULL",
        "tags IS NULL",
        f"keys = '{row['keys']}'",
        f"keys = '{first_key}'",
        f"unique_key = '{row['unique_key']}'",
        f"keys = '{row['keys']}' AND unique_key = '{row['unique_key']}' AND tags = '{row['tags']}' AND queue_id >= 0",
        "properties['TAGS'] = 'TagA'",
    ]


def found_by(frames: Callable[[], DataFrame], conditions: list[str]) -> dict[str, list[int]]:
    """The places in the log of the rows that each condition lets through, each asked of `frames()`; one job."""
    parts = [frames().where(text).selectExpr(f"{n} AS n", "commitlog_offset") for n, text in enumerate(conditions)]
    union = parts[0]
    for part in parts[1:]:
        union = union.union(part)
    found: dict[str, list[int]] = {text: [] for text in conditions}
    for row in union.collect():
        found[conditions[row.n]].append(row.commitlog_offset)
    return {text: sorted(places) for text, places in found.items()}


@pytest.mark.spark
def test_a_filter_gives_what_a_full_scan_filtered_by_spark_gives(
    flag: str, read_store: ReadStore, pristine_store: PristineStore
) -> None:
    store = pristine_store("clean")
    asked = {"topic": "TopicA", "queueId": "0,1"}
    golden = [row for row in golden_rows(store, "TopicA") if row["queue_id"] in (0, 1)]
    conditions = predicates(golden)
    frame = read_store(store.root, **asked)
    full = frame.sparkSession.createDataFrame(frame.toArrow())  # rows that know no source
    expected = found_by(lambda: full, conditions)
    assert sum(bool(places) for places in expected.values()) >= len(conditions) - 1, "predicates let something through"
    assert found_by(lambda: frame, conditions) == expected, "one DataFrame, many filters"
    some = conditions[:: 2 if flag == "true" else 6]
    pushed = found_by(lambda: read_store(store.root, pushDown="true", **asked), some)
    assert pushed == {text: expected[text] for text in some}, "a DataFrame for each filter"


@pytest.mark.spark
def test_filters_cut_the_plan_just_where_the_session_pushes_them_and_the_option_asks(
    flag: str, read_store: ReadStore, pristine_store: PristineStore
) -> None:
    """One queue is left of the read, and so one partition, without the source overriding `pushFilters`."""
    root = pristine_store("roll").root
    for option in ("true", "false"):
        frame = read_store(root, topic="TopicOne", pushDown=option).where("queue_id = 1")
        assert frame.rdd.getNumPartitions() == (1 if flag == option == "true" else 3)
        assert {row.queue_id for row in frame.select("queue_id").collect()} == {1}


@pytest.mark.spark
@pytest.mark.parametrize("flag", ["true"], indirect=True)
def test_spark_still_shares_a_cut_between_all_uses_of_one_dataframe(
    flag: str, read_store: ReadStore, pristine_store: PristineStore
) -> None:
    """Why option pushDown is off by default. When this fails, Spark was mended and the default can be another."""
    store = pristine_store("roll")
    count = sum(row["queue_id"] == 1 for row in golden_rows(store, "TopicOne"))
    frame = read_store(store.root, topic="TopicOne", pushDown="true")
    assert frame.where("queue_id = 1").count() == count
    assert frame.count() == count, "and not all 250"
    frame = read_store(store.root, topic="TopicOne")
    assert (frame.where("queue_id = 1").count(), frame.count()) == (count, 250)


def test_spark_takes_push_filters_for_not_overridden() -> None:
    """The check in PySpark that the instance's `pushFilters` leans on; without the session's flag it refuses a reader
    whose method is another function than the base class's.
    """
    from pyspark.sql.worker import plan_data_source_read

    options = SourceOptions.parse({"path": "/", "topic": "T", "pushDown": "true"}, "batch")
    reader = BatchReader(options, options.column_names)
    assert "pushFilters" not in vars(BatchReader)
    assert reader.pushFilters.__func__ is DataSourceReader.pushFilters  # type: ignore[attr-defined]
    check = 'getattr(reader.pushFilters, "__func__", None) is not DataSourceReader.pushFilters'
    assert check in inspect.getsource(plan_data_source_read)


# In this process: any filters, any combination


def evaluate(pushed: Filter, row: Row) -> bool:
    """SQL's meaning of a filter; NULL is false."""
    if isinstance(pushed, Not):
        child = pushed.child
        assert isinstance(child, EqualTo)
        value = row[child.attribute[0]]
        return value is not None and value != child.value
    value = row[pushed.attribute[0]]  # type: ignore[attr-defined]
    match pushed:
        case IsNull():
            return value is None
        case IsNotNull():
            return value is not None
        case EqualNullSafe():
            return bool(value == pushed.value)
    if value is None:
        return False
    match pushed:
        case EqualTo():
            return bool(value == pushed.value)
        case In():
            return value in pushed.value
        case GreaterThan():
            return bool(value > pushed.value)
        case GreaterThanOrEqual():
            return bool(value >= pushed.value)
        case LessThan():
            return bool(value < pushed.value)
        case LessThanOrEqual():
            return bool(value <= pushed.value)
    raise AssertionError(f"no meaning for {pushed}")


COLUMNS = ("queue_id", "queue_offset", "store_timestamp", "tags", "keys", "unique_key")
COMPARISONS: tuple[Any, ...] = (EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_combination_of_filters_loses_a_row(data: st.DataObject, pristine_store: PristineStore) -> None:
    store = pristine_store("clean")
    topic = data.draw(st.sampled_from(["TopicOrder", "TopicBig", "SCHEDULE_TOPIC_XXXX", "TopicTx"]), "topic")
    golden = _golden(store, topic)
    filters = data.draw(st.lists(_filters(golden), min_size=1, max_size=4), "filters")
    rows = read_batch(store.root, topic=topic, filters=filters, columns=",".join((*COLUMNS, "commitlog_offset")))
    left = [row["commitlog_offset"] for row in rows if all(evaluate(one, row) for one in filters)]
    expected = [row["commitlog_offset"] for row in golden if all(evaluate(one, row) for one in filters)]
    assert sorted(left) == sorted(expected)


def _filters(golden: list[Row]) -> st.SearchStrategy[Filter]:
    def of_column(name: str) -> st.SearchStrategy[Filter]:
        there = sorted({row[name] for row in golden if row[name] is not None})
        if name == "store_timestamp":
            near = [moment + timedelta(microseconds=step) for moment in there[::7] for step in (-1, 0, 1)]
            values: st.SearchStrategy[Any] = st.sampled_from([m.astimezone(ZoneInfo("UTC")) for m in near])
        elif name in ("queue_id", "queue_offset"):
            values = st.integers(-2, max(there) + 2)
        else:
            values = st.sampled_from([*there, "", "none"])
        column = (name,)
        comparisons = st.builds(lambda make, value: make(column, value), st.sampled_from(COMPARISONS), values)
        return st.one_of(
            comparisons,
            st.lists(values, max_size=3).map(lambda several: In(column, tuple(several))),
            values.map(lambda value: Not(EqualTo(column, value))),
            st.sampled_from([IsNull(column), IsNotNull(column)]),
        )

    return st.sampled_from(COLUMNS).flatmap(of_column)


_GOLDEN: dict[str, list[Row]] = {}


def _golden(store: Fixture, topic: str) -> list[Row]:
    if topic not in _GOLDEN:
        _GOLDEN[topic] = golden_rows(store, topic)
    return _GOLDEN[topic]


# That it cuts


@pytest.mark.parametrize(
    ("column", "make", "pick"),
    [
        ("queue_id", lambda value: EqualTo(("queue_id",), value), lambda rows: 1),
        ("queue_id", lambda value: In(("queue_id",), (value,)), lambda rows: 2),
        ("queue_offset", lambda value: GreaterThanOrEqual(("queue_offset",), value), lambda rows: 140),
        ("queue_offset", lambda value: LessThan(("queue_offset",), value), lambda rows: 10),
        ("store_timestamp", lambda value: LessThan(("store_timestamp",), value), lambda rows: _time(rows, 0.25)),
        ("store_timestamp", lambda value: GreaterThan(("store_timestamp",), value), lambda rows: _time(rows, 0.75)),
        ("unique_key", lambda value: EqualTo(("unique_key",), value), lambda rows: rows[77]["unique_key"]),
        ("keys", lambda value: EqualTo(("keys",), value), lambda rows: next(r["keys"] for r in rows if r["keys"])),
    ],
    ids=["queue", "queues", "last offsets", "first offsets", "first times", "last times", "unique key", "keys"],
)
def test_a_filter_cuts_what_is_looked_at(
    column: str,
    make: Callable[[Any], Filter],
    pick: Callable[[list[Row]], Any],
    pristine_store: PristineStore,
) -> None:
    store = pristine_store("clean")
    golden = golden_rows(store, "TopicA")
    pushed = make(pick(golden))
    splits = plan_batch(store.root, topic="TopicA", filters=[IsNotNull((column,)), pushed])
    assert 0 < planned_size(splits) < len(golden) / 2
    assert sum(evaluate(pushed, row) for row in golden) == sum(evaluate(pushed, row) for row in rows_of(splits)) > 0


def test_a_tag_is_taken_from_the_entries(pristine_store: PristineStore) -> None:
    store = pristine_store("clean")
    rows = read_batch(store.root, topic="TopicA", filters=[EqualTo(("tags",), "TagA")])
    assert {row["tags"] for row in rows} == {"TagA"}
    rows = read_batch(store.root, topic="TopicA", tags="TagA || TagB", filters=[In(("tags",), ("TagB", "TagC"))])
    assert {row["tags"] for row in rows} == {"TagB"}


def test_kafka_columns_cut_offsets_and_times(pristine_store: PristineStore) -> None:
    store = pristine_store("clean")
    kafka = {"subscribe": "TopicA", "columns": "kafka"}
    assert planned_size(plan_batch(store.root, filters=[LessThan(("offset",), 10)], **kafka)) == 40
    middle = _time(golden_rows(store, "TopicA"), 0.5)
    assert 200 < planned_size(plan_batch(store.root, filters=[LessThan(("timestamp",), middle)], **kafka)) < 400


def test_bounds_are_closed_ranges() -> None:
    column = ("queue_offset",)
    narrowed = [
        Bounds().narrowed(make(column, 7), 7)
        for make in (EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)
    ]
    assert [(one.low, min(one.high, 100)) for one in narrowed] == [(7, 7), (8, 100), (7, 100), (0, 6), (0, 7)]


def test_filters_that_cut_nothing_leave_the_cuts_alone() -> None:
    none = Cuts.none(kafka=False)
    for pushed in (
        IsNull(("tags",)),
        IsNotNull(("queue_id",)),
        Not(EqualTo(("queue_id",), 1)),
        EqualNullSafe(("tags",), "TagA"),
        EqualTo(("properties", "queue_id"), 1),
        EqualTo(("body",), b"x"),
        EqualTo(("keys",), " "),
        EqualTo(("unique_key",), ""),
    ):
        assert none.with_filter(pushed) == none, pushed


def _time(rows: list[Row], share: float) -> datetime:
    times = sorted(row["store_timestamp"] for row in rows)
    moment: datetime = times[int(share * len(times))]
    return moment.astimezone(ZoneInfo("UTC"))
