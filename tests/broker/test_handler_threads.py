"""Many threads call the handlers of one broker at once: nothing that was acknowledged is lost, doubled or out of order."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from storage import MessageStore, open_store
from storage.service.put_service import PutService
from storage.tables.document import TOPICS_FILE
from storage.tables.topics import TopicConfig, TopicTable
from tests.broker.put_stores import config_of
from tests.broker.test_send import ORDER
from tests.support.broker_handlers import Returner, Sender, back_request
from tests.support.gated_disk import PATIENCE_S, GatedDisk

THREADS = 8
SEED = 20_261_122


@pytest.fixture(params=["SYNC_FLUSH", "ASYNC_FLUSH"])
def service(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PutService]:
    config = config_of("plain", flushDiskType=request.param)
    store = open_store(tmp_path / "store", config=config, read_only=False, create=True)
    store.save_topic(TopicConfig("Orders", 4, 4))
    with PutService(store) as made:
        yield made


def together(act: Callable[[int], Any], count: int = THREADS) -> list[Any]:
    """What `act` gives for each number, all begun at once."""
    barrier = threading.Barrier(count)

    def one(number: int) -> Any:
        barrier.wait(PATIENCE_S)
        return act(number)

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(one, range(count)))


def bodies_by_queue(store: MessageStore, topic: str, queues: int) -> list[list[bytes]]:
    return [[message.body for message in store.get(topic, queue, 0, 1_000).messages] for queue in range(queues)]


def test_every_acknowledged_send_of_every_thread_is_there_once_and_in_order(service: PutService) -> None:
    handler = Sender(service)

    def send_some(thread: int) -> list[tuple[int, int, bytes]]:
        chooses, placed = random.Random(SEED + thread), []
        for number in range(25):
            body = b"%d-%d" % (thread, number)
            request = replace(ORDER, body=body, queue_id=chooses.randrange(4), properties={"UNIQ_KEY": body.decode()})
            response = handler.send(request)
            assert response.code == 0
            assert response.queue_id is not None
            assert response.queue_offset is not None
            placed.append((response.queue_id, response.queue_offset, body))
        return placed

    placed = together(send_some)
    handler.close()
    service.close()
    with open_store(service.root) as store:
        found = bodies_by_queue(store, "Orders", 4)
    for queue, offset, body in (place for places in placed for place in places):
        assert found[queue][offset] == body
    assert sum(map(len, found)) == THREADS * 25
    for places in placed:  # a thread's sends to a queue stand in the order in which it made them
        for queue in range(4):
            offsets = [offset for to, offset, _ in places if to == queue]
            assert offsets == sorted(offsets)
    assert handler.statistics.topic_put_nums["Orders"].value == THREADS * 25
    assert handler.statistics.broker_put_nums == THREADS * 25


def test_every_message_that_any_thread_sends_back_is_there_once(service: PutService) -> None:
    sends, backs = Sender(service), Returner(service)

    def work(thread: int) -> None:
        for number in range(5):
            key = f"{thread}-{number}"
            response = sends.send(replace(ORDER, properties={"UNIQ_KEY": key}))
            place = int(str(response.msg_id)[-16:], 16)
            assert backs.send_back(back_request(commitlog_offset=place, group="g")).code == 0

    together(work)
    service.close()
    keys = [f"{thread}-{number}" for thread in range(THREADS) for number in range(5)]
    with open_store(service.root) as store:
        waiting = store.get("SCHEDULE_TOPIC_XXXX", 2, 0, 1_000, max_bytes=1 << 20).messages
    assert Counter(message.unique_key for message in waiting) == Counter(keys)


def test_threads_that_make_a_topic_each_lose_none(service: PutService) -> None:
    """The table in memory and the file hold all of them."""
    handler = Sender(service)
    together(lambda thread: handler.send(replace(ORDER, topic=f"Made{thread}", queue_id=0)))
    made = {f"Made{thread}" for thread in range(THREADS)}
    assert made <= service.settings.topics.topics.keys()
    on_disk = service.state(TOPICS_FILE, TopicTable.load)
    assert on_disk is not None
    assert on_disk.topics == service.settings.topics.topics


def test_threads_that_make_the_same_topic_get_the_one_that_was_made_first(service: PutService) -> None:
    """TopicConfigManager.createTopicInSendMessageMethod looks again under its lock; what one was told holds for all."""
    made = together(lambda thread: service.make_topic(TopicConfig("Same", thread + 1, thread + 1)))
    assert len({topic.write_queue_count for topic in made}) == 1
    assert service.settings.topics.topics["Same"] == made[0]


def test_threads_that_make_a_group_each_lose_none(service: PutService) -> None:
    response = Sender(service).send(ORDER)
    at = int(str(response.msg_id)[-16:], 16)
    backs = Returner(service)
    together(lambda thread: backs.send_back(back_request(commitlog_offset=at, group=f"group{thread}")))
    groups = {f"group{thread}" for thread in range(THREADS)}
    assert groups <= service.groups.keys()
    assert {f"%RETRY%{group}" for group in groups} <= service.settings.topics.topics.keys()
    service.close()
    with open_store(service.root) as store:
        assert groups <= store.groups.keys()


def test_a_table_that_is_being_saved_holds_up_no_put(tmp_path: Path) -> None:
    """Topics are saved beside the puts, not in their lock."""

    class SlowTables(GatedDisk):
        saving, may_save = threading.Event(), threading.Event()

        def replace(self, path: str, content: bytes, *, is_private: bool = False) -> None:
            if path.endswith(TOPICS_FILE) and b"Slow" in content:
                self.saving.set()
                assert self.may_save.wait(PATIENCE_S)
            super().replace(path, content, is_private=is_private)

    disk = SlowTables()
    store = open_store(tmp_path / "store", config=config_of("plain"), read_only=False, create=True, file_system=disk)
    store.save_topic(TopicConfig("Orders", 4, 4))
    with PutService(store) as service, ThreadPoolExecutor(1) as other:
        handler = Sender(service)
        slow = other.submit(handler.send, replace(ORDER, topic="Slow", queue_id=0))
        assert disk.saving.wait(PATIENCE_S)
        assert handler.send(ORDER).code == 0
        assert not slow.done()
        disk.may_save.set()
        assert slow.result(PATIENCE_S).code == 0


def test_one_sync_serves_the_sends_of_all_threads_that_wait(tmp_path: Path) -> None:
    """GroupCommitService: the first send's sync is held up, and the next one brings all others to the disk."""
    disk = GatedDisk()
    config = config_of("plain", flushDiskType="SYNC_FLUSH", syncFlushTimeout=str(PATIENCE_S * 1_000))
    store = open_store(tmp_path / "store", config=config, read_only=False, create=True, file_system=disk)
    store.save_topic(TopicConfig("Orders", 4, 4))
    with PutService(store) as service, ThreadPoolExecutor(THREADS) as threads:
        handler = Sender(service)
        assert handler.send(ORDER).code == 0
        before = disk.log_syncs
        disk.syncs.close()
        first = threads.submit(handler.send, ORDER)
        disk.syncs.wait_for_somebody()
        record = service.store.writer.written_end // 2
        others = [threads.submit(handler.send, ORDER) for _ in range(THREADS - 1)]
        while service.store.writer.written_end < (THREADS + 1) * record:  # until all others stand in the log
            threading.Event().wait(0.001)
        disk.syncs.open()
        assert {sent.result(PATIENCE_S).code for sent in (first, *others)} == {0}
        assert disk.log_syncs - before == 2
