"""One store's life, step by step: every durable operation of the engine, on files so small that each of them rolls often.

    put · put_batch · put_inner · flush · release · close · a sink's batch (also one that was committed before) · transactions,
    prepared, ended, checked, put as rows · delayed messages and their delivery · expiry · topics · group offsets ·
    consumers, look-ups by key · time that passes

What comes of it is written into a `History`, and what a table under config/ was promised to hold is a mark. All of it follows from
the `Random` given, if `reproducible` is around it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from spark_mq.broker.end_transaction import TransactionEnder, request_for
from storage import Message, open_store
from storage.batch.commit import commit_batch
from storage.batch.ledger import Batch
from storage.batch.staged_segment import StagedBatch
from storage.delay.schedule import deliver_due
from storage.errors import (
    CorruptRecordError,
    OffsetOutOfRangeError,
)
from storage.files.local_file_system import LocalFileSystem, read_with_backup
from storage.format.record import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from storage.retention import Occasion, apply_expiry, plan_expiry
from storage.rules.half_messages import TransactionState, half_message
from storage.rules.inner_messages import InnerMessage
from storage.rules.response_codes import ResponseCode
from storage.settings.nouns import RetentionConfig
from storage.tables.consumer_groups import ConsumerOffsets
from storage.tables.document import OFFSETS_FILE, TOPICS_FILE
from storage.tables.offline_changes import write_group_offsets
from storage.tables.topics import TopicTable
from tests.support.held_check import check_half_messages
from tests.support.queue_history import Answer, History, Seen, Sent, see
from tests.support.stage_rows import BatchRows, stage
from tests.torture.store_life import DAY_MS, QUEUES, TOPICS, StoreLife

SINKS = ("first", "second")
GROUP, PRODUCER_GROUP = "readers", "payers"
COUNTED = "%LMQ%counted"
"""Of such a queue the broker keeps offsets without knowing its end: no opening lowers them."""
FULL_DISK = Occasion(("the disk is full",), whatever_age=True)
_DELAY_LEVELS = (1, 2, 3)
_FATES = {"committed": "commit", "rolled back": "rollback", "prepared": "unknown"}


class StoreWorkload(StoreLife):
    """All durable operations, by chance."""

    def _weights(self) -> Mapping[Callable[[], None], int]:
        return {
            self._put: 6,
            self._put_batch: 5,
            self._put_inner: 1,
            self._flush: 1,
            self._release: 3,
            self._close: 1,
            self._sink: 3,
            self._prepare: 2,
            self._end: 2,
            self._check: 1,
            self._put_transactions: 1,
            self._delay: 2,
            self._deliver: 1,
            self._expire: 1,
            self._make_topic: 1,
            self._save_offsets: 1,
            self._consume: 2,
            self._query: 1,
            self._pass_time: 1,
        }

    def finish(self) -> None:
        """Deliver what waits, whenever it is due: every delayed message that is acknowledged has to be in its topic then."""
        self.now_ms += DAY_MS
        self._deliver()
        for sent in self.history.sent:
            if sent.is_delayed and sent.answer is Answer.OK:
                self.history.ended(sent)
        self.history.promise()

    # Messages

    def _put(self) -> None:
        topic, queue_id = self._queue()
        sent = self._ask(topic, self.random.choice((queue_id, queue_id, None)))
        with self._asking(sent):
            tags = self.random.choice((None, "a", "b"))
            put = self.store.put(topic, sent.body, keys=sent.key, tags=tags, queue_id=sent.queue_id, queue_count=QUEUES)
            self.history.acknowledge(sent, put.queue_offset, put.commitlog_offset, put.queue_id)
            self.mark(f"topic {topic}")

    def _put_batch(self) -> None:
        asked = [self._ask(*self._queue()) for _ in range(self.random.randint(1, 12))]
        with self._asking(*asked):
            self._acknowledge(asked, self.store.put_batch(_table(asked), queue_count=QUEUES))

    def _put_inner(self) -> None:
        asked = [self._ask(*self._queue()) for _ in range(self.random.randint(1, 4))]
        with self._asking(*asked):
            self._make_topics(*TOPICS)
            self._acknowledge(asked, self.store.put_inner([self._inner(sent) for sent in asked]))

    def _inner(self, sent: Sent) -> InnerMessage:
        unique = f"{self.random.getrandbits(128):032X}"
        return InnerMessage(
            topic=sent.topic,
            queue_id=sent.queue_id or 0,
            body=sent.body,
            properties={"KEYS": sent.key, "UNIQ_KEY": unique},
            born_time_ms=self.now_ms,
        )

    # Transactions

    def _prepare(self) -> None:
        asked = [self._ask(*self._queue(), transaction="prepared") for _ in range(self.random.randint(1, 3))]
        with self._asking(*asked):
            self._make_topics(*TOPICS)
            halves = [half_message(self._inner(sent), PRODUCER_GROUP) for sent in asked]
            self._acknowledge(asked, self.store.put_inner(halves))

    def _end(self) -> None:
        """Also those whose end is not known; some hear twice that they are committed."""
        open_ones = [
            sent
            for sent in self.history.sent
            if sent.transaction is not None
            and sent.answer is Answer.OK
            and (sent.end_answer is Answer.UNKNOWN or self.random.random() < 0.1)
        ]
        if not open_ones:
            return
        ender = TransactionEnder.of(self.store, self.clock())
        ended = [one for one in self.random.sample(open_ones, min(3, len(open_ones))) if self._end_one(ender, one)]
        ender.close(self.clock())
        with self._asking():
            for sent in ended:
                self.history.ended(sent)

    def _end_one(self, ender: TransactionEnder, sent: Sent) -> bool:
        fate = sent.transaction if sent.transaction != "prepared" else self._fate()
        half = self._half(sent)
        if half is None or fate is None:
            return False
        self.history.end(sent, fate)
        flag = TRANSACTION_COMMIT if fate == "committed" else TRANSACTION_ROLLBACK
        response = ender.end(request_for(half, flag), self.clock())
        assert response is not None, "a commit or a rollback has an answer"
        if response.code != ResponseCode.SUCCESS:
            self.history.ended(sent, Answer.REFUSED)
        return response.code == ResponseCode.SUCCESS

    def _fate(self) -> str:
        return self.random.choice(("committed", "committed", "rolled back"))

    def _half(self, sent: Sent) -> Message | None:
        """As it was put first; None if it has expired."""
        with suppress(CorruptRecordError, OffsetOutOfRangeError):
            half = self.store.message_by_commitlog_offset(sent.commitlog_offset or 0)
            return half if half.properties.get("KEYS") == sent.key else None
        return None

    def _check(self) -> None:
        by_key = {sent.key: sent for sent in self.history.sent}
        ended = []

        def answer(half: Message) -> TransactionState:
            sent = by_key.get(half.properties.get("KEYS", ""))
            if sent is None or (sent.transaction == "prepared" and self.random.random() < 0.5):
                return TransactionState.UNKNOWN
            fate = sent.transaction if sent.transaction != "prepared" else self._fate()
            self.history.end(sent, fate or "")
            ended.append(sent)
            return TransactionState.COMMIT if fate == "committed" else TransactionState.ROLLBACK

        check_half_messages(self.store, answer, self.clock())
        with self._asking():
            for sent in ended:
                self.history.ended(sent)

    def _put_transactions(self) -> None:
        asked = [self._ask(*self._queue(), transaction="prepared") for _ in range(self.random.randint(1, 6))]
        fates = [self.random.choice(list(_FATES)) for _ in asked]
        for sent, fate in zip(asked, fates, strict=True):
            if fate != "prepared":
                self.history.end(sent, fate)
        with self._asking(*asked):
            rows = _table(asked).append_column("transaction_state", pa.array([_FATES[fate] for fate in fates]))
            places = self.store.put_batch(rows, queue_count=QUEUES, transactional=True, producer_group=PRODUCER_GROUP)
            self._acknowledge(asked, places)
            for sent, fate in zip(asked, fates, strict=True):
                if fate != "prepared":
                    self.history.ended(sent)

    # Delays

    def _delay(self) -> None:
        asked = [self._ask(*self._queue(), is_delayed=True) for _ in range(self.random.randint(1, 5))]
        with self._asking(*asked):
            levels = pa.array([self.random.choice(_DELAY_LEVELS) for _ in asked], pa.int32())
            rows = _table(asked).append_column("delay_level", levels)
            self._acknowledge(asked, self.store.put_batch(rows, queue_count=QUEUES))

    def _deliver(self) -> None:
        if deliver_due(self.store, self.clock()).delivered_count:
            self.history.promise()

    def _pass_time(self) -> None:
        self.now_ms += self.random.choice((1_000, 7_000, 60_000))

    # The sink

    def _sink(self) -> None:
        """The next batch of a sink; one whose end is not known again, and at times one that is known to be done."""
        sink = self.random.choice(SINKS)
        batches = _batches(self.history, sink)
        last = max(batches, default=-1)
        is_done = bool(batches) and all(sent.answer is Answer.OK for sent in batches[last])
        is_again = bool(batches) and (not is_done or self.random.random() < 0.2)
        if is_again:
            asked, rows = batches[last], _rows_of(sink, last, batches[last])
        else:
            is_done, counts = False, tuple(self.random.randint(1, 9) for _ in range(self.random.randint(1, 2)))
            rows = _rows(sink, last + 1, counts)
            all_is_synced = self.sync_flush and not self.is_mixed  # nothing before it will ever be cut
            floor = self.store.log_end if all_is_synced else self.log_minimum
            asked = [
                self.history.ask(row.key, row.topic, None, row.body.encode(), f"{sink}-{partition}", floor=floor)
                for partition in range(len(counts))
                for row in rows.of_partition(partition)
            ]
        segments = stage(self.file_system, str(self.root), self.config, rows, queue_count=QUEUES)
        outcome = commit_batch(self.store.writer, StagedBatch(rows.batch, segments, dict.fromkeys(rows.topics, QUEUES)))
        assert outcome.already_done or not is_done, f"{rows.batch} was committed, and is taken for new"
        for sent in asked:
            if outcome.already_done and not is_again:
                sent.floor = 0  # a life before has put it and told nobody: it may have expired since
            self.history.acknowledge(sent, is_durable=True)
            self.mark(f"topic {sent.topic}")

    # The store's files

    def _flush(self) -> None:
        self.store.flush()
        self.history.promise()

    def _expire(self) -> None:
        """The oldest of many log files go."""
        store = self.store
        if len(store.log.files) < 6:
            return
        config = RetentionConfig(delete_file_batch_max=2)
        plan = plan_expiry(store, self.file_system, config, FULL_DISK, now_ms=self.clock())
        self.log_minimum = plan.minimum
        self.mark(f"minimum {plan.minimum}")
        apply_expiry(store.writer, plan, config, sleep=lambda seconds: None)
        if not plan.is_empty:  # who deletes something syncs everything first
            self.history.promise()

    # Tables

    def _make_topic(self) -> None:
        self._make_topics(f"made-{self.now_ms}")

    def _save_offsets(self) -> None:
        """Ever greater ones."""
        self.let_go()
        offset = self.clock()
        self.mark(f"offset asked {offset}")
        offsets = {(COUNTED, 0): offset}
        self.file_system.make_directories(f"{self.root}/config")
        write_group_offsets(str(self.root), GROUP, offsets, now_ms=offset, file_system=self.file_system)
        self.mark(f"offset saved {offset}")

    # Readers

    def _consume(self) -> None:
        """Another process reads what is new to it; of some queues only."""
        if self._store is None and not (self.root / "commitlog").is_dir():
            return
        with open_store(self.root, config=self.config, file_system=LocalFileSystem()) as reader:
            seen = see(reader)
        new: list[Seen] = []
        for one in seen:
            queue = one.topic, one.queue_id
            if one.topic in TOPICS and one.queue_offset >= self._positions.get(queue, 0):
                self._positions[queue] = one.queue_offset + 1
                new.append(one)
        self.history.consume(new)

    def _query(self) -> None:
        """A message that was acknowledged is found by its key."""
        known = [
            sent
            for sent in self.history.sent
            if sent.is_plain and sent.answer is Answer.OK and (sent.commitlog_offset or 0) >= self.log_minimum
        ]
        for sent in self.random.sample(known, min(3, len(known))):
            if sent.commitlog_offset is not None:
                places = [message.commitlog_offset for message in self.store.messages_by_key(sent.topic, sent.key)]
                assert sent.commitlog_offset in places, (
                    f"{sent.key} at {sent.commitlog_offset}: a look-up finds {places}"
                )


def _table(asked: Sequence[Sent]) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "topic": pa.array([sent.topic for sent in asked], pa.string()),
            "queue_id": pa.array([sent.queue_id for sent in asked], pa.int32()),
            "body": pa.array([sent.body for sent in asked], pa.binary()),
            "keys": pa.array([sent.key for sent in asked], pa.string()),
            "tags": pa.array(["a" if number % 2 else "b" for number in range(len(asked))], pa.string()),
            "properties": pa.array(
                [[("filler", "x" * (1 + len(sent.body) % 7 * 100))] for sent in asked],
                pa.map_(pa.string(), pa.string()),
            ),
        }
    )


def _rows(sink: str, batch_id: int, counts: tuple[int, ...]) -> BatchRows:
    return BatchRows(Batch(sink, f"query-of-{sink}", batch_id), counts, TOPICS)


def _batches(history: History, sink: str) -> dict[int, list[Sent]]:
    """A sink's batches in the history, by number."""
    batches: dict[int, list[Sent]] = {}
    for sent in history.sent:
        name, _, rest = sent.key.partition("/")
        if name == sink:
            batches.setdefault(int(rest.partition("/")[0]), []).append(sent)
    return batches


