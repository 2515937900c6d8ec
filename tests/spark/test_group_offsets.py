"""commitOffsets: a query's finished offsets stand in the store as its consumer group's."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import fsspec
import pytest
from pyspark.sql import SparkSession

from spark_mq.conditions import OptionError
from spark_mq.source.group_offsets import WRITE_INTERVAL_MS, GroupOffsets
from spark_mq.source.lag import skipped_commits
from spark_mq.source.offsets import QueueId
from spark_mq.source.options import SourceOptions
from spark_mq.source.stream_reader import StreamReader
from spark_mq.spark_api import ReadAllAvailable, ReadMaxRows
from storage import open_store
from storage.errors import NameIllegalError
from storage.files.local_file_system import LocalFileSystem
from storage.tables.consumer_groups import ConsumerOffsets
from storage.tables.offline_changes import write_group_offsets
from tests.support.clock import Clock
from tests.support.fixture_stores import Fixture, golden_lines

pytestmark = pytest.mark.slow

TOPICS = ("TopicOne", "TopicThree", "TopicTwo")
GROUP = "GroupSpark"


def golden_ends(store: Fixture) -> dict[tuple[str, int], int]:
    lines = golden_lines(store.golden, "queue")
    return {(line["topic"], line["queueId"]): line["maxOffset"] for line in lines if line["topic"] in TOPICS}


def stored(root: Path, group: str = GROUP) -> dict[tuple[str, int], int]:
    table = ConsumerOffsets.load((root / "config" / "consumerOffset.json").read_text("utf-8"))
    return {
        (topic, queue_id): offset
        for (topic, of_group), queues in table.offsets.items()
        if of_group == group
        for queue_id, offset in queues.items()
    }


def counter(root: Path) -> int:
    return ConsumerOffsets.load((root / "config" / "consumerOffset.json").read_text("utf-8")).version.counter


# Without Spark: when it writes, when it does not


def of_queues(*offsets: int) -> dict[QueueId, int]:
    return {QueueId("TopicOne", "broker-lab", i): offset for i, offset in enumerate(offsets)}


@pytest.fixture
def closing() -> Iterator[ExitStack]:
    """Gives back what a test opens: descriptors above 1023 would end Py4J's callback server for the whole session."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def opened(closing: ExitStack) -> Callable[..., GroupOffsets]:
    def open_offsets(store: Fixture, clock: Clock, group: str = GROUP) -> GroupOffsets:
        return GroupOffsets.of_stores(group, {"broker-lab": closing.enter_context(open_store(store.root))}, clock)

    return open_offsets


def test_offsets_are_written_once_a_second_at_most_and_none_is_lost(
    fixture_store: Callable[[str], Fixture], opened: Callable[..., GroupOffsets]
) -> None:
    store, clock = fixture_store("roll"), Clock(1_900_000_000_000)
    offsets = opened(store, clock)
    offsets.store(of_queues(1, 2, 3))
    written = counter(store.root)
    clock.now_ms += WRITE_INTERVAL_MS - 1
    offsets.store(of_queues(4, 5, 6))
    assert counter(store.root) == written
    clock.now_ms += 1
    offsets.store(of_queues(4, 5, 6))
    assert stored(store.root) == {("TopicOne", 0): 4, ("TopicOne", 1): 5, ("TopicOne", 2): 6}
    assert counter(store.root) == written + 1


def test_a_new_group_has_the_length_that_the_named_release_takes(
    fixture_store: Callable[[str], Fixture], closing: ExitStack
) -> None:
    """5.4 and later make no entry for a longer one; a group that is there goes on."""
    fixture, longest = fixture_store("roll"), "G" * 120
    store = closing.enter_context(open_store(fixture.root, rocketmq_version="5.4.0"))
    with pytest.raises(OptionError, match=r"has 121 characters: a broker of RocketMQ 5\.4\.0 \(rocketmqVersion\)"):
        GroupOffsets.of_stores(f"{longest}G", {"broker-lab": store})
    with pytest.raises(NameIllegalError):
        write_group_offsets(
            str(fixture.root), f"{longest}G", {("T", 0): 1}, now_ms=1, file_system=LocalFileSystem(), longest=120
        )
    for release, group in (("5.4.0", longest), ("5.3.3", f"{longest}G"), ("5.4.0", f"{longest}G")):
        store = closing.enter_context(open_store(fixture.root, rocketmq_version=release))
        offsets = GroupOffsets.of_stores(group, {"broker-lab": store})
        offsets.store(of_queues(1), at_once=True)
        assert offsets.skipped == {}


