"""`conf/broker.conf`: every line has an effect on `spark-mq broker`, and says the default."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from spark_mq.broker.request_table import Pool
from spark_mq.broker_server.settings import Configuration, read_configuration
from tests.support.places import PROJECT

CONF = PROJECT / "conf/broker.conf"
_LINE = re.compile(r"#?([A-Za-z][A-Za-z0-9.]*)=(.*)")
LINES = [found.groups() for line in CONF.read_text("ascii").splitlines() if (found := _LINE.fullmatch(line))]
OTHERS = {
    "brokerRole": "SYNC_MASTER",
    "namesrvAddr": "127.0.0.1:1",
    "rocketmqVersion": "4.9",
    "flushDiskType": "SYNC_FLUSH",
    "brokerPermission": "4",
    "deleteWhen": "05",
    "diskMaxUsedSpaceRatio": "60",
    "messageDelayLevel": "1s 2s",
    "bindAddress": "127.0.0.2",
    "metricsExporterType": "PROM",
    "tls.server.mode": "disabled",
    "initAuthenticationUser": '{"username":"ann","password":"hers"}',
}
"""Other values of settings for which not every one is allowed."""
NEEDS = {
    "brokerId": "brokerRole=SLAVE\nnamesrvAddr=127.0.0.1:9876\n",
    "authorizationEnabled": "authenticationEnabled=true\n",
    **dict.fromkeys(("tls.server.certPath", "tls.server.keyPath"), "tls.server.certPath=a\ntls.server.keyPath=b\n"),
}
"""Lines without which they are refused."""


def effect(text: str) -> dict[str, object]:
    """All that a broker's process goes by, but for the lines themselves."""
    found = read_configuration(text.encode(), "/conf/broker.conf", {})
    parts = found.store, found.process, found.server, found.tls, found.access, found.group, found.metrics
    goes_by = {
        f"{type(part).__name__}.{each.name}": getattr(part, each.name) for part in parts for each in fields(part)
    }
    for lines in ("settings", "warnings", "file"):
        del goes_by[f"StoreConfig.{lines}"]
    assert found.store.warnings == (), text
    pools = {pool: found.pool(pool) for pool in Pool}
    return {**goes_by, "pools": pools}


def other(name: str, value: str) -> str:
    if name in OTHERS:
        return OTHERS[name]
    if value in ("true", "false"):
        return "false" if value == "true" else "true"
    return str(int(value) + 1) if value.isdecimal() else value + "x"


def test_it_says_what_holds_without_it() -> None:
    told = [(name, value) for name, value in LINES if f"\n{name}=" in CONF.read_text("ascii")]
    assert len(told) > 60
    assert effect(CONF.read_text("ascii"))
    without = effect("")
    differs = {name for name, value in told if effect(f"{name}={value}") != without}
    sizes_found_in_files = {"mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue"}
    assert differs == {"brokerName", *sizes_found_in_files}, "the default is the host's name"


@pytest.mark.parametrize(("name", "value"), LINES, ids=[name for name, _ in LINES])
def test_each_line_has_an_effect(name: str, value: str) -> None:
    needed = NEEDS.get(name, "")
    values = ("1", "2") if name == "brokerId" else (value, other(name, value))
    effects = [effect(f"{needed}{name}={each}") for each in values]
    assert effects[0] != effects[1]


def test_configuration_has_no_part_that_is_not_looked_at() -> None:
    assert {each.name for each in fields(Configuration)} == {
        "store",
        "process",
        "server",
        "tls",
        "access",
        "group",
        "metrics",
    }
