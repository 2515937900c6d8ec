"""A broker's store, opened as it will be used: by its owner, by a slave, or as a controller says. Java: BrokerController.initialize."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

from spark_mq.broker_server.controllers import Controllers
from spark_mq.broker_server.settings import Configuration
from spark_mq.broker_server.sync_keeper import wait_for
from storage import open_store
from storage.errors import StoreRefusedError
from storage.files.local_file_system import LocalFileSystem
from storage.format.replication import EpochEntry
from storage.ha.begun_epoch import note_epoch
from storage.ha.epochs import EpochFile
from storage.ha.roles import Role
from storage.message_store import MessageStore, WritesAs
from storage.service.put_service import PutService
from storage.settings.unread import warn_of_unread

_LOCK_TIMEOUT_MS = 30_000  # a sink or job may be at work; another broker is not waited for


class StorePlace(NamedTuple):
    """The directories of a store as a process has opened it first. Nothing else that lies at their paths later is opened by itself.

    For an empty mount point looks like a place for a new store, and what is acknowledged there is gone when the disk is back.
    """

    root: str
    numbers: Mapping[str, tuple[int, int]]
    """Device and inode of each that was there."""

    @classmethod
    def of(cls, store: MessageStore) -> StorePlace:
        files = store.writer.file_system
        found = {path: files.directory_number(path) for path in (store.root, *store.place.directories)}
        return cls(store.root, {path: number for path, number in found.items() if number is not None})

    def check(self) -> None:
        """Raises StoreRefusedError where another directory lies at such a path, or none."""
        files = LocalFileSystem()
        for path, number in self.numbers.items():
            if files.directory_number(path) != number:
                reason = f"{path} is not the directory that was opened first: another disk is there, or none"
                hint = "bring that disk back, or start the broker again where this one is meant"
                raise StoreRefusedError(self.root, reason, hint)


class ControllerMode(NamedTuple):
    """What a broker in controller mode is, from its start to its close."""

    role: Role
    epochs: EpochFile
    controllers: Controllers
    doubt: Callable[[], None]
    """Called when the controller may have said something else: it is to be asked."""
    diverged: Callable[[int, int], None]
    """Called when a slave's log goes further than its master's, as `Switching.diverged`: the broker is to be closed and its log cut."""


def _begin_epoch(mode: ControllerMode, files: LocalFileSystem, end: int) -> None:
    """Of a log that ends there: a master's own epoch begins, unless it was begun before. Raises StoreRefusedError, OSError."""
    epochs, term = mode.epochs, mode.role.term
    epochs.cut(end)
    if not mode.role.is_master:
        return
    if epochs.last_epoch > term.epoch:
        reason = f"its log has epoch {epochs.last_epoch}, and the controller calls it master of epoch {term.epoch}"
        raise StoreRefusedError(epochs.root, reason)
    epochs.add((EpochEntry(term.epoch, end),), end)
    note_epoch(files, epochs.root, term.epoch)


def opened_store(
    configuration: Configuration,
    writes_as: WritesAs,
    prepare: Callable[[MessageStore], None] | None = None,
    *,
    place: StorePlace | None = None,
) -> MessageStore:
    """The broker's store, prepared before anything is appended. Raises what `open_store` raises.

    `place` is where this process has opened it before; only the first opening (None) makes one where there is none.
    """
    if place is not None:
        place.check()
    warn_of_unread(configuration.store.file, configuration.unfollowed)
    # Its records may have another address: this store's, before the broker was moved, or its master's.
    config = replace(configuration.store, identity=configuration.own_identity)
    return open_store(
        configuration.process.store_path_root_dir,
        config=config,
        read_only=False,
        create=place is None,
        lock_timeout_ms=_LOCK_TIMEOUT_MS,
        holder="broker",
        writes_as=writes_as,
        holds_back=writes_as in ("controlled", "candidate") and not config.replication.read_un_committed,
        prepare=prepare,
        broker_name=configuration.broker_name,
    )


def opened_service(
    configuration: Configuration, mode: ControllerMode | None, place: StorePlace | None = None
) -> PutService:
    """The store of `opened_store` in its role, with what serves it."""
    writes_as: WritesAs = "owner"
    if mode is not None:
        writes_as = "controlled"
    elif configuration.is_slave:
        writes_as = "follower"

    def prepare(store: MessageStore) -> None:
        if mode is not None:  # the first row of a batch that is finished now is of this epoch
            _begin_epoch(mode, store.writer.file_system, store.writer.log_end if store.log.files else 0)

    store = opened_store(configuration, writes_as, prepare, place=place)
    try:
        service = PutService(store)
    except BaseException:
        store.close()
        raise
    if mode is not None and mode.role.is_master:  # who is alone shows all that it has, before anybody asks
        wait_for(service.acks, mode.role.term.members, mode.role.own_id)
        service.confirm_turn()
    return service
