"""Settings of a broker's process in broker.conf; `storage/settings` reads those of the store and its put path. Java: BrokerConfig.

Name servers come from `-n` or else from the file, as in Java's BrokerStartup.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TypeVar

from spark_mq.access.users import AccessRules, User, UserType, codes_of, name_and_secret
from spark_mq.broker.broker_settings import SECRETS, settings_values
from spark_mq.broker.request_table import Pool
from spark_mq.client.errors import ClientSettingError
from spark_mq.client.settings import ClientSettings, Credentials, TlsSettings
from spark_mq.dledger.files import DATA_FILE_BYTES
from spark_mq.dledger.peers import Peer, parse_peers
from spark_mq.dledger.state import DLedgerSettings
from spark_mq.remoting_server.pools import PoolSettings
from spark_mq.remoting_server.settings import (
    ServerSettings,
    TlsServerSettings,
    read_settings,
    require,
    setting,
    setting_texts,
)
from storage.errors import ConfigurationError
from storage.names import MASTER_ID, address_text
from storage.service.put_group import GROUP_MESSAGES
from storage.settings.java_properties import parse_properties
from storage.settings.java_settings import JAVA_SETTINGS
from storage.settings.load import StoreConfig, parse_config
from storage.settings.nouns import VERSION_SETTING, BrokerIdentity

_T = TypeVar("_T")
FIRST_USER, INNER_CLIENT = "initAuthenticationUser", "innerClientAuthenticationCredentials"
DEFAULT_PORT = 10_911
VIP_PORTS_BELOW = 2
"""The second listener's port is so far below listenPort; for clients with vipChannelEnabled."""
IMPORTANT = frozenset(name for name, setting in JAVA_SETTINGS.items() if setting.is_important)
"""Settings that `-m` prints."""


def _root() -> str:
    return os.path.join(os.path.expanduser("~"), "store")


