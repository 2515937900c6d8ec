"""A running broker as a master: its log is served to slaves at haListenPort. Java: DefaultHAService."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial

from spark_mq.broker_server.settings import Configuration
from spark_mq.remoting.admin_bodies import HaConnectionInfo
from spark_mq.remoting.controller_bodies import EpochEntry as EpochEntryBody
from spark_mq.remoting.controller_bodies import EpochEntryCache
from spark_mq.remoting_server.server import ListenError
from storage.addresses import address_text
from storage.format.replication import Dialect, EpochEntry
from storage.ha.epochs import EpochFile, epoch_end
from storage.ha.listener import ListenerSettings, ReplicationListener
from storage.ha.log_reader import LogReader
from storage.ha.replicas import Replicas, Snapshot
from storage.ha.session import Timing
from storage.put.settings import address_of, host_bytes
from storage.service.put_service import PutService
from storage.service.replica_acks import ReplicaAcks


def ha_port(configuration: Configuration) -> int:
    """Where slaves connect: one above the listen port, unless the file says."""
    return configuration.store.replication.ha_listen_port or configuration.server.listen_port + 1


def told_ha_address(configuration: Configuration, ip: str) -> str:
    """Where slaves are told to connect: at brokerIP2, else at the broker's own address. Java: BrokerController.getHAServerAddr.

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
    """What waits for copies hears of them. Departure: a learner's copy counts for nothing."""
    acks.see({replica.identity: replica.acknowledged for replica in replicas if not replica.is_learner})


def slaves_told(listener: ReplicationListener, end: int) -> Sequence[HaConnectionInfo]:
    """What request 907 says of each slave, of a log that ends there."""
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


def epochs_told(
    entries: Sequence[EpochEntry], cluster: str, broker_name: str | None, broker_id: int, end: int
) -> EpochEntryCache:
    """What request 1007 says of the epochs of a log that ends there; the last one has no end."""
    told = tuple(
        EpochEntryBody(epoch=entry.epoch, start_offset=entry.start_offset, end_offset=epoch_end(entries, entry.epoch))
        for entry in entries
    )
    return EpochEntryCache(
        cluster_name=cluster, broker_name=broker_name, broker_id=broker_id, epochs=told, max_offset=end
    )
