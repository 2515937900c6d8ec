"""How far a running query is behind: in stores and at brokers, where something is missing, and while nothing answers."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest
from pyspark.sql.streaming.listener import StreamingQueryProgress

from spark_mq.client.errors import ClientError
from spark_mq.source import query_metrics
from spark_mq.source.offsets import QueueId, QueueOffset, QueueOffsets
from spark_mq.source.query_looks import UNKNOWN, Behind, QueryLooks
from spark_mq.source.query_metrics import QueryFigures, QueryMetrics
from spark_mq.testing import Cluster
from tests.support.store_builder import StoreBuilder

QUERY = UUID("8c57e1ec-94b5-4c99-b100-f694162df0b9")
RUN = UUID("ae505c5a-a64e-4896-8c28-c7cbaf926f16")


def progress(*ends: Any, starts: Any = None, query_id: UUID = QUERY, run_id: UUID = RUN) -> StreamingQueryProgress:
    """Of a batch that ended there: for each source {(broker, queue id): offset} of topic T, or another source's value."""
    numbers = {"numInputRows": 0, "inputRowsPerSecond": 0.0, "processedRowsPerSecond": 0.0}
    query = {"id": str(query_id), "runId": str(run_id), "name": None, "timestamp": "2026-01-01T00:00:00.000Z"}
    sources = [
        {"description": "", "startOffset": text(starts), "endOffset": text(end), "latestOffset": None, **numbers}
        for end in ends
    ]
    found: StreamingQueryProgress = StreamingQueryProgress.fromJson(
        {
            **query, **numbers, "batchId": 0, "batchDuration": 0, "stateOperators": [],
            "sink": {"description": "", "numOutputRows": -1}, "sources": sources,
        }
    )  # fmt: skip
    return found


def text(end: Any) -> str | None:
    if not isinstance(end, dict) or not all(isinstance(key, tuple) for key in end):
        return None if end is None else json.dumps(end)
    places = {QueueId("T", *queue): QueueOffset(offset) for queue, offset in end.items()}
    return json.dumps(QueueOffsets(places).to_json_dict())


def look(options: dict[str, str] | list[dict[str, str]], *ends: Any, starts: Any = None) -> Behind:
    looks = QueryLooks(options if isinstance(options, list) else [options])
    try:
        return looks.begin(progress(*ends, starts=starts)).result(30)
    finally:
        looks.end()


@pytest.fixture
def stores(tmp_path: Path) -> dict[str, StoreBuilder]:
    """Two stores of a cluster, each with 5 messages in queue 0."""
    found = {name: StoreBuilder(tmp_path / "cluster" / name) for name in ("broker-a", "broker-b")}
    for store in found.values():
        store.send_many("T", 5)
    return found


@pytest.fixture
def options(tmp_path: Path) -> dict[str, str]:
    return {"path": str(tmp_path / "cluster"), "topic": "T"}


def test_unread_messages_are_counted_by_offsets_bytes_and_age(
    stores: dict[str, StoreBuilder], options: dict[str, str]
) -> None:
    found = look(options, {("broker-a", 0): 2, ("broker-b", 0): 5})
    assert found.rows == 3
    assert (found.bytes or 0) > 3 * 80
    assert (found.oldest_ms or 0) > 0
    assert look(options, {("broker-a", 0): 5, ("broker-b", 0): 5})[:3] == (0, 0, 0)


def test_the_lag_is_unknown_where_a_broker_is_not_there(
    stores: dict[str, StoreBuilder], options: dict[str, str]
) -> None:
    shutil.rmtree(stores["broker-b"].root)
    assert look(options, {("broker-a", 0): 5, ("broker-b", 0): 5}) == UNKNOWN
    assert look(options, {("broker-a", 0): 2, ("broker-b", 0): 5}).rows is None, "the rest is no lag of the query"


def test_the_lag_is_unknown_where_a_topic_was_made_again_and_is_shorter(
    stores: dict[str, StoreBuilder], options: dict[str, str]
) -> None:
    stores["broker-b"].delete_topic("T")
    stores["broker-b"].send_many("T", 2)
    assert look(options, {("broker-a", 0): 5, ("broker-b", 0): 5})[:3] == (None, None, None)


def test_the_lag_is_unknown_where_a_queue_is_gone_that_has_been_read(
    stores: dict[str, StoreBuilder], options: dict[str, str]
) -> None:
    stores["broker-b"].delete_topic("T")
    assert look(options, {("broker-a", 0): 5, ("broker-b", 0): 5}).rows is None


