"""What is at a store's path and around it: whether it is a store, whether it may be written, where its log lies, and ROOT/spark_mq,
our own directory.

Openings, creations, jobs, commands and the tasks of a sink all call `find_log` to find the log. This module looks at directories;
`log_place.py` decides. Reads only, except `save_binding`.

Before anything is written, `refuse_writing` decides whether a store may be written (`find_log` and `refuse_foreign_log`
call it). The answers are those of `why_not_written`: by the settings, then by what lies in ROOT, a row of `_KINDS` each.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from storage.errors import ForeignLogError, StorageError, StoreNotFoundError, StoreRefusedError
from storage.files.file_system import DirectoryEntry, FileSystem, Scratch
from storage.files.local_file_system import LocalFileSystem, read_table
from storage.files.remote import absolute_path, name_server
from storage.format.delay import parse_delay_levels
from storage.format.typed_json import BATCH_QUEUES
from storage.log.commit_log import CommitLog, read_checkpoint
from storage.names import MULTI_DISPATCH_PREFIX
from storage.queues.batch_queue import BatchConsumeQueue
from storage.queues.consume_queue import ConsumeQueue
from storage.queues.ext import ConsumeQueueExt
from storage.queues.store import ConsumeQueueStore, RocksDBPlace, has_queue_file, plain_queue
from storage.settings.load import (
    BATCHES_RULE,
    BY_ITS_BROKER,
    DLEDGER_PEER,
    IN_ROCKSDB,
    LITE_QUEUES_RULE,
    OF_A_GROUP,
    StoreConfig,
    configured_group_directories,
    configured_log_directories,
    refuse_for_writing,
)
from storage.tables.document import TABLES_IN_ROCKSDB, TOPICS_FILE, tables_directory
from storage.tables.log_place import Binding, LogDirectory, LogPlace, Surroundings, decide, with_group_log
from storage.tables.masters import followed_master
from storage.tables.moved import moved_directory
from storage.tables.topics import TopicTable


def own_directory(root: str) -> str:
    """This package's own directory in a store. Nothing in it may be a symbolic link (`refuse_links`)."""
    return f"{root}/spark_mq"


def refuse_links(file_system: LocalFileSystem, root: str) -> None:
    """Raises StoreRefusedError if ROOT/spark_mq, or an entry below it, is a symbolic link.

    Files there are written, renamed and deleted by name, and intents say what the next opening appends. A link would redirect these
    writes to other people's files. So each opening for writing and each staging of rows checks for links. A store that is only read is
    not checked. Another disk may be mounted there.
    """
    link = file_system.first_link(own_directory(root))
    if link is not None:
        raise StoreRefusedError(
            root,
            f"{link} is a symbolic link, and nothing in spark_mq may be one",
            "put the file or directory itself in the link's place, or mount the other disk there",
        )


HOME = "store"
"""The store's directory in a broker's home, unless its configuration says otherwise."""
_STORE_DIRECTORIES = {"commitlog", "consumequeue"}


def is_store(path: str, file_system: FileSystem) -> bool:
    return any(entry.is_directory and entry.name in _STORE_DIRECTORIES for entry in file_system.list_directory(path))


def is_file(path: str, file_system: FileSystem) -> bool:
    entry = _entry(path, file_system)
    return entry is not None and not entry.is_directory


def no_store(path: str, missing: str, file_system: FileSystem, *, to_make: bool = False) -> StoreNotFoundError:
    """The error for a path without a store, because `missing` is missing. `to_make`: an empty directory would have become a store.

    It says more if the path is a file, is inside a store, is a broker's home or a name server. A local path is shown absolute.
    """
    shown = absolute_path(path)
    names = {entry.name for entry in file_system.list_directory(path)}
    around = _store_around(shown, file_system)
    hint = None if around is None else f"give the directory that holds it: {around}"
    if file_system.is_local and not names and is_file(path, file_system):
        return StoreNotFoundError(shown, missing, found="it is a file", hint=hint)
    if around is not None and (names or _entry(path, file_system) is not None):
        return StoreNotFoundError(shown, missing, found="it is a part of a store", hint=hint)
    if HOME in names and is_store(f"{path}/{HOME}", file_system):
        home = f"{shown}/{HOME}"
        return StoreNotFoundError(shown, missing, found=f"the store is {home}", hint=f"give {home}")
    if to_make and names and not names & {"commitlog", *_MADE_BY_BROKERS}:
        hint = "give an empty or new directory, or the store itself"
        return StoreNotFoundError(shown, missing, found="the directory is not empty and holds no store", hint=hint)
    return StoreNotFoundError(shown, missing, found=None if names else name_server(path), hint=hint)