@dataclass(frozen=True, slots=True)
class ProcessSettings:
    """The store's place, and the name servers."""

    store_path_root_dir: str = setting("storePathRootDir", _root, "String")
    name_servers: str = setting("namesrvAddr", "", "String")
    """Addresses between semicolons; none = no registration, and clients must name the broker's address."""
    register_period_ms: int = setting("registerNameServerPeriod", 30_000, "int")
    register_timeout_ms: int = setting("registerBrokerTimeoutMills", 24_000, "int")
    forward_timeout_ms: int = setting("forwardTimeout", 3_000, "long")
    """For the answer of another broker to a request about its part of a static topic."""
    broker_id: int = setting("brokerId", 0, "long")
    check_interval_ms: int = setting("transactionCheckInterval", 30_000, "long")
    """Between two checks of half messages without an end."""
    clean_interval_ms: int = setting("cleanResourceInterval", 10_000, "int")
    fails_fast: bool = setting("brokerFastFailureEnable", True, "boolean")
    """Whether requests are refused that have waited for too long, or behind a put that holds the log for too long."""
    controllers: str = setting("controllerAddr", "", "String")
    """Addresses between semicolons."""
    ha_master_address: str | None = setting("haMasterAddress", None, "String")
    """The HA address of a slave's master, if the file sets it and no name server does."""

    verifies_servers: bool = setting("tls.client.authServer", False, "boolean")
    trust_file: str | None = setting("tls.client.trustCertPath", None, "String")
    """Whether name servers that speak TLS must show a certificate that one of these has signed."""

    def __post_init__(self) -> None:
        for name in ("register_timeout_ms", "forward_timeout_ms", "check_interval_ms", "clean_interval_ms"):
            require(self, name, "it must be greater than 0", is_kept=getattr(self, name) > 0)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Addresses of the name servers, each once."""
        return tuple(dict.fromkeys(filter(None, (part.strip() for part in self.name_servers.split(";")))))


@dataclass(frozen=True, slots=True)
class AccessSettings:
    """Whether requests must be signed and allowed, and which need not. Java: AuthConfig.

    Providers and strategies are classes in Java (`authenticationMetadataProvider`, …): users and rights are always kept under the
    store's `config`, and no decision is remembered.
    """

    authentication_enabled: bool = setting("authenticationEnabled", False, "boolean")
    authentication_whitelist: str = setting("authenticationWhitelist", "", "String")
    authorization_enabled: bool = setting("authorizationEnabled", False, "boolean")
    authorization_whitelist: str = setting("authorizationWhitelist", "", "String")
    init_authentication_user: str | None = setting(FIRST_USER, None, "String", is_secret=True)
    inner_client_credentials: str | None = setting(INNER_CLIENT, None, "String", is_secret=True)
    acl_enable: bool = setting("aclEnable", False, "boolean")
    """ACL 1.0: releases up to 5.3.2 have it."""
    rocketmq_home: str = setting("rocketmqHome", lambda: os.environ.get("ROCKETMQ_HOME", ""), "String")
    """Where its files are: in `conf`."""

    def __post_init__(self) -> None:
        rule = "rocketmqHome or ROCKETMQ_HOME must say where conf/plain_acl.yml is"
        require(self, "acl_enable", rule, is_kept=not self.acl_enable or bool(self.rocketmq_home))
        rule = "it needs authenticationEnabled: a name without a proof says nothing"
        require(
            self, "authorization_enabled", rule, is_kept=self.authentication_enabled or not self.authorization_enabled
        )
        _ = self.rules, self.credentials

    @property
    def rules(self) -> AccessRules:
        """The effective settings. Raises ConfigurationError."""
        first = _read(FIRST_USER, lambda: name_and_secret(self.init_authentication_user, "username", "password"))
        users = (first, self._inner_client)
        return AccessRules(
            self.authentication_enabled,
            self.authorization_enabled,
            _read("authenticationWhitelist", lambda: codes_of(self.authentication_whitelist)),
            _read("authorizationWhitelist", lambda: codes_of(self.authorization_whitelist)),
            tuple(User(*user, UserType.SUPER) for user in users if user is not None),
            self.rocketmq_home if self.acl_enable else None,
        )

    @property
    def credentials(self) -> Credentials | None:
        """The credentials of the broker's own requests. Raises ConfigurationError."""
        inner = self._inner_client
        return None if inner is None else Credentials(*inner)

    @property
    def _inner_client(self) -> tuple[str, str] | None:
        return _read(INNER_CLIENT, lambda: name_and_secret(self.inner_client_credentials, "accessKey", "secretKey"))


_BATCH_PUSH_BYTES = 4 << 20
"""maxBatchPushSize"""


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """A broker of a DLedger group; enableDLegerCommitLog and dLegerSelfId are among the store's settings. Java: DLedgerCommitLog."""

    group: str = setting("dLegerGroup", "", "String")
    peers: str = setting("dLegerPeers", "", "String")
    """`n0-host:port;n1-host:port;…`: all members, with ports of their own for each other."""
    preferred_leaders: str = setting("preferredLeaderId", "", "String")
    """Ids between semicolons: a leader that is none of them hands over to one that is near enough."""
    pushes_batches: bool = setting("enableBatchPush", False, "boolean")
    """Whether several entries are sent in one request."""

    @property
    def members(self) -> tuple[Peer, ...]:
        """All members. Raises ConfigurationError."""
        return _read("dLegerPeers", lambda: parse_peers(self.peers))


def _read(name: str, read: Callable[[], _T]) -> _T:
    try:
        return read()
    except ValueError as rule:
        raise ConfigurationError(None, None, name, str(rule)) from None


