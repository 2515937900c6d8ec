"""The settings in a name server's configuration file. Java: NamesrvConfig.

The file also has the server's settings (`remoting_server/settings.py`); the default of listenPort is 9876.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Self

from spark_mq.remoting_server.administration import AdministeredConfiguration, AdministeredSettings
from spark_mq.remoting_server.settings import (
    NETTY_NAMES,
    ServerSettings,
    TlsServerSettings,
    read_settings,
    require,
    setting,
    unfollowed_names,
)
from storage.errors import ConfigurationError

DEFAULT_PORT = 9_876
IMPORTANT = ("bindAddress", "listenPort", "kvConfigPath", "configStorePath", "tls.server.mode", "supportActingMaster")
"""Settings that `-m` prints. Java marks none."""
NOT_FOLLOWED = {
    "productEnvName": "center",
    "clusterTest": "false",
    **dict.fromkeys(("clientRequestThreadPoolNums", "defaultThreadPoolNums", "namesrvAddr", *NETTY_NAMES)),
}
"""Java's names that do nothing here. Those with a value may have no other: it would ask for what is not there."""


def _in_home(name: str) -> str:
    return os.path.join(os.path.expanduser("~"), "namesrv", name)


@dataclass(frozen=True, slots=True)
class NameServerSettings(AdministeredSettings):
    """Settings of the name server itself."""

    rocketmq_home: str | None = setting("rocketmqHome", None, "String")
    kv_config_path: str = setting("kvConfigPath", partial(_in_home, "kvConfig.json"), "String")
    config_store_path: str = setting("configStorePath", partial(_in_home, "namesrv.properties"), "String")
    """The file for a changed configuration; the configuration file, if there is one."""
    order_message_enable: bool = setting("orderMessageEnable", False, "boolean")
    """Whether a route says how an ordered topic's queues are spread."""
    returns_order_topics: bool = setting("returnOrderTopicConfigToBroker", True, "boolean")
    client_queue_capacity: int = setting("clientRequestThreadPoolQueueCapacity", 50_000, "int")
    default_queue_capacity: int = setting("defaultThreadPoolQueueCapacity", 10_000, "int")
    scan_interval_ms: int = setting("scanNotActiveBrokerInterval", 5_000, "long")
    unregister_queue_capacity: int = setting("unRegisterBrokerQueueCapacity", 3_000, "int")
    supports_acting_master: bool = setting("supportActingMaster", False, "boolean")
    enable_all_topic_list: bool = setting("enableAllTopicList", True, "boolean")
    enable_topic_list: bool = setting("enableTopicList", True, "boolean")
    notifies_min_id: bool = setting("notifyMinBrokerIdChanged", False, "boolean")
    has_controller: bool = setting("enableControllerInNamesrv", False, "boolean")
    """Whether the command `namesrv` runs a controller in its process, by the same file."""
    waits_for_service: bool = setting("needWaitForService", False, "boolean")
    """Whether routes are refused until the brokers have had time to register."""
    wait_seconds_for_service: int = setting("waitSecondsForService", 45, "int")
    deletes_topics: bool = setting("deleteTopicWithBrokerRegistration", False, "boolean")
    config_black_list: str = setting("configBlackList", "configBlackList;configStorePath;kvConfigPath", "String")
    registration_networks: str = setting("registrationNetworks", "", "String")
    """`10.1.0.0/16;192.168.7.9;fd00::/8`: from where brokers register; empty = from everywhere. A name of this package's own."""

    def __post_init__(self) -> None:
        for name in (
            "client_queue_capacity",
            "default_queue_capacity",
            "scan_interval_ms",
            "unregister_queue_capacity",
        ):
            require(self, name, "it must be greater than 0", is_kept=getattr(self, name) > 0)
        _ = self.administrator, self.networks

    @property
    def networks(self) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
        """Networks that brokers may register from; none = from everywhere. Raises ConfigurationError."""
        texts = filter(None, (text.strip() for text in self.registration_networks.split(";")))
        try:
            return tuple(ipaddress.ip_network(text) for text in texts)
        except ValueError as rule:
            raise ConfigurationError(None, None, "registrationNetworks", str(rule)) from None

    def may_register(self, host: str) -> bool:
        """Whether brokers register from that address."""
        networks = self.networks
        if not networks:
            return True
        address = ipaddress.ip_address(host.partition("%")[0])
        mapped = getattr(address, "ipv4_mapped", None)
        return any((mapped or address) in network for network in networks)


@dataclass(frozen=True, slots=True)
class Configuration(AdministeredConfiguration):
    """All settings of a name server process."""

    server: ServerSettings = field(default_factory=lambda: ServerSettings(listen_port=DEFAULT_PORT))
    name_server: NameServerSettings = field(default_factory=NameServerSettings)

    @property
    def own(self) -> NameServerSettings:
        return self.name_server

    @classmethod
    def of(cls, texts: Mapping[str, str], file: str | None = None) -> Self:
        classes = (NameServerSettings, ServerSettings, TlsServerSettings)
        notes = unfollowed_names(classes, texts, NOT_FOLLOWED, "name server", file)
        return cls(
            name_server=read_settings(NameServerSettings, texts, file),
            server=read_settings(ServerSettings, {"listenPort": str(DEFAULT_PORT), **texts}, file),
            tls=read_settings(TlsServerSettings, texts, file),
            warnings=notes,
        )
