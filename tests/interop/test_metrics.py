"""The pages of metrics of an Apache broker and of ours after the same load: names, types, labels, buckets, and values."""

from __future__ import annotations

import os
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner

from spark_mq.cli import app
from spark_mq.client.admin import Admin, NewTopic
from spark_mq.client.message import Message, MessageExt
from spark_mq.client.producer import Producer
from spark_mq.client.pull_consumer import PullConsumer
from spark_mq.client.push_consumer import PushConsumer
from spark_mq.client.settings import ClientSettings, ConsumeFrom, PushSettings
from spark_mq.client.transaction_producer import TransactionProducer, TransactionState
from spark_mq.prometheus.rocketmq import ABSENT
from storage.epoch_times import current_time_ms
from storage.format.typed_json import SubscriptionGroupConfig
from tests.support.java_broker import RELEASE, Oracle, RunningBroker, free_ports, wait_until
from tests.support.metric_pages import MetricPage
from tests.support.places import PROJECT

pytestmark = [pytest.mark.interop, pytest.mark.slow]
TOPIC, PULLING, FAILING, TAGGED = "Metered", "Pulling", "Failing", "Tagged"
CAPTURE = PROJECT / "tests" / "vectors" / "broker" / "metrics-5.3.3.txt"
RENEW = "SPARK_MQ_RENEW_CAPTURES"
"""With it in the environment the capture is written anew."""


class Outcome:
    """Decides about transactions by the message's tag."""

    def execute(self, message: Message, transaction_id: str, arg: Any) -> TransactionState:
        return TransactionState.ROLLBACK if message.tags == "no" else TransactionState.COMMIT

    def check(self, message: MessageExt) -> TransactionState:
        return TransactionState.UNKNOWN


class Loaded(NamedTuple):
    """What a broker said while its consumers were there."""

    page: str
    exported: str
    """What our exporter says of it."""
    progress: dict[str, int]
    """By topic, what mqadmin says that group PULLING has not consumed."""


def consumer_progress(oracle: Oracle, broker: RunningBroker) -> dict[str, int]:
    """`mqadmin consumerProgress`: the column Diff, added up by topic."""
    mqadmin = "org.apache.rocketmq.tools.command.MQAdminStartup"
    output = oracle.java(mqadmin, "consumerProgress", "-n", broker.name_server, "-g", PULLING)
    found: dict[str, int] = {}
    for line in output.splitlines():
        words = line.split()
        if len(words) > 5 and words[0] in (TOPIC, f"%RETRY%{PULLING}"):
            found[words[0]] = found.get(words[0], 0) + int(words[5])
    assert found, output
    return found


def load(oracle: Oracle, broker: RunningBroker, port: int) -> Loaded:
    """Messages of each type; one group that is behind, one by tags, one that gives up at once."""
    settings = ClientSettings((broker.name_server,))
    broker.make_topic(TOPIC, 2)
    with Admin(settings) as admin:
        admin.create_group(SubscriptionGroupConfig(PULLING), address=broker.address)
        admin.create_topic(NewTopic("Timed", 1, 1), address=broker.address)
    with ExitStack() as stack:
        producer = stack.enter_context(Producer(settings, "P"))
        queues = sorted(producer.queues(TOPIC), key=lambda queue: queue.queue_id)
        for number in range(40):
            producer.send(Message(TOPIC, b"x" * 100 * (1 + number), "a" if number % 4 else "b"), queues[number % 2])
        producer.send_batch([Message(TOPIC, b"x" * 10) for _ in range(3)], queues[0])
        producer.send(Message(TOPIC, b"ordered", properties={"__SHARDINGKEY": "k"}), queues[1])
        producer.send(Message(TOPIC, b"later", delay_level=1), queues[0])
        producer.send(Message("Timed", b"timed", deliver_time_ms=current_time_ms() + 40_000_000))
        producer.send(Message("Timed", b"soon", deliver_time_ms=current_time_ms() + 3_000))
        with TransactionProducer(settings, "T", Outcome()) as transactions:
            transactions.send_in_transaction(Message(TOPIC, b"yes", "yes"))
            transactions.send_in_transaction(Message(TOPIC, b"no", "no"))
        page = f"127.0.0.1:{port}"
        wait_until(lambda: MetricPage.at(page).value("rocketmq_rollback_messages_total") == 1, "both have ended", 60)
        wait_until(
            lambda: MetricPage.at(page).value("rocketmq_messages_in_total", topic=TOPIC, message_type="delay") == 1,
            "the delayed message is delivered",
            60,
        )
        wait_until(lambda: MetricPage.at(page).value("rocketmq_timer_dequeue_total") == 1, "the timed one, too", 60)

        def fail(messages: list[MessageExt], context: Any) -> Any:
            raise RuntimeError("it fails")

        failing = PushConsumer(
            settings,
            FAILING,
            fail,
            options=PushSettings(consume_from=ConsumeFrom.FIRST, max_reconsume_times=0),
        )
        failing.subscribe(TOPIC, "yes")
        stack.enter_context(failing)
        for group, expression in ((PULLING, "*"), (TAGGED, "b")):
            consumer = stack.enter_context(PullConsumer(settings, group))
            consumer.subscribe(TOPIC, expression)
            found: list[MessageExt] = []
            wait_until(lambda: found.extend(consumer.poll(500, 5)) or len(found) >= 5, "some are read", 60)  # noqa: B023
            consumer.commit(dict.fromkeys(queues, 5))
        wait_until(lambda: MetricPage.at(page).value("rocketmq_send_to_dlq_messages_total") == 1, "a dead letter", 60)
        with urllib.request.urlopen(f"http://{page}/metrics") as answer:
            text: str = answer.read().decode()
        exported = CliRunner().invoke(app, ["exporter", "-n", broker.name_server, "--once"])
        assert exported.exit_code == 0, exported.output
        return Loaded(text, exported.stdout, consumer_progress(oracle, broker))


