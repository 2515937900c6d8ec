"""Cutting a store's log at a place where it stops agreeing with its master's, queues and index with it. Java: truncateFiles.

    order: abort · checkpoint lowered to the last record that stays · log cut, zeroed · opened, which recovers · closed · epochs cut

A crash at any step leaves a store with `abort` that ends at the place, or behind it as before: the next comparison cuts it again.
Departure: Java moves positions only; what it has cut comes back after a crash (apache/rocketmq#10666).
"""

from __future__ import annotations

from collections.abc import Sequence

from storage.errors import OffsetOutOfRangeError, StoreRefusedError
from storage.files.file_system import end_of_data
from storage.files.local_file_system import LocalFileSystem
from storage.format.replication import EpochEntry
from storage.ha.epochs import EpochFile
from storage.log.checkpoint import read_checkpoint, write_checkpoint
from storage.log.commit_log import CommitLog
from storage.message_store import WritesAs, open_store
from storage.recovery.opening import boot_left, mark_open
from storage.recovery.passes import cut_log
from storage.settings.load import StoreConfig


def truncate_store(
    root: str,
    end: int,
    *,
    config: StoreConfig | str | None = None,
    confirm_offset: int = 0,
    writes_as: WritesAs = "follower",
    holds_back: bool = False,
    file_system: LocalFileSystem | None = None,
) -> Sequence[EpochEntry]:
    """Cut the log of a store that nobody has open at `end`, where a record or a file begins; returns the epochs that stay.

    `holds_back` as of `open_store`.
    Raises StoreRefusedError where no record begins there, or where all replicas have what would be cut (`confirm_offset`);
    OffsetOutOfRangeError outside of the log; StoreLockedError; with nothing changed. OSError.
    """
    files = file_system or LocalFileSystem()
    with open_store(root, config=config, file_system=files) as store:
        log_end, directories = store.log_end, store.log.directories
        minimum, size = store.log.minimum, store.log.file_size_bytes
    if not minimum <= end <= log_end:
        raise OffsetOutOfRangeError("commit log", None, minimum, log_end, end)
    if end < confirm_offset:
        reason = f"its log is to be cut at {end}, and all replicas have it up to {confirm_offset}"
        raise StoreRefusedError(root, reason, hint="look which of the logs is the right one; nothing was changed")
    with files.locked(f"{root}/lock", holder="follower"):
        log = CommitLog(files, directories, size)
        last_ms = _last_store_time_ms(log, root, end)
        mark_open(files, root, boot_left(files, root))
        checkpoint = read_checkpoint(files, root)
        lowered = min(checkpoint.physic_msg_timestamp, last_ms)
        write_checkpoint(files, root, checkpoint._replace(physic_msg_timestamp=lowered))
        cut_log(files, log, end, "its master's log differs from there on")
        log.close()
    open_store(
        root,
        config=config,
        read_only=False,
        holder="follower",
        writes_as=writes_as,
        holds_back=holds_back,
        file_system=files,
    ).close()
    epochs = EpochFile(files, root)
    epochs.cut(end)
    return epochs.entries


def _last_store_time_ms(log: CommitLog, root: str, end: int) -> int:
    """Of the last record before the place, 0 without one. Raises StoreRefusedError where no record ends there, and no file begins."""
    last_ms = 0
    for file in reversed(log.files[: log.file_index(max(0, end - 1)) + 1]):
        walk = log.walk(file.start, check_crc=False, limit=min(end, file.end))
        for _, records in walk:
            last_ms = int(records.column("store_time_ms")[-1])
        if file.start < end < file.end and walk.end != end and end_of_data(log.open_file(file), 0):
            raise StoreRefusedError(root, f"its log is to be cut at {end}, where no record begins")
        if last_ms:
            break
    return last_ms
