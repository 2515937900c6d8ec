"""The client against real servers that ask who it is (ACL 2.0) and that speak TLS alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from spark_mq.client.admin import Admin, NewTopic
from spark_mq.client.blocking_connection import tls_mismatch
from spark_mq.client.errors import AccessDeniedError, SendFailedError, TlsError
from spark_mq.client.listeners import ConsumeStatus
from spark_mq.client.message import Message, MessageExt
from spark_mq.client.producer import Producer
from spark_mq.client.pull_consumer import PullConsumer
from spark_mq.client.push_consumer import PushConsumer
from spark_mq.client.settings import ClientSettings, Credentials, TlsSettings
from spark_mq.client.transaction_producer import TransactionProducer
from spark_mq.remoting import MessageQueue
from tests.support.client_rounds import AlwaysCommit, Command, command_round, consume_round
from tests.support.java_broker import Oracle, RunningBroker, wait_until
from tests.support.live_writer import main as send_batch
from tests.support.planned_server import Certificate

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.usefixtures("oracle")]

ADMIN = Credentials("operator", "operators-secret")
PROVIDERS = "org.apache.rocketmq.auth"
ACL = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "authenticationMetadataProvider": f"{PROVIDERS}.authentication.provider.LocalAuthenticationMetadataProvider",
    "authorizationMetadataProvider": f"{PROVIDERS}.authorization.provider.LocalAuthorizationMetadataProvider",
    "initAuthenticationUser": f'{{"username":"{ADMIN.access_key}","password":"{ADMIN.secret_key}"}}',
    "innerClientAuthenticationCredentials": f'{{"accessKey":"{ADMIN.access_key}","secretKey":"{ADMIN.secret_key}"}}',
}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """A broker with access control, and topic T."""
    directory = tmp_path_factory.mktemp("guarded-")
    with ExitStack() as stack:
        oracle = Oracle(directory)
        name_server = stack.enter_context(oracle.namesrv())
        broker = stack.enter_context(oracle.broker(directory / "store", name_server, **ACL))
        broker.make_topic("T", credentials=ADMIN)
        yield broker


QUEUE = MessageQueue("T", "broker-lab", 0)


@pytest.mark.parametrize("encoding", ["JSON", "ROCKETMQ"])
def test_the_right_key_is_let_in(guarded: RunningBroker, encoding: Any) -> None:
    with Admin(ClientSettings((guarded.name_server,), credentials=ADMIN, encoding=encoding)) as admin:
        assert admin.max_offset(QUEUE) == 0
        assert len(admin.topic_stats("T")) == 1
        admin.create_topic(NewTopic(f"T{encoding}", 1, 1))  # with a field of no value


@pytest.mark.parametrize(
    ("credentials", "remark"),
    [
        (Credentials("operator", "another-secret"), "check signature failed."),
        (Credentials("stranger", "another-secret", "a-token"), "User:stranger is not found."),
        (None, "username cannot be null."),
    ],
    ids=["wrong secret", "unknown user", "nobody"],
)
def test_another_key_is_refused_with_the_brokers_remark_and_no_secret_is_told(
    guarded: RunningBroker, credentials: Credentials | None, remark: str
) -> None:
    with Admin(ClientSettings((guarded.name_server,), credentials=credentials)) as admin:
        with pytest.raises(AccessDeniedError) as denied:
            admin.max_offset(QUEUE)
        assert remark in str(denied.value)
        assert (denied.value.code, denied.value.address, denied.value.topic) == (16, guarded.address, "T")
        assert "another-secret" not in f"{denied.value!r}{denied.value}{denied.value.__dict__}"
        assert "a-token" not in f"{denied.value!r}{denied.value}{denied.value.__dict__}"


@pytest.fixture(scope="module")
def encrypted(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[RunningBroker, Certificate]]:
    """A name server and a broker that speak TLS alone, with a certificate of ours."""
    directory = tmp_path_factory.mktemp("encrypted-")
    certificate = Certificate(directory)
    settings = {
        "tls.test.mode.enable": "false",
        "tls.server.keyPath": certificate.key,
        "tls.server.certPath": certificate.cert,
        "tls.client.authServer": "false",
    }
    file = directory / "tls.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()), "ascii")
    oracle = Oracle(directory, java_properties=(f"-Dtls.config.file={file}", "-Dtls.server.mode=enforcing"))
    with oracle.namesrv() as name_server, oracle.broker(directory / "store", name_server) as broker:
        yield broker, certificate


def test_tls_with_the_servers_certificate_as_authority(encrypted: tuple[RunningBroker, Certificate]) -> None:
    broker, certificate = encrypted
    with Admin(ClientSettings((broker.name_server,), tls=TlsSettings(ca_file=str(certificate.cert)))) as admin:
        wait_until(lambda: bool(admin.cluster_info().broker_address_table), "the broker is registered")
        assert admin.max_offset(MessageQueue("BenchmarkTest", "broker-lab", 0)) == 0


def test_a_certificate_of_nobody_is_refused_and_taken_when_that_is_wanted(
    encrypted: tuple[RunningBroker, Certificate],
) -> None:
    broker, _ = encrypted
    refused = pytest.raises(TlsError, match="certificate is refused: self-signed certificate")
    with Admin(ClientSettings((broker.name_server,), tls=TlsSettings())) as admin, refused:
        admin.topics()
    with Admin(ClientSettings((broker.name_server,), tls=TlsSettings(verify=False))) as admin:
        wait_until(lambda: "TBW102" in admin.topics(), "the broker is registered")


def test_plain_towards_servers_that_speak_tls_alone_is_named(encrypted: tuple[RunningBroker, Certificate]) -> None:
    broker, _ = encrypted
    with Admin(ClientSettings((broker.name_server,))) as admin, pytest.raises(TlsError, match="speaks TLS"):
        admin.topics()


def test_only_servers_that_speak_tls_alone_are_said_to_want_it(
    guarded: RunningBroker, encrypted: tuple[RunningBroker, Certificate]
) -> None:
    """Those with access control are permissive, Java's default: they would take a handshake, too."""
    assert [tls_mismatch(address) for address in (guarded.address, guarded.name_server)] == [None, None]
    broker, _ = encrypted
    assert [type(tls_mismatch(address)) for address in (broker.address, broker.name_server)] == [TlsError, TlsError]


