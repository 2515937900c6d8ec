"""Lag at running brokers: how many requests a look takes, which ages it asks for, and that it agrees with what brokers hold."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_mq.client.admin import Admin
from spark_mq.client.errors import (
    BrokerNotFoundError,
    ClientError,
    NoBrokerError,
    RequestTimeoutError,
    ResponseError,
    TopicRouteNotFoundError,
)
from spark_mq.client.message import Message, MessageQueue
from spark_mq.client.producer import Producer
from spark_mq.client.routes import TopicRoute
from spark_mq.client.settings import ClientSettings
from spark_mq.lag.figures import GroupLag, Reader
from spark_mq.lag.of_cluster import ClusterLag, unread_since_ms
from spark_mq.remoting.administration import BrokerStats, ConsumeStats, OffsetWrapper, QueueTimeSpan, StatsItem
from spark_mq.remoting.routes import BrokerData, ClusterInfo, QueueData, TopicRouteData
from storage.format.typed_json import SubscriptionGroupConfig
from tests.broker_server.own_cluster import OwnCluster, own_cluster

NOW_MS = 1_700_000_000_000
QUEUES = 2
END = 100


class CountingAdmin:
    """Brokers with topics and groups, each group in each topic, `behind` messages before the end; counts its requests."""

    def __init__(self, topics: int, groups: int, *, brokers: tuple[str, ...] = ("a",), behind: int = 10) -> None:
        self.topics = [f"topic{number}" for number in range(topics)]
        self.names = [f"group{number}" for number in range(groups)]
        self.brokers = brokers
        self.behind = behind
        self.addresses: dict[str, dict[int, str]] = {}
        self.refused: ClientError | None = None
        self.end_refused: ClientError | None = None
        self.stored_queues = QUEUES
        self.has_samples = True
        self.zeros_are_stored = True
        self.asked: Counter[str] = Counter()

    async def cluster_info(self) -> ClusterInfo:
        self.asked["info"] += 1
        table = {
            name: BrokerData(cluster="c", broker_name=name, broker_addresses=self.addresses.get(name, {0: name}))
            for name in self.brokers
        }
        return ClusterInfo(broker_address_table=table, cluster_address_table={"c": self.brokers})

    def _stats(self, address: str, topic: str) -> ConsumeStats:
        found = OffsetWrapper(broker_offset=END, consumer_offset=END - self.behind)
        queues = {MessageQueue(topic, address, number): found for number in range(QUEUES)}
        return ConsumeStats(offset_table=queues, consume_tps=4.0)

    async def all_stats(self, address: str) -> dict[str, tuple[ConsumeStats, ...]]:
        self.asked["317"] += 1
        if self.refused is not None and address == self.brokers[-1]:
            raise self.refused
        return {group: tuple(self._stats(address, topic) for topic in self.topics) for group in self.names}

    async def all_offsets(self, address: str) -> bytes:
        self.asked["43"] += 1
        stored = (
            {str(number): END - self.behind for number in range(self.stored_queues)} if self.zeros_are_stored else {}
        )
        return json.dumps({"offsetTable": {f"{t}@{g}": stored for t in self.topics for g in self.names}}).encode()

    async def time_spans(self, address: str, topic: str, group: str) -> tuple[QueueTimeSpan, ...]:
        self.asked["303"] += 1
        return tuple(
            QueueTimeSpan(queue=MessageQueue(topic, address, number), delay_ms=5_000) for number in range(QUEUES)
        )

    async def broker_stats(self, address: str, name: str, key: str) -> BrokerStats:
        self.asked[name] += 1
        return BrokerStats(minute=StatsItem(tps=3.0) if self.has_samples else None)

    async def max_offset(self, queue: MessageQueue) -> int:
        if self.end_refused is not None:
            raise self.end_refused
        return END

    def release(self) -> None:
        pass


def lag_of(admin: CountingAdmin, **options: Any) -> ClusterLag:
    lag = ClusterLag(ClientSettings(("127.0.0.1:1",)), clock=lambda: NOW_MS, **options)
    lag.close()
    lag._admin = admin  # type: ignore[assignment]
    return lag


def test_hundred_groups_in_a_hundred_topics_take_three_requests_a_look_and_those_for_ages() -> None:
    admin = CountingAdmin(100, 100)
    first = lag_of(admin).look()
    assert dict(admin.asked) == {"info": 1, "317": 1, "43": 1, "303": 1_000, "TOPIC_PUT_NUMS": 100}
    assert first.requests == 1_103
    assert {each.lag for each in first.groups} == {100 * QUEUES * 10}


def test_ages_that_are_missing_are_asked_for_by_the_next_looks_and_known_ones_not_again() -> None:
    admin = CountingAdmin(5, 5)
    lag = lag_of(admin, ages_a_look=10)
    assert [lag.look().requests for _ in range(4)] == [3 + 10 + 5, 3 + 10, 3 + 5, 3]
    admin.asked.clear()
    known = lag.look()
    assert dict(admin.asked) == {"info": 1, "317": 1, "43": 1}, "nobody has moved: no age is asked for again"
    assert {each.oldest_unread_ms for each in known.groups} == {5_000}


def test_groups_that_have_read_all_need_no_ages() -> None:
    admin = CountingAdmin(100, 100, behind=0)
    report = lag_of(admin, with_rates=False).look()
    assert dict(admin.asked) == {"info": 1, "317": 1, "43": 1}
    assert (report.requests, {each.oldest_unread_ms for each in report.groups}) == (3, {0})


def test_the_ages_of_the_longest_lags_come_first() -> None:
    admin = CountingAdmin(3, 1)
    lag = lag_of(admin, ages_a_look=1)
    stats = admin._stats
    admin._stats = lambda address, topic: (  # type: ignore[method-assign]
        stats(address, topic)
        if topic != "topic1"
        else ConsumeStats(
            offset_table={
                MessageQueue(topic, address, number): OffsetWrapper(broker_offset=END, consumer_offset=END - 50)
                for number in range(QUEUES)
            }
        )
    )
    (group,) = lag.look().groups
    assert {each.queue.topic for each in group.queues if each.oldest_unread_ms is not None} == {"topic1"}


def test_a_group_that_moves_is_asked_for_its_age_again() -> None:
    admin = CountingAdmin(1, 1)
    lag = lag_of(admin)
    lag.look()
    admin.behind = 7
    lag.look()
    assert admin.asked["303"] == 2


def test_an_offset_zero_counts_only_where_it_is_stored() -> None:
    admin = CountingAdmin(1, 1, behind=END)
    (group,) = lag_of(admin).look().groups
    assert (group.lag, group.unknown_queues) == (END * QUEUES, 0)
    admin.zeros_are_stored = False
    (group,) = lag_of(admin).look().groups
    assert (group.lag, group.unknown_queues) == (None, QUEUES)


def test_the_first_look_has_the_brokers_rates() -> None:
    (group,) = lag_of(CountingAdmin(2, 1, brokers=("a", "b"))).look().groups
    assert (group.in_per_second, group.out_per_second) == (12.0, 16.0)


def test_a_broker_that_does_not_answer_is_an_error_beside_the_others_figures() -> None:
    admin = CountingAdmin(1, 1, brokers=("a", "b"))
    admin.refused = RequestTimeoutError("GET_BROKER_CONSUME_STATS", 1)
    report = lag_of(admin).look()
    assert report.errors == (admin.refused,)
    (group,) = report.groups
    assert {each.queue.broker_name for each in group.queues} == {"a"}


def test_a_broker_that_is_not_registered_any_more_or_was_never_is_an_error() -> None:
    admin = CountingAdmin(1, 1, brokers=("a", "b"))
    lag = lag_of(admin)
    assert lag.look().errors == ()
    admin.brokers = ("a",)
    for _ in range(2):
        assert [str(error) for error in lag.look().errors] == [str(BrokerNotFoundError("b", 0))]
    assert lag_of(admin).look().errors == (), "who does not know its name cannot notice"
    (error,) = lag_of(admin, brokers=["a", "b"]).look().errors
    assert (type(error), error.broker_name) == (BrokerNotFoundError, "b")


def test_a_broker_without_an_address_is_an_error() -> None:
    admin = CountingAdmin(1, 1, brokers=("a", "b"))
    admin.addresses["b"] = {}
    (error,) = lag_of(admin).look().errors
    assert "broker b" in str(error)


def test_a_name_server_that_knows_no_broker_ends_the_look() -> None:
    admin = CountingAdmin(1, 1, brokers=())
    with pytest.raises(NoBrokerError):
        lag_of(admin).look()


@pytest.mark.parametrize("is_deleted", [True, False])
def test_a_queue_whose_end_is_not_to_be_had_hides_no_other_group(is_deleted: bool) -> None:
    admin = CountingAdmin(1, 2)
    admin.stored_queues = QUEUES + 1  # the last one is read, and not written any more
    admin.end_refused = ResponseError(17 if is_deleted else 1, None, "a", "GET_MAX_OFFSET", "topic0")
    report = lag_of(admin).look()
    assert [(each.lag, each.unknown_queues) for each in report.groups] == [(QUEUES * 10, 1)] * 2
    assert set(report.errors) == (set() if is_deleted else {admin.end_refused})


class ClosingAdmin(CountingAdmin):
    """Of each topic but the first no queue is written: 317 names none, as at Apache's brokers. `gone` topics are deleted."""

    gone: frozenset[str] = frozenset()

    def _stats(self, address: str, topic: str) -> ConsumeStats:
        return super()._stats(address, topic) if topic == "topic0" else ConsumeStats()

    async def route(self, topic: str) -> TopicRoute:
        self.asked["105"] += 1
        if self.refused is not None:
            raise self.refused
        if topic in self.gone:
            raise TopicRouteNotFoundError(topic, "n:9876", None)
        datas = tuple(
            QueueData(broker_name=name, read_queue_count=QUEUES, write_queue_count=0, perm=6) for name in self.brokers
        )
        return TopicRoute(topic, TopicRouteData(queue_datas=datas))


