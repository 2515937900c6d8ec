"""A broker runs on the store between two queries, after a power loss too: neither its messages nor the sink's rows come to harm."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from storage import open_store
from storage.batch.commit import CommitOutcome, commit_batch
from storage.batch.ledger import QUEUE_ID as LEDGER_QUEUE
from storage.batch.ledger import TOPIC as LEDGER_TOPIC
from storage.batch.ledger import Batch
from storage.batch.staged_segment import StagedBatch
from storage.errors import SinkTakenError, StateFileError
from storage.format.record import Message
from tests.crash.machine import Machine, run_broker
from tests.crash.sink_store import QUEUE_COUNT, SinkStore, assert_holds_exactly, found_rows, is_whole, rows_of
from tests.support.dying import Killed
from tests.support.shares import one_in
from tests.support.stage_rows import BatchRows

pytestmark = [pytest.mark.crash, pytest.mark.slow]

DONE = CommitOutcome(True, 0)
BROKERS = BatchRows(Batch("broker", "broker", 0), (40,), ("orders", "bills"))
ENDING = pytest.mark.parametrize("is_killed", [False, True], ids=["closed", "killed"])


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def store(tmp_path: Path, machine: Machine) -> SinkStore:
    """An empty place for a store, under ASYNC_FLUSH: the intent of the last batch stays open."""
    return SinkStore(SinkStore.make_place(tmp_path), machine)


@ENDING
@pytest.mark.parametrize("starts_again", [False, True], ids=["the machine goes on", "the machine starts again"])
def test_what_a_broker_stored_behind_an_open_intent_is_kept_however_often_the_store_is_opened(
    store: SinkStore, machine: Machine, is_killed: bool, starts_again: bool
) -> None:
    for number in range(2):
        store.commit(rows_of(number))
    assert store.open_intents == 1
    machine.start_again()
    run_broker(store, BROKERS, is_killed=is_killed)
    others = rows_of(0, query_id="another")
    for _ in range(3):
        segments = store.stage(others)
        with pytest.raises(SinkTakenError), store.open() as opened:  # the opening's `abort` is ours now
            commit_batch(opened.writer, StagedBatch(others.batch, segments))
        for segment in segments:
            store.file_system.unlink(f"{store.root}/spark_mq/staged/{segment.path}")
        if starts_again:
            machine.start_again()
        with open_store(store.root) as reading:
            assert is_whole(found_rows(reading), BROKERS)
    assert store.commit(rows_of(2)) == CommitOutcome(False, 10)
    store.close()
    assert_holds_exactly(store.root, [rows_of(0), rows_of(1), rows_of(2)], [BROKERS])


# Retention


def expire(store: SinkStore, end: int) -> None:
    """A broker deletes the log files that hold anything before `end`."""
    for file in Path(store.root, "commitlog").iterdir():
        if int(file.name) < end:
            file.unlink()


@pytest.mark.parametrize("starts_again", [False, True], ids=["the machine goes on", "the machine starts again"])
def test_a_batch_that_has_expired_with_its_end_is_not_written_again(
    store: SinkStore, machine: Machine, starts_again: bool
) -> None:
    rows = rows_of(0, 20, 20, sink_id="query")
    store.commit(rows)
    end = store.log_end
    if starts_again:
        machine.start_again()
    run_broker(store, BatchRows(Batch("broker", "broker", 0), (200,)), days=4)
    expire(store, end)
    store = SinkStore(Path(store.root), machine, days=5)
    with store.open() as opened:
        assert opened.log.minimum >= end
        assert opened.finished_batches == 0
        opened.release()
    assert store.commit(rows) == DONE
    assert store.commit(rows_of(1, sink_id="query")) == CommitOutcome(False, 10)
    with open_store(store.root) as reading:
        bodies = [one.row.body for one in found_rows(reading) if not one.row.body.startswith("broker")]
    assert sorted(bodies) == sorted(row.body for row in rows_of(1, sink_id="query").rows)


def test_a_write_without_a_mirror_that_has_expired_is_not_written_again(store: SinkStore, machine: Machine) -> None:
    """A write that nobody asks for again leaves no consumer offset."""
    rows = rows_of(0, 20, 20)
    segments = store.stage(rows)
    with store.open() as opened:
        topics = dict.fromkeys(rows.topics, QUEUE_COUNT)
        commit_batch(opened.writer, StagedBatch(rows.batch, segments, topics), mirrored=False)
        end = opened.log_end
        opened.release()
    run_broker(store, BatchRows(Batch("broker", "broker", 0), (200,)), days=4)
    expire(store, end)
    store = SinkStore(Path(store.root), machine, days=5)
    with store.open() as opened:
        assert opened.finished_batches == 0
        assert all(one.row.body.startswith("broker") for one in found_rows(opened))


# Torn rows


def first_message(store: SinkStore, topic: str) -> Message:
    with open_store(store.root) as reading:
        queue_id = next(queue_id for queue_id in reading.queue_ids(topic) if reading.max_offset(topic, queue_id))
        return reading.get(topic, queue_id, 0, 1).messages[0]


def zero(store: SinkStore, start: int, end: int) -> None:
    """What a power loss leaves of pages that were not written."""
    store.file_system.write(f"{store.root}/commitlog/{0:020d}", start, bytes(end - start))


def lose_queues_and_index(store: SinkStore) -> None:
    for path in [*Path(store.root, "consumequeue").rglob("0*"), *Path(store.root, "index").iterdir()]:
        if path.is_file():
            path.unlink()


def tags_of(store: SinkStore) -> list[tuple[str, str | None]]:
    """Body and tags of every row that a consumer gets who asks for its tags."""
    with open_store(store.root) as reading:
        return [
            (message.body.decode(), message.tags)
            for topic in ("orders", "bills")
            for queue_id in reading.queue_ids(topic)
            for tags in ("a", "b")
            for message in reading.get(topic, queue_id, 0, 1_000, tags=tags).messages
        ]


@ENDING
@pytest.mark.parametrize("lost_bytes", one_in(2, [20, 100], others=pytest.mark.long))
@pytest.mark.parametrize("loses_end", [False, True], ids=["its END is there", "its END is lost"])
def test_a_torn_row_that_a_broker_took_for_whole_gets_tags_and_keys_again(
    store: SinkStore, machine: Machine, loses_end: bool, lost_bytes: int, is_killed: bool
) -> None:
    """Recovery looks at lengths and bodies: a broker enters such a row with the tags and keys that are left of its properties."""
    store.commit(rows_of(0))
    whole = tags_of(store)
    assert len(whole) == 10
    torn = [first_message(store, topic) for topic in ("orders", "bills")]
    for message in torn:
        end = message.commitlog_offset + message.size_bytes
        zero(store, end - lost_bytes, end)
    if loses_end:
        with open_store(store.root) as reading:
            ledger_end = reading.get(LEDGER_TOPIC, LEDGER_QUEUE, 1, 1).messages[0].commitlog_offset
        zero(store, ledger_end, store.log_end)
    lose_queues_and_index(store)
    machine.start_again()
    run_broker(store, BROKERS, is_killed=is_killed)
    with open_store(store.root) as reading:
        keys = {one.row.body: one.row.key for one in found_rows(reading)}
    assert all(keys[message.body.decode()] != message.keys[0] for message in torn), "the broker saw other keys, or none"
    assert store.commit(rows_of(0)) == DONE
    store.close()
    assert_holds_exactly(store.root, [rows_of(0)], [BROKERS])
    assert sorted(row for row in tags_of(store) if not row[0].startswith("broker")) == sorted(whole)


def test_a_row_that_somebody_else_changed_is_left_as_it_is(store: SinkStore, machine: Machine) -> None:
    """Zeros are what a power loss leaves; other bytes are no work of one, and not to be written over."""
    store.commit(rows_of(0))
    message = first_message(store, "orders")
    end = message.commitlog_offset + message.size_bytes
    path = f"{store.root}/commitlog/{0:020d}"
    store.file_system.write(path, end - 2, b"zz")
    before = np.fromfile(path, np.uint8)[message.commitlog_offset : end]
    machine.start_again()
    with store.open() as opened:
        opened.release()
    assert np.array_equal(np.fromfile(path, np.uint8)[message.commitlog_offset : end], before)


# Torn rows that a broker has entered, and how mending them is interrupted


class WatchedMachine(Machine):
    """Notes what is written, synced and deleted, in that order."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[str, str]] = []

    def write(self, path: str, position: int, data: bytes) -> None:
        self.step("write", path)
        super().write(path, position, data)

    def sync(self, path: str) -> None:
        self.step("sync", path)
        super().sync(path)

    def rename(self, path: str, new_path: str) -> None:
        self.step("rename", new_path)
        super().rename(path, new_path)

    def unlink(self, path: str) -> None:
        self.step("unlink", path)
        super().unlink(path)

    def step(self, verb: str, path: str) -> None:
        self.steps.append((verb, path))


