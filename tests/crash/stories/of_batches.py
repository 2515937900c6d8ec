"""A sink's batches, committed and finished, and the files that expire with them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from unittest import mock
from uuid import UUID

from storage import MessageStore
from storage.batch.commit import commit_batch
from storage.batch.intent import DeadLetterFile
from storage.batch.ledger import Batch
from storage.batch.staged_segment import StagedBatch, sink_digest
from storage.retention import Occasion, apply_expiry, plan_expiry
from storage.settings.nouns import RetentionConfig
from tests.crash.stories.life import ROOMY, START_MS, Life, kill, put
from tests.support.dying import killed_at
from tests.support.stage_rows import BatchRows, stage


def rows_of(batch_id: int, count: int = 4) -> BatchRows:
    return BatchRows(Batch("sink", "query", batch_id), (count,), ("orders",))


def commit(
    life: Life,
    store: MessageStore,
    batch_id: int,
    *,
    mirrored: bool = True,
    dead_letters: bool = False,
    letters_are_gone: bool = False,
) -> None:
    rows = rows_of(batch_id)
    segments = stage(life.disk, str(life.root), life.config, rows, queue_count=4)
    letters = []
    if dead_letters:
        letters = [
            DeadLetterFile.of(f"{life.root}/letters", sink_digest("sink", "query").hex(), batch_id, 0, str(UUID(int=7)))
        ]
        if not letters_are_gone:
            life.disk.create_file(letters[0].staged, 1)
    commit_batch(
        store.writer, StagedBatch(rows.batch, segments, {"orders": 4}, dead_letters=letters), mirrored=mirrored
    )


def committing(directory: Path, *, sync_flush: bool = False, mirrored: bool = True) -> list[str]:
    """A store's second batch, with dead letters."""
    life = Life(directory, config=ROOMY, sync_flush=sync_flush)
    with life.open() as store:
        commit(life, store, 0)
        life.disk.begin()
        commit(life, store, 1, mirrored=mirrored, dead_letters=True)
        told = life.disk.told()
    return told


def committing_first(directory: Path) -> list[str]:
    """A store's first batch: its topic, its ledger and its log are made."""
    life = Life(directory, config=ROOMY)
    with life.open() as store:
        life.disk.begin()
        commit(life, store, 0)
        told = life.disk.told()
    return told


def committing_again(directory: Path) -> list[str]:
    """As a stream does it: the store was let go of after the batch before, is opened by the hint, and let go of again."""
    life = Life(directory, config=ROOMY)
    for batch_id in range(2):
        with life.open() as store:
            commit(life, store, batch_id)
            store.release()
    with mock.patch("storage.batch.commit.place_of_end", side_effect=AssertionError("the hint says so")):
        life.disk.begin()
        with life.open() as store:
            commit(life, store, 2)
            store.release()
    told = life.disk.told()
    with life.open() as store:
        assert sum(store.max_offset("orders", queue_id) for queue_id in range(4)) == 12
    return told


def finishing(directory: Path) -> list[str]:
    """A commit was killed in the middle of its rows; the next opening continues it."""
    life = Life(directory, config=ROOMY)
    store = life.open()
    commit(life, store, 0)
    with killed_at("amid-slice"):
        commit(life, store, 1)
    kill(store)
    life.disk.begin()
    with life.open(create=False) as again:
        told = life.disk.told()
        assert again.finished_batches == 1
        assert sum(again.max_offset("orders", queue_id) for queue_id in range(4)) == 8
    return told


def mending(directory: Path) -> list[str]:
    """A power loss has taken the end of a row's record, its properties, while the batch's intent stands."""
    life = Life(directory, config=ROOMY)
    store = life.open()
    commit(life, store, 0)
    [row] = store.get("orders", 0, 0).messages[:1]
    kill(store)
    life.disk.write(f"{life.root}/commitlog/{0:020d}", row.commitlog_offset + row.size_bytes - 8, bytes(8))
    life.disk.begin()
    with life.open(create=False) as again:
        told = life.disk.told()
        assert again.get("orders", 0, 0).messages[0].properties == row.properties
    return told


FULL_DISK = Occasion(("the disk is full",), whatever_age=True)


def expiring(directory: Path) -> list[str]:
    """Two log files go, with a queue file and index files; a sink's END goes with them, and is written again."""
    life = Life(directory)
    store = life.open()
    commit(life, store, 0)
    for first in range(0, 60, 10):
        put(store, first, 10)
    config = replace(RetentionConfig(), delete_file_batch_max=2)
    plan = plan_expiry(store, life.disk, config, FULL_DISK, now_ms=START_MS)
    assert (len(plan.log_files), bool(plan.index_paths), any(queue.paths for queue in plan.queues)) == (2, True, True)
    life.disk.begin()
    assert apply_expiry(store.writer, plan, config, sleep=lambda seconds: None) == 1
    told = life.disk.told()
    store.close()
    return told
