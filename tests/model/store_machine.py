"""The whole store against a model: rules put, commit, deliver, expire, read, let go and crash; then the model says what is served.

A crash comes behind a step or amid one, and is a killed process (what was written is there) or a power loss (what was not synced is
there by chance). Then the log must begin where it began, end at or behind all that is certain, and hold everything up to there: what is
lost is its end, and what is left is each message once, in its place. Rows of a decided batch come back whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from random import Random

import pyarrow as pa
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from jobs.rebuild_queues import rebuild_queues
from spark_mq.broker.end_transaction import request_for
from storage import GetStatus, Message, MessageStore, retention
from storage.batch import commit as batch_commit
from storage.batch.ledger import Batch
from storage.batch.staged_segment import StagedBatch
from storage.delay import schedule
from storage.errors import SinkAheadError
from storage.format.delay import SCHEDULE_TOPIC
from storage.format.record import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from storage.rules.half_messages import TransactionState
from storage.rules.response_codes import ResponseCode
from storage.tables.offline_changes import write_group_offsets
from storage.transaction.check_plan import CheckRules
from tests.model.checked_store import (
    GROUP,
    QUEUE_COUNT,
    TOPICS,
    CheckedStore,
    as_asked,
)
from tests.model.store_model import Asked, Half, Parked, Stored
from tests.support.broker_handlers import end_transaction
from tests.support.crash_disk import EXTREMES
from tests.support.held_check import check_half_messages
from tests.support.stage_rows import BatchRows, stage

topics = st.sampled_from(TOPICS)
queue_ids = st.integers(0, QUEUE_COUNT - 1)
sizes = st.sampled_from((5, 80, 700, 2_800))
"""Of bodies; of the last no two fit into a file of the log."""
tags = st.sampled_from((None, "red", "blue"))
messages = st.tuples(topics, queue_ids, sizes, tags, st.booleans())
some_messages = st.lists(messages, min_size=1, max_size=6)
flushes = st.sampled_from((False, False, False, True))
"""Whether the store is opened under SYNC_FLUSH; there is more to lose under ASYNC_FLUSH."""
PATIENT = 10_000
"""Checks after which a half is given up: more than a script has."""
steps_back = st.one_of(st.just(0), st.integers(1, 60))


class StoreMachine(CheckedStore):
    """Each rule is a step: what it does to the store, and what that must have come to."""

    # Putting

    @rule(message=messages)
    def put(self, message: tuple[str, int, int, str | None, bool]) -> None:
        store = self.begin()
        asked = self.ask(*message)
        result = store.put(
            asked.topic,
            asked.body,
            tags=asked.tags,
            keys=asked.keys,
            queue_id=asked.queue_id,
            queue_count=QUEUE_COUNT,
        )
        (stored,) = self.expect([asked])
        assert (result.queue_id, result.queue_offset, result.commitlog_offset, result.store_time_ms) == stored[1:]

    @rule(rows=some_messages)
    def put_batch(self, rows: list[tuple[str, int, int, str | None, bool]]) -> None:
        store = self.begin()
        asked = [self.ask(*row) for row in rows]
        results = store.put_batch(_table(asked), queue_count=QUEUE_COUNT)
        stored = self.expect(asked)
        assert results["commitlog_offset"].to_pylist() == [message.commitlog_offset for message in stored]
        assert results["queue_offset"].to_pylist() == [message.queue_offset for message in stored]

    @rule(rows=some_messages)
    def put_inner(self, rows: list[tuple[str, int, int, str | None, bool]]) -> None:
        store = self.begin()
        asked = [self.ask(*row) for row in rows]
        store.put_inner([self.inner_of(one) for one in asked])
        self.expect(asked)

    @rule(rows=some_messages, level=st.integers(1, 3))
    def put_delayed(self, rows: list[tuple[str, int, int, str | None, bool]], level: int) -> None:
        store = self.begin()
        asked = [self.ask(*row) for row in rows]
        store.put_batch(_table(asked, delay_level=level), queue_count=QUEUE_COUNT)
        delay_ms = store.config.delay.delays_ms[level - 1]
        for one in asked:
            assert one.queue_id is not None
            self.model.parked[one.keys[0]] = Parked(level, delay_ms, one.topic, one.queue_id)
        self.expect([one._replace(topic=SCHEDULE_TOPIC, queue_id=level - 1) for one in asked])

    @precondition(lambda self: self.model.parked)
    @rule(leap_ms=st.sampled_from((0, 1_000, 5_000, 20_000)))
    def deliver(self, leap_ms: int) -> None:
        store = self.begin()
        self.held.now_ms += leap_ms
        now_ms = self.held.clock()
        expected = self.model.due(now_ms)
        schedule.deliver_due(store, now_ms)
        delivered = self.expect(expected, is_durable=bool(expected))
        self.model.delivered |= {message.name: message.commitlog_offset for message in delivered}

    # Batches

    @rule(counts=st.lists(st.integers(1, 8), min_size=1, max_size=2))
    def commit(self, counts: list[int]) -> None:
        store = self.begin()
        rows = self._batch(self.model.batch_count, tuple(counts))
        self.counts[self.model.batch_count] = tuple(counts)
        self.rows_in_doubt = self.model.batch_count
        if self.model.has_open_intent:
            self.model.durable_end = self.model.log_end
        outcome = self._commit(store, rows)
        assert not outcome.already_done, f"{rows.batch} is taken for done"
        self.expect(_asked_rows(rows))
        self.model.batch_count += 1
        self.model.has_open_intent = not self.held.sync_flush

    @precondition(lambda self: self.model.batch_count)
    @rule(ago=st.integers(1, 2))
    def commit_again(self, ago: int) -> None:
        """A batch that is there: the last one as Spark brings it after a restart, an earlier one as another run does."""
        store = self.begin()
        number = max(0, self.model.batch_count - ago)
        rows = self._batch(number, self.counts[number])
        if number == self.model.batch_count - 1:
            assert self._commit(store, rows).already_done, f"{rows.batch} is taken for new"
        else:
            with pytest.raises(SinkAheadError):
                self._commit(store, rows)
        self.expect([])

    def _batch(self, number: int, counts: tuple[int, ...]) -> BatchRows:
        return BatchRows(Batch("sink", "query", number), counts, TOPICS)

    def _commit(self, store: MessageStore, rows: BatchRows) -> batch_commit.CommitOutcome:
        staged = stage(self.held.files, self.held.root, store.config, rows, queue_count=QUEUE_COUNT)
        return batch_commit.commit_batch(
            store.writer, StagedBatch(rows.batch, staged, dict.fromkeys(TOPICS, QUEUE_COUNT))
        )

    # Transactions

    @rule(message=messages, commits=st.booleans())
    def prepare(self, message: tuple[str, int, int, str | None, bool], commits: bool) -> None:
        store = self.begin()
        asked = self.ask(*message)
        place = store.put_inner([self.half_of(asked)])["commitlog_offset"][0].as_py()
        assert place >= self.model.log_end
        self.model.halves[asked.keys[0]] = Half(asked, commits, place)
        self.expect([])

    @precondition(lambda self: self._open_halves())
    @rule(choice=st.integers(0, 7))
    def end(self, choice: int) -> None:
        """A producer says what became of one of its open transactions."""
        store, open_halves = self.begin(), self._open_halves()
        half = open_halves[choice % len(open_halves)]
        flag = TRANSACTION_COMMIT if half.commits else TRANSACTION_ROLLBACK
        request = request_for(store.message_by_commitlog_offset(half.commitlog_offset), flag)
        response = end_transaction(store, request, self.held.clock())
        assert response is not None
        assert response.code is ResponseCode.SUCCESS, response
        self._ended([half], self.expect([half.asked] if half.commits else []))

    @precondition(lambda self: self.model.halves)
    @rule(is_known=st.booleans())
    def check_halves(self, is_known: bool) -> None:
        """The producers are asked; they know the answers or not."""
        store = self.begin()
        self.held.now_ms += 10_000
        rules = replace(CheckRules.of(store.config), max_checks=PATIENT)

        def answer(half: Message) -> TransactionState:
            if not is_known:
                return TransactionState.UNKNOWN
            commits = self.model.halves[half.keys[0]].commits
            return TransactionState.COMMIT if commits else TransactionState.ROLLBACK

        check_half_messages(store, answer, self.held.clock(), rules=rules)
        sure = self._open_halves() if is_known else []
        copies = [half for half in self.model.halves.values() if half.ended_at is None and half not in sure]
        expected = [half.asked for half in sure if half.commits]
        stored = self.expect(expected, [half.asked for half in copies if half.commits and is_known], in_order=False)
        self._ended([*sure, *copies] if is_known else [], stored)

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
        store = self.begin()
        config = replace(store.config.retention, delete_file_batch_max=count)
        occasion = retention.Occasion(("it was requested",), whatever_age=True)
        plan = retention.plan_expiry(store, self.held.files, config, occasion, now_ms=self.held.clock())
        size = store.config.commit_log.mapped_file_size_commit_log
        assert size is not None
        whole = max(0, (self.model.log_end - 1) // size * size - self.model.log_minimum) // size
        assert plan.minimum == self.model.log_minimum + min(count, whole) * size
        retention.apply_expiry(store.writer, plan, config, sleep=lambda seconds: None)
        self.model.expire(plan.minimum)
        self.is_index_new = True
        self.expect([])
        if not plan.is_empty:
            self.model.settle()

    @rule(how=st.sampled_from(("flush", "release", "close")), sync_flush=flushes)
    def pause(self, how: str, sync_flush: bool) -> None:
        """The store is flushed, or let go of and opened by the next step, as it says."""
        store = self.begin()
        if how == "flush":
            store.flush()
            self.expect([], is_durable=True)
            return
        self.let_go(close=how == "close")
        self.held.sync_flush = sync_flush

    @rule(topic=topics, queue_id=queue_ids, offset=st.integers(0, 30))
    def commit_group_offset(self, topic: str, queue_id: int, offset: int) -> None:
        self.begin()
        self.let_go(close=False)
        offsets = {(f"%LMQ%{topic}", queue_id): offset}  # an opening does not lower the offsets of such a queue
        write_group_offsets(self.held.root, GROUP, offsets, now_ms=self.held.clock(), file_system=self.held.files)
        self.model.group_offsets |= offsets

    @rule(
        names=st.sets(st.sampled_from(("consumequeue", "index", "checkpoint", "spark_mq/hint.json"))),
        close=st.booleans(),
    )
    def lose_derived_files(self, names: set[str], close: bool) -> None:
        """What is made of the log is made again: where it is missing, or because the job is told to."""
        store = self.begin()
        if self._has_expired_queue(store):
            return
        self.let_go(close=close)
        for name in sorted(names):
            self.held.forget(name)
        if not names:
            rebuild_queues(self.held.root)
            self.held.found_changed()
        self.begin()
        self.expect([])
        self.is_index_new = True

    def _has_expired_queue(self, store: MessageStore) -> bool:
        """Whether the log says nothing any more of where some queue ended."""
        names = [(topic, queue_id) for topic in store.topics() for queue_id in store.queue_ids(topic)]
        return any(store.min_offset(*name) == store.max_offset(*name) > 0 for name in names)

    # Crashes

    @rule(steps_back=steps_back, sync_flush=flushes)
    def kill(self, steps_back: int, sync_flush: bool) -> None:
        """The process is killed, so many operations before the end of the last step, and the store opened again."""
        self.crash(steps_back, sync_flush, None)

    @rule(
        steps_back=steps_back,
        sync_flush=flushes,
        what_is_left=st.sampled_from((*EXTREMES, "torn")),
        seed=st.integers(0, 2**16),
    )
    def lose_power(self, steps_back: int, sync_flush: bool, what_is_left: str, seed: int) -> None:
        """By chance, or one of the extremes."""
        self.crash(steps_back, sync_flush, (Random(seed), what_is_left if what_is_left in EXTREMES else ""))

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
            assert [as_asked(message) for message in result.messages] == [message.as_served.asked for message in wanted]
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
            found = store.offset_in_queue_by_time(topic, queue_id, time_ms, upper=upper)
        assert found == self.model.offset_at((topic, queue_id), time_ms, upper=upper)

    # What always holds

    @invariant()
    def serves_what_the_model_says(self) -> None:
        self.compare_everything()


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