METRICS_OFF, METRICS_ON = "DISABLE", "PROM"
_EXPORTERS = {"0": METRICS_OFF, "1": "OTLP_GRPC", "2": METRICS_ON, "3": "LOG"}
"""By Java's numbers, which a file may have in place of the names. Java: MetricsExporterType."""


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """The page of metrics for Prometheus. Java: BrokerConfig, BrokerMetricsManager.

    Not supported: OTLP_GRPC and LOG, which send metrics instead of serving them: a collector of OpenTelemetry reads the page, too.
    """

    exporter_type: str = setting("metricsExporterType", METRICS_OFF, "String")
    """DISABLE or PROM, or Java's numbers 0 and 2."""
    host: str = setting("metricsPromExporterHost", "", "String")
    """The address to listen on; none = brokerIP1, as in Java."""
    port: int = setting("metricsPromExporterPort", 5_557, "int")
    """0 = any that is free, which a line of the log says."""
    label: str = setting("metricsLabel", "", "String")
    """Labels for all series: `name:value,name:value`."""
    in_delta: bool = setting("metricsInDelta", False, "boolean")
    """Only adds the label aggregation=delta, as Java does with PROM: what is served are sums since the start."""
    series_most: int = setting("metricsOtelCardinalityLimit", 50_000, "int")
    """Limit of the series of one counter. Values for further series are dropped."""

    def __post_init__(self) -> None:
        kind = self.exporter_type.strip()
        object.__setattr__(self, "exporter_type", _EXPORTERS.get(kind, kind))
        rule = "this broker serves metrics with PROM, and none with DISABLE; OTLP_GRPC and LOG are not supported"
        is_kept = self.exporter_type in (METRICS_OFF, METRICS_ON)
        require(self, "exporter_type", rule, is_kept=is_kept)
        require(self, "port", "a port is 0 to 65535", is_kept=0 <= self.port < 65_536)
        require(self, "series_most", "it must be greater than 0", is_kept=self.series_most > 0)
        _ = self.labels

    @property
    def is_on(self) -> bool:
        """Whether there is a page."""
        return self.exporter_type == METRICS_ON

    @property
    def labels(self) -> dict[str, str]:
        """Those of metricsLabel. Raises ConfigurationError. Departure: Java ignores a pair that is no label."""
        pairs = [part.partition(":") for part in self.label.split(",") if part.strip()]
        for name, colon, value in pairs:
            rule = "labels are name:value,name:value, and a name has letters, digits and _"
            is_label = (
                bool(colon) and ":" not in value and re.fullmatch("[a-zA-Z_][a-zA-Z0-9_]*", name.strip()) is not None
            )
            require(self, "label", rule, is_kept=is_label)
        return {name.strip(): value.strip() for name, _, value in pairs}


_CAPACITIES = {
    Pool.SEND: "sendThreadPoolQueueCapacity",
    Pool.PULL: "pullThreadPoolQueueCapacity",
    Pool.LITE_PULL: "litePullThreadPoolQueueCapacity",
    Pool.REPLY: "replyThreadPoolQueueCapacity",
    Pool.QUERY: "queryThreadPoolQueueCapacity",
    Pool.ADMIN: "adminBrokerThreadPoolQueueCapacity",
    Pool.CLIENT_MANAGE: "clientManagerThreadPoolQueueCapacity",
    Pool.CONSUMER_MANAGE: "consumerManagerThreadPoolQueueCapacity",
    Pool.HEARTBEAT: "heartbeatThreadPoolQueueCapacity",
    Pool.LOAD_BALANCE: "loadBalanceThreadPoolQueueCapacity",
    Pool.END_TRANSACTION: "endTransactionPoolQueueCapacity",
}
_QUICK_SECONDS = 0.01
_WAITS = {
    Pool.SEND: "waitTimeMillsInSendQueue",
    Pool.PULL: "waitTimeMillsInPullQueue",
    Pool.LITE_PULL: "waitTimeMillsInLitePullQueue",
    Pool.ADMIN: "waitTimeMillsInAdminBrokerQueue",
    Pool.HEARTBEAT: "waitTimeMillsInHeartbeatQueue",
    Pool.END_TRANSACTION: "waitTimeMillsInTransactionQueue",
}


