"""What a broker.conf says of a broker's process."""

from __future__ import annotations

import pytest

from spark_mq.access.users import AccessRules, User, UserType
from spark_mq.broker.request_table import Pool
from spark_mq.broker_server.settings import IMPORTANT, read_configuration
from spark_mq.client.settings import Credentials
from storage.errors import ConfigurationError
from storage.settings.load import unread_settings
from tests.support.places import VECTORS


def test_the_command_line_comes_before_the_file() -> None:
    found = read_configuration(b"namesrvAddr=a:1;a:1; b:2\nbrokerName=b\n", None, {})
    assert (found.process.addresses, found.broker_name, found.server.listen_port) == (("a:1", "b:2"), "b", 10_911)
    assert found.address == "127.0.0.1:10911"
    assert read_configuration(b"namesrvAddr=a:1\n", None, {"namesrvAddr": "c:3"}).process.addresses == ("c:3",)
    assert read_configuration(b"", None, {}).process.addresses == ()


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (b"listenPort=0\n", "listenPort"),
        (b"listenPort=2\n", "listenPort"),
        (b"bindAddress=0.0.0.0\n", "brokerIP1"),
        (b"brokerRole=SLAVE\nbrokerId=0\nnamesrvAddr=a:1\n", "brokerId"),
        (b"transactionCheckInterval=0\n", "transactionCheckInterval"),
        (b"tls.server.mode=perhaps\n", "tls.server.mode"),
        (b"namesrvAddr=127.0.0.1:9876x\n", "namesrvAddr"),
        (b"enableControllerMode=true\ncontrollerAddr=nowhere\n", "controllerAddr"),
    ],
)
def test_what_no_client_could_use_is_refused_by_its_name(text: bytes, key: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        read_configuration(text, "broker.conf", {})
    assert (raised.value.key, raised.value.file) == (key, "broker.conf")


def test_pools_are_as_large_and_as_patient_as_configured() -> None:
    java = read_configuration(b"", None, {})
    assert [java.pool(pool).wait_limit_ms for pool in (Pool.SEND, Pool.PULL, Pool.QUERY)] == [200, 5_000, None]
    text = b"sendThreadPoolQueueCapacity=7\nwaitTimeMillsInSendQueue=60000\n"
    found = read_configuration(text, None, {}).pool(Pool.SEND)
    assert (found.capacity, found.wait_limit_ms) == (7, 60_000)
    assert read_configuration(b"brokerFastFailureEnable=false\n", None, {}).pool(Pool.SEND).wait_limit_ms is None


def test_names_that_the_process_goes_by_are_known_and_others_are_not() -> None:
    """Of TLS they are system properties in Java, so that no store's settings have them."""
    found = read_configuration(
        b"tls.server.mode=disabled\nserverMaxConnections=9\ntls.server.mod=x\n", "broker.conf", {}
    )
    assert [text.partition(": ")[2] for text in found.store.warnings] == ["tls.server.mod: no broker knows this name"]


def test_a_broker_names_the_settings_that_it_does_not_follow_alone() -> None:
    followed = b"transactionCheckInterval=1\nwaitTimeMillsInSendQueue=5\nbrokerFastFailureEnable=false\nauthenticationEnabled=true\n"
    followed += b"haMaxTimeSlaveNotCatchup=1\nhaMasterAddress=b:1\ncontrollerAddr=c:1\n"
    found = read_configuration(followed + b"namesrvAddr=a:1\nsendMessageThreadPoolNums=7\n", "broker.conf", {})
    assert unread_settings(found.unfollowed) == ("sendMessageThreadPoolNums",)


def test_access_control_is_as_configured_and_its_secrets_are_not_told() -> None:
    assert read_configuration(b"", None, {}).access.rules == AccessRules()
    text = (
        b"authenticationEnabled=true\nauthorizationEnabled=true\nauthenticationWhitelist=10, 34\nauthorizationWhitelist=11\n"
        b'initAuthenticationUser={"username":"root","password":"roots"}\nnamesrvAddr=a:1\n'
        b'innerClientAuthenticationCredentials={"accessKey":"inner","secretKey":"inners"}\n'
    )
    found = read_configuration(text, None, {})
    users = User("root", "roots", UserType.SUPER), User("inner", "inners", UserType.SUPER)
    assert found.access.rules == AccessRules(True, True, frozenset({10, 34}), frozenset({11}), users)
    assert found.client is not None
    assert found.client.credentials == Credentials("inner", "inners")
    assert "roots" not in f"{found.texts()}{found.access!r}{found.access.rules!r}"
    assert "inners" not in f"{found.texts()}{found.access!r}{found.client!r}"
    assert found.texts()["authenticationEnabled"] == "true"


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (b"aclEnable=true\n", "aclEnable"),
        (b"aclEnable=true\nrocketmqHome=/h\nrocketmqVersion=5.3.3\n", "aclEnable"),
        (b"authorizationEnabled=true\n", "authorizationEnabled"),
        (b"initAuthenticationUser=root\n", "initAuthenticationUser"),
        (b'innerClientAuthenticationCredentials={"accessKey":"a"}\n', "innerClientAuthenticationCredentials"),
        (b"authenticationWhitelist=SEND\n", "authenticationWhitelist"),
        (b"authorizationWhitelist=-1\n", "authorizationWhitelist"),
    ],
)
def test_access_control_that_would_guard_nothing_is_refused_by_its_name(
    monkeypatch: pytest.MonkeyPatch, text: bytes, key: str
) -> None:
    monkeypatch.delenv("ROCKETMQ_HOME", raising=False)
    with pytest.raises(ConfigurationError) as raised:
        read_configuration(text, "broker.conf", {})
    assert (raised.value.key, raised.value.file) == (key, "broker.conf")