class DyingMachine(WatchedMachine):
    """Its only process is killed before one of its steps, and does nothing more."""

    life = 1 << 30

    def step(self, verb: str, path: str) -> None:
        if len(self.steps) >= self.life:
            raise Killed
        super().step(verb, path)


class FullMachine(WatchedMachine):
    """Its disk is full where a file's name says so."""

    full = "nothing is"

    def step(self, verb: str, path: str) -> None:
        super().step(verb, path)
        if verb == "write" and self.full in path:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


def enter_torn_rows(store: SinkStore, machine: Machine, *, loses_end: bool) -> dict[str, tuple[int, int]]:
    """A broker recovers a store in which two rows have no properties left, and closes it. Returns what was known of rows before."""
    store.commit(rows_of(0))
    whole = what_is_derived(store)
    assert len(whole) == 10
    assert all(code and hits == 1 for code, hits in whole.values())
    torn = [first_message(store, topic) for topic in ("orders", "bills")]
    for message in torn:
        end = message.commitlog_offset + message.size_bytes
        zero(store, end - 100, end)
    if loses_end:
        with open_store(store.root) as reading:
            ledger_end = reading.get(LEDGER_TOPIC, LEDGER_QUEUE, 1, 1).messages[0].commitlog_offset
        zero(store, ledger_end, store.log_end)
    lose_queues_and_index(store)
    machine.start_again()
    run_broker(store, BROKERS)
    seen = what_is_derived(store)
    assert all(seen[message.body.decode()] == (0, 0) for message in torn), "the broker saw neither tags nor keys"
    return whole


