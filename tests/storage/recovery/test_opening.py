"""Opening for writing after every kind of end: closed, let go of, killed between two steps of a put."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from storage import MessageStore, StoreConfig, open_store
from storage.errors import StoreDamagedError, StoreLockedError, StoreNotFoundError, StoreNotWritableError
from storage.files.file_system import FileSystem
from storage.files.local_file_system import LocalFileSystem
from storage.log.commit_log import decode_checkpoint
from tests.support.fixture_stores import Fixture, golden_lines

FILES = LocalFileSystem()
TINY = StoreConfig.tiny()
NOW_MS = 1_700_000_000_000


class Killed(BaseException):
    """The process ends here; nothing that follows happens."""


class Dying(LocalFileSystem):
    """Ends the process before the nth step that changes the disk; `nth` None = never, but it counts."""

    def __init__(self, nth: int | None = None) -> None:
        self.nth = nth
        self.count = 0
        self._locks = ExitStack()

    @contextmanager
    def locked(self, path: str, timeout_ms: int = 0, **how: Any) -> Iterator[None]:
        self._locks.enter_context(super().locked(path, timeout_ms, **how))
        yield
        self.end_process()

    def end_process(self) -> None:
        """Locks go with the process that holds them."""
        self._locks.close()

    def _step(self) -> None:
        if self.count == self.nth:
            raise Killed
        self.count += 1

    def create_file(self, path: str, size_bytes: int) -> None:
        self._step()
        super().create_file(path, size_bytes)

    def sync(self, path: str) -> None:
        """Changes nothing."""

    def rename(self, path: str, new_path: str) -> None:
        self._step()
        super().rename(path, new_path)

    def unlink(self, path: str) -> None:
        self._step()
        super().unlink(path)

    def write_pieces(self, path: str, pieces: Any) -> None:
        """One step: how many slots an index file's new keys have is a matter of chance."""
        self._step()
        FILES.write_pieces(path, pieces)

    def open_for_writing(self, path: str):  # type: ignore[no-untyped-def]
        writer = super().open_for_writing(path)
        write = writer.write

        def step(position: int, data: bytes | memoryview | np.ndarray) -> None:
            self._step()
            write(position, data)

        writer.write, writer.sync = step, lambda: None  # type: ignore[method-assign]
        return writer


def opened(root: Path, files: LocalFileSystem = FILES, **options: Any) -> MessageStore:
    return open_store(root, config=TINY, read_only=False, create=True, file_system=files, **options)


def rows(count: int, first: int = 0) -> pa.RecordBatch:
    numbers = range(first, first + count)
    return pa.record_batch(
        {
            "body": pa.array([b"%05d" % number * 15 for number in numbers]),
            "keys": pa.array([f"k{number} all" for number in numbers]),
            "topic": pa.array(["T"] * count),
            "queue_id": pa.array([number % 3 for number in numbers], pa.int32()),
        }
    )


def body(number: int) -> bytes:
    return b"%05d" % number * 15


def assert_holds(store: MessageStore, count: int) -> None:
    """Rows 0 to `count`, each in its queue, in order, found by its key."""
    for queue_id in range(3):
        expected = [body(number) for number in range(queue_id, count, 3)]
        assert [message.body for message in store.get("T", queue_id, 0, 10_000).messages] == expected[:20]
        assert store.max_offset("T", queue_id) == len(expected)
    for number in range(count):
        assert [message.body for message in store.messages_by_key("T", f"k{number}")] == [body(number)]
    assert len(store.messages_by_key("T", "all", 10_000)) == count


def put_batches(root: Path, files: LocalFileSystem, acknowledged: list[int]) -> None:
    store = opened(root, files)
    for _ in range(2):
        store.put_batch(rows(14, acknowledged[0]), queue_count=3)
        acknowledged[0] += 14
    store.release()
    store = opened(root, files)
    store.put_batch(rows(14, acknowledged[0]), queue_count=3)
    acknowledged[0] += 14
    store.close()


def step_count(tmp_path: Path) -> int:
    counting = Dying()
    put_batches(tmp_path / "counted", counting, [0])
    return counting.count