def test_a_topic_that_is_not_written_any_more_has_the_lag_of_its_groups() -> None:
    admin = ClosingAdmin(2, 1)
    admin.names.append("group of no broker")
    stats = admin.all_stats

    async def all_stats(address: str) -> dict[str, tuple[ConsumeStats, ...]]:
        found = await stats(address)
        return {"group0": found["group0"]}

    admin.all_stats = all_stats  # type: ignore[method-assign]
    lag = lag_of(admin)
    (group,) = lag.look().groups
    assert (group.reader.name, group.topics, group.lag) == ("group0", ("topic0", "topic1"), 2 * QUEUES * 10)
    assert lag.look().groups[0].lag == 2 * QUEUES * 10
    assert admin.asked["105"] == 1, "once a minute"


def test_a_deleted_topic_with_offsets_is_left_out_and_one_that_cannot_be_looked_up_is_an_error() -> None:
    admin = ClosingAdmin(2, 1)
    admin.gone = frozenset({"topic1"})
    report = lag_of(admin).look()
    assert [each.topics for each in report.groups] == [("topic0",)]
    assert report.errors == ()
    admin.gone, admin.brokers = frozenset(), ("a", "b")
    admin.refused = RequestTimeoutError("n:9876", "GET_ROUTEINFO_BY_TOPIC", 3_000)
    assert admin.refused in lag_of(admin).look().errors


