"""A running cluster as commands see it: what is said of topics whose queues are shown otherwise than clients see them."""

from __future__ import annotations

import warnings

import pytest

from spark_mq.cli.live_place import LivePlace
from spark_mq.client.admin import AsyncAdmin
from spark_mq.client.errors import ClientError, RequestTimeoutError, ResponseError
from spark_mq.client.message import MessageQueue
from spark_mq.client.pulls import PullResult, PullStatus
from spark_mq.client.routes import TopicRoute
from spark_mq.client.settings import ClientSettings
from spark_mq.remoting.administration import TopicOffset
from spark_mq.remoting.routes import QueueData, TopicQueueMappingInfo, TopicRouteData
from spark_mq.source.offsets import QueueId


def route(topic: str, *, is_static: bool) -> TopicRoute:
    queues = (QueueData(broker_name="b", read_queue_count=1, write_queue_count=1, perm=6),)
    mapping = TopicQueueMappingInfo(topic=topic, total_queues=1, broker_name="b", epoch=1, current_ids={0: 0})
    by_broker = {"b": mapping} if is_static else None
    return TopicRoute(topic, TopicRouteData(queue_datas=queues, topic_queue_mapping_by_broker=by_broker))


def test_a_broker_that_does_not_answer_is_asked_once_and_the_others_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str | None]] = []

    async def topics(_: AsyncAdmin) -> tuple[str, ...]:
        return "T", "U"

    async def stats(_: AsyncAdmin, topic: str, *, address: str | None) -> dict[MessageQueue, TopicOffset]:
        asked.append((topic, address))
        if address == "b:1":
            raise error
        return {MessageQueue(topic, "a", 0): TopicOffset(max_offset=5)}

    async def brokers_of(_: str, *, refresh: bool = False) -> list[tuple[str, str]]:
        return [("a", "a:1"), ("b", "b:1")]

    def route_of(topic: str) -> TopicRoute:
        queues = tuple(
            QueueData(broker_name=name, read_queue_count=1, write_queue_count=1, perm=6) for name in ("a", "b")
        )
        return TopicRoute(topic, TopicRouteData(queue_datas=queues))

    error: ClientError = RequestTimeoutError("GET_TOPIC_STATS_INFO", 1, "b:1")
    place = LivePlace(ClientSettings(("127.0.0.1:1",)))
    monkeypatch.setattr(AsyncAdmin, "topics", topics)
    monkeypatch.setattr(AsyncAdmin, "topic_stats", stats)
    monkeypatch.setattr(place, "brokers_of", brokers_of)
    monkeypatch.setattr(place, "_known_route", route_of)
    try:
        entries = place.known_entries()
        assert [(each["topic"], each["broker_name"]) for each in entries] == [("T", "a"), ("U", "a")]
        assert place.troubles == {"b": error}
        assert place.bounds(QueueId("T", "a", 0)) == (0, 5)
        place.refresh()
        with pytest.raises(RequestTimeoutError):
            place.topic_entries()
        asked.clear()
        assert [each["broker_name"] for each in place.known_entries("T")] == ["a"]
        assert asked == [("T", "a:1")]
        place.troubles.clear()
        error = ResponseError(17, None, "b:1", "GET_TOPIC_STATS_INFO", "T")
        place.known_entries()
        assert place.troubles == {}, "a topic that it has not is no failure"
    finally:
        place.close()


def test_a_place_of_a_time_costs_a_pull_only_where_its_time_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    pulled: list[QueueId] = []

    async def search(_: AsyncAdmin, queue: MessageQueue, time_ms: int, *, upper: bool) -> int:
        return 7

    async def pull(queue: QueueId, *_: object) -> PullResult:
        pulled.append(queue)
        return PullResult(PullStatus.NO_NEW_MESSAGE, 7, 0, 7, b"")

    place = LivePlace(ClientSettings(("127.0.0.1:1",)))
    queue = QueueId("T", "a", 0)
    monkeypatch.setattr(AsyncAdmin, "search_offset", search)
    monkeypatch.setattr(place, "queues", lambda _: [queue])
    monkeypatch.setattr(place, "pulled", pull)
    try:
        for with_times in (False, True):
            (found,) = place.offsets_by_time("T", 1, upper=False, with_times=with_times)
            assert (found.queue, found.queue_offset, pulled) == (queue, 7, [queue] * with_times)
    finally:
        place.close()


def test_a_static_topic_is_said_to_be_shown_by_its_physical_queues_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def none(*_: object) -> dict[object, object]:
        return {}

    place = LivePlace(ClientSettings(("127.0.0.1:1",)))
    routes = {"Static": route("Static", is_static=True), "Plain": route("Plain", is_static=False)}
    monkeypatch.setattr(place, "_stats_of", none)
    monkeypatch.setattr(place, "_known_route", routes.get)
    try:
        with pytest.warns(UserWarning, match=r"topic Static is static: .*physical queues .*may be wrong"):
            place.queues("Static")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            place.refresh()
            place.queues("Static")
            place.queues("Plain")
    finally:
        place.close()
