"""Our producers against the real broker, with a Java consumer on the other side that writes down all that it is handed."""

from __future__ import annotations

import base64
import os
import signal
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import wait
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from spark_mq.client.admin import Admin
from spark_mq.client.errors import ClientError, ResponseError
from spark_mq.client.message import Message, MessageExt, MessageQueue
from spark_mq.client.producer import Producer, by_hash
from spark_mq.client.send_results import SendResult, SendStatus
from spark_mq.client.settings import ClientSettings, ProducerSettings
from spark_mq.client.transaction_producer import TransactionProducer, TransactionResult, TransactionState
from tests.support.java_broker import JavaClient, Oracle, RunningBroker, free_ports, needed_oracle, wait_until
from tests.support.releases import CHOSEN

pytestmark = [pytest.mark.interop, pytest.mark.slow]

BROKER_NAME = "broker-lab"
LARGE = b"0123456789abcdef" * 600


def settings(broker: RunningBroker, **more: Any) -> ClientSettings:
    return ClientSettings((broker.name_server,), **more)


@contextmanager
def java_consumer(directory: Path, broker: RunningBroker, *topics: str, **more: str) -> Iterator[JavaClient]:
    """A Java push consumer of the topics, in a group of its own."""
    group = f"Java{'_'.join(topics)}"
    given = {"group": group, "topics": ",".join(topics), **more}
    with Oracle(directory).client("Consume", directory / f"{group}.jsonl", broker, **given) as client:
        yield client


def seen(client: JavaClient, count: int, by: str = "msgId") -> dict[str, dict[str, Any]]:
    """What the consumer was handed, by message id or by the broker's (`offsetMsgId`), as soon as there is so much."""
    lines = client.until(lambda lines: len(lines) >= count, "message")
    by_id = {line[by]: line for line in lines}
    assert len(by_id) == len(lines) == count
    return by_id


def assert_seen(line: Mapping[str, Any], message: Message, result: SendResult) -> None:
    """The consumer was handed what was sent, from where the result says."""
    told = line["properties"]
    assert base64.b64decode(line["body"]) == message.body
    assert (line["topic"], line["tags"], line["flag"]) == (message.topic, message.tags, message.flag)
    assert (line["keys"] or "").split() == list(message.keys)
    assert {name: told.get(name) for name in message.properties} == dict(message.properties)
    assert (line["queueId"], line["queueOffset"]) == (result.queue.queue_id, result.queue_offset)
    assert line["offsetMsgId"] == result.offset_message_id
    assert told["UNIQ_KEY"] == result.message_id


@pytest.mark.parametrize("encoding", ["JSON", "ROCKETMQ"])
def test_a_java_consumer_sees_all_that_a_message_says(
    live_broker: RunningBroker, tmp_path: Path, encoding: Any
) -> None:
    topic = f"Plain{encoding}"
    live_broker.make_topic(topic, 4)
    body = b"\x00\x01 body \xff"
    messages = [
        Message(topic, body),
        Message(topic, body, tags="TagA", keys=("k1", "k2"), flag=-7),
        Message(topic, body, tags="Täg 标签", keys="\U0001f600", properties={"größe": "10 µm", "a": 'x"\\\n\t b'}),
        Message(topic, body, properties={"__SHARDINGKEY": "s"}, wait_stored=False),
        Message(topic, LARGE, tags="large"),
    ]
    with Producer(settings(live_broker, encoding=encoding), f"G{topic}") as producer:
        pairs = [(message, producer.send(message)) for message in messages]
        futures = [(message, producer.send_async(message)) for message in messages]
        pairs += [(message, future.result(10)) for message, future in futures]
        queue = MessageQueue(topic, BROKER_NAME, 2)
        pairs += [(messages[1], producer.send(messages[1], queue=queue))]
        batch = producer.send_batch([*messages[:3], messages[4]], queue=queue)
        producer.send_oneway(Message(topic, b"oneway", tags="oneway"))
        with java_consumer(tmp_path, live_broker, topic) as consumer:
            lines = seen(consumer, len(pairs) + 4 + 1, by="offsetMsgId")
    for message, result in pairs:
        assert result.status is SendStatus.SEND_OK
        assert result.region == "DefaultRegion"
        assert_seen(lines[result.offset_message_id], message, result)
    assert pairs[-1][1].queue == queue
    assert lines[pairs[4][1].offset_message_id]["sysFlag"] == 0x300  # its bit 1 goes when the client decompresses
    places = batch.offset_message_id.split(",")
    assert len(batch.message_id.split(",")) == len(places) == 4
    for rank, message in enumerate([*messages[:3], messages[4]]):
        # Before 5.4 the envelope's UNIQ_KEY stands behind the message's own in the record, and a reader takes the last.
        own = batch.message_id.split(",")[rank]
        unique = batch.transaction_id or "" if CHOSEN.batch_appends_request_properties else own
        one = batch._replace(message_id=unique, offset_message_id=places[rank], queue_offset=batch.queue_offset + rank)
        assert_seen(lines[places[rank]], message, one)
        assert lines[places[rank]]["sysFlag"] == 0
    assert [line["tags"] for line in lines.values()].count("oneway") == 1


