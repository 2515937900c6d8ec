"""No request may change what names a place, an address or an identity: looked for among the names of all settings of all servers."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from spark_mq.broker_server.settings import AccessSettings, ProcessSettings
from spark_mq.controller.settings import NOT_FOLLOWED as OF_CONTROLLERS
from spark_mq.controller.settings import ControllerSettings
from spark_mq.namesrv.settings import NOT_FOLLOWED as OF_NAME_SERVERS
from spark_mq.namesrv.settings import NameServerSettings
from spark_mq.remoting_server.settings import ServerSettings, TlsServerSettings
from storage.settings.java_settings import FIXED_SETTINGS, JAVA_SETTINGS, is_fixed, refusal_of_change
from storage.settings.nouns import NOUNS

CLASSES = (
    *(ProcessSettings, AccessSettings, ControllerSettings, NameServerSettings, ServerSettings, TlsServerSettings),
    *NOUNS,
)
DECLARED = {str(each.metadata["java"]) for found in CLASSES for each in fields(found)}
KNOWN = DECLARED | JAVA_SETTINGS.keys() | OF_NAME_SERVERS.keys() | OF_CONTROLLERS.keys()
LOOKS_FIXED = re.compile(
    r"path|dir(ectory)?$|dir[A-Z]|addr|ip\d|hosts?$|ports?$|name$|id$|peers|home|cert|secret|credential|networks"
    r"|provider$|plugin$|whitelist|^auth\w*(Enabled|Strategy)$|role$|^tls|domain|group$|endpoint|target|mode$",
    re.IGNORECASE,
)
IS_NO_PLACE = {
    *("compatibleWithOldNameSrv", "updateNameServerAddrPeriod", "enableMixedMessageType", "productEnvName"),
    *("msgTraceTopicName", "scanAvailableNameSrv", "fetchNamesrvAddrInterval", "lockInStrictMode", "highSpeedMode"),
    *("defaultMessageRequestMode", "autoCreateSubscriptionGroup", "enableCreateSysGroup"),
    *("enableLiteEventMode", "liteEventFullDispatchDelayTimeForWildcardGroup"),
    *("regionId", "disableNettyWorkerGroup", "cleanRocksDBDirtyCQIntervalMin"),
}
"""Names that only look like it."""


def test_every_setting_that_names_a_place_an_address_or_an_identity_is_fixed() -> None:
    open_names = {name for name in KNOWN if LOOKS_FIXED.search(name) and not is_fixed(name)}
    assert open_names <= IS_NO_PLACE, sorted(open_names - IS_NO_PLACE)


def test_every_fixed_setting_is_one_that_a_server_knows() -> None:
    assert KNOWN >= FIXED_SETTINGS


@pytest.mark.parametrize(
    ("names", "black_list", "says"),
    [
        (("fileReservedTime", "orderMessageEnable", "enableElectUncleanMaster"), "", None),
        (("fileReservedTime", "own"), "other; own", "Can not update config in black list."),
        (("fileReservedTime", "brokerName"), "", "brokerName"),
        (("tls.server.keyPassword",), "", "tls.server.keyPassword"),
    ],
)
def test_what_is_refused_is_named(names: tuple[str, ...], black_list: str, says: str | None) -> None:
    refusal = refusal_of_change(names, black_list)
    assert refusal is None if says is None else says in (refusal or "")
