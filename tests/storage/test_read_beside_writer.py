"""Reading beside a running writer: never a wrong message, never out of order, everything in the end.

The writer stands still only between two steps, and takes its next ones whenever the reader looks at a file: the smallest
race there can be, at every place, without threads and without chance.
"""

from __future__ import annotations

import itertools
import random
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from storage import Message, MessageStore
from storage.errors import OffsetOutOfRangeError
from storage.files.file_system import LocalFile, LocalSmallReads
from storage.files.local_file_system import LocalFileSystem
from storage.format.arrays import string_hash
from storage.format.record import encode_record
from storage.queues.get import GetStatus
from storage.queues.scan import TagsWanted, scan_queue
from storage.retention import Occasion, apply_expiry, plan_expiry
from storage.settings.nouns import RetentionConfig
from tests.support.message_builder import FIRST_STORE_TIME_MS, StoreBuilder
from tests.support.places import PROJECT

Step = Callable[[], None]


class SteppingFile(LocalFile):
    """Lets the writer go on before each look."""

    step: Step

    def view(self, position: int, length: int) -> np.ndarray:
        self.step()
        return super().view(position, length)


class SteppingReads(LocalSmallReads):
    step: Step

    def view(self, position: int, length: int) -> np.ndarray:
        self.step()
        return super().view(position, length)


class SteppingFileSystem(LocalFileSystem):
    def __init__(self, step: Step) -> None:
        self._step = step

    def open_file(self, path: str) -> LocalFile:
        file = SteppingFile(path)
        file.step = self._step
        return file

    def open_small_reads(self, path: str) -> LocalSmallReads:
        file = SteppingReads(path)
        file.step = self._step
        return file


def pieces(data: bytes, order: str, size: int) -> Iterator[tuple[int, bytes]]:
    """`data` in pieces of `size` bytes, each with its place."""
    found = [(at, data[at : at + size]) for at in range(0, len(data), size)]
    if order == "backwards":
        found.reverse()
    elif order == "in any order":
        random.Random(len(data)).shuffle(found)
    return iter(found)


def writing(store: StoreBuilder, count: int, order: str, size: int) -> Iterator[None]:
    """Appends `count` messages to three queues, a piece at a time: the record, then its entry."""
    for number in range(count):
        topic, queue_id, tags = [("TopicA", 0, "TagA"), ("TopicA", 1, "b"), ("TopicB", 0, "TagA")][number % 3]
        before = set((store.root / "commitlog").iterdir())
        message = store.next_message(topic, queue_id, body=b"%d" % number * 40, properties={"TAGS": tags})
        if set((store.root / "commitlog").iterdir()) != before:
            yield
        for at, part in pieces(encode_record(message), order, size):
            store.write_log(message.commitlog_offset + at, part)
            yield
        store.count(message)
        code = string_hash(tags)
        entry = struct.pack(">qiq", message.commitlog_offset, message.size_bytes, code)
        cuts = (8, 12, 16, 20)  # a page of the writer may end there
        for end in cuts:
            store.write_entry_bytes(topic, queue_id, message.queue_offset, entry[:end])
            yield


def new_messages(store: MessageStore, seen: dict[tuple[str, int], int]) -> Iterator[tuple[str, int, int, int]]:
    """(topic, queue id, queue offset, place in the log) of what came since; by bulk and one by one, which must agree."""
    for topic in store.topics():
        for queue_id in store.queue_ids(topic):
            start, end = seen.get((topic, queue_id), 0), store.max_offset(topic, queue_id)
            assert end >= start
            queue = store.queues.get(topic, queue_id)
            assert queue is not None
            scanned = [
                (topic, queue_id, offset, place)
                for part in scan_queue(queue, store.log, store.log_end, start, end)
                for offset, place in zip(
                    part.queue_offsets.tolist(), part.records.column("commitlog_offset").tolist(), strict=True
                )
            ]
            assert [offset for _, _, offset, _ in scanned] == list(range(start, end))
            got: list[Message] = []
            while start + len(got) < end:  # a get reads from one queue file
                part_of_it = store.get(topic, queue_id, start + len(got), 10_000, max_bytes=1 << 30).messages
                assert part_of_it
                got += part_of_it
            assert [message.commitlog_offset for message in got] == [place for *_, place in scanned]
            yield from scanned
            seen[topic, queue_id] = end


def expected_of(messages: list[Message]) -> list[tuple[str, int, int, int]]:
    return sorted(
        (message.topic, message.queue_id, message.queue_offset, message.commitlog_offset) for message in messages
    )


