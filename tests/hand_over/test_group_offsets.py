"""commitOffsets of a query by path beside a broker: ours takes the offsets over, beside Apache's a warning says what helps."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_mq.broker_server.server import RunningBroker
from spark_mq.conditions import NoGroupOffsetsError
from spark_mq.hand_over import local_socket
from spark_mq.hand_over.messages import hand_offsets, read_offsets
from spark_mq.source.group_offsets import GroupOffsets
from spark_mq.source.options import SourceOptions
from spark_mq.source.stream_reader import StreamReader
from storage import open_store
from storage.errors import StorageError, StoreServedError
from storage.files.local_file_system import LocalFileSystem
from storage.names import retry_topic
from storage.tables.consumer_groups import ConsumerOffsets
from storage.tables.offline_changes import write_group_offsets
from tests.broker_server.test_running_broker import running
from tests.support.java_broker import free_ports

GROUP = "GroupSpark"


@pytest.fixture
def port() -> int:
    return free_ports()


@pytest.fixture
def root(tmp_path: Path, port: int) -> Path:
    path = tmp_path / "b"
    with open_store(str(path), read_only=False, create=True, store_host=f"127.0.0.1:{port}") as store:
        store.put_batch(pa.record_batch({"body": [str(number) for number in range(16)]}), topic="T")
    return path


@pytest.fixture
def broker(root: Path, port: int) -> Iterator[RunningBroker]:
    with running(root, port) as started:
        yield started


def stream(root: Path, **options: str) -> StreamReader:
    given = {"path": str(root), "topic": "T", "consumerGroup": GROUP, **options}
    return StreamReader(SourceOptions.parse(given, "streaming"), ["body"])


def read_to_the_end(root: Path, **options: str) -> None:
    """As a run of Trigger.AvailableNow that has nothing left to read."""
    reader = stream(root, commitOffsets="true", **options)
    reader.prepareForTriggerAvailableNow()
    start, limit = reader.initialOffset(), reader.getDefaultReadLimit()
    end = reader.latestOffset(start, limit)
    assert reader.latestOffset(end, limit) == end
    assert reader._group is not None
    assert reader._group.skipped == {}
    reader.stop()


def stored(root: Path) -> dict[int, int]:
    content = (root / "config" / "consumerOffset.json").read_text("utf-8")
    return dict(ConsumerOffsets.load(content).offsets["T", GROUP])


def table(root: Path, name: str, entries: str) -> set[str]:
    return set(json.loads((root / "config" / name).read_text("utf-8"))[entries])


def test_beside_our_broker_the_offsets_are_its_groups_and_on_the_disk(root: Path, broker: RunningBroker) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        read_to_the_end(root, startingOffsets="earliest")
    with open_store(root) as store:
        ends = {queue_id: store.max_offset("T", queue_id) for queue_id in store.queue_ids("T")}
    assert sum(ends.values()) == 16
    assert stored(root) == ends
    parts = broker.broker.parts
    assert {queue_id: parts.offsets.offset(GROUP, "T", queue_id) for queue_id in ends} == ends
    assert GROUP in table(root, "subscriptionGroup.json", "subscriptionGroupTable")
    assert f"%RETRY%{GROUP}" in table(root, "topics.json", "topicConfigTable")


def test_the_group_goes_on_from_there(root: Path, broker: RunningBroker) -> None:
    with pytest.raises(NoGroupOffsetsError):
        stream(root, startingOffsets="group").initialOffset()
    read_to_the_end(root, startingOffsets="earliest")
    reader = stream(root, startingOffsets="group")
    start = reader.initialOffset()
    assert reader.latestOffset(start, reader.getDefaultReadLimit()) == start


def test_what_a_broker_has_taken_over_is_left_at_its_end(root: Path, port: int) -> None:
    with running(root, port):
        hand_offsets(str(root), GROUP, {("T", 0): 2}, None)
        hand_offsets(str(root), GROUP, {("T", 0): 1}, None)
    assert stored(root) == {0: 1}, "also lower ones"
    with open_store(root) as store:
        assert store.max_offset("T", 0) > 1


def test_a_new_group_that_is_too_long_for_the_release_is_refused_by_the_broker_too(root: Path, port: int) -> None:
    """As rows and heartbeats are: a broker of 5.5.0 makes no group of more than 120 characters."""
    with running(root, port, settings="rocketmqVersion=5.5.0\n") as started:
        with pytest.raises(StorageError, match="the limit is 120"):
            hand_offsets(str(root), "G" * 121, {("T", 0): 2}, None)
        hand_offsets(str(root), "G" * 120, {("T", 0): 2}, None)
        store = started.broker.parts.store
        assert "G" * 121 not in store.groups
        assert retry_topic("G" * 121) not in store.topics


def test_while_a_reset_waits_nothing_is_stored_and_it_says_so(root: Path, broker: RunningBroker) -> None:
    broker.broker.parts.offsets.reset(GROUP, "T", 0, 0)
    with pytest.raises(StoreServedError, match=f"a reset of group {GROUP} waits"):
        hand_offsets(str(root), GROUP, {("T", 0): 2, ("T", 1): 1}, None)
    assert broker.broker.parts.offsets.offset(GROUP, "T", 1) == -1


def test_a_store_of_another_directory_is_refused(
    root: Path, broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_socket, "directory_identity", lambda path: (1, 1) if path is text else (2, 2))
    text = str(root)
    with pytest.raises(StoreServedError, match="another directory"):
        hand_offsets(text, GROUP, {("T", 0): 2}, None)


@pytest.mark.parametrize("left", ["nothing", "a dead socket"])
def test_without_an_answer_the_reason_is_told_and_the_next_try_stores_them(
    root: Path, broker: RunningBroker, left: str
) -> None:
    assert broker._batches is not None
    listener = broker._batches._listener
    assert listener is not None
    (root / "spark_mq" / local_socket.SOCKET_NAME).rename(root / "spark_mq" / "aside")
    if left == "a dead socket":
        local_socket.bind(str(root), local_socket.SOCKET_NAME).close()
    with open_store(root) as store:
        group = GroupOffsets.of_stores(GROUP, {"b": store})
        positions = dict.fromkeys([*stream(root).cluster.queues()][:1], 1)
        with pytest.warns(RuntimeWarning, match="commitOffsets skipped at broker b: .*SPARK_MQ_STORE_SERVED"):
            group.store(positions, at_once=True)
        (root / "spark_mq" / "aside").rename(root / "spark_mq" / local_socket.SOCKET_NAME)
        group.store(positions, at_once=True)
    assert group.skipped == {}
    assert list(stored(root).values()) == [1]


def test_beside_another_holder_a_warning_says_what_helps(root: Path) -> None:
    """As beside Apache's broker, which holds the same lock and takes nothing from a file."""
    with LocalFileSystem().locked(f"{root}/lock"), open_store(root) as store:
        group = GroupOffsets.of_stores(GROUP, {"b": store})
        positions = dict.fromkeys([*stream(root).cluster.queues()][:1], 1)
        with pytest.warns(RuntimeWarning, match=r"locked by another writer(?s:.*)option nameServer in place of path"):
            group.store(positions, at_once=True)


def test_our_broker_is_told_from_others_by_its_lock(root: Path, broker: RunningBroker) -> None:
    with pytest.raises(StoreServedError):
        write_group_offsets(str(root), GROUP, {("T", 0): 1}, now_ms=1, file_system=LocalFileSystem())


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"version": 1},
        {"version": 2, "directory": [1, 2], "group": "g", "offsets": []},
        {"version": 1, "directory": [1], "group": "g", "offsets": []},
        {"version": 1, "directory": [1, 2], "group": 7, "offsets": []},
        {"version": 1, "directory": [1, 2], "group": "g", "offsets": [["T", 0]]},
        {"version": 1, "directory": [1, 2], "group": "g", "offsets": [["T", 0, -1]]},
        {"version": 1, "directory": [1, 2], "group": "g", "offsets": [["T", "0", 1]]},
        {"version": 1, "directory": [1, 2], "group": "g", "offsets": [["T", 0, True]]},
        {"version": 1, "directory": None, "group": "g", "offsets": 5},
    ],
)
def test_what_is_no_request_is_an_error(document: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"version|offsets|group"):
        read_offsets(document)
