"""A batch of transactions whose put lock is given up between slices: what others end of its halves meanwhile is not ended again.

A producer's END_TRANSACTION or the answer to a check may come as soon as a half can be read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import storage.batch.slices
from spark_mq.broker.end_transaction import request_for
from storage import MessageStore, open_store
from storage.batch.commit import commit_batch
from storage.batch.ledger import Batch
from storage.batch.staged_segment import StagedBatch
from storage.format.record import TRANSACTION_COMMIT
from storage.rules.half_messages import HALF_TOPIC
from tests.crash import test_killed_transactions as transactions
from tests.crash.sink_store import SinkStore
from tests.support.broker_handlers import end_transaction
from tests.support.shares import one_in

pytestmark = [pytest.mark.crash, pytest.mark.slow]

BATCH = Batch("sink", "query", 3)
HALF_SLICES = 8
"""Up to then the lock is given up between slices of halves, which only others' puts make readable."""


def commit_a_half(store: MessageStore, number: int) -> bool:
    """The producer's END_TRANSACTION for the first half from `number` on that is to be committed; whether it could be read."""
    for offset in range(number, store.max_offset(HALF_TOPIC, 0)):
        (half,) = store.get(HALF_TOPIC, 0, offset, 1).messages
        if b"commit" in half.body:
            request = request_for(half, TRANSACTION_COMMIT, from_transaction_check=True)
            assert end_transaction(store, request, store.writer.clock()) == transactions.SUCCESS
            return True
    return False


@pytest.mark.parametrize("number", [0, 30, 41])
@pytest.mark.parametrize("time", one_in(2, range(2, 16, 2), others=pytest.mark.long))
def test_a_half_that_was_committed_between_two_slices_is_not_committed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, time: int
) -> None:
    monkeypatch.setattr(storage.batch.slices, "SLICE_BYTES", 3_000)
    root = SinkStore.make_place(tmp_path)
    options = transactions.options_of(root)
    staged = [transactions.stage(options, 0), transactions.stage(options, 1)]
    segments = [*(s for rows in staged for s in rows.segments), *(s for rows in staged for s in rows.commits)]
    topics = {name: count for rows in staged for name, count in rows.topics.items()}
    given_up = 0
    with open_store(root, read_only=False, create=True) as opened:

        @contextmanager
        def turn() -> Iterator[None]:
            nonlocal given_up
            yield
            given_up += 1
            if given_up == time:
                if time <= HALF_SLICES:
                    opened.writer.make_readable()  # as any put does
                commit_a_half(opened, number)

        commit_batch(opened.writer, StagedBatch(BATCH, segments, topics), turn=turn)
    transactions.check(root)
