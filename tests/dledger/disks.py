"""A member's real files in the simulator, on a disk that loses power; beside them the model that the invariants look at."""

from __future__ import annotations

from pathlib import Path
from random import Random

from spark_mq.dledger.files import MemberFiles
from spark_mq.dledger.messages import LedgerEntry
from spark_mq.dledger.state import Append, Order, Restored, SaveVote
from tests.dledger.invariants import require
from tests.dledger.world import FILE_BYTES, Disk, Pages
from tests.support.crash_file_system import CrashFileSystem


class RealDisk(Disk):
    """`MemberFiles` in a directory. What it finds after a crash must be what the model allows."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        self._place = f"{directory}/dledger-{directory.name}"
        self._system = CrashFileSystem(str(directory))
        self._open: MemberFiles | None = None
        self._least_end: int | None = None
        """After a power loss."""
        super().__init__()

    def save_committed(self, index: int) -> None:
        """The checkpoint is written more seldom than the log is synced."""
        assert self._open is not None
        if index % 3 == 0:
            self._open.save_checkpoint(index)
            self.committed = index

    def entry(self, index: int) -> LedgerEntry:
        assert self._open is not None
        found = self._open.entry(index)
        require(found == super().entry(index), 11, f"entry {index} is read as {found}")
        return found

    def write(self, order: Order) -> None:
        assert self._open is not None
        super().write(order)
        self._open.write(order)
        if isinstance(order, SaveVote):
            self.durable.vote = self.files.vote
        elif not isinstance(order, Append):
            self._all_is_durable()

    def sync(self, number: int) -> None:
        """It syncs all, and says it of those orders."""
        assert self._open is not None
        self._open.sync()
        self._all_is_durable()
        self.unsynced = [each for each in self.unsynced if each.number > number]

    def _all_is_durable(self) -> None:
        self.durable = Pages(self.files.vote, self.files.begin, list(self.files.entries))

    def trim(self, begin: int) -> int:
        assert self._open is not None
        return super().trim(self._open.trim(begin))

    def stop(self) -> None:
        assert self._open is not None
        self._open.close()
        self._open = None

    def lose_power(self, random: Random) -> None:
        left = self._system.disk.after_power_loss(random)
        self._system = CrashFileSystem(self._system.root, left, self._system.boot + 1)
        self._least_end = self.durable.end

    def restored(self) -> Restored:
        self._open = MemberFiles(
            self._place, file_size_bytes=FILE_BYTES, index_file_size_bytes=320, file_system=self._system, most_sums=16
        )
        found, model = self._open.restored(), self.files
        entries = [self._open.entry(index) for index in range(found.begin_index, found.end_index + 1)]
        least_end = model.end if self._least_end is None else self._least_end
        require(found.vote == model.vote, 3, f"{found.vote}, and {model.vote} was saved")
        ends = f"{found.begin_index} to {found.end_index}, and {model.begin} to {least_end} or {model.end} was durable"
        require(found.begin_index <= model.begin and least_end <= found.end_index <= model.end, 3, ends)
        for entry in entries:
            require(model.has(entry), 3, f"{entry} was never written")
        require(
            found.committed_index == min(self.committed, found.end_index), 5, f"{found.committed_index} is committed"
        )
        self.files = Pages(found.vote, found.begin_index, entries)
        self._all_is_durable()
        self._least_end, self.committed = None, found.committed_index
        self.unsynced.clear()
        return found
