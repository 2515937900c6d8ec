"""Binding a store to a log outside of its directory, and proving at each opening for writing that the two still belong together.

    bind:     ROOT's lock · nobody has the log open for writing · queues and checkpoint agree with it · the binding, durably
    opening:  ROOT's lock · the binding names ROOT and the log · nobody has the log open for writing · a few queues agree with it

Nothing outside of ROOT is changed.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from storage.errors import ForeignLogError, StoreNotFoundError, StoreRefusedError
from storage.files.local_file_system import LocalFileSystem
from storage.files.lock_holder import is_open_for_writing
from storage.log.checkpoint import read_checkpoint
from storage.log.commit_log import CommitLog
from storage.place.binding import save_binding
from storage.place.log_place import Binding, LogPlace, decide
from storage.place.own_directory import refuse_links
from storage.place.surroundings import look_around
from storage.queues.store import ConsumeQueueStore
from storage.recovery.log_agreement import find_disagreement, is_another_log
from storage.recovery.opening import read_plan
from storage.settings.load import StoreConfig, refuse_for_writing

_PATIENCE_S = 1.0
"""A killed writer gives up its lock a little before its files."""
_OWN_LOG = "move the log into the store's own directory instead, as commitlog/"


def bind_log(
    root: str, config: StoreConfig, file_system: LocalFileSystem, *, lock_timeout_ms: int = 0
) -> tuple[str, ...] | None:
    """Bind the store at ROOT, or one that is yet to be made there, to the log that its configuration or a link names outside of it.

    Returns the real paths of the log's directories outside of ROOT; None, with nothing done, where there is none. Raises
    ForeignLogError where the log is another store's or does not agree with this one, StoreNotFoundError where it is not there,
    StoreRefusedError, StoreLockedError.
    """
    if reasons := refuse_for_writing(config):
        raise StoreRefusedError(root, "; ".join(reasons))
    seen = look_around(root, config, file_system)
    place = decide(seen)
    if not place.outside:
        return None
    _refuse_what_cannot_be_bound(root, place)
    used = next((outside.path for outside in place.outside if outside.has_files), None)
    if used is not None and not seen.is_store:  # before anything is made
        raise ForeignLogError(root, used, f"{used} holds messages, and {root} has no queues that name them", _OWN_LOG)
    refuse_links(file_system, root)
    file_system.make_directories(root)
    with file_system.locked(f"{root}/lock", lock_timeout_ms):
        seen = look_around(root, config, file_system)
        place = decide(seen)
        _refuse_what_cannot_be_bound(root, place)
        log = CommitLog(file_system, place.directories, config.commit_log.mapped_file_size_commit_log)
        queues = ConsumeQueueStore(
            file_system, root, file_size_bytes=config.consume_queue.mapped_file_size_consume_queue
        )
        try:
            refuse_open_log(root, log)
            plan = read_plan(root, config, file_system, log, queues)
            problem = find_disagreement(log, queues, plan, read_checkpoint(file_system, root))
        finally:
            log.close()
            queues.close()
        if problem is not None:
            raise ForeignLogError(
                root, place.outside[0].path, f"{place.outside[0].path} is not its log: {problem}", _OWN_LOG
            )
        bound = tuple((outside.real_path, outside.number[1]) for outside in place.outside if outside.number is not None)
        save_binding(root, Binding(seen.real_root, bound), file_system)
    return tuple(path for path, _ in bound)


def _refuse_what_cannot_be_bound(root: str, place: LogPlace) -> None:
    for outside in place.outside:
        if outside.owner is not None:
            assert place.refusal is not None
            raise ForeignLogError(root, *place.refusal)
        if not outside.is_there:
            raise StoreNotFoundError(root, f"{outside.path}/")


def prove_binding(root: str, place: LogPlace, log: CommitLog, queues: ConsumeQueueStore) -> None:
    """At each opening for writing of a store whose log lies outside of ROOT. Raises ForeignLogError."""
    if not place.outside:
        return
    refuse_open_log(root, log)
    if is_another_log(log, queues):
        path = place.outside[0].path
        raise ForeignLogError(
            root, path, f"{path} is not its log any more: no queue has an entry for one of its records", _OWN_LOG
        )


def refuse_open_log(
    root: str, log: CommitLog, *, sleep: Callable[[float], None] = time.sleep, patience_s: float = _PATIENCE_S
) -> None:
    """Raises ForeignLogError where another process has the log's last file open for writing; it waits a moment for that to end."""
    if not log.files:
        return
    path, waited_s = log.files[-1].path, 0.0
    while is_open_for_writing(path):
        if waited_s >= patience_s:
            reason = f"another process has {path} open for writing, and it has not the lock of this store"
            raise ForeignLogError(root, path, reason, "stop the broker that writes this log")
        sleep(0.05)
        waited_s += 0.05