def _store_around(path: str, file_system: FileSystem) -> str | None:
    """The nearest parent directory that is a store. An unreadable one is skipped."""
    scheme, separator, place = path.rpartition("://")
    if ".." in place.split("/"):  # only the system knows what lies above it
        return None
    while (parent := posixpath.dirname(place)) not in ("", place):
        place = parent
        with suppress(OSError, StorageError):
            if is_store(f"{scheme}{separator}{place}", file_system):
                return f"{scheme}{separator}{place}"
    return None


def _entry(path: str, file_system: FileSystem) -> DirectoryEntry | None:
    parent, _, name = path.rpartition("/")
    directory = parent or ("/" if path.startswith("/") else ".")
    return next((entry for entry in file_system.list_directory(directory) if entry.name == name), None)


_MADE_BY_BROKERS = {"abort", "checkpoint", "config", "consumequeue", "index"}
_PARTS = (
    "abort",
    "checkpoint",
    "config",
    "consumequeue",
    "consumequeue_ext",
    "index",
    "lock",
    "timerlog",
    "timerwheel",
)
MOUNTS = "/proc/self/mountinfo"
_ESCAPE = re.compile(r"\\([0-7]{3})")


def log_place(root: str, config: StoreConfig, file_system: FileSystem, *, is_member: bool = False) -> LogPlace:
    """Where the log of the store at ROOT lies, and whether it may be written; `is_member` as of `Writer`. Reads only.

    Raises StoreNotFoundError or StoreRefusedError where a DLedger group's log is missing, or may be one of several.
    """
    seen = look_around(root, config, file_system)
    group, place = _look_for_group(seen, config, file_system), decide(seen)
    if group is None:
        return place
    return with_group_log(
        place, decide(group), lambda path: bool(_log_files(file_system.list_directory(path))), is_member=is_member
    )


def _look_for_group(seen: Surroundings, config: StoreConfig, file_system: FileSystem) -> Surroundings | None:
    """What there is of the log of a DLedger group; None if the store's broker is in none.

    The settings need not say that it is: a peer's directory in ROOT does. Java: DLedgerConfig.getDataStorePath.
    """
    root, own_id = seen.root, config.mode.d_leger_self_id
    names = [entry.name for entry in file_system.list_directory(root) if entry.is_directory]
    peers = sorted(name for name in names if name.startswith(DLEDGER_PEER))
    if not peers and not (config.mode.enable_dleger_commit_log and (seen.is_store or seen.own.is_there)):
        return None
    look = _look_at(root, file_system)
    peer = peers[0] if own_id is None and peers else f"{DLEDGER_PEER}{own_id or 'n0'}"
    own = look.directory(f"{root.rstrip('/')}/{peer}/data")
    configured = _configured(configured_group_directories(config), look, own)
    if own_id is None and len(peers) > 1 and not any(each.is_inside and each.has_files for each in configured):
        rule = f"{', '.join(peers)}: the logs of several peers, and dLegerSelfId does not say which is this broker's"
        hint = "give this broker's broker.conf, or move the other peers' directories away"
        raise StoreRefusedError(root, rule, hint=hint)
    if not any(each.is_there for each in (own, *configured)):
        others = f" ({', '.join(peers)} {'is' if len(peers) == 1 else 'are'} there)" if peers else ""
        missing = " or ".join(f"{each.path}/" for each in (own, *configured))
        raise StoreNotFoundError(root, f"the log of its DLedger group, {missing},{others}", hint=_LOST_GROUP_LOG)
    source = f"storePathDLedgerCommitLog in {config.file or 'the configuration'}"
    return Surroundings(root, look.root, own, configured, source, has_history=True)


