"""Opens a broker's store for its use: by its owner, by a slave, or in the role from a controller; and serves it to slaves.

Java: BrokerController.initialize, DefaultHAService.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from spark_mq.broker_server.controllers import Controllers, wait_for
from spark_mq.broker_server.settings import Configuration
from spark_mq.remoting.administration import HaConnectionInfo
from spark_mq.remoting.controllers import EpochEntryCache, EpochSpan
from spark_mq.remoting_server.server import ListenError
from storage import open_store
from storage.epoch_times import current_time_ms
from storage.errors import StoreRefusedError
from storage.files.local_file_system import LocalFileSystem
from storage.format.replication import Dialect, EpochEntry
from storage.ha.epochs import EpochFile, epoch_end, note_epoch
from storage.ha.listener import ListenerSettings, LogReader, ReplicationListener
from storage.ha.replicas import Replicas, Role, Snapshot
from storage.ha.sessions import Timing
from storage.log.group_log import GroupLog
from storage.names import address_text
from storage.put.settings import address_of, host_bytes
from storage.service.put_group import ReplicaAcks
from storage.service.put_service import PutService
from storage.settings.load import warn_of_unread
from storage.store import MessageStore, WritesAs

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
    """The state of a broker in controller mode, from its start to its close."""

    role: Role
    epochs: EpochFile
    controllers: Controllers
    doubt: Callable[[], None]
    """Called when the controller may have a new decision: ask it."""
    diverged: Callable[[int, int], None]
    """Called when a slave's log goes further than its master's, as `Switching.diverged`: close the broker and cut its log."""


class GroupRole(NamedTuple):
    """The role of a DLedger group's broker, from its start to its close."""

    log: GroupLog
    broker_id: int
    """0 of the leader."""


def _begin_epoch(mode: ControllerMode, files: LocalFileSystem, end: int) -> None:
    """Start a master's own epoch at the log's end, unless it has started already. Raises StoreRefusedError, OSError."""
    epochs, term = mode.epochs, mode.role.term
    epochs.cut(end)
    if not mode.role.is_master:
        return
    if epochs.last_epoch > term.epoch:
        reason = f"its log has epoch {epochs.last_epoch}, and the controller calls it master of epoch {term.epoch}"
        raise StoreRefusedError(epochs.root, reason)
    epochs.add((EpochEntry(term.epoch, end),), end)
    note_epoch(files, epochs.root, term.epoch)


def check_lock(configuration: Configuration) -> None:
    """Raises StoreLockedError where another process has the broker's store, and does not give it up in time; OSError."""
    root, files = configuration.process.store_path_root_dir, LocalFileSystem()
    if files.exists(f"{root}/lock"):
        with files.locked(f"{root}/lock", _LOCK_TIMEOUT_MS, turns=f"{root}/spark_mq/turns", holder="broker"):
            pass


