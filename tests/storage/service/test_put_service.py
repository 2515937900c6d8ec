"""Many threads put into one store: who waits for the disk, what one sync does for all, what readers see, and what a failure leaves."""

from __future__ import annotations

import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_mq.broker.put_plan import state_now
from storage import MessageStore, StoreConfig, open_store
from storage.errors import MessageIllegalError, RowIllegalError, StoreNotWritableError
from storage.log.commit_log import read_checkpoint
from storage.pending import PutStatus
from storage.put.settings import PutSettings
from storage.rules.inner_messages import InnerMessage, InnerMessages
from storage.rules.message_rows import MessageRows
from storage.rules.put_guards import BrokerState
from storage.service.put_group import PutMessageResult
from storage.service.put_service import DirectService, PutService
from storage.settings.nouns import FlushConfig
from storage.tables.topics import PERM_READ, TopicConfig
from tests.support.gated_disk import PATIENCE_S, Gate, GatedDisk
from tests.support.served import served

NOW_MS = 1_700_000_000_000
SYNC = FlushConfig("SYNC_FLUSH", sync_flush_timeout=PATIENCE_S * 1_000)
ASYNC = FlushConfig()
POOL = FlushConfig(transient_store_pool_enable=True)


class Clock:
    """What the store is told, in ms; a test sets it."""

    def __init__(self) -> None:
        self.now_ms = NOW_MS

    def __call__(self) -> int:
        return self.now_ms


class Served:
    """A store of tiny files, its disk, its service and threads that put."""

    def __init__(self, root: Path, flush: FlushConfig, *, starts_duties: bool, log_file_size: int = 4096) -> None:
        self.root = root
        self.disk = GatedDisk()
        self.clock = Clock()
        self.steady = Clock()
        tiny = StoreConfig.tiny()
        self.config = replace(
            tiny, flush=flush, commit_log=replace(tiny.commit_log, mapped_file_size_commit_log=log_file_size)
        )
        self.service = PutService(self.open(), starts_duties=starts_duties, steady=self.steady)
        self._threads = ThreadPoolExecutor(16)

    def open(self) -> MessageStore:
        return open_store(
            self.root, config=self.config, read_only=False, create=True, file_system=self.disk, clock=self.clock
        )

    def put(self, *names: str, wait: str | None = None) -> PutMessageResult:
        return self.service.put_inner([message(name, wait) for name in names])

    def put_beside(self, *names: str) -> Future[PutMessageResult]:
        return self._threads.submit(self.put, *names)

    def put_table_beside(
        self, topics: list[str], queue_ids: list[int] | None = None, **rules: Any
    ) -> Future[PutMessageResult]:
        columns: dict[str, Any] = {"topic": topics, "body": pa.array([b"x"] * len(topics))}
        if queue_ids is not None:
            columns["queue_id"] = pa.array(queue_ids, pa.int32())
        return self._threads.submit(self.service.put_batch, pa.record_batch(columns), **rules)

    def read(self) -> set[str]:
        """What the store that is written serves."""
        with self.service.exclusive() as store:
            return served_names(store)

    def read_beside(self) -> set[str]:
        """What somebody else is served who opens it now."""
        with open_store(self.root, config=self.config) as store:
            return served_names(store)

    def end(self) -> None:
        self.disk.syncs.open()
        self.disk.writes.open()
        self._threads.shutdown()
        self.service.close()


def message(name: str, wait: str | None = None) -> InnerMessage:
    properties = {"KEYS": name[:40]} if wait is None else {"KEYS": name[:40], "WAIT": wait}
    return InnerMessage(topic="T", queue_id=0, body=name.encode(), properties=properties)


def served_names(store: MessageStore) -> set[str]:
    found = {one.body.decode() for one in served(store, "T", 0)}
    assert found == {name for name in found if store.query("T", name[:40])}, "what is in the queue is in the index"
    return found


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    with ExitStack() as made:

        def made_store(flush: FlushConfig, *, starts_duties: bool = True, log_file_size: int = 4096) -> Served:
            store = Served(tmp_path / "store", flush, starts_duties=starts_duties, log_file_size=log_file_size)
            made.callback(store.end)
            return store

        yield made_store