def test_a_rate_that_a_broker_does_not_count_yet_is_unknown() -> None:
    admin = CountingAdmin(1, 1)
    admin.has_samples = False
    (group,) = lag_of(admin).look().groups
    assert (group.in_per_second, group.out_per_second, group.catch_up_ms) == (None, 4.0, None)


def test_queues_that_are_left_out_cost_no_request() -> None:
    admin = CountingAdmin(5, 5)
    report = lag_of(admin).look(keep=lambda reader, queue: reader.name == "group1" and queue.topic == "topic3")
    assert [(each.reader, each.topics) for each in report.groups] == [(Reader("group1"), ("topic3",))]
    assert (admin.asked["303"], admin.asked["TOPIC_PUT_NUMS"]) == (1, 1)


@pytest.mark.parametrize(
    ("delay_ms", "min_time_ms", "since_ms"),
    [
        (5_000, 1, NOW_MS - 5_000),
        (0, 1, NOW_MS),
        (NOW_MS + 1, NOW_MS - 60_000, NOW_MS - 60_000),  # the message has expired: the broker subtracts −1
        (NOW_MS + 1, -1, None),
        (-3, 0, None),
    ],
)
def test_an_expired_message_is_as_old_as_the_first_one_that_is_left(
    delay_ms: int, min_time_ms: int, since_ms: int | None
) -> None:
    assert unread_since_ms(QueueTimeSpan(delay_ms=delay_ms, min_time_ms=min_time_ms), NOW_MS) == since_ms