def torn_store(
    tmp_path: Path, machine: WatchedMachine, *, loses_end: bool = False, sync_flush: bool = False
) -> tuple[SinkStore, dict[str, tuple[int, int]]]:
    """Such a store a day later, about to be opened, and what was known of rows before; the machine's steps count from here on."""
    place = SinkStore.make_place(tmp_path)
    whole = enter_torn_rows(SinkStore(place, machine), machine, loses_end=loses_end)
    machine.steps.clear()
    return SinkStore(place, machine, sync_flush=sync_flush, days=1), whole


def what_is_derived(store: SinkStore) -> dict[str, tuple[int, int]]:
    """The tags code in each row's queue entry, and how often a look-up by its key finds it."""
    found = {}
    with open_store(store.root) as reading:
        for topic in ("orders", "bills"):
            for queue_id in reading.queue_ids(topic):
                messages = reading.get(topic, queue_id, 0, 1_000).messages
                entries = reading.queues.get(topic, queue_id).entries(0, len(messages))
                for message, code in zip(messages, entries["tags_code"].tolist(), strict=True):
                    body, keys = message.body.decode(), message.keys
                    hits = [
                        hit for key in keys for hit in reading.messages_by_key(topic, key) if hit.body == message.body
                    ]
                    if not body.startswith("broker"):
                        found[body] = code, len(hits)
    return found


SYNC = pytest.mark.parametrize("sync_flush", [False, True], ids=["ASYNC_FLUSH", "SYNC_FLUSH"])
LOST_END = pytest.mark.parametrize("loses_end", [False, True], ids=["its END is there", "its END is lost"])


@SYNC
@LOST_END
def test_what_was_torn_is_on_the_disk_before_the_intent_goes_that_could_mend_it_again(
    tmp_path: Path, loses_end: bool, sync_flush: bool
) -> None:
    """The rows, and what queues and index say of them: after a clean stop of the broker recovery has nothing to sync."""
    machine = WatchedMachine()
    store, whole = torn_store(tmp_path, machine, loses_end=loses_end, sync_flush=sync_flush)
    with store.open() as opened:
        opened.release()
    assert what_is_derived(store) == whole
    gone = next(at for at, (verb, path) in enumerate(machine.steps) if verb == "unlink" and "/intents/" in path)
    steps = machine.steps[:gone]
    new_entry = next((at for at, step in enumerate(steps) if step[0] == "write" and LEDGER_TOPIC in step[1]), gone)
    assert (new_entry < gone) == loses_end, "that of the END written again, which a recovery would make from the log"
    last_write = {path: at for at, (verb, path) in enumerate(steps[:new_entry]) if verb == "write"}
    for kind in ("commitlog", "consumequeue", "index"):
        mended = {path: at for path, at in last_write.items() if path.startswith(f"{store.root}/{kind}/")}
        assert mended, kind
        assert [path for path, at in mended.items() if ("sync", path) not in steps[at:]] == []