@pytest.mark.parametrize("compression", ["zlib", "lz4", "zstd"])
def test_a_java_consumer_reads_what_is_compressed(live_broker: RunningBroker, tmp_path: Path, compression: Any) -> None:
    topic = f"Compressed{compression}"
    with Producer(settings(live_broker), f"G{topic}", ProducerSettings(compression=compression)) as producer:
        wait_until(lambda: sends(producer, topic), "the broker is registered")  # the first message makes the topic
        results = {producer.send(Message(topic, LARGE + b"%d" % number)).message_id: number for number in range(5)}
        with java_consumer(tmp_path, live_broker, topic) as consumer:
            lines = seen(consumer, 6)
    flag = {"zlib": 0x300, "lz4": 0x100, "zstd": 0x200}[compression]
    for message_id, number in results.items():
        assert lines[message_id]["sysFlag"] == flag
        assert base64.b64decode(lines[message_id]["body"]) == LARGE + b"%d" % number


def sends(producer: Producer, topic: str) -> bool:
    try:
        return producer.send(Message(topic, b"first")).status is SendStatus.SEND_OK
    except ClientError:
        return False


def test_a_namespace_is_java_s_and_delayed_messages_come_later(live_broker: RunningBroker, tmp_path: Path) -> None:
    live_broker.make_topic("space%Wrapped", 4)
    message = Message("Wrapped", b"wrapped", properties={"a": "b"})
    with Producer(settings(live_broker, namespace="space"), "GWrapped") as producer:
        result = producer.send(message)
        delayed = producer.send(Message("Wrapped", b"later", tags="later", delay_level=2))
        assert result.queue.topic == "Wrapped"
        with java_consumer(tmp_path, live_broker, "Wrapped", namespace="space") as consumer:
            lines = seen(consumer, 2)
    assert_seen(lines[result.message_id], message, result)
    assert lines[result.message_id]["properties"]["INSTANCE_ID"] == "space"
    later = lines[delayed.message_id]
    assert (later["tags"], later["properties"]["DELAY"]) == ("later", "2")
    assert later["receivedAt"] - later["bornTimestamp"] >= 2_000


def test_equal_keys_keep_their_order_for_an_orderly_java_consumer(live_broker: RunningBroker, tmp_path: Path) -> None:
    live_broker.make_topic("Ordered", 6)
    with Producer(settings(live_broker), "GOrdered") as producer:
        last = {}
        for number in range(300):
            key = f"order-{number % 7}"
            last[key] = producer.send(Message("Ordered", b"%d" % number, keys=key), selector=by_hash, arg=key).queue
        futures = [
            producer.send_async(
                Message("Ordered", b"%d" % number, keys="one"), queue=MessageQueue("Ordered", BROKER_NAME, 5)
            )
            for number in range(300)
        ]
        assert not wait(futures, 30).not_done
        assert {future.result().status for future in futures} == {SendStatus.SEND_OK}
        with java_consumer(tmp_path, live_broker, "Ordered", orderly="true") as consumer:
            lines = consumer.until(lambda lines: len(lines) >= 600, "message")
    by_key: dict[str, list[int]] = defaultdict(list)
    for line in lines:
        by_key[line["keys"]].append(int(base64.b64decode(line["body"])))
        if line["keys"] != "one":
            assert line["queueId"] == last[line["keys"]].queue_id
    assert len(by_key.pop("one")) == 300  # many in flight: the broker's threads decide their order
    assert all(numbers == sorted(numbers) for numbers in by_key.values())
    assert sum(map(len, by_key.values())) == 300


