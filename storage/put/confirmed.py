"""Up to where readers may see a log of which others must have a copy first. Java: CommitLog.getConfirmOffset.

    master   the least place that a replica of the SyncStateSet has acknowledged; the log's end where there is no other replica in it
    slave    what its master says, as far as it has the log itself

What is not confirmed stands in the log, and in no queue and no index: a fail-over may take it back. The place never goes back.
"""

from __future__ import annotations

EVERYTHING = float("inf")
NOTHING_NEW = -1
"""Somebody who must have a copy is not connected."""


class Confirmed:
    """The place of one open store, moved on by whoever dispatches. `reached` may be set by any thread."""

    def __init__(self, end: int) -> None:
        self.end = end
        """Up to there it was confirmed when somebody looked last."""
        self.reached: float = NOTHING_NEW
        """Up to where all who must have the log have it; `EVERYTHING` where nobody must."""

    def within(self, end: int) -> int:
        """Up to where a log is confirmed that ends there."""
        return int(min(end, max(self.end, self.reached)))

    def move(self, end: int) -> int:
        """The same, kept. `end` was looked up before the call: who is added to those that must have the log misses nothing of it."""
        self.end = max(self.end, self.within(end))
        return min(self.end, end)
