"""What a task does not see is not lost: it fails with host and path, whatever failOnDataLoss says."""

from __future__ import annotations

import dataclasses
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_mq.conditions import DataLossError, SparkMqError
from spark_mq.source.offsets import QueueId
from spark_mq.source.queue_split import QueueMark, QueueSight, QueueSplit, StoreProof, queue_difference
from tests.support.store_builder import StoreBuilder

from .in_process import bodies, next_batch, open_stream, plan_batch, rows_of, until

TOLERANT = pytest.mark.parametrize("fail_on_data_loss", ["true", "false"])


@pytest.fixture
def store(tmp_path: Path) -> StoreBuilder:
    built = StoreBuilder(tmp_path / "here" / "broker-a", log_file_size_bytes=4 << 10)
    while len(built.log_files) < 3:
        built.send_many("Topic", 10)
    return built


def moved(splits: list[QueueSplit], root: Path) -> list[QueueSplit]:
    """The same splits for a task at whose path `root` lies."""
    found = []
    for split in splits:
        old = split.layout.root
        log = split.proof.log
        assert log is not None
        marks = tuple(mark._replace(directory=mark.directory.replace(old, str(root))) for mark in log.files)
        layout = dataclasses.replace(
            split.layout,
            root=str(root),
            log_directories=tuple(path.replace(old, str(root)) for path in split.layout.log_directories),
        )
        proof = split.proof._replace(log=log._replace(files=marks))
        found.append(dataclasses.replace(split, layout=layout, proof=proof))
    return found


def batch_splits(store: StoreBuilder, fail_on_data_loss: str) -> list[QueueSplit]:
    return plan_batch(store.root, topic="Topic", failOnDataLoss=fail_on_data_loss)


def stream_splits(store: StoreBuilder, fail_on_data_loss: str) -> list[QueueSplit]:
    reader = open_stream(store.root, topic="Topic", startingOffsets="earliest", failOnDataLoss=fail_on_data_loss)
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    return [split for part in reader.partitions(start, end) for split in part.splits]  # type: ignore[attr-defined]


PLANS = pytest.mark.parametrize("plan", [batch_splits, stream_splits])


def assert_not_here(splits: list[QueueSplit], *words: str) -> None:
    with pytest.raises(SparkMqError) as caught:
        rows_of(splits)
    text = str(caught.value)
    assert text.startswith("[SPARK_MQ_STORE_NOT_FOUND] "), text
    for expected in (socket.gethostname(), splits[0].layout.root, "mount", *words):
        assert expected in text


@PLANS
@TOLERANT
def test_no_store_at_the_path_is_no_loss(
    store: StoreBuilder, tmp_path: Path, plan: Callable[..., list[QueueSplit]], fail_on_data_loss: str
) -> None:
    splits = plan(store, fail_on_data_loss)
    assert_not_here(moved(splits, tmp_path / "there"), "commitlog is not there, or empty")
    (tmp_path / "there" / "commitlog").mkdir(parents=True)
    assert_not_here(moved(splits, tmp_path / "there"), "commitlog is not there, or empty")
    assert len(rows_of(splits)) == store.end("Topic")


@PLANS
@TOLERANT
def test_another_store_at_the_path_is_no_loss(
    store: StoreBuilder, tmp_path: Path, plan: Callable[..., list[QueueSplit]], fail_on_data_loss: str
) -> None:
    other = StoreBuilder(tmp_path / "other", log_file_size_bytes=4 << 10)
    while len(other.log_files) < 5:
        other.send_many("Topic", 10, prefix="another ")
    splits = moved(plan(store, fail_on_data_loss), other.root)
    assert_not_here(splits, "another store's")
    for _ in range(4):  # now its files are all newer
        other.delete_oldest_log_file()
    assert_not_here(splits, "another store's")


@PLANS
@TOLERANT
def test_an_older_copy_at_the_path_is_no_loss(
    store: StoreBuilder, tmp_path: Path, plan: Callable[..., list[QueueSplit]], fail_on_data_loss: str
) -> None:
    shutil.copytree(store.root, tmp_path / "copy")
    splits = moved(plan(store, fail_on_data_loss), tmp_path / "copy")
    assert len(rows_of(splits)) == store.end("Topic"), "as good as the original"
    store.send_many("Topic", 1)
    assert_not_here(moved(plan(store, fail_on_data_loss), tmp_path / "copy"), "older copy")


@PLANS
@TOLERANT
def test_the_log_without_its_queues_is_no_loss(
    store: StoreBuilder, tmp_path: Path, plan: Callable[..., list[QueueSplit]], fail_on_data_loss: str
) -> None:
    shutil.copytree(store.root / "commitlog", tmp_path / "there" / "commitlog")
    splits = moved(plan(store, fail_on_data_loss), tmp_path / "there")
    assert_not_here(splits, "consumequeue/Topic/0 holds no file of the queue")
    other = StoreBuilder(tmp_path / "other", log_file_size_bytes=4 << 10)
    other.send_many("Topic", 5)
    queues = tmp_path / "there" / "consumequeue"
    shutil.copytree(other.root / "consumequeue", queues)
    assert_not_here(splits, "does not hold the entry of offset")
    other.send_many("Topic", store.end("Topic"), prefix="other sizes ")
    shutil.copytree(other.root / "consumequeue", queues, dirs_exist_ok=True)
    assert_not_here(splits, "points to another message")