def test_what_the_broker_refuses_is_told_with_its_words(live_broker: RunningBroker) -> None:
    options = ProducerSettings(max_message_bytes=8 << 20, compress_over_bytes=None)
    with Producer(settings(live_broker), "GRefused", options) as producer:
        with pytest.raises(ResponseError, match=r"13 \(MESSAGE_ILLEGAL\).*the message is illegal") as raised:
            producer.send(Message("Refused", bytes(5 << 20)))
        assert raised.value.address == live_broker.address
        queue = MessageQueue("Refused", BROKER_NAME, 999)
        with pytest.raises(ResponseError, match=r"request queueId.999. is illegal"):
            producer.send_async(Message("Refused", b"b"), queue=queue).result(10)


def test_the_broker_lists_a_producer_while_it_is_open(live_broker: RunningBroker) -> None:
    live_broker.make_topic("Listed", 1)
    with Admin(settings(live_broker)) as admin:
        with Producer(settings(live_broker, unit_name="u"), "GListed", topics=["Listed"]) as producer:
            listed = admin.producer_connection("GListed", "Listed").connections
            assert [(each.client_id, each.language) for each in listed] == [(producer.client_id, "PYTHON")]
        with pytest.raises(ResponseError, match=r"the producer group.GListed. not exist"):
            admin.producer_connection("GListed", "Listed")


class Bookkeeper:
    """Answers by the message's property `plan`, as TransactionSide.java does."""

    def __init__(self) -> None:
        self.checked: list[MessageExt] = []

    def execute(self, message: Message, transaction_id: str, arg: Any) -> TransactionState | None:
        if arg == "raise":
            raise RuntimeError("the database is away")
        return {"commit": TransactionState.COMMIT, "rollback": TransactionState.ROLLBACK}.get(arg)

    def check(self, message: MessageExt) -> TransactionState | None:
        self.checked.append(message)
        plan = message.properties["plan"]
        if plan == "checkRaise" and len(self._of(plan)) == 1:
            raise RuntimeError("the database is still away")
        return TransactionState.ROLLBACK if plan == "checkRollback" else TransactionState.COMMIT

    def _of(self, plan: str) -> list[MessageExt]:
        return [message for message in self.checked if message.properties["plan"] == plan]


def test_transactions_end_as_the_listener_says_at_once_or_when_asked(
    live_broker: RunningBroker, tmp_path: Path
) -> None:
    live_broker.make_topic("Transacted", 2)
    plans = ["commit", "rollback", "checkCommit", "checkRollback", "checkRaise", "raise"]
    listener = Bookkeeper()
    results: dict[str, TransactionResult] = {}
    with (
        java_consumer(tmp_path, live_broker, "Transacted") as consumer,
        TransactionProducer(settings(live_broker), "GTransacted", listener) as producer,
    ):
        for plan in plans:
            message = Message(
                "Transacted", plan.encode(), tags="T", keys=plan, properties={"plan": plan}, delay_level=4
            )
            results[plan] = producer.send_in_transaction(message, plan)
        lines = seen(consumer, 4)
        wait_until(lambda: "checkRollback" in {asked.properties["plan"] for asked in listener.checked}, "a check")
        time.sleep(5)  # two more rounds of checks: what was rolled back is not asked for again
        asked = [message.properties["plan"] for message in listener.checked]
        assert len(consumer.lines("message")) == 4
    committed = {base64.b64decode(line["body"]).decode(): line for line in lines.values()}
    assert set(committed) == {"commit", "checkCommit", "checkRaise", "raise"}
    for plan, line in committed.items():
        sent = results[plan].sent
        assert line["msgId"] == line["transactionId"] == sent.message_id == sent.transaction_id
        assert (line["tags"], line["keys"], line["sysFlag"]) == ("T", plan, 8)
        assert (line["queueId"], line["properties"]["PGROUP"]) == (sent.queue.queue_id, "GTransacted")
        assert "DELAY" not in line["properties"]
    assert results["commit"].state is TransactionState.COMMIT
    assert results["rollback"].state is TransactionState.ROLLBACK
    assert results["raise"].state is TransactionState.UNKNOWN
    assert isinstance(results["raise"].error, RuntimeError)
    assert "commit" not in asked
    assert "rollback" not in asked
    assert asked.count("checkRollback") == asked.count("checkCommit") == 1
    assert asked.count("checkRaise") >= 2
    first = next(message for message in listener.checked if message.properties["plan"] == "checkCommit")
    assert (first.topic, first.body, first.message_id) == (
        "Transacted",
        b"checkCommit",
        results["checkCommit"].sent.message_id,
    )


