"""Rows that are transactions, at least once: each is sent as a half message, and ends when the task has stored all its rows.

    half · half · …    all rows of the task are stored and invisible
    END  · END  · …    commit or rollback by `transaction_state`, in the order of a queue's rows; the task waits for each

If a task fails before that, it rolls back the halves whose answers came, as far as their brokers are reachable. A half without an end
stays: its state is unknown, or its task's process died, or its answer was lost. Its broker checks with the producer group, from
transactionTimeOut (6 s) on, every transactionCheckInterval (30 s), transactionCheckMax (15) times, and then gives it up
(TRANS_CHECK_MAX_TIME_TOPIC). No process of a sink answers these checks. A later end still counts.
Java: DefaultMQProducerImpl.endTransaction, EndTransactionProcessor, TransactionalMessageServiceImpl.check.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import NamedTuple

import numpy as np

from spark_mq.client.calls import read_answer_header
from spark_mq.client.errors import ClientError
from spark_mq.client.send_results import DEFAULT_REGION, SendResult, SendStatus, end_after_send
from spark_mq.remoting import RemotingCommand
from spark_mq.remoting.messages import SendMessageAnswer, decode_batch
from spark_mq.sink.broker_lane import Lanes, QueueBatch
from spark_mq.sink.live_routes import Routes
from spark_mq.sink.options import LiveSinkOptions
from storage.failpoints import reach
from storage.format.properties import decode_properties
from storage.format.record import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from storage.rules.half_messages import PRODUCER_GROUP, UNIQUE_KEY, TransactionState

_LOG = logging.getLogger("spark_mq.sink")
_STATES = {TRANSACTION_COMMIT: TransactionState.COMMIT, TRANSACTION_ROLLBACK: TransactionState.ROLLBACK}


class _Half(NamedTuple):
    """A stored half that this task must end."""

    sent: SendResult
    group: str
    state: TransactionState


class OpenHalves:
    """The halves of one task that are stored and not ended. They stay in memory until then: about 1 KB a row."""

    def __init__(self, routes: Routes, options: LiveSinkOptions) -> None:
        self._routes = routes
        self._options = options
        self._states = bytearray()
        self._halves: dict[int, _Half] = {}

    def expect(self, states: np.ndarray) -> None:
        """The transaction bits of each of the rows that are sent next: their ends, 0 if unknown."""
        self._states += states.astype(np.uint8).tobytes()

    def stored(self, batch: QueueBatch, answer: RemotingCommand) -> None:
        """A half is stored. On a lane's thread. Raises MalformedResponseError where the answer does not say where."""
        state = _STATES.get(self._states[batch.row])
        if state is None:
            return
        header = read_answer_header(SendMessageAnswer, answer, batch.queue.broker_name, batch.code)
        ((_, raw_properties, _),) = decode_batch(batch.body)
        properties = decode_properties(raw_properties)
        sent = SendResult(
            status=SendStatus(answer.code),
            message_id=properties[UNIQUE_KEY],
            offset_message_id=header.message_id,
            queue=batch.queue,
            queue_offset=header.queue_offset,
            transaction_id=header.transaction_id,
            recall_handle=None,
            region=DEFAULT_REGION,
            is_traced=False,
        )
        self._halves[batch.row] = _Half(sent, properties[PRODUCER_GROUP], state)
        reach("live-amid-halves")

    def end(self) -> None:
        """End all as their rows say; when this returns, the brokers have done it. Raises ClientError; what is not ended stays here."""
        reach("live-halves-stored")
        lanes = self._lanes(self._options.retry_timeout)
        try:
            for call in self._calls(sorted(self._halves)):
                lanes.offer(call)
            lanes.finish()
        finally:
            lanes.stop()

    def roll_back(self) -> None:
        """End as rolled back what is here, broker by broker; where one cannot be reached, the log says how many are left to it."""
        rows = sorted(self._halves, key=lambda row: (self._broker_of(row), row))
        for broker_name, of_broker in groupby(rows, self._broker_of):
            lanes = self._lanes(self._options.send_timeout)
            try:
                for call in self._calls(list(of_broker), TransactionState.ROLLBACK):
                    lanes.offer(call)
                lanes.finish()
            except ClientError as error:
                left = sum(self._broker_of(row) == broker_name for row in self._halves)
                _LOG.warning(
                    "half messages that are not rolled back: %d; broker %s asks producers of their group, and then gives them up: %s",
                    *(left, broker_name, error.describe()),
                )
            finally:
                lanes.stop()

    def _lanes(self, retry_timeout_ms: int) -> Lanes:
        return Lanes(self._routes, self._options, self._ended, retry_timeout_ms=retry_timeout_ms)

    def _ended(self, batch: QueueBatch, answer: RemotingCommand) -> None:
        self._halves.pop(batch.row, None)
        reach("live-amid-ends")

    def _calls(self, rows: Iterable[int], state: TransactionState | None = None) -> Iterator[QueueBatch]:
        for row in rows:
            half = self._halves[row]
            queue = half.sent.queue
            call = end_after_send(half.group, queue.topic, half.sent, state or half.state)
            yield QueueBatch(queue, b"", 1, 0, call, row)

    def _broker_of(self, row: int) -> str:
        return self._halves[row].sent.queue.broker_name