def test_tls_towards_a_server_without_it_is_named(tmp_path: Path) -> None:
    oracle = Oracle(tmp_path, java_properties=("-Dtls.server.mode=disabled",))
    with oracle.namesrv() as name_server:
        settings = ClientSettings((name_server,), tls=TlsSettings(verify=False))
        with Admin(settings) as admin, pytest.raises(TlsError, match=f"{name_server}.*may not speak TLS"):
            admin.topics()


def produce(settings: ClientSettings) -> None:
    """A message that is waited for, one that is not, a batch, one of a transaction; all of them are there."""
    message = Message("Produced", b"body", keys="k")
    with Admin(settings) as admin, TransactionProducer(settings, "G", AlwaysCommit()) as producer:
        wait_until(lambda: bool(admin.cluster_info().broker_address_table), "the broker is registered")
        admin.create_topic(NewTopic("Produced", 1, 1))
        wait_until(lambda: "Produced" in admin.topics(), "the topic is registered")
        queue = producer.send(message).queue
        producer.send_async(message).result(10)
        producer.send_batch([message, message])
        producer.send_in_transaction(message)
        wait_until(lambda: admin.max_offset(queue) == 5, "the transaction is committed")


def test_a_producer_signs_all_that_it_sends(guarded: RunningBroker) -> None:
    produce(ClientSettings((guarded.name_server,), credentials=ADMIN))


def test_a_producer_with_another_key_is_refused_by_every_try_and_tells_no_secret(guarded: RunningBroker) -> None:
    settings = ClientSettings((guarded.name_server,), credentials=Credentials("operator", "another-secret"))
    with Producer(settings, "Stranger") as producer:
        with pytest.raises(SendFailedError, match=r"3 tries \(broker-lab: .*check signature failed") as refused:
            producer.send(Message("T", b"body"))
        with pytest.raises(AccessDeniedError):
            producer.send_async(Message("T", b"body")).result(10)
        assert "another-secret" not in f"{refused.value!r}{refused.value}{producer.settings!r}"


def test_a_producer_speaks_tls(encrypted: tuple[RunningBroker, Certificate]) -> None:
    broker, certificate = encrypted
    produce(ClientSettings((broker.name_server,), tls=TlsSettings(ca_file=str(certificate.cert))))


def test_consumers_sign_all_that_they_send(guarded: RunningBroker) -> None:
    """Heartbeats, pulls, offsets, locks, what is sent back, and the answers to the broker's questions about transactions."""
    consume_round(ClientSettings((guarded.name_server,), credentials=ADMIN), "Consumed")


def test_consumers_speak_tls(encrypted: tuple[RunningBroker, Certificate]) -> None:
    broker, certificate = encrypted
    consume_round(ClientSettings((broker.name_server,), tls=TlsSettings(ca_file=str(certificate.cert))), "Consumed")


