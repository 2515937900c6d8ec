"""Of very many topics a share is looked into at a time; what is new is found all the same."""

from __future__ import annotations

import shutil
from pathlib import Path

from storage.files.local_file_system import LocalFileSystem
from storage.queues.store import ConsumeQueueStore

TOPICS = [f"topic-{number}" for number in range(5)]


def queues_of(root: Path, *ids: int, topics: list[str] = TOPICS) -> None:
    for topic in topics:
        for queue_id in ids:
            (root / "consumequeue" / topic / str(queue_id)).mkdir(parents=True)


def test_each_known_topic_has_its_turn(tmp_path: Path) -> None:
    queues_of(tmp_path, 0)
    queues = ConsumeQueueStore(LocalFileSystem(), str(tmp_path))
    queues_of(tmp_path, 1)
    found = [queues.discover(2) for _ in range(3)]
    assert [len(new) for new in found] == [2, 2, 1]
    assert sorted(name for new in found for name in new) == [(topic, 1) for topic in TOPICS]
    assert queues.names() == [(topic, queue_id) for topic in TOPICS for queue_id in (0, 1)]


def test_a_new_topic_and_a_deleted_one_do_not_wait_for_their_turn(tmp_path: Path) -> None:
    queues_of(tmp_path, 0)
    queues = ConsumeQueueStore(LocalFileSystem(), str(tmp_path))
    queues_of(tmp_path, 10, 9, topics=["topic-9"])
    shutil.rmtree(tmp_path / "consumequeue" / "topic-4")
    assert queues.discover(1) == [("topic-9", 9), ("topic-9", 10)]
    assert queues.topics() == [*TOPICS[:4], "topic-9"]


def test_a_queue_that_is_kept_is_the_same_object_and_one_that_is_gone_is_closed(tmp_path: Path) -> None:
    queues_of(tmp_path, 0, 1)
    queues = ConsumeQueueStore(LocalFileSystem(), str(tmp_path))
    kept = queues.get("topic-2", 0)
    shutil.rmtree(tmp_path / "consumequeue" / "topic-2" / "1")
    assert queues.discover() == []
    assert queues.get("topic-2", 0) is kept
    assert queues.queue_ids("topic-2") == [0]
