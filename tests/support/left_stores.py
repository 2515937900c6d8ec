"""A store that we leave in the middle of everything, for a broker to carry on from: by calls of our handlers, or by the sink's rows.

What is delayed, retried and undecided in it is named here; each message's keys and body are its name. Our duties (delivery, check) run
in both ways on the open store, a little ahead of the time, so that what was just put is due.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from spark_mq.broker.end_transaction import request_for
from spark_mq.sink.columns import InputColumns
from spark_mq.sink.commit import commit_rows
from spark_mq.sink.options import SinkOptions
from spark_mq.sink.partition_writer import stage_rows
from storage import Message, MessageStore, open_store
from storage.batch.ledger import Batch
from storage.delay.schedule import deliver_due
from storage.format.record import TRANSACTION_COMMIT, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK, host_text
from storage.rules.half_messages import HALF_TOPIC, TransactionState
from storage.rules.response_codes import ResponseCode
from storage.tables.consumer_groups import ConsumerOffsets
from storage.tables.document import OFFSETS_FILE
from storage.tables.topics import TopicConfig
from tests.support.broker_handlers import Returner, Send, Sender, back_request, end_transaction
from tests.support.held_check import check_half_messages

PRODUCERS, CONSUMERS = "CarryProducers", "CarryConsumers"
RETRY, DEAD = f"%RETRY%{CONSUMERS}", f"%DLQ%{CONSUMERS}"
MAX_RECONSUME_TIMES = 2
FLAG = 7
DELAY_LEVELS = "1s 4s 1s 1s 1s 1s 1s 1s 9s 10s 20s 30s 1m 2m 5m 10m 1h 2h"
AHEAD_MS = 3_000

EARLY, DUE, SOON, FAR = ([f"{word}-{n}" for n in range(4)] for word in ("early", "due", "soon", "far"))
"""Delayed messages: delivered by us, due, due soon, and due in two hours."""
TOLD = {"told-commit": "commit", "told-rollback": "rollback"}
LATE = {"late-commit": "checkCommit", "late-rollback": "checkRollback"}
ASKED = {"commit-a": "checkCommit", "commit-b": "checkCommit", "roll-a": "checkRollback", "roll-b": "checkRollback"}
FRESH = {"commit-c": "checkCommit", "roll-c": "checkRollback"}
NEVER = {"never-a": "unknown"}
"""Transactions by whom the producer tells their end: us, us after a check, the broker after our check, the broker, nobody."""
STATES = {"commit": TRANSACTION_COMMIT, "rollback": TRANSACTION_ROLLBACK}
DEAD_LETTERS = ["work-dead", "work-delayed", "work-delivered", "work-untouched"]
"""Failed messages: dead, between two tries, in the retry topic, never consumed."""


def leave_a_store(root: Path, conf: Path, way: str) -> None:
    """`way`: "calls" or "rows"."""
    ours = Ours(root, conf) if way == "calls" else OursByRows(root, conf)
    with ours.open() as store:
        for topic, queues in (("Delay", 2), ("Tx", 2), ("Work", 1)):
            store.save_topic(TopicConfig(topic, queues, queues))
    for n, name in enumerate(EARLY):
        ours.send(name, "Delay", n % 2, delay_level=1)
    assert ours.deliver() == len(EARLY)
    _leave_retries(ours)
    _leave_halves(ours)
    for names, level in ((DUE, 1), (FAR, 18), (SOON, 2)):
        for n, name in enumerate(names):
            ours.send(name, "Delay", n % 2, delay_level=level)


def _leave_retries(ours: Ours) -> None:
    for name in DEAD_LETTERS:
        ours.send(name, "Work")
    dead, delayed, delivered, _ = ours.messages("Work")
    ours.send_back(dead)
    ours.deliver()
    ours.send_back(ours.messages(RETRY)[0])
    ours.deliver()
    ours.send_back(ours.messages(RETRY)[1])
    ours.send_back(delayed)
    ours.send_back(delivered)
    assert ours.deliver() == 2
    ours.send_back(ours.messages(RETRY)[2])
    with ours.open() as store:
        offsets = store.state(OFFSETS_FILE, ConsumerOffsets.load) or ConsumerOffsets()
        offsets = offsets.with_offsets(CONSUMERS, {("Work", 0): 3, (RETRY, 0): 3}, now_ms=now_ms())
        store.save_state(OFFSETS_FILE, offsets.to_text())


def _leave_halves(ours: Ours) -> None:
    """Ended at once, ended after a check has put them back, only put back, and new."""
    for name, plan in TOLD.items():
        ours.send_told(name, plan)
    for name, plan in {**LATE, **ASKED, **NEVER}.items():
        ours.send_half(name, plan)
    assert ours.check() == len({**LATE, **ASKED, **NEVER})
    for name in LATE:
        first = next(half for half in ours.messages(HALF_TOPIC) if half.keys == [name])
        ours.end(first, STATES[name.removeprefix("late-")])
    for name, plan in FRESH.items():
        ours.send_half(name, plan)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Ours:
    """Our broker's side, by calls: each opens the store for itself."""

    def __init__(self, root: Path, conf: Path) -> None:
        self._root = str(root)
        self._conf = str(conf)

    @contextmanager
    def open(self) -> Iterator[MessageStore]:
        with open_store(self._root, config=self._conf, read_only=False, create=True) as store:
            yield store
            store.release()

    def send(self, name: str, topic: str, queue_id: int = 0, *, delay_level: int = 0) -> None:
        self._call(name, topic, queue_id, **({"DELAY": str(delay_level)} if delay_level else {}))

    def send_half(self, name: str, plan: str) -> None:
        """`plan` is what the producer will say when it is asked (TransactionSide.java)."""
        self._call(name, "Tx", 0, TRANSACTION_PREPARED, TRAN_MSG="true", PGROUP=PRODUCERS, plan=plan)

    def send_told(self, name: str, state: str) -> None:
        """A transaction that its producer ends."""
        self.send_half(name, state)
        self.end(self.messages(HALF_TOPIC)[-1], STATES[state])

    def send_back(self, message: Message) -> None:
        request = back_request(
            commitlog_offset=message.commitlog_offset, group=CONSUMERS, max_reconsume_times=MAX_RECONSUME_TIMES
        )
        with self.open() as store:
            response = Returner(store, clock=now_ms).send_back(request)
        assert response.code == ResponseCode.SUCCESS, response

    def end(self, half: Message, state: int) -> None:
        with self.open() as store:
            response = end_transaction(store, request_for(half, state), now_ms())
        assert response is not None
        assert response.code == ResponseCode.SUCCESS, response

    def check(self) -> int:
        """Ask for every half, and get no answer; returns how many were put back."""
        with self.open() as store:
            return check_half_messages(store, lambda half: TransactionState.UNKNOWN, now_ms() + AHEAD_MS).put_back

    def deliver(self) -> int:
        """Deliver what is due soon; returns how many messages that were."""
        with self.open() as store:
            return deliver_due(store, now_ms() + AHEAD_MS).delivered_count

    def messages(self, topic: str) -> list[Message]:
        """What stands in a topic's first queue."""
        with open_store(self._root, config=self._conf) as store:
            return list(store.get(topic, 0, 0, 100).messages)

    def _call(self, name: str, topic: str, queue_id: int, sys_flag: int = 0, **properties: str) -> None:
        request = Send(
            topic=topic,
            queue_id=queue_id,
            body=name.encode(),
            properties={"TAGS": "TagA", "KEYS": name, "UNIQ_KEY": name.encode().hex().upper().zfill(32), **properties},
            flag=FLAG,
            sys_flag=sys_flag,
            born_time_ms=now_ms(),
            born_host=bytes([127, 0, 0, 1]) + (40_000).to_bytes(4, "big"),
        )
        with self.open() as store:
            response = Sender(store).send(request)
        assert response.code == ResponseCode.SUCCESS, response