@pytest.mark.slow
@pytest.mark.crash
def test_killed_before_any_step_everything_acknowledged_is_there_and_keys_are_found(tmp_path: Path) -> None:
    """The put in progress may be there too, or the first rows of it; queues, index and log agree."""
    steps = step_count(tmp_path)
    assert steps > 60
    partly = 0
    for nth in range(steps):
        root, acknowledged = tmp_path / f"killed-{nth}", [0]
        dying = Dying(nth)
        with pytest.raises(Killed):
            put_batches(root, dying, acknowledged)
        dying.end_process()
        if not root.exists():
            continue
        with opened(root, Dying()) as store:
            count = sum(store.max_offset("T", queue_id) for queue_id in store.queue_ids("T"))
            assert acknowledged[0] <= count <= acknowledged[0] + 14
            partly += count % 14 != 0
            assert_holds(store, count)
            store.put_batch(rows(7, count), queue_count=3)
            assert_holds(store, count + 7)
    assert partly, "some were killed between two files of the log"


@pytest.mark.crash
def test_with_the_header_written_and_the_slots_not_keys_are_found_again(tmp_path: Path) -> None:
    """The header goes first; a slot that still names an older item hides the new ones until the slots are made again."""
    store = opened(tmp_path)
    store.put_batch(rows(4), queue_count=3)
    store.release()

    class NoSlots(Dying):
        def write_pieces(self, path: str, pieces: Any) -> None:
            assert "/index/" in path
            raise Killed

    files = NoSlots()
    store = opened(tmp_path, files)
    assert store.recovery is None
    with pytest.raises(Killed):
        store.put_batch(rows(1, 4), queue_count=3)
    with open_store(tmp_path, config=TINY) as reader:
        assert not reader.messages_by_key("T", "k4"), "nobody made the slots"
        assert [message.body for message in reader.messages_by_key("T", "k3")] == [body(3)], "and nothing older is lost"
    files.end_process()
    with opened(tmp_path) as again:
        assert again.recovery is not None
        assert_holds(again, 5)


def test_a_closed_store_opens_clean_and_a_released_one_by_its_hint(tmp_path: Path) -> None:
    store = opened(tmp_path)
    assert store.recovery is not None
    store.put_batch(rows(30), queue_count=3)
    store.close()
    assert not (tmp_path / "abort").exists()
    store = opened(tmp_path)
    assert store.recovery is not None
    assert store.recovery.was_clean
    store.release()
    store = opened(tmp_path)
    assert store.recovery is None
    assert_holds(store, 30)
    store.close()


def test_abort_is_another_with_every_recovery_and_says_which_process(tmp_path: Path) -> None:
    contents = set()
    for _ in range(3):
        opened(tmp_path).close()
        store = opened(tmp_path)
        contents.add((tmp_path / "abort").read_text("ascii"))
        assert str(os.getpid()) in (tmp_path / "abort").read_text("ascii").split()
        store.close()
    assert len(contents) == 3


def test_a_store_that_is_open_for_writing_is_locked_until_it_is_let_go_of(tmp_path: Path) -> None:
    for let_go in (MessageStore.close, MessageStore.release):
        store = opened(tmp_path)
        with pytest.raises(StoreLockedError):
            opened(tmp_path)
        assert (tmp_path / "lock").read_bytes() == b"lock"
        let_go(store)
    opened(tmp_path).close()


def test_a_failed_opening_gives_the_lock_back(tmp_path: Path, fixture_store: Callable[[str], Fixture]) -> None:
    fixture = fixture_store("damaged")
    content = {path: path.read_bytes() for path in (fixture.root / "commitlog").iterdir()}
    for _ in range(2):
        with pytest.raises(StoreDamagedError):
            open_store(fixture.root, read_only=False)
    assert {path: path.read_bytes() for path in (fixture.root / "commitlog").iterdir()} == content
    assert not (fixture.root / "abort").exists(), "the store is as it was"


def test_after_a_close_or_release_nothing_can_be_put(tmp_path: Path) -> None:
    for let_go in (MessageStore.close, MessageStore.release):
        store = opened(tmp_path)
        store.put("T", b"1", queue_id=0)
        let_go(store)
        with pytest.raises(StoreNotWritableError):
            store.put("T", b"2", queue_id=0)
    with open_store(tmp_path, config=TINY) as reader, pytest.raises(StoreNotWritableError, match="read_only=False"):
        reader.put("T", b"2")


