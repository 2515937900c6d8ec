"""Where a store's log lies, and whether it may be written: a decision over values, without the disk.

A store's log lies in ROOT/commitlog. A configuration may name another place (storePathCommitLog, readOnlyCommitLogStorePaths), which
may be another store's: people copy, restore and pass on broker.conf. So its paths count for less than its other settings:

    ROOT/commitlog has files             it is the log; another configured place is ignored, with a warning
    ROOT has no log of its own           the configured directories are read, with a warning; nothing is written
    … and ROOT is bound to that log      they are read and written (`surroundings.py`)
    a directory lies in another store    it is read, and never written
    ROOT has a DLedger group's log       it is read, behind the plain one if that has files; nothing is written. Its place
                                         (dLegerSelfId, storePathDLedgerCommitLog) is decided by the same rules

What counts is where a directory really lies: links are followed, and two names of one directory are one directory.

Java: DefaultMessageStore takes every path as it is written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple


class LogDirectory(NamedTuple):
    """One directory that may hold the log, as found on the disk. The defaults describe a plain directory of ROOT."""

    path: str
    """As it is named."""
    real_path: str
    """The path with links resolved."""
    number: tuple[int, int] | None = None
    """Device and inode; None if the directory does not exist, or the file system has no inodes."""
    is_there: bool = True
    has_files: bool = False
    """Whether it holds a file of a log that is not empty."""
    is_inside: bool = True
    """Whether it really lies in ROOT."""
    owner: str | None = None
    """The directory of another store that it really lies in."""
    linked_file: str | None = None
    """Its last file, where that has a second name (a hard link) somewhere."""

    def is_same(self, other: LogDirectory) -> bool:
        """Whether both are names of one directory."""
        if self.number is not None and other.number is not None:
            return self.number == other.number
        return self.real_path == other.real_path


class Binding(NamedTuple):
    """The content of ROOT/spark_mq's note about a log outside of ROOT: real path and inode of ROOT, and of each log directory."""

    root: tuple[str, int]
    directories: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What was found at a store's path and at the places that its configuration names."""

    root: str
    real_root: tuple[str, int]
    """Real path and inode; inode 0 if ROOT does not exist, or the file system has no inodes."""
    own: LogDirectory
    """ROOT/commitlog."""
    configured: tuple[LogDirectory, ...] = ()
    source: str = "the configuration"
    """The setting, and its file, that name the places."""
    is_store: bool = True
    """Whether ROOT holds anything that a broker makes, besides the log."""
    has_history: bool = False
    """Whether ROOT's queues or checkpoint refer to messages."""
    binding: Binding | None = None
    strays: tuple[tuple[str, str], ...] = ()
    """Other parts of ROOT that are links into another store: their names, and the directory of that store."""


class Refusal(NamedTuple):
    """Why a store's log must not be written; `log` is the directory concerned."""

    log: str
    reason: str
    hint: str


@dataclass(frozen=True, slots=True)
class LogPlace:
    """The decision."""

    directories: tuple[str, ...]
    note: str | None = None
    """A warning for readers."""
    refusal: Refusal | None = None
    """None = it may be written."""
    outside: tuple[LogDirectory, ...] = ()
    """The directories that do not lie in ROOT."""
    missing: tuple[str, ...] = ()
    """Parts of a store that ROOT lacks; () = there is a store."""
    entry_directories: tuple[str, ...] = ()
    """Those of `directories` that hold a DLedger group's files. Such a log is written by the group's member alone."""


def with_group_log(
    place: LogPlace, group: LogPlace, has_files: Callable[[str], bool], *, is_member: bool = False
) -> LogPlace:
    """The decision for a store whose broker is in a DLedger group; `group` is that about the group's log alone.

    The group's log continues the plain one that the broker had before, if that still has files.
    Its member may write beside it (`is_member`), where no plain log is before it, and it lies in ROOT.
    Java: DLedgerCommitLog, dividedCommitlogOffset.
    """
    plain = tuple(directory for directory in place.directories if has_files(directory))
    refusal: Refusal | None = Refusal(
        group.directories[0],
        f"{group.directories[0]} is a DLedger group's log: only the group writes it",
        "run `spark-mq convert STORE NEW_STORE`, which makes a plain store of it",
    )
    if is_member:
        refusal = group.refusal or place.refusal
        if plain:
            refusal = Refusal(
                plain[0],
                f"{plain[0]} holds the log that its broker had before it joined the group, and a broker of spark_mq goes on from none",
                "let Apache's broker have this store, or begin with an empty one",
            )
    notes = [note for note in (place.note if plain else None, group.note) if note is not None]
    return LogPlace(
        (*plain, *group.directories),
        "; ".join(notes) or None,
        refusal,
        place.outside,
        entry_directories=group.directories,
    )


def decide(seen: Surroundings) -> LogPlace:
    """Which directories hold the store's log, a warning about them, and whether the log may be written."""
    chosen, note = _choose(seen)
    outside = tuple(directory for directory in chosen if not directory.is_inside)
    is_bound = bool(outside) and _why_not_bound(seen, outside) is None
    if outside and not is_bound and chosen != (seen.own,):
        note = f"the messages of {seen.root} are read from {_names(outside)}, which {seen.source} names"
    return LogPlace(
        tuple(directory.path for directory in chosen),
        note,
        _refusal(seen, chosen, outside, is_bound=is_bound),
        outside,
        _missing(seen, chosen),
    )


