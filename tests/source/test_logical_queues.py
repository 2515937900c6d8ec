"""The logical view of static topics: queues and offsets as clients see them, over the physical queues of one store or several.

Expected offsets are Java's (LogicQueueMappingItem.computeStaticQueueOffsetStrictly): logic offset + physical − start.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from spark_mq.conditions import OptionError
from spark_mq.source.cluster import Cluster
from spark_mq.source.logical_queues import LOGICAL_BROKER, Link, LogicalCluster, chains_of, links_of
from spark_mq.source.offsets import QueueId, QueueOffsets
from storage.tables.document import OFFSETS_FILE
from storage.tables.topics import MAPPINGS_FILE, MappingItem, TopicQueueMapping, TopicQueueMappingTable
from tests.spark.in_process import bodies, next_batch, open_stream, plan_batch, read_batch
from tests.support.store_builder import START_MS, StoreBuilder

MADE_MS = 1_600_000_000_000
CHAINS = {
    0: (MappingItem("a", 1, end_offset=3), MappingItem("b", 0, generation=1, logic_offset=1_000)),
    1: (MappingItem("a", 0),),
    2: (MappingItem("b", 1, start_offset=2, logic_offset=50),),
    3: (MappingItem("a", 2), MappingItem("b", 2, generation=1, logic_offset=-1)),
}
BOUNDS = {QueueId("S", "a", 1): (0, 5), QueueId("S", "b", 0): (0, 4)}


def save_mapping(home: Path, broker: str, hosted: Mapping[int, tuple[MappingItem, ...]], epoch: int = MADE_MS) -> None:
    mapping = TopicQueueMapping("S", broker, 4, epoch, hosted_queues=hosted)
    table = TopicQueueMappingTable().with_mapping(mapping, now_ms=MADE_MS)
    (home / "config").mkdir(exist_ok=True)
    (home / "config" / MAPPINGS_FILE).write_text(table.to_text())


@pytest.fixture
def stores(tmp_path: Path) -> dict[str, StoreBuilder]:
    """Two brokers with parts of a static topic, and an ordinary one."""
    made = {name: StoreBuilder(tmp_path / name) for name in ("a", "b")}
    a, b = made["a"], made["b"]
    for number in range(5):  # the last two came when the queue had moved
        a.send("S", f"a1-{number}", queue_id=1)
    for number in range(2):
        a.send("S", f"a0-{number}", queue_id=0)
        a.send("Plain", f"plain-{number}")
    a.send("S", "a2-0", queue_id=2)
    for number in range(4):
        b.send("S", f"b0-{number}", queue_id=0, store_time_ms=START_MS + 100_000 + 1_000 * number)
        b.send("S", f"b1-{number}", queue_id=1, store_time_ms=START_MS + 100_000 + 1_000 * number)
    b.send("S", "b2-0", queue_id=2)
    save_mapping(tmp_path / "a", "a", {0: CHAINS[0], 1: CHAINS[1], 3: CHAINS[3]})
    save_mapping(tmp_path / "b", "b", {0: CHAINS[0], 2: CHAINS[2], 3: CHAINS[3]})
    return made


LOGICAL_ROWS = {
    "a1-0": (0, 0),
    "a1-1": (0, 1),
    "a1-2": (0, 2),
    "b0-0": (0, 1_000),
    "b0-1": (0, 1_001),
    "b0-2": (0, 1_002),
    "b0-3": (0, 1_003),
    "a0-0": (1, 0),
    "a0-1": (1, 1),
    "b1-2": (2, 50),
    "b1-3": (2, 51),
    "a2-0": (3, 0),
}
"""Body → logical queue and offset. What stands outside of its link, or in one whose place is open, is no logical queue's."""


def shown(rows: list[dict[str, Any]]) -> dict[str, tuple[int, int]]:
    assert {(row["topic"], row["broker_name"]) for row in rows} <= {("S", LOGICAL_BROKER)}
    return {row["body"].decode(): (row["queue_id"], row["queue_offset"]) for row in rows}