def test_the_last_offsets_of_a_run_do_not_wait(
    fixture_store: Callable[[str], Fixture], opened: Callable[..., GroupOffsets]
) -> None:
    store, clock = fixture_store("roll"), Clock(1_900_000_000_000)
    offsets = opened(store, clock)
    offsets.store(of_queues(1))
    offsets.store(of_queues(2), at_once=True)
    assert stored(store.root) == {("TopicOne", 0): 2}


def test_a_position_that_does_not_move_is_written_once(
    fixture_store: Callable[[str], Fixture], opened: Callable[..., GroupOffsets]
) -> None:
    store, clock = fixture_store("roll"), Clock(1_900_000_000_000)
    offsets = opened(store, clock)
    offsets.store(of_queues(1))
    path = store.root / "config" / "consumerOffset.json"
    before = path.stat().st_mtime_ns, path.stat().st_ino
    for _ in range(3):
        clock.now_ms += 10 * WRITE_INTERVAL_MS
        offsets.store(of_queues(1), at_once=True)
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == before


def test_a_clock_that_was_set_back_does_not_stop_the_writes(
    fixture_store: Callable[[str], Fixture], opened: Callable[..., GroupOffsets]
) -> None:
    store, clock = fixture_store("roll"), Clock(1_900_000_000_000)
    offsets = opened(store, clock)
    offsets.store(of_queues(1))
    clock.now_ms -= 3_600_000
    offsets.store(of_queues(2))
    assert stored(store.root) == {("TopicOne", 0): 2}


def test_a_broker_that_answers_late_is_left_alone_ten_times_as_long() -> None:
    clock, asked = Clock(1_900_000_000_000), []

    def write(group: str, offsets: Mapping[tuple[str, int], int], now_ms: int) -> None:
        asked.append(offsets)
        clock.now_ms += 2_000 if len(asked) == 1 else 0
        if len(asked) == 1:
            raise OSError("timed out")

    offsets = GroupOffsets(GROUP, {"broker-lab": write}.__getitem__, clock)
    with pytest.warns(RuntimeWarning, match="timed out"):
        offsets.store(of_queues(1))
    for waited_ms, count in ((19_999, 1), (1, 2), (WRITE_INTERVAL_MS, 3)):
        clock.now_ms += waited_ms
        offsets.store(of_queues(2 + waited_ms))
        assert len(asked) == count


def test_a_locked_store_is_skipped_and_said_so_and_made_good_later(
    fixture_store: Callable[[str], Fixture], opened: Callable[..., GroupOffsets]
) -> None:
    store, clock = fixture_store("roll"), Clock(1_900_000_000_000)
    offsets = opened(store, clock)
    with LocalFileSystem().locked(str(store.root / "lock")), pytest.warns(RuntimeWarning, match="skipped at broker"):
        offsets.store(of_queues(1))
    assert stored(store.root) == {}
    assert "locked by another writer" in offsets.to_json_dict()["skipped"]["broker-lab"]
    clock.now_ms += WRITE_INTERVAL_MS
    offsets.store(of_queues(1))
    assert stored(store.root) == {("TopicOne", 0): 1}
    assert offsets.to_json_dict() == {"group": GROUP, "skipped": {}}


def test_one_locked_store_of_a_cluster_does_not_keep_the_others_from_theirs(
    fixture_store: Callable[[str], Fixture], closing: ExitStack
) -> None:
    free, held = fixture_store("roll"), fixture_store("roll")
    stores = {
        "broker-a": closing.enter_context(open_store(free.root)),
        "broker-b": closing.enter_context(open_store(held.root)),
    }
    offsets = GroupOffsets.of_stores(GROUP, stores, Clock(1_900_000_000_000))
    positions = {QueueId("TopicOne", name, 0): 7 for name in stores}
    with LocalFileSystem().locked(str(held.root / "lock")), pytest.warns(RuntimeWarning, match="broker-b"):
        offsets.store(positions)
    assert list(offsets.skipped) == ["broker-b"]
    assert stored(free.root) == {("TopicOne", 0): 7}
    assert stored(held.root) == {}


