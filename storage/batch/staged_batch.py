"""A batch as tasks have staged it, for one commit."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from storage.batch.ledger import Batch
from storage.batch.staged_segment import StagedSegment


@dataclass(frozen=True, slots=True)
class StagedBatch:
    """What all tasks have staged, and what their rows need."""

    batch: Batch
    segments: Sequence[StagedSegment]
    """Their rows, in their order."""
    topics: Mapping[str, int] = field(default_factory=dict)
    """Those that may be made if they are missing, with their numbers of queues."""
    grown: Mapping[str, int] = field(default_factory=dict)
    """Those that are there and get more queues, with how many."""
    destinations: Collection[tuple[str, int]] = ()
    """The queues of rows that wait elsewhere first."""
    dead_letters: Sequence[tuple[str, str]] = ()
    """Files of refused rows: where each is staged, and its name once the batch is decided."""

    @property
    def row_count(self) -> int:
        return sum(segment.rows for segment in self.segments)

    @property
    def has_rows(self) -> bool:
        return self.row_count > 0