def test_each_message_has_its_logical_queue_and_offset_across_the_stores(
    stores: dict[str, StoreBuilder], tmp_path: Path
) -> None:
    assert shown(read_batch(tmp_path, topic="S", logical="true")) == LOGICAL_ROWS
    assert shown(read_batch(tmp_path, topic="S", logical="true", maxRecordsPerPartition="1")) == LOGICAL_ROWS
    physical = read_batch(tmp_path, topic="S")
    assert {(row["broker_name"], row["queue_id"], row["queue_offset"]) for row in physical} >= {
        ("a", 1, 4),
        ("b", 2, 0),
    }
    assert len(physical) == 17


def test_other_topics_are_as_they_are(stores: dict[str, StoreBuilder], tmp_path: Path) -> None:
    with pytest.warns(RuntimeWarning, match="not read, for their stores are not in path: b"):
        rows = read_batch(tmp_path / "a", topic="Plain", logical="true")
    assert [(row["broker_name"], row["queue_offset"]) for row in rows] == [("a", 0), ("a", 1)]


def test_of_one_store_its_own_links_are_shown_and_the_others_are_warned_of(
    stores: dict[str, StoreBuilder], tmp_path: Path
) -> None:
    with pytest.warns(RuntimeWarning, match="not read, for their stores are not in path: a"):
        rows = read_batch(tmp_path / "b", topic="S", logical="true")
    assert shown(rows) == {body: place for body, place in LOGICAL_ROWS.items() if body.startswith("b")}


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (0, 2, ["a1-0", "a1-1"]),
        (2, 1_001, ["a1-2", "b0-0"]),
        (3, 1_000, []),
        (500, 1_003, ["b0-0", "b0-1", "b0-2"]),
        (-2, -1, ["a1-0", "a1-1", "a1-2", "b0-0", "b0-1", "b0-2", "b0-3"]),
    ],
)
def test_offsets_are_logical_ones(
    stores: dict[str, StoreBuilder], tmp_path: Path, start: int, end: int, expected: list[str]
) -> None:
    limits = {
        name: f'{{"S": {{"{LOGICAL_BROKER}": {{"0": {offset}}}}}}}'
        for name, offset in (("startingOffsets", start), ("endingOffsets", end))
    }
    rows = read_batch(tmp_path, assign=f'{{"S": {{"{LOGICAL_BROKER}": [0]}}}}', logical="true", **limits)
    assert bodies(rows) == expected


def test_a_time_is_found_in_whichever_link_has_it(stores: dict[str, StoreBuilder], tmp_path: Path) -> None:
    options = {"topic": "S", "queueId": "0", "logical": "true"}
    late = read_batch(tmp_path, startingTimestamp=str(START_MS + 101_000), **options)
    assert bodies(late) == ["b0-1", "b0-2", "b0-3"]
    early = read_batch(
        tmp_path, startingTimestamp=str(START_MS + 1_500), endingTimestamp=str(START_MS + 101_000), **options
    )
    assert bodies(early) == ["a1-1", "a1-2", "b0-0"]


def test_a_key_is_looked_for_in_every_link(stores: dict[str, StoreBuilder], tmp_path: Path) -> None:
    stores["a"].send("S", "keyed-a", queue_id=0, keys="k")
    stores["b"].send("S", "keyed-b", queue_id=0, keys="k")
    rows = read_batch(tmp_path, topic="S", logical="true", key="k")
    assert shown(rows) == {"keyed-a": (1, 2), "keyed-b": (0, 1_004)}


