"""The whole store against a model: rules put, commit, deliver, expire, read, let go and crash; then the model says what is served.

A crash comes behind a step or amid one, and is a killed process (what was written is there) or a power loss (what was not synced is
there by chance). Then the log must begin where it began, end at or behind all that is certain, and hold everything up to there: what is
lost is its end, and what is left is each message once, in its place. Rows of a decided batch come back whole.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import ClassVar

import pyarrow as pa
from hypothesis import assume
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from jobs.rebuild_queues import rebuild_queues
from jobs.verify_store import verify_store
from spark_mq.broker.end_transaction import end_transaction, request_for
from spark_mq.broker.response_codes import ResponseCode
from storage import GetStatus, Message, MessageStore, batch_commit, retention
from storage.batch_ledger import TOPIC as LEDGER_TOPIC
from storage.batch_ledger import Batch
from storage.consumer_offsets import ConsumerOffsets
from storage.delay import schedule
from storage.errors import CorruptRecordError
from storage.format.delay_level import SCHEDULE_TOPIC
from storage.format.sys_flag import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from storage.group_progress import write_group_offsets
from storage.inner_messages import InnerMessage
from storage.transaction import check
from storage.transaction.check_plan import CheckRules
from storage.transaction.half_messages import HALF_TOPIC, TransactionState, half_message
from storage.transaction.op_messages import OP_TOPIC
from tests.model.held_store import HeldStore, PowerLoss, served
from tests.model.store_model import Asked, Half, Parked, Queue, Stored, StoreModel
from tests.support.crash_file_system import EXTREMES
from tests.support.rebuilt_store import differences_from_rebuild
from tests.support.stage_rows import BatchRows, stage
from tests.torture.workload import reproducible

TOPICS = ("orders", "bills")
QUEUE_COUNT = 2
UNSEEN = {HALF_TOPIC, OP_TOPIC, LEDGER_TOPIC}
"""Topics for the engine's own use, of which the model knows only what comes of them."""
SHARED = "shared"
"""A key that many messages have."""
GROUP = "readers"
PRODUCERS = "producers"
PATIENT = 10_000
"""Checks after which a half is given up: more than a script has."""

topics = st.sampled_from(TOPICS)
queue_ids = st.integers(0, QUEUE_COUNT - 1)
sizes = st.sampled_from((5, 80, 700, 2_800))
"""Of bodies; of the last no two fit into a file of the log."""
tags = st.sampled_from((None, "red", "blue"))
messages = st.tuples(topics, queue_ids, sizes, tags, st.booleans())
some_messages = st.lists(messages, min_size=1, max_size=6)
flushes = st.sampled_from((False, False, False, True))
"""Whether the store is opened under SYNC_FLUSH; there is more to lose under ASYNC_FLUSH."""
steps_back = st.one_of(st.just(0), st.integers(1, 60))


