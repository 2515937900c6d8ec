"""What a sink's batches are taken for: by its ledger, by the notes where that has expired, and never by a consumer offset alone.

Also the ledger that a version before the mark has left: it is taken over once, and nothing of it is lost or doubled.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import storage.store
from storage import MessageStore, open_store
from storage.batch.commit import CommitOutcome
from storage.batch.ledger import (
    END,
    GROUP_PREFIX,
    MARK,
    QUEUE_ID,
    TOPIC,
    UNMARKED,
    Batch,
    LedgerStatement,
    outgoing_ledger_message,
)
from storage.batch.sink_progress import apply_renewals, confirm_progress, newest_ends, plan_renewals
from storage.errors import SinkAheadError, SinkProgressError, SinkTakenError, StoreNotWritableError
from storage.files.local_file_system import LocalFileSystem
from storage.tables.consumer_groups import ConsumerOffsets
from storage.tables.sink_notes import load_ledger_notes
from tests.crash.machine import run_broker
from tests.crash.sink_store import SinkStore, assert_holds_exactly, found_rows, rows_of
from tests.support.dying import killed_at
from tests.support.fixture_stores import unpack_left
from tests.support.sink_offsets import set_offset
from tests.support.stage_rows import BatchRows

pytestmark = [pytest.mark.crash, pytest.mark.slow]

DONE, WRITTEN = CommitOutcome(True, 0), CommitOutcome(False, 10)


@pytest.fixture
def store(tmp_path: Path) -> SinkStore:
    """A sink's store with batches 0, 1 and 2."""
    made = SinkStore(SinkStore.make_place(tmp_path))
    for number in range(3):
        made.commit(rows_of(number))
    return made


def set_mirror(store: SinkStore, next_batch: int) -> None:
    """What any client may do through a broker: store an offset for the sink's group."""
    set_offset(store.root, "sink", next_batch)


def mirror(store: SinkStore) -> int | None:
    with open_store(store.root) as reading:
        offsets = reading.state("consumerOffset.json", ConsumerOffsets.load)
    return offsets and offsets.get(TOPIC, GROUP_PREFIX + "sink", QUEUE_ID)


def write_as_a_broker(store: SinkStore, write: Callable[[MessageStore], object]) -> None:
    """Nothing of ours that is open is finished meanwhile, and no hint is left."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage.store, "finish_open_intents", lambda writer, torn: 0)
        patch.setattr(storage.store, "settle", lambda writer: None)
        with store.open() as opened:
            write(opened)
            opened.release()
    Path(store.root, "spark_mq/hint.json").unlink()


def forge_end(store: SinkStore, number: int, mark: int) -> None:
    """An END of a batch that was never written, with a true row of the store as its last."""

    def write(opened: MessageStore) -> None:
        row = opened.get("orders", opened.queue_ids("orders")[0], 0, 1).messages[0]
        last = row.commitlog_offset, row.unique_key or ""
        message = outgoing_ledger_message(
            LedgerStatement(END, Batch("sink", "query", number), 1, last=last), now_ms=1, mark=mark
        )
        opened.writer.append([opened.writer.settings.encode(message)])

    write_as_a_broker(store, write)


# The mirror


@pytest.mark.parametrize("claimed", [4, 1_000_000_000])
@pytest.mark.parametrize("number", [2, 3])
def test_a_mirror_that_says_more_than_the_ledger_stops_the_sink_and_a_person_sets_it_right(
    store: SinkStore, claimed: int, number: int
) -> None:
    set_mirror(store, claimed)
    end, segments = store.log_end, store.stage(rows_of(number))
    text = rf"consumer offset of sink sink says that batch {claimed - 1} is written, but the ledger's last is 2"
    for takeover in (False, True):
        with pytest.raises(SinkProgressError, match=text) as caught:
            store.commit(rows_of(number), segments, takeover=takeover)
        assert f"spark-mq confirm-sink {store.root} sink" in str(caught.value.hint)
    assert store.log_end == end
    with store.open() as opened:
        assert confirm_progress(opened.writer, "sink", "query", 3) is None, "the ledger says 2"
        assert confirm_progress(opened.writer, "sink", "query", None) == 2
        opened.release()
    assert mirror(store) == 3
    assert store.commit(rows_of(number), segments) == (DONE if number == 2 else WRITTEN)
    store.close()
    assert_holds_exactly(store.root, [rows_of(batch) for batch in range(max(number, 2) + 1)])


@pytest.mark.parametrize("claimed", [0, 1, 2])
def test_a_mirror_that_says_less_changes_nothing_and_is_corrected(store: SinkStore, claimed: int) -> None:
    set_mirror(store, claimed)
    assert store.commit(rows_of(2)) == DONE
    assert store.commit(rows_of(3)) == WRITTEN
    assert mirror(store) == 4
    store.close()
    assert_holds_exactly(store.root, [rows_of(number) for number in range(4)])


def expire(store: SinkStore) -> SinkStore:
    """A broker's retention has deleted all that the sink has written. Returns the store four days later."""
    end = store.log_end
    run_broker(store, BatchRows(Batch("broker", "broker", 0), (200,)), days=4)
    for file in Path(store.root, "commitlog").iterdir():
        if int(file.name) < end:
            file.unlink()
    later = SinkStore(Path(store.root), days=5)
    with open_store(later.root) as reading:
        assert reading.log.minimum >= end
    return later


