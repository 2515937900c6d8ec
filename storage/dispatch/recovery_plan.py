"""Values that the passes of a recovery pass to each other and to the caller (`storage/recovery/passes.py`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from storage.errors import CorruptRecordError, StoreDamagedError
from storage.log.commit_log import RecordIdentity
from storage.log.damage import LogGap
from storage.queues.writer import Misnumbered

_WARNINGS = 5


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """What the four reading passes found. Queue ends are queue offsets, other ends are log offsets."""

    was_clean: bool
    walk_start: int
    log_end: int
    greatest_end: int  # where the last record that a queue knows ends, at most the log's end
    last_record: RecordIdentity | None  # the last valid one of the walk
    failure: CorruptRecordError | None  # why the walk stopped; None at free space
    damage: StoreDamagedError | None
    written_ends: dict[tuple[str, int], int] = field(default_factory=dict)
    visible_ends: dict[tuple[str, int], int] = field(default_factory=dict)
    last_places: dict[tuple[str, int], int] = field(default_factory=dict)
    """End position of the last visible message of each known queue; −1 if the queue is empty."""
    maybe_torn: frozenset[tuple[str, int]] = frozenset()
    """After an unclean stop: queues whose last entry may have place and size, but not its tags code."""
    zero_until: dict[tuple[str, int], int] = field(default_factory=dict)
    """Queue offset up to which only zeros follow a written end."""
    gaps: tuple[LogGap, ...] = ()
    """Files that are missing between others of the log."""
    held_from: int | None = None
    """The log is not dispatched after this record's end, as it was not confirmed; None = all of it is dispatched."""

    @property
    def dispatch_end(self) -> int:
        """The log offset up to which queues and index must know the log."""
        return self.log_end if self.held_from is None else self.held_from

    @property
    def last_store_time_ms(self) -> int:
        """Store time of the last valid record; 0 if there is none."""
        return self.last_record.store_time_ms if self.last_record else 0


class LoweredOffset(NamedTuple):
    """A table's number that was ahead of the log (`storage/recovery/offsets_ahead.py`)."""

    file: str
    """Its name under config/."""
    name: str
    """What the number belongs to: a group with topic and queue, a level, the timer."""
    before: int
    after: int

    def __str__(self) -> str:
        return f"{self.name} from {self.before} to {self.after}"


@dataclass(slots=True)
class RecoveryReport:
    """What opening for writing did. Sizes in bytes."""

    was_clean: bool
    log_end: int
    cut_bytes: int = 0
    cut_at: str | None = None
    cut_entries: int = 0
    added_entries: int = 0
    rebuilt_queues: list[tuple[str, int]] = field(default_factory=list)
    holes: list[tuple[str, int, int, int]] = field(default_factory=list)
    """Queue offsets without a message inside a queue: topic, queue id, first, end. Only those that this opening made."""
    misnumbered: list[Misnumbered] = field(default_factory=list)
    """Records whose entries have another queue offset than the records name."""
    removed_files: list[str] = field(default_factory=list)
    indexed_keys: int = 0
    quarantine: str | None = None
    """The directory with the copy of what was cut; None if nothing of it can have been a message."""
    quarantined_records: int = 0
    """Intact records in it."""
    queue_ends: dict[tuple[str, int], int] = field(default_factory=dict)
    """The queues' ends."""
    dispatched_end: int = 0
    """The log offset where the last record ends that a queue knows."""
    lowered: tuple[LoweredOffset, ...] = ()
    """Offsets that went back because the records that delivered their messages are cut."""
    torn_records: int = 0
    """Records with NULs in the topic, as a power loss leaves them: no checksum covers it. They are in no queue."""

    def warnings(self, root: str) -> list[str]:
        """Texts about findings that no crash explains, and that an operator should examine."""
        texts = [
            f"store {root}: {topic} queue {queue_id} has no messages at offsets {start} to {end - 1}, between others"
            for topic, queue_id, start, end in self.holes[:_WARNINGS]
        ]
        texts += [
            f"store {root}: {found}; it is served at {found.queue_offset}" for found in self.misnumbered[:_WARNINGS]
        ]
        if (more := len(self.holes) + len(self.misnumbered) - len(texts)) > 0:
            texts.append(f"store {root}: {more} more of the kind; `spark-mq verify` lists the queues")
        return texts
