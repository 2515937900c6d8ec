"""Every request of the table before the gate: of nobody, a user without entries, one with exactly what it needs, a SUPER user.

`NEEDED` says what each code needs, and is written down by itself: RocketMQ's documentation of ACL 2.0, and where that has nothing the
nearest request that it has.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spark_mq.access.acls import AclTable, read_acl
from spark_mq.access.users import AccessRules, User, UserStatus, UserType
from spark_mq.broker.broker import Broker
from spark_mq.broker.request_table import ADMINISTRATIVE, REQUEST_TABLE
from spark_mq.broker_server.server import Gate
from spark_mq.client.calls import signed
from spark_mq.client.settings import Credentials
from spark_mq.remoting import RemotingCommand, make_request, write_body, write_header
from spark_mq.remoting.administration import (
    AclInfo,
    PolicyEntryInfo,
    PolicyInfo,
    TopicConfigList,
)
from spark_mq.remoting.consumers import (
    ConsumerData,
    HeartbeatData,
    LockBody,
    SubscriptionData,
)
from spark_mq.remoting.messages import EndTransactionRequest, SendBackRequest, ViewMessageRequest
from storage import open_store
from storage.format.record import decode_offset_message_id, encode_offset_message_id
from storage.format.typed_json import TopicConfig
from storage.rules.response_codes import RequestRefusedError, ResponseCode
from storage.service.put_service import PutService
from storage.settings.load import parse_config
from tests.broker.peers import BrokerPeers, FakeClock
from tests.support.declared import request_body, request_fields

CONF = (
    b"brokerName=b\nbrokerClusterName=C\nbrokerIP1=127.0.0.1\nmappedFileSizeCommitLog=1048576\n"
    b"mappedFileSizeConsumeQueue=20000\nmaxHashSlotNum=100\nmaxIndexNum=400\n"
)
HERE, ELSEWHERE = "127.0.0.1", "203.0.113.7"
ROOT, ANN = User("root", "root's", UserType.SUPER), User("ann", "ann's")
RULES = AccessRules(authenticates=True, authorizes=True, first_users=(ROOT, ANN))

_CLUSTER_GET, _CLUSTER_UPDATE = ("Cluster:C Get",), ("Cluster:C Update",)
_BOTH_GET, _BOTH_UPDATE, _BOTH_SUB = (
    tuple(f"{resource} {action}" for resource in ("Topic:T", "Group:G")) for action in ("Get", "Update", "Sub")
)
NEEDED: dict[int, tuple[str, ...]] = {
    **dict.fromkeys((10, 310, 320, 324, 325, 370, 37), ("Topic:T Pub",)),
    **dict.fromkeys((11, 361, 34, 36, 41, 42, 309), _BOTH_SUB),
    **dict.fromkeys((35, 46), ("Group:G Sub",)),
    400: ("Group:G Sub/Get",),
    401: ("Topic:T Update", "Group:G Update"),
    12: ("Topic:T Sub/Get",),
    33: ("Topic:T Get",),
    38: ("Group:G Sub/Get",),
    14: ("Topic:T Sub/Get", "Group:G Sub/Get"),
    15: ("Topic:T Sub/Update", "Group:G Sub/Update"),
    **dict.fromkeys((17, 18, 513), ("Topic:T Create",)),
    323: ("Topic:T Update",),
    215: ("Topic:T Delete",),
    **dict.fromkeys((200, 225), ("Group:G Create",)),
    207: ("Group:G Delete",),
    **dict.fromkeys((29, 30, 31, 32, 202, 300, 351), ("Topic:T Get",)),
    **dict.fromkeys((203, 307, 343, 352), ("Group:G Get",)),
    **dict.fromkeys((208, 223, 303, 308, 321, 345), _BOTH_GET),
    **dict.fromkeys((222, 314, 353), _BOTH_UPDATE),
    **dict.fromkeys((21, 201), ("Cluster:C List/Get",)),
    **dict.fromkeys((26, 28, 43, 52, 45, 60, 61, 204, 305, 315, 317, 328, 402, 906, 907, 1007), _CLUSTER_GET),
    **dict.fromkeys((3004, 3005, 3009, 3010), _CLUSTER_GET),
    **dict.fromkeys((25, 50, 51, 53, 306, 316, 329, 3001, 3002, 3003, 3006, 3007, 3008), _CLUSTER_UPDATE),
}
CODES = sorted(REQUEST_TABLE)

_SUBSCRIPTIONS = (SubscriptionData(topic="T"), SubscriptionData(topic="%RETRY%G"))
_CONSUMER = ConsumerData(group_name="G", subscriptions=_SUBSCRIPTIONS)
_NOWHERE = 1 << 40
_FIRST_ID = encode_offset_message_id(bytes([127, 0, 0, 1]), 10_911, 0)


def sent(peers: BrokerPeers, topic: str, body: str, *, flag: int = 0, properties: str = "") -> int:
    """The place in the log of a message that the topic has got."""
    told = ("p", topic, "TBW102", 1, 0, flag, 0, 0, properties, 0, "false", 0, "false")
    answer = peers.ask("c", 310, dict(zip("abcdefghijklm", told, strict=True)), body.encode())
    assert answer.code == 0, answer.remark
    return decode_offset_message_id((answer.ext_fields or {})["msgId"])[2]


@contextmanager
def running(root: Path, rules: AccessRules) -> Iterator[Broker]:
    clock = FakeClock()
    store = open_store(root, config=parse_config(CONF), read_only=False, create=True, clock=clock)
    with (
        PutService(store, starts_duties=False) as service,
        Broker(service, clock=clock, steady=clock, access=rules) as broker,
    ):
        yield broker


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running(tmp_path_factory.mktemp("gate-") / "store", RULES) as found:
        assert sent(BrokerPeers(found, FakeClock()), "T", "first") == 0
        yield found


def request(code: int, user: User | None = None) -> RemotingCommand:
    """Of topic T and group G, signed by the user."""
    body = request_body(code, consumers=(_CONSUMER,))
    command = make_request(code, request_fields(code, message_id=_FIRST_ID, origin_topic=None), body)
    return command if user is None else signed(command, Credentials(user.name, user.password))


def refusal(broker: Broker, command: RemotingCommand, host: str = ELSEWHERE) -> str | None:
    try:
        Gate(broker.parts).check(command, host)
    except RequestRefusedError as refused:
        return refused.remark if refused.code == ResponseCode.NO_PERMISSION else f"code {refused.code}"
    return None


def allow(broker: Broker, *needs: str) -> None:
    """Ann may do this, each `Topic:T Pub/Sub`, and nothing else."""
    entries = tuple(
        PolicyEntryInfo(resource=key, actions=(action,), decision="Allow")
        for key, _, actions in (need.partition(" ") for need in needs)
        for action in actions.split("/")
    )
    broker.parts.access.acls = AclTable()
    if entries:
        subject, policies = read_acl(AclInfo(subject=ANN.subject, policies=(PolicyInfo(entries=entries),)))
        broker.parts.access.acls = AclTable({subject: policies})


def test_of_every_request_it_is_said_what_it_needs() -> None:
    assert sorted(NEEDED) == CODES


@pytest.mark.parametrize("code", CODES)
def test_nobody_may_ask_anything(broker: Broker, code: int) -> None:
    assert refusal(broker, request(code)) == "username cannot be null."
    assert refusal(broker, make_request(code)) == "username cannot be null."


@pytest.mark.parametrize("code", CODES)
def test_a_super_user_may_ask_everything(broker: Broker, code: int) -> None:
    assert refusal(broker, request(code, ROOT)) is None


@pytest.mark.parametrize("code", CODES)
def test_a_user_may_ask_with_exactly_what_it_needs_and_without_any_part_of_it_not(broker: Broker, code: int) -> None:
    needed = NEEDED[code]
    command = request(code, ANN)
    allow(broker)
    remarks = {
        f"User:ann has no permission to access {need.split()[0]} from {ELSEWHERE}, no matched policies."
        for need in needed
    }
    assert refusal(broker, command) in remarks
    for number, need in enumerate(needed):
        key, _, actions = need.partition(" ")
        others = (*needed[:number], *needed[number + 1 :])
        for action in actions.split("/"):
            allow(broker, *others, f"{key} {action}")
            assert refusal(broker, command) is None
        unneeded = {"Pub", "Sub", "Create", "Update", "Delete", "Get", "List"} - set(actions.split("/"))
        allow(broker, *others, f"{key} {'/'.join(sorted(unneeded))}", f"{key}x All", "Namespace:N All")
        remark = f"User:ann has no permission to access {key} from {ELSEWHERE}, no matched policies."
        assert refusal(broker, command) == remark


def test_what_a_request_says_of_itself_counts_only_if_it_is_signed(broker: Broker) -> None:
    command = request(310, ROOT)
    forged = {**(command.ext_fields or {}), "b": "Other"}
    assert refusal(broker, command._replace(ext_fields=forged)) == "check signature failed."
    assert refusal(broker, command._replace(body=b"other")) == "check signature failed."
    unsigned = {name: text for name, text in (command.ext_fields or {}).items() if name != "Signature"}
    assert refusal(broker, command._replace(ext_fields=unsigned)) == "check signature failed."
    assert refusal(broker, request(310, User("bob", "b"))) == "User:bob is not found."
    bob = User("bob", "b", UserType.SUPER, UserStatus.DISABLE)
    broker.parts.access.change_users(lambda users: users.with_user(bob))
    assert refusal(broker, request(310, bob)) == "User:bob is disabled."


@pytest.mark.parametrize("code", [10, 310, 320])
def test_a_topic_of_a_group_is_the_groups_whoever_says_he_sends(broker: Broker, code: int) -> None:
    """Java takes the group that the sender names as his own."""
    names = ("b", "a") if code != 10 else ("topic", "producerGroup")
    for topic in ("%RETRY%other", "%DLQ%other"):
        fields_ = {**(request(code).ext_fields or {}), names[0]: topic, names[1]: "G"}
        command = signed(make_request(code, fields_), Credentials(ANN.name, ANN.password))
        allow(broker, "Group:G Sub", f"Topic:{topic} All", "Topic:* All")
        assert "Group:other" in (refusal(broker, command) or "")
        allow(broker, "Group:other Sub")
        assert refusal(broker, command) is None


def sign(code: int, fields_: dict[str, str], body: bytes = b"") -> RemotingCommand:
    return signed(make_request(code, fields_, body), Credentials(ANN.name, ANN.password))


def test_a_message_is_judged_by_its_own_topic_whatever_the_request_says(broker: Broker) -> None:
    """By its place in the log any message could be read, handed to a group or ended."""
    peers = BrokerPeers(broker, FakeClock())
    place = sent(peers, "Secret", "body")
    half = sent(peers, "Secret", "half", flag=4, properties="TRAN_MSG\x01true\x02PGROUP\x01p\x02")
    view = write_header(ViewMessageRequest(topic="T", commitlog_offset=place))
    back = write_header(SendBackRequest(commitlog_offset=place, group="G", delay_level=0))
    end = EndTransactionRequest(
        topic="T",
        producer_group="p",
        half_queue_offset=0,
        half_commitlog_offset=half,
        commit_or_rollback=8,
        message_id="m",
    )
    for code, told, action in ((33, view, "Get"), (36, back, "Sub"), (37, write_header(end), "Pub")):
        allow(broker, "Topic:T All", "Group:G All", "Topic:RMQ_SYS_TRANS_HALF_TOPIC All")
        assert "Topic:Secret" in (refusal(broker, sign(code, told)) or "")
        allow(broker, f"Topic:Secret {action}", "Group:G Sub")
        assert refusal(broker, sign(code, told)) is None


def test_a_request_that_names_nothing_is_a_super_users(broker: Broker) -> None:
    allow(broker, "Topic:* All", "Group:* All")
    named_nothing = write_header(ViewMessageRequest(commitlog_offset=_NOWHERE))
    assert "the message that it names is not there" in (refusal(broker, sign(33, named_nothing)) or "")
    assert "it names nothing" in (refusal(broker, sign(42, {}, write_body(LockBody()))) or "")
    assert refusal(broker, sign(34, {}, write_body(HeartbeatData(client_id="c")))) is None
    assert refusal(broker, sign(35, {"clientID": "c", "producerGroup": "P"})) is None
    assert refusal(broker, sign(34, {}, b"{")) == "parse authorization context error."
    assert refusal(broker, sign(11, {})) == "parse authorization context error."


def test_lists_of_names_are_asked_for_each(broker: Broker) -> None:
    fields_ = {**(request(208).ext_fields or {}), "topicList": "T;Other"}
    allow(broker, *_BOTH_GET)
    assert "Topic:Other" in (refusal(broker, sign(208, fields_)) or "")
    fields_ = {**(request(308).ext_fields or {}), "filterGroups": "G,other"}
    assert "Group:other" in (refusal(broker, sign(308, fields_)) or "")
    topics = TopicConfigList(topics=(TopicConfig(topic="T"), TopicConfig(topic="Other")))
    allow(broker, "Topic:T Create")
    assert "Topic:Other" in (refusal(broker, sign(18, {}, write_body(topics))) or "")


# Other rules


def test_with_acl_1_admins_and_white_addresses_pass_before_all_and_others_by_their_rights(tmp_path: Path) -> None:
    """Java up to 5.3.2: initialAcl. What operators ask, and Java asks no admin for, is answered to this host alone."""
    pytest.importorskip("yaml")
    accounts = "- {accessKey: annette, secretKey: annes-secret, topicPerms: [T=PUB]}\n"
    accounts += "- {accessKey: operator, secretKey: operators-secret, admin: true}\n"
    (tmp_path / "conf").mkdir()
    text = f"globalWhiteRemoteAddresses: [10.9.9.*]\naccounts:\n{accounts}"
    (tmp_path / "conf" / "plain_acl.yml").write_text(text)
    ann, operator = User("annette", "annes-secret"), User("operator", "operators-secret")
    denied = f"code {ResponseCode.SYSTEM_ERROR}"
    with running(tmp_path / "store", AccessRules(plain_home=str(tmp_path))) as broker:
        assert not Gate(broker.parts).lets_all_send
        for code in CODES:
            assert refusal(broker, request(code)) == denied
            assert refusal(broker, request(code), "10.9.9.1") is None
            assert refusal(broker, request(code, operator)) is None
        assert refusal(broker, request(310, ann)) is None
        assert refusal(broker, request(11, ann)) == denied
        assert refusal(broker, request(17, ann), "127.0.0.1") == denied
        assert "this host alone" in (refusal(broker, request(26, ann)) or "")
        assert refusal(broker, request(26, ann), "127.0.0.1") is None


def test_without_access_control_operators_are_of_this_host(tmp_path: Path) -> None:
    with running(tmp_path / "store", AccessRules()) as broker:
        for code in CODES:
            assert refusal(broker, request(code), HERE) is None
            assert (refusal(broker, request(code)) is None) == (code not in ADMINISTRATIVE)


def test_who_has_signed_is_of_this_host_too_while_nobody_must_be_allowed(tmp_path: Path) -> None:
    with running(tmp_path / "store", AccessRules(authenticates=True, first_users=(ROOT,))) as broker:
        assert refusal(broker, request(310, ROOT)) is None
        assert refusal(broker, request(17, ROOT), HERE) is None
        assert refusal(broker, request(17, ROOT)) == "request 17 is answered to this host alone"
        assert refusal(broker, request(17), HERE) == "username cannot be null."


def test_codes_are_freed_of_signature_and_permission_one_by_one(tmp_path: Path) -> None:
    """Java believes any name in a request that needs no signature."""
    unsigned = frozenset({10, 17, 310})
    rules = AccessRules(True, True, unsigned, frozenset({10, 17, 11}), (ROOT, ANN))
    with running(tmp_path / "store", rules) as broker:
        assert refusal(broker, request(10)) is None
        assert refusal(broker, request(11)) == "username cannot be null."
        assert refusal(broker, request(11, ANN)) is None
        assert refusal(broker, request(17)) == "request 17 is answered to this host alone"
        assert refusal(broker, request(17), HERE) is None
        nobody = "Authorization failed. Please verify your access rights and try again."
        assert refusal(broker, request(310)) == nobody
        claimed = request(310)
        assert (
            refusal(broker, claimed._replace(ext_fields={**(claimed.ext_fields or {}), "AccessKey": "root"})) == nobody
        )
        assert refusal(broker, request(310, ROOT)) is None