_LOST_GROUP_LOG = (
    "bring the directory back, or give the broker.conf of this store's broker: dLegerSelfId and storePathDLedgerCommitLog name it; "
    "without enableDLegerCommitLog a plain log is read alone"
)


class Writer(NamedTuple):
    """For whom a store may be written, which its settings and its master do not let every process do."""

    follows: bool = False
    """It copies its master's log: nothing else writes a store that follows a master."""
    asks_replicas: bool = False
    """It waits for as many copies as the settings want."""
    is_controlled: bool = False
    """A controller has decided that it may write, or not yet."""
    is_member: bool = False
    """It is the member of a DLedger group whose log it is."""


AN_OWNER = Writer()
OF_A_SINK = Writer(asks_replicas=True, is_controlled=True)
"""For tasks that stage rows. The process that opens the store for them, which may be its broker, checks again."""


def find_log(
    root: str,
    config: StoreConfig,
    file_system: FileSystem,
    *,
    may_be_empty: bool = False,
    writer: Writer | None = None,
) -> LogPlace:
    """The log of the store at ROOT or, with `may_be_empty`, of the one that could be made there. Changes nothing.

    Raises StoreNotFoundError if there is neither; with a `writer` StoreRefusedError if it may not write the store, and ForeignLogError
    if the log may be another store's.
    """
    if writer is not None:
        refuse_writing(root, config, file_system, writer)
    place = log_place(root, config, file_system, is_member=writer is not None and writer.is_member)
    if place.missing:
        is_empty = is_empty_place(root, file_system)
        if not (may_be_empty and is_empty):
            error = no_store(root, " or ".join(place.missing), file_system, to_make=may_be_empty)
            if writer is not None and is_empty and not may_be_empty:
                error.hint = f"{error.hint}; in Python, open_store with create=True makes a new one"
            raise error
    if writer is not None and place.refusal is not None:
        raise ForeignLogError(root, *place.refusal)
    return place


def has_own_log(root: str, file_system: FileSystem) -> bool:
    """Whether ROOT/commitlog has files: then ROOT is a store regardless of its configuration. One system call; `find_log` has many."""
    return bool(_log_files(file_system.list_directory(f"{root}/commitlog")))


def is_empty_place(root: str, file_system: FileSystem) -> bool:
    """Whether a store may be made at ROOT: it is empty or missing, or holds only what this package puts there before.

    Not at `host:port`: a user who writes that does not mean a directory.
    """
    names = {entry.name for entry in file_system.list_directory(root)}
    if not names and (is_file(root, file_system) or name_server(root)):
        return False
    return names <= {"spark_mq", "lock", "commitlog", "consumequeue", "index", "config", "broker.conf"}


class NotWritten(NamedTuple):
    """Why a store is not written here, and what to do instead."""

    reason: str
    cure: str | None = None


class _Kind(NamedTuple):
    """A kind of store that only another program writes."""

    find: Callable[[str, StoreConfig, FileSystem], Iterable[str]]
    """What in ROOT shows that it is one; nothing if it is none."""
    rule: str
    cure: str | None = None


def why_not_written(
    root: str, config: StoreConfig, file_system: FileSystem, writer: Writer = AN_OWNER
) -> list[NotWritten]:
    """Why the store at ROOT, or one that would be made there, must not be written; empty if it may.

    A kind of store is looked for only if the settings say nothing against writing: they name the same kinds. To a group's log its
    member may append.
    """
    reasons = refuse_for_writing(config, **writer._asdict())
    if not writer.follows and (master := followed_master(file_system, root)) is not None:
        reasons.append(f"it follows {master}: only its follower writes (spark-mq promote makes it a store of its own)")
    if reasons:
        return [NotWritten(reason, BY_ITS_BROKER if IN_ROCKSDB in reason else None) for reason in reasons]
    return [
        NotWritten(f"{found}: {kind.rule}", kind.cure)
        for kind in _KINDS
        if not (writer.is_member and kind is _GROUP_LOG)
        for found in kind.find(root, config, file_system)
    ]


