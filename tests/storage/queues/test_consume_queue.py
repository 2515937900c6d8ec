"""One queue for reading: where it ends and begins, and entries that must not be served."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage import GetStatus, Message, MessageStore
from storage.errors import OffsetOutOfRangeError, StoreRefusedError
from storage.files.local_file_system import LocalFileSystem
from storage.format.consume_queue import ENTRY, PRE_BLANK, hole_filler, is_pre_blank
from storage.log.dispatch import QueueEntries
from storage.queues.consume_queue import ConsumeQueue, valid_entries
from storage.queues.scan import scan_queue
from storage.queues.writer import ConsumeQueueWriter
from tests.support.message_builder import StoreBuilder


def queue_of(store: StoreBuilder, topic: str = "TopicA", queue_id: int = 0) -> ConsumeQueue:
    return ConsumeQueue(LocalFileSystem(), str(store.queue_directory(topic, queue_id)), topic, queue_id)


def served(store: MessageStore, topic: str = "TopicA", queue_id: int = 0) -> dict[int, int]:
    """Queue offset → place in the log of what `get` serves one by one, in one go, and `scan_queue`; they must agree."""
    minimum, maximum = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
    alone = {
        offset: message.commitlog_offset
        for offset in range(minimum, maximum)
        for message in store.get(topic, queue_id, offset, 1).messages[:1]
        if store.get(topic, queue_id, offset, 1).next_begin_offset == offset + 1
    }
    together: list[int] = []
    at = minimum
    while at < maximum:
        got = store.get(topic, queue_id, at, 7)
        together += [message.commitlog_offset for message in got.messages]
        assert got.next_begin_offset > at
        at = got.next_begin_offset
    assert together == list(alone.values())
    queue = store.queues.get(topic, queue_id)
    assert queue is not None
    scanned = {
        offset: place
        for part in scan_queue(queue, store.log, store.log_end, minimum, maximum)
        for offset, place in zip(
            part.queue_offsets.tolist(), part.records.column("commitlog_offset").tolist(), strict=True
        )
    }
    assert scanned == alone
    return alone


@pytest.fixture
def store(tmp_path: Path) -> StoreBuilder:
    return StoreBuilder(tmp_path)


def places(messages: list[Message]) -> dict[int, int]:
    return {message.queue_offset: message.commitlog_offset for message in messages}


# Entries that claim what is not so, seen from a store of three queues with 60 messages.
WRONG = {
    "behind the log": lambda store: (store.end, 120),
    "reaching over the log's end": lambda store: (store.messages[-1].commitlog_offset, 4_000),
    "far behind the log": lambda store: (1 << 40, 120),
    "at the greatest place": lambda store: (2**63 - 1, 120),
    "inside a record": lambda store: (store.messages[5].commitlog_offset + 20, store.messages[5].size_bytes),
    "one byte too early": lambda store: (store.messages[5].commitlog_offset - 1, store.messages[5].size_bytes),
    "another topic's record": lambda store: (
        store.of_queue("TopicB")[3].commitlog_offset,
        store.messages[0].size_bytes,
    ),
    "another queue's record": lambda store: (
        store.of_queue("TopicA", 1)[3].commitlog_offset,
        store.messages[0].size_bytes,
    ),
    "a size too large": lambda store: (store.of_queue()[3].commitlog_offset, store.messages[0].size_bytes + 1),
    "a size too small": lambda store: (store.of_queue()[3].commitlog_offset, store.messages[0].size_bytes - 1),
    "a size of one": lambda store: (store.of_queue()[3].commitlog_offset, 1),
    "the greatest size": lambda store: (store.of_queue()[3].commitlog_offset, 2**31 - 1),
    "pre-blank": lambda store: (0, 2**31 - 1),
    "nothing": lambda store: (0, 0),
    "a negative size": lambda store: (0, -5),
    "a negative place": lambda store: (-5, 120),
    "the least place": lambda store: (-(2**63), 120),
    "a filler": lambda store: (4096 - 40, 40),
}


def fill(store: StoreBuilder) -> None:
    for number in range(20):
        for topic, queue_id in (("TopicA", 0), ("TopicB", 0), ("TopicA", 1)):
            store.put(topic, queue_id, body=b"number %3d" % number)


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_entry_at_the_end_is_not_served_and_does_not_count(store: StoreBuilder, wrong: str) -> None:
    fill(store)
    store.write_entry("TopicA", 0, 20, *WRONG[wrong](store))
    with store.open() as opened:
        if wrong != "pre-blank":
            assert opened.max_offset("TopicA", 0) == 20
            assert opened.get("TopicA", 0, 20).status is GetStatus.OFFSET_OVERFLOW_ONE
        assert served(opened) == places(store.of_queue())


# No entry for Java, which looks no further.
ENDS_THE_QUEUE = {"nothing", "a negative size", "a negative place", "the least place"}


@pytest.mark.parametrize("wrong", [name for name in WRONG if name not in ENDS_THE_QUEUE])
def test_a_wrong_entry_in_the_middle_hides_itself_only(store: StoreBuilder, wrong: str) -> None:
    fill(store)
    store.write_entry("TopicA", 0, 9, *WRONG[wrong](store))
    expected = places(store.of_queue())
    del expected[9]
    with store.open() as opened:
        assert opened.max_offset("TopicA", 0) == 20
        assert served(opened) == expected
        assert opened.position("TopicA", 0, 9) is None
        for number in (8, 10):
            position = opened.position("TopicA", 0, number)
            assert position is not None
            assert position.commitlog_offset == expected[number]


@pytest.mark.parametrize("wrong", sorted(ENDS_THE_QUEUE))
def test_what_is_no_entry_ends_the_queue(store: StoreBuilder, wrong: str) -> None:
    fill(store)
    store.write_entry("TopicA", 0, 9, *WRONG[wrong](store))
    with store.open() as opened:
        assert opened.max_offset("TopicA", 0) == 9
        assert served(opened) == places(store.of_queue()[:9])


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("count", [2, 30])
def test_many_wrong_entries_at_the_end_are_not_served(store: StoreBuilder, wrong: str, count: int) -> None:
    fill(store)
    for number in range(count):
        store.write_entry("TopicA", 0, 20 + number, *WRONG[wrong](store))
    with store.open() as opened:
        assert served(opened) == places(store.of_queue())
        if wrong != "pre-blank":
            assert opened.max_offset("TopicA", 0) == 20


@given(data=st.data())
def test_whatever_an_entry_claims_it_is_served_if_and_only_if_it_is_true(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    store = StoreBuilder(tmp_path_factory.mktemp("claims"))
    fill(store)
    true = {(message.commitlog_offset, message.size_bytes) for message in store.of_queue()}
    some = [(message.commitlog_offset, message.size_bytes) for message in store.messages[::5]]
    numbers = st.integers(-10, store.end + 10) | st.integers(-(2**63), 2**63 - 1)
    claim = st.sampled_from(some) | st.tuples(numbers, st.integers(-(2**31), 2**31 - 1) | st.just(110))
    claims = data.draw(st.lists(claim | st.sampled_from(sorted(true)), min_size=1, max_size=40))
    entries = np.array([(place, size, 0) for place, size in claims], ENTRY)
    with store.open() as opened:
        found = valid_entries(entries, "TopicA", 0, opened.log, opened.log_end)
    assert found.tolist() == [pair in true for pair in claims]


@pytest.mark.parametrize("cut", range(20))
def test_an_entry_torn_at_any_byte_is_not_served(store: StoreBuilder, cut: int) -> None:
    """Bytes of the entry before; the rest is free, or stale, as it was."""
    fill(store)
    last = store.put(body=b"the new one")
    entry = struct.pack(">qiq", last.commitlog_offset, last.size_bytes, -5)
    for old in (bytes(20), struct.pack(">qiq", store.messages[7].commitlog_offset, store.messages[7].size_bytes, 9)):
        store.write_entry_bytes("TopicA", 0, 20, entry[:cut] + old[cut:])
        with store.open() as opened:
            found = served(opened)
            assert found.items() <= places(store.of_queue()).items()
            assert {offset for offset in found if offset < 20} == set(range(20))


def test_a_queue_that_begins_in_the_middle_of_a_file(store: StoreBuilder) -> None:
    store.queue_ends["TopicA", 0] = 47
    messages = [store.put() for _ in range(20)]
    with store.open() as opened:
        assert (opened.min_offset("TopicA", 0), opened.max_offset("TopicA", 0)) == (47, 67)
        assert served(opened) == places(messages)
        got = opened.get("TopicA", 0, 40)
        assert (got.status, got.next_begin_offset) == (GetStatus.OFFSET_TOO_SMALL, 47)
        queue = opened.queues.get("TopicA", 0)
        assert queue is not None
        assert list(scan_queue(queue, opened.log, opened.log_end, 40, 47)) == []


def test_a_queue_of_nothing_but_pre_blank_entries_holds_nothing(store: StoreBuilder) -> None:
    store.put("TopicB")
    store.write_entry("TopicA", 0, 7, 0, 2**31 - 1)
    queue = queue_of(store)
    assert queue.greatest_end(8) == -1
    with store.open() as opened:
        assert opened.min_offset("TopicA", 0) == opened.max_offset("TopicA", 0)
        assert opened.get("TopicA", 0, 0).messages == ()


def test_messages_are_entered_behind_pre_blank_entries(store: StoreBuilder) -> None:
    store.write_entry("TopicA", 0, 7, 0, 2**31 - 1)
    queue = queue_of(store)
    writer = ConsumeQueueWriter(LocalFileSystem(), queue, 8, 400)
    entries = np.array([(5_000, 100, 1), (6_000, 100, 2)], ENTRY)
    writer.append(QueueEntries("TopicA", 0, np.array([8, 9]), entries, np.array([1, 2])))
    assert queue.entries(6, 10).tolist() == [PRE_BLANK.item(), PRE_BLANK.item(), *entries.tolist()]
    assert writer.holes == []


def test_messages_that_the_log_has_lost_lie_before_the_minimum(store: StoreBuilder) -> None:
    messages = [store.put(body=bytes(700)) for _ in range(30)]
    for path in sorted((store.root / "commitlog").iterdir())[:2]:
        path.unlink()
    kept = [message for message in messages if message.commitlog_offset >= 2 * 4096]
    with store.open() as opened:
        assert opened.min_offset("TopicA", 0) == kept[0].queue_offset
        assert served(opened) == places(kept)
        queue = opened.queues.get("TopicA", 0)
        assert queue is not None
        with pytest.raises(OffsetOutOfRangeError) as raised:
            list(scan_queue(queue, opened.log, opened.log_end, 0, 30))
        assert (raised.value.minimum, raised.value.asked) == (kept[0].queue_offset, 0)


def test_a_queue_all_of_whose_messages_expired_begins_at_its_end(store: StoreBuilder) -> None:
    for _ in range(3):
        store.put("TopicA")
    while store.end < 4096:
        store.put("TopicB", body=bytes(500))
    store.put("TopicB")
    min((store.root / "commitlog").iterdir()).unlink()
    with store.open() as opened:
        assert (opened.min_offset("TopicA", 0), opened.max_offset("TopicA", 0)) == (3, 3)
        assert served(opened) == {}


def test_queue_files_that_expired_are_out_of_range(store: StoreBuilder) -> None:
    for _ in range(50):
        store.put()
    directory = store.queue_directory("TopicA", 0)
    with store.open() as opened:
        queue = opened.queues.get("TopicA", 0)
        assert queue is not None
        queue.close()
        min(directory.iterdir()).unlink()
        with pytest.raises(OffsetOutOfRangeError) as raised:
            list(scan_queue(queue, opened.log, opened.log_end, 0, 50))
        assert (raised.value.topic, raised.value.queue_id, raised.value.minimum) == ("TopicA", 0, 20)
        queue.list_files()
        with pytest.raises(OffsetOutOfRangeError) as raised:
            list(scan_queue(queue, opened.log, opened.log_end, 0, 50))
        assert raised.value.minimum == 20
        assert [part.queue_offsets.tolist() for part in scan_queue(queue, opened.log, opened.log_end, 20, 50)]


@given(kinds=st.lists(st.sampled_from("mbs"), max_size=70), start=st.integers(0, 45))
def test_the_end_is_the_first_place_without_an_entry(
    kinds: list[str], start: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    store = StoreBuilder(tmp_path_factory.mktemp("ends"))
    written = {"m": (100, 100), "b": (0, 2**31 - 1), "s": (10**9, 100)}
    for number, kind in enumerate(kinds):
        store.write_entry("TopicA", 0, number, *written[kind])
    queue = queue_of(store)
    assert queue.written_end() == len(kinds)
    assert queue.written_end(min(start, len(kinds))) == len(kinds)
    assert queue.last_file_end_offset >= len(kinds)


@given(steps=st.lists(st.integers(1, 300), max_size=60), blank=st.integers(0, 12), place=st.integers(0, 9_000))
def test_the_first_entry_at_a_place_is_found(
    steps: list[int], blank: int, place: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    store = StoreBuilder(tmp_path_factory.mktemp("first"))
    offsets = np.cumsum([0, *steps]).tolist()
    for number, offset in enumerate(offsets):
        store.write_entry("TopicA", 0, blank + number, offset, 100)
    end = blank + len(offsets)
    expected = next((blank + number for number, offset in enumerate(offsets) if offset >= place), end)
    assert queue_of(store).first_offset_at(place, end) == expected


def test_large_queues_are_searched_by_halves(tmp_path: Path) -> None:
    store = StoreBuilder(tmp_path, queue_file_size=20 * 5_000)
    directory = store.queue_directory("TopicA", 0)
    directory.mkdir(parents=True)
    count = 15_000
    entries = np.array([(100 * number, 100, 0) for number in range(count)], ENTRY)
    for start in range(0, count, 5_000):
        (directory / f"{20 * start:020d}").write_bytes(entries[start : start + 5_000].tobytes())
    queue = queue_of(store)
    assert queue.written_end() == count
    for place in (0, 1, 99, 100, 500_000, 500_001, 1_499_900, 1_499_901, 10**12):
        assert queue.first_offset_at(place, count) == min(-(-place // 100), count)


@pytest.mark.parametrize(("name", "size"), [(f"{0:020d}", 399), (f"{400:020d}", 200), ("x", 400), ("²", 400)])
def test_a_file_that_java_would_not_load_is_refused(store: StoreBuilder, name: str, size: int) -> None:
    store.put()
    (store.queue_directory("TopicA", 0) / name).write_bytes(bytes(size))
    with pytest.raises(StoreRefusedError, match="consume queue file"):
        ConsumeQueue(LocalFileSystem(), str(store.queue_directory("TopicA", 0)), "TopicA", 0, 400).list_files()


@pytest.mark.parametrize("name", ["x", "²", "1.bak"])
def test_names_that_are_no_queue_are_ignored_as_java_ignores_them(store: StoreBuilder, name: str) -> None:
    store.put()
    (store.root / "consumequeue" / "TopicA" / name).mkdir()
    (store.root / "consumequeue" / "file").touch()
    with store.open() as opened:
        assert (opened.topics(), opened.queue_ids("TopicA")) == (["TopicA"], [0])


FEW, MANY = 300, 12_000


@pytest.mark.parametrize("place", [0, 100 * (FEW - 1), 100 * FEW, 100 * (2 * FEW - 1), 10**9])
@pytest.mark.parametrize(
    ("lead", "is_told"),
    [
        pytest.param(0, True, id="it says where it begins"),
        pytest.param(0, False, id="as earlier versions left it"),
        pytest.param(MANY, True, id="in a queue that begins late"),
    ],
)
def test_messages_before_a_hole_are_found(tmp_path: Path, lead: int, place: int, *, is_told: bool) -> None:
    """Messages, a hole longer than they are, more messages; Java's fillers before the first where the queue began late."""
    hole = lead + FEW
    filler = hole_filler(hole) if is_told else PRE_BLANK
    parts = [np.full(lead, PRE_BLANK, ENTRY), _messages(0, FEW), np.full(MANY, filler, ENTRY), _messages(FEW, 2 * FEW)]
    entries = np.concatenate(parts).astype(ENTRY)
    per_file = 60_000 if lead else 5_000
    store = StoreBuilder(tmp_path, queue_file_size=20 * per_file)
    directory = store.queue_directory("TopicA", 0)
    directory.mkdir(parents=True)
    for start in range(0, len(entries), per_file):
        data = entries[start : start + per_file].tobytes()
        (directory / f"{20 * start:020d}").write_bytes(data.ljust(20 * per_file, b"\0"))
    places = np.where(is_pre_blank(entries), -1, entries["commitlog_offset"].astype(np.int64))
    reaching = np.flatnonzero(places >= place)
    expected = int(reaching[0]) if len(reaching) else len(entries)
    assert queue_of(store).first_offset_at(place, len(entries)) == expected


def _messages(first: int, end: int) -> np.ndarray:
    return np.array([(100 * number, 100, 0) for number in range(first, end)], ENTRY)


def test_the_room_before_the_first_message_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rebuilt store may have megabytes of it in each queue."""
    store = StoreBuilder(tmp_path, queue_file_size=20 * 300_000)
    directory = store.queue_directory("TopicA", 0)
    directory.mkdir(parents=True)
    entries = np.concatenate([np.full(290_000, PRE_BLANK, ENTRY), _messages(0, 10)]).astype(ENTRY)
    (directory / f"{0:020d}").write_bytes(entries.tobytes().ljust(20 * 300_000, b"\0"))
    queue, read = queue_of(store), [0]
    whole = ConsumeQueue.entries

    def counted(queue: ConsumeQueue, start: int, end: int) -> np.ndarray:
        read[0] += end - start
        return whole(queue, start, end)

    monkeypatch.setattr(ConsumeQueue, "entries", counted)
    assert queue.first_offset_at(0, len(entries)) == 290_000
    assert read[0] < 5_000
