"""Lag in stores: of groups as consumerOffset.json has them, and of a Spark query by its checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spark_mq.conditions import OptionError
from spark_mq.lag.checkpoints import NoPositionError, read_position
from spark_mq.lag.figures import GroupLag, Reader
from spark_mq.lag.of_stores import StoreLag
from spark_mq.source.cluster import Cluster
from spark_mq.source.offsets import QueueId
from storage import open_store
from storage.files.local_file_system import LocalFileSystem
from storage.tables.offline_changes import write_group_offsets

START_MS = 1_700_000_000_000


class Clock:
    """A time that a test sets."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def root(tmp_path: Path, clock: Clock) -> Path:
    """Ten messages, a second apart, in queue 0 of `orders`; none in queue 1."""
    path = tmp_path / "broker-a"
    with open_store(path, read_only=False, create=True, clock=clock) as store:
        put(store, clock, 10)
    return path


def put(store: Any, clock: Clock, count: int) -> None:
    for _ in range(count):
        store.put("orders", b"x", queue_id=0, queue_count=2)
        clock.now_ms += 1_000


def commit(root: Path, group: str, offsets: dict[tuple[str, int], int]) -> None:
    write_group_offsets(str(root), group, offsets, now_ms=START_MS, file_system=LocalFileSystem())


def checkpoint(directory: Path, offsets: dict[int, dict[str, Any]], done: int | None) -> Path:
    """A query's, as Spark writes it."""
    for name in ("offsets", "commits"):
        (directory / name).mkdir(parents=True)
    (directory / "metadata").write_text(json.dumps({"id": "11111111-2222-3333-4444-555555555555"}), "utf-8")
    for number, tree in offsets.items():
        (directory / "offsets" / str(number)).write_text(f"v1\n{{}}\n{json.dumps(tree)}", "utf-8")
    for number in range(-1 if done is None else done + 1):
        if number >= 0:
            (directory / "commits" / str(number)).write_text("v1\n{}", "utf-8")
    return directory


def groups_of(lag: StoreLag, **options: Any) -> dict[str, GroupLag]:
    return {each.reader.name: each for each in lag.look(**options).groups}


def test_a_group_is_behind_by_the_messages_that_it_has_not_read_and_for_as_long_as_the_first_of_them_lies_there(
    root: Path, clock: Clock
) -> None:
    commit(root, "billing", {("orders", 0): 4})
    commit(root, "audit", {("orders", 0): 10})
    cluster = Cluster.open([str(root)])
    found = groups_of(StoreLag(cluster, with_bytes=True, clock=clock))
    billing, audit = found["billing"], found["audit"]
    assert (billing.lag, billing.oldest_unread_ms) == (6, clock.now_ms - (START_MS + 4_000))
    with open_store(root) as store:
        assert billing.bytes == store.size_between("orders", 0, 4, 10)
    assert (audit.lag, audit.oldest_unread_ms, audit.bytes) == (0, 0, 0)
    assert billing.in_per_second is None, "a store tells no rate in one look"
    cluster.close()


def test_what_comes_between_two_looks_is_counted_as_a_rate(root: Path, clock: Clock) -> None:
    commit(root, "billing", {("orders", 0): 4})
    cluster = Cluster.open([str(root)])
    lag = StoreLag(cluster, clock=clock)
    lag.look()
    with open_store(root, read_only=False, clock=clock) as store:
        put(store, clock, 10)
    commit(root, "billing", {("orders", 0): 19})
    (found,) = lag.look().groups
    assert (found.lag, found.in_per_second, found.out_per_second) == (1, 1.0, 1.5)
    assert found.catch_up_ms == 2_000
    cluster.close()


def test_queues_can_be_chosen_and_groups_be_named(root: Path, clock: Clock) -> None:
    commit(root, "billing", {("orders", 0): 4, ("other", 0): 0})
    commit(root, "audit", {("orders", 0): 10})
    cluster = Cluster.open([str(root)])
    lag = StoreLag(cluster, clock=clock)
    assert set(groups_of(lag, groups=["audit"])) == {"audit"}
    chosen = groups_of(lag, keep=lambda reader, queue: reader.name == "billing" and queue.topic == "orders")
    assert {name: each.topics for name, each in chosen.items()} == {"billing": ("orders",)}
    cluster.close()


