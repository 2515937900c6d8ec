"""Opening for writing: what is cut, what is entered again, and that it may be killed anywhere and run again."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from storage import Message, MessageStore, StoreConfig, open_store
from storage.errors import StoreDamagedError, StoreLockedError
from storage.files.local_file_system import LocalFileSystem
from storage.format.arrays import index_key_hash
from storage.format.keys import HEADER, HEADER_SIZE
from storage.format.record import encode_record
from storage.index.store import mend_chains
from tests.support.fixture_stores import Fixture, golden_lines
from tests.support.message_builder import FIRST_STORE_TIME_MS, StoreBuilder
from tests.support.shares import one_in

QUEUES = [("TopicA", 0), ("TopicA", 1), ("TopicB", 0)]
A_0 = 12  # messages in TopicA queue 0
IN_STEPS = pytest.mark.parametrize(
    "step", [pytest.param(5, id="every-fifth"), pytest.param(1, id="all", marks=pytest.mark.slow)]
)
"""How far the next place lies from the last one."""


def fill(store: StoreBuilder, count: int = 40) -> None:
    """Three queues that go on to the end, and one whose messages all stand in the first log file."""
    for number in range(count):
        topic, queue_id = QUEUES[number % 3] if number > 3 else ("TopicOld", 0)
        store.put(topic, queue_id, body=b"%4d" % number * 40, properties={"UNIQ_KEY": f"u{number}", "KEYS": "k all"})


@pytest.fixture
def store(tmp_path: Path) -> StoreBuilder:
    """40 messages in four queues and three log files, indexed, cleanly closed."""
    store = StoreBuilder(tmp_path / "store")
    fill(store)
    store.open(read_only=False).close()
    return store


State = tuple[dict[tuple[str, int, int], int], set[tuple[int, int]], int, str]


def state(store: MessageStore) -> State:
    """All that is served by queue, what the index holds, and what stands in the log."""
    served = {
        (topic, queue_id, offset): position.commitlog_offset
        for topic in store.topics()
        for queue_id in store.queue_ids(topic)
        for offset in range(store.min_offset(topic, queue_id), store.max_offset(topic, queue_id))
        if (position := store.position(topic, queue_id, offset)) is not None
    }
    keys = {
        (int(item["key_hash"]), int(item["commitlog_offset"]))
        for file in store.index.files()
        for item in file.items()[file.reachable_items()]
    }
    log = hashlib.sha256(
        b"".join(Path(file.path).read_bytes() for file in store.log.files if file.start < store.log_end)
    )
    return served, keys, store.log_end, log.hexdigest()


def places(messages: list[Message]) -> dict[tuple[str, int, int], int]:
    return {(message.topic, message.queue_id, message.queue_offset): message.commitlog_offset for message in messages}


def keys(messages: list[Message]) -> set[tuple[int, int]]:
    return {
        (index_key_hash(f"{message.topic}#{key}"), message.commitlog_offset)
        for message in messages
        for name, _, value in (entry.partition("\1") for entry in message.raw_properties.decode().split("\2"))
        if name in ("UNIQ_KEY", "KEYS")
        for key in value.split(" ")
    }


def assert_holds(store: MessageStore, messages: list[Message]) -> None:
    served, indexed, log_end, _ = state(store)
    assert served == places(messages)
    assert indexed == keys(messages)
    assert log_end == (messages[-1].commitlog_offset + messages[-1].size_bytes if messages else store.log.minimum)
    assert store.undispatched_bytes == 0


def test_queues_and_index_are_built_from_the_log_alone(store: StoreBuilder) -> None:
    with store.open() as before:
        expected = state(before)
    shutil.rmtree(store.root / "consumequeue")
    shutil.rmtree(store.root / "index")
    with store.open(read_only=False) as opened:
        assert state(opened) == expected
        assert_holds(opened, store.messages)
        assert opened.recovery is not None
        assert (opened.recovery.added_entries, opened.recovery.cut_bytes) == (40, 0)
        assert opened.recovery.indexed_keys == 120


@pytest.mark.parametrize("abort", [False, True])
@pytest.mark.parametrize(
    "lost", one_in(3, ["consumequeue", "index", "consumequeue/TopicA", "consumequeue/TopicA/1", "checkpoint"])
)
@pytest.mark.parametrize("checkpoint", ["honest", "missing", "zero", "short"])
def test_what_is_lost_is_built_again(store: StoreBuilder, lost: str, abort: bool, checkpoint: str) -> None:
    path = store.root / lost
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    if abort:
        store.abort()
    if checkpoint == "missing":
        (store.root / "checkpoint").unlink(missing_ok=True)
    elif checkpoint == "zero":
        (store.root / "checkpoint").write_bytes(bytes(4096))
    elif checkpoint == "short":
        (store.root / "checkpoint").write_bytes(b"\x7f" * 20)
    with store.open(read_only=False) as opened:
        if lost.startswith("consumequeue/") and not (abort and checkpoint != "honest"):
            # A queue that is gone is no sign of anything while others are there; a broker does not miss it either.
            gone = lost.removeprefix("consumequeue/") + "/"
            kept = [m for m in store.messages if not f"{m.topic}/{m.queue_id}/".startswith(gone)]
            assert places(kept).items() <= state(opened)[0].items() <= places(store.messages).items()
        else:
            assert_holds(opened, store.messages)


@pytest.mark.parametrize("abort", [False, True])
def test_a_checkpoint_of_the_future_loses_no_message(store: StoreBuilder, abort: bool) -> None:
    if abort:
        store.abort()
    store.checkpoint(2**62, 2**62, 2**62)
    late = [store.put(entered=False, properties={"UNIQ_KEY": f"late{number}"}) for number in range(3)]
    with store.open(read_only=False) as opened:
        assert_holds(opened, store.messages)
        assert opened.get("TopicA", 0, late[0].queue_offset).messages[0] == late[0]


@pytest.mark.parametrize("abort", [False, True])
@pytest.mark.parametrize("count", [1, 5, 30])
def test_records_that_have_no_entry_yet_are_entered(store: StoreBuilder, abort: bool, count: int) -> None:
    """The first of them begins exactly where the queues end; a real broker would pass it over after a clean stop."""
    if abort:
        store.abort()
    for number in range(count):
        store.put(*QUEUES[number % 3], entered=False, body=bytes(300), properties={"UNIQ_KEY": f"late{number}"})
    with store.open(read_only=False) as opened:
        assert_holds(opened, store.messages)
        assert opened.recovery is not None
        assert opened.recovery.added_entries == count


def test_a_topic_that_has_no_queue_yet_gets_one(store: StoreBuilder) -> None:
    store.abort()
    store.put("TopicNew", 5, entered=False)
    with store.open(read_only=False) as opened:
        assert opened.queue_ids("TopicNew") == [5]
        assert_holds(opened, store.messages)


@IN_STEPS
@pytest.mark.parametrize("abort", [False, True])
def test_a_tail_torn_at_any_byte_is_cut_and_zeroed(store: StoreBuilder, abort: bool, step: int) -> None:
    last = store.put(entered=False, properties={"UNIQ_KEY": "x"})
    record = encode_record(last)
    protected = len(record) - len(last.raw_properties)
    for length in range(0, len(record), step):
        store.write_log(last.commitlog_offset, record[:length].ljust(len(record), b"\0"))
        store.enter(last)
        if abort:
            store.abort()
        with store.open(read_only=False) as opened:
            assert opened.recovery is not None
            if length < protected:
                assert_holds(opened, store.messages[:-1])
                assert (opened.recovery.cut_bytes, opened.recovery.cut_entries) == (length_of_data(record[:length]), 1)
                assert not any(opened.log.bytes_at(last.commitlog_offset, 4096 - last.commitlog_offset % 4096))
            else:  # only properties are lost, which nothing protects
                assert state(opened)[0] == places(store.messages)


def test_a_store_whose_tail_was_torn_goes_on(store: StoreBuilder) -> None:
    """apache/rocketmq#467: what is appended behind a torn tail is all there, now and after the next recovery."""
    last = store.put(entered=False)
    store.write_log(last.commitlog_offset, encode_record(last)[:50].ljust(len(encode_record(last)), b"\0"))
    store.abort()
    bodies = [b"behind %d" % number for number in range(100)]
    with store.open(read_only=False) as opened:
        for body in bodies:
            opened.put("TopicA", body, queue_id=0)
        opened.release()
    for read_only in (True, False):
        with store.open(read_only=read_only) as opened:
            offsets = range(A_0, opened.max_offset("TopicA", 0))
            assert [opened.get("TopicA", 0, offset, 1).messages[0].body for offset in offsets] == bodies