def test_consumers_with_another_key_are_refused_at_once_and_tell_no_secret(
    guarded: RunningBroker, caplog: pytest.LogCaptureFixture
) -> None:
    settings = ClientSettings((guarded.name_server,), credentials=Credentials("operator", "another-secret"))
    got: list[MessageExt] = []

    def listen(messages: Sequence[MessageExt], context: object) -> ConsumeStatus:
        got.extend(messages)
        return ConsumeStatus.SUCCESS

    with PushConsumer(settings, "StrangePush", listen) as push, PullConsumer(settings, "StrangePull") as pull:
        for consumer in (push, pull):
            with pytest.raises(AccessDeniedError, match="check signature failed") as denied:
                consumer.subscribe("T")
            assert "another-secret" not in f"{denied.value!r}{denied.value}{denied.value.__dict__}"
    assert got == []
    assert "check signature failed" in caplog.text  # of the heartbeats
    assert "another-secret" not in caplog.text


def test_the_command_signs_all_that_it_asks(guarded: RunningBroker, tmp_path: Path) -> None:
    command_round(Command(guarded.name_server, *signing(tmp_path, ADMIN)), "Commanded")


def test_the_command_speaks_tls(encrypted: tuple[RunningBroker, Certificate]) -> None:
    broker, certificate = encrypted
    command_round(Command(broker.name_server, "--tls", "--tls-ca-file", str(certificate.cert)), "Commanded")


def test_the_command_with_another_key_or_without_tls_says_what_is_wrong(
    guarded: RunningBroker, encrypted: tuple[RunningBroker, Certificate], tmp_path: Path
) -> None:
    stranger = Command(guarded.name_server, *signing(tmp_path, Credentials("operator", "another-secret")))
    for words in (("dump", "--topic", "T"), ("produce", "--topic", "T"), ("lag", "--group", "G"), ("groups",)):
        said = stranger.run(*words, stdin="x\n", exit_code=1)
        assert said.startswith("error: ")
        assert "16 (NO_PERMISSION)" in said
        assert "another-secret" not in said
    for words in (("topics",), ("dump", "--topic", "TBW102")):
        said = Command(encrypted[0].name_server).run(*words, exit_code=1)
        assert "the server closes plain connections and speaks TLS" in said


def signing(directory: Path, credentials: Credentials) -> tuple[str, ...]:
    """What the command is told of a user."""
    secret = directory / "secret"
    secret.write_text(credentials.secret_key, "ascii")
    return "--access-key", credentials.access_key, "--secret-key-file", str(secret)


@pytest.mark.parametrize("guarantee", [{}, {"guarantee": "atLeastOnce"}], ids=["exactly once", "at least once"])
def test_the_sink_signs_all_that_it_asks(guarded: RunningBroker, tmp_path: Path, guarantee: dict[str, str]) -> None:
    topic = f"Sink{len(guarantee)}"
    with Admin(ClientSettings((guarded.name_server,), credentials=ADMIN)) as admin:
        guarded.make_topic(topic, credentials=ADMIN)
        options = {"accessKey": ADMIN.access_key, "secretKey": ADMIN.secret_key, **guarantee}
        assert send_batch(written(guarded, tmp_path, topic, options)) == 0
        wait_until(lambda: sum(admin.max_offsets(topic).values()) == 40, "the rows are there")


@pytest.mark.long
def test_the_sink_with_another_key_is_refused_and_tells_no_secret(
    guarded: RunningBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"accessKey": "operator", "secretKey": "another-secret"}
    assert send_batch(written(guarded, tmp_path, "T", options)) == 3
    said = capsys.readouterr()
    assert "check signature failed" in said.out
    assert "another-secret" not in said.out + said.err


@pytest.mark.parametrize("guarantee", [{}, {"guarantee": "atLeastOnce"}], ids=["exactly once", "at least once"])
def test_the_sink_speaks_tls(
    encrypted: tuple[RunningBroker, Certificate], tmp_path: Path, guarantee: dict[str, str]
) -> None:
    broker, certificate = encrypted
    options = {"tls": "true", "tlsCaFile": str(certificate.cert), **guarantee}
    assert send_batch(written(broker, tmp_path, f"SinkTls{len(guarantee)}", options)) == 0


def written(broker: RunningBroker, staging: Path, topic: str, options: dict[str, str]) -> dict[str, Any]:
    """What the sink is told: a batch of 40 rows."""
    given = {"name_server": broker.name_server, "staging": str(staging), "topic": topic, "batch_id": 0}
    return {**given, "rows": 20, "options": options}
