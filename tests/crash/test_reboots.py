"""The machine is started again under an open intent: what stands in the log stays there, as it stands, whatever can be made again."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from unittest import mock

import pytest

import storage.batch.commit
import storage.store
from storage import open_store
from storage.batch.commit import CommitOutcome, commit_batch
from storage.batch.ledger import GROUP_PREFIX
from storage.batch.ledger import QUEUE_ID as LEDGER_QUEUE
from storage.batch.ledger import TOPIC as LEDGER_TOPIC
from storage.batch.staged_segment import StagedBatch
from storage.errors import StoreNotWritableError
from storage.store import MessageStore
from storage.tables.consumer_groups import ConsumerOffsets
from storage.tables.topics import TopicTable
from tests.crash.machine import Machine
from tests.crash.sink_store import QUEUE_COUNT, SinkStore, assert_holds_exactly, found_rows, rows_of
from tests.support.crash_file_system import CrashFileSystem
from tests.support.dying import killed_at

pytestmark = [pytest.mark.crash, pytest.mark.slow]

DONE = CommitOutcome(True, 0)


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def store(tmp_path: Path, machine: Machine) -> SinkStore:
    """An empty place for a store, under ASYNC_FLUSH: the intent of the last batch stays open."""
    return SinkStore(SinkStore.make_place(tmp_path), machine)


def log_of(store: SinkStore) -> dict[str, str]:
    """The log's files that hold anything, by the hash of their content."""
    return {
        path.name: hashlib.sha256(content).hexdigest()
        for path in Path(store.root, "commitlog").iterdir()
        if any(content := path.read_bytes())
    }


def last_positions(opened: MessageStore) -> list[object]:
    """Where the last message of each queue stands and since when: what a stream compares when it goes on."""
    return [
        opened.position(topic, queue_id, opened.max_offset(topic, queue_id) - 1)
        for topic in opened.topics()
        for queue_id in opened.queue_ids(topic)
        if opened.max_offset(topic, queue_id)
    ]


def test_after_a_start_without_losses_no_byte_of_the_log_changes(store: SinkStore, machine: Machine) -> None:
    for number in range(4):
        store.commit(rows_of(number))
    assert store.open_intents == 1
    before = log_of(store)
    assert len(before) > 1
    with open_store(store.root) as reading:
        positions = last_positions(reading)
    machine.start_again()
    with store.open() as opened:
        assert opened.recovery is not None
        assert opened.finished_batches == 0
        assert last_positions(opened) == positions
        opened.release()
    assert log_of(store) == before
    assert store.commit(rows_of(3)) == DONE
    store.close()
    assert_holds_exactly(store.root, [rows_of(number) for number in range(4)])


def test_two_hosts_that_take_turns_finish_nothing_that_is_done(tmp_path: Path) -> None:
    """Each takes the other's boot id for a start of the machine."""
    root = SinkStore.make_place(tmp_path)
    hosts = SinkStore(root, Machine()), SinkStore(root, Machine(), days=1)
    hosts[1].file_system.start_again()  # type: ignore[attr-defined]
    log_end = 0
    for number in range(6):
        host, rows = hosts[number % 2], rows_of(number)
        segments = host.stage(rows)
        with host.open() as opened:
            assert (opened.log_end, opened.finished_batches) == (log_end, 0)
            commit_batch(opened.writer, StagedBatch(rows.batch, segments, dict.fromkeys(rows.topics, QUEUE_COUNT)))
            log_end = opened.log_end
            opened.release()
    hosts[0].close()
    assert_holds_exactly(str(root), [rows_of(number) for number in range(6)])


@pytest.mark.parametrize("is_flushed", [True, False])
def test_what_was_put_beside_a_batch_in_one_opening_is_kept(
    store: SinkStore, machine: Machine, is_flushed: bool
) -> None:
    rows = rows_of(0)
    segments = store.stage(rows)
    with store.open() as opened:
        opened.put("orders", b"before")
        commit_batch(opened.writer, StagedBatch(rows.batch, segments, dict.fromkeys(rows.topics, QUEUE_COUNT)))
        for number in range(20):
            opened.put("bills", b"behind %d" % number)
        if is_flushed:
            opened.flush()
        opened.release()
    before = log_of(store)
    machine.start_again()
    with store.open() as opened:
        assert log_of(store) == before
        bodies = {one.row.body for one in found_rows(opened)}
        assert {"before", *(f"behind {number}" for number in range(20))} < bodies
        assert {row.body for row in rows.rows} < bodies
        assert len(found_rows(opened)) == 31


