"""The lanes of one task that sends to running brokers: one to each broker, made when its first batch comes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Protocol

from spark_mq.client.blocking_connection import BlockingConnection
from spark_mq.client.errors import ClientError
from spark_mq.client.settings import with_namespace
from spark_mq.remoting import MessageQueue, RemotingCommand
from spark_mq.sink.body_limits import BodyLimit
from spark_mq.sink.broker_lane import BrokerLane, LaneTerms, QueueBatch
from spark_mq.sink.live_options import LiveSinkOptions


class Routes(Protocol):
    """Where rows can go (`LiveRoutes`)."""

    def queues_of(self, topic: str) -> tuple[MessageQueue, ...]: ...

    def queue_at(self, topic: str, place: int) -> MessageQueue: ...

    def body_limit(self, topic: str) -> BodyLimit: ...

    def address_of(self, broker_name: str, topic: str) -> str: ...

    def broker_at(self, address: str) -> str: ...


class Lanes:
    """For one thread that offers. What a lane raises is a LaneStoppedError, or what its callbacks raise."""

    def __init__(
        self,
        routes: Routes,
        options: LiveSinkOptions,
        on_stored: Callable[[QueueBatch, RemotingCommand], None],
        *,
        on_refused: Callable[[QueueBatch, ClientError], bool] | None = None,
        retry_timeout_ms: int | None = None,
    ) -> None:
        """Callbacks as of `LaneTerms`; `retry_timeout_ms` in place of the option's."""
        self._routes = routes
        self._settings = options.client_settings()
        self._terms = LaneTerms(
            with_namespace(options.namespace, options.producer_group),
            False,
            options.send_timeout,
            options.retry_timeout if retry_timeout_ms is None else retry_timeout_ms,
            on_stored,
            on_refused=on_refused,
        )
        self._lanes: dict[str, BrokerLane] = {}

    def offer(self, batch: QueueBatch) -> None:
        """Take a batch to its queue's broker."""
        broker_name, topic = batch.queue.broker_name, batch.queue.topic
        if broker_name not in self._lanes:
            self._lanes[broker_name] = BrokerLane(
                lambda: BlockingConnection(self._routes.address_of(broker_name, topic), self._settings), self._terms
            )
        self._lanes[broker_name].offer(batch)

    def settle(self) -> None:
        """Wait until nothing is on its way."""
        for lane in self._lanes.values():
            lane.settle()

    def finish(self) -> dict[int, int]:
        """Wait until everything is stored, and end. Rows by the code of their answers."""
        for lane in self._lanes.values():
            lane.finish()
        return dict(sum((lane.statuses for lane in self._lanes.values()), Counter[int]()))

    def give_up(self) -> None:
        """Drop what waits, and hear what becomes of what is in flight."""
        for lane in self._lanes.values():
            lane.give_up()

    def stop(self) -> None:
        """Give up what waits."""
        for lane in self._lanes.values():
            lane.stop()
