"""What is asked of brokers and how often, and what their silence means."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from spark_mq.client.errors import (
    BrokerUnreachableError,
    ClientError,
    ResponseError,
    WaitedInVainError,
)
from spark_mq.remoting import MessageQueue, RemotingCommand, RequestCode, make_response, write_body
from spark_mq.remoting.administration import TopicOffset, TopicStatsTable
from spark_mq.remoting.routes import BrokerData, ClusterInfo, QueueData, TopicRouteData
from spark_mq.source.cluster_questions import Answered
from spark_mq.source.live_view import (
    LOOK_INTERVAL_MS,
    MOST_REQUESTS_A_SECOND,
    NAMES_INTERVAL_MS,
    RETRY_INTERVAL_MS,
    LiveView,
    look_interval_ms,
)
from spark_mq.source.offsets import NamedQueue, QueueId
from spark_mq.source.ranges import Subscription

TIMEOUT_MS = 5_000


class Brokers:
    """Name servers and brokers in memory, and a clock."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self.queues = {("T", "a"): 2, ("T", "b"): 1, ("U", "a"): 1}
        self.ends: dict[QueueId, tuple[int, int]] = {}
        self.down: dict[str, ClientError] = {}
        self.unregistered: set[str] = set()
        self.without_route: set[tuple[str, str]] = set()
        self.perm = 6
        self.code = 0
        self.asked: list[tuple[str, str]] = []
        self.names_asked = 0
        self.name_server_error: ClientError | None = None

    def clock(self) -> int:
        return self.now_ms

    def view(self, subscription: Subscription) -> LiveView:
        opened = LiveView(self, subscription, TIMEOUT_MS, self.clock)  # type: ignore[arg-type]
        opened.open()
        return opened

    def later(self, view: LiveView, ms: int = LOOK_INTERVAL_MS) -> bool:
        self.now_ms += ms
        return view.refresh()

    def cluster_info(self) -> ClusterInfo:
        self.names_asked += 1
        if self.name_server_error is not None:
            raise self.name_server_error
        names = sorted({broker for _, broker in self.queues} - self.unregistered)
        datas = {
            name: BrokerData(cluster="C", broker_name=name, broker_addresses={1: "s", 0: f"{name}:1"}) for name in names
        }
        return ClusterInfo(broker_address_table=datas, cluster_address_table={"C": tuple(names)})

    def topics(self) -> tuple[str, ...]:
        return tuple(sorted({topic for topic, _ in self.queues} | {"SCHEDULE_TOPIC_XXXX", "a"}))

    def topic_route(self, topic: str) -> TopicRouteData | None:
        datas = [
            QueueData(broker_name=broker, read_queue_count=count, write_queue_count=count, perm=self.perm)
            for (one, broker), count in self.queues.items()
            if one == topic and broker not in self.unregistered and (one, broker) not in self.without_route
        ]
        return TopicRouteData(queue_datas=tuple(datas)) if datas else None

    def ask_all(
        self, commands: Mapping[str, Sequence[RemotingCommand]], failures: dict[str, ClientError]
    ) -> dict[str, list[Answered]]:
        answers: dict[str, list[Answered]] = {}
        for address, asked in commands.items():
            broker = address.partition(":")[0]
            if broker in self.down:
                failures[address] = self.down[broker]
                continue
            answers[address] = [self._answer(address, broker, command) for command in asked]
        return answers

    def _answer(self, address: str, broker: str, command: RemotingCommand) -> Answered:
        assert command.code == RequestCode.GET_TOPIC_STATS_INFO
        topic = (command.ext_fields or {})["topic"]
        self.asked.append((topic, broker))
        table = {
            MessageQueue(topic, broker, number): TopicOffset(
                min_offset=self.ends.get(QueueId(topic, broker, number), (0, 0))[0],
                max_offset=self.ends.get(QueueId(topic, broker, number), (0, 0))[1],
            )
            for number in range(self.queues.get((topic, broker), 0))
        }
        body = write_body(TopicStatsTable(offset_table=table))
        code = self.code or (0 if (topic, broker) in self.queues else 17)
        return Answered(address, command, make_response(command, code, "said", None, b"" if code else body))


T = Subscription(topics=("T",))


@pytest.fixture
def brokers() -> Brokers:
    return Brokers()


def bounds(view: LiveView) -> dict[QueueId, tuple[int, int]]:
    return {queue: (ends.minimum, ends.maximum) for queue, ends in view.ends.items()}


