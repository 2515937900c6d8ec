"""What a put leaves on the disk, and in which order: a crash between any two steps loses nothing that was acknowledged."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from storage import MessageStore, StoreConfig, open_store
from storage.dispatch.writer import load_hint
from storage.errors import StorageError, StoreNotWritableError
from storage.files.file_system import LocalWriter
from storage.files.local_file_system import LocalFileSystem
from storage.log.commit_log import decode_checkpoint, read_checkpoint
from storage.recovery.verify import verify
from storage.tables.topics import TopicTable
from tests.support.served import served
from tests.support.unsynced_files import UnsyncedFileSystem

NOW_MS = 1_700_000_000_000
TINY = StoreConfig.tiny()


class Clock:
    """A second later at every look, unless it is set."""

    def __init__(self, now_ms: int = NOW_MS) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        self.now_ms += 1_000
        return self.now_ms


class Unsynced(UnsyncedFileSystem):
    """Its open files sync nothing either."""

    def open_for_writing(self, path: str) -> LocalWriter:
        writer = super().open_for_writing(path)
        writer.sync = lambda: None  # type: ignore[method-assign]
        return writer


class Disk(Unsynced):
    """Notes every step as (verb, path below ROOT), and fails at one on demand."""

    def __init__(self, root: Path) -> None:
        self._root = f"{root}/"
        self.steps: list[tuple[str, str]] = []
        self.fails: Callable[[str, str], bool] = lambda verb, path: False
        self.after_step: Callable[[str, str], None] = lambda verb, path: None

    def _step(self, verb: str, path: str, act: Callable[[], Any]) -> Any:
        path = path.removeprefix(self._root)
        if self.fails(verb, path):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        self.steps.append((verb, path))
        result = act()
        self.after_step(verb, path)
        return result

    def create_file(self, path: str, size_bytes: int) -> None:
        self._step("create", path, lambda: super(Disk, self).create_file(path, size_bytes))

    def sync(self, path: str) -> None:
        self._step("sync", path, lambda: super(Disk, self).sync(path))

    def rename(self, path: str, new_path: str) -> None:
        self._step("rename", new_path, lambda: super(Disk, self).rename(path, new_path))

    def unlink(self, path: str) -> None:
        self._step("unlink", path, lambda: super(Disk, self).unlink(path))

    def open_for_writing(self, path: str) -> LocalWriter:
        writer = super().open_for_writing(path)
        write, sync = writer.write, writer.sync
        writer.write = lambda position, data: self._step("write", path, lambda: write(position, data))  # type: ignore[method-assign]
        writer.sync = lambda: self._step("sync", path, sync)  # type: ignore[method-assign]
        return writer

    def places(self, verb: str, prefix: str) -> list[int]:
        """Numbers of the steps of that kind."""
        return [at for at, (done, path) in enumerate(self.steps) if done == verb and path.startswith(prefix)]


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path / "store")


def opened(tmp_path: Path, files: LocalFileSystem | None = None, **options: Any) -> MessageStore:
    options.setdefault("clock", Clock())
    return open_store(
        tmp_path / "store", config=TINY, read_only=False, create=True, file_system=files or Unsynced(), **options
    )


def opened_for_reading(tmp_path: Path) -> MessageStore:
    return open_store(tmp_path / "store", config=TINY)


def rows(count: int, first: int = 0) -> pa.RecordBatch:
    bodies = [b"%05d" % (first + number) * 10 for number in range(count)]
    keys = [f"k{first + number}" for number in range(count)]
    return pa.record_batch({"body": pa.array(bodies), "keys": pa.array(keys), "topic": pa.array(["T"] * count)})


def served_bodies(store: MessageStore, topic: str = "T") -> Iterator[bytes]:
    return (message.body for message in served(store, topic))


def bodies(count: int, first: int = 0) -> list[bytes]:
    return rows(count, first).column("body").to_pylist()


def checkpoint(tmp_path: Path) -> tuple[int, int, int]:
    return decode_checkpoint((tmp_path / "store" / "checkpoint").read_bytes())[:3]


def assert_sound(tmp_path: Path) -> None:
    """Log, queues, index and checkpoint agree."""
    with opened_for_reading(tmp_path) as store:
        marks = read_checkpoint(LocalFileSystem(), store.root)
        report = verify(store.log, store.queues, store.index, marks, store.plan, delays_ms=(1_000,))
    assert report.findings == ()


# Order


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_a_put_takes_its_steps_in_the_order_that_a_crash_allows(flush: str, tmp_path: Path, disk: Disk) -> None:
    with opened(tmp_path, disk, flush_disk_type=flush) as store:
        disk.steps.clear()
        store.put("T", b"body", keys="k", queue_id=3)
        topics, checkpoints = disk.places("rename", "config/topics.json"), disk.places("sync", "checkpoint")
        log, log_syncs = disk.places("write", "commitlog/"), disk.places("sync", "commitlog/")
        queues, index = disk.places("write", "consumequeue/"), disk.places("write", "index/")
        assert topics
        assert topics[-1] < log[0]
        assert checkpoints, "the index time, before a broker could find a younger index file"
        assert checkpoints[-1] < disk.places("create", "index/")[0]
        assert log[-1] < queues[0]
        assert queues[-1] < index[0]
        if flush == "SYNC_FLUSH":
            assert log[-1] < log_syncs[-1] < queues[0]
        else:
            assert log_syncs[-1] < log[0], "of the new file, before anything stands in it"
        assert set(disk.places("sync", "commitlog")) - set(log_syncs), "the new file's entry"


def test_abort_stands_before_the_first_byte_and_goes_after_the_last_sync(tmp_path: Path, disk: Disk) -> None:
    store = opened(tmp_path, disk)
    assert (tmp_path / "store" / "abort").exists()
    store.put("T", b"body")
    first_write = min(disk.places("write", "commitlog/") + disk.places("write", "consumequeue/"))
    assert disk.places("rename", "abort")[0] < first_write
    assert disk.places("sync", "")[0] < first_write
    disk.steps.clear()
    store.close()
    (gone,) = disk.places("unlink", "abort")
    assert not disk.places("write", "")[-1] > gone
    assert disk.places("sync", "checkpoint")[-1] < gone
    assert disk.steps[-1] == ("sync", str(tmp_path / "store"))
    assert not (tmp_path / "store" / "abort").exists()


def test_a_topic_is_made_once_and_before_its_first_record(tmp_path: Path, disk: Disk) -> None:
    with opened(tmp_path, disk) as store:
        store.put("T", b"1", queue_count=3)
        store.put("T", b"2", queue_count=5)
        assert len(disk.places("rename", "config/topics.json")) == 1
        text = (tmp_path / "store" / "config" / "topics.json").read_text("utf-8")
        config = TopicTable.load(text).topics["T"]
        assert (config.read_queue_count, config.write_queue_count, config.perm) == (3, 3, 6)
        before = TopicTable.load(text).version
        store.put("U", b"3")
        text = (tmp_path / "store" / "config" / "topics.json").read_text("utf-8")
        after = TopicTable.load(text)
        assert (after.topics["U"].write_queue_count, after.topics["T"]) == (8, config)
        assert after.version.counter == before.counter + 1
        assert after.version.timestamp_ms > before.timestamp_ms


# Times


def test_store_times_never_go_back_though_the_clock_does(tmp_path: Path) -> None:
    clock = Clock()
    with opened(tmp_path, clock=clock) as store:
        times = [store.put("T", b"1").store_time_ms]
        clock.now_ms -= 10**9
        times.append(store.put("T", b"2").store_time_ms)
        clock.now_ms += 10**9
        times.append(store.put("T", b"3").store_time_ms)
        store.release()
    clock.now_ms -= 10**9
    with opened(tmp_path, clock=clock) as store:  # by the hint
        times.append(store.put("T", b"4").store_time_ms)
    with opened(tmp_path, clock=clock) as store:  # by a recovery
        times.append(store.put("T", b"5").store_time_ms)
    assert times == sorted(times)
    assert times[0] == times[1] < times[2] == times[3] == times[4]
    assert_sound(tmp_path)


def test_all_records_of_a_put_have_one_store_time(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        results = store.put_batch(rows(200))
        (time,) = set(results.column("store_time_ms").to_pylist())
        for row in results.to_pylist():
            message = store.message_by_commitlog_offset(row["commitlog_offset"])
            assert (message.store_time_ms, message.msg_id) == (time, row["msg_id"])
            assert (message.queue_id, message.queue_offset) == (row["queue_id"], row["queue_offset"])


# The checkpoint


def test_a_closed_stores_checkpoint_is_not_ahead_of_its_records(tmp_path: Path) -> None:
    """Single puts claim index time in advance; nothing of that is left when all is on the disk."""
    with opened(tmp_path, clock=lambda: NOW_MS) as store:
        store.put("T", b"1", keys="k")
    assert checkpoint(tmp_path) == (NOW_MS, NOW_MS, NOW_MS)
    assert_sound(tmp_path)


def test_the_checkpoint_never_speaks_of_what_is_not_synced(tmp_path: Path, disk: Disk) -> None:
    """Of log and queues at any time. The index time runs ahead on purpose; then index_synced.json says how far it is true."""
    dirty: set[str] = set()
    vouched: list[tuple[int, int]] = [(0, 0)]

    def watch(verb: str, path: str) -> None:
        if path.startswith(("commitlog", "consumequeue", "index")):
            if verb in ("write", "rename", "unlink"):
                dirty.add(path)
            if verb in ("create", "rename", "unlink"):
                dirty.add(os.path.dirname(path))
            if verb == "sync":
                dirty.discard(path)
        if (verb, path) == ("write", "checkpoint"):
            physic, logics, index = checkpoint(tmp_path)
            if (physic, logics) != vouched[-1]:
                assert not [path for path in dirty if not path.startswith("index")]
                vouched.append((physic, logics))
                if not (tmp_path / "store" / "spark_mq" / "index_synced.json").exists():
                    assert not dirty
            assert index >= physic or not (tmp_path / "store" / "index").exists()

    disk.after_step = watch
    for number in range(4):
        with opened(tmp_path, disk, clock=Clock(NOW_MS + 10**6 * number)) as store:
            for part in range(4):
                store.put_batch(rows(60, 60 * part))
                if part % 2:
                    store.writer.checkpoint()
                    times = checkpoint(tmp_path)
                    assert times[0] == times[1] == store.writer.ends.last_record.store_time_ms  # type: ignore[union-attr]
            if number % 2:
                store.release()
    assert len(vouched) > 8
    assert vouched == sorted(vouched)


def test_before_the_index_is_written_the_checkpoint_holds_the_records_time(tmp_path: Path, disk: Disk) -> None:
    """Otherwise a broker that finds `abort` deletes the index file, with keys that it does not enter again (IndexService.load)."""
    ahead: list[bool] = []

    def watch(verb: str, path: str) -> None:
        if verb == "write" and path.startswith("index/"):
            end_time = int.from_bytes((tmp_path / "store" / path).read_bytes()[8:16], "big")
            ahead.append(checkpoint(tmp_path)[2] >= end_time)

    disk.after_step = watch
    with opened(tmp_path, disk) as store:
        for number in range(5):
            store.put_batch(rows(15, 15 * number))
        store.release()
    assert len(ahead) > 10
    assert all(ahead)


def test_a_checkpoint_is_due_once_a_minute(tmp_path: Path) -> None:
    clock = Clock()
    with opened(tmp_path, clock=clock) as store:
        stored = store.put("T", b"1").store_time_ms
        clock.now_ms += 50_000
        store.writer.checkpoint_if_due()
        assert checkpoint(tmp_path)[:2] == (0, 0)
        clock.now_ms += 10_000
        store.writer.checkpoint_if_due()
        assert checkpoint(tmp_path)[:2] == (stored, stored)


def test_what_a_released_store_left_unsynced_is_synced_by_the_next(tmp_path: Path, disk: Disk) -> None:
    store = opened(tmp_path)
    store.put_batch(rows(100))
    store.release()
    with opened(tmp_path, disk) as store:
        assert store.recovery is None
        disk.steps.clear()
        store.flush()
        synced = {path for verb, path in disk.steps if verb == "sync"}
        assert {f"commitlog/{path.name}" for path in (tmp_path / "store" / "commitlog").iterdir()} <= synced
        assert not [path for path in synced if path.startswith("consumequeue")]
        store.writer.checkpoint()
        synced = {path for verb, path in disk.steps if verb == "sync"}
        files = {
            str(path.relative_to(tmp_path / "store")) for path in (tmp_path / "store" / "consumequeue").glob("*/*/*")
        }
        assert files | {"consumequeue", "consumequeue/T", "consumequeue/T/0", "index"} <= synced


# Failures


STEPS = [
    ("write", "commitlog/"),
    ("sync", "commitlog/"),
    ("write", "consumequeue/"),
    ("create", "consumequeue/"),
    ("write", "index/"),
    ("create", "index/"),
    ("sync", "index/"),
    ("write", "checkpoint"),
    ("sync", "checkpoint"),
]


def put_until_it_fails(store: MessageStore, acknowledged: int) -> int:
    """Batches of 20 after the first `acknowledged` rows; returns how many rows are acknowledged."""
    for _ in range(30):
        try:
            store.put_batch(rows(20, acknowledged))
        except (OSError, StorageError):
            return acknowledged
        acknowledged += 20
    pytest.fail("nothing failed")


def content_of_log(tmp_path: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (tmp_path / "store" / "commitlog").iterdir()}


@pytest.mark.crash
@pytest.mark.parametrize("nth", [1, 5])
@pytest.mark.parametrize(("verb", "prefix"), STEPS, ids=lambda value: value.strip("/"))
def test_after_an_error_the_writer_takes_nothing_more_and_opening_mends_the_store(
    verb: str, prefix: str, nth: int, tmp_path: Path, disk: Disk
) -> None:
    store = opened(tmp_path, disk, flush_disk_type="SYNC_FLUSH")
    store.put_batch(rows(30))
    acknowledged, left = 30, nth

    def fails(done: str, path: str) -> bool:
        nonlocal left
        left -= done == verb and path.startswith(prefix)
        return left <= 0 and done == verb and path.startswith(prefix)

    disk.fails = fails
    acknowledged = put_until_it_fails(store, acknowledged)
    disk.fails = lambda done, path: False
    log = content_of_log(tmp_path)
    with pytest.raises(StoreNotWritableError, match="an earlier write failed"):
        store.put("T", b"more")
    with pytest.raises(StoreNotWritableError, match="an earlier write failed"):
        store.flush()
    assert content_of_log(tmp_path) == log
    store.release()
    assert (tmp_path / "store" / "abort").exists()
    assert load_hint(LocalFileSystem(), str(tmp_path / "store")) is None, "nobody may trust these ends"

    with opened(tmp_path) as store:
        found = sorted(served_bodies(store))
        assert found[:acknowledged] == bodies(acknowledged)
        assert found == bodies(len(found))
        for number in range(len(found)):
            assert [message.body for message in store.query("T", f"k{number}")] == bodies(1, number)
        store.put_batch(rows(50, len(found)))
        assert sorted(served_bodies(store)) == bodies(len(found) + 50)
    assert_sound(tmp_path)


def test_where_there_is_no_room_nothing_is_written_and_the_writer_goes_on(tmp_path: Path, disk: Disk) -> None:
    with opened(tmp_path, disk) as store:
        store.put_batch(rows(10))
        log = content_of_log(tmp_path)
        disk.fails = lambda verb, path: (verb, path[:10]) == ("create", "commitlog/")
        with pytest.raises(StoreNotWritableError, match="no room"):
            store.put_batch(rows(100, 10))
        assert content_of_log(tmp_path) == log
        disk.fails = lambda verb, path: False
        store.put_batch(rows(100, 10))
        assert sorted(served_bodies(store)) == bodies(110)
    assert_sound(tmp_path)


def test_a_store_with_a_failed_writer_is_not_closed_cleanly(tmp_path: Path, disk: Disk) -> None:
    store = opened(tmp_path, disk)
    store.put("T", b"1")
    disk.fails = lambda verb, path: verb == "write" and path.startswith("consumequeue/")
    with pytest.raises(OSError, match="Input/output error"):
        store.put("T", b"2")
    disk.fails = lambda verb, path: False
    store.close()
    assert (tmp_path / "store" / "abort").exists()
    with opened(tmp_path) as again:
        assert again.recovery is not None
        assert sorted(served_bodies(again)) == [b"1", b"2"], "the second was not acknowledged, but it stands in the log"


def test_a_failed_sync_is_not_acknowledged_and_not_tried_again(tmp_path: Path, disk: Disk) -> None:
    """After a failed fsync the system may have dropped the pages and says so only once."""
    store = opened(tmp_path, disk)
    store.put("T", b"1")
    failures = 0

    def fails(verb: str, path: str) -> bool:
        nonlocal failures
        failures += verb == "sync" and path.startswith("commitlog/")
        return failures == 1

    disk.fails = fails
    with pytest.raises(OSError, match="Input/output error"):
        store.flush()
    failures = 2
    for again in (store.flush, store.writer.checkpoint, lambda: store.put("T", b"2")):
        with pytest.raises(StoreNotWritableError):
            again()
    store.close()
    assert (tmp_path / "store" / "abort").exists()


# Many at once


def test_runs_appended_together_stand_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are dispatched in groups; where a group ends is not to be seen."""
    monkeypatch.setattr("storage.dispatch.writer.DISPATCH_ROWS", 50)
    with opened(tmp_path) as store:
        for number in range(7):
            store.put_batch(rows(30 * number % 100, 1_000 * number))
        every = [row for number in range(7) for row in bodies(30 * number % 100, 1_000 * number)]
        assert sorted(served_bodies(store)) == sorted(every)
        for queue_id in store.queue_ids("T"):
            queue = [message.commitlog_offset for message in store.get("T", queue_id, 0, 10_000).messages]
            assert queue == sorted(queue)


def test_new_index_files_have_greater_names_whatever_the_clock_says(tmp_path: Path) -> None:
    clock = Clock()
    for shift in (0, -(10**10), 10**9, -(10**10)):
        clock.now_ms += shift
        with opened(tmp_path, clock=clock) as store:
            store.put_batch(rows(25))
    names = [
        path.name for path in sorted((tmp_path / "store" / "index").iterdir(), key=lambda path: path.stat().st_ino)
    ]
    held = [
        np.frombuffer(path.read_bytes()[16:32], ">i8").tolist()
        for path in sorted((tmp_path / "store" / "index").iterdir())
    ]
    assert len(set(names)) == len(names) > 8
    assert held == sorted(held), "places in the log ascend with the names"
    assert_sound(tmp_path)
