"""Our broker's access control with Apache's mqadmin and Java client, and with our client.

All tests of the client with access control run here too: SPARK_MQ_TEST_SERVERS=own (tests/support/own_servers.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from spark_mq.client.admin import Admin
from spark_mq.client.errors import AccessDeniedError, ClientError
from spark_mq.client.message import Message
from spark_mq.client.producer import Producer
from spark_mq.client.send_results import SendStatus
from spark_mq.client.settings import ClientSettings, Credentials
from tests.support.java_broker import Oracle, RunningBroker, wait_until

pytestmark = [pytest.mark.interop, pytest.mark.slow]

MQADMIN = "org.apache.rocketmq.tools.command.MQAdminStartup"
OPERATOR = Credentials("operator", "operators-secret")
ACL = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "transactionTimeOut": "1000",
    "transactionCheckInterval": "1000",
    "initAuthenticationUser": f'{{"username":"{OPERATOR.access_key}","password":"{OPERATOR.secret_key}"}}',
}


class Guarded(NamedTuple):
    """Our broker, and how Apache's command asks it."""

    broker: RunningBroker
    oracle: Oracle

    def mqadmin(self, *words: str, user: Credentials | None = OPERATOR) -> str:
        """What the command prints, whatever comes of it; it reads who asks from conf/tools.yml of its home."""
        home = self.oracle.directory / f"home-{user.access_key if user else 'nobody'}"
        (home / "conf").mkdir(parents=True, exist_ok=True)
        if user is not None:
            (home / "conf" / "tools.yml").write_text(
                f"accessKey: {user.access_key}\nsecretKey: {user.secret_key}\n", "ascii"
            )
        asking = Oracle(home, self.oracle.home, java_properties=(f"-Drocketmq.home.dir={home}",))
        return asking.java_said(MQADMIN, *words)


@pytest.fixture(scope="module")
def guarded(oracle: Oracle, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    directory = tmp_path_factory.mktemp("guarded-")
    with ExitStack() as stack:
        ours = Oracle(directory, is_ours=True)
        name_server = stack.enter_context(ours.namesrv())
        broker = stack.enter_context(
            ours.broker(directory / "store", name_server, waitTimeMillsInSendQueue=20_000, **ACL)
        )
        yield Guarded(broker, ours)


ACCOUNTS = """\
accounts:
- accessKey: operator
  secretKey: operators-secret
  admin: true
- accessKey: bobby77
  secretKey: bobs-secret
  defaultTopicPerm: DENY
  defaultGroupPerm: DENY
"""
RIGHTS = "  topicPerms: [guarded=PUB|SUB, probe=PUB]\n  groupPerms: [GGuarded=SUB]\n"
"""ACL 1.0's files, before and after."""


@pytest.fixture(scope="module")
def plain(oracle: Oracle, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Guarded, Path]]:
    pytest.importorskip("yaml")
    directory = tmp_path_factory.mktemp("plain-")
    file = directory / "home" / "conf" / "plain_acl.yml"
    file.parent.mkdir(parents=True)
    file.write_text(ACCOUNTS)
    with ExitStack() as stack:
        ours = Oracle(directory, is_ours=True)
        name_server = stack.enter_context(ours.namesrv())
        home = {"rocketmqHome": str(directory / "home"), "waitTimeMillsInSendQueue": 20_000}
        times = {"transactionTimeOut": "1000", "transactionCheckInterval": "1000"}
        broker = stack.enter_context(ours.broker(directory / "store", name_server, aclEnable="true", **home, **times))
        yield Guarded(broker, ours), file


def test_with_acl_1_mqadmin_and_a_java_client_go_by_the_files_as_they_change(plain: tuple[Guarded, Path]) -> None:
    """PlainPermissionManager, AclFileWatchService."""
    guarded, file = plain
    bob = Credentials("bobby77", "bobs-secret")
    create = ("updateTopic", "-b", guarded.broker.address, "-t", "guarded", "-r", "1", "-w", "1")
    assert "Need admin permission for request code=17" in guarded.mqadmin(*create, user=bob)
    assert "No accessKey is configured" in guarded.mqadmin(*create, user=None)
    assert "create topic to" in guarded.mqadmin(*create)
    with Admin(settings(guarded, OPERATOR)) as admin:
        wait_until(lambda: "guarded" in admin.topics(), "the topic is registered")
    refused = run_java(guarded, bob, wait=5)
    assert {line["refused"] for line in refused} == {1}
    exception = "org.apache.rocketmq.acl.common.AclException: No default permission for topic:guarded"
    assert all(exception in line["remark"] for line in refused)
    file.write_text(ACCOUNTS + RIGHTS)

    def may_send() -> bool:
        with suppress(ClientError), Producer(settings(guarded, bob), "P") as producer:
            return producer.send(Message("probe", b"body")).status is SendStatus.SEND_OK
        return False

    wait_until(may_send, "the file is read again")
    lines = run_java(guarded, bob, wait=60)
    assert [line["sent"] for line in lines if "sent" in line] == ["SEND_OK"] * 4
    got = sorted((line["got"], line["times"]) for line in lines if "got" in line)
    assert got == [("again", 0), ("again", 1), ("checked", 0), ("committed", 0), ("plain", 0)]


def settings(guarded: Guarded, user: Credentials | None) -> ClientSettings:
    return ClientSettings((guarded.broker.name_server,), credentials=user)