def test_without_create_a_missing_store_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFoundError):
        open_store(tmp_path / "none", config=TINY, read_only=False)
    assert not (tmp_path / "none").exists()


def test_an_error_in_the_block_leaves_the_store_unclosed_and_whole(tmp_path: Path) -> None:
    class Interrupted(Exception):
        pass

    def interrupted() -> None:
        with opened(tmp_path) as store:
            store.put_batch(rows(5), queue_count=3)
            raise Interrupted

    with pytest.raises(Interrupted):
        interrupted()
    assert (tmp_path / "abort").exists()
    with opened(tmp_path) as store:
        assert store.recovery is None
        assert_holds(store, 5)


@pytest.mark.parametrize("name", ["clean", "crashed", "syncflush", "ipv6", "expired", "preblank"])
def test_a_brokers_store_is_gone_on_with(name: str, fixture_store: Callable[[str], Fixture]) -> None:
    """New records follow the broker's, at the next queue offsets; what it held stays readable at its place."""
    fixture = fixture_store(name)
    queues = {(line["topic"], line["queueId"]): line["maxOffset"] for line in golden_lines(fixture.golden, "queue")}
    topic, queue_id = next((topic, queue) for topic, queue in sorted(queues) if topic.startswith("Topic"))
    end = queues[topic, queue_id]
    (host,) = {line["storeHost"] for line in golden_lines(fixture.golden, "message")} if name != "ipv6" else {None}
    with open_store(fixture.root, config=str(fixture.conf), read_only=False) as store:
        first = store.log_end
        result = store.put(topic, b"new", keys="fresh", queue_id=queue_id)
        assert (result.queue_offset, result.commitlog_offset >= first) == (end, True)
        found = store.get(topic, queue_id, end).messages
        assert [message.body for message in found][-1] == b"new"
        if host is not None:
            message = found[-1]
            address, port = message.store_host[:-4], int.from_bytes(message.store_host[-4:], "big")
            assert f"{'.'.join(map(str, address))}:{port}" == host
    with open_store(fixture.root, config=str(fixture.conf)) as reader:
        assert [message.body for message in reader.messages_by_key(topic, "fresh")] == [b"new"]
        for line in list(golden_lines(fixture.golden, "message"))[:200]:
            if "error" not in line:
                message = reader.message_by_commitlog_offset(line["physicalOffset"])
                assert (message.topic, message.queue_offset) == (line["topic"], line["queueOffset"])


def test_opening_a_clean_broker_store_first_vouches_for_its_index(fixture_store: Callable[[str], Fixture]) -> None:
    """A broker leaves an older index time at its clean stop; with `abort` beside it, it deletes files whose keys it cannot make."""
    fixture = fixture_store("roll")
    newest = max((fixture.root / "index").iterdir())
    end_time = int.from_bytes(newest.read_bytes()[8:16], "big")
    seen: list[int] = []

    class Watching(LocalFileSystem):
        def rename(self, path: str, new_path: str) -> None:
            if new_path.endswith("/abort"):
                seen.append(decode_checkpoint((fixture.root / "checkpoint").read_bytes()).index_msg_timestamp)
            super().rename(path, new_path)

    open_store(fixture.root, config=str(fixture.conf), read_only=False, file_system=Watching()).close()
    assert seen
    assert seen[0] >= end_time


class Elsewhere:
    """A file system that is not local, and of which nothing may be asked."""

    is_local = False

    def __getattr__(self, name: str) -> object:
        raise AssertionError(f"asked for {name}")


@pytest.mark.parametrize("create", [False, True])
def test_nothing_is_asked_of_a_store_elsewhere_that_is_to_be_written(create: bool) -> None:
    elsewhere = cast(FileSystem, Elsewhere())
    with pytest.raises(StoreNotWritableError, match=r"s3://bucket/store.*does not lie on a local file system"):
        open_store("s3://bucket/store", read_only=False, create=create, file_system=elsewhere)