def _missing(seen: Surroundings, chosen: tuple[LogDirectory, ...]) -> tuple[str, ...]:
    if not any(directory.is_there for directory in chosen):
        return tuple(f"{directory.path}/" for directory in chosen)
    if seen.is_store or seen.own.is_there:
        return ()
    return (f"{seen.own.path}/",)  # a log elsewhere does not make an empty directory a store


def _choose(seen: Surroundings) -> tuple[tuple[LogDirectory, ...], str | None]:
    """The directories, and a warning if configured ones are ignored."""
    own, configured = seen.own, seen.configured
    if not configured or all(directory.is_same(own) for directory in configured):
        return (own,), None
    if any(directory.is_same(own) for directory in configured):
        return configured, None
    has_log_elsewhere = any(directory.has_files for directory in configured)
    if all(directory.is_inside for directory in configured) and (has_log_elsewhere or not own.has_files):
        return configured, None
    if own.has_files or (own.is_there and not (seen.has_history and has_log_elsewhere)):
        ignored = tuple(directory for directory in configured if not directory.is_inside) or configured
        return (own,), (
            f"the messages of {seen.root} are those of {own.path}; {_names(ignored)}, which {seen.source} names, is ignored"
        )
    return configured, None


def _refusal(
    seen: Surroundings, chosen: tuple[LogDirectory, ...], outside: tuple[LogDirectory, ...], *, is_bound: bool
) -> Refusal | None:
    for directory in chosen:  # even one inside may be a mount of another store's
        if directory.owner is not None:
            return _refusal_of_anothers(seen, directory, directory.owner)
    if outside and not is_bound:
        return _refusal_of_outside(seen, outside)
    for name, owner in seen.strays:
        path = f"{seen.root}/{name}"
        return Refusal(path, f"{path} is a link into another store, {owner}", "replace the link by a copy")
    for linked in (directory.linked_file for directory in chosen if directory.linked_file is not None):
        return Refusal(
            linked,
            f"{linked} has a second name (a hard link), so that what is written here changes another copy too",
            "give this copy a file of its own: copy the file, and rename the copy over it",
        )
    return None if outside else _refusal_of_a_lost_log(seen)


def _refusal_of_anothers(seen: Surroundings, directory: LogDirectory, owner: str) -> Refusal:
    if directory.path == seen.own.path:
        is_link = directory.real_path != directory.path
        if not is_link and not directory.is_there:
            reason = f"{seen.root} would lie in another store, {owner}"
            return Refusal(directory.path, reason, f"give {owner}, or a directory outside of it")
        way = f"is a link to {directory.real_path}" if is_link else "shows a directory"
        cure = f"replace {'the link' if is_link else 'the mount'} by a copy of the log"
        return Refusal(directory.path, f"{directory.path} {way} of another store, {owner}", cure)
    return Refusal(
        directory.path,
        f"{seen.source} names {directory.path}, which belongs to another store, {owner}",
        f"take the path away from the configuration, as {seen.root} keeps its log in {seen.own.path}; "
        "or give the path of the store that is meant",
    )


def _refusal_of_outside(seen: Surroundings, outside: tuple[LogDirectory, ...]) -> Refusal:
    if not seen.is_store and not seen.own.is_there:
        return Refusal(
            outside[0].path,
            f"{seen.source} names {_names(outside)}, but a store that is made keeps its log in its own directory, {seen.own.path}",
            f"take the path away from the configuration, or make {seen.own.path} to have it ignored",
        )
    if outside[0].path == seen.own.path:
        way = f"{seen.own.path} is a link to {outside[0].real_path}"
    else:
        way = f"{seen.source} names {_names(outside)}"
    return Refusal(
        outside[0].path,
        f"{way}, outside of {seen.root}, and {_why_not_bound(seen, outside)}",
        f"if that log is this store's, run `spark-mq bind-log {seen.root}`, which compares the two first",
    )


def _refusal_of_a_lost_log(seen: Surroundings) -> Refusal | None:
    """The refusal if ROOT/commitlog is empty because the log's disk is not mounted: a recovery would cut all queues."""
    missing = tuple(directory for directory in seen.configured if not directory.is_same(seen.own))
    if seen.own.has_files or not seen.has_history or not missing or any(d.has_files for d in seen.configured):
        return None
    return Refusal(
        seen.own.path,
        f"{seen.own.path} is empty, the queues are not, and {_names(missing)}, which {seen.source} names, holds no log",
        "mount or restore the log; if it is lost, take the path away from the configuration",
    )


def _why_not_bound(seen: Surroundings, outside: tuple[LogDirectory, ...]) -> str | None:
    """None if the binding names exactly this store and these directories."""
    binding = seen.binding
    if binding is None:
        return "nothing says that it is this store's"
    if binding.root != seen.real_root:
        return f"its binding was made for the store at {binding.root[0]}; this is a copy of it"
    bound = dict(binding.directories)
    for directory in outside:
        if directory.real_path not in bound:
            return f"its binding is to {', '.join(bound)}"
        if directory.number is not None and directory.number[1] != bound[directory.real_path]:
            return f"another directory stands at {directory.real_path} than the one that it is bound to"
    return None


def _names(directories: tuple[LogDirectory, ...]) -> str:
    return " and ".join(directory.path for directory in directories)