@pytest.mark.parametrize("order", ["forwards", "backwards", "in any order"])
@pytest.mark.parametrize(("size", "pace"), [(1, 7), (8, 1), (8, 5), (100, 1), (1000, 3)])
def test_what_a_writer_appends_is_seen_once_whole_and_in_order(
    tmp_path: Path, order: str, size: int, pace: int
) -> None:
    store = StoreBuilder(tmp_path)
    store.put("TopicA", 0)
    writer = writing(store, {1: 12, 8: 60}.get(size, 240), order, size)
    going = True

    def step() -> None:
        nonlocal going
        going = len(list(itertools.islice(writer, pace))) == pace and going

    reader = store.open(file_system=SteppingFileSystem(step), clock=itertools.count(0, 1_000).__next__)
    seen: dict[tuple[str, int], int] = {}
    found = list(new_messages(reader, seen))
    rounds = 0
    while going:
        step()
        reader.refresh()
        found += new_messages(reader, seen)
        rounds += 1
    reader.refresh()
    found += new_messages(reader, seen)
    assert sorted(found) == expected_of(store.messages)
    assert rounds > 3
    assert not reader.refresh()
    reader.close()


def test_a_filter_sees_every_message_whose_entry_is_half_written(tmp_path: Path) -> None:
    """An entry's tags code may not be there yet; get and scan must not take that for another tag."""
    store = StoreBuilder(tmp_path)
    store.put("TopicB")
    message = store.put(properties={"TAGS": "polygenelubricants"}, entered=False)
    code = string_hash("polygenelubricants")
    assert code == -(2**31)
    entry = struct.pack(">qiq", message.commitlog_offset, message.size_bytes, code)
    for end in (12, 16, 20):
        store.write_entry_bytes("TopicA", 0, 0, entry[:end].ljust(20, b"\0"))
        with store.open() as reader:
            queue = reader.queues.get("TopicA", 0)
            assert queue is not None
            parts = scan_queue(queue, reader.log, reader.log_end, 0, 1, tags=TagsWanted(frozenset([code])))
            assert [part.queue_offsets.tolist() for part in parts] == [[0]]
            assert len(reader.get("TopicA", 0, 0, tags="polygenelubricants").messages) == 1


def test_a_queue_that_shows_only_pre_blank_entries_is_looked_at_again(tmp_path: Path) -> None:
    store = StoreBuilder(tmp_path)
    store.put("TopicB")
    with store.open(clock=itertools.count(0, 2_000).__next__) as reader:
        store.queue_ends["TopicA", 0] = 7
        message = store.put(entered=False)
        store.write_entry("TopicA", 0, 6, 0, 2**31 - 1)
        reader.refresh()
        reader.refresh()
        assert reader.get("TopicA", 0, 7).messages == ()
        store.enter(message)
        assert reader.refresh()
        assert reader.get("TopicA", 0, 7).messages == (message,)


def test_new_topics_and_queues_appear(tmp_path: Path) -> None:
    store = StoreBuilder(tmp_path)
    with store.open(clock=itertools.count(0, 2_000).__next__) as reader:
        assert reader.topics() == []
        for topic, queue_id in [("TopicA", 0), ("TopicA", 3), ("TopicB", 0)]:
            store.put(topic, queue_id)
            assert reader.refresh()
            assert queue_id in reader.queue_ids(topic)
            assert reader.max_offset(topic, queue_id) == 1
        assert not reader.refresh()


def test_a_record_without_its_entry_is_seen_as_soon_as_the_entry_is_there(tmp_path: Path) -> None:
    store = StoreBuilder(tmp_path)
    store.put()
    with store.open() as reader:
        late = [store.put(entered=False) for _ in range(3)]
        reader.refresh()
        assert (reader.max_offset("TopicA", 0), reader.undispatched_bytes) == (1, 3 * late[0].size_bytes)
        for message in late:
            store.enter(message)
            assert reader.refresh()
            assert reader.max_offset("TopicA", 0) == message.queue_offset + 1
        assert reader.undispatched_bytes == 0


def test_old_files_may_go_while_we_read(tmp_path: Path) -> None:
    store = StoreBuilder(tmp_path)
    for _ in range(60):
        store.put(body=bytes(500))
    with store.open() as reader:
        assert reader.min_offset("TopicA", 0) == 0
        for path in sorted((tmp_path / "commitlog").iterdir())[:-2]:
            path.unlink()
        reader.refresh()
        first = reader.min_offset("TopicA", 0)
        assert first > 0
        assert reader.get("TopicA", 0, first).messages[0].queue_offset == first
        queue_files = sorted(store.queue_directory("TopicA", 0).iterdir())
        queue_files[0].unlink()
        store.put()
        assert reader.refresh()
        assert (reader.min_offset("TopicA", 0), reader.max_offset("TopicA", 0)) == (first, 61)


