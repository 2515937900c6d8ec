"""One life of the process that does all duties of a store: it goes on where the one before was killed, begins new stories, and ends.

    recovery · send · end transactions · sink · deliver levels · deliver times · send failed messages back · check · redrive

Each opens the store and lets go of it, as jobs do.
What was asked for and not acknowledged is looked for in the log first, as every repeated request must:
requests to send are not idempotent, in Java neither.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from unittest import mock

import pyarrow as pa

from spark_mq.broker.end_transaction import TransactionEnder
from spark_mq.remoting.messages import EndTransactionRequest
from spark_mq.sink.columns import InputColumns
from spark_mq.sink.commit import commit_rows
from spark_mq.sink.options import SinkOptions
from spark_mq.sink.partition_writer import stage_rows
from storage import Message, MessageStore, open_store
from storage.batch.ledger import Batch
from storage.delay.schedule import deliver_due
from storage.delay.timer_store import deliver_timed
from storage.format.record import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from storage.format.typed_json import SubscriptionGroupConfig
from storage.names import retry_topic
from storage.rules.half_messages import CHECK_TIMES, DISCARD_TOPIC, TransactionState
from storage.rules.response_codes import ResponseCode
from storage.tables.consumer_groups import SubscriptionGroupTable
from storage.tables.document import GROUPS_FILE
from storage.transaction.discard import redrive
from tests.crash.duty_records import records_of
from tests.crash.duty_stories import CONF, HASTY, PRODUCER_GROUP, RETRIES, Fate, Notes, Stories, Story
from tests.support.broker_handlers import Returner, Send, Sender, back_request
from tests.support.held_check import check_half_messages
from tests.support.served import served

SECONDS_A_ROUND = 100
"""How far the clock goes in a round of all duties."""
_COLUMNS = InputColumns(("topic", "queue_id", "body", "transaction_state"))
_STATES = {Fate.COMMITTED: "commit", Fate.ROLLED_BACK: "rollback"}


@dataclass(frozen=True, slots=True)
class LifePlan:
    """What a life is to do."""

    root: str
    notes: str
    seed: int
    life: int
    now_ms: int
    """When it begins; the process lives by a clock of its own."""
    flush: str = "ASYNC_FLUSH"
    rounds: int = 1
    begins_stories: bool = True


class Clock:
    """Goes on by a ms at each look, and by leaps."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        """In nanoseconds, as `time.time_ns`."""
        self.now_ms += 1
        return self.now_ms * 1_000_000


def make_store(root: Path) -> None:
    """An empty store with its broker.conf, and a group that gives up early."""
    root.parent.mkdir(parents=True, exist_ok=True)
    (root.parent / "broker.conf").write_text(CONF, "ascii")
    with open_store(root, read_only=False, create=True, clock=lambda: 0) as store:
        hasty = SubscriptionGroupConfig(HASTY, retry_max_times=RETRIES[HASTY])
        store.save_state(GROUPS_FILE, SubscriptionGroupTable().with_group(hasty, now_ms=0).to_text())


def live(plan: LifePlan, enter: Callable[[str], None]) -> None:
    """The whole life; `enter` is told of each duty before it begins."""
    clock = Clock(plan.now_ms)
    with mock.patch.object(time, "time_ns", clock):
        for number in range(plan.rounds):
            _Life(plan, clock, enter).round(plan.begins_stories and number == 0)


class _Life:
    def __init__(self, plan: LifePlan, clock: Clock, enter: Callable[[str], None]) -> None:
        self._plan = plan
        self._clock = clock
        self._enter = enter
        self._notes = Notes(Path(plan.notes))
        self._stories = Stories(plan.seed)
        self._random = Random(f"{plan.seed}/life {plan.life}")

    def round(self, begins_stories: bool) -> None:
        begin_ms = self._clock.now_ms
        if begins_stories:
            for story in self._stories.of_life(self._plan.life):
                self._notes.add("begun", story.name)
        with self._duty("recovery"):
            pass
        with self._duty("send") as store:
            self._send(store)
        with self._duty("end") as store:
            self._end(store)
        if begins_stories:
            self._enter("sink")
            self._sink()
        self._clock.now_ms += 12_000
        with self._duty("deliver") as store:
            deliver_due(store, self._now_ms())
        with self._duty("timer") as store:
            deliver_timed(store, self._now_ms())
        with self._duty("send back") as store:
            self._send_back(store)
        self._clock.now_ms += 25_000
        with self._duty("check") as store:
            check_half_messages(store, self._answer, self._now_ms())
        with self._duty("redrive") as store:
            self._redrive(store)
        self._clock.now_ms = begin_ms + SECONDS_A_ROUND * 1_000

    @contextmanager
    def _duty(self, name: str) -> Iterator[MessageStore]:
        self._enter(name)
        with open_store(self._plan.root, read_only=False, flush_disk_type=self._plan.flush) as store:
            yield store
            if self._random.random() < 0.8:
                store.release()

    def _now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    # Producers

    def _send(self, store: MessageStore) -> None:
        handler = Sender(store)
        asked = set(self._notes.open("sending", "sent"))
        for record in records_of(store) if asked else ():
            if record.name in asked and record.reconsume_times == 0:
                self._notes.add("sent", record.name, place=record.commitlog_offset, offset=record.queue_offset)
                asked.remove(record.name)
        for name in list(self._notes.open("begun", "sent")):
            story = self._stories.named(name)
            properties = self._properties(story)
            self._notes.add("sending", name, due_ms=int(properties.get("TIMER_DELIVER_MS", 0)))
            self._send_one(handler, story, name, properties)
        for name in self._notes.of("sent"):
            if (story := self._stories.named(name)).fate is Fate.RECALLED and not self._notes.has("recall", name):
                self._recall(handler, story)

    def _send_one(self, handler: Sender, story: Story, name: str, properties: dict[str, str]) -> None:
        response = handler.send(
            Send(
                topic=story.topic,
                queue_id=story.queue_id,
                body=name.encode(),
                properties={"UNIQ_KEY": name, **properties},
                producer_group=PRODUCER_GROUP,
                born_time_ms=self._now_ms(),
            )
        )
        assert response.msg_id is not None, (name, response)
        self._notes.add("sent", name, place=int(response.msg_id[-16:], 16), offset=response.queue_offset)

    def _recall(self, handler: Sender, story: Story) -> None:
        """Another message deletes it, if its time has not come; a second one where the first was not acknowledged does no harm."""
        due_ms = self._notes.of("sending")[story.name]["due_ms"]
        response = handler.send(
            Send(
                topic=story.topic,
                queue_id=story.queue_id,
                body=f"recall of {story.name}".encode(),
                properties={
                    "UNIQ_KEY": f"recall-{story.name}",
                    "TIMER_DELIVER_MS": str(due_ms),
                    "TIMER_DEL_UNIQKEY": f"{story.topic}+{story.name}",
                },
                born_time_ms=self._now_ms(),
            )
        )
        self._notes.add("recall", story.name, taken=response.is_stored)

    def _properties(self, story: Story) -> dict[str, str]:
        if story.fate.is_transaction:
            immunity = {"CHECK_IMMUNITY_TIME_IN_SECONDS": str(story.immunity_s)} if story.immunity_s else {}
            return {"TRAN_MSG": "true", "PGROUP": PRODUCER_GROUP, **immunity}
        if story.level:
            return {"DELAY": str(story.level)}
        return {"TIMER_DELIVER_MS": str(self._now_ms() + story.wait_ms)} if story.wait_ms else {}

    def _end(self, store: MessageStore) -> None:
        ender = TransactionEnder.of(store, self._now_ms())
        for name in list(self._notes.open("sent", "ended")):
            story = self._stories.named(name)
            if story.fate not in (Fate.COMMITTED, Fate.ROLLED_BACK):
                continue
            if story.is_late and not self._notes.has("asked", name):
                continue
            self._notes.add("decided", name)
            place = self._notes.of("sent")[name]
            request = EndTransactionRequest(
                producer_group=PRODUCER_GROUP,
                half_queue_offset=place["offset"],
                half_commitlog_offset=place["place"],
                commit_or_rollback=TRANSACTION_COMMIT if story.fate.is_committed else TRANSACTION_ROLLBACK,
            )
            response = ender.end(request, self._now_ms())
            # Too late for one that set a time for its first check: the checks get the answer.
            assert response is not None, name
            assert response.code in (ResponseCode.SUCCESS, ResponseCode.ILLEGAL_OPERATION), (name, response)
            self._notes.add("ended", name, answer=int(response.code))
        if self._random.random() < 0.7:  # else it dies with what it has not written yet
            ender.close(self._now_ms())

    def _answer(self, half: Message) -> TransactionState:
        """What the producers know."""
        name = half.body.decode()
        story, checks = self._stories.named(name), int(half.properties[CHECK_TIMES])
        waits = story.is_late and not self._notes.has("ended", name)
        if story.fate is Fate.GIVEN_UP:
            is_known = self._notes.has("redriving", name)
        elif story.fate in _STATES:  # they answer themselves, but for some who have forgotten it
            is_known = self._notes.has("ended", name) or not waits or checks > 2
        else:
            is_known = checks > story.asks
        if not is_known:
            self._notes.add("asked", name)
            return TransactionState.UNKNOWN
        self._notes.add("decided", name)
        return TransactionState.COMMIT if story.fate.is_committed else TransactionState.ROLLBACK

    def _redrive(self, store: MessageStore) -> None:
        """Somebody has found out about those that were given up."""
        given_up = [message.body.decode() for message in served(store, DISCARD_TOPIC)]
        new = [name for name in given_up if not self._notes.has("redriven", name)]
        for name in new:
            self._notes.add("redriving", name)
        if new:
            redrive(store, self._now_ms())
        for name in new:
            self._notes.add("redriven", name)

    # The sink

    def _sink(self) -> None:
        number = len(self._notes.of("committed batch"))
        self._notes.add("batch", str(number))
        options = SinkOptions.parse(
            {
                "path": self._plan.root,
                "transactional": "true",
                "producerGroup": PRODUCER_GROUP,
                "queueNum": "8",
                "flushDiskType": self._plan.flush,
            },
            "streaming",
        )
        rows = [
            {
                "topic": story.topic,
                "queue_id": story.queue_id,
                "body": story.name,
                "transaction_state": _STATES.get(story.fate, "unknown"),
            }
            for story in self._stories.rows(number)
        ]
        for row in rows:
            if row["transaction_state"] != "unknown":
                self._notes.add("decided", str(row["body"]))
        schema = pa.schema(
            [
                ("topic", pa.string()),
                ("queue_id", pa.int32()),
                ("body", pa.string()),
                ("transaction_state", pa.string()),
            ]
        )
        half = len(rows) // 2
        staged = [
            stage_rows(
                options,
                _COLUMNS,
                Batch("sink", "query", number),
                task,
                0,
                iter([pa.RecordBatch.from_pylist(part, schema) for part in (tasks[:2], tasks[2:])]),
            )
            for task, tasks in enumerate((rows[:half], rows[half:]))
        ]
        commit_rows(options, staged, number, mirrored=True)
        self._notes.add("committed batch", str(number))

    # Consumers

    def _send_back(self, store: MessageStore) -> None:
        """Both groups fail on all that is new to them."""
        handler = Returner(store)
        asked = set(self._notes.open("failing", "failed"))
        for record in records_of(store) if asked else ():
            request = f"{record.name}/{record.reconsume_times - 1}"
            if request in asked:
                self._notes.add("failed", request)
                asked.remove(request)
        for group in RETRIES:
            for message in [*served(store, group), *served(store, retry_topic(group))]:
                name, story = message.body.decode(), self._stories.named(message.body.decode())
                request = f"{name}/{message.reconsume_times}"
                if self._notes.has("failed", request):
                    continue
                self._notes.add("failing", request)
                response = handler.send_back(
                    back_request(
                        commitlog_offset=message.commitlog_offset,
                        group=group,
                        delay_level=story.asked_level,
                        origin_message_id=message.msg_id,
                        origin_topic=message.topic,
                    )
                )
                assert response.code == ResponseCode.SUCCESS, (name, response)
                self._notes.add("failed", request)