# SYNC_FLUSH


def test_one_sync_serves_all_that_wait(make: Callable[..., Served], monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve threads: the first one's sync is stalled until the others wait too, so that the next one serves eleven."""
    store = make(SYNC, log_file_size=1 << 20)
    store.disk.syncs.close()
    before = store.disk.log_syncs
    first = store.put_beside("n0")
    store.disk.syncs.wait_for_somebody()
    puts = [store.put_beside(f"n{number}") for number in range(1, 12)]
    while appended(store) < 12:
        pass
    assert not any(put.done() for put in (first, *puts))
    store.disk.syncs.open()
    for put in (first, *puts):
        assert put.result(PATIENCE_S).status is PutStatus.PUT_OK
    assert store.disk.log_syncs - before == 2
    assert store.read() == store.read_beside() == {f"n{number}" for number in range(12)}


def test_one_thread_computes_at_a_time_and_one_that_waits_for_the_disk_lets_others_go_on(
    make: Callable[..., Served],
) -> None:
    store = make(SYNC, log_file_size=1 << 20)
    computing, most = Counter[str](), 0

    def put(name: str) -> PutMessageResult:
        nonlocal most
        with store.service.at_work():
            computing["now"] += 1
            most = max(most, computing["now"])
            time.sleep(0.001)
            computing["now"] -= 1
            return store.put(name)

    store.disk.syncs.close()
    with ThreadPoolExecutor(12) as threads:
        puts = [threads.submit(put, f"n{number}") for number in range(12)]
        while appended(store) < 12:  # though nobody has an answer
            pass
        assert not any(each.done() for each in puts)
        store.disk.syncs.open()
        assert {each.result(PATIENCE_S).status for each in puts} == {PutStatus.PUT_OK}
    assert most == 1
    with store.service.at_work(), store.service.off_work(), ThreadPoolExecutor(1) as other:
        assert other.submit(put, "beside").result(PATIENCE_S).status is PutStatus.PUT_OK


def appended(store: Served) -> int:
    with store.service.exclusive() as held:
        return held.writer.ends.queue_ends.get(("T", 0), 0)


def test_every_acknowledged_message_was_synced_before_its_answer(make: Callable[..., Served]) -> None:
    store = make(SYNC)

    def put(number: int) -> None:
        for step in range(6):
            name = f"thread-{number}-step-{step}"
            receipt = store.put(name)
            on_disk = b"".join(store.disk.durable.values())
            assert receipt.status is PutStatus.PUT_OK
            assert name.encode() in on_disk, f"{name} was acknowledged, and is not on the disk"

    with ThreadPoolExecutor(8) as threads:
        for done in [threads.submit(put, number) for number in range(8)]:
            done.result(PATIENCE_S)
    assert len(store.read()) == 48
    assert len(store.disk.durable) > 1, "the log has rolled"


def test_who_waits_too_long_is_told_so_and_the_message_is_read_when_it_is_synced(make: Callable[..., Served]) -> None:
    """FlushDiskWatcher: FLUSH_DISK_TIMEOUT; GroupCommitService goes on flushing."""
    store = make(replace(SYNC, sync_flush_timeout=1))
    store.disk.syncs.close()
    receipt = store.put("late")
    assert receipt.status is PutStatus.FLUSH_DISK_TIMEOUT
    assert receipt.places.num_rows == 1
    assert store.read() == store.read_beside() == set()
    store.disk.syncs.open()
    store.service.flush()
    assert store.read() == store.read_beside() == {"late"}


@pytest.mark.parametrize(
    ("wait", "waits"), [("false", False), ("FALSE", False), ("no", False), ("true", True), ("True", True)]
)
def test_a_message_says_whether_somebody_waits_for_it(make: Callable[..., Served], wait: str, waits: bool) -> None:
    """Message.isWaitStoreMsgOK: Boolean.parseBoolean of WAIT, true without it. It is not read before its sync all the same."""
    store = make(replace(SYNC, sync_flush_timeout=1))
    store.disk.syncs.close()
    expected = PutStatus.FLUSH_DISK_TIMEOUT if waits else PutStatus.PUT_OK
    assert store.put("n", wait=wait).status is expected
    assert store.read() == set()
    store.disk.syncs.open()
    store.service.flush()
    assert store.read() == {"n"}


def test_what_is_put_while_a_sync_runs_waits_for_the_next(make: Callable[..., Served]) -> None:
    """GroupCommitService.doCommit compares each request with flushedWhere."""
    store = make(replace(SYNC, sync_flush_timeout=1), starts_duties=False)
    store.put("first")
    store.disk.syncs.close()
    with ThreadPoolExecutor(1) as duty:
        turn = duty.submit(store.service.sync_turn)
        store.disk.syncs.wait_for_somebody()
        store.put("second")
        store.disk.syncs.open()
        turn.result(PATIENCE_S)
    assert store.read() == store.read_beside() == {"first"}
    store.service.sync_turn()
    assert store.read() == store.read_beside() == {"first", "second"}


def test_a_message_that_no_file_can_hold_is_refused_and_others_are_taken(make: Callable[..., Served]) -> None:
    store = make(SYNC)
    with pytest.raises(MessageIllegalError, match="record"):
        store.put("small", "x" * 5_000)
    assert store.put("next").status is PutStatus.PUT_OK
    assert store.read() == {"next"}


def test_what_another_writer_left_unsynced_in_an_earlier_file_is_synced_first(make: Callable[..., Served]) -> None:
    """Behind a gap in the log nothing is found again: an acknowledged message needs what stands before it."""
    store = make(ASYNC, starts_duties=False)
    store.put(*("x" * 900 for _ in range(5)))
    store.service.store.release()
    store.config = replace(store.config, flush=SYNC)
    with store.open() as opened:
        assert opened.recovery is None, "opened by the hint"
        opened.put_inner([message("y" * 900)])
        on_disk = b"".join(store.disk.durable.values())
        assert (on_disk.count(b"x" * 900), on_disk.count(b"y" * 900)) == (5, 1)
        assert len(store.disk.durable) == 2, "two files, and the later one alone was written to"


def test_of_a_batch_one_message_is_enough_to_wait_for(make: Callable[..., Served]) -> None:
    store = make(replace(SYNC, sync_flush_timeout=1))
    store.disk.syncs.close()
    both = [message("a", "false"), message("b")]
    assert store.service.put_inner(both).status is PutStatus.FLUSH_DISK_TIMEOUT
    assert store.service.put_inner(both, waits=False).status is PutStatus.PUT_OK


def test_a_failed_sync_acknowledges_nothing_now_or_later(make: Callable[..., Served]) -> None:
    """apache/rocketmq#2706, #9713: Java takes the position for flushed and goes on."""
    store = make(SYNC)
    assert store.put("before").status is PutStatus.PUT_OK
    store.disk.syncs.close()
    first = store.put_beside("n0")
    store.disk.syncs.wait_for_somebody()
    others = [store.put_beside(f"n{number}") for number in range(1, 5)]
    while appended(store) < 6:
        pass
    store.disk.fails = True
    store.disk.syncs.open()
    for put in (first, *others):
        with pytest.raises(OSError, match="Input/output"):
            put.result(PATIENCE_S)
    with pytest.raises(
        StoreNotWritableError, match=r"(?s)an earlier write failed .*Input/output.*open the store again"
    ):
        store.put("after")
    with pytest.raises(StoreNotWritableError, match="Input/output"):
        store.service.flush()
    assert store.read() == store.read_beside() == {"before"}
    store.service.close()
    assert (store.root / "abort").exists()
    with store.open() as opened:
        assert served_names(opened) == {"before", *(f"n{number}" for number in range(5))}
        opened.put("T", b"again", keys="again", queue_id=0)
        assert served_names(opened) >= {"before", "again"}


def test_what_a_failed_sync_should_have_kept_is_written_again_before_it_is_read(make: Callable[..., Served]) -> None:
    """The second sync says that all is well. Recovery may serve the message only if its pages were dirty once more."""
    store = make(SYNC)
    store.disk.fails = True
    with pytest.raises(OSError, match="Input/output"):
        store.put("doubtful")
    store.service.close()
    path = str(store.root / "commitlog" / f"{0:020d}")
    steps = len(store.disk.steps)
    with store.open() as opened:
        assert served_names(opened) == {"doubtful"}
    done = store.disk.steps[steps:]
    written = done.index(("write", path))
    assert ("sync", path) in done[written:]
    entries = next(at for at, (verb, name) in enumerate(done) if verb == "write" and "/consumequeue/" in name)
    assert written < done.index(("sync", path), written) < entries


def test_an_owner_beside_a_sync_that_fails_is_not_told_that_all_is_well(make: Callable[..., Served]) -> None:
    """The kernel tells one of the two only."""
    store = make(SYNC)
    store.disk.syncs.close()
    waits = store.put_beside("n0")
    store.disk.syncs.wait_for_somebody()
    store.disk.fails = True

    def flush_as_owner() -> None:
        with store.service.exclusive() as held:
            held.flush()

    owner = ThreadPoolExecutor(1).submit(flush_as_owner)
    store.disk.syncs.open()
    with pytest.raises(OSError, match="Input/output"):
        waits.result(PATIENCE_S)
    with pytest.raises((OSError, StoreNotWritableError), match="Input/output"):
        owner.result(PATIENCE_S)
    assert store.read_beside() == set()


def test_a_failed_sync_is_noted_also_by_a_writer_that_has_failed_before(
    make: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(*_: object, **__: object) -> None:
        raise MemoryError("no room for a slice")

    store = make(SYNC)
    store.disk.syncs.close()
    waits = store.put_beside("n0")
    store.disk.syncs.wait_for_somebody()
    with store.service.exclusive() as held:
        monkeypatch.setattr(held.writer._log_writer, "append", no_memory)
    with pytest.raises(MemoryError):
        store.put("n1")
    store.disk.fails = True
    store.disk.syncs.open()
    with pytest.raises(OSError, match="was not synced"):
        waits.result(PATIENCE_S)
    assert (store.root / "spark_mq" / "failed_sync.json").exists()


# ASYNC_FLUSH


def test_messages_are_read_at_once_and_synced_in_turns(make: Callable[..., Served]) -> None:
    """FlushRealTimeService: the first turn is thorough, later ones want four pages, or the end of a file, or ten seconds."""
    store = make(ASYNC, starts_duties=False, log_file_size=64 << 10)
    store.clock.now_ms += 1

    def syncs_of_turn(*names: str) -> int:
        if names:
            assert store.put(*names).status is PutStatus.PUT_OK
            assert set(names) <= store.read() & store.read_beside()
        before = store.disk.log_syncs
        store.service.log_turn()
        return store.disk.log_syncs - before

    assert syncs_of_turn("first") == 1
    assert syncs_of_turn("second") == 0
    assert syncs_of_turn("x" * 16_500) == 1
    assert syncs_of_turn("third") == 0
    store.clock.now_ms += 10_000
    assert syncs_of_turn() == 1
    assert syncs_of_turn() == 0
    assert syncs_of_turn("y" * 18_500, "z" * 18_500) == 1
    assert syncs_of_turn("w" * 11_500, "next-file") == 2, "a file that is full is synced, and what stands behind it"
    assert b"next-file" in b"".join(store.disk.durable.values())


def test_a_sync_that_fails_in_its_turn_ends_the_writing(make: Callable[..., Served]) -> None:
    store = make(ASYNC, starts_duties=False)
    store.put("acknowledged")
    store.disk.fails = True
    with pytest.raises(OSError, match="Input/output"):
        store.service.log_turn()
    with pytest.raises(StoreNotWritableError, match="Input/output"):
        store.put("after")


# The pool


def test_with_a_pool_a_message_is_acknowledged_in_memory_and_read_when_it_is_written(
    make: Callable[..., Served],
) -> None:
    """CommitRealTimeService; DefaultMappedFile.getReadPosition is the committed one."""
    store = make(POOL, starts_duties=False)
    assert store.put("a", "b").status is PutStatus.PUT_OK
    receipt = store.put("c")
    assert receipt.places.column("queue_offset").to_pylist() == [2]
    assert b"KEYS" not in log_bytes(store.root)
    assert store.read() == store.read_beside() == set()
    store.service.pool_turn()
    assert store.read() == store.read_beside() == {"a", "b", "c"}


def test_what_waits_in_the_pool_is_not_among_the_bytes_that_a_sync_lacks(make: Callable[..., Served]) -> None:
    """MappedFileQueue.remainHowManyDataToCommit, remainHowManyDataToFlush: their sum is flushBehindBytes."""
    store = make(POOL, starts_duties=False)
    store.put("a")
    size = store.service.log_end
    assert (store.service.held_bytes, store.service.unsynced_bytes) == (size, 0)
    store.service.pool_turn()
    assert (store.service.held_bytes, store.service.unsynced_bytes) == (0, size)
    store.put("b")
    assert (store.service.held_bytes or 0) + store.service.unsynced_bytes == store.service.log_end
    store.service.pool_turn()
    store.service.flush()
    assert (store.service.held_bytes, store.service.unsynced_bytes) == (0, 0)


def test_a_killed_process_loses_what_was_in_its_pool_and_nothing_else(
    make: Callable[..., Served], tmp_path: Path
) -> None:
    store = make(POOL, starts_duties=False)
    store.put("written")
    store.service.pool_turn()
    store.put("x" * 900, "y" * 900, "z" * 3_000)  # over the end of the file
    shutil.copytree(store.root, tmp_path / "killed")
    with open_store(tmp_path / "killed", config=store.config, read_only=False) as killed:
        assert served_names(killed) == {"written"}
        assert killed.put("T", b"next", keys="next", queue_id=0).queue_offset == 1
    store.service.close()
    assert store.read_beside() == {"written", "x" * 900, "y" * 900, "z" * 3_000}


def test_a_pool_that_is_full_takes_no_more(make: Callable[..., Served]) -> None:
    """DefaultMessageStore.isTransientStorePoolDeficient; SendMessageProcessor.rejectRequest."""
    store = make(replace(POOL, transient_store_pool_size=1), starts_duties=False)
    for name in ("a", "b"):
        assert not state_now(store.service, BrokerState()).rejects_requests
        assert store.put(name * 2_500).status is PutStatus.PUT_OK
    assert state_now(store.service, BrokerState()).is_transient_store_pool_deficient
    assert state_now(store.service, BrokerState()).rejects_requests
    assert store.put("c").status is PutStatus.OS_PAGE_CACHE_BUSY
    store.service.pool_turn()
    assert store.put("c").status is PutStatus.PUT_OK


def test_the_pool_is_written_out_in_turns(make: Callable[..., Served]) -> None:
    """CommitRealTimeService: four pages, or 200 ms since the last time."""
    store = make(POOL, starts_duties=False, log_file_size=64 << 10)
    for step_ms, name, is_written in (
        (0, "a", True),
        (0, "b", False),
        (0, "c" * 16_500, True),
        (199, "d", False),
        (1, "e", True),
    ):
        store.clock.now_ms += step_ms
        store.put(name)
        store.service.pool_turn()
        assert (name in store.read()) == is_written, name[:5]


# Queues and checkpoint


def test_queues_are_synced_for_two_pages_and_all_of_them_once_a_minute(make: Callable[..., Served]) -> None:
    """FlushConsumeQueueService; a queue's file of 400 bytes is full before it has two pages."""
    store = make(ASYNC, starts_duties=False)

    def synced_by_turn() -> list[str]:
        before = len(store.disk.steps)
        store.service.queue_turn()
        prefix = f"{store.root}/"
        return [path.removeprefix(prefix) for verb, path in store.disk.steps[before:] if verb == "sync"]

    store.put("a")
    first = synced_by_turn()
    assert "consumequeue/T/0/00000000000000000000" in first
    assert first[-1] == "checkpoint", "Java: StoreCheckpoint.flush comes when queues are flushed"
    store.put("b")
    assert synced_by_turn() == []
    store.put(*(f"n{number}" for number in range(30)))
    assert [path for path in synced_by_turn() if path.startswith("consumequeue/")] == [
        "consumequeue/T/0/00000000000000000400"
    ], "the file before it was synced when it was full"
    store.clock.now_ms += 60_000
    store.put("c")
    assert "checkpoint" in synced_by_turn()


def test_the_checkpoint_vouches_for_what_is_synced_and_no_more(make: Callable[..., Served]) -> None:
    """StoreCheckpoint: physicMsgTimestamp behind a flush of the log, logicsMsgTimestamp behind one of the queues."""
    store = make(ASYNC, starts_duties=False)
    opened = read_checkpoint(store.disk, str(store.root))
    store.clock.now_ms += 1_000
    store.put("a")
    store.service.queue_turn()
    checkpoint = read_checkpoint(store.disk, str(store.root))
    assert checkpoint.physic_msg_timestamp == opened.physic_msg_timestamp, "the log is not synced"
    assert checkpoint.logics_msg_timestamp == NOW_MS + 1_000
    store.service.log_turn()
    store.clock.now_ms += 60_000
    store.put("b")
    store.service.queue_turn()
    checkpoint = read_checkpoint(store.disk, str(store.root))
    assert checkpoint.physic_msg_timestamp == NOW_MS + 1_000
    assert checkpoint.logics_msg_timestamp == NOW_MS + 61_000


# Back-pressure


@pytest.mark.parametrize("flush", [SYNC, ASYNC], ids=["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_while_one_put_holds_the_log_for_long_others_are_refused(
    make: Callable[..., Served], flush: FlushConfig
) -> None:
    """HookUtils.checkBeforePutMessage, SendMessageProcessor.rejectRequest with DefaultMessageStore.isOSPageCacheBusy."""
    store = make(flush)
    store.disk.writes.close()
    stalled = store.put_beside("stalled")
    store.disk.writes.wait_for_somebody()
    store.clock.now_ms += 5_000  # a clock that is set says nothing of that
    store.steady.now_ms += 1_000
    assert not state_now(store.service, BrokerState()).is_os_page_cache_busy
    store.steady.now_ms += 1
    assert state_now(store.service, BrokerState()).rejects_requests
    receipt = store.put("refused")
    assert receipt.status is PutStatus.OS_PAGE_CACHE_BUSY
    assert not receipt.places.num_rows
    rows = pa.record_batch({"topic": ["T"], "body": pa.array([b"refused"])})
    assert store.service.put_batch(rows).status is PutStatus.OS_PAGE_CACHE_BUSY
    store.disk.writes.open()
    assert stalled.result(PATIENCE_S).status is PutStatus.PUT_OK
    assert not state_now(store.service, BrokerState()).rejects_requests
    assert store.put("taken").status is PutStatus.PUT_OK
    assert store.read() == {"stalled", "taken"}


def test_a_put_whose_refusal_nobody_hears_waits_for_the_log(make: Callable[..., Served]) -> None:
    store = make(ASYNC)
    store.disk.writes.close()
    stalled = store.put_beside("stalled")
    store.disk.writes.wait_for_somebody()
    store.steady.now_ms += 1_001
    assert state_now(store.service, BrokerState()).is_os_page_cache_busy
    waits = store.service.put_later(InnerMessages.of([message("unheard")]), is_heard=False)
    store.disk.writes.open()
    assert (stalled.result(PATIENCE_S).status, waits().status) == (PutStatus.PUT_OK, PutStatus.PUT_OK)
    assert store.read() == {"stalled", "unheard"}


def test_a_put_whose_refusal_nobody_hears_writes_out_a_full_pool(make: Callable[..., Served]) -> None:
    store = make(replace(POOL, transient_store_pool_size=1), starts_duties=False)
    for name in ("a", "b"):
        assert store.put(name * 2_500).status is PutStatus.PUT_OK
    assert state_now(store.service, BrokerState()).is_transient_store_pool_deficient
    unheard = InnerMessages.of([message("unheard")])
    assert store.service.put_later(unheard, is_heard=False)().status is PutStatus.PUT_OK
    assert not state_now(store.service, BrokerState()).is_transient_store_pool_deficient
    assert store.read_beside() == {"a" * 2_500, "b" * 2_500}


@pytest.mark.parametrize("step", [(MessageRows, "prepare"), (PutSettings, "encode")], ids=["prepare", "encode"])
def test_a_table_that_is_made_into_records_holds_nobody_up(
    make: Callable[..., Served], monkeypatch: pytest.MonkeyPatch, step: tuple[type, str]
) -> None:
    """CommitLog.asyncPutMessages encodes before putMessageLock, PutMessageThreadLocal: bodies are compressed, and the log is free."""
    store = make(SYNC)
    gate = gate_of_first_call(monkeypatch, *step)
    stalled = store.put_table_beside(["T"] * 2, [0, 0])
    gate.wait_for_somebody()
    store.steady.now_ms += 1_001
    assert not state_now(store.service, BrokerState()).is_os_page_cache_busy
    assert store.put("meanwhile").status is PutStatus.PUT_OK
    gate.open()
    assert stalled.result(PATIENCE_S).places.column("queue_offset").to_pylist() == [1, 2]


def test_a_topic_that_is_made_meanwhile_keeps_its_queues(
    make: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make(SYNC)
    gate = gate_of_first_call(monkeypatch, PutSettings, "encode")
    stalled = store.put_table_beside(["New", "New", "Other"], queue_count=4)
    gate.wait_for_somebody()
    with store.service.exclusive() as owned:
        owned.save_topic(TopicConfig("New", 1, 1))
    gate.open()
    places = stalled.result(PATIENCE_S).places
    assert places.select(["topic", "queue_id"]).to_pylist()[:2] == [{"topic": "New", "queue_id": 0}] * 2
    with store.service.exclusive() as owned:
        assert owned.writer.settings.topics.topics["New"].write_queue_count == 1
        assert owned.writer.settings.topics.topics["Other"].write_queue_count == 4


def test_a_topic_that_is_closed_meanwhile_takes_nothing(
    make: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make(SYNC)
    store.service.put_batch(pa.record_batch({"topic": ["T"], "body": pa.array([b"x"])}), queue_count=1)
    gate = gate_of_first_call(monkeypatch, PutSettings, "encode")
    stalled = store.put_table_beside(["T"])
    gate.wait_for_somebody()
    with store.service.exclusive() as owned:
        owned.save_topic(TopicConfig("T", 1, 1, perm=PERM_READ))
        end = owned.writer.log_end
    gate.open()
    with pytest.raises(RowIllegalError, match="topic"):
        stalled.result(PATIENCE_S)
    with store.service.exclusive() as owned:
        assert owned.writer.log_end == end


def test_tables_of_many_threads_have_keys_of_their_own_and_share_the_turns(make: Callable[..., Served]) -> None:
    store = make(ASYNC, log_file_size=1 << 20)
    store.put_table_beside(["T"] * 4, queue_count=4).result(PATIENCE_S)
    puts = [store.put_table_beside(["T"] * 2, queue_count=4) for _ in range(50)]
    places = [row for put in puts for row in put.result(PATIENCE_S).places.to_pylist()]
    assert len({row["unique_key"] for row in places}) == 100
    assert Counter(row["queue_id"] for row in places) == dict.fromkeys(range(4), 25)


def gate_of_first_call(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> Gate:
    """A closed gate before the method, for the next caller."""
    gate, method, first = Gate(), getattr(owner, name), [True]
    gate.close()

    def gated(*arguments: Any, **named: Any) -> Any:
        if first and first.pop():
            gate.pass_through()
        return method(*arguments, **named)

    monkeypatch.setattr(owner, name, gated)
    return gate


# The owner, and the end


def test_the_owner_puts_in_between(make: Callable[..., Served]) -> None:
    """What waits for its sync gets its queue entries before the owner's message gets its own."""
    store = make(replace(SYNC, sync_flush_timeout=1), starts_duties=False)
    assert store.put("a").status is PutStatus.FLUSH_DISK_TIMEOUT
    with store.service.exclusive() as owned:
        assert owned.put("T", b"b", keys="b", queue_id=0).queue_offset == 1
        assert [one.body for one in owned.get("T", 0, 0).messages] == [b"a", b"b"]
    rows = pa.record_batch(
        {"topic": ["T"] * 2, "body": pa.array([b"c", b"d"]), "queue_id": pa.array([0, 0], pa.int32())}
    )
    receipt = store.service.put_batch(rows, waits=False)
    assert receipt.places.column("queue_offset").to_pylist() == [2, 3]
    store.service.sync_turn()
    with open_store(store.root, config=store.config) as other:
        assert [one.body for one in other.get("T", 0, 0).messages] == [b"a", b"b", b"c", b"d"]


@pytest.mark.parametrize("flush", [SYNC, ASYNC, POOL], ids=["SYNC_FLUSH", "ASYNC_FLUSH", "pool"])
def test_a_closed_service_leaves_a_closed_store_with_every_message(
    make: Callable[..., Served], flush: FlushConfig
) -> None:
    store = make(flush)
    for number in range(40):
        store.put(f"n{number}", wait="false")
    store.service.close()
    assert not (store.root / "abort").exists()
    assert store.read_beside() == {f"n{number}" for number in range(40)}
    assert all(f"n{number}".encode() in b"".join(store.disk.durable.values()) for number in range(40))
    assert state_now(store.service, BrokerState()).is_shut_down
    with pytest.raises(StoreNotWritableError, match="it is shut down"):
        store.put("late")
    store.service.close()


def test_a_store_that_is_let_go_of_while_messages_wait_for_their_sync_is_recovered(make: Callable[..., Served]) -> None:
    store = make(replace(SYNC, sync_flush_timeout=1), starts_duties=False)
    store.put("waiting")
    store.service.store.release()
    with store.open() as opened:
        assert opened.recovery is not None, "a hint would have spared the look at the log"
        assert served_names(opened) == {"waiting"}


def log_bytes(root: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((root / "commitlog").iterdir()))


# Without threads


@pytest.mark.parametrize("flush", [SYNC, ASYNC, POOL], ids=["SYNC_FLUSH", "ASYNC_FLUSH", "a pool"])
def test_a_direct_put_is_readable_when_it_returns_and_synced_as_the_flush_says(
    tmp_path: Path, flush: FlushConfig
) -> None:
    config = replace(StoreConfig.tiny(), flush=flush)
    with open_store(tmp_path / "store", config=config, read_only=False, create=True) as store:
        threads = threading.active_count()
        service = DirectService(store)
        place = service.put_inner([message("a"), message("b")])
        assert (place.status, place.message_count, place.queue_offset) == (PutStatus.PUT_OK, 2, 0)
        assert served_names(store) == {"a", "b"}
        assert (store.writer.synced_end == store.log_end) == (flush is SYNC)
        assert service.message_by_commitlog_offset(0).body == b"a"
        assert [found.body for found in service.messages_by_key("T", "b")] == [b"b"]
        assert threading.active_count() == threads
