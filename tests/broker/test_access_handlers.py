"""Users and entries by request, under Java's rules, and what stands in the files afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spark_mq.access.users import AccessRules, User, UserStatus, UserTable, UserType
from spark_mq.broker.broker import Broker
from spark_mq.client.calls import signed
from spark_mq.client.settings import Credentials
from spark_mq.remoting import make_request, read_body, read_body_list, write_body
from spark_mq.remoting.administration import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from spark_mq.remoting.consumers import ConsumerData, HeartbeatData, SubscriptionData
from storage import open_store
from storage.errors import StateFileError
from storage.service.put_service import PutService
from storage.settings.load import parse_config
from tests.broker.peers import BrokerPeers, FakeClock

CONF = (
    b"brokerName=b\nbrokerIP1=127.0.0.1\nmappedFileSizeCommitLog=1048576\nmappedFileSizeConsumeQueue=20000\n"
    b"maxHashSlotNum=100\nmaxIndexNum=400\n"
    b'initAuthenticationUser={"username":"root","password":"roots"}\nauthenticationEnabled=true\n'
)
ROOT, BOB = User("root", "roots", UserType.SUPER), User("bob", "bobs")
RULES = AccessRules(authenticates=True, authorizes=True, first_users=(ROOT, BOB))


class Operator:
    """Asks as one user; an answer is its code and remark."""

    def __init__(self, broker: Broker, user: User | None) -> None:
        self._peers = BrokerPeers(broker, FakeClock())
        self._user = user

    def ask(self, code: int, body: UserInfo | AclInfo | None = None, **fields: str) -> tuple[int, str | None]:
        answer = self.answer(code, body, **fields)
        return answer.code, answer.remark

    def answer(self, code: int, body: UserInfo | AclInfo | None = None, **fields: str):  # type: ignore[no-untyped-def]
        command = make_request(code, fields, b"" if body is None else write_body(body))
        if self._user is not None:
            command = signed(command, Credentials(self._user.name, self._user.password))
        return self._peers.ask("c", code, command.ext_fields, bytes(command.body))


@contextmanager
def running(root: Path, rules: AccessRules = RULES) -> Iterator[Broker]:
    clock = FakeClock()
    store = open_store(root, config=parse_config(CONF), read_only=False, create=True, clock=clock)
    with (
        PutService(store, starts_duties=False) as service,
        Broker(service, clock=clock, steady=clock, access=rules) as broker,
    ):
        yield broker


def entries(*resources: str, decision: str = "Allow") -> tuple[PolicyInfo, ...]:
    told = (PolicyEntryInfo(resource=key, actions=("Pub", "sub"), decision=decision) for key in resources)
    return (PolicyInfo(policy_type="Custom", entries=tuple(told)),)


ANN = UserInfo(password="anns")


def test_a_user_is_made_changed_told_and_deleted_and_outlives_the_broker(tmp_path: Path) -> None:
    with running(tmp_path / "store") as broker:
        root = Operator(broker, ROOT)
        assert root.ask(3001, ANN, username="ann") == (0, None)
        assert root.ask(3001, ANN, username="ann") == (16, "The user is existed")
        assert root.ask(3002, UserInfo(user_status="DISABLE"), username="ann") == (0, None)
        assert root.ask(3002, ANN, username="eve") == (16, "The user is not exist")
    with running(tmp_path / "store") as broker:
        root = Operator(broker, ROOT)
        assert broker.parts.access.users.users["ann"] == User("ann", "anns", UserType.NORMAL, UserStatus.DISABLE)
        found = read_body(UserInfo, root.answer(3004, username="ann").body)
        assert found == UserInfo(username="ann", user_type="Normal", user_status="disable")
        assert root.answer(3004, username="eve").body == b""
        assert [each.username for each in read_body_list(UserInfo, root.answer(3005).body)] == ["ann", "bob", "root"]
        listed = root.answer(3005, filter="o")
        assert [each.username for each in read_body_list(UserInfo, listed.body)] == ["bob", "root"]
        assert b"bobs" not in bytes(listed.body)
        assert b"roots" not in bytes(listed.body)
        assert root.answer(3005, filter="x").body == b""
        assert root.ask(3003, username="ann") == (0, None)
        assert root.ask(3003, username="ann") == (0, None)
    text = (tmp_path / "store" / "config" / "users.json").read_text()
    assert sorted(UserTable.load(text).users) == ["bob", "root"]


@pytest.mark.parametrize(
    ("code", "body", "username", "expected"),
    [
        (3001, ANN, "", (29, "The username is blank")),
        (3002, ANN, "", (29, "The username is blank")),
        (3004, None, " ", (29, "The username is blank")),
        (3001, ANN, " ", (16, "username can not be blank")),
        (3003, None, "", (16, "username can not be blank")),
        (3001, UserInfo(password=" "), "ann", (16, "password can not be blank")),
        (3001, UserInfo(), "ann", (16, "password can not be blank")),
    ],
)
def test_names_and_passwords_are_not_blank(
    tmp_path: Path, code: int, body: UserInfo | None, username: str, expected: tuple[int, str]
) -> None:
    with running(tmp_path / "store") as broker:
        assert Operator(broker, ROOT).ask(code, body, username=username) == expected


@pytest.mark.parametrize("asker", [BOB, None, User("root", "guessed", UserType.SUPER)], ids=["bob", "nobody", "forger"])
def test_only_a_super_user_changes_one(tmp_path: Path, asker: User | None) -> None:
    """In Java nobody may do it too: its request has no name to be looked up."""
    with running(tmp_path / "store") as broker:
        operator = Operator(broker, asker)
        made = UserInfo(password="p", user_type="super")
        assert operator.ask(3001, made, username="eve") == (1, "The super user can only be create by super user")
        assert operator.ask(3002, made, username="bob") == (1, "The super user can only be update by super user")
        remark = "The super user can only be update by super user"
        assert operator.ask(3002, UserInfo(password="mine"), username="root") == (16, remark)
        assert operator.ask(3003, username="root") == (16, remark)
        assert broker.parts.access.users.users == {"bob": BOB, "root": ROOT}
        root = Operator(broker, ROOT)
        assert root.ask(3002, made, username="bob") == (0, None)
        assert root.ask(3003, username="bob") == (0, None)


def test_while_nobody_has_to_sign_anybody_does(tmp_path: Path) -> None:
    """Then an operator of this host makes the first users."""
    with running(tmp_path / "store", AccessRules()) as broker:
        nobody = Operator(broker, None)
        assert nobody.ask(3001, UserInfo(password="p", user_type="Super"), username="eve") == (0, None)
        assert nobody.ask(3003, username="eve") == (0, None)


def test_entries_are_made_replaced_told_and_deleted(tmp_path: Path) -> None:
    with running(tmp_path / "store") as broker:
        root = Operator(broker, ROOT)
        assert root.ask(3006, AclInfo(policies=entries("Topic:a", "Topic:b")), subject="User:bob") == (0, None)
        told = AclInfo(subject="User:bob", policies=entries("Topic:b", decision="Deny"))
        assert root.ask(3007, told, subject="User:root") == (0, None)  # the body's subject counts
    with running(tmp_path / "store") as broker:
        root = Operator(broker, ROOT)
        found = read_body(AclInfo, root.answer(3009, subject="User:bob").body)
        assert found.subject == "User:bob"
        (policy,) = found.policies or ()
        assert [(each.resource, each.actions, each.decision) for each in policy.entries or ()] == [
            ("Topic:a", ("Pub", "Sub"), "Allow"),
            ("Topic:b", ("Pub", "Sub"), "Deny"),
        ]
        assert root.answer(3009, subject="User:root").body == b""
        (listed,) = read_body_list(AclInfo, root.answer(3010, subjectFilter="bob", resourceFilter="Topic:b").body)
        assert [each.resource for each in (listed.policies or ())[0].entries or ()] == ["Topic:b"]
        assert root.answer(3010, subjectFilter="root").body == b""
        assert root.ask(3008, subject="User:bob", resource="Topic:a", policyType="Custom") == (0, None)
        assert root.ask(3008, subject="User:bob", resource="Topics") == (16, "The resource is null.")
        assert root.ask(3008, subject="User:bob") == (0, None)
        assert root.ask(3008, subject="User:bob") == (16, "The acl is not exist.")


@pytest.mark.parametrize("code", [3006, 3007])
def test_entries_that_say_nothing_or_of_nobody_are_refused(tmp_path: Path, code: int) -> None:
    with running(tmp_path / "store") as broker:
        root = Operator(broker, ROOT)
        assert root.ask(code, None, subject="User:bob") == (16, "The body of acl is null")
        assert root.ask(code, AclInfo(), subject="User:bob") == (16, "The body of acl is null")
        told = AclInfo(policies=entries("Topic:a"))
        assert root.ask(code, told, subject="User:eve") == (16, "The subject of User:eve is not exist.")
        assert root.ask(code, told, subject="bob") == (16, "The subject type is null.")
        assert root.ask(code, AclInfo(policies=entries("a")), subject="User:bob") == (16, "The resource is null.")
        assert root.ask(3008, subject="User:eve") == (16, "The subject is not exist.")
        assert root.ask(3009, subject="User:eve") == (16, "The subject is not exist.")
        assert root.ask(3009, subject="bob") == (16, "The subject is null.")


def test_a_deleted_users_entries_are_not_the_next_ones_of_his_name(tmp_path: Path) -> None:
    with running(tmp_path / "store") as broker:
        root = Operator(broker, ROOT)
        assert root.ask(3006, AclInfo(policies=entries("Topic:a")), subject="User:bob") == (0, None)
        assert root.ask(3003, username="bob") == (0, None)
        assert root.ask(3001, ANN, username="bob") == (0, None)
        assert root.answer(3009, subject="User:bob").body == b""


def test_the_settings_of_access_control_are_neither_told_nor_changed_by_request(tmp_path: Path) -> None:
    with running(tmp_path / "store") as broker:
        root = Operator(broker, ROOT)
        told = root.answer(26)
        assert b"authenticationEnabled=true" in bytes(told.body)
        assert b"roots" not in bytes(told.body)
        for name in (
            "authenticationEnabled",
            "authorizationEnabled",
            "initAuthenticationUser",
            "authorizationWhitelist",
        ):
            answer = BrokerPeers(broker, FakeClock()).ask("c", 25, {}, f"{name}=x".encode())
            assert answer.code == 16
            assert (answer.remark or "").startswith(f"Can not update config {name}: only a start reads it")


def test_files_with_passwords_are_the_owners_alone(tmp_path: Path) -> None:
    config = tmp_path / "store" / "config"

    def modes() -> dict[str, int]:
        return {
            path.name: path.stat().st_mode & 0o7777 for name in ("users", "acls") for path in config.glob(f"{name}*")
        }

    with running(tmp_path / "store") as broker:
        root = Operator(broker, ROOT)
        assert root.ask(3001, ANN, username="ann") == (0, None)
        assert root.ask(3006, AclInfo(policies=entries("Topic:T")), subject="User:ann") == (0, None)
        assert root.ask(3006, AclInfo(policies=entries("Topic:U")), subject="User:bob") == (0, None)
        files = {f"{name}.json{ending}" for name in ("users", "acls") for ending in ("", ".bak")}
        assert modes() == dict.fromkeys(files, 0o600)
    for path in config.glob("users*"):
        path.chmod(0o664)
    with running(tmp_path / "store"):
        assert modes() == dict.fromkeys(files, 0o600)


@pytest.mark.parametrize("name", ["users.json", "acls.json"])
def test_a_table_that_cannot_be_read_stops_the_start(tmp_path: Path, name: str) -> None:
    """It is not taken for an empty one: everybody would be shut out, or the first user's password be the setting's again."""
    with running(tmp_path / "store"):
        pass
    (tmp_path / "store" / "config").mkdir(exist_ok=True)
    (tmp_path / "store" / "config" / name).write_text('{"users":[{}],"acls":[{}]}')
    with pytest.raises(StateFileError), running(tmp_path / "store"):
        raise AssertionError("it runs")


def test_a_client_is_not_told_the_operators_signature(tmp_path: Path) -> None:
    """It could ask the broker the same."""
    clock = FakeClock()
    with running(tmp_path / "store") as broker:
        peers = BrokerPeers(broker, clock)
        consumer = ConsumerData(group_name="g", subscriptions=(SubscriptionData(topic="T"),))
        peers.ask("client", 34, {}, write_body(HeartbeatData(client_id="c", consumers=(consumer,))))
        request = make_request(307, {"consumerGroup": "g", "clientId": "c", "jstackEnable": "false"})
        told = signed(request, Credentials(ROOT.name, ROOT.password)).ext_fields
        assert peers.ask("operator", 307, told).code == 0
        (asked,) = peers.asked["client"]
        assert asked.ext_fields == request.ext_fields