class StoreMachine(RuleBasedStateMachine):
    """A store and its model, hand in hand."""

    place: ClassVar[Path | None] = None
    """Where stores are made; None: where temporary files are."""
    figures: ClassVar[Counter[str]] = Counter()
    """What scripts have come to, all together."""

    def __init__(self) -> None:
        super().__init__()
        self._resources = ExitStack()
        self._resources.enter_context(reproducible(Random(0)))
        self._directory = self._resources.enter_context(TemporaryDirectory(prefix="model-", dir=self.place))
        self.figures["scripts"] += 1
        self.held = HeldStore(Path(self._directory))
        self.held.open()
        self.model = self.before = StoreModel()
        self._key_count = 0
        self._is_index_new = False
        self._rows_in_doubt: int | None = None
        """The number of the batch that the last step committed."""

    def teardown(self) -> None:
        """Where no rule has failed, the store is closed, and its files must agree with each other."""
        with self._resources:
            if sys.exc_info()[0] is None:
                self.held.let_go(close=True)
                self._is_index_new = True
                self._compare_everything()
                report = verify_store(self.held.root)
                assert self.model.holes or report.findings == (), report.findings
                assert report.undispatched_bytes == 0
                assert differences_from_rebuild(self.held.root) == []

    # Putting

    @rule(message=messages)
    def put(self, message: tuple[str, int, int, str | None, bool]) -> None:
        store = self._begin()
        asked = self._asked(*message)
        result = store.put(
            asked.topic,
            asked.body,
            tags=asked.tags,
            keys=asked.keys,
            queue_id=asked.queue_id,
            queue_count=QUEUE_COUNT,
        )
        (stored,) = self._expect([asked])
        assert (result.queue_id, result.queue_offset, result.commitlog_offset, result.store_time_ms) == stored[1:]

    @rule(rows=some_messages)
    def put_batch(self, rows: list[tuple[str, int, int, str | None, bool]]) -> None:
        store = self._begin()
        asked = [self._asked(*row) for row in rows]
        results = store.put_batch(_table(asked), queue_count=QUEUE_COUNT)
        stored = self._expect(asked)
        assert results["commitlog_offset"].to_pylist() == [message.commitlog_offset for message in stored]
        assert results["queue_offset"].to_pylist() == [message.queue_offset for message in stored]

    @rule(rows=some_messages)
    def put_inner(self, rows: list[tuple[str, int, int, str | None, bool]]) -> None:
        store = self._begin()
        asked = [self._asked(*row) for row in rows]
        store.put_inner([self._inner(one) for one in asked])
        self._expect(asked)

    @rule(rows=some_messages, level=st.integers(1, 3))
    def put_delayed(self, rows: list[tuple[str, int, int, str | None, bool]], level: int) -> None:
        store = self._begin()
        asked = [self._asked(*row) for row in rows]
        store.put_batch(_table(asked, delay_level=level), queue_count=QUEUE_COUNT)
        delay_ms = store.config.delay.delays_ms[level - 1]
        for one in asked:
            assert one.queue_id is not None
            self.model.parked[one.keys[0]] = Parked(level, delay_ms, one.topic, one.queue_id)
        self._expect([one._replace(topic=SCHEDULE_TOPIC, queue_id=level - 1) for one in asked])

    @precondition(lambda self: self.model.parked)
    @rule(leap_ms=st.sampled_from((0, 1_000, 5_000, 20_000)))
    def deliver(self, leap_ms: int) -> None:
        store = self._begin()
        self.held.now_ms += leap_ms
        now_ms = self.held.clock()
        expected = self.model.due(now_ms)
        schedule.deliver_due(store, now_ms)
        delivered = self._expect(expected, is_durable=bool(expected))
        self.model.delivered |= {message.name: message.commitlog_offset for message in delivered}

    # Batches

    @rule(counts=st.lists(st.integers(1, 8), min_size=1, max_size=2))
    def commit(self, counts: list[int]) -> None:
        store = self._begin()
        rows = self._batch(self.model.batch_count, tuple(counts))
        self._rows_in_doubt = self.model.batch_count
        if self.model.has_open_intent:
            self.model.durable_end = self.model.log_end
        outcome = self._commit(store, rows)
        assert not outcome.already_done, f"{rows.batch} is taken for done"
        self._expect(_asked_rows(rows))
        self.model.batch_count += 1
        self.model.has_open_intent = not self.held.sync_flush

    @precondition(lambda self: self.model.batch_count)
    @rule(ago=st.integers(1, 2))
    def commit_again(self, ago: int) -> None:
        """A batch that is there, as Spark brings it after a restart."""
        store = self._begin()
        rows = self._batch(max(0, self.model.batch_count - ago), (3,))
        assert self._commit(store, rows).already_done, f"{rows.batch} is taken for new"
        self._expect([])

    def _batch(self, number: int, counts: tuple[int, ...]) -> BatchRows:
        return BatchRows(Batch("sink", "query", number), counts, TOPICS)

    def _commit(self, store: MessageStore, rows: BatchRows) -> batch_commit.CommitOutcome:
        staged = stage(self.held.files, self.held.root, store.config, rows, queue_count=QUEUE_COUNT)
        return batch_commit.commit_batch(store.writer, rows.batch, staged, topics=dict.fromkeys(TOPICS, QUEUE_COUNT))

    # Transactions

    @rule(message=messages, commits=st.booleans())
    def prepare(self, message: tuple[str, int, int, str | None, bool], commits: bool) -> None:
        store = self._begin()
        asked = self._asked(*message)
        place = store.put_inner([self._half_of(asked)])["commitlog_offset"][0].as_py()
        assert place >= self.model.log_end
        self.model.halves[asked.keys[0]] = Half(asked, commits, place)
        self._expect([])

    @precondition(lambda self: self._open_halves())
    @rule(choice=st.integers(0, 7))
    def end(self, choice: int) -> None:
        """A producer says what became of one of its open transactions."""
        store, open_halves = self._begin(), self._open_halves()
        half = open_halves[choice % len(open_halves)]
        flag = TRANSACTION_COMMIT if half.commits else TRANSACTION_ROLLBACK
        request = request_for(store.message_by_commitlog_offset(half.commitlog_offset), flag)
        response = end_transaction(store, request, self.held.clock())
        assert response is not None
        assert response.code is ResponseCode.SUCCESS, response
        self._ended([half], self._expect([half.asked] if half.commits else []))

    @precondition(lambda self: self.model.halves)
    @rule(is_known=st.booleans())
    def check_halves(self, is_known: bool) -> None:
        """The producers are asked; they know the answers or not."""
        store = self._begin()
        self.held.now_ms += 10_000
        rules = replace(CheckRules.of(store.config), max_checks=PATIENT)

        def answer(half: Message) -> TransactionState:
            if not is_known:
                return TransactionState.UNKNOWN
            commits = self.model.halves[half.keys[0]].commits
            return TransactionState.COMMIT if commits else TransactionState.ROLLBACK

        check.check_half_messages(store, answer, self.held.clock(), rules=rules)
        sure = self._open_halves() if is_known else []
        copies = [half for half in self.model.halves.values() if half.ended_at is None and half not in sure]
        expected = [half.asked for half in sure if half.commits]
        stored = self._expect(expected, [half.asked for half in copies if half.commits and is_known], in_order=False)
        self._ended([*sure, *copies] if is_known else [], stored)

    def _half_of(self, asked: Asked) -> InnerMessage:
        return half_message(self._inner(asked), PRODUCERS)

    def _open_halves(self) -> list[Half]:
        """Those whose first copy has not expired."""
        halves = self.model.halves.values()
        return [half for half in halves if half.ended_at is None and half.commitlog_offset >= self.model.log_minimum]

    def _ended(self, halves: Iterable[Half], stored: Sequence[Stored]) -> None:
        places = {message.name: message.commitlog_offset for message in stored}
        for half in halves:
            ended_at = places.get(half.asked.keys[0]) if half.commits else self.model.log_end
            self.model.halves[half.asked.keys[0]] = replace(half, ended_at=ended_at)

    # Keeping house

    @rule(count=st.integers(1, 4))
    def expire(self, count: int) -> None:
        """The log's oldest files go, so many at most."""
        store = self._begin()
        config = replace(store.config.retention, delete_file_batch_max=count)
        occasion = retention.Occasion(("it was asked for",), whatever_age=True)
        plan = retention.plan_expiry(store, self.held.files, config, occasion, now_ms=self.held.clock())
        size = store.config.commit_log.mapped_file_size_commit_log
        assert size is not None
        whole = max(0, (self.model.log_end - 1) // size * size - self.model.log_minimum) // size
        assert plan.minimum == self.model.log_minimum + min(count, whole) * size
        retention.apply_expiry(store.writer, plan, config, sleep=lambda seconds: None)
        self.model.expire(plan.minimum)
        self._is_index_new = True
        self._expect([], is_durable=not plan.is_empty)

    @rule(how=st.sampled_from(("flush", "release", "close")), sync_flush=flushes)
    def pause(self, how: str, sync_flush: bool) -> None:
        """The store is flushed, or let go of and opened by the next step, as it says."""
        store = self._begin()
        if how == "flush":
            store.flush()
            self._expect([], is_durable=True)
            return
        self.held.let_go(close=how == "close")
        self.held.sync_flush = sync_flush
        if how == "close":
            self.model.durable_end = self.model.log_end
            self.model.has_open_intent = False

    @rule(topic=topics, queue_id=queue_ids, offset=st.integers(0, 30))
    def commit_group_offset(self, topic: str, queue_id: int, offset: int) -> None:
        self._begin()
        self.held.let_go(close=False)
        offsets = {(topic, queue_id): offset}
        write_group_offsets(self.held.root, GROUP, offsets, now_ms=self.held.clock(), file_system=self.held.files)
        self.model.group_offsets |= offsets

    @rule(
        names=st.sets(st.sampled_from(("consumequeue", "index", "checkpoint", "spark_mq/hint.json"))),
        close=st.booleans(),
    )
    def lose_derived_files(self, names: set[str], close: bool) -> None:
        """What is made of the log is made again: where it is missing, or because the job is told to."""
        store = self._begin()
        if self._has_expired_queue(store):
            return
        self.held.let_go(close=close)
        for name in sorted(names):
            self.held.forget(name)
        if not names:
            rebuild_queues(self.held.root)
            self.held.found_changed()
        self._begin()
        self._expect([], is_durable=True)
        self._is_index_new = True

    def _has_expired_queue(self, store: MessageStore) -> bool:
        """Whether the log says nothing any more of where some queue ended."""
        names = [(topic, queue_id) for topic in store.topics() for queue_id in store.queue_ids(topic)]
        return any(store.min_offset(*name) == store.max_offset(*name) > 0 for name in names)

    # Crashes

    @rule(steps_back=steps_back, sync_flush=flushes)
    def kill(self, steps_back: int, sync_flush: bool) -> None:
        """The process is killed, so many operations before the end of the last step, and the store opened again."""
        self._crash(steps_back, sync_flush, None)

    @rule(
        steps_back=steps_back,
        sync_flush=flushes,
        what_is_left=st.sampled_from((*EXTREMES, "torn")),
        seed=st.integers(0, 2**16),
    )
    def lose_power(self, steps_back: int, sync_flush: bool, what_is_left: str, seed: int) -> None:
        """By chance, or one of the extremes."""
        self._crash(steps_back, sync_flush, (Random(seed), what_is_left if what_is_left in EXTREMES else ""))

    def _crash(self, steps_back: int, sync_flush: bool, power_loss: PowerLoss | None) -> None:
        is_amid = self.held.is_amid_step(steps_back)
        begun = self.before if is_amid else self.model
        self.held.crash(steps_back, power_loss)
        self.held.sync_flush = sync_flush
        store, self._is_index_new = self.held.open(), True
        cut = store.log_end if store.recovery is None else store.recovery.log_end
        certain = begun.log_end if power_loss is None else begun.durable_end
        assert cut >= certain, f"the log ends at {cut}, and all up to {certain} was certain"
        assert is_amid or power_loss is not None or cut == self.model.log_end
        minimum = store.log.minimum
        assert begun.log_minimum <= minimum <= max(self.model.log_minimum, begun.log_minimum), minimum
        self.figures["crashes"] += 1
        self.figures["bytes lost"] += max(0, begun.log_end - cut)
        self.model, missing = self.model.after_crash(begun, cut, minimum)
        self.model.group_offsets = self._group_offsets(store, begun)
        self.before, doubted = self.model.copy(), [row for row in missing if self._is_in_doubt(row, is_amid, begun)]
        self._take_torn(store, certain)
        self.before.durable_end = cut if power_loss is not None else min(begun.durable_end, cut)
        there = self._expect([row for row in missing if row not in doubted], doubted)
        if doubted and any(message.asked in doubted for message in there):
            assert all(any(message.asked == row for message in there) for row in doubted), "half a batch"
        batches = [message.asked.batch_id for message in self.model.messages() if message.asked.batch_id is not None]
        self.model.batch_count = max([self.model.batch_count - 1, *batches]) + 1
        if store.recovery is not None:
            self.model.durable_end, self.model.has_open_intent = self.model.log_end, False

    # Reading

    @rule(topic=topics, queue_id=queue_ids, offset=st.integers(-1, 40), count=st.integers(1, 9), tag=tags)
    def get(self, topic: str, queue_id: int, offset: int, count: int, tag: str | None) -> None:
        queue = topic, queue_id
        with self.held.look() as store:
            result = store.get(topic, queue_id, offset, count, tags=tag)
        minimum, maximum = self.model.minimum(queue), self.model.ends.get(queue, 0)
        assert (result.min_offset, result.max_offset) == (minimum, maximum)
        if minimum <= offset < maximum:
            stretch = [m for m in self.model.serves(queue, offset) if m.queue_offset < result.next_begin_offset]
            wanted = [message for message in stretch if tag in (None, message.asked.tags)]
            assert offset < result.next_begin_offset <= maximum
            assert [_asked(message) for message in result.messages] == [message.as_served.asked for message in wanted]
            assert len(wanted) <= count
        else:
            assert result.messages == ()
            expected = {
                maximum == 0: GetStatus.NO_MESSAGE_IN_QUEUE,
                offset < minimum: GetStatus.OFFSET_TOO_SMALL,
                offset == maximum > 0: GetStatus.OFFSET_OVERFLOW_ONE,
                offset > maximum > 0: GetStatus.OFFSET_OVERFLOW_BADLY,
            }
            assert result.status in (expected[True], GetStatus.NO_MATCHED_LOGIC_QUEUE)

    @rule(topic=topics, queue_id=queue_ids, choice=st.integers(0, 40), shift_ms=st.integers(-1, 1), upper=st.booleans())
    def offset_by_time(self, topic: str, queue_id: int, choice: int, shift_ms: int, upper: bool) -> None:
        known = self.model.queues.get((topic, queue_id), [])
        time_ms = (known[choice % len(known)].store_time_ms if known else self.held.now_ms) + shift_ms
        with self.held.look() as store:
            found = store.offset_by_time(topic, queue_id, time_ms, upper=upper)
        assert found == self.model.offset_at((topic, queue_id), time_ms, upper=upper)

    # What always holds

    @invariant()
    def serves_what_the_model_says(self) -> None:
        self._compare_everything()

    def _compare_everything(self) -> None:
        with self.held.look() as store:
            for queue in self._queues(store):
                self._compare_queue(store, queue)
            for topic in UNSEEN & set(store.topics()):
                for offset, message in served(store, topic, 0, store.min_offset(topic, 0)):
                    assert message is not None or (topic, 0, offset) in self.model.holes, f"{topic}: a hole at {offset}"
            for message in self._to_look_up():
                hits = [hit.commitlog_offset for hit in store.query(message.asked.topic, message.name, 1_000)]
                assert hits == [message.commitlog_offset], f"a look-up of {message} finds {hits}"
            for topic in TOPICS:
                shared = [hit.commitlog_offset for hit in store.query(topic, SHARED, 1_000)]
                assert shared == [message.commitlog_offset for message in self.model.with_key(topic, SHARED)]
                assert store.query(topic, "nobody's") == []
            assert self._group_offsets(store, self.model) == self.model.group_offsets

    def _to_look_up(self) -> list[Stored]:
        """What is new; behind a step that may have changed the index, everything."""
        known = sorted(
            (message for message in self.model.messages() if message.name), key=lambda message: message.commitlog_offset
        )
        everything, self._is_index_new = self._is_index_new, False
        return known if everything else known[-5:]

    def _compare_queue(self, store: MessageStore, queue: Queue) -> None:
        ends = store.min_offset(*queue), store.max_offset(*queue)
        assert ends == (self.model.minimum(queue), self.model.ends.get(queue, 0)), f"{queue} goes from {ends}"
        found = [_stored(message) for _, message in served(store, *queue, ends[0]) if message is not None]
        expected = [message.as_served for message in self.model.serves(queue, 0)]
        assert found == expected, f"{queue}: {_first_difference(found, expected)}"

    # How the steps are made of

    def _begin(self) -> MessageStore:
        """A step of its own begins, with the store open for writing."""
        self.before = self.model.copy()
        self.held.begin_step()
        self._rows_in_doubt = None
        self._is_index_new |= not self.held.is_open
        return self.held.open()

    def _expect(
        self,
        asked: Sequence[Asked],
        possible: Sequence[Asked] = (),
        *,
        in_order: bool = True,
        is_durable: bool = False,
    ) -> list[Stored]:
        """These messages are new in the store, and of the possible ones any; returns them as they are stored, in log order."""
        store = self.held.open()
        new = [
            _stored(message)
            for queue in self._queues(store)
            for offset, message in served(store, *queue, self.model.ends.get(queue, 0))
            if message is not None
        ]
        new.sort(key=lambda message: message.commitlog_offset)
        known = {(one.topic, one.keys[0]): one for one in (*asked, *possible)}
        counts = Counter((message.asked.topic, message.name) for message in new)
        must = Counter((one.topic, one.keys[0]) for one in asked)
        assert counts >= must, f"not there: {must - counts}"
        assert counts <= Counter(known.keys()), f"there, and not asked for: {counts - Counter(known.keys())}"
        found = []
        for message in new:
            wanted = known[message.asked.topic, message.name]
            queue_id = message.queue_id if wanted.queue_id is None else wanted.queue_id
            assert message.asked == wanted._replace(queue_id=queue_id, batch_id=None), (message, wanted)
            assert message.commitlog_offset >= self.model.log_end, f"{message} stands before the log's end"
            found.append(message._replace(asked=wanted._replace(queue_id=queue_id)))
        if in_order and not possible:
            assert [message.name for message in found] == [one.keys[0] for one in asked]
        self.model.add(found)
        self.model.log_end = store.log_end
        if is_durable or self.held.sync_flush:
            self.model.durable_end = self.model.log_end
        return found

    def _queues(self, store: MessageStore) -> list[Queue]:
        """All queues that the store or the model knows of."""
        there = {(topic, queue_id) for topic in store.topics() for queue_id in store.queue_ids(topic)}
        return sorted(queue for queue in there | self.model.ends.keys() if queue[0] not in UNSEEN)

    def _is_in_doubt(self, row: Asked, is_amid: bool, begun: StoreModel) -> bool:
        """Whether the row is of the batch whose commit was interrupted, and none of its rows is there."""
        if not is_amid or row.batch_id != self._rows_in_doubt or row.batch_id is None:
            return False
        return all(message.asked.batch_id != row.batch_id for message in self.model.messages())

    def _take_torn(self, store: MessageStore, certain: int) -> None:
        """No checksum covers topic and properties: where a power loss tore those of a record that was not certain, take it as is."""
        for half in self.model.halves.values():
            if half.commitlog_offset >= max(certain, self.model.log_minimum):
                found = _message_at(store, half.commitlog_offset)
                assume(found is not None and found.properties == self._half_of(half.asked).properties)
        for queue, known in self.model.queues.items():
            for number in reversed(range(len(known))):
                message = known[number]
                if message.commitlog_offset < certain or message.asked.batch_id is not None:
                    continue
                found = _message_at(store, message.commitlog_offset)
                is_torn = found is None or _asked(found) != message.asked
                assume(not is_torn or queue[0] != SCHEDULE_TOPIC)  # whether it can still be delivered is another story
                if found is None or found.topic != message.asked.topic:
                    del known[number]
                    self.model.holes[(*queue, message.queue_offset)] = message.commitlog_offset
                    self.figures["torn topics"] += 1
                elif is_torn:
                    assert found.body == message.asked.body
                    known[number] = message._replace(asked=_asked(found))
                    self.figures["torn properties"] += 1

    def _group_offsets(self, store: MessageStore, begun: StoreModel) -> dict[Queue, int]:
        """What is stored; of a step that was interrupted the old offset or the new one."""
        table = store.state("consumerOffset.json", ConsumerOffsets.load) or ConsumerOffsets()
        found = {queue: table.get(queue[0], GROUP, queue[1]) for queue in self.model.group_offsets}
        for queue, offset in found.items():
            assert offset in (self.model.group_offsets[queue], begun.group_offsets.get(queue)), (queue, offset)
        return {queue: offset for queue, offset in found.items() if offset is not None}

    def _asked(self, topic: str, queue_id: int, size: int, tag: str | None, is_shared: bool) -> Asked:
        self._key_count += 1
        key = f"k{self._key_count}"
        return Asked(topic, queue_id, f"{key} ".encode().ljust(size, b"."), (key, *[SHARED] * is_shared), tag)

    def _inner(self, asked: Asked) -> InnerMessage:
        assert asked.queue_id is not None
        properties = {"KEYS": " ".join(asked.keys), "UNIQ_KEY": f"unique-{asked.keys[0]}"}
        if asked.tags is not None:
            properties["TAGS"] = asked.tags
        return InnerMessage(
            topic=asked.topic,
            queue_id=asked.queue_id,
            body=asked.body,
            properties=properties,
            born_time_ms=self.held.clock(),
        )


def _table(asked: Sequence[Asked], **columns: int) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "topic": pa.array([one.topic for one in asked]),
            "queue_id": pa.array([one.queue_id for one in asked], pa.int32()),
            "body": pa.array([one.body for one in asked]),
            "keys": pa.array([list(one.keys) for one in asked]),
            "tags": pa.array([one.tags for one in asked], pa.string()),
            **{name: pa.array([value] * len(asked), pa.int32()) for name, value in columns.items()},
        }
    )


def _asked_rows(rows: BatchRows) -> list[Asked]:
    return [
        Asked(row.topic, None, row.body.encode(), (row.key,), "a" if number % 2 else "b", rows.batch.batch_id)
        for partition in range(len(rows.counts))
        for number, row in enumerate(rows.of_partition(partition))
    ]


def _message_at(store: MessageStore, commitlog_offset: int) -> Message | None:
    """None: its topic is torn."""
    with suppress(CorruptRecordError):
        return store.message_by_commitlog_offset(commitlog_offset)
    return None


def _asked(message: Message) -> Asked:
    return Asked(message.topic, message.queue_id, message.body, tuple(message.keys), message.tags)


def _stored(message: Message) -> Stored:
    return Stored(
        _asked(message), message.queue_id, message.queue_offset, message.commitlog_offset, message.store_time_ms
    )


def _first_difference(found: Sequence[Stored], expected: Sequence[Stored]) -> str:
    for one, other in zip(found, expected, strict=False):
        if one != other:
            return f"{one} is served in place of {other}"
    return f"{len(found)} messages are served, {len(expected)} should be: {[*found, *expected][min(len(found), len(expected)) :]}"
