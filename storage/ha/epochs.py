"""Epochs of a log: where each begins and ends, and up to where two logs agree by their epochs. Java: EpochFileCache.

Entries ascend in epoch and start; an entry ends where the next one begins.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise

from storage.errors import CorruptRecordError, StateFileError
from storage.files.file_system import FileSystem
from storage.files.local_file_system import LocalFileSystem
from storage.format.replication import (
    MOST_EPOCHS,
    EpochEntry,
    FrameEpoch,
    MasterHandshake,
    decode_epochs,
    encode_epochs,
)

NO_END = 2**63 - 1
"""End of the last entry."""
NO_EPOCH = EpochEntry(-1, 0)
_NAME = "epochFileCheckpoint"


def epoch_at(entries: Sequence[EpochEntry], place: int) -> EpochEntry:
    """The epoch in which the byte at a place was, or will be, written; the first one for a place before all; NO_EPOCH without any."""
    found = [entry for entry in entries if entry.start_offset <= place]
    return found[-1] if found else next(iter(entries), NO_EPOCH)


def epoch_end(entries: Sequence[EpochEntry], epoch: int) -> int:
    """Where an epoch ends."""
    return next((entry.start_offset for entry in entries if entry.epoch > epoch), NO_END)


def flaw_of(entries: Sequence[EpochEntry]) -> str | None:
    """What is wrong with a peer's entries; None = nothing."""
    for entry, following in pairwise(entries):
        if following.epoch <= entry.epoch or following.start_offset < entry.start_offset:
            return f"epoch {following.epoch} from {following.start_offset} follows epoch {entry.epoch} from {entry.start_offset}"
    if entries and (entries[0].epoch < 0 or entries[0].start_offset < 0):
        return f"epoch {entries[0].epoch} from {entries[0].start_offset}"
    return None


def consistent_point(
    own: Sequence[EpochEntry], own_end: int, others: Sequence[EpochEntry], other_end: int
) -> int | None:
    """The log offset up to which both logs are the same, by the newest epoch that both have with one start; None if there is none.

    Java: findConsistentPoint.
    """
    starts = {entry.epoch: entry.start_offset for entry in others}
    for entry in reversed(own):
        if starts.get(entry.epoch) == entry.start_offset:
            return min(min(epoch_end(own, entry.epoch), own_end), min(epoch_end(others, entry.epoch), other_end))
    return None


def with_entry(entries: Sequence[EpochEntry], entry: EpochEntry) -> tuple[EpochEntry, ...]:
    """The entries with a new epoch, even if it begins where an empty one does; unchanged if it does not ascend.

    An empty epoch stays: a Java slave that knows only that epoch finds no common place without it.
    Departure: Java refuses one that begins where the last one does, so if two masters are elected at one offset, the second has none.
    """
    if entries and (entry.epoch <= entries[-1].epoch or entry.start_offset < entries[-1].start_offset):
        return tuple(entries)
    return (*entries, entry)


def cut_at(entries: Sequence[EpochEntry], end: int) -> tuple[EpochEntry, ...]:
    """The entries of a log that was cut at a place, including an epoch that begins there and has no byte here.

    Departure: Java drops that one. Then a broker that is elected without data of the first epoch has no common place with the old
    master. Java: truncateSuffixByOffset.
    """
    return tuple(entry for entry in entries if entry.start_offset <= end)


def followed(own: Sequence[EpochEntry], end: int, masters: Sequence[EpochEntry]) -> tuple[EpochEntry, ...]:
    """The entries of a log that was cut where it agrees with a master's: its own as far as it has their bytes, then the master's.

    An own epoch that begins at the cut and that the master does not have is dropped: it would claim the next bytes.
    """
    found = tuple(entry for entry in own if entry.start_offset < end)
    for entry in masters:
        if entry.start_offset <= end:
            found = with_entry(found, entry)
    return found


def load_epochs(file_system: FileSystem, root: str) -> tuple[EpochEntry, ...]:
    """A store's entries, from the file or its .bak, as Java reads them; empty if neither exists.

    Raises CorruptRecordError if one exists and none is complete.
    """
    error: CorruptRecordError | None = None
    for name in (_NAME, f"{_NAME}.bak"):
        content = file_system.read_file(f"{root}/{name}")
        if content is not None:
            try:
                if found := decode_epochs(content):
                    return found
            except CorruptRecordError as spoilt:
                error = error or spoilt
    if error is not None:
        raise error
    return ()


def save_epochs(file_system: LocalFileSystem, root: str, entries: Sequence[EpochEntry]) -> None:
    """Durable on return; a crash leaves the old content or the new one. Raises OSError.

    Departure: Java overwrites the file in place, and writes none without entries. Here both files are deleted then.
    """
    path = f"{root}/{_NAME}"
    if entries:
        before = file_system.read_file(path)
        if before is not None:
            file_system.replace(f"{path}.bak", before)
        file_system.replace(path, encode_epochs(entries))
        return
    for name in (f"{path}.bak", path):
        with suppress(FileNotFoundError):
            file_system.unlink(name)
    file_system.sync(root)


