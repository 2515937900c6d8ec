"""A batch of which the log holds a part, and no intent tells of it: whether the rows that were staged anew go on where it ends.

    SLICE   its rows' sum tells whether they are the same
    BEGIN   of a version before slices, without a sum: the rows behind it are compared with the staged ones

What differs is refused before the commit point: to go on would mix two batches, to begin anew would write rows twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from storage.batch.ledger import SLICE, LedgerMessage
from storage.batch.ledger import TOPIC as LEDGER
from storage.batch.redo import first_missing
from storage.batch.slices import content_of
from storage.errors import HalvesGoneError, SliceMismatchError
from storage.format.record_block import RecordRun
from storage.format.sys_flag import TRANSACTION_COMMIT, TRANSACTION_MASK
from storage.messages.op_messages import OP_TOPIC
from storage.put.half_ends import halves_and_rest
from storage.put.store_writer import StoreWriter


def check_begun(writer: StoreWriter, begun: Sequence[LedgerMessage], runs: Sequence[RecordRun]) -> None:
    """Whether the rows of the runs can go on behind `begun`, the batch's SLICEs and BEGINs, oldest first.

    Raises SliceMismatchError where they are not those that the log holds, HalvesGoneError as `check_halves` does.
    """
    row_count = sum(run.columns.row_count for run in runs)
    for message, end_row in _with_ends(begun):
        is_same = _holds_slice if message.kind == SLICE else _holds_begun
        if not is_same(writer, message, end_row, runs, row_count):
            raise SliceMismatchError(
                writer.root, *message.batch, message.first_row, end_row, message.commitlog_offset, row_count
            )
    check_halves(writer.root, begun, runs)


def check_halves(root: str, begun: Sequence[LedgerMessage], runs: Sequence[RecordRun]) -> None:
    """Whether the log tells where all halves stand that it has held, for their commits name them; else HalvesGoneError."""
    halves, _ = halves_and_rest(runs)
    if halves and begun and begun[0].first_row:
        raise HalvesGoneError(root, *begun[0].batch, begun[0].first_row, begun[0].commitlog_offset)


def _with_ends(begun: Sequence[LedgerMessage]) -> Iterator[tuple[LedgerMessage, int]]:
    """Each with the row behind the last that is asked of it: behind a BEGIN as many stand as the next message says."""
    for message, following in pairwise(begun):
        yield message, message.end_row if message.kind == SLICE else min(message.end_row, following.first_row)
    if begun:
        yield begun[-1], begun[-1].end_row


def _holds_slice(
    writer: StoreWriter, message: LedgerMessage, end_row: int, runs: Sequence[RecordRun], row_count: int
) -> bool:
    if not 0 <= message.first_row <= end_row <= row_count:
        return False
    return content_of(runs, message.first_row, end_row) == (message.size_bytes, message.checksum)


def _holds_begun(
    writer: StoreWriter, message: LedgerMessage, end_row: int, runs: Sequence[RecordRun], row_count: int
) -> bool:
    if message.row_count != row_count:
        return False
    file_size = writer.settings.log_file_size_bytes
    there = first_missing(writer.log, writer.log_end, file_size, [message], runs)
    if there.row_count >= end_row:
        return True
    half_count = sum(run.columns.row_count for run in halves_and_rest(runs)[0])
    if end_row < row_count:  # a SLICE says that they stand there
        return False
    if half_count and there.row_count >= half_count:  # commits are told by the halves that they name
        return True
    return not _is_followed_by_ours(writer, message.commitlog_offset if there.last_place < 0 else there.last_place)


def _is_followed_by_ours(writer: StoreWriter, place: int) -> bool:
    """Whether the record behind the one at `place` may be a row of the batch: born where it was stored, as no client's is."""
    for offsets, _ in writer.log.walk(place, check_crc=False):
        for following in offsets[(offsets > place) & (offsets < writer.log_end)][:1].tolist():
            found = writer.log.message_at(following, writer.log_end)
            is_commit = found.sys_flag & TRANSACTION_MASK == TRANSACTION_COMMIT
            return found.born_host == found.store_host and found.topic not in (LEDGER, OP_TOPIC) and not is_commit
    return False
