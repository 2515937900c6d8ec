"""What sinks left is told as it is, without touching it; closing finishes what was decided; only old, unnamed files are deleted."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from jobs.verify_store import verify_store
from storage import open_store
from storage.batch.commit import commit_batch
from storage.batch.intent import Intent, intent_directory, save_intent
from storage.batch.ledger import UNNAMED_PREFIX, Batch
from storage.batch.staged_segment import StagedBatch, StagedSegment, list_segments, staged_directory
from storage.errors import SinkProgressError
from storage.files.local_file_system import LocalFileSystem
from storage.settings.load import StoreConfig
from storage.tables.put_statistics import TopicSum
from storage.tables.sink_notes import BatchNote, add_batch_note
from tests.support.commands import run
from tests.support.sink_offsets import set_offset
from tests.support.stage_rows import BatchRows, stage, stage_partition

FILES = LocalFileSystem()
HOUR_S = 3_600


def status(root: Path, *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run("sink-status", root, *arguments, "--json"))
    return found


def bodies_of(root: Path) -> list[str]:
    with open_store(root) as store:
        return sorted(
            message.body.decode()
            for queue_id in store.queue_ids("orders")
            for message in store.get("orders", queue_id, 0, 10_000).messages
        )


def files_of(root: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path.relative_to(root)): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in root.rglob("*")
        if path.is_file()
    }


def batch_rows(batch_id: int, sink: str = "sink-a", query: str = "query-a", count: int = 20) -> BatchRows:
    return BatchRows(Batch(sink, query, batch_id), (count, count))


def staged(root: Path, rows: BatchRows) -> list[StagedSegment]:
    return stage(FILES, str(root), StoreConfig(), rows)


def commit(root: Path, rows: BatchRows, *, takeover: bool = False, flush: str = "ASYNC_FLUSH") -> None:
    """As a sink does: the store is let go of afterwards, not closed."""
    segments = staged(root, rows)
    with open_store(root, read_only=False, create=True, flush_disk_type=flush) as store:
        commit_batch(store.writer, StagedBatch(rows.batch, segments, {"orders": 4}), takeover=takeover)
        store.release()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "broker.conf").write_text("mappedFileSizeCommitLog=65536\nmaxHashSlotNum=100\nmaxIndexNum=400\n")
    return tmp_path / "store"


def decide(root: Path, rows: BatchRows) -> None:
    """What a sink that was killed at its commit point leaves."""
    segments = staged(root, rows)
    with open_store(root) as store:
        end = store.log_end
    save_intent(FILES, str(root), Intent(*rows.batch, end, tuple(segments)))


def test_a_store_that_no_sink_wrote_has_nothing_to_tell(root: Path) -> None:
    with open_store(root, read_only=False, create=True):
        pass
    assert "no sink has written here" in run("sink-status", root)
    assert status(root) == {
        "store": str(root),
        "sinks": [],
        "intents": [],
        "orphans": [],
        "pool": {"files": 0, "bytes": 0},
        "batches": [],
    }


def test_the_last_batch_of_each_sink_is_told_and_nothing_is_touched(root: Path) -> None:
    for number in (0, 1, 2):
        commit(root, batch_rows(number))
    commit(root, batch_rows(7, "sink-b", "query-b"))
    commit(root, batch_rows(0, "sink-b", "query-c"), takeover=True)
    before = files_of(root)
    with open_store(root, read_only=False) as holder:  # beside a writer that holds the lock
        found = status(root)
        holder.release()
    assert found["sinks"] == [
        {"sink_id": "sink-a", "query_id": "query-a", "last_batch": 2, "consumer_offset_batch": 2},
        {"sink_id": "sink-b", "query_id": "query-c", "last_batch": 0, "consumer_offset_batch": 0},
        {"sink_id": "sink-b", "query_id": "query-b", "last_batch": 7, "consumer_offset_batch": None},
    ]
    (kept,) = found["intents"]  # under ASYNC_FLUSH the last one, until the log is synced
    assert (kept["sink_id"], kept["batch"], kept["rows"], kept["finished"]) == ("sink-b", 0, 40, True)
    assert (found["orphans"], found["pool"]["files"]) == ([], 2)
    before = files_of(root)
    assert "query-c" in run("sink-status", root)
    assert files_of(root) == before


def test_a_write_without_a_name_does_not_make_the_command_deny_its_batch(root: Path) -> None:
    with open_store(root, read_only=False, create=True):
        pass
    done = BatchNote("", 0, 1_700_000_000_000, 2, 0, 1, {"orders": TopicSum(2, 400)})
    add_batch_note(FILES, str(root), f"{UNNAMED_PREFIX}7752", done)
    text = run("sink-status", root)
    assert "no sink with a name has written here" in text
    assert "last batches" in text


def test_under_sync_flush_nothing_is_kept(root: Path) -> None:
    commit(root, batch_rows(0), flush="SYNC_FLUSH")
    assert status(root)["intents"] == []


def test_what_only_the_consumer_offset_says_is_shown_and_a_person_can_confirm_it(root: Path) -> None:
    commit(root, batch_rows(4, "sink-b", "sink-b"))
    run("close", root)
    set_offset(root, "sink-a", 5)
    sink, other = status(root)["sinks"]
    assert sink == {"sink_id": "sink-a", "query_id": None, "last_batch": None, "consumer_offset_batch": 4}
    assert other["last_batch"] == other["consumer_offset_batch"] == 4
    shown = run("sink-status", root)
    assert "not known" in shown
    assert shown.count("spark-mq confirm-sink") == 1
    with pytest.raises(SinkProgressError, match=r"confirm-sink .* sink-a --last-batch N --query query-a"):
        commit(root, batch_rows(4))
    run("confirm-sink", root, "sink-a", exit_code=1)
    arguments = ["sink-a", "--last-batch", "4", "--query", "query-a"]
    assert "the last batch in the store is 4" in run("confirm-sink", root, *arguments)
    sink, _ = status(root)["sinks"]
    assert sink == {"sink_id": "sink-a", "query_id": "query-a", "last_batch": 4, "consumer_offset_batch": 4}
    commit(root, batch_rows(4))
    commit(root, batch_rows(5))
    written = [*batch_rows(5).rows, *batch_rows(4, "sink-b", "sink-b").rows]
    assert bodies_of(root) == sorted(row.body for row in written)
    run("confirm-sink", root, "sink-a", "--last-batch", "9", exit_code=1)
    assert "the last batch in the store is 5" in run("confirm-sink", root, "sink-a")


def test_closing_finishes_what_was_decided(root: Path) -> None:
    commit(root, batch_rows(0))
    decide(root, batch_rows(1))
    (done, decided) = status(root)["intents"]
    assert (done["batch"], done["finished"], decided["batch"], decided["finished"]) == (0, True, 1, False)
    assert "the next opening for writing finishes it" in run("sink-status", root)
    told = json.loads(run("close", root, "--json"))
    assert (told["finished_batches"], told["was_clean"], told["cut_bytes"]) == (1, False, 0)
    assert bodies_of(root) == sorted(row.body for number in (0, 1) for row in batch_rows(number).rows)
    found = status(root)
    assert (found["sinks"][0]["last_batch"], found["intents"], found["orphans"]) == (1, [], [])
    assert not (root / "abort").exists()
    assert verify_store(str(root)).findings == ()
    assert json.loads(run("close", root, "--json"))["was_clean"] is True
    assert "closed" in run("close", root)


def test_recovering_finishes_it_too(root: Path) -> None:
    commit(root, batch_rows(0))
    decide(root, batch_rows(1))
    assert json.loads(run("recover", root, "--json"))["finished_batches"] == 1
    assert len(bodies_of(root)) == 80


def test_an_intent_that_somebody_changed_is_an_error_that_names_it(root: Path) -> None:
    commit(root, batch_rows(0))
    (intent,) = Path(intent_directory(str(root))).iterdir()
    intent.write_bytes(intent.read_bytes().replace(b'"batch_id": 0', b'"batch_id": 9'))
    assert str(intent) in run("sink-status", root, exit_code=1)


def test_only_old_files_that_no_intent_names_are_removed(root: Path) -> None:
    commit(root, batch_rows(0))
    decide(root, batch_rows(1))
    kept = {path for path, _ in list_segments(FILES, str(root))}
    rows = batch_rows(2)
    old, young = (stage_partition(FILES, str(root), StoreConfig(), rows, partition) for partition in (0, 1))
    at = time.time() - 25 * HOUR_S
    for path in {*kept, old.path}:
        os.utime(f"{staged_directory(str(root))}/{path}", (at, at))
    found = status(root)["orphans"]
    assert [file["path"] for file in found] == [old.path, young.path]
    assert "1 day" in run("sink-status", root)
    with open_store(root, read_only=False, lock_timeout_ms=0) as holder:
        refused = run("sink-status", root, "--remove-orphans", "--lock-timeout", "0", exit_code=75)
        assert "locked by another writer" in refused
        holder.release()
    found_after = status(root, "--remove-orphans", "--older-than", "26h")
    assert (found_after["removed"], len(found_after["orphans"])) == ([], 2)
    found_after = status(root, "--remove-orphans")
    assert [file["path"] for file in found_after["removed"]] == [old.path]
    assert [file["path"] for file in found_after["orphans"]] == [young.path]
    assert "0 staged file(s)" in run("sink-status", root, "--remove-orphans")
    run("close", root)
    assert len(bodies_of(root)) == 80