@dataclass(frozen=True, slots=True)
class Configuration:
    """All settings of a broker process."""

    store: StoreConfig = field(default_factory=StoreConfig)
    process: ProcessSettings = field(default_factory=ProcessSettings)
    server: ServerSettings = field(default_factory=lambda: ServerSettings(listen_port=DEFAULT_PORT))
    tls: TlsServerSettings = field(default_factory=TlsServerSettings)
    access: AccessSettings = field(default_factory=AccessSettings)
    group: GroupSettings = field(default_factory=GroupSettings)
    metrics: MetricsSettings = field(default_factory=MetricsSettings)

    @property
    def is_member(self) -> bool:
        """Whether the broker is one of a DLedger group."""
        return self.store.mode.enable_dleger_commit_log

    @property
    def own_peer(self) -> Peer:
        """This broker as the group's other members reach it."""
        return next(each for each in self.group.members if each.peer_id == self.store.mode.d_leger_self_id)

    @property
    def member(self) -> DLedgerSettings:
        """This broker as a member of its group."""
        settings = self.group
        return DLedgerSettings(
            group=settings.group,
            self_id=self.own_peer.peer_id,
            peers={each.peer_id: each.address for each in settings.members},
            batch_push_bytes=_BATCH_PUSH_BYTES if settings.pushes_batches else 0,
            preferred_leaders=tuple(filter(None, (part.strip() for part in settings.preferred_leaders.split(";")))),
            file_size_bytes=self.store.commit_log.mapped_file_size_commit_log or DATA_FILE_BYTES,
        )

    @property
    def slave_id(self) -> int:
        """The brokerId of a group's member that does not lead. Java: DLedgerCommitLog.getId."""
        return int(self.own_peer.peer_id[1:]) + 1

    @property
    def own_identity(self) -> BrokerIdentity:
        """The store's, with the address for clients."""
        found = self.store.identity
        if found.broker_ip1 is not None:
            return found
        return replace(found, broker_ip1=self.server.bind_address, listen_port=self.server.listen_port)

    @property
    def address(self) -> str:
        """The address for clients and controllers, whatever the records in the store say."""
        own = self.own_identity
        return address_text(own.broker_ip1 or "", own.listen_port)

    @property
    def client(self) -> ClientSettings | None:
        """The client's settings for name servers: TLS if the broker serves TLS only; None = no name servers. Java: BrokerStartup."""
        if not self.process.addresses:
            return None
        own = TlsSettings(verify=self.process.verifies_servers, ca_file=self.process.trust_file)
        return ClientSettings(
            self.process.addresses,
            tls=own if self.tls.mode == "enforcing" else None,
            credentials=self.access.credentials,
        )

    @property
    def is_slave(self) -> bool:
        """Whether a master writes the store (brokerRole)."""
        return self.store.mode.broker_role == "SLAVE"

    @property
    def controllers(self) -> ClientSettings | None:
        """The client's settings for controllers; None = no controller mode."""
        if not self.store.mode.enable_controller_mode:
            return None
        found = tuple(filter(None, (part.strip() for part in self.process.controllers.split(";"))))
        asking = self.client or ClientSettings(found, credentials=self.access.credentials)
        return replace(asking, name_servers=found)

    @property
    def broker_name(self) -> str:
        """As configured, else this machine's name."""
        return self.store.identity.broker_name or socket.gethostname()

    def pool(self, pool: Pool) -> PoolSettings:
        """Limits of a pool's queue, in requests and time. Its threads are those of the table: the interpreter runs one.

        Pulls find most records in the page cache, so they run on the event loop as long as they are quick.
        """
        texts = self.store.settings
        capacity = int(texts.get(_CAPACITIES[pool], pool.capacity))
        waits = self.process.fails_fast and pool in _WAITS
        wait_ms = int(texts.get(_WAITS[pool], pool.longest_wait_ms or 0)) if waits else None
        together = GROUP_MESSAGES if pool is Pool.SEND else 1
        quick_seconds = _QUICK_SECONDS if pool in (Pool.PULL, Pool.LITE_PULL) else None
        return PoolSettings(pool.label, capacity, pool.threads, wait_ms, quick_seconds, together)

    @property
    def unfollowed(self) -> dict[str, str]:
        """The lines of the file but for those that the process goes by, which no store does."""
        return {name: text for name, text in self.store.settings.items() if name not in FOLLOWED}

    def texts(self) -> dict[str, str]:
        """Java name → value of what the process goes by, sorted; nothing secret."""
        identity = self.store.identity
        found = {
            **self.store.settings,
            **setting_texts(self.process),
            **setting_texts(self.server),
            **setting_texts(self.tls),
            **setting_texts(self.access),
            **setting_texts(self.metrics),
            **(setting_texts(self.group) if self.is_member else {}),
            "brokerName": self.broker_name,
            "brokerClusterName": identity.broker_cluster_name,
        }
        return {name: found[name] for name in sorted(found.keys() - SECRETS)}

    def printed(self) -> dict[str, str]:
        """Java name → value, as `-p` and `-m` print them: all that a broker of the named release prints, in its order; then the others.

        Java: BrokerStartup, MixAll.printObjectProperties. Departures: each name is there once; the broker's identity comes first, which
        Java leaves out since 5.0; without the names of fields that no file can set.
        """
        own = self.texts() | {"brokerIP1": self.own_identity.broker_ip1 or ""}
        values = settings_values(self.store) | own
        version = self.store.release.version
        names = [
            name
            for name, setting in JAVA_SETTINGS.items()
            if setting.is_printed and (setting.since is None or setting.since <= version)
        ]
        return {name: values.get(name, "") for name in names} | {name: own[name] for name in sorted(own.keys() - names)}