def length_of_data(data: bytes) -> int:
    return len(data.rstrip(b"\0"))


def test_pages_lost_in_the_tail_end_the_log_there(store: StoreBuilder) -> None:
    """Records behind the hole are intact, but younger than the checkpoint: no damage, a tail."""
    store.abort()
    late = [store.put(*QUEUES[number % 3], body=bytes(200)) for number in range(20)]
    store.write_log(late[7].commitlog_offset, bytes(late[7].size_bytes))
    before = whole_log(store)
    with store.open(read_only=False) as opened:
        assert_holds(opened, store.messages[:47])
        assert opened.recovery is not None
        assert opened.recovery.cut_bytes == length_of_data(before[late[7].commitlog_offset :])
    assert not any(whole_log(store)[late[7].commitlog_offset :])


def whole_log(store: StoreBuilder) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((store.root / "commitlog").iterdir()))


def test_damage_before_the_checkpoint_is_refused_until_it_is_asked_for(store: StoreBuilder) -> None:
    """With every file as it was, an empty one too, as a power loss leaves of a file just made."""
    bad = store.messages[33]
    store.write_log(bad.commitlog_offset + 95, b"\xff")
    (store.root / "index" / "20300101000000000").touch()
    before = {path: path.read_bytes() for path in store.root.rglob("*") if path.is_file()}
    with pytest.raises(StoreDamagedError) as raised:
        store.open(read_only=False)
    assert {path: path.read_bytes() for path in store.root.rglob("*") if path.is_file()} == before
    assert raised.value.commitlog_offset == bad.commitlog_offset
    assert raised.value.intact_records_behind == 6
    with store.open() as opened:
        assert opened.log_end == bad.commitlog_offset
    with store.open(read_only=False, truncate_damage=True) as opened:
        assert_holds(opened, store.messages[:33])


