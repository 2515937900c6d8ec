"""ACL 1.0 by Apache's mqadmin of 4.9.7, the requests 50 to 53: at Apache's broker of that release, and at ours.

mqadmin of 5.3.3 has these commands no more, and Maven Central has no tools of 5.3.2. White addresses that are none are left out: Java
writes them into the file, and cannot read that again; our broker refuses them.
"""

from __future__ import annotations

import re
import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from spark_mq.client.settings import Credentials
from tests.support.java_broker import Oracle

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.long]

MQADMIN = "org.apache.rocketmq.tools.command.MQAdminStartup"
RELEASE = "4.9.7"
OPERATOR = Credentials("operator", "operators-secret")
ACCOUNTS = f"""\
globalWhiteRemoteAddresses:
- 10.10.103.*
accounts:
- accessKey: {OPERATOR.access_key}
  secretKey: {OPERATOR.secret_key}
  admin: true
- accessKey: bobby77
  secretKey: bobs-secret
  defaultTopicPerm: DENY
  topicPerms:
  - orders=SUB
"""


class Shown(NamedTuple):
    """What a broker made of the commands."""

    said: list[str]
    """The text of each command, without what differs between brokers."""
    files: list[Any]
    """The accounts' file after each command."""


def commands(file: Path) -> list[tuple[str, ...]]:
    account = ("updateAclConfig", "-a", "carol77", "-s", "carols-secret")
    return [
        ("clusterAclConfigVersion",),
        (
            *account,
            "-t",
            "orders=PUB|SUB,other=DENY",
            "-g",
            "G=SUB",
            "-i",
            "PUB",
            "-u",
            "SUB",
            "-w",
            "192.168.0.*",
            "-m",
            "false",
        ),
        ("updateAclConfig", "-a", "carol77", "-s", "another-secret"),
        ("updateAclConfig", "-a", "bobby77", "-s", "bobs-secret", "-t", "orders=PUB"),
        ("updateAclConfig", "-a", "dora", "-s", "doras-secret"),
        ("updateAclConfig", "-a", "doras77", "-s", "x"),
        ("updateAclConfig", "-a", "doras77", "-s", "doras-secret", "-i", "ALL"),
        ("updateGlobalWhiteAddr", "-g", "10.10.104.*,192.168.1.*"),
        ("updateGlobalWhiteAddr", "-g", "10.10.105.*", "-p", str(file)),
        ("deleteAclConfig", "-a", "bobby77"),
        ("deleteAclConfig", "-a", "nobody7"),
        ("clusterAclConfigVersion",),
    ]


def told(text: str, home: Path, address: str) -> str:
    """What the command prints, without the JVM's lines, places and times."""
    lines = [re.sub("NOTE: .*|@[0-9a-f]+", "", line) for line in text.splitlines()]
    kept = "\n".join(line for line in lines if line and not line.startswith(("\tat ", "Caused by", "\t...")))
    kept = kept.replace(str(home), "HOME").replace(address, "ADDRESS")
    return re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "TIME", kept)


def written(document: Any) -> Any:
    """An accounts' file, without times; an account whose `admin` is false may leave it out."""
    versions = [{**each, "timestamp": 0} for each in document.get("dataVersion", [])]
    accounts = [{"admin": False, **each} for each in document["accounts"]]
    return {**document, "accounts": accounts, "dataVersion": versions}


def shown(oracle: Oracle, servers: Oracle, home: Path) -> Shown:
    """With a broker of `servers`; mqadmin is the release's."""
    yaml = pytest.importorskip("yaml")
    release = oracle.release(RELEASE)
    file = home / "conf" / "plain_acl.yml"
    file.parent.mkdir(parents=True)
    file.write_text(ACCOUNTS)
    for name in ("logback_broker.xml", "logback_tools.xml"):
        shutil.copy(release.release_home / "conf" / "logback.xml", file.parent / name)
    (file.parent / "tools.yml").write_text(f"accessKey: {OPERATOR.access_key}\nsecretKey: {OPERATOR.secret_key}\n")
    at_home = (f"-Drocketmq.home.dir={home}",)
    asking = Oracle(home / "asking", oracle.home, RELEASE, at_home)
    with ExitStack() as stack:
        name_server = stack.enter_context(Oracle(home, is_ours=True).namesrv())
        settings = {"aclEnable": "true", "rocketmqHome": str(home)}
        running = Oracle(home, oracle.home, RELEASE, at_home, is_ours=servers.is_ours)
        broker = stack.enter_context(running.broker(home / "store", name_server, **settings))
        said, files = [], []
        for name, *words in commands(file):
            text = asking.java_said(MQADMIN, name, "-n", name_server, "-b", broker.address, *words)
            said.append(told(text, home, broker.address))
            files.append(written(yaml.safe_load(file.read_text())))
        return Shown(said, files)


def test_the_commands_say_and_do_the_same_at_both(oracle: Oracle, tmp_path: Path) -> None:
    at_apaches = shown(oracle, oracle, tmp_path / "apaches")
    at_ours = shown(oracle, Oracle(tmp_path, is_ours=True), tmp_path / "ours")
    for command, *found in zip(
        commands(Path("F")), at_apaches.said, at_ours.said, at_apaches.files, at_ours.files, strict=True
    ):
        assert (command, found[1], found[3]) == (command, found[0], found[2])
    assert "success" in at_ours.said[0]
    assert [each["accessKey"] for each in at_ours.files[-1]["accounts"]] == ["operator", "carol77", "doras77"]
