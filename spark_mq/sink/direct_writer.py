"""At least once: a writing task sends rows to the brokers as it reads them; when the task ends, all of them are stored.

A batch without a known answer is sent again, so its rows may be stored twice; a task that Spark runs again sends all of its
rows again. No row is lost: a task reports its end only when each of its batches is confirmed.
Rows that are sent back use other requests (`live_returns.py`); transactions also have an end (`live_transactions.py`).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from spark_mq.conditions import SENT_ROWS_STAY, TASK_SENT_NONE
from spark_mq.remoting import RemotingCommand
from spark_mq.sink.broker_lane import Lanes, LaneStoppedError, QueueBatch
from spark_mq.sink.columns import InputColumns
from spark_mq.sink.dead_letters import RejectedRows
from spark_mq.sink.live_returns import ReturnWriter
from spark_mq.sink.live_routes import SINGLE_COLUMNS, Routes, live_routes, route_rules, with_group_namespaces
from spark_mq.sink.live_transactions import OpenHalves
from spark_mq.sink.options import LiveSinkOptions
from spark_mq.sink.sends import refuse_unsafe
from spark_mq.sink.wire_batches import BatchCutter, WireBatch
from spark_mq.spark_api import WriterCommitMessage
from storage.batch.intent import DeadLetterFile
from storage.batch.ledger import Batch
from storage.epoch_times import current_time_ms
from storage.files.os_errors import host_name
from storage.format.keys import PREFIX_BYTES
from storage.rules.message_rows import MessageRows, from_kafka_columns

MOST_ROWS = 1_000
"""Rows of a batch: each has an id of 32 characters in the answer."""


@dataclass(frozen=True)
class SentRows(WriterCommitMessage):
    """The sends of one task."""

    row_count: int
    statuses: dict[int, int] = field(default_factory=dict)
    """Rows by the code of the answer."""
    dead_letters: DeadLetterFile | None = None
    """The rows put aside."""
    host: str = ""
    """The machine where it did."""
    overruled: dict[str, str] = field(default_factory=dict)
    """By column, what a row says that has no effect (`columns.warn_of_overruled`)."""


def send_rows(
    options: LiveSinkOptions,
    columns: InputColumns,
    partition: int,
    key: bytes,
    frames: Iterator[pa.RecordBatch],
    batch: Batch | None = None,
    attempt: int = 0,
) -> SentRows:
    """Send the rows of a task. `key` are 8 bytes that no other attempt of a task has, for the unique keys. `batch` and `attempt` name
    the file of rows that are put aside.

    Raises InvalidRowError, WritesOwnSourceError and the client's errors; rows that were sent before stay sent, halves are rolled back.
    """
    with live_routes(options) as routes:
        return send_over(routes, options, columns, partition, key, frames, batch, attempt)


def send_over(
    routes: Routes,
    options: LiveSinkOptions,
    columns: InputColumns,
    partition: int,
    key: bytes,
    frames: Iterator[pa.RecordBatch],
    batch: Batch | None = None,
    attempt: int = 0,
) -> SentRows:
    """As `send_rows`, over these routes."""
    rejected = RejectedRows(options.dead_letter_path, batch, partition, f"{attempt}-{uuid.uuid4().hex}")
    writer: ReturnWriter | _DirectWriter
    if options.send_back:
        writer = ReturnWriter(routes, options, rejected)
    else:
        writer = _DirectWriter(routes, options, columns, partition, key, rejected)
    try:
        for frame in frames:
            writer.append(frame)
        aside = rejected.finish()  # first: it can still be discarded, and what is committed cannot
        statuses = writer.finish()
    except LaneStoppedError as error:
        rejected.discard()
        raise error.cause from None
    except BaseException:
        rejected.discard()
        raise
    finally:
        writer.stop()
    host = "" if aside is None else host_name()
    return SentRows(writer.row_count, statuses, aside, host, dict(writer.overruled))


class _DirectWriter:
    """Sends one task's rows, as `ReturnWriter` sends them back."""

    def __init__(
        self,
        routes: Routes,
        options: LiveSinkOptions,
        columns: InputColumns,
        partition: int,
        key: bytes,
        rejected: RejectedRows,
    ) -> None:
        prefix = key + (partition % 65_536).to_bytes(2, "big")
        assert len(prefix) == PREFIX_BYTES
        self._options = options
        self._columns = columns
        self._routes = routes
        self._rejected = rejected
        self.overruled: Mapping[str, str] = {}
        self._rows = MessageRows(route_rules(options, routes), prefix, partition)
        self._may_be_single = any(name in columns.names for name in SINGLE_COLUMNS)
        self._cutter = BatchCutter(options.batch_bytes, MOST_ROWS, lambda topic: routes.body_limit(topic).batch_bytes)
        self._lanes = Lanes(routes, options, self._take)
        self._halves = OpenHalves(routes, options) if options.transactional else None
        self._is_finished = False
        self._has_offered = False
        self.row_count = 0

    def append(self, frame: pa.RecordBatch) -> None:
        taken = frame.select(list(self._columns.names))
        if self._columns.kafka:
            taken = from_kafka_columns(taken)
        prepared = self._rows.prepare(with_group_namespaces(taken, self._options.namespace), current_time_ms())
        self._columns.refuse_own(prepared.topics)
        self.overruled = {**self.overruled, **prepared.overruled}
        consequence = SENT_ROWS_STAY if self._has_offered else TASK_SENT_NONE
        self._rejected.take(frame, prepared.rejected, prepared.rejected_indices, consequence=consequence)
        self.row_count += len(prepared.messages.queue_codes)
        if self._halves is not None and prepared.sent_states is not None:
            self._halves.expect(prepared.sent_states)
        self._send(self._cutter.add(prepared.messages, may_wait=self._may_be_single))

    def finish(self) -> dict[int, int]:
        self._send(self._cutter.finish())
        statuses = self._lanes.finish()
        if self._halves is not None:
            self._halves.end()
        self._is_finished = True
        return statuses

    def stop(self) -> None:
        is_open = self._halves is not None and not self._is_finished
        if is_open:
            self._lanes.give_up()
        self._lanes.stop()
        if self._halves is not None and is_open:
            self._halves.roll_back()

    def _send(self, batches: Iterator[WireBatch]) -> None:
        for batch in batches:
            queue = self._routes.queue_at(*batch.queue)
            row = int(batch.ranks[0])
            self._has_offered = True
            self._lanes.offer(QueueBatch(queue, batch.body, batch.row_count, batch.sys_flag, row=row))

    def _take(self, batch: QueueBatch, answer: RemotingCommand) -> None:
        if self._halves is not None:
            self._halves.stored(batch, answer)
        if self._options.acks == "all":
            refuse_unsafe({answer.code: batch.row_count}, batch.queue.broker_name)
