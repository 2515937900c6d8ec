"""What operators see of a broker in figures (28, 315), after the same load at ours and at Apache's: names, forms, and counts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from spark_mq.broker_server.masters import answered
from spark_mq.client.admin import Admin
from spark_mq.client.calls import make_call
from spark_mq.client.errors import ClientError, ResponseError
from spark_mq.client.message import Message
from spark_mq.client.producer import Producer
from spark_mq.client.pull_consumer import PullConsumer
from spark_mq.client.settings import ClientSettings
from spark_mq.remoting import RequestCode, read_body
from spark_mq.remoting.administration import BrokerStats, BrokerStatsRequest
from tests.support.java_broker import Oracle, RunningBroker, wait_until

pytestmark = [pytest.mark.interop, pytest.mark.slow]
TOPIC, GROUP, CLUSTER = "Figures", "G", "LabCluster"
COUNTS = (
    *("putMessageTimesTotal", "putMessageFailedTimes", "putMessageSizeTotal", "putMessageAverageSize"),
    *("msgPutTotalTodayNow", "msgGetTotalTodayNow", "commitLogMinOffset", "commitLogMaxOffset", "dispatchMaxBuffer"),
)
STATS = (
    *(("TOPIC_PUT_NUMS", TOPIC), ("TOPIC_PUT_SIZE", TOPIC), ("GROUP_GET_NUMS", f"{TOPIC}@{GROUP}")),
    *(("GROUP_GET_SIZE", f"{TOPIC}@{GROUP}"), ("BROKER_PUT_NUMS", CLUSTER), ("BROKER_GET_NUMS", CLUSTER)),
    *(("BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC", CLUSTER), ("BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC", CLUSTER)),
    *(("QUEUE_PUT_NUMS", "SCHEDULE_TOPIC_XXXX@0"), ("TOPIC_PUT_NUMS", "SCHEDULE_TOPIC_XXXX")),
    *(("QUEUE_PUT_NUMS", f"{TOPIC}@0"), ("SNDBCK_PUT_NUMS", f"{TOPIC}@{GROUP}"), ("TOPIC_PUT_NUMS", "none")),
)


def load(broker: RunningBroker) -> None:
    """40 messages, of which one is delayed; one too large; all that can be are read."""
    settings = ClientSettings((broker.name_server,))
    broker.make_topic(TOPIC, 2)
    with Producer(settings, "P") as producer, PullConsumer(settings, GROUP) as consumer:
        queues = sorted(consumer.queues(TOPIC), key=lambda queue: queue.queue_id)
        for number in range(39):
            producer.send(Message(TOPIC, b"x" * 100), queues[number % 2])
        producer.send(Message(TOPIC, b"later", delay_level=1), queues[0])
        with suppress(ClientError):
            producer.send(Message(TOPIC, b"x" * 2_000), queues[0])
            raise AssertionError("it is too large")
        consumer.assign(queues)
        found: list[bytes] = []
        wait_until(lambda: found.extend(each.body for each in consumer.poll(500)) or len(found) >= 40, "all are read")


def shape(text: str) -> str:
    """How a figure is written: 9 for a number, SIZE for one of bytes."""
    return re.sub(r"\d+", "9", re.sub(r"-?\d+(\.\d+)? ([KMGTPE]i)?B\b", "SIZE", re.sub(r"\d\.\d+E-?\d+", "9.9", text)))


def names(figures: Mapping[str, str]) -> dict[str, str]:
    """With the store's path left out of names."""
    return {re.sub(r"commitLogDiskRatio_.*", "commitLogDiskRatio_PATH", name): text for name, text in figures.items()}


def stats(broker: RunningBroker, name: str, key: str) -> tuple[int, float] | str | None:
    """Sum and average of the last minute; why there is none."""
    request = make_call(RequestCode.VIEW_BROKER_STATS_DATA, BrokerStatsRequest(stats_name=name, stats_key=key))
    try:
        answer = answered(broker.address, request, ClientSettings((broker.name_server,)))
    except ResponseError as refused:
        return refused.remark
    minute = read_body(BrokerStats, answer.body).minute
    assert minute is not None
    return minute.sum, minute.average_per_time


@pytest.fixture(scope="module")
def brokers(oracle: Oracle, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningBroker, RunningBroker]]:
    """Apache's and ours, after the load."""
    ours = Oracle(tmp_path_factory.mktemp("ours-"), is_ours=True)
    with ExitStack() as stack:
        found = []
        for servers in (oracle, ours):
            name_server = stack.enter_context(servers.namesrv())
            store: Path = tmp_path_factory.mktemp("store-") / "store"
            found.append(stack.enter_context(servers.broker(store, name_server, maxMessageSize=1_000)))
        for broker in found:
            load(broker)
        yield found[0], found[1]


def figures_of(broker: RunningBroker) -> dict[str, str]:
    with Admin(ClientSettings((broker.name_server,))) as admin:
        return names(admin.runtime_info(broker.address))


def test_what_is_counted_by_name_and_key_is_what_apaches_broker_counts(
    brokers: tuple[RunningBroker, RunningBroker],
) -> None:
    apaches, ours = brokers
    wait_until(lambda: stats(apaches, *STATS[0]) == (40, 1.0), "39 sends, and a delivery of the 40th", 30)
    for name, key in STATS:
        wait_until(lambda: stats(ours, name, key) == stats(apaches, name, key), f"{name} of {key}", 25)  # noqa: B023


@pytest.mark.long
def test_the_runtime_figures_have_apaches_names_forms_and_counts(brokers: tuple[RunningBroker, RunningBroker]) -> None:
    """Once a minute is over: before, StoreStatsService tells no times."""

    def both() -> tuple[dict[str, str], dict[str, str]]:
        return figures_of(brokers[0]), figures_of(brokers[1])

    def are_rates_there() -> bool:
        return all(
            figures["putTps"].count(".") == 2 and "[" in figures["putMessageDistributeTime"] for figures in both()
        )

    wait_until(are_rates_there, "a minute is over", 100, pause_seconds=2)
    apaches, ours = both()
    apaches.setdefault("brokerVersion", "9")  # Apache's tell it up to 5.3.3, ours always
    assert ours.keys() == apaches.keys()
    assert {name: shape(text) for name, text in ours.items()} == {name: shape(text) for name, text in apaches.items()}
    assert {name: ours[name] for name in COUNTS} == {name: apaches[name] for name in COUNTS}
    in_classes = [sum(map(int, re.findall(r":(\d+)", each["putMessageDistributeTime"]))) for each in (apaches, ours)]
    assert in_classes[0] == in_classes[1] == 42, "40 sends, one of them delivered, one refused"