class EpochFile:
    """The epochs of the store at ROOT. Thread-safe; `entries` is a value that is replaced after the file holds the new one."""

    def __init__(self, file_system: LocalFileSystem, root: str) -> None:
        """Raises CorruptRecordError for an incomplete file, OSError."""
        self._files = file_system
        self.root = root
        self._lock = threading.Lock()
        self.entries = load_epochs(file_system, root)

    @property
    def last_epoch(self) -> int:
        """The newest epoch; −1 without any."""
        entries = self.entries  # another thread may replace them meanwhile
        return entries[-1].epoch if entries else -1

    def add(self, entries: Sequence[EpochEntry], end: int) -> None:
        """Add later epochs that begin at or before `end`; only as many are kept as fit into a handshake.

        Durable on return. Raises OSError.
        """
        with self._lock:
            found = self.entries
            for entry in entries:
                if entry.start_offset <= end:
                    found = with_entry(found, entry)
            self._save(found[-MOST_EPOCHS:])

    def follow(self, masters: Sequence[EpochEntry], end: int) -> None:
        """The log is a master's up to its end: drop epochs that the master does not have there. Durable on return. Raises OSError."""
        with self._lock:
            self._save(followed(self.entries, end, masters)[-MOST_EPOCHS:])

    def cut(self, end: int) -> None:
        """The log ends there now: drop later epochs. Durable on return. Raises OSError."""
        with self._lock:
            self._save(cut_at(self.entries, end))

    def _save(self, entries: tuple[EpochEntry, ...]) -> None:
        if entries != self.entries:
            save_epochs(self._files, self.root, entries)
            self.entries = entries


class FollowedEpochs:
    """The epochs that one follower knows: its log's, in `file`, and the last ones received from its master. For one thread.

    They are compared with a master's when the controller changes it, and noted before their first byte.
    Java: AutoSwitchHAClient.doTruncate, EpochFileCache.
    """

    def __init__(self, file: EpochFile) -> None:
        self.file = file
        self._masters: tuple[EpochEntry, ...] = ()
        self.confirm_offset = 0
        """The log offset that all required replicas have, by their masters' reports, and that this log has, too."""
        self.masters_confirm_offset = -1
        """The same as the master last sent it; it may be ahead of this log."""

    def agreed_end(self, said: MasterHandshake, end: int) -> int | str:
        """The log offset up to which this log, which ends at `end`, and the master's are the same; or why that is unknown.

        A log without a known epoch counts as the master's, as in Java, unless it is the longer one.
        """
        self._masters = said.epochs
        masters_end = max(0, said.max_offset)  # −1: it has none
        own = cut_at(self.file.entries, end)
        if own and own[0].start_offset == end:  # the log has none of its bytes
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
        """The log and its epochs are the master's up to `end`: on the disk on return. Raises OSError."""
        self.file.follow(self._masters, end)

    def note(self, said: FrameEpoch, end: int, confirmed: int) -> None:
        """Before a frame's bytes up to `end` are appended: its epoch, and the master's earlier ones, are on the disk on return.

        `confirmed` = the end of the part of the log that was checked against its checksums. Raises OSError.
        """
        self.masters_confirm_offset = said.confirm_offset
        self.confirm_offset = max(self.confirm_offset, min(said.confirm_offset, confirmed))
        if said.epoch > self.file.last_epoch:
            before = tuple(entry for entry in self._masters if entry.epoch < said.epoch)
            self.file.add((*before, EpochEntry(said.epoch, said.start_offset)), end)


# A master under a controller notes that its store is being written, from the start of its epoch to its clean end.
#
# ROOT/spark_mq/master.json: {"epoch": 3, "bootId": "…"}. A broker that finds it after another start of the machine may have lost the
# log's end, which slaves may have. Under SYNC_FLUSH slaves get only synced data. Java moves the start of the epoch instead, and
# slaves begin it anew.


_MASTER_NOTE = "spark_mq/master.json"


def lost_epoch(file_system: LocalFileSystem, root: str) -> int | None:
    """The epoch in which the store's master may have lost the end of its log; None = nothing was lost.

    Raises StateFileError for an unreadable note: it is unknown then.
    """
    content = _master_note(file_system, root)
    if content is None:
        return None
    try:
        document = json.loads(content)
        epoch, boot_id = int(document["epoch"]), str(document["bootId"])
    except (ValueError, KeyError, TypeError):
        rule = f"an epoch and a bootId are expected, found {content!r:.80}; whether the log's end was lost is unknown"
        raise StateFileError(f"{root}/{_MASTER_NOTE}", 0, 0, rule) from None
    return None if boot_id == file_system.boot_id() else epoch


def note_epoch(file_system: LocalFileSystem, root: str, epoch: int) -> None:
    """Note that the master of this epoch starts. Durable on return. Raises OSError."""
    content = json.dumps({"epoch": epoch, "bootId": file_system.boot_id()}).encode()
    if _master_note(file_system, root) != content:
        file_system.make_directories(f"{root}/spark_mq")
        file_system.replace(f"{root}/{_MASTER_NOTE}", content)


def forget_epoch(file_system: LocalFileSystem, root: str) -> None:
    """Delete the note: the store was closed cleanly, so all of its log is on the disk. Raises OSError."""
    with suppress(FileNotFoundError):
        file_system.unlink(f"{root}/{_MASTER_NOTE}")
        file_system.sync(f"{root}/spark_mq")


def _master_note(file_system: FileSystem, root: str) -> bytes | None:
    return file_system.read_file(f"{root}/{_MASTER_NOTE}")
