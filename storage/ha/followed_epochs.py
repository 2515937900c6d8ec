"""The epochs of a log that follows a controller's masters: compared with a master's, and noted before their first byte.

Java: AutoSwitchHAClient.doTruncate, EpochFileCache.
"""

from __future__ import annotations

from storage.format.epoch import EpochEntry
from storage.format.replication import FrameEpoch, MasterHandshake
from storage.ha.epochs import EpochFile, consistent_point, cut_at


class FollowedEpochs:
    """What one follower knows of epochs: its log's, in `file`, and those of the master that it has heard last. For one thread."""

    def __init__(self, file: EpochFile) -> None:
        self.file = file
        self._masters: tuple[EpochEntry, ...] = ()
        self.confirm_offset = 0
        """Up to where, as masters have said, all replicas that must have the log have it, and this one too."""
        self.masters_confirm_offset = -1
        """The same as the master has said it last, which may be ahead of this log."""

    def agreed_end(self, said: MasterHandshake, end: int) -> int | str:
        """Up to where this log, which ends there, and the master's are the same; or why that is not known.

        A log of which no epoch is known is taken for the master's, as Java does, unless it is the longer one.
        """
        self._masters = said.epochs
        masters_end = max(0, said.max_offset)  # −1: it has none
        own = cut_at(self.file.entries, end)
        if own and own[0].start_offset == end:  # of none of its bytes
            own = ()
        if not own and end > masters_end:
            return (
                f"no epoch of this log is known, and it ends at {end}, the master's at {masters_end}: it is another log"
            )
        if not own:
            return end
        found = consistent_point(own, end, said.epochs, masters_end)
        if found is None:
            names = ", ".join(str(entry.epoch) for entry in own)
            return f"no epoch of this log ({names}) begins at the master where it begins here: it is another log"
        return found

    def begin(self, end: int) -> None:
        """The log is the master's up to its end, as the master's epochs are: on the disk on return. Raises OSError."""
        self.file.follow(self._masters, end)

    def note(self, said: FrameEpoch, end: int, confirmed: int) -> None:
        """What a frame says whose bytes end there: its epoch, and the master's before it, are on the disk on return. Raises OSError.

        `confirmed` = where the log ends that was held against its sums.
        """
        self.masters_confirm_offset = said.confirm_offset
        self.confirm_offset = max(self.confirm_offset, min(said.confirm_offset, confirmed))
        if said.epoch > self.file.last_epoch:
            before = tuple(entry for entry in self._masters if entry.epoch < said.epoch)
            self.file.add((*before, EpochEntry(said.epoch, said.start_offset)), end)