class OursByRows(Ours):
    """What a row can say goes through the sink, by what Spark's tasks and driver run: each time a batch of one row."""

    def __init__(self, root: Path, conf: Path) -> None:
        super().__init__(root, conf)
        self._batch_id = -1

    def send(self, name: str, topic: str, queue_id: int = 0, *, delay_level: int = 0) -> None:
        self._write({}, **self._message(name, topic, queue_id), delay_level=pa.array([delay_level], pa.int32()))

    def send_half(self, name: str, plan: str) -> None:
        self._write_transaction(name, plan, "unknown")

    def send_told(self, name: str, state: str) -> None:
        self._write_transaction(name, state, state)

    def send_back(self, message: Message) -> None:
        """As a row of the source, which was consumed and failed on."""
        columns = {
            "topic": [message.topic],
            "msg_id": [message.msg_id],
            "body": [message.plain_body],
            "properties": pa.array([list(message.properties.items())], pa.map_(pa.string(), pa.string())),
            "reconsume_times": pa.array([message.reconsume_times], pa.int32()),
            "born_timestamp": pa.array([message.born_time_ms], pa.timestamp("ms", "UTC")),
            "born_host": [host_text(message.born_host)],
            "flag": pa.array([message.flag], pa.int32()),
            "sys_flag": pa.array([message.sys_flag], pa.int32()),
        }
        options = {"sendBack": "true", "consumerGroup": CONSUMERS, "maxReconsumeTimes": str(MAX_RECONSUME_TIMES)}
        self._write(options, **columns)

    def _write_transaction(self, name: str, plan: str, state: str) -> None:
        properties = pa.array([[("plan", plan)]], pa.map_(pa.string(), pa.string()))
        options = {"transactional": "true", "producerGroup": PRODUCERS}
        self._write(options, **self._message(name, "Tx", 0), properties=properties, transaction_state=[state])

    @staticmethod
    def _message(name: str, topic: str, queue_id: int) -> dict[str, Any]:
        numbers = {"queue_id": pa.array([queue_id], pa.int32()), "flag": pa.array([FLAG], pa.int32())}
        return {"topic": [topic], "body": [name.encode()], "keys": [name], "tags": ["TagA"], **numbers}

    def _write(self, options: dict[str, str], **columns: Any) -> None:
        self._batch_id += 1
        parsed = SinkOptions.parse({"path": self._root, "conf": self._conf, **options}, "streaming")
        batch = Batch("carry-on", "carry-on", self._batch_id)
        rows = iter([pa.record_batch(columns)])
        staged = stage_rows(parsed, InputColumns(tuple(columns)), batch, 0, 0, rows)
        commit_rows(parsed, [staged], self._batch_id, mirrored=True)
