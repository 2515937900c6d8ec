"""Streaming queries in Spark: batches that a restart repeats exactly, every message once, newcomers on the way."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException

from tests.support.fixture_stores import Fixture
from tests.support.store_builder import StoreBuilder

from .conftest import ReadStore
from .golden_rows import golden_rows
from .streams import Stream, needs_limits

pytestmark = pytest.mark.spark

StreamStore = Callable[..., Stream]


@pytest.fixture
def store(tmp_path: Path) -> StoreBuilder:
    return StoreBuilder(tmp_path / "broker-a")


@pytest.mark.slow
def test_available_now_reads_in_limited_batches_and_a_restart_repeats_an_uncommitted_one(
    store: StoreBuilder, stream_store: StreamStore
) -> None:
    sent = store.send_many("Topic", 20) + store.send_many("Topic", 10, queue_id=1)
    stream = stream_store(store.root, topic="Topic", startingOffsets="earliest", maxOffsetsPerTrigger="12")
    stream.run()
    assert [len(stream.batches[number]) for number in stream.runs] == [12, 12, 6]
    assert stream.bodies() == sent
    before = dict(stream.batches), stream.logged_offsets()

    stream.forget_commit(2)
    later = store.send_many("Topic", 5)
    stream.options["maxOffsetsPerTrigger"] = "4"  # does not change a batch that is logged
    stream.run()
    assert stream.runs == [0, 1, 2, 2, 3, 4]
    assert {number: stream.batches[number] for number in (0, 1, 2)} == before[0]
    assert {number: end for number, end in stream.logged_offsets().items() if number < 3} == before[1]
    assert stream.bodies(3) + stream.bodies(4) == later
    assert sorted(stream.bodies()) == sorted(sent + later)

    stream.run()
    assert stream.runs == [0, 1, 2, 2, 3, 4], "nothing new, no batch"


@pytest.mark.slow
def test_queues_and_topics_join_a_running_query_that_stops_and_starts(
    store: StoreBuilder, stream_store: StreamStore
) -> None:
    sent = store.send_many("Topic", 5)
    stream = stream_store(store.root, subscribePattern="Topic.*", startingOffsets="earliest")
    query = stream.start()
    query.processAllAvailable()
    sent += store.send_many("Topic", 3) + store.send_many("Topic", 3, queue_id=1)
    query.processAllAvailable()
    sent += store.send_many("Topic2", 4, queue_id=3)
    query.processAllAvailable()
    assert sorted(stream.bodies()) == sorted(sent)
    progress = query.lastProgress
    assert progress is not None
    assert progress.sources[0].latestOffset
    query.stop()

    sent += store.send_many("Topic", 4) + store.send_many("Topic3", 2)
    query = stream.start()
    query.processAllAvailable()
    sent += store.send_many("Topic", 1)
    query.processAllAvailable()
    query.stop()
    assert len(stream.runs) == len(set(stream.runs)), "no batch ran twice"
    assert sorted(stream.bodies()) == sorted(sent)
    for number in stream.runs:
        order = [row[:3] for row in stream.batches[number]]
        assert order == sorted(order), "each queue in order"


@needs_limits
def test_a_stream_reads_what_apaches_broker_wrote(
    stream_store: StreamStore, pristine_store: Callable[[str], Fixture]
) -> None:
    store = pristine_store("roll")
    options = {"subscribe": "TopicOne,TopicTwo", "startingOffsets": "earliest", "maxBytesPerTrigger": "64k"}
    stream = stream_store(store.root, **options)
    stream.run()
    assert len(stream.runs) > 2
    found = sorted(row[:3] for rows in stream.batches.values() for row in rows)
    golden = golden_rows(store, "TopicOne", "TopicTwo")
    assert found == [(row["topic"], row["queue_id"], row["queue_offset"]) for row in golden]


@pytest.mark.slow
def test_a_new_query_at_the_end_of_an_idle_store_has_an_empty_first_batch(
    store: StoreBuilder, stream_store: StreamStore
) -> None:
    store.send_many("Topic", 3)
    stream = stream_store(store.root, topic="Topic")
    stream.run()
    later = store.send_many("Topic", 2)
    stream.run()
    assert stream.bodies() == later


@pytest.mark.slow
def test_a_query_over_batch_queues_stops_within_a_batch_and_goes_on(
    pristine_store: Callable[[str], Fixture], read_store: ReadStore, stream_store: StreamStore
) -> None:
    fixture = pristine_store("batches")
    assert fixture.served is not None
    lines = [json.loads(line) for line in fixture.served.read_text("utf-8").splitlines()]
    served = sorted(
        (line["queueId"], line["queueOffset"], line["bodySha256"])
        for line in lines
        if line["type"] == "message" and line["topic"] == "Batches"
    )
    rows = read_store(fixture.root, topic="Batches").select("queue_id", "queue_offset", "body").collect()
    assert sorted((*row[:2], hashlib.sha256(row.body).hexdigest()) for row in rows) == served
    stream = stream_store(fixture.root, topic="Batches", startingOffsets="earliest", maxOffsetsPerTrigger="17")
    stream.run()
    last = stream.runs[-1]
    stream.forget_commit(last)
    stream.run()
    assert last > 2
    assert stream.runs[-2:] == [last, last], "the restart repeats the batch"
    found = [row for batch in stream.batches.values() for row in batch]
    assert sorted((*row[1:3], hashlib.sha256(row.body).hexdigest()) for row in found) == served


@pytest.mark.slow
def test_loss_ends_a_query_by_its_name_or_is_passed_over(store: StoreBuilder, stream_store: StreamStore) -> None:
    store.send_many("Topic", 6, prefix="old ")
    stream = stream_store(store.root, topic="Topic", startingOffsets="earliest")
    stream.run()
    store.delete_topic("Topic")
    sent = store.send_many("Topic", 2, prefix="new ")
    with pytest.raises(StreamingQueryException, match=r"\[SPARK_MQ_DATA_LOSS\] queue Topic/broker-a/0 ends at 2"):
        stream.run()
    stream.options["failOnDataLoss"] = "false"
    stream.run()
    assert stream.bodies(max(stream.runs)) == sent