def test_a_queue_of_a_store_that_never_had_a_message_is_read_to_its_end(
    stores: dict[str, StoreBuilder], options: dict[str, str]
) -> None:
    assert look(options, {("broker-a", 0): 5, ("broker-a", 1): 0, ("broker-b", 0): 5})[:3] == (0, 0, 0)


def test_a_queue_that_came_after_the_last_batch_is_unread(
    stores: dict[str, StoreBuilder], options: dict[str, str]
) -> None:
    stores["broker-b"].send_many("T", 4, queue_id=1)
    assert look(options, {("broker-a", 0): 5, ("broker-b", 0): 5}).rows == 4


def test_bytes_of_messages_that_have_expired_are_unknown(tmp_path: Path) -> None:
    store = StoreBuilder(tmp_path / "broker-a", log_file_size_bytes=4096)
    store.send_many("T", 100)
    options = {"path": str(store.root), "topic": "T"}
    before = look(options, {("broker-a", 0): 0})
    store.delete_oldest_log_file()
    after = look(options, {("broker-a", 0): 0})
    assert (before.rows, after.rows) == (100, 100)
    assert before.bytes is not None
    assert after.bytes is None


def test_a_source_counts_by_its_offsets_whatever_the_options_that_name_its_place(
    stores: dict[str, StoreBuilder], tmp_path: Path
) -> None:
    several = {"paths": json.dumps([str(each.root) for each in stores.values()]), "topic": "T"}
    one = {"path": str(stores["broker-a"].root), "topic": "T"}
    assert look(several, {("broker-a", 0): 5, ("broker-b", 0): 1}).rows == 4
    foreign = {"path": str(tmp_path / "a table of others"), "own": "option"}
    ends = {("broker-a", 0): 2}, {"logOffset": 3}, {("broker-a", 0): 5, ("broker-b", 0): 1}
    assert look([one, foreign, several], *ends).rows == 3 + 4
    assert look([foreign], {"logOffset": 3}) == UNKNOWN


@pytest.mark.slow
def test_the_lag_at_a_cluster_is_unknown_once_a_broker_is_gone(tmp_path: Path) -> None:
    with Cluster(brokers=2, directory=tmp_path) as cluster:
        cluster.create_topic("T", 1)
        for number in range(8):
            cluster.send("T", f"{number}")
        options = {"nameServer": cluster.name_server, "topic": "T"}
        nothing = {(broker.name, 0): 0 for broker in cluster.brokers}
        assert look(options, nothing).rows == 8
        assert look(options, {}).rows == 8, "of queues that came after the last batch"
        open_before = QueryLooks([options])
        assert open_before.begin(progress(nothing)).result(30).rows == 8
        cluster.brokers[1].stop()
        assert look(options, nothing).rows is None
        found: list[int | None] = [8]
        while found[-1] is not None:  # a look of less than 100 ms ago holds
            with suppress(ClientError):
                found.append(open_before.begin(progress(nothing)).result(30).rows)
        assert set(found) == {8, None}, "never a part of the lag"
        open_before.end()


# Waiting


