"""How far behind a query is: counting in the source, reading from a progress."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.listener import StreamingQueryProgress

from spark_mq.source.lag import (
    QueueLag,
    Total,
    Unread,
    UnreadBytes,
    latest_offset_json,
    queue_lags,
    skipped_commits,
    source_metrics,
    total_lag,
    unread_without_sizes,
)
from spark_mq.source.offsets import QueueId, QueueOffset, QueueOffsets, RecordPlace

Q = [QueueId("TopicA", "broker-a", i) for i in range(3)]


def progress(*sources: tuple[Any, Any]) -> StreamingQueryProgress:
    """A progress whose sources have these end and latest offsets; None as Spark gives it, and text as it is."""

    def text(value: Any) -> Any:
        return value if value is None or isinstance(value, str) else json.dumps(value)

    numbers = {"numInputRows": 0, "inputRowsPerSecond": 0.0, "processedRowsPerSecond": 0.0}
    query = {"id": "8c57e1ec-94b5-4c99-b100-f694162df0b9", "runId": "ae505c5a-a64e-4896-8c28-c7cbaf926f16"}
    return StreamingQueryProgress.fromJson(
        {
            **query, **numbers, "name": None, "timestamp": "", "batchId": 0, "batchDuration": 0, "stateOperators": [],
            "sink": {"description": "", "numOutputRows": -1},
            "sources": [
                {"description": "", "startOffset": None, "endOffset": text(end), "latestOffset": text(latest), **numbers}
                for end, latest in sources
            ],
        }
    )  # fmt: skip


def leaf(next_: int, store_time_ms: int | None = None) -> dict[str, Any]:
    return {"next": next_, "before": None if store_time_ms is None else [next_ * 100, store_time_ms]}


def end(**queues: dict[str, Any]) -> dict[str, Any]:
    return {"TopicA": {"broker-a": {name[1:]: position for name, position in queues.items()}}}


def latest(unread: Mapping[str, tuple[int, int | None]], **queues: dict[str, Any]) -> dict[str, Any]:
    tree = {name[1:]: {"from": start, "bytes": size} for name, (start, size) in unread.items()}
    return {"queues": end(**queues), "unread": {"TopicA": {"broker-a": tree}} if tree else {}}


def lags_of(end_offset: Any, latest_offset: Any) -> list[tuple[int, int | None, int | None, int | None]]:
    return [(lag.queue_id, *lag[3:]) for lag in queue_lags(progress((end_offset, latest_offset)))]


def test_a_lag_has_the_queue_and_three_measures() -> None:
    found = queue_lags(progress((end(q0=leaf(100, 5_000)), latest({"q0": (100, 2_048)}, q0=leaf(120, 65_000)))))
    assert found == [QueueLag("TopicA", "broker-a", 0, rows=20, bytes=2_048, time_ms=60_000)]


@pytest.mark.parametrize(
    ("end_offset", "latest_offset", "expected"),
    [
        pytest.param(leaf(120, 9), latest({}, q0=leaf(120, 9)), (0, 0, 0), id="caught up"),
        pytest.param(leaf(0), latest({}, q0=leaf(0)), (0, 0, 0), id="an empty queue is caught up"),
        pytest.param(leaf(121, 9), latest({}, q0=leaf(120, 8)), (None, None, None), id="the queue was cut meanwhile"),
        pytest.param(leaf(1, 5), latest({"q0": (1, None)}, q0=leaf(9, 7)), (8, None, 2), id="not counted yet"),
        pytest.param(leaf(1, 5), latest({"q0": (2, 70)}, q0=leaf(9, 7)), (8, None, 2), id="counted from elsewhere"),
        pytest.param(leaf(1, 5), latest({}, q0=leaf(9, 7)), (8, None, 2), id="not counted at all"),
        pytest.param(leaf(0), latest({"q0": (0, 80)}, q0=leaf(8, 7)), (8, 80, None), id="nothing read yet"),
        pytest.param(leaf(1, 5), latest({"q0": (1, 80)}, q0=leaf(9)), (8, 80, None), id="the newest is no message"),
        pytest.param(leaf(1, 5), latest({"q0": (1, 80)}, q0=leaf(9, 4)), (8, 80, None), id="the clock was set back"),
        pytest.param(leaf(1, 5), latest({"q0": (1, 80)}, q0=leaf(9, 5)), (8, 80, 0), id="within one millisecond"),
        pytest.param(leaf(1, 5), None, (None, None, None), id="Spark asked for no latest offset"),
        pytest.param(leaf(1, 5), "null", (None, None, None), id="nor here"),
        pytest.param(leaf(1, 5), latest({}), (None, None, None), id="the queue is gone"),
    ],
)
def test_what_is_not_known_is_none_and_never_0(end_offset: Any, latest_offset: Any, expected: Any) -> None:
    assert lags_of(end(q0=end_offset), latest_offset) == [(0, *expected)]


def test_a_queue_that_is_not_in_the_run_is_unread_from_where_the_source_says() -> None:
    found = lags_of(end(q0=leaf(5, 5)), latest({"q1": (3, 400)}, q0=leaf(5, 5), q1=leaf(7, 9), q2=leaf(0)))
    assert found == [(0, 0, 0, 0), (1, 4, 400, None), (2, 0, 0, 0)]


@pytest.mark.parametrize(
    "foreign",
    [
        pytest.param(({"TopicA": {"0": 12}}, {"TopicA": {"0": 13}}), id="Kafka"),
        pytest.param(({"logOffset": 3}, None), id="files"),
        pytest.param(("17", "18"), id="rate"),
        pytest.param(("not json", "not json"), id="text"),
        pytest.param((None, None), id="none"),
    ],
)
def test_other_sources_are_passed_over(foreign: tuple[Any, Any]) -> None:
    ours = end(q0=leaf(1, 5)), latest({"q0": (1, 80)}, q0=leaf(9, 7))
    assert queue_lags(progress(foreign)) == []
    assert skipped_commits(progress(foreign)) == {}
    assert queue_lags(progress(foreign, ours)) == queue_lags(progress(ours))


def test_why_group_offsets_were_skipped_is_read_from_the_progress() -> None:
    commit = {"group": "G", "skipped": {"broker-a": "locked"}}
    document = latest_offset_json(QueueOffsets(), {}, commit)
    assert skipped_commits(progress(({}, document))) == {"broker-a": "locked"}
    assert skipped_commits(progress(({}, latest_offset_json(QueueOffsets(), {}, {"group": "G", "skipped": {}})))) == {}
    assert skipped_commits(progress(({}, latest_offset_json(QueueOffsets(), {}, None)))) == {}


def test_what_the_source_reports_is_what_the_listener_reads() -> None:
    ends = QueueOffsets({Q[0]: QueueOffset(3, (7, 1_000)), Q[1]: QueueOffset(5)})
    newest = QueueOffsets({Q[0]: QueueOffset(9, (70, 4_000)), Q[1]: QueueOffset(5)})
    document = latest_offset_json(newest, {Q[0]: Unread(3, 600)}, None)
    assert json.loads(json.dumps(document)) == document
    assert lags_of(ends.to_json_dict(), document) == [(0, 6, 600, 3_000), (1, 0, 0, 0)]


def test_a_total_is_unknown_as_soon_as_one_part_is() -> None:
    one, two = QueueLag("T", "b", 0, 5, 50, 7), QueueLag("T", "b", 1, 3, 30, 9)
    assert total_lag([one, two]) == Total(8, 80, 9)
    assert total_lag([one, two._replace(bytes=None)]) == Total(8, None, 9)
    assert total_lag([one, two._replace(rows=None, time_ms=None)]) == Total(None, 80, None)
    assert total_lag([]) == Total(0, 0, 0)


class Store:
    """Queues of messages with known sizes; notes how often each entry was looked up."""

    def __init__(self) -> None:
        self.sizes: dict[QueueId, list[int]] = {queue: [] for queue in Q}
        self.minima = dict.fromkeys(Q, 0)
        self.looks: dict[QueueId, list[int]] = {queue: [] for queue in Q}

    def minimum(self, queue: QueueId) -> int:
        return self.minima[queue]

    def bytes_between(self, queue: QueueId, start: int, end: int) -> int:
        self.looks[queue] += range(start, end)
        return sum(self.sizes[queue][start:end])

    def ends(self) -> dict[QueueId, int]:
        return {queue: len(sizes) for queue, sizes in self.sizes.items()}


STEP = st.tuples(st.sampled_from(Q), st.lists(st.integers(1, 5_000), max_size=6), st.integers(0, 12))


@given(st.lists(STEP, max_size=40))
def test_counted_bytes_are_those_between_the_two_positions_whatever_comes_and_goes(
    steps: list[tuple[QueueId, list[int], int]],
) -> None:
    store, unread, planned = Store(), UnreadBytes(), dict.fromkeys(Q, 0)
    for queue, come, taken in steps:
        store.sizes[queue] += come
        planned[queue] = min(planned[queue] + taken, len(store.sizes[queue]))
        expected = {
            q: Unread(planned[q], sum(sizes[planned[q] :]))
            for q, sizes in store.sizes.items()
            if len(sizes) > planned[q]
        }
        assert unread.count(planned, store.ends(), store) == expected
    for looked in store.looks.values():
        assert all(looked.count(entry) <= 2 for entry in set(looked))


def test_a_query_that_takes_all_there_is_looks_at_no_entry() -> None:
    store, unread = Store(), UnreadBytes()
    for _ in range(3):
        store.sizes[Q[0]] += [10, 20]
        assert unread.count(store.ends(), store.ends(), store) == {}
    assert store.looks[Q[0]] == []


def test_an_idle_query_looks_at_no_entry_twice() -> None:
    store, unread = Store(), UnreadBytes()
    store.sizes[Q[0]] = [10] * 8
    for _ in range(5):
        assert unread.count({Q[0]: 2}, {Q[0]: 8}, store) == {Q[0]: Unread(2, 60)}
    assert sorted(store.looks[Q[0]]) == [2, 3, 4, 5, 6, 7]


def test_a_long_backlog_is_unknown_until_it_was_gone_through() -> None:
    store, unread = Store(), UnreadBytes(entries_a_look=4)
    store.sizes[Q[0]], store.sizes[Q[1]] = [10] * 6, [7] * 3
    planned, ends = {Q[0]: 0, Q[1]: 0}, {Q[0]: 6, Q[1]: 3}
    found = [unread.count(planned, ends, store) for _ in range(3)]
    assert [(each[Q[0]].bytes, each[Q[1]].bytes) for each in found] == [(None, None), (60, None), (60, 21)]
    assert [each[Q[0]].start for each in found] == [0, 0, 0]


def test_a_queue_without_a_start_is_unread_from_its_minimum() -> None:
    store = Store()
    store.sizes[Q[0]], store.minima[Q[0]] = [10] * 6, 4
    assert UnreadBytes().count({}, {Q[0]: 6}, store) == {Q[0]: Unread(4, 20)}


def test_a_queue_without_a_start_is_unread_from_its_minimum_also_where_sizes_are_unknown() -> None:
    minimum = {Q[0]: 4, Q[1]: 9}.__getitem__
    found = unread_without_sizes({Q[2]: 2}, {Q[0]: 6, Q[1]: 9, Q[2]: 3}, minimum)
    assert found == {Q[0]: Unread(4, None), Q[2]: Unread(2, None)}


def test_a_queue_that_was_made_again_is_counted_anew() -> None:
    store, unread = Store(), UnreadBytes()
    store.sizes[Q[0]] = [10] * 6
    assert unread.count({Q[0]: 0}, {Q[0]: 6}, store) == {Q[0]: Unread(0, 60)}
    store.sizes[Q[0]] = [99] * 6
    unread.forget([Q[0]])
    assert unread.count({Q[0]: 0}, {Q[0]: 6}, store) == {Q[0]: Unread(0, 594)}


def test_a_queue_that_went_and_came_again_is_counted_anew() -> None:
    store, unread = Store(), UnreadBytes()
    store.sizes[Q[0]] = [10] * 6
    unread.count({Q[0]: 0}, {Q[0]: 6}, store)
    unread.count({}, {}, store)
    store.sizes[Q[0]] = [99] * 6
    assert unread.count({Q[0]: 0}, {Q[0]: 6}, store) == {Q[0]: Unread(0, 594)}


def test_entries_that_expired_are_not_taken_off_by_what_stands_there_now() -> None:
    store, unread = Store(), UnreadBytes()
    store.sizes[Q[0]] = [10] * 6
    unread.count({Q[0]: 0}, {Q[0]: 6}, store)
    store.sizes[Q[0]][:4], store.minima[Q[0]] = [0] * 4, 4  # as a queue whose first file is gone reads
    assert unread.count({Q[0]: 4}, {Q[0]: 6}, store) == {Q[0]: Unread(4, 20)}


def test_a_record_place_is_what_the_time_is_taken_from() -> None:
    """`before` is (place in the log, store time): the second number counts."""
    before: RecordPlace = (10**12, 1_000)
    ends = QueueOffsets({Q[0]: QueueOffset(1, before)})
    document = latest_offset_json(
        QueueOffsets({Q[0]: QueueOffset(2, (10**12 + 90, 1_250))}), {Q[0]: Unread(1, 90)}, None
    )
    assert lags_of(ends.to_json_dict(), document) == [(0, 1, 90, 250)]


def test_metrics_are_those_of_sparks_kafka_source() -> None:
    lags = [QueueLag("T", "b", queue_id, rows, 0, 0) for queue_id, rows in enumerate((4, 0, 7))]
    assert source_metrics(lags) == {
        "minOffsetsBehindLatest": "0",
        "maxOffsetsBehindLatest": "7",
        "avgOffsetsBehindLatest": str(11 / 3),
    }
    assert source_metrics([]) == {}
    assert source_metrics([*lags, QueueLag("T", "b", 3, None, None, None)]) == {}