@pytest.mark.parametrize("abort", [False, True])
def test_entries_behind_the_log_are_cut_and_zeroed(store: StoreBuilder, abort: bool) -> None:
    if abort:
        store.abort()
    for number in range(30):
        store.write_entry("TopicA", 0, A_0 + number, store.end + 100 * number, 100)
    with store.open(read_only=False) as opened:
        assert_holds(opened, store.messages)
        assert opened.recovery is not None
        assert opened.recovery.cut_entries == 30
        assert opened.max_offset("TopicA", 0) == A_0
    files = sorted(store.queue_directory("TopicA", 0).iterdir())
    assert [path.name for path in files] == [f"{0:020d}"]
    assert not any(files[0].read_bytes()[A_0 * 20 :])


def test_old_records_do_not_rise_again_behind_a_new_one_of_the_same_length(store: StoreBuilder) -> None:
    late = [store.put() for _ in range(3)]
    store.write_log(late[0].commitlog_offset, bytes(8))
    store.abort()
    store.open(read_only=False).close()
    del store.messages[-3:]
    store.end, store.queue_ends["TopicA", 0] = late[0].commitlog_offset, late[0].queue_offset
    new = store.put(body=b"new!", entered=False)
    assert new.size_bytes == late[0].size_bytes
    store.abort()
    with store.open(read_only=False) as opened:
        assert opened.log_end == store.end
        assert state(opened)[0] == places(store.messages)


def test_a_topic_made_again_keeps_its_last_life_when_queues_are_built_again(store: StoreBuilder) -> None:
    shutil.rmtree(store.queue_directory("TopicA", 0))
    store.queue_ends["TopicA", 0] = 0
    second = [store.put("TopicA", 0, body=b"second life") for _ in range(3)]
    with store.open() as before:
        expected = state(before)[0]
    shutil.rmtree(store.root / "consumequeue")
    with store.open(read_only=False) as opened:
        assert state(opened)[0] == expected
        assert opened.get("TopicA", 0, 0).messages == tuple(second)


@pytest.mark.parametrize("abort", [False, True])
def test_a_queue_that_lost_its_last_file_gets_it_back_with_the_next_recovery_that_goes_so_far(
    tmp_path: Path, abort: bool
) -> None:
    store = StoreBuilder(tmp_path / "store")
    fill(store, 90)
    max(store.queue_directory("TopicA", 0).iterdir()).unlink()
    if abort:
        store.abort()
    with store.open(read_only=False) as opened:
        if abort:
            assert_holds(opened, store.messages)
        else:
            assert state(opened)[0].items() <= places(store.messages).items()


def test_a_store_without_a_message_opens(tmp_path: Path) -> None:
    store = StoreBuilder(tmp_path / "store")
    for _ in range(2):
        with store.open(read_only=False) as opened:
            assert (opened.log_end, opened.topics()) == (0, [])


def test_a_log_whose_first_record_is_bad_is_empty(tmp_path: Path) -> None:
    store = StoreBuilder(tmp_path / "store")
    store.put()
    store.write_log(90, b"\xff")
    with store.open(read_only=False) as opened:
        assert_holds(opened, [])
        assert opened.topics() in ([], ["TopicA"])
        assert opened.max_offset("TopicA", 0) == 0


