"""At least once: what a writing task does. Rows go to the brokers as they are read; when the task ends, all of them are stored.

A batch whose answer is not known is sent again, so its rows may be there twice, and a task that Spark runs again sends all of its
rows again. None is lost: a task that has reported its end was told of each batch that it is stored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from spark_mq.client.blocking_connection import BlockingConnection
from spark_mq.conditions import InvalidRowError
from spark_mq.remoting import MessageQueue, RemotingCommand
from spark_mq.sink.broker_lane import BrokerLane, LaneStoppedError, LaneTerms, QueueBatch
from spark_mq.sink.columns import InputColumns
from spark_mq.sink.live_options import LiveSinkOptions
from spark_mq.sink.live_routes import live_routes
from spark_mq.sink.live_rows import DELAY_COLUMNS, route_rules
from spark_mq.sink.unsafe_answers import refuse_unsafe
from spark_mq.sink.wire_batches import BatchCutter, WireBatch
from storage.epoch_times import current_time_ms
from storage.format.unique_key import PREFIX_BYTES
from storage.rows.kafka import from_kafka_columns
from storage.rows.messages import MessageRows

MOST_ROWS = 1_000
"""Rows of a batch: each has an id of 32 characters in the answer."""
REJECTIONS_SHOWN = 5


@dataclass(frozen=True)
class SentRows(WriterCommitMessage):
    """What one task has sent."""

    row_count: int
    statuses: dict[int, int] = field(default_factory=dict)
    """Rows by the code of the answer."""


def send_rows(
    options: LiveSinkOptions, columns: InputColumns, partition: int, key: bytes, frames: Iterator[pa.RecordBatch]
) -> SentRows:
    """Send the rows of a task. `key` are 8 bytes that no other attempt of a task has, for the unique keys.

    Raises InvalidRowError and the client's errors; rows that were sent before stay sent.
    """
    with live_routes(options) as routes:
        return send_over(routes, options, columns, partition, key, frames)


class Routes(Protocol):
    """Where rows can go (`LiveRoutes`)."""

    def queues_of(self, topic: str) -> tuple[MessageQueue, ...]: ...

    def queue_at(self, topic: str, place: int) -> MessageQueue: ...

    def address_of(self, broker_name: str, topic: str) -> str: ...


def send_over(
    routes: Routes,
    options: LiveSinkOptions,
    columns: InputColumns,
    partition: int,
    key: bytes,
    frames: Iterator[pa.RecordBatch],
) -> SentRows:
    """As `send_rows`, over these routes."""
    writer = _DirectWriter(options, routes, key + (partition % 65_536).to_bytes(2, "big"), partition)
    try:
        for frame in frames:
            writer.append(frame.select(list(columns.names)), is_kafka=columns.kafka)
        return writer.finish()
    except LaneStoppedError as error:
        raise error.cause from None
    finally:
        writer.stop()


class _DirectWriter:
    def __init__(self, options: LiveSinkOptions, routes: Routes, key: bytes, partition: int) -> None:
        assert len(key) == PREFIX_BYTES
        self._options = options
        self._routes = routes
        self._partition = partition
        self._rows = MessageRows(route_rules(options, routes.queues_of), key, partition)
        self._cutter = BatchCutter(options.batch_bytes, MOST_ROWS)
        self._lanes: dict[str, BrokerLane] = {}
        self._row_count = 0

    def append(self, frame: pa.RecordBatch, *, is_kafka: bool) -> None:
        prepared = self._rows.prepare(from_kafka_columns(frame) if is_kafka else frame, current_time_ms())
        if prepared.rejected:
            raise InvalidRowError(self._partition, len(prepared.rejected), *prepared.rejected[:REJECTIONS_SHOWN])
        self._row_count += len(prepared.messages.queue_codes)
        may_wait = any(name in frame.schema.names for name in DELAY_COLUMNS)
        self._send(self._cutter.add(prepared.messages, may_wait=may_wait))

    def finish(self) -> SentRows:
        self._send(self._cutter.finish())
        for lane in self._lanes.values():
            lane.finish()
        statuses = sum((lane.statuses for lane in self._lanes.values()), Counter[int]())
        return SentRows(self._row_count, dict(statuses))

    def stop(self) -> None:
        for lane in self._lanes.values():
            lane.stop()

    def _send(self, batches: Iterator[WireBatch]) -> None:
        for batch in batches:
            queue = self._routes.queue_at(*batch.queue)
            self._lane(queue.broker_name, queue.topic).offer(
                QueueBatch(queue, batch.body, batch.row_count, batch.sys_flag)
            )

    def _lane(self, broker_name: str, topic: str) -> BrokerLane:
        if broker_name not in self._lanes:
            settings = self._options.client_settings()
            terms = LaneTerms(
                self._options.producer_group,
                False,
                self._options.send_timeout,
                self._options.retry_timeout,
                self._take,
            )
            self._lanes[broker_name] = BrokerLane(
                lambda: BlockingConnection(self._routes.address_of(broker_name, topic), settings), terms
            )
        return self._lanes[broker_name]

    def _take(self, batch: QueueBatch, answer: RemotingCommand) -> None:
        if self._options.acks == "all":
            refuse_unsafe({answer.code: batch.row_count}, batch.queue.broker_name)