def _rows_of(sink: str, batch_id: int, asked: Sequence[Sent]) -> BatchRows:
    """The rows that were asked for; their keys say SINK/BATCH/PARTITION/NUMBER."""
    partitions = [int(sent.key.split("/")[2]) for sent in asked]
    return _rows(sink, batch_id, tuple(partitions.count(number) for number in range(max(partitions) + 1)))


def broken_promises(root: Path, marks: Sequence[str]) -> list[str]:
    """What tables under config/ were promised to hold, by the marks of a workload, and do not."""
    files, broken = LocalFileSystem(), []
    topics = read_with_backup(f"{root}/config/{TOPICS_FILE}", TopicTable.load, read_bytes=files.read_file).value
    held = {} if topics is None else topics.topics
    for topic in dict.fromkeys(mark.removeprefix("topic ") for mark in marks if mark.startswith("topic ")):
        if topic not in held or held[topic].write_queue_count != QUEUES:
            broken.append(f"topic {topic} was made, and topics.json says {held.get(topic)}")
    offsets = read_with_backup(f"{root}/config/{OFFSETS_FILE}", ConsumerOffsets.load, read_bytes=files.read_file).value
    found = None if offsets is None else offsets.get(COUNTED, GROUP, 0)
    saved = max((int(mark.split()[2]) for mark in marks if mark.startswith("offset saved")), default=None)
    asked = {int(mark.split()[2]) for mark in marks if mark.startswith("offset asked")}
    if (saved is not None and (found is None or found < saved)) or (found is not None and found not in asked):
        broken.append(f"offset {saved} of group {GROUP} was saved, and consumerOffset.json says {found}")
    return broken