class Pages(NamedTuple):
    """Of both brokers."""

    apaches: MetricPage
    ours: MetricPage
    loaded: tuple[Loaded, ...]


@pytest.fixture(scope="module")
def pages(oracle: Oracle, tmp_path_factory: pytest.TempPathFactory) -> Pages:
    ours = Oracle(tmp_path_factory.mktemp("ours-"), is_ours=True)
    found = []
    for servers in (oracle, ours):
        port = free_ports()
        with ExitStack() as stack:
            name_server = stack.enter_context(servers.namesrv())
            store: Path = tmp_path_factory.mktemp("store-") / "store"
            broker = stack.enter_context(
                servers.broker(
                    store,
                    name_server,
                    metricsExporterType="PROM",
                    metricsPromExporterHost="127.0.0.1",
                    metricsPromExporterPort=port,
                    metricsLabel="zone:a",
                    timerWheelEnable="true",
                    **({"rocketmqVersion": RELEASE} if servers.is_ours else {}),
                )
            )
            found.append(load(oracle, broker, port))
    if os.environ.get(RENEW) and RELEASE == "5.3.3":
        CAPTURE.write_text(found[0].page, "utf-8")
    apaches, ours = (MetricPage.of(each.page) for each in found)
    return Pages(apaches, ours, tuple(found))


def ours_to_have(names: dict[str, Any]) -> dict[str, Any]:
    return {name: each for name, each in names.items() if not name.startswith(ABSENT)}


def test_the_same_metrics_are_shown_with_the_same_types(pages: Pages) -> None:
    assert pages.ours.shown_types == ours_to_have(pages.apaches.shown_types)


def test_they_have_the_same_labels(pages: Pages) -> None:
    apaches, ours = ours_to_have(pages.apaches.label_names), pages.ours.label_names
    assert {name: sorted(ours.get(name, ())) for name in apaches} == {name: sorted(apaches[name]) for name in apaches}


def test_histograms_have_the_same_buckets(pages: Pages) -> None:
    assert pages.ours.bounds == ours_to_have(pages.apaches.bounds)


@pytest.mark.parametrize(
    "name",
    [
        "rocketmq_messages_in_total",
        "rocketmq_throughput_in_total",
        "rocketmq_message_size_bucket",
        "rocketmq_message_size_sum",
        "rocketmq_commit_messages_total",
        "rocketmq_rollback_messages_total",
        "rocketmq_half_messages",
        "rocketmq_send_to_dlq_messages_total",
        "rocketmq_consumer_lag_messages",
        "rocketmq_consumer_inflight_messages",
        "rocketmq_consumer_ready_messages",
        "rocketmq_consumer_connections",
        "rocketmq_producer_connections",
        "rocketmq_broker_permission",
        "rocketmq_storage_dispatch_behind_bytes",
        "rocketmq_topic_create_execution_time_milliseconds_count",
        "rocketmq_consumer_group_create_execution_time_milliseconds_count",
        "rocketmq_timer_message_snapshot",
        "rocketmq_timer_enqueue_lag",
    ],
)
def test_the_values_are_the_same(pages: Pages, name: str) -> None:
    assert pages.ours.values(name) == pages.apaches.values(name)


@pytest.mark.parametrize("number", [0, 1], ids=["Apache's broker", "our broker"])
def test_the_exporter_says_of_a_broker_what_it_and_mqadmin_say(pages: Pages, number: int) -> None:
    loaded, name = pages.loaded[number], "rocketmq_consumer_lag_messages"
    exported, own = MetricPage.of(loaded.exported), MetricPage.of(loaded.page)
    lag = {topic: exported.value(name, consumer_group=PULLING, topic=topic) for topic in loaded.progress}
    assert lag == loaded.progress
    assert loaded.progress[TOPIC] == own.value(name, consumer_group=PULLING, topic=TOPIC)
    assert exported.types[name] == own.types[name]
    labels = exported.label_names[name] | {"otel_scope_name", "zone"}
    assert labels == own.label_names[name]
    sample = next(each for each in exported.samples if each.name == name)
    assert (sample.labels["cluster"], sample.labels["node_id"]) == ("LabCluster", "broker-lab")
    assert (exported.value("rocketmq_consumer_lag_latency_milliseconds", consumer_group=PULLING, topic=TOPIC) or 0) > 0
    assert exported.value("spark_mq_exporter_up") == 1
