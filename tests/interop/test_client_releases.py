"""The client's core against brokers of older releases: 4.9 with its access control (ACL 1.0), 5.1."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_mq.client.admin import Admin, NewTopic
from spark_mq.client.blocking_connection import tls_mismatch
from spark_mq.client.errors import AccessDeniedError
from spark_mq.client.message import Message
from spark_mq.client.producer import Producer
from spark_mq.client.pulls import Pull, PullStatus, subscription
from spark_mq.client.send_results import SendStatus
from spark_mq.client.settings import ClientSettings, Credentials
from spark_mq.client.transaction_producer import TransactionProducer, TransactionState
from spark_mq.conditions import ConvertedError, InvalidRowError
from spark_mq.remoting import MessageQueue
from spark_mq.sink.columns import InputColumns
from spark_mq.sink.direct_writer import SentRows, send_rows
from spark_mq.sink.options import LiveSinkOptions
from storage.format.typed_json import SubscriptionGroupConfig
from tests.interop.test_live_source import Stream, batch
from tests.support.client_rounds import AlwaysCommit, Command, command_round, consume_round
from tests.support.java_broker import Oracle, OracleError, RunningBroker, wait_until

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.long, pytest.mark.usefixtures("oracle")]

OPERATOR = Credentials("operator", "operators-secret")
QUEUE = MessageQueue("T", "broker-lab", 0)


def released(directory: Path, version: str, *java_properties: str) -> Oracle:
    oracle = Oracle(directory, version=version, java_properties=java_properties)
    try:
        oracle.build()
    except OracleError as error:
        pytest.skip(f"RocketMQ {version} could not be had from Maven: {str(error).strip().splitlines()[-1]}")
    return oracle


@pytest.fixture(scope="module")
def guarded_4_9(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """A broker 4.9.7 that knows one account."""
    directory = tmp_path_factory.mktemp("acl-1-")
    home = directory / "home"
    oracle = released(directory, "4.9.7", f"-Drocketmq.home.dir={home}")
    shutil.copytree(oracle.release_home / "conf", home / "conf")
    account = {"accessKey": OPERATOR.access_key, "secretKey": OPERATOR.secret_key, "admin": "true"}
    lines = [
        "accounts:",
        *(f"{'-' if number == 0 else ' '} {each}: {account[each]}" for number, each in enumerate(account)),
    ]
    (home / "conf" / "plain_acl.yml").write_text("\n".join(lines) + "\n", "ascii")
    with ExitStack() as stack:
        name_server = stack.enter_context(Oracle(directory).namesrv())
        yield stack.enter_context(oracle.broker(directory / "store", name_server, aclEnable="true"))


def produce(settings: ClientSettings) -> None:
    """Four messages: one waited for, a batch of two, and one of a transaction."""
    with TransactionProducer(settings, "G", AlwaysCommit()) as producer:
        first = producer.send(Message("T", bytes(5_000)))
        assert (first.status, first.queue, first.queue_offset) == (SendStatus.SEND_OK, QUEUE, 0)
        assert producer.send_batch([Message("T", b"1"), Message("T", b"2")]).queue_offset == 1
        assert producer.send_in_transaction(Message("T", b"t")).state is TransactionState.COMMIT
        with Admin(settings) as admin:
            wait_until(lambda: admin.max_offset(QUEUE) == 4, "the transaction is committed")


def go_round(settings: ClientSettings) -> None:
    """A topic, a group, offsets, a pull, a look at the cluster, and all of it deleted."""
    with Admin(settings) as admin:
        admin.create_topic(NewTopic("T", 1, 1))
        wait_until(lambda: "T" in admin.topics(), "the topic is registered")
        assert list(admin.topic_stats("T")) == [QUEUE]
        assert (admin.min_offset(QUEUE), admin.max_offset(QUEUE)) == (0, 0)
        admin.create_group(SubscriptionGroupConfig(group="g"))
        assert "g" in admin.groups()
        assert admin.store_group_offset("g", QUEUE, 0)
        assert admin.group_offset("g", QUEUE) == 0
        pull = Pull(QUEUE, 0, subscription("T", "*", 0), suspend_ms=0, sends_subscription=True)
        assert admin.pull(pull, "g").status is PullStatus.NO_NEW_MESSAGE
        produce(settings)
        assert admin.max_offset(QUEUE) == 4
        admin.delete_group("g")
        admin.delete_topic("T")
        assert "T" not in admin.topics()


@pytest.mark.parametrize("encoding", ["JSON", "ROCKETMQ"])
def test_access_control_of_before_5_0_lets_the_right_key_in(guarded_4_9: RunningBroker, encoding: Any) -> None:
    go_round(ClientSettings((guarded_4_9.name_server,), credentials=OPERATOR, encoding=encoding))


@pytest.mark.parametrize("credentials", [Credentials("operator", "another-secret"), None], ids=["wrong", "none"])
def test_access_control_of_before_5_0_refuses_others_by_name(
    guarded_4_9: RunningBroker, credentials: Credentials | None
) -> None:
    with Admin(ClientSettings((guarded_4_9.name_server,), credentials=credentials)) as admin:
        with pytest.raises(AccessDeniedError) as denied:
            admin.runtime_info(guarded_4_9.address)
        assert "AclException" in str(denied.value)
        assert "another-secret" not in str(denied.value)
    assert tls_mismatch(guarded_4_9.address) is None


def test_access_control_of_before_5_0_lets_the_consumers_and_the_command_in(
    guarded_4_9: RunningBroker, tmp_path: Path
) -> None:
    consume_round(ClientSettings((guarded_4_9.name_server,), credentials=OPERATOR), "Consumed")
    secret = tmp_path / "secret"
    secret.write_text(OPERATOR.secret_key, "ascii")
    signing = "--access-key", OPERATOR.access_key, "--secret-key-file", str(secret)
    command_round(Command(guarded_4_9.name_server, *signing), "Commanded")


def test_access_control_of_before_5_0_lets_a_query_in_and_names_a_refusal(guarded_4_9: RunningBroker) -> None:
    """A batch and a stream that stores its group's offsets."""
    settings = ClientSettings((guarded_4_9.name_server,), credentials=OPERATOR)
    with Admin(settings) as admin, Producer(settings, "GQueried") as producer:
        guarded_4_9.make_topic("Queried", 2, credentials=OPERATOR)
        bodies = [b"%d" % number for number in range(20)]
        for body in bodies:
            producer.send(Message("Queried", body))
        options = {"nameServer": guarded_4_9.name_server, "topic": "Queried", "columns": "queue_id,body"}
        signed = {**options, "accessKey": OPERATOR.access_key, "secretKey": OPERATOR.secret_key}
        assert sorted(row["body"] for row in batch(signed)) == sorted(bodies)
        group = {"consumerGroup": "GQueries", "commitOffsets": "true", "startingOffsets": "earliest"}
        stream = Stream({**signed, **group})
        assert len(stream.until(20)) == 20
        queues = admin.max_offsets("Queried")
        wait_until(
            lambda: stream.batch() == [] and {each: admin.group_offset("GQueries", each) for each in queues} == queues,
            "the group's offsets",
        )
    for wrong in ({"accessKey": OPERATOR.access_key, "secretKey": "another-secret"}, {}):
        with pytest.raises(ConvertedError, match=r"\[SPARK_MQ_BROKER_ACCESS_DENIED\](?s:.)*AclException") as denied:
            batch({**options, **wrong})
        assert "another-secret" not in str(denied.value)