# At our broker


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnCluster]:
    with own_cluster(tmp_path_factory.mktemp("lag")) as running:
        yield running


def send(cluster: OwnCluster, topic: str, count: int) -> None:
    with Producer(cluster.settings, "LagProducers") as producer:
        for number in range(count):
            producer.send(Message(topic, b"%d" % number), MessageQueue(topic, "own", 0))


@pytest.mark.slow
def test_lag_and_age_are_those_that_the_broker_holds(cluster: OwnCluster) -> None:
    cluster.make_topic("Lagging", 2)
    send(cluster, "Lagging", 10)
    queue = MessageQueue("Lagging", "own", 0)
    with Admin(cluster.settings) as admin, ClusterLag(cluster.settings) as lag:
        for group in ("Slow", "Done"):
            admin.create_group(SubscriptionGroupConfig(group))
        admin.store_group_offset("Slow", queue, 4)
        admin.store_group_offset("Done", queue, 10)
        stored_ms = admin.store_time_ms(queue, 4)
        report = lag.look()
        found = {each.reader.name: each for each in report.groups if each.topics == ("Lagging",)}
        check(found["Slow"], report.time_ms, stored_ms)
        assert (found["Done"].lag, found["Done"].oldest_unread_ms) == (0, 0)
        named = lag.look(["Slow"])
        check(named.groups[0], named.time_ms, stored_ms)
        assert [each.reader.name for each in named.groups] == ["Slow"]
        assert report.errors == named.errors == ()


def check(group: GroupLag, time_ms: int, stored_ms: int | None) -> None:
    assert (group.lag, [each.lag for each in group.queues]) == (6, [6, 0])
    assert group.oldest_unread_ms is not None
    assert stored_ms is not None
    assert abs(group.oldest_unread_ms - (time_ms - stored_ms)) < 2_000, "one machine's clock, and the way of a request"


@pytest.mark.slow
def test_a_query_at_a_cluster_is_a_reader_too(cluster: OwnCluster, tmp_path: Path) -> None:
    cluster.make_topic("Queried", 1)
    send(cluster, "Queried", 5)
    directory = tmp_path / "checkpoint"
    for name in ("offsets", "commits"):
        (directory / name).mkdir(parents=True)
    (directory / "metadata").write_text('{"id":"q"}', "utf-8")
    tree = {"Queried": {"own": {"0": {"next": 2, "before": None}}}}
    (directory / "offsets" / "0").write_text(f"v1\n{{}}\n{json.dumps(tree)}", "utf-8")
    (directory / "commits" / "0").write_text("v1\n{}", "utf-8")
    with Admin(cluster.settings) as admin, ClusterLag(cluster.settings, checkpoints=[str(directory)]) as lag:
        report = lag.look([])
        stored_ms = admin.store_time_ms(MessageQueue("Queried", "own", 0), 2)
    (found,) = report.groups
    assert (found.reader, found.lag) == (Reader(str(directory), "query"), 3)
    assert stored_ms is not None
    assert found.oldest_unread_ms == report.time_ms - stored_ms
