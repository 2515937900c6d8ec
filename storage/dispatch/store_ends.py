"""Where an open store ends: the state that its writer moves on, and that a hint hands to the next one."""

from __future__ import annotations

from dataclasses import dataclass, field

from storage.dispatch.hint import LedgerEnds, OpenBatches, Tables
from storage.index.slots import OpenSlots
from storage.log.commit_log import RecordIdentity
from storage.tables.ledger_notes import LedgerNotes

QueueName = tuple[str, int]


@dataclass(slots=True)
class StoreEnds:
    """Where a store ends, as recovery or the hint found it."""

    log_end: int
    last_record: RecordIdentity | None
    queue_ends: dict[QueueName, int]
    """The next offset of each queue's appended messages."""
    unsynced: set[str] = field(default_factory=set)
    checkpointed_ms: int = 0
    ledger: LedgerEnds | None = None
    ledger_notes: LedgerNotes | None = None
    """None = not read yet."""
    open_batches: OpenBatches | None = None
    """None = not looked for yet."""
    open_commits: set[str] = field(default_factory=set)
    """Paths of the intents of commits that run: not to be settled by others, who may put between two slices."""
    finished_intents: set[str] = field(default_factory=set)
    """Paths of intents whose batches were seen to be in the log, with END, mirror and note."""
    index_is_sound: bool = False
    """Whether the slots of the last index file were seen to be whole."""
    indexed_from: int | None = None
    """From this place in the log on the index has every key; None where no index is kept."""
    synced_entries: set[str] = field(default_factory=set)
    """Directories of ROOT whose names are known to be on the disk; "" is ROOT and what a new store has in it."""
    index_slots: OpenSlots | None = None
    """Those of the last index file, where this process has kept them."""
    held_from: int | None = None
    """From this place on the log waits until it is confirmed; None = nothing ever does."""
    readable_ends: dict[QueueName, int] = field(default_factory=dict)
    """Up to where each queue has entries. The writer sets and moves them; others may look meanwhile."""
    compared_tables: Tables | None = None
    """Those that were compared with the queues' ends, and only the latter have grown since; None = not compared."""
    cut_count: int = 0
    """How often a queue was cut to begin anew: its topic was deleted and made again where this store's log comes from."""

    @property
    def last_store_time_ms(self) -> int:
        """Store time of the last record; 0 if there is none."""
        return self.last_record.store_time_ms if self.last_record else 0