def test_prepared_and_rolled_back_records_have_no_entry(tmp_path: Path) -> None:
    store = StoreBuilder(tmp_path / "store")
    kinds = [0, 4, 8, 12, 0]
    for number, sys_flag in enumerate(kinds):
        entered = sys_flag in (0, 8)
        message = store.put(
            sys_flag=sys_flag,
            entered=False,
            queue_offset=store.queue_ends.get(("TopicA", 0), 0) if entered else 0,
            properties={"UNIQ_KEY": f"u{number}"},
        )
        store.queue_ends["TopicA", 0] = 1 + kinds[: number + 1].count(0) + kinds[: number + 1].count(8) - 1
        assert message.sys_flag == sys_flag
    store.abort()
    with store.open(read_only=False) as opened:
        with_entry = [message for message in store.messages if message.sys_flag in (0, 8)]
        assert state(opened)[0] == places(with_entry)
        indexed = [message for message in store.messages if message.sys_flag != 12]
        assert state(opened)[1] == keys(indexed)


def test_one_writer_at_a_time(store: StoreBuilder) -> None:
    with store.open(read_only=False) as writer:
        with pytest.raises(StoreLockedError):
            store.open(read_only=False)
        assert writer.max_offset("TopicA", 0) == A_0
        with store.open() as reader:
            assert reader.max_offset("TopicA", 0) == A_0
    store.open(read_only=False).close()


def test_a_failed_open_gives_the_lock_back(store: StoreBuilder) -> None:
    store.write_log(store.messages[33].commitlog_offset + 95, b"\xff")
    for _ in range(2):
        with pytest.raises(StoreDamagedError):
            store.open(read_only=False)


class Killed(BaseException):
    """What a dying process raises: nobody catches it."""