def test_a_stream_goes_on_in_logical_offsets_and_its_checkpoint_has_the_form_of_any_other(
    stores: dict[str, StoreBuilder], tmp_path: Path
) -> None:
    options = {
        "topic": "S",
        "queueId": "0",
        "logical": "true",
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "2",
    }
    reader = open_stream(tmp_path, **options)
    position, found = reader.initialOffset(), []
    for _ in range(600):
        position, rows = next_batch(reader, position)
        found += bodies(rows)
        if len(found) == 7:
            break
    assert found == ["a1-0", "a1-1", "a1-2", "b0-0", "b0-1", "b0-2", "b0-3"]
    stores["b"].send("S", "later", queue_id=0)
    reader.stop()
    again = open_stream(tmp_path, **options)
    position, rows = next_batch(again, position)
    assert bodies(rows) == ["later"]
    assert position["S"].keys() == {LOGICAL_BROKER}
    leaf = position["S"][LOGICAL_BROKER]["0"]
    assert leaf["next"] == 1_005
    assert leaf["before"] is not None, "the record before it is known by its place, as in every checkpoint"
    assert QueueOffsets.from_json_dict(position).to_json_dict() == position
    again.stop()


def test_a_queue_that_moves_while_it_is_streamed_goes_on_in_its_next_link(
    stores: dict[str, StoreBuilder], tmp_path: Path
) -> None:
    reader = open_stream(tmp_path, topic="S", queueId="1", logical="true", startingOffsets="earliest")
    position, rows = next_batch(reader, reader.initialOffset())
    assert bodies(rows) == ["a0-0", "a0-1"]
    moved = (MappingItem("a", 0, end_offset=2), MappingItem("b", 3, generation=1, logic_offset=700))
    save_mapping(tmp_path / "b", "b", {0: CHAINS[0], 1: moved, 2: CHAINS[2], 3: CHAINS[3]}, epoch=MADE_MS + 1)
    stores["b"].send("S", "b3-0", queue_id=3)
    position, rows = next_batch(reader, position)
    assert shown(rows) == {"b3-0": (1, 700)}
    assert position["S"][LOGICAL_BROKER]["1"]["next"] == 701
    reader.stop()


def test_a_physical_queue_of_a_static_topic_has_no_name_in_the_logical_view(
    stores: dict[str, StoreBuilder], tmp_path: Path
) -> None:
    with pytest.raises(OptionError, match="S/a/1"):
        read_batch(tmp_path, assign='{"S": {"a": [1]}}', logical="true")


def test_no_task_is_planned_for_the_gap_between_two_links(stores: dict[str, StoreBuilder], tmp_path: Path) -> None:
    splits = plan_batch(tmp_path, topic="S", queueId="0", logical="true", minPartitions="2")
    assert [(split.queue.broker_name, split.ranges) for split in splits] == [("a", ((0, 3),)), ("b", ((0, 4),))]


def test_a_link_ends_where_the_next_begins_though_the_mapping_has_not_closed_it() -> None:
    chain = (MappingItem("a", 1), MappingItem("b", 0, generation=1, logic_offset=4))
    links = links_of("S", chain, ["a", "b"], BOUNDS.__getitem__)
    assert links == [Link(QueueId("S", "a", 1), 0, 4, 0), Link(QueueId("S", "b", 0), 0, 4, 4)]


def test_what_expired_of_a_link_is_no_part_of_it() -> None:
    links = links_of(
        "S", CHAINS[0], ["a", "b"], {QueueId("S", "a", 1): (4, 5), QueueId("S", "b", 0): (2, 4)}.__getitem__
    )
    assert links == [Link(QueueId("S", "a", 1), 4, 4, 0), Link(QueueId("S", "b", 0), 2, 4, 1_000)]


class Linked(LogicalCluster):
    """One logical queue over two links, of which only bounds and store times are there."""

    def __init__(self, physical: Mapping[str, tuple[int, int]], times: Mapping[str, list[int]] | None = None) -> None:
        self._physical, self._times = physical, times or {}

    def _links(self, queue: QueueId) -> list[Link]:
        return links_of("S", CHAINS[0], list(self._physical), lambda queue: self._physical[queue.broker_name])

    def _offset_by_time(self, queue: QueueId, timestamp_ms: int) -> int | None:
        times = self._times[queue.broker_name]
        found = bisect_left(times, timestamp_ms)
        return found if found < len(times) else None


LOGICAL = QueueId("S", LOGICAL_BROKER, 0)