def refuse_writing(root: str, config: StoreConfig, file_system: FileSystem, writer: Writer = AN_OWNER) -> None:
    """Raises StoreRefusedError if the store at ROOT must not be written, before anything is. StateFileError for an unreadable table."""
    if found := why_not_written(root, config, file_system, writer):
        raise StoreRefusedError(root, "; ".join(one.reason for one in found), found[0].cure)
    table = read_table(f"{root}/config/{TOPICS_FILE}", _with_batches, file_system.read_file)
    if table is not None:
        table.refuse_batches(root)


def refuse_foreign_log(root: str, config: StoreConfig, file_system: FileSystem, writer: Writer = AN_OWNER) -> LogPlace:
    """`log_place` for a caller that will write in ROOT. Raises ForeignLogError, StoreRefusedError, StateFileError."""
    refuse_writing(root, config, file_system, writer)
    place = log_place(root, config, file_system)
    if place.refusal is not None:
        raise ForeignLogError(root, *place.refusal)
    return place


def _group_logs(root: str, config: StoreConfig, file_system: FileSystem) -> list[str]:
    entries = file_system.list_directory(root)
    return [f"{entry.name}/" for entry in entries if entry.is_directory and entry.name.startswith(DLEDGER_PEER)]


def _queues_in_rocksdb(root: str, config: StoreConfig, file_system: FileSystem) -> list[str]:
    directory = rocksdb_queues(root, config, file_system)
    return [] if directory is None else [directory]


def _tables_in_rocksdb(root: str, config: StoreConfig, file_system: FileSystem) -> list[str]:
    directory = tables_directory(file_system, root, config)
    return [] if directory is None else [directory]


def _batch_queues(root: str, config: StoreConfig, file_system: FileSystem) -> list[str]:
    """A directory of batch queues. `TopicTable.refuse_batches` has the stores whose topics have none yet.

    A writer that enters no batch would lose it, as the store's own broker enters none that another process has passed over; and one
    that cuts the log would leave units that point behind its end.
    """
    directory = f"{root}/batchconsumequeue"
    names = [entry.name for entry in file_system.list_directory(directory) if entry.is_directory]
    return [f"{directory}/{name}" for name in names[:1]]


def _lite_queues(root: str, config: StoreConfig, file_system: FileSystem) -> list[str]:
    """A directory of such a topic. A recovery would take the entries there for stale ones, and a rebuilding makes none."""
    directory = f"{root}/consumequeue"
    names = (entry.name for entry in file_system.list_directory(directory))
    return [f"{directory}/{name}" for name in names if name.startswith(MULTI_DISPATCH_PREFIX)][:1]


def _with_batches(text: str, file: str | None) -> TopicTable | None:
    """A table without the word is not parsed."""
    return TopicTable.load(text, file) if BATCH_QUEUES in text else None


_GROUP_LOG = _Kind(_group_logs, f"its log is DLedger's. {OF_A_GROUP}")
_KINDS = (
    _GROUP_LOG,
    _Kind(_queues_in_rocksdb, IN_ROCKSDB, BY_ITS_BROKER),
    _Kind(_tables_in_rocksdb, TABLES_IN_ROCKSDB, BY_ITS_BROKER),
    _Kind(_batch_queues, f"it has {BATCHES_RULE}", BY_ITS_BROKER),
    _Kind(_lite_queues, f"it has {LITE_QUEUES_RULE}", BY_ITS_BROKER),
)


def rocksdb_queues(root: str, config: StoreConfig, file_system: FileSystem) -> str | None:
    """The RocksDB directory with the consume queues of the store at ROOT; None where they lie in files.

    A configuration says which of both consumers are served (`serves_rocksdb`). Without one RocksDB is taken: a broker may have changed
    from files to it, and what it lacks comes from the log.
    """
    directories = (f"{root}/consumequeue_rocksdb", f"{root}/consumequeue")
    found = next((path for path in directories if _has_rocksdb(file_system, path)), None)
    if config.mode.serves_rocksdb:
        return found or directories[-1]
    if found is not None and config.file is not None and has_queue_file(root, file_system):
        return None
    return found


def _has_rocksdb(file_system: FileSystem, directory: str) -> bool:
    return file_system.read_file(f"{directory}/CURRENT") is not None