def test_a_look_is_one_request_a_topic_and_broker_however_often_it_is_asked_for(brokers: Brokers) -> None:
    view = brokers.view(T)
    assert brokers.asked == [("T", "a"), ("T", "b")]
    for _ in range(50):
        brokers.later(view, 10)
    assert len(brokers.asked) == 2 + 2 * 5
    assert brokers.names_asked == 1
    brokers.later(view, NAMES_INTERVAL_MS)
    assert brokers.names_asked == 2


@pytest.mark.parametrize(
    ("requests", "interval_ms"), [(0, 100), (10, 100), (100, 100), (101, 101), (250, 250), (5_000, 5_000)]
)
def test_looks_of_many_requests_are_further_apart(requests: int, interval_ms: int) -> None:
    assert look_interval_ms(requests) == interval_ms
    assert requests * 1_000 / interval_ms <= MOST_REQUESTS_A_SECOND


def test_the_broker_that_has_most_topics_is_asked_no_more_than_it_should_be(brokers: Brokers) -> None:
    topics = [f"T{number}" for number in range(250)]
    brokers.queues = {(topic, "a"): 1 for topic in topics} | {(topic, "b"): 1 for topic in topics[:150]}
    view = brokers.view(Subscription(topics=tuple(topics)))
    brokers.asked.clear()
    for _ in range(1_000):
        brokers.later(view, 10)
    asked = [sum(broker == name for _, broker in brokers.asked) for name in ("a", "b")]
    assert asked == [10_000, 6_000], "ten seconds"
    for topic in topics[10:]:
        del brokers.queues[topic, "a"]
        brokers.queues.pop((topic, "b"), None)
    brokers.later(view, NAMES_INTERVAL_MS)
    brokers.later(view, NAMES_INTERVAL_MS)
    brokers.asked.clear()
    for _ in range(100):
        brokers.later(view, 10)
    assert len(brokers.asked) == 10 * 20, "with ten topics every 100 ms again"


def test_a_look_tells_whether_anything_is_new(brokers: Brokers) -> None:
    view = brokers.view(T)
    queues = view.queues
    assert not brokers.later(view)
    assert view.queues is queues
    brokers.ends[QueueId("T", "a", 1)] = (3, 9)
    assert brokers.later(view)
    assert view.changed == {QueueId("T", "a", 1)}
    assert bounds(view)[QueueId("T", "a", 1)] == (3, 9)
    assert view.queues is queues
    assert not brokers.later(view)


def test_queues_that_are_added_are_seen_soon(brokers: Brokers) -> None:
    view = brokers.view(T)
    brokers.queues["T", "a"] = 4
    brokers.later(view)
    assert len(view.queues) == 3, "a queue that cannot be pulled yet is not shown"
    brokers.later(view, RETRY_INTERVAL_MS)
    assert QueueId("T", "a", 3) in view.queues


def test_a_pattern_takes_topics_that_appear_and_none_of_the_brokers_own(brokers: Brokers) -> None:
    view = brokers.view(Subscription(pattern=re.compile(".*")))
    assert {queue.topic for queue in view.queues} == {"T", "U"}
    brokers.queues["V", "b"] = 1
    brokers.later(view, NAMES_INTERVAL_MS)
    assert {queue.topic for queue in view.queues} == {"T", "U", "V"}


def test_assigned_queues_name_their_topics(brokers: Brokers) -> None:
    view = brokers.view(Subscription(assigned=frozenset([NamedQueue("U", "a", 0)])))
    assert list(view.queues) == [QueueId("U", "a", 0)]