def sinks_bodies(store: SinkStore) -> list[str]:
    with open_store(store.root) as reading:
        return sorted(one.row.body for one in found_rows(reading) if not one.row.body.startswith("broker"))


@pytest.mark.parametrize("claimed", [None, 0, 2])
def test_when_the_ledger_has_expired_the_notes_know_the_last_batch(store: SinkStore, claimed: int | None) -> None:
    later = expire(store)
    if claimed is not None:
        set_mirror(later, claimed)
    with pytest.raises(SinkTakenError, match="belongs to query query"):
        later.commit(rows_of(3, query_id="another"))
    assert later.commit(rows_of(2)) == DONE
    assert later.commit(rows_of(3)) == WRITTEN
    assert sinks_bodies(later) == sorted(row.body for row in rows_of(3).rows)


@pytest.mark.parametrize("number", [2, 3])
def test_a_mirror_that_says_more_than_the_notes_stops_the_sink_too(store: SinkStore, number: int) -> None:
    later = expire(store)
    set_mirror(later, 10**9)
    with pytest.raises(SinkProgressError, match="batch 999999999 is written, but the ledger's last is 2"):
        later.commit(rows_of(number))
    assert sinks_bodies(later) == []


def test_an_open_intent_that_has_expired_is_not_done_because_a_mirror_says_so(tmp_path: Path) -> None:
    """Killed at its commit point, then a broker for days: without notes of it, nobody can tell that it was not written."""
    store = SinkStore(SinkStore.make_place(tmp_path))
    store.commit(rows_of(0))
    with killed_at("after-intent"):
        store.commit(rows_of(1))
    later = expire(store)
    set_mirror(later, 2)
    with pytest.raises(
        StoreNotWritableError, match="only the consumer offset of group CID_RMQ_SYS_SPARK_sink"
    ) as caught:
        later.open()
    assert "intents/" in str(caught.value.hint)
    set_mirror(later, 1)
    assert later.commit(rows_of(1)) == DONE, "written by the opening"
    assert sinks_bodies(later) == sorted(row.body for row in rows_of(1).rows)


def test_a_copy_without_notes_whose_ledger_has_expired_takes_the_mirrors_word_for_nothing(store: SinkStore) -> None:
    later = expire(store)
    later.close()
    shutil.rmtree(Path(later.root, "spark_mq"))
    with pytest.raises(SinkProgressError, match="but the ledger holds none of its batches") as caught:
        later.commit(rows_of(2))
    assert "--last-batch N --query query" in str(caught.value.hint)
    with pytest.raises(SinkTakenError, match="ledger entries have expired"):
        later.commit(rows_of(0, query_id="another"))
    with later.open() as opened:
        assert confirm_progress(opened.writer, "sink", "query", None) is None
        assert confirm_progress(opened.writer, "sink", "query", 2) == 2
        opened.release()
    assert later.commit(rows_of(2)) == DONE
    assert later.commit(rows_of(3)) == WRITTEN
    assert sinks_bodies(later) == sorted(row.body for row in rows_of(3).rows)


def test_a_copy_without_notes_goes_on_behind_the_mirror(store: SinkStore) -> None:
    later = expire(store)
    later.close()
    shutil.rmtree(Path(later.root, "spark_mq"))
    assert later.commit(rows_of(3)) == WRITTEN