def look_around(root: str, config: StoreConfig, file_system: FileSystem) -> Surroundings:
    """What is at ROOT and around it. A remote file system has no links, mounts and inodes: there, names decide."""
    look = _look_at(root, file_system)
    own = look.own_log(f"{root.rstrip('/')}/commitlog")
    configured = _configured(configured_log_directories(config), look, own)
    names = {entry.name for entry in file_system.list_directory(root)}
    needs_history = bool(configured) and not own.has_files
    return Surroundings(
        root,
        look.root,
        own,
        configured,
        _source(config),
        is_store=bool(names & _MADE_BY_BROKERS),
        has_history=needs_history and _has_history(root, file_system),
        binding=load_binding(root, file_system),
        strays=look.strays(names),
    )


def _look_at(root: str, file_system: FileSystem) -> _Look | _LocalLook:
    return _LocalLook(root, file_system) if isinstance(file_system, LocalFileSystem) else _Look(root, file_system)


def _configured(paths: tuple[str, ...], look: _Look | _LocalLook, own: LogDirectory) -> tuple[LogDirectory, ...]:
    """The directories at the configured paths, relative to this process's directory, as a broker takes them.

    A process in another directory finds nothing at a relative path: that is no other log if ROOT has its own.
    """
    found = [(path, look.directory(absolute_path(path))) for path in paths]
    return tuple(each for path, each in found if each.is_there or not own.has_files or absolute_path(path) == path)


def _source(config: StoreConfig) -> str:
    return f"storePathCommitLog in {config.file or 'the configuration'}"


def _has_history(root: str, file_system: FileSystem) -> bool:
    return has_queue_file(root, file_system) or read_checkpoint(file_system, root).physic_msg_timestamp > 0


class _Look:
    """Locates paths by their names alone."""

    def __init__(self, root: str, file_system: FileSystem) -> None:
        self.root = (root, 0)
        self._file_system = file_system

    def directory(self, path: str) -> LogDirectory:
        entries = _log_files(self._file_system.list_directory(path))
        parent, _, name = path.rpartition("/")
        beside = self._file_system.list_directory(parent or "/")
        is_there = bool(entries) or any(entry.name == name and entry.is_directory for entry in beside)
        return LogDirectory(
            path, path, is_there=is_there, has_files=bool(entries), is_inside=_is_below(path, self.root[0])
        )

    own_log = directory

    def strays(self, names: set[str]) -> tuple[tuple[str, str], ...]:
        return ()


class _LocalLook:
    """Locates paths on the disk: follows links, and considers other mounts of the same directory."""

    def __init__(self, root: str, file_system: LocalFileSystem) -> None:
        self._file_system = file_system
        real = file_system.real_path(root)
        self._root_number = file_system.directory_number(real)
        self.root = (real, self._root_number[1] if self._root_number is not None else 0)
        self._mounts = _mounts((file_system.read_file(MOUNTS) or b"").decode(errors="replace"))

    def directory(self, path: str) -> LogDirectory:
        """An unreadable directory (another user's, a broken mount) counts as present: opening it gives the system's error."""
        return self._directory(path, self._file_system.real_path(path))

    def own_log(self, path: str) -> LogDirectory:
        """Like `directory`, for a path that is in ROOT by its name."""
        return self._directory(path, self._file_system.real_child(self.root[0], posixpath.basename(path)))

    def _directory(self, path: str, real: str) -> LogDirectory:
        files = self._file_system
        try:
            number = files.directory_number(real)
        except OSError:
            return LogDirectory(path, real, is_inside=self._is_inside(real))
        names = [real]
        if number is not None:
            names += (name for name in other_names(real, self._mounts) if self._number(name) == number)
        entries = _log_files(files.list_directory(real)) if number is not None else []
        last = f"{real}/{entries[-1].name}" if entries else None
        return LogDirectory(
            path,
            real,
            number,
            is_there=number is not None,
            has_files=bool(entries),
            is_inside=any(self._is_inside(name) for name in names),
            owner=next((owner for name in names if (owner := self._owner(name)) is not None), None),
            linked_file=last if last is not None and files.link_count(last) > 1 else None,
        )

    def strays(self, names: set[str]) -> tuple[tuple[str, str], ...]:
        """Parts of ROOT that are links into another store."""
        found = []
        for name in sorted(names.intersection(_PARTS)):
            real = self._file_system.real_child(self.root[0], name)
            if real != f"{self.root[0].rstrip('/')}/{name}" and (owner := self._owner(real)) is not None:
                found.append((name, owner))
        return tuple(found)

    def _number(self, path: str) -> tuple[int, int] | None:
        """Device and inode; None also if this user may not look."""
        try:
            return self._file_system.directory_number(path)
        except OSError:
            return None

    def _is_inside(self, real: str) -> bool:
        if _is_below(real, self.root[0]):
            return True
        return self._root_number is not None and any(
            self._number(parent) == self._root_number for parent in _parents(real)
        )

    def _owner(self, real: str) -> str | None:
        """The nearest directory at or around a path that is another store than ROOT."""
        exists = self._file_system.exists
        for parent in (real, *_parents(real)):
            number = self._number(parent)
            if number is None:  # missing, or not accessible
                continue
            if number == self._root_number:
                return None
            is_member = posixpath.basename(parent).startswith(DLEDGER_PEER)  # it has a checkpoint and a lock of its own
            has_both = not is_member and exists(f"{parent}/checkpoint") and exists(f"{parent}/lock")
            if exists(f"{parent}/consumequeue") or has_both:
                return parent
        return None