@pytest.mark.parametrize("unregistered", [False, True])
def test_a_silent_broker_keeps_its_queues_until_the_time_is_over(brokers: Brokers, unregistered: bool) -> None:
    brokers.ends[QueueId("T", "b", 0)] = (1, 5)
    view = brokers.view(T)
    brokers.down["b"] = BrokerUnreachableError("b:1", "no connection")
    if unregistered:
        brokers.unregistered.add("b")
    before = bounds(view)
    for _ in range(TIMEOUT_MS // 500 - 1):
        assert not brokers.later(view, 500)
        assert bounds(view) == before
        assert "b" in view.brokers
    brokers.now_ms += 2_000
    with pytest.raises(WaitedInVainError, match=r"waited \d+\.\d s for where queues end at broker b; the last try:"):
        brokers.later(view)


def test_a_broker_that_comes_back_is_read_on(brokers: Brokers) -> None:
    view = brokers.view(T)
    brokers.down["b"] = BrokerUnreachableError("b:1", "no connection")
    brokers.unregistered.add("b")
    for _ in range(4):
        brokers.later(view, 1_000)
    brokers.down.clear()
    brokers.unregistered.clear()
    brokers.ends[QueueId("T", "b", 0)] = (0, 7)
    assert brokers.later(view, 1_000)
    for _ in range(20):
        brokers.later(view, 1_000)
    assert bounds(view)[QueueId("T", "b", 0)] == (0, 7)


def test_a_deleted_topic_is_gone_though_name_servers_may_keep_it(brokers: Brokers) -> None:
    view = brokers.view(T)
    brokers.code = 17
    assert brokers.later(view)
    assert not view.queues


def test_a_topic_that_a_broker_does_not_have_any_more_is_gone(brokers: Brokers) -> None:
    view = brokers.view(T)
    del brokers.queues["T", "b"]
    brokers.queues["U", "b"] = 1
    brokers.later(view, NAMES_INTERVAL_MS)
    assert {queue.broker_name for queue in view.queues} == {"a"}
    brokers.later(view, NAMES_INTERVAL_MS)
    brokers.asked.clear()
    brokers.later(view)
    assert brokers.asked == [("T", "a")], "it is not asked for any more"


def test_a_topic_that_only_the_name_server_does_not_know_now_is_not_gone(brokers: Brokers) -> None:
    """Names and routes are two requests, maybe to two name servers: a broker may come or go between them."""
    brokers.ends[QueueId("T", "b", 0)] = (1, 5)
    view = brokers.view(T)
    before = bounds(view)
    brokers.without_route.add(("T", "b"))
    assert not brokers.later(view, NAMES_INTERVAL_MS)
    assert bounds(view) == before


def test_a_topic_that_may_not_be_read_for_a_while_is_seen_again(brokers: Brokers) -> None:
    brokers.ends[QueueId("T", "b", 0)] = (1, 5)
    view = brokers.view(T)
    before = bounds(view)
    brokers.perm = 2
    brokers.later(view, NAMES_INTERVAL_MS)
    assert not view.queues
    brokers.perm = 6
    brokers.later(view, NAMES_INTERVAL_MS)
    assert bounds(view) == before


def test_a_topic_that_is_made_again_just_as_it_was_is_seen_again(brokers: Brokers) -> None:
    view = brokers.view(T)
    before = bounds(view)
    brokers.code = 17
    brokers.later(view)
    brokers.code = 0
    brokers.later(view)
    assert bounds(view) == before


def test_a_refusal_is_an_error_at_once(brokers: Brokers) -> None:
    view = brokers.view(T)
    brokers.code = 16
    with pytest.raises(ResponseError, match="NO_PERMISSION"):
        brokers.later(view)


def test_a_refusal_is_not_waited_out_when_a_query_starts(brokers: Brokers) -> None:
    brokers.code = 16
    with pytest.raises(ResponseError, match="NO_PERMISSION"):
        brokers.view(T)
    assert brokers.asked == [("T", "a"), ("T", "b")]


def test_what_may_pass_is_asked_again_until_the_time_is_over(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda s: setattr(brokers, "now_ms", brokers.now_ms + int(1000 * s)))
    view = brokers.view(T)
    errors: list[ClientError] = [
        BrokerUnreachableError("b:1", "no connection"),
        ResponseError(1, "store getMessage return null", "b:1", "PULL_MESSAGE (11)"),
    ]

    def ask(errors: list[ClientError]) -> str:
        if errors:
            raise errors.pop(0)
        return "an answer"

    assert view.patiently(lambda: ask(errors)) == "an answer"
    names_asked = brokers.names_asked
    with pytest.raises(WaitedInVainError, match="b:1: no connection"):
        view.patiently(lambda: ask([BrokerUnreachableError("b:1", "no connection")]))
    assert 1 < brokers.names_asked - names_asked <= TIMEOUT_MS // RETRY_INTERVAL_MS
    began = brokers.now_ms
    with pytest.raises(ResponseError, match="NO_PERMISSION"):
        view.patiently(lambda: ask([ResponseError(16, "no", "b:1", "PULL_MESSAGE (11)")]))
    assert brokers.now_ms == began


def test_queues_are_looked_at_without_name_servers(brokers: Brokers) -> None:
    view = brokers.view(T)
    brokers.name_server_error = BrokerUnreachableError("ns:9876", "no connection")
    brokers.ends[QueueId("T", "b", 0)] = (0, 7)
    assert brokers.later(view, NAMES_INTERVAL_MS)
    assert bounds(view)[QueueId("T", "b", 0)] == (0, 7)


def test_a_write_only_topic_has_no_queue(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    def route(topic: str) -> Any:
        return TopicRouteData(
            queue_datas=(QueueData(broker_name="a", read_queue_count=4, write_queue_count=4, perm=2),)
        )

    monkeypatch.setattr(brokers, "topic_route", route)
    assert not brokers.view(T).queues