class Gate:
    """Looks of `QueryLooks` wait here."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.looks = 0
        self.is_open = threading.Event()
        self.began = threading.Event()

        def wait(looks: QueryLooks, of: StreamingQueryProgress) -> Behind:
            self.looks += 1
            self.began.set()
            assert self.is_open.wait(60)
            return Behind(7, None, None, None)

        monkeypatch.setattr(QueryLooks, "_look", wait)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    found = Gate(monkeypatch)
    yield found
    found.is_open.set()


@pytest.fixture
def metrics(monkeypatch: pytest.MonkeyPatch) -> QueryMetrics:
    """Of a session with one query, whose plan has one source."""
    monkeypatch.setattr(query_metrics, "source_options", lambda query: [{}])
    found = QueryMetrics()
    found.take_running([running(QUERY, RUN)])
    found.onQueryProgress(SimpleNamespace(progress=progress({("broker-a", 0): 1})))  # type: ignore[arg-type]
    return found


def running(query_id: UUID, run_id: UUID) -> Any:
    in_jvm = SimpleNamespace(lastProgress=lambda: None)
    return SimpleNamespace(id=str(query_id), runId=str(run_id), name=None, _jsq=in_jvm)


def ended(query_id: UUID, run_id: UUID, exception: str | None = None) -> Any:
    return SimpleNamespace(id=query_id, runId=run_id, exception=exception, errorClassOnException=None)


def only(found: list[QueryFigures]) -> QueryFigures:
    assert len(found) == 1
    return found[0]


def test_figures_do_not_wait_longer_for_a_look_and_the_next_ones_share_it(
    gate: Gate, metrics: QueryMetrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_metrics, "WAIT_S", 0.0)
    figures = [only(metrics.figures()) for _ in range(3)]
    assert [(each.lag_rows, each.batch_id) for each in figures] == [(None, 0)] * 3
    assert gate.began.wait(60)
    assert gate.looks == 1
    monkeypatch.setattr(query_metrics, "WAIT_S", 60.0)
    gate.is_open.set()
    assert only(metrics.figures()).lag_rows == 7


def test_spark_is_not_kept_waiting_while_a_query_is_looked_at(gate: Gate, metrics: QueryMetrics) -> None:
    scrape = threading.Thread(target=metrics.figures)
    scrape.start()
    assert gate.began.wait(60)
    other = uuid4()
    metrics.take_running([running(other, uuid4())])
    metrics.onQueryProgress(SimpleNamespace(progress=progress({}, query_id=QUERY)))  # type: ignore[arg-type]
    metrics.onQueryTerminated(ended(QUERY, RUN))
    assert not gate.is_open.is_set()
    gate.is_open.set()
    scrape.join(60)
    found = {each.query_id: each for each in metrics.figures()}
    assert not found[str(QUERY)].is_active
    assert found[str(other)].is_active


def test_a_look_that_goes_on_closes_its_stores_after_the_end_of_the_run(
    stores: dict[str, StoreBuilder], options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped: list[str] = []
    monkeypatch.setattr("spark_mq.source.stream_reader.StreamReader.stop", lambda reader: stopped.append("stopped"))
    began, goes_on = threading.Event(), threading.Event()
    original = QueryLooks._look

    def wait(looks: QueryLooks, of: StreamingQueryProgress) -> Behind:
        found = original(looks, of)
        began.set()
        assert goes_on.wait(60)
        return found

    monkeypatch.setattr(QueryLooks, "_look", wait)
    looks = QueryLooks([options])
    found = looks.begin(progress({("broker-a", 0): 5, ("broker-b", 0): 5}))
    assert began.wait(60)
    looks.end()
    assert stopped == []
    goes_on.set()
    assert found.result(60).rows == 0
    assert stopped == ["stopped"]
    assert looks.begin(progress({})).result(60) == UNKNOWN


def test_the_lag_of_a_query_that_has_ended_is_unknown(
    stores: dict[str, StoreBuilder], options: dict[str, str], monkeypatch: pytest.MonkeyPatch, metrics: QueryMetrics
) -> None:
    monkeypatch.setattr(query_metrics, "source_options", lambda query: [options])
    of_all = progress({("broker-a", 0): 5, ("broker-b", 0): 5})
    metrics.onQueryProgress(SimpleNamespace(progress=of_all))  # type: ignore[arg-type]
    assert only(metrics.figures()).lag_rows == 0
    metrics.onQueryTerminated(ended(QUERY, RUN, "the sink is full"))
    found = only(metrics.figures())
    assert (found.lag_rows, found.is_active, found.failures) == (None, False, 1)


def test_a_look_that_fails_leaves_the_lag_unknown_and_says_why_once(
    metrics: QueryMetrics, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answers: Iterator[Callable[[], Behind]] = iter([refuse, refuse, lambda: Behind(3, None, None, None), refuse])
    monkeypatch.setattr(QueryLooks, "_look", lambda looks, of: next(answers)())
    assert [only(metrics.figures()).lag_rows for _ in range(4)] == [None, None, 3, None]
    assert [each.getMessage().endswith("its lag is unknown: nobody answers") for each in caplog.records] == [True] * 2


def refuse() -> Behind:
    raise OSError("nobody answers")


def test_of_many_queries_that_have_ended_the_last_ones_are_kept(
    metrics: QueryMetrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_metrics, "ENDED_KEPT", 2)
    monkeypatch.setattr(QueryLooks, "_look", lambda looks, of: UNKNOWN)
    ids = [uuid4() for _ in range(4)]
    for query_id in ids:
        run_id = uuid4()
        metrics.take_running([running(query_id, run_id)])
        metrics.onQueryTerminated(ended(query_id, run_id))
    assert {each.query_id for each in metrics.figures()} == {str(QUERY), *map(str, ids[2:])}
