"""What the store says of transactions: committed, rolled back, or still open.

Committed: a commit record names one of its halves. Rolled back: an op message ends one of its halves and there is
no commit record. That holds for the transaction, not for one copy of its half (`half_queue.py` says which are): a producer that
answers for the first half after a check has put it back has answered for both. A broker of 5.3 asks on, and commits again.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from storage.store_reader import StoreReader
from storage.transaction.commit_records import committed
from storage.transaction.half_queue import Copies, Halves, copies_of
from storage.transaction.op_queue import read_ended_since


class Outcomes(NamedTuple):
    """Of n halves."""

    is_committed: np.ndarray
    has_op: np.ndarray
    """An op message names this very half."""
    is_ended: np.ndarray
    """Committed, or an op message names one of the transaction's halves."""
    copies: Copies
    ended_offsets: np.ndarray
    """Queue offsets, ascending, of all halves that op messages have named since the first of these transactions began."""

    @property
    def is_rolled_back(self) -> np.ndarray:
        return self.is_ended & ~self.is_committed

    def without_op(self, row: int, queue_offset: int) -> np.ndarray:
        """The queue offsets of a transaction's halves, from the one at `queue_offset` on, that no op message names."""
        same = self.copies.queue_offsets[self.copies.of(row)]
        return np.setdiff1d(np.append(same[same >= queue_offset], queue_offset), self.ended_offsets)


def outcomes_of(store: StoreReader, halves: Halves) -> Outcomes:
    """The outcomes of these halves, as the store has them now. Costs in proportion to what was written since they began."""
    copies = copies_of(store, halves)
    ended = read_ended_since(store, int(copies.began_at.min(initial=store.log_end)))
    has_op = np.isin(halves.queue_offsets, ended)
    is_ended = has_op | np.isin(halves.first_offsets, ended) | copies.any_of(np.isin(copies.queue_offsets, ended))
    is_committed = committed(store, halves, copies)
    return Outcomes(is_committed, has_op, is_ended | is_committed, copies, ended)