@pytest.mark.parametrize(
    ("loses_end", "sync_flush"), [(False, False), (True, True)], ids=["END is there, ASYNC", "END is lost, SYNC"]
)
def test_an_opening_that_is_killed_at_any_step_leaves_torn_rows_to_the_next(
    tmp_path: Path, loses_end: bool, sync_flush: bool
) -> None:
    machine = DyingMachine()
    store, whole = torn_store(tmp_path, machine, loses_end=loses_end, sync_flush=sync_flush)
    place = Path(store.root)
    kept = shutil.copytree(place, tmp_path / "kept")
    store.open().release()
    steps = list(machine.steps)
    for life, (verb, path) in enumerate(steps):
        if verb == "sync":  # of a killed process nothing is lost
            continue
        shutil.rmtree(place)
        shutil.copytree(kept, place)
        machine.steps.clear()
        machine.life = life
        with pytest.raises(Killed):
            store.open().release()
        machine.life = DyingMachine.life
        store.open().release()
        assert what_is_derived(store) == whole, f"killed at step {life}, before {verb} {path}"
        assert not Path(store.root, "spark_mq/torn_rows.json").exists()


@pytest.mark.parametrize("full", ["/consumequeue/orders/", "/index/"])
def test_an_opening_that_fails_in_the_mending_leaves_no_hint(tmp_path: Path, full: str) -> None:
    """By a hint the next one would look for nothing."""
    machine = FullMachine()
    store, whole = torn_store(tmp_path, machine)
    Path(store.root, "spark_mq/index_synced.json").unlink()  # so that recovery has nothing to write to the index
    machine.full = full
    with pytest.raises(OSError, match="No space left"):
        store.open()
    assert not Path(store.root, "spark_mq/hint.json").exists()
    machine.full = FullMachine.full
    with store.open() as opened:
        assert opened.recovery is not None
        opened.release()
    assert what_is_derived(store) == whole


def test_a_note_of_torn_rows_is_about_what_the_log_holds_now(store: SinkStore) -> None:
    """Places that a power loss took away, or that other records have by now, change nothing."""
    store.commit(rows_of(0))
    whole = what_is_derived(store)
    message = first_message(store, "orders")
    place, size = message.commitlog_offset, message.size_bytes
    note = Path(store.root, "spark_mq/torn_rows.json")
    note.write_text(
        json.dumps([[place, size], [place + 1, size], [place, size - 1], [store.log_end, 200], [1 << 40, 200]])
    )
    with store.open() as opened:
        assert opened.recovery is None, "the hint held, and the note is read all the same"
        opened.release()
    assert not note.exists()
    assert what_is_derived(store) == whole
    store.close()
    assert_holds_exactly(store.root, [rows_of(0)])


@pytest.mark.parametrize("content", ["{}x", "[[1]]", "[[1, Infinity]]", '{"a": 1}', "[[1, 2], [3]]"])
def test_a_note_of_torn_rows_that_is_none_is_refused(store: SinkStore, content: str) -> None:
    store.commit(rows_of(0))
    note = Path(store.root, "spark_mq/torn_rows.json")
    note.write_text(content)
    with pytest.raises(StateFileError, match="torn_rows"):
        store.open()
    note.unlink()
    store.open().release()


def test_a_decision_that_a_killed_process_did_not_sync_is_on_the_disk_before_the_next_one_appends_its_rows(
    tmp_path: Path,
) -> None:
    """A power loss after that could else leave rows in the log, and no intent that tells of them."""
    machine = DyingMachine()
    store = SinkStore(SinkStore.make_place(tmp_path), machine)
    store.commit(rows_of(0))
    segments = store.stage(rows_of(1))
    machine.steps.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("storage.files.local_file_system.reach", _die_with_the_intent(machine))
        with pytest.raises(Killed):
            store.commit(rows_of(1), segments)
    machine.steps.clear()
    before_slice: list[tuple[str, str]] = []

    def reach(name: str) -> None:
        if name == "amid-slice":
            before_slice.extend(machine.steps)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("storage.batch.slices.reach", reach)
        with store.open() as opened:
            assert opened.finished_batches == 1
            opened.release()
    assert ("sync", f"{store.root}/spark_mq/intents") in before_slice


def _die_with_the_intent(machine: DyingMachine) -> Callable[[str], None]:
    def reach(name: str) -> None:
        if name == "file-replaced" and "/intents/" in machine.steps[-1][1]:
            raise Killed

    return reach