def test_a_copy_without_notes_goes_by_the_ledger_that_is_in_it(store: SinkStore) -> None:
    store.close()
    shutil.rmtree(Path(store.root, "spark_mq"))
    assert store.commit(rows_of(2)) == DONE
    assert store.commit(rows_of(3)) == WRITTEN
    store.close()
    assert_holds_exactly(store.root, [rows_of(number) for number in range(4)])


def test_a_log_that_has_lost_its_end_is_noticed_by_the_mirror(store: SinkStore) -> None:
    """A broker that cuts damage takes the last END with its rows; nothing of ours is open any more."""
    store.close()
    with open_store(store.root) as reading:
        last = reading.get(TOPIC, QUEUE_ID, reading.max_offset(TOPIC, QUEUE_ID) - 1).messages[0]
        file = reading.log.files[reading.log.file_index(last.commitlog_offset)]
    store.file_system.write(file.path, last.commitlog_offset - file.start, bytes(last.size_bytes))
    Path(store.root, "abort").touch()
    with pytest.raises(SinkProgressError, match="says that batch 2 is written, but the ledger's last is 1"):
        store.commit(rows_of(3))


# Ledgers without marks


def test_in_a_new_store_nothing_counts_without_a_mark(tmp_path: Path) -> None:
    store = SinkStore(SinkStore.make_place(tmp_path))
    store.commit(rows_of(0))
    assert (notes := load_ledger_notes(LocalFileSystem(), store.root)) is not None
    assert notes.unmarked_end == 0
    forge_end(store, 10**9, UNMARKED)
    assert store.commit(rows_of(1)) == WRITTEN
    store.close()
    assert_holds_exactly(store.root, [rows_of(0), rows_of(1)])
    forge_end(store, 2, MARK)
    with pytest.raises(SinkAheadError):  # what this test would see if the mark could be forged
        store.commit(rows_of(2))


LEFT = {"released": 3, "amid-records": 4, "before-end": 4}
"""Stores that the version before the mark has left, and how many batches of each are decided; Spark may bring the last again."""


def left_rows(name: str) -> list[BatchRows]:
    return [*(rows_of(number) for number in range(3)), rows_of(3, 20, 11)][: LEFT[name]]


@pytest.mark.parametrize("without_notes", [False, True], ids=["in its place", "a copy without spark_mq/"])
@pytest.mark.parametrize("name", LEFT)
def test_a_ledger_of_before_is_taken_over_once(tmp_path: Path, name: str, without_notes: bool) -> None:
    root = unpack_left("unmarked_ledgers", name, tmp_path)
    store, batches = SinkStore(root), left_rows(name)
    if without_notes:
        if name != "released":  # an intent that is not copied is a batch that is not finished
            return
        shutil.rmtree(root / "spark_mq")
    assert store.commit(batches[-1]) == DONE, "between the END and Spark's own commit the process was killed"
    notes = load_ledger_notes(LocalFileSystem(), store.root)
    assert notes is not None
    assert notes.unmarked_end > 0
    assert notes.sinks["sink"].batch_id == len(batches) - 1
    forge_end(store, 10**9, UNMARKED)
    assert store.commit(batches[-1]) == DONE
    assert store.commit(rows_of(len(batches))) == WRITTEN
    store.close()
    assert_holds_exactly(store.root, [*batches, rows_of(len(batches))])
    assert load_ledger_notes(LocalFileSystem(), store.root).unmarked_end == notes.unmarked_end  # type: ignore[union-attr]


def test_a_killed_first_opening_takes_over_again(tmp_path: Path) -> None:
    store = SinkStore(unpack_left("unmarked_ledgers", "before-end", tmp_path))
    with killed_at("file-staged"):
        store.open()
    assert store.commit(left_rows("before-end")[-1]) == DONE
    store.close()
    assert_holds_exactly(store.root, left_rows("before-end"))


def test_retention_gives_the_newest_end_of_before_a_mark(tmp_path: Path) -> None:
    store = SinkStore(unpack_left("unmarked_ledgers", "released", tmp_path))
    with store.open() as opened:
        (old,) = plan_renewals(newest_ends(opened.writer), opened.log_end)
        apply_renewals(opened.writer, [old])
        (new,) = newest_ends(opened.writer)
        assert (new.batch, new.last) == (old.batch, old.last)
        record = opened.message_by_commitlog_offset(new.commitlog_offset)
        assert record.prepared_transaction_offset == MARK
        assert opened.message_by_commitlog_offset(old.commitlog_offset).prepared_transaction_offset == UNMARKED