class DyingFileSystem(LocalFileSystem):
    """Stops at its nth change of the disk; the last write may be half done."""

    def __init__(self, changes: int, torn: bool) -> None:
        self.left = changes
        self._torn = torn

    def _change(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Killed

    def write(self, path: str, position: int, data: bytes | memoryview | np.ndarray) -> None:
        if self.left == 0 and self._torn:
            view = memoryview(data).cast("B")
            super().write(path, position, view[: len(view) // 2])
        self._change()
        super().write(path, position, data)

    def create_file(self, path: str, size_bytes: int) -> None:
        self._change()
        super().create_file(path, size_bytes)

    def unlink(self, path: str) -> None:
        self._change()
        super().unlink(path)


def prepared(scene: str, store: StoreBuilder) -> None:
    """What the recovery that is going to be killed finds."""
    if scene == "queues lost":
        shutil.rmtree(store.root / "consumequeue")
    elif scene == "index lost":
        shutil.rmtree(store.root / "index")
    elif scene == "all lost":
        shutil.rmtree(store.root / "consumequeue")
        shutil.rmtree(store.root / "index")
    elif scene == "late records":
        for number in range(25):
            store.put(*QUEUES[number % 3], entered=number < 5, body=bytes(200), properties={"UNIQ_KEY": f"l{number}"})
        store.abort()
    elif scene == "torn tail":
        late = [store.put(*QUEUES[number % 3], body=bytes(300), properties={"KEYS": "late"}) for number in range(20)]
        store.write_log(late[4].commitlog_offset + 100, b"\xff")
        store.abort()
        del store.messages[-16:]


@pytest.mark.crash
@pytest.mark.parametrize(
    "step", [5, pytest.param(3, marks=pytest.mark.slow), pytest.param(1, id="all", marks=pytest.mark.long)]
)
@pytest.mark.parametrize("torn", [False, True])
@pytest.mark.parametrize(
    "scene", one_in(2, ["nothing", "queues lost", "all lost", "index lost", "torn tail", "late records"])
)
def test_a_recovery_killed_anywhere_and_run_again_ends_the_same(
    store: StoreBuilder, scene: str, torn: bool, step: int, tmp_path: Path
) -> None:
    prepared(scene, store)
    changes = 0
    while True:
        copy = tmp_path / "copy"
        shutil.copytree(store.root, copy)
        try:
            open_store(
                copy, config=StoreConfig.tiny(), read_only=False, file_system=DyingFileSystem(changes, torn)
            ).close()
            finished = True
        except Killed:
            finished = False
        with open_store(copy, config=StoreConfig.tiny()) as opened:  # nothing wrong is served meanwhile
            assert state(opened)[0].items() <= places(store.messages).items()
        with open_store(copy, config=StoreConfig.tiny(), read_only=False) as opened:
            served, indexed, log_end, _ = state(opened)
        assert served == places(store.messages), changes
        assert indexed == keys(store.messages), changes
        assert log_end == store.messages[-1].commitlog_offset + store.messages[-1].size_bytes
        shutil.rmtree(copy)
        if finished:
            break
        changes += step
    assert changes > (1 if scene == "nothing" else 8)


@pytest.mark.crash
@pytest.mark.parametrize("step", [21, pytest.param(7, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", one_in(2, ["recovered", "crashed"]))
def test_the_brokers_store_recovers_the_same_when_killed_on_the_way(
    name: str, step: int, pristine_store: Callable[[str], Fixture], fixture_store: Callable[[str], Fixture]
) -> None:
    expected: State | None = None
    changes = 0
    finished = False
    while not finished:
        fixture = fixture_store(name)
        try:
            open_store(
                fixture.root, config=str(fixture.conf), read_only=False, file_system=DyingFileSystem(changes, True)
            ).close()
            finished = True
        except Killed:
            changes += step
        with open_store(fixture.root, config=str(fixture.conf), read_only=False) as opened:
            found = state(opened)
        expected = expected or found
        assert found[0] == expected[0]
        assert found[2:] == expected[2:]
        golden = {
            (line["cqTopic"], line["cqQueueId"], line["cqOffset"]): line["physicalOffset"]
            for line in golden_lines(fixture.golden, "message")
        }
        assert found[0] == golden
        for line in golden_lines(fixture.golden, "query"):
            key_hash = index_key_hash(f"{line['topic']}#{line['key']}")
            if line["begin"] == 0:
                assert {(key_hash, place) for place in line["physicalOffsets"]} <= found[1]
        shutil.rmtree(fixture.root)


@pytest.mark.parametrize("size", range(0, 40, 4))
def test_an_index_file_whose_header_is_written_in_part_holds_every_key(store: StoreBuilder, size: int) -> None:
    """The fields in the order of IndexHeader: the end stands before the number of items."""
    with store.open() as opened:
        *_, torn, last = opened.index.files()
        places, path = torn.items()["commitlog_offset"].copy(), Path(torn.path)
    Path(last.path).unlink()
    whole = path.read_bytes()
    count = 1 + int(np.count_nonzero(places < np.unique(places)[-3]))
    assert count > 1
    header = np.frombuffer(whole, HEADER, 1).copy()  # as it was before the last three records
    header["end_commitlog_offset"], header["index_count"] = places[count - 2], count
    path.write_bytes(header.tobytes() + whole[HEADER_SIZE:])
    with store.open() as opened:
        mend_chains(LocalFileSystem(), opened.index.files()[-1])  # its slots too
    path.write_bytes(whole[:size] + path.read_bytes()[size:])
    store.abort()
    with store.open(read_only=False) as opened:
        assert_holds(opened, store.messages)


def test_the_clock_of_a_message_is_the_stores_not_ours(store: StoreBuilder) -> None:
    """Nothing in a recovery depends on the time of day but the names of new index files."""
    shutil.rmtree(store.root / "index")
    with store.open(read_only=False, clock=lambda: FIRST_STORE_TIME_MS) as opened:
        assert_holds(opened, store.messages)
        names = [file.name for file in opened.index.files()]
    assert len(names) > 1
    assert names == sorted(set(names))


@pytest.mark.parametrize("was_clean", [True, False], ids=["closed", "killed"])
@pytest.mark.parametrize(("entry", "byte"), [(0, 8), (0, 0), (1, 8)], ids=["size", "place", "second"])
def test_a_wrong_entry_amid_a_queue_makes_no_later_message_take_an_offset_that_is_taken(
    tmp_path: Path, entry: int, byte: int, was_clean: bool
) -> None:
    """With a wrong sign an entry is none, and the queue seems to end there; Java goes on from there, over the entries that follow."""
    root = tmp_path / "store"
    with open_store(root, config=StoreConfig.tiny(), read_only=False, create=True) as store:
        for number in range(4):
            store.put("T", b"%d" % number, queue_id=0)
    queue = root / "consumequeue" / "T" / "0" / f"{0:020d}"
    content = bytearray(queue.read_bytes())
    content[20 * entry + byte] ^= 0x80
    queue.write_bytes(content)
    if not was_clean:
        (root / "abort").touch()
    with open_store(root, config=StoreConfig.tiny(), read_only=False) as store:
        assert store.recovery is not None
        assert store.recovery.rebuilt_queues == [("T", 0)]
        assert store.put("T", b"4", queue_id=0).queue_offset == 4
        assert [one.body for one in store.get("T", 0, 0).messages] == [b"0", b"1", b"2", b"3", b"4"]
