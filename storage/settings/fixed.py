"""Settings that no request may change, of any server. Pure.

Only a start reads them, and they name a place, an address or an identity, or say who may do what. A request that changes one is written
into the configuration file, so that the next start goes elsewhere: another directory, another port, another name, another key. Whoever
may change the file may change them there.

Departure: since CVE-2023-33246 (of a broker) and CVE-2023-37582 (of a name server) Java refuses rocketmqHome, configBlackList,
brokerConfigPath, configStorePath and kvConfigPath. It takes the rest from anybody who reaches the port.
Java: AdminBrokerProcessor.initConfigBlackList, DefaultRequestProcessor.initConfigBlackList.
"""

from __future__ import annotations

from collections.abc import Iterable

_PLACES = frozenset(
    {
        *("storePathRootDir", "storePathCommitLog", "readOnlyCommitLogStorePaths", "storePathDLedgerCommitLog"),
        *("storePathEpochFile", "storePathBrokerIdentity", "tieredStoreFilePath", "storeType", "configManagerVersion"),
        *("rocketmqHome", "brokerConfigPath", "authConfigPath", "configStorePath", "kvConfigPath", "configName"),
        *("controllerStorePath", "enableDLegerCommitLog", "controllerType"),
        *("objectStoreBucket", "objectStoreEndpoint", "metricsGrpcExporterTarget"),
        *(
            "messageStorePlugIn",
            "tieredBackendServiceProvider",
            "tieredMetadataServiceProvider",
        ),  # classes to be loaded
    }
)
_ADDRESSES = frozenset(
    {
        *("bindAddress", "listenPort", "haListenPort", "brokerIP1", "brokerIP2", "haMasterAddress", "namesrvAddr"),
        *("controllerAddr", "metricsPromExporterHost", "metricsPromExporterPort", "socksProxyConfig"),
        *("rmqAddressServerDomain", "rmqAddressServerSubGroup", "fetchNamesrvAddrByAddressServer"),
        *("fetchNameSrvAddrByDnsLookup", "fetchControllerAddrByDnsLookup", "jRaftControllerRPCAddr", "jRaftInitConf"),
    }
)
_IDENTITIES = frozenset(
    {
        *("brokerName", "brokerClusterName", "brokerId", "brokerRole", "inBrokerContainer", "enableControllerMode"),
        *("dLegerGroup", "dLegerPeers", "dLegerSelfId", "preferredLeaderId", "clusterName"),
        *("controllerDLegerGroup", "controllerDLegerPeers", "controllerDLegerSelfId", "jRaftGroupId", "jRaftServerId"),
    }
)
_RIGHTS = frozenset(
    {
        *("configBlackList", "initAuthenticationUser", "innerClientAuthenticationCredentials", "aclEnable"),
        *("authenticationEnabled", "authenticationWhitelist", "authorizationEnabled", "authorizationWhitelist"),
        *("authenticationProvider", "authenticationMetadataProvider", "authenticationStrategy"),
        *(
            "authorizationProvider",
            "authorizationMetadataProvider",
            "authorizationStrategy",
            "migrateAuthFromV1Enabled",
        ),
        *("objectStoreAccessKey", "objectStoreSecretKey", "metricsGrpcExporterHeader", "registrationNetworks"),
    }
)
FIXED_SETTINGS = _PLACES | _ADDRESSES | _IDENTITIES | _RIGHTS
"""Java's names and this package's; those of TLS (`tls.…`) belong to them, too."""


def is_fixed(java_name: str) -> bool:
    """Whether no request may change the setting."""
    return java_name in FIXED_SETTINGS or java_name.startswith("tls.")


def refusal_of_change(names: Iterable[str], black_list: str) -> str | None:
    """Why a request may not change these settings; None where it may. `black_list` is the server's configBlackList."""
    listed = {name.strip() for name in black_list.split(";")}
    for name in names:
        if name in listed:
            return "Can not update config in black list."
        if is_fixed(name):
            rule = "only a start reads it, and it names a place, an address or an identity, or says who may do what"
            return f"Can not update config {name}: {rule}; change it in the configuration file"
    return None