def test_readers_keep_what_they_mapped_and_come_too_late_for_the_rest_of_what_expires(tmp_path: Path) -> None:
    """MappedFile.destroy unmaps when the last reader has let go; a reader that asks later finds the file gone"""
    builder = StoreBuilder(tmp_path)
    for _ in range(60):
        builder.put(body=bytes(500))
    with builder.open() as early, builder.open() as late:
        assert early.message_by_commitlog_offset(0) == builder.messages[0]
        with builder.open(read_only=False) as writer:
            full_disk, files = Occasion(("full",), whatever_age=True), LocalFileSystem()
            plan = plan_expiry(writer, files, RetentionConfig(), full_disk, now_ms=FIRST_STORE_TIME_MS)
            assert plan.minimum > 4096
            apply_expiry(writer.writer, plan, RetentionConfig(), sleep=lambda seconds: None)
        assert early.message_by_commitlog_offset(0) == builder.messages[0]
        with pytest.raises(OffsetOutOfRangeError):
            late.message_by_commitlog_offset(0)
        queue = late.queues.get("TopicA", 0)
        assert queue is not None
        with pytest.raises(OffsetOutOfRangeError):
            list(scan_queue(queue, late.log, late.log_end, 0, 60))
        for reader in (early, late):
            reader.refresh()
            minimum = reader.min_offset("TopicA", 0)
            assert reader.get("TopicA", 0, 0).status is GetStatus.OFFSET_TOO_SMALL
            assert reader.get("TopicA", 0, minimum, 1).messages == (builder.messages[minimum],)
            assert builder.messages[minimum].commitlog_offset == plan.minimum


def test_a_topic_deleted_and_made_again_is_read_anew(tmp_path: Path) -> None:
    store = StoreBuilder(tmp_path)
    for _ in range(5):
        store.put()
    with store.open(clock=itertools.count(0, 2_000).__next__) as reader:
        assert reader.get("TopicA", 0, 0, 1).messages[0].body == b"body"
        shutil.rmtree(tmp_path / "consumequeue" / "TopicA")
        store.queue_ends.clear()
        store.put(body=b"second life")
        assert reader.refresh()
        assert reader.max_offset("TopicA", 0) == 1
        assert [message.body for message in reader.get("TopicA", 0, 0).messages] == [b"second life"]


def test_a_topic_deleted_stays_away(tmp_path: Path) -> None:
    store = StoreBuilder(tmp_path)
    store.put()
    store.put("TopicB")
    with store.open(clock=itertools.count(0, 2_000).__next__) as reader:
        shutil.rmtree(tmp_path / "consumequeue" / "TopicA")
        assert reader.refresh()
        assert (reader.topics(), reader.max_offset("TopicA", 0)) == (["TopicB"], 0)


def test_a_log_cut_by_its_broker_and_written_on_is_read_from_there(tmp_path: Path) -> None:
    store = StoreBuilder(tmp_path)
    for _ in range(10):
        store.put(body=bytes(30))
    with store.open(clock=itertools.count(0, 2_000).__next__) as reader:
        assert reader.max_offset("TopicA", 0) == 10
        del store.messages[6:]
        store.end = store.messages[-1].commitlog_offset + store.messages[-1].size_bytes
        store.queue_ends["TopicA", 0] = 6
        store.store_time_ms = FIRST_STORE_TIME_MS + 1_000_000
        for _ in range(8):
            store.put(body=b"another" * 7)
        reader.refresh()
        assert reader.max_offset("TopicA", 0) == 14
        got = reader.get("TopicA", 0, 0).messages
        assert [message.commitlog_offset for message in got] == [message.commitlog_offset for message in store.messages]


WRITER = """
import sys
from pathlib import Path
from storage.format.record import encode_record
from tests.support.message_builder import StoreBuilder

store = StoreBuilder(Path(sys.argv[1]))
for number in range(int(sys.argv[2])):
    store.put("TopicA", number % 2, body=b"%06d" % number * (1 + number % 60))
"""


@pytest.mark.slow
def test_another_process_writes_as_fast_as_it_can(tmp_path: Path) -> None:
    count = 3_000
    StoreBuilder(tmp_path)
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), str(count)], cwd=PROJECT)
    try:
        bodies: dict[int, list[bytes]] = {0: [], 1: []}
        with StoreBuilder(tmp_path).open() as reader:
            while sum(map(len, bodies.values())) < count:
                finished = writer.poll() is not None
                reader.refresh()
                for queue_id, seen in bodies.items():
                    while (got := reader.get("TopicA", queue_id, len(seen), 200)).messages:
                        seen += [message.body for message in got.messages]
                if finished:
                    break
        assert writer.wait(60) == 0
    finally:
        writer.kill()
        writer.wait()
    for queue_id, seen in bodies.items():
        assert seen == [b"%06d" % number * (1 + number % 60) for number in range(queue_id, count, 2)]