def test_a_broker_of_before_5_0_tells_of_groups_that_take_no_retries(guarded_4_9: RunningBroker) -> None:
    """It answers a send back with success and forgets the message; one group alone it cannot be asked about."""
    settings = ClientSettings((guarded_4_9.name_server,), credentials=OPERATOR)
    with Admin(settings) as admin, Producer(settings, "GBack") as producer:
        guarded_4_9.make_topic("Back", credentials=OPERATOR)
        for group, count in (("GNone", 0), ("GOne", 1)):
            admin.create_group(SubscriptionGroupConfig(group=group, retry_queue_count=count))
        sent = producer.send(Message("Back", b"failed"))
        rows = {"topic": ["Back"], "msg_id": [sent.offset_message_id]}
        given = {"nameServer": guarded_4_9.name_server, "guarantee": "atLeastOnce", "sendBack": "true"}
        given |= {"accessKey": OPERATOR.access_key, "secretKey": OPERATOR.secret_key}

        def send_back(group: str) -> SentRows:
            options = LiveSinkOptions.parse({**given, "consumerGroup": group}, "batch")
            return send_rows(options, InputColumns(tuple(rows)), 0, bytes(8), iter([pa.record_batch(rows)]))

        with pytest.raises(InvalidRowError, match=r"group GNone takes no retries \(retryQueueNums 0\)"):
            send_back("GNone")
        assert send_back("GOne") == SentRows(1, {0: 1})
        retries = MessageQueue("%RETRY%GOne", "broker-lab", 0)
        wait_until(lambda: "%RETRY%GOne" in admin.topics(), "the retry topic is registered")
        wait_until(lambda: admin.max_offset(retries) == 1, "the retry is delivered")


@pytest.mark.parametrize("version", ["4.9.7", "5.1.4"])
def test_the_command_and_the_consumers_go_round_with_other_releases(tmp_path: Path, version: str) -> None:
    oracle = released(tmp_path, version)
    with Oracle(tmp_path).namesrv() as name_server, oracle.broker(tmp_path / "store", name_server):
        command_round(Command(name_server), "Commanded")
        consume_round(ClientSettings((name_server,)), "Consumed")


@pytest.mark.parametrize("encoding", ["JSON", "ROCKETMQ"])
def test_a_broker_5_1_does_what_is_asked(tmp_path: Path, encoding: Any) -> None:
    oracle = released(tmp_path, "5.1.4")
    with Oracle(tmp_path).namesrv() as name_server, oracle.broker(tmp_path / "store", name_server):
        go_round(ClientSettings((name_server,), encoding=encoding))