@lru_cache(maxsize=1)
def _mounts(text: str) -> list[Mount]:
    return parse_mounts(text)


def _parents(path: str) -> list[str]:
    """The directories around an absolute path, the nearest first, without the root of all."""
    found = []
    while (path := posixpath.dirname(path)) not in ("/", ""):
        found.append(path)
    return found


def _is_below(path: str, directory: str) -> bool:
    """Whether a path is a directory or lies in it; "" is the root, as "/" is."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def _log_files(entries: list[DirectoryEntry]) -> list[DirectoryEntry]:
    return [entry for entry in entries if not entry.is_directory and entry.size_bytes > 0]


def binding_path(root: str) -> str:
    return f"{own_directory(root)}/log_binding.json"


def load_binding(root: str, file_system: FileSystem) -> Binding | None:
    """The binding of the store at ROOT; None if there is none or the file is not a binding: such a store is not bound."""
    content = file_system.read_file(binding_path(root))
    if content is None:
        return None
    try:
        document = json.loads(content)
        named = [document["root"], *document["log"]]
        root_named, *log_named = [(str(entry["path"]), int(entry["inode"])) for entry in named]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return Binding(root_named, tuple(log_named))


def save_binding(root: str, binding: Binding, file_system: LocalFileSystem) -> None:
    """Replace the binding, durably. The commit point is the rename.

    ROOT/spark_mq/log_binding.json says, by explicit command, that a store and a log outside of its directory belong together.

    The file names ROOT and each directory of the log by real path and inode. So a copy of ROOT, with its copy of the file, is not
    bound: its path or its inode differs. Devices are not named, as their numbers change when a machine starts.
    """
    root_named, *log_named = [{"path": path, "inode": inode} for path, inode in (binding.root, *binding.directories)]
    document = {"root": root_named, "log": log_named}
    file_system.replace(binding_path(root), json.dumps(document, indent=1).encode())


class Mount(NamedTuple):
    """One mount: the part of a file system that it shows, and where."""

    device: str
    part: str
    """The directory of the file system that is shown."""
    point: str
    """Where it is shown."""


def parse_mounts(text: str) -> list[Mount]:
    """The mounts of a mountinfo file, in its order: the later of two at one point hides the earlier."""
    lines = (line.split(" ") for line in text.splitlines())
    return [
        Mount(fields[2], _unescape(fields[3]), _unescape(fields[4]).rstrip("/")) for fields in lines if len(fields) > 4
    ]


def other_names(path: str, mounts: list[Mount]) -> list[str]:
    """Other paths of a directory, given by an absolute path without links: bind mounts and second mounts of one file system.

    A path may be hidden by another mount; the caller compares device and inode.

    A directory has one name in its file system, and one for each mount that shows that part of the file system.
    /proc/self/mountinfo lists the mounts of this process (proc_pid_mountinfo(5)).
    """
    covering = [mount for mount in mounts if _is_below(path, mount.point)]
    if not covering:
        return []
    shown_by = max(reversed(covering), key=lambda mount: len(mount.point))
    place = shown_by.part.rstrip("/") + path[len(shown_by.point) :]
    names = (
        mount.point + place[len(mount.part.rstrip("/")) :]
        for mount in mounts
        if mount.device == shown_by.device and _is_below(place, mount.part.rstrip("/"))
    )
    return [name for name in dict.fromkeys(names) if name != path]


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match.group(1), 8)), text)


@dataclass(frozen=True, slots=True)
class StoreLayout:
    """Directories and file sizes of one store: enough to open one queue without opening the store. A size of None is read off the
    files.

    The value can be sent to another process; a reading task opens from it only what it needs.
    """

    root: str
    log_directories: tuple[str, ...]
    log_file_size_bytes: int | None = None
    queue_file_size_bytes: int | None = None
    ext_file_size_bytes: int | None = None
    force_property_crc: bool = False
    rocksdb: RocksDBPlace | None = None
    """None = the queues lie in files."""
    entry_directories: tuple[str, ...] = ()
    """Those of `log_directories` that hold DLedger's files."""
    moved_directory: str | None = None
    """Of tiered storage, where that is a directory."""

    @classmethod
    def of(cls, root: str, place: LogPlace, config: StoreConfig, file_system: FileSystem) -> StoreLayout:
        """The layout by the configuration, and by what is there."""
        in_rocksdb = rocksdb_queues(root, config, file_system)
        return cls(
            root,
            place.directories,
            config.commit_log.mapped_file_size_commit_log,
            config.consume_queue.mapped_file_size_consume_queue,
            config.consume_queue.mapped_file_size_consume_queue_ext,
            config.commit_log.force_verify_prop_crc,
            None
            if in_rocksdb is None
            else RocksDBPlace(in_rocksdb, parse_delay_levels(config.delay.message_delay_level)),
            place.entry_directories,
            moved_directory(config) if config.tiered.tiered_store_file_path else None,
        )

    def commit_log(self, file_system: FileSystem, scratch: Scratch | None = None) -> CommitLog:
        """The log. With `scratch`, records lie in that memory until the next ones are read."""
        return CommitLog(
            file_system,
            self.log_directories,
            self.log_file_size_bytes,
            scratch,
            force_property_crc=self.force_property_crc,
            entry_directories=self.entry_directories,
        )

    def consume_queues(
        self,
        file_system: FileSystem,
        *,
        writes_ext: bool = False,
        reads_moved: bool = False,
    ) -> ConsumeQueueStore:
        """The queues; with `reads_moved`, for reading alone, with what tiered storage has of them."""
        if self.rocksdb is not None:
            from storage.queues.derived import DerivedQueueStore  # such stores are rare

            return DerivedQueueStore(file_system, self.root, self.rocksdb, self.commit_log(file_system))
        return ConsumeQueueStore(
            file_system,
            self.root,
            file_size_bytes=self.queue_file_size_bytes,
            ext_file_size_bytes=self.ext_file_size_bytes,
            writes_ext=writes_ext,
            moved_directory=self.moved_directory if reads_moved else None,
        )

    def consume_queue(self, file_system: FileSystem, topic: str, queue_id: int) -> ConsumeQueue:
        """A queue for reading, of the kind that is there."""
        if self.rocksdb is not None:
            from storage.queues.derived import DerivedQueue

            log = self.commit_log(file_system)
            return DerivedQueue.alone(file_system, self.root, self.rocksdb, log, (topic, queue_id))
        directory = f"{self.root}/batchconsumequeue/{topic}/{queue_id}"
        if file_system.list_directory(directory):
            return BatchConsumeQueue(file_system, directory, topic, queue_id)
        directory = f"{self.root}/consumequeue/{topic}/{queue_id}"
        return plain_queue(file_system, directory, topic, queue_id, self.queue_file_size_bytes, self.moved_directory)

    def consume_queue_ext(self, file_system: FileSystem, topic: str, queue_id: int) -> ConsumeQueueExt:
        directory = f"{self.root}/consumequeue_ext/{topic}/{queue_id}"
        return ConsumeQueueExt(file_system, directory, self.ext_file_size_bytes)
