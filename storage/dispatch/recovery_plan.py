"""What the passes of a recovery pass on to each other and to the caller (`storage/recovery/passes.py`)."""

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
    """What the four reading passes found. Queue ends are queue offsets, the others places in the log."""

    was_clean: bool
    walk_start: int
    log_end: int
    greatest_end: int  # where the last record that any queue knows ends, the log's end at most
    last_record: RecordIdentity | None  # the last valid one walked over
    failure: CorruptRecordError | None  # why the walk stopped; None at free space
    damage: StoreDamagedError | None
    written_ends: dict[tuple[str, int], int] = field(default_factory=dict)
    visible_ends: dict[tuple[str, int], int] = field(default_factory=dict)
    last_places: dict[tuple[str, int], int] = field(default_factory=dict)
    """Where in the log the last message before a visible end ends, −1 of a queue without messages; of queues of which it is known."""
    maybe_torn: frozenset[tuple[str, int]] = frozenset()
    """After an unclean stop: queues of whose last entry place and size may be there, and not the tags code."""
    zero_until: dict[tuple[str, int], int] = field(default_factory=dict)
    """Up to which queue offset nothing but zeros was seen behind a written end."""
    gaps: tuple[LogGap, ...] = ()
    """Files that the log lacks amid others."""
    held_from: int | None = None
    """Behind this record's end the log is not dispatched, as it was not confirmed; None = it is, to its end."""

    @property
    def dispatch_end(self) -> int:
        """Up to where queues and index are to know the log."""
        return self.log_end if self.held_from is None else self.held_from

    @property
    def last_store_time_ms(self) -> int:
        """Store time of the last valid record; 0 if there is none."""
        return self.last_record.store_time_ms if self.last_record else 0


class LoweredOffset(NamedTuple):
    """A number of a table that counted further than the log goes (`storage/recovery/offsets_ahead.py`)."""

    file: str
    """Under config/."""
    name: str
    """Of what: a group with topic and queue, a level, the timer."""
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
    """Queue offsets without a message amid a queue: topic, queue id, first, end. Those that this opening has made."""
    misnumbered: list[Misnumbered] = field(default_factory=list)
    """Records that were entered at another queue offset than the one that they say."""
    removed_files: list[str] = field(default_factory=list)
    indexed_keys: int = 0
    quarantine: str | None = None
    """The directory to which what was cut was copied first; None where nothing of it may have been a message."""
    quarantined_records: int = 0
    """Intact records in it."""
    queue_ends: dict[tuple[str, int], int] = field(default_factory=dict)
    """Where the queues end."""
    dispatched_end: int = 0
    """Where in the log the last record ends that any queue knows."""
    lowered: tuple[LoweredOffset, ...] = ()
    """What records that are cut had delivered: the offsets that went back for it."""
    torn_records: int = 0
    """Records whose topic has NULs, as a power loss leaves them: no checksum covers it. They are in no queue."""

    def warnings(self, root: str) -> list[str]:
        """What was found that is no consequence of a crash, and that a person should look at: a text each."""
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