@pytest.mark.long
def test_mqadmin_makes_users_and_entries_and_java_and_our_client_go_by_them(guarded: Guarded) -> None:
    at = ("-b", guarded.broker.address)
    ann = Credentials("ann", "anns-secret")
    assert "create user to" in guarded.mqadmin("createUser", *at, "-u", "ann", "-p", ann.secret_key)
    assert "The user is existed" in guarded.mqadmin("createUser", *at, "-u", "ann", "-p", "x")
    shown = guarded.mqadmin("getUser", *at, "-u", "ann")
    assert re.search(r"ann\s.*Normal\s+enable", shown)
    assert ann.secret_key not in shown
    listed = guarded.mqadmin("listUser", *at)
    assert {"ann", "operator"} <= set(listed.split())
    assert OPERATOR.secret_key not in listed

    create = ("updateTopic", *at, "-t", "orders", "-r", "1", "-w", "1")
    assert "no matched policies" in guarded.mqadmin(*create, user=ann)
    assert "username cannot be null" in guarded.mqadmin(*create, user=None)
    assert "check signature failed" in guarded.mqadmin(*create, user=Credentials("ann", "guessed"))
    entries = ("-s", "User:ann", "-r", "Topic:orders", "-d", "Allow", "-i", "127.0.0.0/8")
    assert "create acl to" in guarded.mqadmin("createAcl", *at, *entries, "-a", "Create")
    assert "create topic to" in guarded.mqadmin(*create, user=ann)
    with Admin(settings(guarded, OPERATOR)) as admin:
        wait_until(lambda: "orders" in admin.topics(), "the topic is registered")
    with Producer(settings(guarded, ann), "P") as producer, pytest.raises(Exception, match="no matched policies"):
        producer.send(Message("orders", b"body"))
    assert "update acl to" in guarded.mqadmin("updateAcl", *at, *entries, "-a", "Pub,Get")
    with Producer(settings(guarded, ann), "P") as producer, Admin(settings(guarded, ann)) as admin:
        queue = producer.send(Message("orders", b"body")).queue
        assert admin.max_offset(queue) == 1
        with pytest.raises(AccessDeniedError, match=r"Topic:orders from 127\.0\.0\.1, no matched policies"):
            admin.delete_topic("orders")

    assert re.search(
        r"User:ann\s+Custom\s+Topic:orders\s+\[Pub, Get\]\s+\[127.0.0.0/8\]\s+Allow", guarded.mqadmin("listAcl", *at)
    )
    assert "Topic:orders" in guarded.mqadmin("getAcl", *at, "-s", "User:ann")
    assert "delete acl to" in guarded.mqadmin("deleteAcl", *at, "-s", "User:ann", "-r", "Topic:orders")
    assert "Topic:orders" not in guarded.mqadmin("listAcl", *at)
    assert "update user to" in guarded.mqadmin("updateUser", *at, "-u", "ann", "-s", "disable")
    assert "User:ann is disabled" in guarded.mqadmin(*create, user=ann)
    assert "delete user to" in guarded.mqadmin("deleteUser", *at, "-u", "ann")
    assert "User:ann is not found" in guarded.mqadmin(*create, user=ann)


@pytest.mark.long
def test_a_java_producer_and_consumer_need_pub_and_sub_and_nothing_else(guarded: Guarded) -> None:
    """Sends, transactions that are committed and checked, heartbeats, pulls, offsets, a message sent back and its retry topic."""
    at = ("-b", guarded.broker.address)
    bob = Credentials("bob", "bobs-secret")
    guarded.mqadmin("createUser", *at, "-u", "bob", "-p", bob.secret_key)
    guarded.mqadmin("updateTopic", *at, "-t", "guarded", "-r", "1", "-w", "1")
    with Admin(settings(guarded, OPERATOR)) as admin:
        wait_until(lambda: "guarded" in admin.topics(), "the topic is registered")
    refused = run_java(guarded, bob, wait=5)
    assert {line["refused"] for line in refused} == {16}
    assert all(
        "User:bob has no permission to access Topic:guarded from 127.0.0.1" in line["remark"] for line in refused
    )
    stranger = run_java(guarded, Credentials("bob", "guessed"), wait=5)
    assert {line["remark"] for line in stranger} == {"check signature failed."}
    entries = ("-s", "User:bob", "-d", "Allow")
    guarded.mqadmin("createAcl", *at, *entries, "-r", "Topic:guarded", "-a", "Pub,Sub")
    guarded.mqadmin("createAcl", *at, *entries, "-r", "Group:GGuarded", "-a", "Sub")
    lines = run_java(guarded, bob, wait=60)
    assert [line["sent"] for line in lines if "sent" in line] == ["SEND_OK"] * 4
    got = sorted((line["got"], line["times"]) for line in lines if "got" in line)
    assert got == [("again", 0), ("again", 1), ("checked", 0), ("committed", 0), ("plain", 0)]


def run_java(guarded: Guarded, user: Credentials, *, wait: int) -> list[dict[str, Any]]:
    """The lines of tests/oracle/src/Guarded.java."""
    out = guarded.oracle.directory / f"{user.access_key}-{user.secret_key}-{wait}.jsonl"
    pairs = {"ns": guarded.broker.name_server, "topic": "guarded", "group": "GGuarded", "wait": wait}
    pairs |= {"accessKey": user.access_key, "secretKey": user.secret_key}
    guarded.oracle.java_said("Guarded", out, *(f"{name}={value}" for name, value in pairs.items()))
    return [json.loads(line) for line in out.read_text("utf-8").splitlines()]
