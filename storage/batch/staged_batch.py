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
    refused: int = 0
    """How many rows are in them."""
    is_write: bool = False
    """Whether it is all of a write that has a name (`writeId`), and no batch of a query."""

    @property
    def row_count(self) -> int:
        return sum(segment.rows for segment in self.segments)

    @property
    def came(self) -> int:
        """How many rows the tasks were given. A repeated batch has as many, though not the same of them may be refused."""
        return self.row_count + self.refused

    @property
    def has_rows(self) -> bool:
        return self.row_count > 0
