"""Under SYNC_FLUSH the log of a batch is synced while it is appended; a sync that fails there ends the commit as the last one would."""

from __future__ import annotations

import errno
from contextlib import nullcontext
from pathlib import Path

import pytest

from storage import MessageStore, open_store
from storage.batch import slices
from storage.batch.commit import commit_batch
from storage.batch.ledger import Batch
from storage.batch.staged_segment import StagedBatch
from storage.files import syncs
from storage.log.writer import LogSync
from tests.storage.batch.test_staged_runs import NOW_MS, TOPICS, prepared, stage

BATCH = Batch("sink", "query", 0)
COMMITTED = 24
"""Of 40 rows."""


@pytest.fixture(autouse=True)
def _early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(syncs, "EARLY_BYTES", 1)
    monkeypatch.setattr(slices, "SLICE_BYTES", 2_000)


class Syncs:
    """Counts syncs of the log, of which one fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, failing: int | None = None) -> None:
        self.ends: list[int] = []
        run = LogSync._sync

        def counted(sync: LogSync) -> None:
            self.ends.append(sync.end)
            if len(self.ends) == failing:
                raise OSError(errno.EIO, "planted")
            run(sync)

        monkeypatch.setattr(LogSync, "_sync", counted)  # behind the gate, which takes none after one that failed


def opened(root: Path, flush: str) -> MessageStore:
    return open_store(root, read_only=False, create=True, flush_disk_type=flush, clock=lambda: NOW_MS)


def visible(store: MessageStore) -> int:
    return sum(store.max_offset("T", queue_id) for queue_id in store.queue_ids("T"))


def test_the_log_is_synced_slice_by_slice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    staged = StagedBatch(BATCH, stage(tmp_path, [prepared(40)]), TOPICS)
    with opened(tmp_path, "SYNC_FLUSH") as store:
        syncs = Syncs(monkeypatch)
        commit_batch(store.writer, staged)
        assert len({end for end in syncs.ends if end < store.log_end}) >= 2
        assert store.writer.synced_end == store.log_end
        assert visible(store) == COMMITTED


def test_it_is_not_under_async_flush(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    staged = StagedBatch(BATCH, stage(tmp_path, [prepared(40)]), TOPICS)
    with opened(tmp_path, "ASYNC_FLUSH") as store:
        syncs = Syncs(monkeypatch)
        commit_batch(store.writer, staged)
        assert not syncs.ends


@pytest.mark.parametrize("failing", [1, 2, 3])
@pytest.mark.parametrize("is_shared", [False, True])
def test_one_that_fails_ends_the_commit_and_the_next_opening_finishes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int, is_shared: bool
) -> None:
    staged = StagedBatch(BATCH, stage(tmp_path, [prepared(40)]), TOPICS)
    turns = 0

    def turn() -> nullcontext[None]:
        nonlocal turns
        turns += 1
        return nullcontext()

    with opened(tmp_path, "SYNC_FLUSH") as store:
        with monkeypatch.context() as planted:
            Syncs(planted, failing)
            with pytest.raises(OSError, match="planted"):
                commit_batch(store.writer, staged, **({"turn": turn} if is_shared else {}))
        assert isinstance(store.writer.failure, OSError)
        store.release()
    assert turns > 3 or not is_shared
    with opened(tmp_path, "SYNC_FLUSH") as store:
        assert visible(store) == COMMITTED
        assert commit_batch(store.writer, staged).already_done