@pytest.mark.parametrize("name", ["consumerOffset.json", "topics.json"])
def test_a_table_that_a_killed_process_has_just_replaced_is_kept_with_what_the_next_one_made_of_it(
    tmp_path: Path, name: str
) -> None:
    """The first one dies before it has synced the directory; the next finds the new table and has nothing to change in it."""
    root = SinkStore.make_place(tmp_path)
    files = CrashFileSystem(str(root))
    SinkStore(root, files, sync_flush=True).commit(rows_of(0))
    renamed = [number for number, one in enumerate(files.operations, 1) if one.new_path.endswith(f"/config/{name}")]
    left = next(deepcopy(disk) for number, _, disk in files.states() if number == renamed[-1])
    after_kill = CrashFileSystem(str(root), left)
    with SinkStore(root, after_kill, sync_flush=True, days=1).open() as opened:
        opened.put("orders", b"one more", queue_count=QUEUE_COUNT)
    with open_store(root) as reading:
        kept = table_in(reading, name)
        assert kept
    for seed in range(10):
        CrashFileSystem(str(root), after_kill.disk.after_power_loss(random.Random(seed)), 2)
        with open_store(root) as reading:
            assert table_in(reading, name) == kept


def table_in(opened: MessageStore, name: str) -> object:
    """What a table says of the sink; None if there is none."""
    if name == "topics.json":
        topics = opened.state(name, TopicTable.load)
        return topics and set(topics.topics)
    offsets = opened.state(name, ConsumerOffsets.load)
    return offsets and offsets.get(LEDGER_TOPIC, GROUP_PREFIX + "sink", LEDGER_QUEUE)


def test_a_batch_whose_begin_is_there_has_not_expired(
    store: SinkStore, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decided, finished days later at the beginning of a log file, the file before it gone, and the END lost with the power."""
    with store.open() as opened:
        for _ in range(2):
            opened.put("bills", bytes(3_790), queue_count=QUEUE_COUNT)
        opened.release()
    with killed_at("after-intent"):
        store.commit(rows_of(0))
    later = SinkStore(Path(store.root), machine, days=5)
    with monkeypatch.context() as patch:
        patch.setattr(storage.store, "settle", mock.Mock(side_effect=KeyboardInterrupt))  # before it is synced
        with pytest.raises(KeyboardInterrupt):
            later.open()
    first, second, *_ = sorted(Path(store.root, "commitlog").iterdir())
    with open_store(store.root) as reading:
        begin, end = (message.commitlog_offset for message in reading.get(LEDGER_TOPIC, LEDGER_QUEUE, 0).messages)
        assert begin == int(second.name)
        lost = reading.log_end - end
    first.unlink()
    machine.write(str(second), end - int(second.name), bytes(lost))
    machine.start_again()
    assert later.commit(rows_of(0)) == DONE


# Segments that are not there any more


def delete_segments(store: SinkStore) -> None:
    for path in store.staged_files:
        Path(store.root, "spark_mq/staged", path).unlink()


def spoil_segments(store: SinkStore) -> None:
    for name in store.staged_files:
        path = Path(store.root, "spark_mq/staged", name)
        content = bytearray(path.read_bytes())
        content[90] ^= 1
        path.write_bytes(content)


SPOILING = pytest.mark.parametrize("spoil", [delete_segments, spoil_segments], ids=["gone", "rotten"])


@SPOILING
def test_rows_that_are_all_there_need_their_segments_no_more(
    store: SinkStore, machine: Machine, spoil: Callable[[SinkStore], None]
) -> None:
    for number in range(2):
        store.commit(rows_of(number))
    before = log_of(store)
    machine.start_again()
    spoil(store)
    for _ in range(2):
        with store.open() as opened:
            opened.release()
    assert log_of(store) == before
    assert store.commit(rows_of(1)) == DONE
    store.close()
    assert_holds_exactly(store.root, [rows_of(0), rows_of(1)])


@SPOILING
def test_without_its_segments_a_torn_batch_keeps_the_rows_that_are_left_and_names_the_way_out(
    store: SinkStore, machine: Machine, spoil: Callable[[SinkStore], None]
) -> None:
    for number in range(2):
        store.commit(rows_of(number))
    end = store.log_end
    with open_store(store.root) as reading:
        last = [
            message for queue in reading.queue_ids("orders") for message in reading.get("orders", queue, 0).messages
        ]
    lost = max(message.commitlog_offset for message in last)
    file = sorted(path for path in Path(store.root, "commitlog").iterdir() if any(path.read_bytes()))[-1]
    store.file_system.write(str(file), lost - int(file.name), bytes(end - lost))
    (intent,) = Path(store.root, "spark_mq/intents").iterdir()
    machine.start_again()
    spoil(store)
    before = log_of(store)
    for _ in range(2):
        with pytest.raises(StoreNotWritableError, match=r"batch 1 of sink sink is decided") as caught:
            store.open()
        assert str(intent) in str(caught.value), "deleting it is the way out"
        assert log_of(store) == before
    intent.unlink()
    with store.open() as opened:
        left = {one.row.body for one in found_rows(opened)}
    missing = {row.body for number in range(2) for row in rows_of(number).rows} - left
    assert {message.body.decode() for message in last if message.commitlog_offset == lost} <= missing
    assert missing < {row.body for row in rows_of(1).rows}