def test_an_unreadable_offset_table_is_skipped_and_left_alone(
    fixture_store: Callable[[str], Fixture], opened: Callable[..., GroupOffsets]
) -> None:
    store = fixture_store("roll")
    path = store.root / "config" / "consumerOffset.json"
    path.write_text("{", "utf-8")
    (path.parent / "consumerOffset.json.bak").unlink()
    offsets = opened(store, Clock(1_900_000_000_000))
    with pytest.warns(RuntimeWarning, match="SPARK_MQ_STORE_STATE_FILE"):
        offsets.store(of_queues(1))
    assert path.read_text("utf-8") == "{"


@pytest.mark.parametrize("group", ["a b", "CID_RMQ_SYS_TRANS", "g" * 250])
def test_a_group_that_cannot_be_is_refused(
    fixture_store: Callable[[str], Fixture], opened: Callable[..., GroupOffsets], group: str
) -> None:
    with pytest.raises(OptionError, match="consumerGroup"):
        opened(fixture_store("roll"), Clock(1_900_000_000_000), group)


def test_a_store_that_must_not_be_written_is_refused_by_the_name_of_its_setting(
    fixture_store: Callable[[str], Fixture],
    opened: Callable[..., GroupOffsets],
) -> None:
    store = fixture_store("roll")
    with store.conf.open("a", encoding="utf-8") as conf:
        conf.write("brokerRole=SLAVE\nbrokerId=1\n")
    with pytest.raises(OptionError, match=r"commitOffsets.*brokerRole"):
        opened(store, Clock(1_900_000_000_000))


def test_a_remote_store_is_refused(fixture_store: Callable[[str], Fixture], closing: ExitStack) -> None:
    store = fixture_store("roll")
    memory = fsspec.filesystem("memory")
    memory.put(str(store.conf.parent), "/group-offsets", recursive=True)
    try:
        remote = closing.enter_context(open_store("memory://group-offsets/store"))
        with pytest.raises(OptionError, match=r"commitOffsets: store memory://.* is remote"):
            GroupOffsets.of_stores(GROUP, {"broker-lab": remote})
    finally:
        memory.rm("/group-offsets", recursive=True)


# The reader as Spark drives it


@pytest.fixture
def reader_of(closing: ExitStack) -> Callable[..., StreamReader]:
    def make_reader(store: Fixture, **options: str) -> StreamReader:
        given = {"path": str(store.root), "subscribe": ",".join(TOPICS), "consumerGroup": GROUP, **options}
        reader = StreamReader(SourceOptions.parse(given, "streaming"), ("body",))
        closing.callback(reader.stop)
        return reader

    return make_reader


def next_offsets(offset: Mapping[str, Any]) -> dict[tuple[str, int], int]:
    return {
        (topic, int(queue_id)): position["next"]
        for topic, brokers in offset.items()
        for queue_id, position in brokers["broker-lab"].items()
    }


def test_what_is_stored_is_the_start_of_the_next_batch_never_its_end(
    fixture_store: Callable[[str], Fixture], reader_of: Callable[..., StreamReader]
) -> None:
    store = fixture_store("roll")
    reader = reader_of(store, startingOffsets="earliest", commitOffsets="true", maxOffsetsPerTrigger="90")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(90))
    assert next_offsets(end) != next_offsets(start)
    assert stored(store.root) == next_offsets(start)
    assert reader.reportLatestOffset()["commitOffsets"] == {"group": GROUP, "skipped": {}}


def test_a_query_that_starts_lower_sets_its_group_back(
    fixture_store: Callable[[str], Fixture], reader_of: Callable[..., StreamReader]
) -> None:
    store = fixture_store("roll")
    latest = reader_of(store, startingOffsets="latest", commitOffsets="true")
    latest.latestOffset(latest.initialOffset(), ReadAllAvailable())
    assert stored(store.root) == golden_ends(store)
    again = reader_of(store, startingOffsets="earliest", commitOffsets="true")
    again.latestOffset(again.initialOffset(), ReadAllAvailable())
    assert stored(store.root) == dict.fromkeys(golden_ends(store), 0)


