"""What a name server's configuration file says. Java: NamesrvConfig.

The file has the server's settings too (`remoting_server/settings.py`); listenPort is 9876 where it does not say otherwise.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from spark_mq.client.settings import Credentials
from spark_mq.namesrv.access import administrator_of
from spark_mq.remoting_server.settings import (
    ConfigurationTexts,
    ServerSettings,
    TlsServerSettings,
    read_settings,
    require,
    setting,
    texts_of_file,
    unfollowed_names,
)
from storage.errors import ConfigurationError

DEFAULT_PORT = 9_876
IMPORTANT = ("bindAddress", "listenPort", "kvConfigPath", "configStorePath", "tls.server.mode", "supportActingMaster")
"""What `-m` prints. Java marks none."""
NOT_FOLLOWED = {
    "productEnvName": "center",
    "clusterTest": "false",
    "enableControllerInNamesrv": "false",
    "clientRequestThreadPoolNums": None,
    "defaultThreadPoolNums": None,
    "serverWorkerThreads": None,
    "serverCallbackExecutorThreads": None,
    "serverSelectorThreads": None,
    "serverOnewaySemaphoreValue": None,
    "serverAsyncSemaphoreValue": None,
    "serverPooledByteBufAllocatorEnable": None,
    "serverNettyWorkerGroupEnable": None,
    "useEpollNativeSelector": None,
    "tls.test.mode.enable": None,
    "namesrvAddr": None,
}
"""Java's names that do nothing here. Those with a value may have no other: it would ask for what is not there."""
_OWN_BLACK_LIST = frozenset({"configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome"})


def _in_home(name: str) -> str:
    return os.path.join(os.path.expanduser("~"), "namesrv", name)


@dataclass(frozen=True, slots=True)
class NameServerSettings:
    """What the name server itself does."""

    rocketmq_home: str | None = setting("rocketmqHome", None, "String")
    kv_config_path: str = setting("kvConfigPath", partial(_in_home, "kvConfig.json"), "String")
    config_store_path: str = setting("configStorePath", partial(_in_home, "namesrv.properties"), "String")
    """Where a changed configuration is written; of a server with a configuration file that file."""
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
    waits_for_service: bool = setting("needWaitForService", False, "boolean")
    """Whether routes are refused until the brokers have had time to register."""
    wait_seconds_for_service: int = setting("waitSecondsForService", 45, "int")
    deletes_topics: bool = setting("deleteTopicWithBrokerRegistration", False, "boolean")
    config_black_list: str = setting("configBlackList", "configBlackList;configStorePath;kvConfigPath", "String")
    """Names, between semicolons, that no request may change."""
    admin_user: str | None = setting("initAuthenticationUser", None, "String", is_secret=True)
    """`{"username":"…","password":"…"}`: who may change things from another host, by a signature. Java: AuthConfig, for brokers."""

    def __post_init__(self) -> None:
        for name in (
            "client_queue_capacity",
            "default_queue_capacity",
            "scan_interval_ms",
            "unregister_queue_capacity",
        ):
            require(self, name, "it must be greater than 0", is_kept=getattr(self, name) > 0)
        try:
            administrator_of(self.admin_user)
        except ValueError as rule:
            raise ConfigurationError(None, None, "initAuthenticationUser", str(rule)) from None

    @property
    def administrator(self) -> Credentials | None:
        """Who may change things from another host; None = nobody."""
        return administrator_of(self.admin_user)

    def is_fixed(self, java_name: str) -> bool:
        """Whether no request may change the setting: what names files, secrets, addresses and TLS, and the black list."""
        listed = java_name in self.config_black_list.split(";") or java_name in _OWN_BLACK_LIST
        return listed or java_name == "initAuthenticationUser" or java_name.startswith("tls.")


@dataclass(frozen=True, slots=True)
class Configuration(ConfigurationTexts):
    """All settings of a name server process."""

    name_server: NameServerSettings = field(default_factory=NameServerSettings)
    server: ServerSettings = field(default_factory=lambda: ServerSettings(listen_port=DEFAULT_PORT))
    tls: TlsServerSettings = field(default_factory=TlsServerSettings)
    warnings: tuple[str, ...] = ()

    @property
    def parts(self) -> tuple[Any, ...]:
        return self.name_server, self.server, self.tls

    def updated(self, texts: Mapping[str, str]) -> Configuration:
        """With other values of settings that can change while it runs; unknown names are left alone, as in Java.

        Those of the listener hold from the next start on. Raises ConfigurationError for a text that is no value.
        """
        changed = configuration_of(self.changed_texts(texts))
        kept = replace(changed.name_server, admin_user=self.name_server.admin_user)
        return Configuration(kept, changed.server, self.tls, self.warnings)


def read_configuration(content: bytes, file: str, given: Mapping[str, str] | None = None) -> Configuration:
    """What a properties file says, and what is given for what it does not say. Raises ConfigurationError."""
    return configuration_of(texts_of_file(content, file, given), file)


def configuration_of(texts: Mapping[str, str], file: str | None = None) -> Configuration:
    """What texts by Java name make; names that nobody knows are warned about. Raises ConfigurationError."""
    classes = (NameServerSettings, ServerSettings, TlsServerSettings)
    notes = unfollowed_names(classes, texts, NOT_FOLLOWED, "name server", file)
    return Configuration(
        read_settings(NameServerSettings, texts, file),
        read_settings(ServerSettings, {"listenPort": str(DEFAULT_PORT), **texts}, file),
        read_settings(TlsServerSettings, texts, file),
        notes,
    )
