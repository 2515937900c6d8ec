"""AsyncAdmin is awaited on the caller's event loop, whichever that is."""

from __future__ import annotations

import asyncio

import pytest

from spark_mq.client import AsyncAdmin, ClientSettings
from spark_mq.client.errors import RequestTimeoutError, TopicHalfDeletedError, TopicRouteNotFoundError
from spark_mq.client.event_loop import run
from tests.support.planned_server import PlannedServer, planned_server

from .planned_cluster import planned_cluster


def test_calls_are_awaited_on_the_callers_loop() -> None:
    async def ask(settings: ClientSettings) -> list[int]:
        async with AsyncAdmin(settings) as admin:
            routes = await asyncio.gather(admin.route("T"), admin.route("TBW102"))
            with pytest.raises(TopicRouteNotFoundError, match="nowhere"):
                await admin.route("nowhere")
        return [len(route.publish_queues) for route in routes]

    with planned_cluster("b1", "b2") as cluster:
        settings = cluster.settings
        assert asyncio.run(ask(settings)) == asyncio.run(ask(settings)) == run(ask(settings), 10_000) == [8, 16]


def test_a_topic_that_one_broker_has_not_deleted_is_said_to_be_deleted_at_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def delete(_: AsyncAdmin, address: str, topic: str) -> None:
        if address in refusing:
            raise RequestTimeoutError("DELETE_TOPIC_IN_BROKER", 1, address)

    async def brokers(_: AsyncAdmin, cluster: str | None) -> list[dict[int, str]]:
        return [{0: "a:1"}, {0: "b:1"}]

    async def ask() -> None:
        async with AsyncAdmin(ClientSettings(("127.0.0.1:1",))) as admin:
            await admin.delete_topic("T")

    monkeypatch.setattr(AsyncAdmin, "_delete_at", delete)
    monkeypatch.setattr(AsyncAdmin, "_brokers", brokers)
    refusing = {"b:1"}
    with pytest.raises(TopicHalfDeletedError, match="topic T is deleted at a:1, and not at b:1: "):
        asyncio.run(ask())
    refusing = {"a:1", "b:1"}
    with pytest.raises(RequestTimeoutError):
        asyncio.run(ask())


def test_the_callers_loop_goes_on_meanwhile_and_a_call_may_be_cancelled() -> None:
    async def ask(server: PlannedServer) -> None:
        async with AsyncAdmin(ClientSettings((server.address,), request_timeout_ms=60_000)) as admin:
            asked = asyncio.create_task(admin.route("T"))
            while not server.commands:
                await asyncio.sleep(0.01)
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked

    with planned_server(lambda peer, command: None) as silent:
        asyncio.run(asyncio.wait_for(ask(silent), 30))