def test_without_the_option_nothing_is_written_or_reported(
    fixture_store: Callable[[str], Fixture], reader_of: Callable[..., StreamReader]
) -> None:
    store = fixture_store("roll")
    reader = reader_of(store, startingOffsets="earliest")
    reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert stored(store.root) == {}
    assert "commitOffsets" not in reader.reportLatestOffset()


def test_a_query_starts_at_its_groups_offsets(
    fixture_store: Callable[[str], Fixture], reader_of: Callable[..., StreamReader]
) -> None:
    store = fixture_store("roll")
    offsets = {("TopicOne", 0): 80, ("TopicTwo", 2): 7}
    write_group_offsets(str(store.root), GROUP, offsets, now_ms=1_900_000_000_000, file_system=LocalFileSystem())
    start = next_offsets(reader_of(store, startingOffsets="group").initialOffset())
    assert start == {**dict.fromkeys(golden_ends(store), 0), **offsets}


def test_a_query_starts_at_the_offsets_that_a_java_consumer_stored(
    fixture_store: Callable[[str], Fixture], reader_of: Callable[..., StreamReader]
) -> None:
    """A fixture's own consumerOffset.json, bare integer keys and all."""
    store = fixture_store("clean")
    theirs = stored(store.root, "GroupR")
    assert theirs
    topics = sorted({topic for topic, _ in theirs if not topic.startswith("%")})
    reader = reader_of(store, subscribe=",".join(topics), startingOffsets="group", consumerGroup="GroupR")
    start = next_offsets(reader.initialOffset())
    assert {queue: start[queue] for queue in theirs if queue[0] in topics} == {
        queue: offset for queue, offset in theirs.items() if queue[0] in topics
    }


# In a session


def run(spark: SparkSession, store: Fixture, checkpoint: Path, **options: str) -> list[Any]:
    """A run of AvailableNow to its end; its progresses."""
    given = {"path": str(store.root), "subscribe": ",".join(TOPICS), "consumerGroup": GROUP, **options}
    stream = spark.readStream.format("spark_mq").options(**given).load()
    writer = stream.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination(120)
    return list(query.recentProgress)


@pytest.mark.spark
def test_after_a_run_of_available_now_all_its_batches_are_stored(
    spark: SparkSession, fixture_store: Callable[[str], Fixture], tmp_path: Path
) -> None:
    store = fixture_store("roll")
    options = {"startingOffsets": "earliest", "commitOffsets": "true", "maxOffsetsPerTrigger": "300"}
    progresses = run(spark, store, tmp_path, **options)
    assert len(progresses) > 2
    assert stored(store.root) == golden_ends(store)
    assert not (store.root / "abort").exists()
    assert all(skipped_commits(progress) == {} for progress in progresses)


@pytest.mark.spark
def test_a_query_goes_on_where_its_group_stands(
    spark: SparkSession, fixture_store: Callable[[str], Fixture], tmp_path: Path
) -> None:
    store = fixture_store("roll")
    run(spark, store, tmp_path / "one", startingOffsets="earliest", commitOffsets="true")
    behind = {("TopicOne", 1): 80, ("TopicThree", 0): 70}
    write_group_offsets(str(store.root), GROUP, behind, now_ms=1_900_000_000_000, file_system=LocalFileSystem())
    progresses = run(spark, store, tmp_path / "two", startingOffsets="group", commitOffsets="true")
    ends = golden_ends(store)
    assert sum(p.numInputRows for p in progresses) == sum(ends[queue] - offset for queue, offset in behind.items())
    assert stored(store.root) == ends


@pytest.mark.spark
def test_beside_a_writer_the_query_runs_and_its_progress_says_what_was_skipped(
    spark: SparkSession, fixture_store: Callable[[str], Fixture], tmp_path: Path
) -> None:
    store = fixture_store("roll")
    with LocalFileSystem().locked(str(store.root / "lock")):
        progresses = run(spark, store, tmp_path, startingOffsets="earliest", commitOffsets="true")
    assert sum(progress.numInputRows for progress in progresses) == sum(golden_ends(store).values())
    assert stored(store.root) == {}
    skipped = skipped_commits(progresses[-1])
    assert list(skipped) == ["broker-lab"]
    assert "SPARK_MQ_STORE_LOCKED" in skipped["broker-lab"]
    latest = json.loads(progresses[-1].sources[0].latestOffset)
    assert latest["commitOffsets"]["group"] == GROUP
