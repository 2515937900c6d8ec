"""AsyncAdmin is awaited on the caller's event loop, whichever that is."""

from __future__ import annotations

import asyncio

import pytest

from spark_mq.client import AsyncAdmin, ClientSettings
from spark_mq.client.errors import TopicRouteNotFoundError
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