def test_a_query_stands_beside_the_groups_where_its_last_done_batch_ends(
    root: Path, clock: Clock, tmp_path: Path
) -> None:
    commit(root, "billing", {("orders", 0): 4})
    trees = {
        number: {"orders": {"broker-a": {"0": {"next": end, "before": None}}}} for number, end in enumerate((3, 7, 10))
    }
    directory = checkpoint(tmp_path / "checkpoints" / "to-lake", trees, done=1)
    cluster = Cluster.open([str(root)], broker_name="broker-a")
    report = StoreLag(cluster, checkpoints=[str(directory)], clock=clock).look()
    assert [(each.reader, each.lag) for each in report.groups] == [
        (Reader(str(directory), "query"), 3),
        (Reader("billing"), 6),
    ]
    assert report.groups[0].oldest_unread_ms == clock.now_ms - (START_MS + 7_000)
    cluster.close()


def test_a_query_whose_position_is_not_to_be_had_is_an_error_beside_the_others(
    root: Path, clock: Clock, tmp_path: Path
) -> None:
    commit(root, "billing", {("orders", 0): 4})
    tree = {"orders": {"broker-a": {"0": {"next": 3, "before": None}}}}
    begun = checkpoint(tmp_path / "begun", {0: tree}, done=None)
    spoilt = checkpoint(tmp_path / "spoilt", {0: tree}, done=0)
    cluster = Cluster.open([str(root)], broker_name="broker-a")
    lag = StoreLag(cluster, checkpoints=[str(begun), str(spoilt)], clock=clock)
    (spoilt / "metadata").unlink()
    report = lag.look()
    assert [each.reader.name for each in report.groups] == ["billing"]
    assert [type(error) for error in report.errors] == [NoPositionError, OptionError]
    assert f"{begun}: no batch of this query is done" in str(report.errors[0])
    with pytest.raises(OptionError, match="has no file metadata"):
        StoreLag(cluster, checkpoints=[str(spoilt)])
    cluster.close()


def test_a_querys_queues_of_brokers_whose_stores_are_missing_are_unknown(
    root: Path, clock: Clock, tmp_path: Path
) -> None:
    next_offset = {"0": {"next": 3, "before": None}}
    tree = {"orders": {"broker-a": next_offset, "broker-b": next_offset}}
    directory = checkpoint(tmp_path / "c", {0: tree}, done=0)
    cluster = Cluster.open([str(root)], broker_name="broker-a")
    lag = StoreLag(cluster, checkpoints=[str(directory)], clock=clock)
    (found,) = lag.look().groups
    assert (found.lag, found.unknown_queues, len(found.queues)) == (7, 1, 2)
    (chosen,) = lag.look(keep=lambda _, queue: queue.broker_name == "broker-a").groups
    assert chosen.unknown_queues == 0
    with pytest.raises(OptionError, match="no store of broker broker-b"):
        StoreLag(cluster, brokers=["broker-a", "broker-b"])
    cluster.close()


def test_a_query_without_a_done_batch_has_no_position(tmp_path: Path) -> None:
    tree = {"orders": {"broker-a": {"0": {"next": 3, "before": None}}}}
    found = read_position(str(checkpoint(tmp_path / "c", {0: tree}, done=None)))
    assert found.offsets == {}
    done = read_position(str(checkpoint(tmp_path / "d", {0: tree}, done=0)))
    assert done.offsets == {QueueId("orders", "broker-a", 0): 3}


@pytest.mark.parametrize(
    ("spoil", "rule"),
    [
        (lambda path: (path / "metadata").unlink(), "it has no file metadata"),
        (lambda path: (path / "metadata").write_text("[]", "utf-8"), "has no query id"),
        (lambda path: (path / "metadata").write_text("{", "utf-8"), "is no JSON"),
        (lambda path: (path / "offsets" / "0").unlink(), "though batch 0 is done"),
        (
            lambda path: (path / "offsets" / "0").write_text('v1\n{}\n{"kafka":{"0":1}}', "utf-8"),
            "of a source spark_mq",
        ),
    ],
)
def test_what_is_no_checkpoint_of_ours_is_named(tmp_path: Path, spoil: Any, rule: str) -> None:
    tree = {"orders": {"broker-a": {"0": {"next": 3, "before": None}}}}
    directory = checkpoint(tmp_path / "c", {0: tree}, done=0)
    spoil(directory)
    with pytest.raises(OptionError, match=rule):
        read_position(str(directory))