@PLANS
def test_what_has_expired_since_the_plan_is_lost_and_said_to_be(
    store: StoreBuilder, plan: Callable[..., list[QueueSplit]]
) -> None:
    strict, tolerant = plan(store, "true"), plan(store, "false")
    store.delete_oldest_log_file()
    with pytest.raises(DataLossError):
        rows_of(strict)
    left = rows_of(tolerant)
    assert 0 < len(left) < store.end("Topic")
    files = len(store.log_files)
    while len(store.log_files) < files + 2:
        store.send_many("Topic", 10)
    while len(store.log_files) > 1:
        store.delete_oldest_log_file()
    with pytest.raises(DataLossError):
        rows_of(strict)
    assert rows_of(tolerant) == []


def test_a_running_stream_goes_on_while_files_roll_and_expire(store: StoreBuilder) -> None:
    reader = open_stream(store.root, topic="Topic", startingOffsets="earliest")
    position, rows = next_batch(reader, reader.initialOffset())
    for _ in range(6):
        sent = store.send_many("Topic", 12)
        position, rows = next_batch(reader, position)
        assert bodies(rows) == sent
        while len(store.log_files) > 2:
            store.delete_oldest_log_file()


@TOLERANT
@pytest.mark.parametrize("what", ["", "commitlog", "consumequeue"])
def test_a_store_that_is_unmounted_under_a_running_query_is_no_loss(
    store: StoreBuilder, tmp_path: Path, fail_on_data_loss: str, what: str
) -> None:
    reader = open_stream(store.root, topic="Topic", startingOffsets="earliest", failOnDataLoss=fail_on_data_loss)
    position, _ = next_batch(reader, reader.initialOffset())
    os.rename(store.root / what, tmp_path / "away")
    (store.root / what).mkdir()

    def is_noticed() -> bool:
        assert next_batch(reader, position) == (position, [])
        return False

    for _ in range(2):
        with pytest.raises(SparkMqError, match="SPARK_MQ_STORE_NOT_FOUND"):
            until(is_noticed)
    (store.root / what).rmdir()
    os.rename(tmp_path / "away", store.root / what)
    sent = store.send_many("Topic", 3)
    position, rows = next_batch(reader, position)
    assert bodies(rows) == sent


def test_a_relative_path_means_the_drivers_directory(
    store: StoreBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(store.root.parent)
    for path, broker in (("broker-a", "broker-a"), ("./broker-a", "broker-a"), ("../here/broker-a", "broker-a")):
        splits = plan_batch(path, topic="Topic")
        stream = open_stream(path, topic="Topic", startingOffsets="earliest")
        start = stream.initialOffset()
        end = stream.latestOffset(start, stream.getDefaultReadLimit())
        assert {split.queue.broker_name for split in splits} == {broker}
        splits += [split for part in stream.partitions(start, end) for split in part.splits]  # type: ignore[attr-defined]
        monkeypatch.chdir(tmp_path)
        assert len(rows_of(splits)) == 2 * store.end("Topic")
        monkeypatch.chdir(store.root.parent)


def test_a_relative_path_keeps_the_brokers_name_of_a_checkpoint(
    store: StoreBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory that is called `store` names its broker after its parent, if the path names one."""
    os.rename(store.root, store.root.parent / "store")
    monkeypatch.chdir(store.root.parent)
    assert plan_batch("store", topic="Topic")[0].queue == QueueId("Topic", "store", 0)
    assert plan_batch(store.root.parent / "store", topic="Topic")[0].queue == QueueId("Topic", "here", 0)


@pytest.mark.parametrize(
    ("sight", "log_minimum", "expected"),
    [
        (QueueSight(True, 0, 500), 0, None),
        (QueueSight(True, 0, 500), 600, None),
        (QueueSight(True, 8, None), 500, None),  # the message has expired, and its queue's file
        (QueueSight(False, 0, None), 1_000, None),  # all of them have
        (QueueSight(False, 0, None), 999, "holds no file"),
        (QueueSight(True, 8, None), 499, "does not hold the entry of offset 7"),
        (QueueSight(True, 0, None), 501, "does not hold the entry of offset 7"),
        (QueueSight(True, 0, 400), 1_000, "points to another message"),
    ],
)
def test_a_queue_is_the_same_or_it_is_said_why_not(sight: QueueSight, log_minimum: int, expected: str | None) -> None:
    reason = queue_difference(StoreProof(None, 1_000, QueueMark(7, 500)), "/q", sight, log_minimum)
    assert (reason is None) == (expected is None)
    assert expected is None or (reason is not None and expected in reason)