def opened_store(
    configuration: Configuration,
    writes_as: WritesAs,
    prepare: Callable[[MessageStore], None] | None = None,
    *,
    place: StorePlace | None = None,
    group: GroupRole | None = None,
    clock: Callable[[], int] = current_time_ms,
) -> MessageStore:
    """The broker's store, prepared before anything is appended. Raises what `open_store` raises.

    `place` is where this process has opened it before; only the first opening (None) makes one where there is none. In a DLedger
    group a leader's puts wait for a sync, which is the majority's, and its followers' queues for none.
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
        group=None if group is None else group.log,
        prepare=prepare,
        broker_name=configuration.broker_name,
        flush_disk_type=None if group is None else ("SYNC_FLUSH" if group.log.leads else "ASYNC_FLUSH"),
        clock=clock,
    )


def opened_service(
    configuration: Configuration,
    mode: ControllerMode | None,
    place: StorePlace | None = None,
    group: GroupRole | None = None,
    clock: Callable[[], int] = current_time_ms,
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

    store = opened_store(configuration, writes_as, prepare, place=place, group=group, clock=clock)
    try:
        service = PutService(store)
    except BaseException:
        store.close()
        raise
    # A master alone in sync shows all its messages before the first request.
    if mode is not None and mode.role.is_master:
        wait_for(service.acks, mode.role.term.members, mode.role.own_id)
        service.confirm_turn()
    return service


# A running broker as a master: its log is served to slaves at haListenPort.


def ha_port(configuration: Configuration) -> int:
    """The port for slaves: one above the listen port, unless the file sets it."""
    return configuration.store.replication.ha_listen_port or configuration.server.listen_port + 1


def sent_ha_address(configuration: Configuration, ip: str) -> str:
    """The address for slaves: brokerIP2, else the broker's own address. Java: BrokerController.getHAServerAddr.

    Raises ConfigurationError where brokerIP2 is no address.
    """
    port, ip2 = ha_port(configuration), configuration.store.identity.broker_ip2
    return address_text(ip, port) if ip2 is None else address_of(host_bytes(ip2, port, "brokerIP2"))


def serve_slaves(
    service: PutService,
    configuration: Configuration,
    epochs: EpochFile | None = None,
    is_known: Callable[[str], bool] = lambda host: False,
) -> ReplicationListener:
    """A listener that serves what is written, under SYNC_FLUSH synced, confirmed or not; `epochs`: in the controller's dialect.
    `is_known`: whether a slave is known to be at a host.

    Departure: it binds to bindAddress, Java to every address. Raises ListenError.
    """
    settings = configuration.store.replication
    store = service.store
    file_size = service.settings.log_file_size_bytes
    reader = LogReader(
        lambda: store.layout.commit_log(store.writer.file_system),
        lambda: service.sendable_end,
        file_size,
        tuple if epochs is None else lambda: epochs.entries,
        lambda: service.confirm_offset,
    )
    host, port = configuration.server.bind_address, ha_port(configuration)
    try:
        listener = ReplicationListener(
            reader,
            ListenerSettings(
                host,
                port,
                dialect=Dialect.DEFAULT if epochs is None else Dialect.CONTROLLER,
                timing=Timing(settings.ha_send_heartbeat_interval, settings.ha_housekeeping_interval),
                batch_bytes=settings.ha_transfer_batch_size,
                is_known=is_known,
            ),
            Replicas(settings.ha_max_gap_not_in_sync),
        )
    except OSError as error:
        reader.close()
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise ListenError(host, port, f"{reason} (haListenPort)") from error
    service.log_grew = listener.wake
    listener.replicas.listen(partial(tell, service.acks))
    listener.start()
    return listener


def tell(acks: ReplicaAcks, replicas: Snapshot) -> None:
    """Completes waits for copies. Departure: a learner's copy does not count."""
    acks.see({replica.identity: replica.acknowledged for replica in replicas if not replica.is_learner})


def slave_infos(listener: ReplicationListener, end: int) -> Sequence[HaConnectionInfo]:
    """The answer to request 907 about each slave, for a log with this end."""
    replicas = listener.replicas
    return [
        HaConnectionInfo(
            address=replica.address,
            slave_ack_offset=replica.acknowledged,
            diff=end - replica.acknowledged,
            in_sync=replica.is_in_sync(end, replicas.max_gap_bytes),
            transfer_from_where=replica.acknowledged,
        )
        for replica in replicas.snapshot()
    ]


def epoch_cache(
    entries: Sequence[EpochEntry], cluster: str, broker_name: str | None, broker_id: int, end: int
) -> EpochEntryCache:
    """The answer to request 1007 for a log with this end: its epochs; the last one has no end."""
    spans = tuple(
        EpochSpan(epoch=entry.epoch, start_offset=entry.start_offset, end_offset=epoch_end(entries, entry.epoch))
        for entry in entries
    )
    return EpochEntryCache(
        cluster_name=cluster, broker_name=broker_name, broker_id=broker_id, epochs=spans, max_offset=end
    )