def test_a_java_producer_of_the_group_answers_for_one_that_has_gone(live_broker: RunningBroker, tmp_path: Path) -> None:
    live_broker.make_topic("Inherited", 1)
    with TransactionProducer(settings(live_broker), "GInherited", Bookkeeper()) as producer:
        message = Message("Inherited", b"inherited", properties={"plan": "checkCommit"})
        sent = producer.send_in_transaction(message).sent
    oracle = Oracle(tmp_path)
    given = {"group": "GInherited", "topic": "Inherited"}
    with (
        oracle.client("TransactionSide", tmp_path / "side.jsonl", live_broker, **given) as side,
        java_consumer(tmp_path, live_broker, "Inherited") as consumer,
    ):
        (line,) = seen(consumer, 1).values()
        assert line["msgId"] == sent.message_id
        assert {asked["uniqKey"] for asked in side.lines("checked")} == {sent.message_id}


@pytest.fixture
def timer_cluster(tmp_path: Path) -> Iterator[tuple[Oracle, str, Path]]:
    oracle = needed_oracle(tmp_path / "oracle")
    with oracle.namesrv() as name_server:
        yield oracle, name_server, tmp_path / "store"


@pytest.mark.long
def test_a_killed_broker_leaves_no_future_without_an_end_and_loses_nothing_that_was_acknowledged(
    timer_cluster: tuple[Oracle, str, Path], tmp_path: Path
) -> None:
    """Its page cache outlives the process; what was acknowledged is there again. A timed message comes when it is due."""
    oracle, name_server, store = timer_cluster
    port = free_ports()
    options = ProducerSettings(send_timeout_ms=5_000, max_in_flight=512)
    with ExitStack() as stack:
        broker = stack.enter_context(oracle.broker(store, name_server, port=port, timerWheelEnable="true"))
        broker.make_topic("Killed", 4)
        producer = stack.enter_context(Producer(settings(broker), "GKilled", options))
        due_ms = int(time.time() * 1000) + 4_000
        timed = producer.send(Message("Killed", b"timed", deliver_time_ms=due_ms))
        assert timed.recall_handle
        with java_consumer(tmp_path, broker, "Killed") as consumer:
            line = seen(consumer, 1)[timed.message_id]
        assert line["receivedAt"] >= due_ms
        begun = time.monotonic()
        futures = []
        for number in range(6_000):
            if number == 3_000:
                os.kill(broker.pid, signal.SIGKILL)
            futures.append(producer.send_async(Message("Killed", b"%d" % number)))
        assert not wait(futures, 30).not_done
        assert time.monotonic() - begun < 30
        errors = [error for future in futures if (error := future.exception()) is not None]
        assert errors
        assert all(isinstance(error, ClientError) for error in errors)
        acknowledged = {future.result().message_id for future in futures if future.exception() is None}
        assert len(acknowledged) + len(errors) == 6_000
        assert producer.in_flight_count == 0
        again = stack.enter_context(oracle.broker(store, name_server, port=port, timerWheelEnable="true"))
        wait_until(lambda: sends(producer, "Killed"), "the producer sends again")
        stored = oracle.consume_all(tmp_path / "all.jsonl", again, ["Killed"], lookUps=0)
    assert acknowledged <= unique_keys(stored)


def unique_keys(lines: Sequence[Mapping[str, Any]]) -> set[str]:
    return {line["uniqKey"] for line in lines if line["type"] == "message"}
