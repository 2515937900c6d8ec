"""The settings in a controller's configuration file. Java: ControllerConfig.

The file also has the server's settings (`remoting_server/settings.py`); the default of listenPort is the port in
controllerDLegerPeers, else 9877.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Self

from spark_mq.dledger.peers import Peer, parse_peers
from spark_mq.dledger.state import DLedgerSettings
from spark_mq.remoting_server.administration import AdministeredConfiguration, AdministeredSettings
from spark_mq.remoting_server.peer import is_this_host
from spark_mq.remoting_server.settings import (
    NETTY_NAMES,
    ServerSettings,
    TlsServerSettings,
    java_names,
    read_settings,
    require,
    setting,
    unfollowed_names,
)
from storage.errors import ConfigurationError

DEFAULT_PORT = 9_877
LOG_PREFIX = "dledger-"
"""Before the id in the name of a quorum's log."""
IMPORTANT = (
    *("bindAddress", "listenPort", "controllerDLegerPeers", "controllerStorePath", "configStorePath"),
    *("enableElectUncleanMaster", "notifyBrokerRoleChanged", "tls.server.mode"),
)
"""Settings that `-m` prints. Java marks none."""
NOT_FOLLOWED = {
    "controllerType": "DLedger",
    **dict.fromkeys(
        (
            *("controllerThreadPoolNums", "electMasterMaxRetryCount", "isProcessReadEvent", "productEnvName"),
            "namesrvAddr",
            *("jRaftElectionTimeoutMs", "jRaftScanWaitTimeoutMs", "jRaftSnapshotIntervalSecs", "jRaftGroupId"),
            *("jRaftServerId", "jRaftInitConf", "jRaftControllerRPCAddr"),
            *("metricsExporterType", "metricsGrpcExporterTarget", "metricsGrpcExporterHeader"),
            *("metricGrpcExporterTimeOutInMills", "metricGrpcExporterIntervalInMills"),
            *("metricLoggingExporterIntervalInMills", "metricsPromExporterPort", "metricsPromExporterHost"),
            *("metricsLabel", "metricsInDelta"),
            *NETTY_NAMES,
        )
    ),
}
"""Java's names that do nothing here. Those with a value may have no other: it would ask for what is not there."""
_FILE_BYTES_LEAST = 4_096


def _in_home(*names: str) -> str:
    return os.path.join(os.path.expanduser("~"), *names)


@dataclass(frozen=True, slots=True)
class ControllerSettings(AdministeredSettings):
    """Settings of the controller itself."""

    rocketmq_home: str | None = setting("rocketmqHome", None, "String")
    config_store_path: str = setting(
        "configStorePath", partial(_in_home, "controller", "controller.properties"), "String"
    )
    """The file for a changed configuration; the configuration file, if there is one."""
    store_path: str = setting("controllerStorePath", partial(_in_home, "DledgerController"), "String")
    """The directory of the journal, or of a quorum's log."""
    group: str = setting("controllerDLegerGroup", "controller", "String")
    peers: str = setting("controllerDLegerPeers", "", "String")
    """`n0-host:port;n1-host:port;…`: all controllers of the group. Brokers and the other controllers use the same port."""
    self_id: str = setting("controllerDLegerSelfId", "n0", "String")
    file_size_bytes: int = setting("mappedFileSize", 1 << 30, "int")
    """A file of a quorum's log; equal at all its controllers."""
    processes_reads: bool = setting("processReadEvent", False, "boolean")
    """Whether the leader of a quorum asks the others before it answers a read."""
    request_queue_capacity: int = setting("controllerRequestThreadPoolQueueCapacity", 50_000, "int")
    broker_scan_interval_ms: int = setting("scanNotActiveBrokerInterval", 5_000, "long")
    """Interval of the search for silent brokers."""
    master_scan_interval_ms: int = setting("scanInactiveMasterInterval", 5_000, "long")
    """Interval of the search for masters that are not alive."""
    elects_unclean_master: bool = setting("enableElectUncleanMaster", False, "boolean")
    """Whether another broker may become master if none in sync is alive: acknowledged messages may be lost."""
    notifies_brokers: bool = setting("notifyBrokerRoleChanged", True, "boolean")
    """Whether to notify brokers of a new master at once; they ask every five seconds in any case."""

    def __post_init__(self) -> None:
        for name in ("request_queue_capacity", "broker_scan_interval_ms", "master_scan_interval_ms"):
            require(self, name, "it must be greater than 0", is_kept=getattr(self, name) > 0)
        for name in ("group", "self_id", "store_path"):
            require(self, name, "it must not be empty", is_kept=bool(getattr(self, name)))
        rule = f"a file has at least {_FILE_BYTES_LEAST} bytes"
        require(self, "file_size_bytes", rule, is_kept=self.file_size_bytes >= _FILE_BYTES_LEAST)
        _ = self.administrator
        members = self.members
        is_one = not members or self.own_peer is not None
        require(self, "self_id", "no peer of controllerDLegerPeers has that id", is_kept=is_one)

    @property
    def members(self) -> tuple[Peer, ...]:
        """All controllers of the group; none where nothing is said of them. Raises ConfigurationError."""
        try:
            return parse_peers(self.peers)
        except ValueError as rule:
            raise ConfigurationError(None, None, "controllerDLegerPeers", f"{self.peers!r}: {rule}") from None

    @property
    def own_peer(self) -> Peer | None:
        """This controller as others reach it; None where nothing is said of it. Raises ConfigurationError."""
        return next((each for each in self.members if each.peer_id == self.self_id), None)

    @property
    def is_quorum(self) -> bool:
        """Whether there are several controllers."""
        return len(self.members) > 1

    @property
    def member(self) -> DLedgerSettings:
        """This controller as a member of the group. Java: DLedgerController."""
        return DLedgerSettings(
            group=self.group,
            self_id=self.self_id,
            peers={each.peer_id: each.address for each in self.members},
            file_size_bytes=self.file_size_bytes,
        )

    @property
    def log_path(self) -> str:
        """The directory of a quorum's log. Java: DLedgerConfig.getDefaultPath."""
        return f"{self.store_path}/{LOG_PREFIX}{self.self_id}"


