"""The ledger survives retention: the newest END of each sink is written again before its file goes.

Without it a sink that rested for longer than the store keeps its files would be known only by its consumer offset, which tells
its last batch but not whose it was.
"""

from __future__ import annotations

from collections.abc import Iterable

from storage.batch.ledger import LedgerMessage, outgoing_ledger_message
from storage.batch.sink_progress import ledger_of
from storage.put.store_writer import StoreWriter


def plan_renewals(newest_ends: Iterable[LedgerMessage], minimum: int) -> list[LedgerMessage]:
    """The newest END of each sink, where it stands before `minimum`, the log's first byte that stays; oldest first.

    `newest_ends` are one for each sink and query, newest first, as `BatchLedger.newest_end_messages` gives them.
    """
    of_sinks: dict[str, LedgerMessage] = {}
    for message in newest_ends:
        of_sinks.setdefault(message.batch.sink_id, message)
    expiring = [message for message in of_sinks.values() if message.commitlog_offset < minimum]
    return sorted(expiring, key=lambda message: message.commitlog_offset)


def apply_renewals(writer: StoreWriter, renewals: Iterable[LedgerMessage]) -> None:
    """Append these ENDs once more: same batch, rows and last row; with a mark, also where the old ones had none. The caller syncs."""
    for message in renewals:
        end = outgoing_ledger_message(message, now_ms=writer.clock())
        writer.append([writer.settings.encode(end)])


def newest_ends(writer: StoreWriter) -> list[LedgerMessage]:
    """What `plan_renewals` chooses from; looks at the whole ledger."""
    return list(ledger_of(writer).newest_end_messages())