@pytest.mark.parametrize(
    ("of_b", "bounds"), [((0, 0), (0, 3)), ((0, 7), (0, 1_007)), ((7, 7), (0, 1_007)), ((5, 7), (0, 1_007))]
)
def test_the_end_stays_where_it_was_when_the_newest_link_has_expired(
    of_b: tuple[int, int], bounds: tuple[int, int]
) -> None:
    assert Linked({"a": (0, 3), "b": of_b}).bounds(LOGICAL) == bounds


@pytest.mark.parametrize(
    ("before_ms", "end"), [(500, 0), (1_500, 1), (2_500, 2), (4_500, 1_002), (5_500, 1_002), (6_500, None)]
)
def test_a_filter_by_time_keeps_what_a_broker_whose_clock_is_behind_has_stored(
    monkeypatch: pytest.MonkeyPatch, before_ms: int, end: int | None
) -> None:
    """A reader of the offsets before `end` gets every older message; Spark drops the others."""
    monkeypatch.setattr(Cluster, "offset_by_time", Linked._offset_by_time)
    cluster = Linked({"a": (0, 3), "b": (0, 3)}, {"a": [1_000, 2_000, 5_000], "b": [3_000, 4_000, 6_000]})
    assert cluster.end_by_time(LOGICAL, before_ms) == end


def test_of_two_brokers_words_the_chain_that_goes_on_longer_counts() -> None:
    old = TopicQueueMapping("S", "a", 4, 1, hosted_queues={0: CHAINS[0][:1]})
    new = TopicQueueMapping("S", "b", 4, 2, hosted_queues={0: CHAINS[0]})
    tables = {one.broker_name: TopicQueueMappingTable(mappings={"S": one}) for one in (old, new)}
    assert chains_of(tables) == {QueueId("S", LOGICAL_BROKER, 0): CHAINS[0]}
    assert chains_of(dict(reversed(tables.items()))) == chains_of(tables)


def test_a_groups_positions_are_kept_by_physical_queue(stores: dict[str, StoreBuilder], tmp_path: Path) -> None:
    """ConsumerManageProcessor.rewriteRequestForStaticTopic: the newest link in which the group stored anything counts."""
    (tmp_path / "a" / "config" / OFFSETS_FILE).write_text('{"offsetTable":{"S@g":{1:2,0:1}}}')
    cluster = LogicalCluster.open([str(tmp_path)])
    moved = QueueId("S", LOGICAL_BROKER, 0)
    try:
        stored = {queue.queue_id: cluster.group_offset("g", queue) for queue in cluster.queues() if queue.topic == "S"}
        assert stored == {0: 2, 1: 1, 2: None, 3: None}
        a, b = QueueId("S", "a", 1), QueueId("S", "b", 0)
        assert cluster.physical_positions({moved: 2}) == {a: 2}
        assert cluster.physical_positions({moved: 1_001}) == {a: 3, b: 1}
        assert cluster.physical_positions({QueueId("Plain", "a", 0): 1}) == {QueueId("Plain", "a", 0): 1}
        (tmp_path / "b" / "config" / OFFSETS_FILE).write_text('{"offsetTable":{"S@g":{0:1}}}')
        cluster.refresh()
        assert cluster.group_offset("g", moved) == 1_001
    finally:
        cluster.close()


def test_bytes_are_counted_and_cut_over_the_links(stores: dict[str, StoreBuilder], tmp_path: Path) -> None:
    cluster = LogicalCluster.open([str(tmp_path)])
    queue = QueueId("S", LOGICAL_BROKER, 0)
    try:
        first = cluster.bytes_between(queue, 0, 3)
        assert first == cluster.stores["a"].size_between("S", 1, 0, 3)
        assert cluster.bytes_between(queue, 0, 1_004) == first + cluster.stores["b"].size_between("S", 0, 0, 4)
        one = cluster.stores["b"].size_between("S", 0, 0, 1)
        assert cluster.offset_at_bytes(queue, 0, first - 1) == 2
        assert cluster.offset_at_bytes(queue, 0, first + one) == 1_001
        assert cluster.offset_at_bytes(queue, 0, 1 << 30) == cluster.maximum(queue) == 1_004
    finally:
        cluster.close()