_NOUNS = (ProcessSettings, ServerSettings, TlsServerSettings, AccessSettings, GroupSettings, MetricsSettings)
FOLLOWED = frozenset(
    {
        *(each.metadata["java"] for noun in _NOUNS for each in fields(noun)),
        *(*_CAPACITIES.values(), *_WAITS.values()),
    }
)
"""Names of settings that the process goes by, and no store."""


def read_configuration(content: bytes, file: str | None, given: Mapping[str, str]) -> Configuration:
    """The settings of a broker.conf; `given` ones of the command line win. Raises ConfigurationError."""
    texts = {found.key: found.value for found in parse_properties(content, file)} | dict(given)
    store = parse_config(content, file, known=FOLLOWED)
    server = read_settings(ServerSettings, texts, file)
    if "listenPort" not in texts:
        server = replace(server, listen_port=DEFAULT_PORT)
    if server.listen_port <= VIP_PORTS_BELOW:
        raise ConfigurationError(
            file, None, "listenPort", f"clients get it, and use the port {VIP_PORTS_BELOW} below it, too"
        )
    if store.identity.broker_ip1 is None and server.bind_address in ("0.0.0.0", "::"):
        rule = "it is missing: with bindAddress for all addresses it says which one clients get"
        raise ConfigurationError(file, None, "brokerIP1", rule)
    process = read_settings(ProcessSettings, texts, file)
    if store.mode.enable_dleger_commit_log:  # the group says which role and id the broker has
        process = replace(process, broker_id=MASTER_ID)
    elif store.mode.enable_controller_mode:
        if not process.controllers:
            rule = "it is missing: with enableControllerMode a controller says whether the broker is master"
            raise ConfigurationError(file, None, "controllerAddr", rule)
    elif store.mode.broker_role == "SLAVE":
        if process.broker_id <= 0:
            raise ConfigurationError(file, None, "brokerId", "a slave has one that is greater than 0")
        if not process.addresses and not process.ha_master_address:
            rule = "it is missing: a slave finds its master by its name servers, or by haMasterAddress"
            raise ConfigurationError(file, None, "namesrvAddr", rule)
    elif process.broker_id != MASTER_ID:  # Java says nothing of it
        told = f"{process.broker_id} counts as {MASTER_ID}, a master's; brokerRole=SLAVE makes it a slave"
        store = replace(store, warnings=(*store.warnings, f"{file or 'broker.conf'}: brokerId: {told}"))
        process = replace(process, broker_id=MASTER_ID)
    if store.replication.enable_remote_escape and (missing := _lacks_for_escapes(store, process)):
        told = f"{file or 'broker.conf'}: enableRemoteEscape: it has no effect {missing}"
        store = replace(store, warnings=(*store.warnings, told))
    access = read_settings(AccessSettings, texts, file)
    if access.acl_enable and not store.release.has_plain_acl:
        rule = (
            f"a broker of RocketMQ {store.release} ({VERSION_SETTING}) ignores it and lets everybody in: use authenticationEnabled and "
            "authorizationEnabled, or name a release up to 5.3.2"
        )
        raise ConfigurationError(file, None, "aclEnable", rule)
    found = Configuration(
        store,
        process,
        server,
        read_settings(TlsServerSettings, texts, file),
        access,
        read_settings(GroupSettings, texts, file),
        read_settings(MetricsSettings, texts, file),
    )
    if found.is_member:
        _check_member(found, file)
    for name in ("namesrvAddr", "controllerAddr"):
        try:
            _ = found.client if name == "namesrvAddr" else found.controllers
        except ClientSettingError as error:
            raise ConfigurationError(file, None, name, f"{error.value!r}: {error.rule}") from None
    return found