@dataclass(frozen=True, slots=True)
class Configuration(AdministeredConfiguration):
    """All settings of a controller process."""

    server: ServerSettings = field(default_factory=lambda: ServerSettings(listen_port=DEFAULT_PORT))
    controller: ControllerSettings = field(default_factory=ControllerSettings)

    @property
    def own(self) -> ControllerSettings:
        return self.controller

    @classmethod
    def of(cls, texts: Mapping[str, str], file: str | None = None) -> Self:
        classes = (ControllerSettings, ServerSettings, TlsServerSettings)
        notes = unfollowed_names(classes, texts, NOT_FOLLOWED, "controller", file)
        controller = read_settings(ControllerSettings, texts, file)
        own = controller.own_peer
        port = DEFAULT_PORT if own is None else own.port
        server = read_settings(ServerSettings, {"listenPort": str(port), **texts}, file)
        if own is None and _is_every_address(server.bind_address):
            rule = f"it is needed where bindAddress is {server.bind_address}: brokers get this address"
            raise ConfigurationError(file, None, "controllerDLegerPeers", rule)
        if own is not None and is_this_host(server.bind_address) and _is_another_host(own.host):
            where = f"brokers get {own.address}, and it listens on {server.bind_address} alone"
            notes = (*notes, f"{file or 'configuration'}: bindAddress: {where}")
        if own is not None and server.listen_port not in (own.port, 0):
            where = f"others reach {own.address}, and it listens on port {server.listen_port}"
            notes = (*notes, f"{file or 'configuration'}: listenPort: {where}")
        tls = read_settings(TlsServerSettings, texts, file)
        if controller.is_quorum and tls.mode == "enforcing":
            rule = "several controllers speak no TLS with each other: disabled or permissive"
            raise ConfigurationError(file, None, "tls.server.mode", f"{tls.mode!r}: {rule}")
        return cls(server, tls, notes, controller)


def split_settings(texts: Mapping[str, str], kept: Collection[str]) -> tuple[dict[str, str], dict[str, str]]:
    """The texts of a name server's file with a controller in it: those without the controller's own names, and the controller's. `kept`
    are the name server's names. The port in the file is the name server's; the controller's is in controllerDLegerPeers.
    """
    own = {*java_names(ControllerSettings), *NOT_FOLLOWED} - {*NETTY_NAMES}
    shared = {*java_names(ServerSettings), *java_names(TlsServerSettings)} - {"listenPort"}
    rest = {name: text for name, text in texts.items() if name in kept or name not in own}
    return rest, {name: text for name, text in texts.items() if name in own or name in shared}


def _is_another_host(host: str) -> bool:
    """Whether it is an IP address, and none of this host's loopback; of a name that is not known here."""
    return (host[:1].isdigit() or ":" in host) and not is_this_host(host)


def _is_every_address(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return not host
