"""Batches that the version before slices has begun: a BEGIN, and all rows behind it. What it left is finished as it would have been."""

from __future__ import annotations

from pathlib import Path

import pytest

import storage.batch.slices
import storage.log.writer
from storage import open_store
from storage.batch.commit import CommitOutcome
from storage.batch.ledger import BEGIN, END, LedgerMessage
from storage.batch.sink_progress import ledger_of, messages_of, slices_left
from storage.errors import SliceMismatchError
from tests.crash import test_killed_transactions as transactions
from tests.crash.sink_store import SinkStore, assert_holds_exactly, rows_of
from tests.crash.test_slices import commit_anew, log_bytes, promoted
from tests.support.dying import Killed, kill_at
from tests.support.fixture_stores import unpack_left
from tests.support.places import VECTORS
from tests.support.shares import one_in
from tests.support.stage_rows import BatchRows

pytestmark = [pytest.mark.crash, pytest.mark.slow]

DONE = CommitOutcome(True, 0)


LEFT, LEFT_TRANSACTIONS = (
    sorted(archive.stem for archive in (VECTORS / "begun_batches").glob(f"{kind}-*.tgz"))
    for kind in ("rows", "transactions")
)


@pytest.mark.parametrize("name", LEFT)
def test_a_batch_that_the_version_before_slices_has_begun_is_finished(tmp_path: Path, name: str) -> None:
    store = SinkStore(unpack_left("begun_batches", name, tmp_path))
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


@pytest.mark.parametrize("name", one_in(2, LEFT, others=pytest.mark.long))
def test_its_redo_may_be_killed_too(tmp_path: Path, name: str) -> None:
    if name == "rows-after-end":
        return
    store = SinkStore(unpack_left("begun_batches", name, tmp_path))
    for point in ("amid-records", "amid-slice", "after-slice"):
        with pytest.MonkeyPatch.context() as patch:
            kill_at(patch, point)
            patch.setattr(storage.batch.slices, "SLICE_BYTES", 700)
            patch.setattr(storage.log.writer, "SLICE_BYTES", 300)
            try:
                store.open().close()
            except Killed:
                continue
    store.open().close()
    assert_holds_exactly(store.root, [rows_of(0), rows_of(1), rows_of(2, 9, 8)])


@pytest.mark.parametrize("name", LEFT_TRANSACTIONS)
def test_transactions_that_the_version_before_slices_has_begun_are_finished(tmp_path: Path, name: str) -> None:
    root = unpack_left("begun_batches", name, tmp_path)
    with open_store(root, read_only=False) as opened:
        assert opened.finished_batches == 1
    transactions.check(root)


# Without an intent: the log was promoted, or copied without spark_mq/

ROWS = rows_of(2, 9, 8)


def begun_of(store: SinkStore) -> list[LedgerMessage]:
    with store.open() as opened:
        found = slices_left(opened.writer, ROWS.batch)
        opened.release()
    return found


@pytest.mark.parametrize("name", ["rows-after-begin", "rows-amid-records", "rows-before-end"])
def test_a_begun_batch_goes_on_without_an_intent(tmp_path: Path, name: str) -> None:
    replica = promoted(SinkStore(unpack_left("begun_batches", name, tmp_path)))
    assert [message.kind for message in begun_of(replica)] == [BEGIN]
    end = replica.log_end
    before = log_bytes(replica.root, end)
    assert commit_anew(replica, ROWS) == CommitOutcome(False, 17)
    assert log_bytes(replica.root, end) == before
    assert commit_anew(replica, ROWS) == DONE
    replica.close()
    assert_holds_exactly(replica.root, [rows_of(0), rows_of(1), ROWS])


@pytest.mark.parametrize("name", ["rows-amid-records", "rows-before-end"])
@pytest.mark.parametrize("rows", [rows_of(2, 3, 14), rows_of(2, 9), BatchRows(ROWS.batch, ROWS.counts, ("new",))])
def test_other_rows_do_not_go_on_behind_a_begin(tmp_path: Path, name: str, rows: BatchRows) -> None:
    replica = promoted(SinkStore(unpack_left("begun_batches", name, tmp_path)))
    replica.open().close()
    end = replica.log_end
    with pytest.raises(SliceMismatchError, match="are not those that were staged now"):
        commit_anew(replica, rows)
    assert (replica.log_end, replica.open_intents) == (end, 0)


def test_strangers_behind_a_begun_batch_keep_their_place(tmp_path: Path) -> None:
    """Somebody has put into the store since it was promoted: what stands behind the last row is a broker's message."""
    replica = promoted(SinkStore(unpack_left("begun_batches", "rows-amid-records", tmp_path)))
    replica.commit(rows_of(0, 7, sink_id="other", query_id="other"))
    assert commit_anew(replica, ROWS) == CommitOutcome(False, 17)
    replica.close()
    others = rows_of(0, 7, sink_id="other", query_id="other")
    assert_holds_exactly(replica.root, [rows_of(0), rows_of(1), ROWS, others])


@pytest.mark.parametrize("name", LEFT_TRANSACTIONS)
@pytest.mark.parametrize("slice_count", [0, 2])
def test_begun_transactions_go_on_without_an_intent(tmp_path: Path, name: str, slice_count: int) -> None:
    """Also where this version's redo was killed after some slices: halves stand behind the BEGIN and behind SLICEs."""
    root = unpack_left("begun_batches", name, tmp_path)
    if slice_count:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(storage.batch.slices, "SLICE_BYTES", 3_000)
            kill_at(patch, "after-slice", slice_count)
            with pytest.raises(Killed):
                open_store(root, read_only=False)
    replica = Path(promoted(SinkStore(root)).root)
    options = transactions.options_of(replica)
    staged = [transactions.stage(options, 0), transactions.stage(options, 1)]
    transactions.commit_rows(options, staged, 3, mirrored=True)
    transactions.check(replica)
    open_store(replica, read_only=False).close()
    transactions.check(replica)
