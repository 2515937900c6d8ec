"""A running cluster as commands see it: what is said of topics whose queues are shown otherwise than clients see them."""

from __future__ import annotations

import warnings

import pytest

from spark_mq.cli.live_place import LivePlace
from spark_mq.client.routes import TopicRoute
from spark_mq.client.settings import ClientSettings
from spark_mq.remoting.routes import QueueData, TopicQueueMappingInfo, TopicRouteData


def route(topic: str, *, is_static: bool) -> TopicRoute:
    queues = (QueueData(broker_name="b", read_queue_count=1, write_queue_count=1, perm=6),)
    mapping = TopicQueueMappingInfo(topic=topic, total_queues=1, broker_name="b", epoch=1, current_ids={0: 0})
    by_broker = {"b": mapping} if is_static else None
    return TopicRoute(topic, TopicRouteData(queue_datas=queues, topic_queue_mapping_by_broker=by_broker))


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