@pytest.mark.parametrize("version", [b"", b"rocketmqVersion=5.3.2\n"])
def test_acl_1_is_on_for_a_release_that_has_it_and_for_none(version: bytes) -> None:
    text = b"aclEnable=true\nrocketmqHome=/h\n" + version
    assert read_configuration(text, None, {}).access.rules == AccessRules(plain_home="/h")
    assert read_configuration(b"rocketmqHome=/h\n" + version, None, {}).access.rules == AccessRules()


@pytest.mark.parametrize("role", [b"", b"brokerRole=SYNC_MASTER\n"])
def test_a_master_has_the_id_0_whatever_the_file_says(role: bytes) -> None:
    """BrokerStartup.buildBrokerController."""
    found = read_configuration(role + b"brokerId=3\n", "broker.conf", {})
    assert found.process.broker_id == 0
    assert found.store.warnings == (
        "broker.conf: brokerId: 3 counts as 0, a master's; brokerRole=SLAVE makes it a slave",
    )
    assert read_configuration(role + b"brokerId=0\n", "broker.conf", {}).store.warnings == ()


OF_THE_MACHINE = {
    *("brokerIP2", "storePathRootDir", "sendMessageThreadPoolNums", "putMessageFutureThreadPoolNums"),
    *("pullMessageThreadPoolNums", "litePullMessageThreadPoolNums", "processReplyMessageThreadPoolNums"),
    *("queryMessageThreadPoolNums", "heartbeatThreadPoolNums", "endTransactionThreadPoolNums"),
    "clientCallbackExecutorThreads",
}
OURS = {"bindAddress", "bitMapLengthConsumeQueueExt"}
"""Another default; and what Java works out after it has printed."""
UNSETTABLE = ("timerEnableDisruptor", "timerCheckMetricsWhen", "timerWarmEnable", "timerStopDequeue")
IDENTITY = ["brokerClusterName", "brokerId", "brokerName"]


def test_a_broker_prints_what_apaches_prints_in_its_order() -> None:
    """MixAll.printObjectProperties of four classes."""
    lines = (line.partition("=") for line in (VECTORS / "config" / "printed.txt").read_text().splitlines())
    theirs = {("scanAvailableNameSrv" if n == "isScanAvailableNameSrv" else n): value for n, _, value in lines}
    theirs = {name: value for name, value in theirs.items() if name not in UNSETTABLE}
    text = b"brokerName=broker-lab\nlistenPort=21730\nbrokerIP1=127.0.0.1\nmaxMessageSize=1048576\nrocketmqHome=/h\n"
    found = read_configuration(text, None, {})
    ours = found.printed()
    assert [name for name in ours if name in theirs] == list(theirs)
    assert list(ours)[:3] == IDENTITY
    important = (VECTORS / "config" / "printed_important.txt").read_text().splitlines()
    assert [name for name in ours if name in IMPORTANT] == [*IDENTITY, *dict.fromkeys(important)]
    assert {name for name, value in theirs.items() if ours[name] != value} - OF_THE_MACHINE == OURS


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("namesrvAddr=n:9876\n", ["without enableSlaveActingMaster"]),
        ("enableSlaveActingMaster=true\n", ["without namesrvAddr"]),
        (
            "enableSlaveActingMaster=true\nnamesrvAddr=n:9876\nenableControllerMode=true\ncontrollerAddr=n:9877\n",
            ["in controller mode"],
        ),
        ("enableSlaveActingMaster=true\nnamesrvAddr=n:9876\n", []),
    ],
)
def test_a_remote_escape_without_effect_is_named(text: str, said: list[str]) -> None:
    content = f"brokerIP1=127.0.0.1\nenableRemoteEscape=true\n{text}".encode()
    warnings = read_configuration(content, "broker.conf", {}).store.warnings
    assert list(warnings) == [f"broker.conf: enableRemoteEscape: it has no effect {each}" for each in said]