def _check_member(found: Configuration, file: str | None) -> None:
    """Raises ConfigurationError for settings with which a broker is no member of a DLedger group."""
    mode, group = found.store.mode, found.group
    self_id = mode.d_leger_self_id or ""
    ids = [each.peer_id for each in group.members]
    rules = (
        ("enableControllerMode", mode.enable_controller_mode, "enableDLegerCommitLog=true excludes it"),
        ("dLegerGroup", not group.group, "it is missing: the name of the DLedger group"),
        (
            "dLegerPeers",
            not ids,
            "it is missing: n0-host:port;n1-host:port and so on, all members of the DLedger group",
        ),
        ("dLegerSelfId", not self_id, "it is missing: the id of this broker in dLegerPeers"),
        ("dLegerSelfId", self_id not in ids, f"{self_id!r}: no peer of dLegerPeers has that id"),
        (
            "dLegerSelfId",
            not (self_id[1:].isascii() and self_id[1:].isdigit()),
            f"{self_id!r}: it is a letter and a number, of which the brokerId is made: n0, n1",
        ),
        (  # Java starts, and its slaves copy nothing without a word
            "namesrvAddr",
            len(ids) > 1 and not found.process.addresses,
            "it is missing: a slave of a DLedger group finds by its name servers the leader whose topics, groups and offsets it copies",
        ),
        (
            "storePathDLedgerCommitLog",
            bool(mode.store_path_dledger_commit_log),
            f"{mode.store_path_dledger_commit_log!r}: a broker of spark_mq keeps its group's log in storePathRootDir alone",
        ),
        (
            "tls.server.mode",
            found.tls.mode == "enforcing",
            "members of a DLedger group speak no TLS: disabled or permissive",
        ),
    )
    for name, is_broken, rule in rules:
        if is_broken:
            raise ConfigurationError(file, None, name, rule)


def _lacks_for_escapes(store: StoreConfig, process: ProcessSettings) -> str | None:
    """Why no slave stands in here for a master that is gone; None = one does."""
    if store.mode.enable_controller_mode:
        return "in controller mode"
    if store.mode.enable_dleger_commit_log:
        return "in a DLedger group"
    if not store.replication.enable_slave_acting_master:
        return "without enableSlaveActingMaster"
    return None if process.addresses else "without namesrvAddr"
