"""Batches that the version before slices has begun: a BEGIN, and all rows behind it. What it left is finished as it would have been."""

from __future__ import annotations

from pathlib import Path

import pytest

import storage.batch.slices
import storage.log.writer
from storage import open_store
from storage.batch.commit import CommitOutcome
from storage.batch.ledger import BEGIN, END
from storage.batch.sink_progress import ledger_of, messages_of
from tests.crash import test_killed_transactions as transactions
from tests.crash.sink_store import SinkStore, assert_holds_exactly, rows_of
from tests.support.begun_batches import ARCHIVES, unpacked_begun

pytestmark = [pytest.mark.crash, pytest.mark.slow]

DONE = CommitOutcome(True, 0)


class Killed(BaseException):
    """What ends a process in the middle."""


LEFT = sorted(archive.stem for archive in ARCHIVES.glob("rows-*.tgz"))


@pytest.mark.parametrize("name", LEFT)
def test_a_batch_that_the_version_before_slices_has_begun_is_finished(tmp_path: Path, name: str) -> None:
    store = SinkStore(unpacked_begun(tmp_path, name))
    batches = [rows_of(0), rows_of(1), rows_of(2, 9, 8)]
    with store.open() as opened:
        assert opened.finished_batches == (name != "rows-after-end")
        found = messages_of(opened.writer, batches[2].batch, 0)
        assert (found[0].kind, found[-1].kind) == (BEGIN, END)
        assert ledger_of(opened.writer).newest_ends() == {"sink": {"query": 2}}
    assert store.commit(batches[2]) == DONE
    assert store.commit(rows_of(3)) == CommitOutcome(False, 10)
    store.close()
    assert_holds_exactly(store.root, [*batches, rows_of(3)])


@pytest.mark.parametrize("name", LEFT)
def test_its_redo_may_be_killed_too(tmp_path: Path, name: str) -> None:
    if name == "rows-after-end":
        return
    store = SinkStore(unpacked_begun(tmp_path, name))
    for point in ("amid-records", "amid-slice", "after-slice"):
        with pytest.MonkeyPatch.context() as patch:

            def reach(reached: str, point: str = point) -> None:
                if reached == point:
                    raise Killed

            patch.setattr(storage.batch.slices, "SLICE_BYTES", 700)
            patch.setattr(storage.log.writer, "SLICE_BYTES", 300)
            for module in (storage.batch.slices, storage.log.writer):
                patch.setattr(module, "reach", reach)
            try:
                store.open().close()
            except Killed:
                continue
    store.open().close()
    assert_holds_exactly(store.root, [rows_of(0), rows_of(1), rows_of(2, 9, 8)])


@pytest.mark.parametrize("name", sorted(archive.stem for archive in ARCHIVES.glob("transactions-*.tgz")))
def test_transactions_that_the_version_before_slices_has_begun_are_finished(tmp_path: Path, name: str) -> None:
    root = unpacked_begun(tmp_path, name)
    with open_store(root, read_only=False) as opened:
        assert opened.finished_batches == 1
    transactions.check(root)
