"""END_TRANSACTION: a producer commits a transaction, rolls it back or reports it as unknown. Java: EndTransactionProcessor.

    request + half ─judge_request─▶ refuse | pass                                        (pure)
    what became of the transaction so far ─settle─▶ what is still to write, the answer   (pure)
    how the put of the commit record ended ─put_answer─▶ the answer                      (pure)

Order of writes: commit record · op message. The commit point of a commit is its record. After a crash between the two, the repeated
request or the next check finds the record and only writes the op message. The commit point of a rollback is its op message.

Departures from Java: a second END_TRANSACTION writes no second commit record (Java does, apache/rocketmq#5574), and one that
contradicts the first is refused; what it names must be a message of the half topic.
"""

from __future__ import annotations

import logging
import re
import threading
from collections import Counter
from collections.abc import Mapping
from contextlib import AbstractContextManager
from enum import Enum

import numpy as np

from spark_mq.broker.broker_metrics import BrokerMetrics
from spark_mq.broker.put_plan import PutRules, plan_inner, put_result, state_now
from spark_mq.broker.requests import UNSET, Turns, Verdict
from spark_mq.remoting.messages import EndTransactionRequest
from storage.errors import CorruptRecordError, OffsetOutOfRangeError, PutRefusedError, StoreNotWritableError
from storage.failpoints import reach
from storage.format.record import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK, Message
from storage.pending import PutStatus
from storage.rules.delays import REAL_TOPIC
from storage.rules.half_messages import (
    HALF_TOPIC,
    IMMUNITY,
    OP_TOPIC,
    PRODUCER_GROUP,
    QUEUE_ID,
    OpBatch,
    committed_messages,
    op_messages,
)
from storage.rules.inner_messages import InnerMessage, InnerMessages
from storage.rules.put_guards import BrokerState
from storage.rules.response_codes import ResponseCode
from storage.service.put_group import PutMessageResult
from storage.service.put_service import DirectService, PutService
from storage.settings.load import StoreConfig
from storage.store import MessageStore
from storage.tables.put_statistics import PutStatistics
from storage.transaction.half_queue import half_at
from storage.transaction.known_ends import KnownEnds
from storage.transaction.outcomes import find_transaction, outcomes_of
from storage.transaction.progress import save_counts

_LOG = logging.getLogger(__name__)


class Ending(Enum):
    """The records to write for a valid request."""

    COMMIT = "commit record, then op message"
    ROLLBACK = "op message"
    OP_MISSING = "op message of an ending that stands already"
    NOTHING = "nothing"


PASSED = Verdict(ResponseCode.SUCCESS, UNSET)
_COMMITTED = Verdict(ResponseCode.SUCCESS)
_NOT_FOUND = Verdict(ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed")
_ILLEGAL = (
    ResponseCode.MESSAGE_ILLEGAL,
    "The message is illegal, maybe msg body or properties length not matched. "
    "msg body length limit {max_message_size}B, msg properties length limit 32KB.",
)
_PUT_ANSWERS = {
    PutStatus.CREATE_MAPPED_FILE_FAILED: (ResponseCode.SYSTEM_ERROR, "Create mapped file failed."),
    PutStatus.MESSAGE_ILLEGAL: _ILLEGAL,
    PutStatus.PROPERTIES_SIZE_EXCEEDED: _ILLEGAL,
    PutStatus.SERVICE_NOT_AVAILABLE: (ResponseCode.SERVICE_NOT_AVAILABLE, "Service not available now."),
    PutStatus.OS_PAGE_CACHE_BUSY: (ResponseCode.SYSTEM_ERROR, "OS page cache busy, please try another machine"),
    PutStatus.WHEEL_TIMER_MSG_ILLEGAL: (
        ResponseCode.MESSAGE_ILLEGAL,
        "timer message illegal, the delay time should not be bigger than the max delay {max_delay_ms}ms; "
        "or if set del msg, the delay time should be bigger than the current time",
    ),
    PutStatus.WHEEL_TIMER_FLOW_CONTROL: (
        ResponseCode.SYSTEM_ERROR,
        "timer message is under flow control, max num limit is {twice} or the current value is greater than {congestion} "
        "and less than {twice}, trigger random flow control",
    ),
    PutStatus.WHEEL_TIMER_NOT_ENABLE: (
        ResponseCode.SYSTEM_ERROR,
        "accurate timer message is not enabled, timerWheelEnable is {enabled}",
    ),
    PutStatus.UNKNOWN_ERROR: (ResponseCode.SYSTEM_ERROR, "UNKNOWN_ERROR"),
    PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH: (ResponseCode.SYSTEM_ERROR, "in-sync replicas not enough"),
    PutStatus.PUT_TO_REMOTE_BROKER_FAIL: (ResponseCode.SYSTEM_ERROR, "put to remote broker fail"),
}


def judge_request(
    request: EndTransactionRequest,
    half: Message | None,
    *,
    transaction_timeout_ms: int,
    now_ms: int,
    is_slave: bool = False,
) -> Verdict | None:
    """The answer of the checks that come before anything is written: SUCCESS where all pass, None where there is no answer.

    Java: EndTransactionProcessor.processRequest, rejectCommitOrRollback, checkPrepareMessage. A half without a producer group, at which
    Java throws, has the wrong one.
    """
    if is_slave:
        return Verdict(ResponseCode.SLAVE_NOT_AVAILABLE, UNSET)
    if request.commit_or_rollback not in (TRANSACTION_COMMIT, TRANSACTION_ROLLBACK):
        return None
    if half is None or half.topic != HALF_TOPIC:
        return _NOT_FOUND
    if _is_too_late(request, half, transaction_timeout_ms, now_ms):
        return Verdict(ResponseCode.ILLEGAL_OPERATION, UNSET)
    if half.properties.get(PRODUCER_GROUP) != request.producer_group:
        return Verdict(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
    if half.queue_offset != request.half_queue_offset:
        return Verdict(ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong")
    if half.commitlog_offset != request.half_commitlog_offset:
        return Verdict(ResponseCode.SYSTEM_ERROR, "The commit log offset wrong")
    return PASSED


def settle(
    commit_or_rollback: int, *, is_committed: bool, is_rolled_back: bool, has_op: bool
) -> tuple[Ending, Verdict]:
    """The records to write and the answer, from the transaction's state in the store."""
    wants_commit = commit_or_rollback == TRANSACTION_COMMIT
    done = _COMMITTED if wants_commit else PASSED
    if not (is_committed or is_rolled_back):
        return (Ending.COMMIT if wants_commit else Ending.ROLLBACK), done
    ending = Ending.NOTHING if has_op else Ending.OP_MISSING
    if is_committed == wants_commit:
        return ending, done
    how = "committed" if is_committed else "rolled back"
    return ending, Verdict(ResponseCode.ILLEGAL_OPERATION, f"the transaction is {how} already")


def put_answer(status: PutStatus, config: StoreConfig, max_message_size: int) -> Verdict:
    """The answer for how the put of a commit record ended; time-outs of disk and slave come after it is stored.

    Java: EndTransactionProcessor.sendFinalMessage.
    """
    if status.is_stored:
        return _COMMITTED
    code, remark = _PUT_ANSWERS.get(status, (ResponseCode.SYSTEM_ERROR, "UNKNOWN_ERROR DEFAULT"))
    congestion, timer = config.timer.timer_congest_num_each_slot, config.timer
    return Verdict(
        code,
        remark.format(
            max_message_size=max_message_size,
            max_delay_ms=timer.timer_max_delay_sec * 1_000,
            congestion=congestion,
            twice=congestion * 2,
            enabled=str(timer.timer_wheel_enable).lower(),
        ),
    )


def immunity_ms(text: str, transaction_timeout_ms: int) -> int:
    """How long after its birth a half is not checked: the seconds in `text`, at least the broker's time-out.

    Java: TransactionalMessageUtil.getImmunityTime.
    """
    seconds = int(text) if re.fullmatch("[0-9]{1,15}", text) else 0
    return max(seconds * 1_000, transaction_timeout_ms)


def _is_too_late(request: EndTransactionRequest, half: Message, transaction_timeout_ms: int, now_ms: int) -> bool:
    """Whether the time that the half set for its first check is over, so that only the answer to a check counts."""
    text = half.properties.get(IMMUNITY, "")
    if request.from_transaction_check or not text:
        return False
    return now_ms - half.born_time_ms > immunity_ms(text, transaction_timeout_ms)


class TransactionEnder:
    """Ends transactions in the store of a service. Op messages of commits are written together, as Java writes them.

    Java: EndTransactionProcessor, TransactionalMessageServiceImpl.deletePrepareMessage and batchSendOpMessage.
    `write_due` is called by a clock; `close` writes what is left. Thread-safe: requests about one transaction wait for each other, all
    others do not. So the threads of a service share one ender: with two, a commit could be written twice.

    What a request reads does not grow with what lies behind its half: the half by its place, its transaction by its key in the index,
    and of op messages those that others have written since this ender last looked.
    """

    def __init__(
        self,
        service: PutService,
        now_ms: int,
        *,
        statistics: PutStatistics | None = None,
        metrics: BrokerMetrics | None = None,
    ) -> None:
        """`statistics` are those of the sends to the same store."""
        rules, settings = service.config.transaction, service.settings
        self.state = BrokerState()
        """Whether anything is ended; the broker sets it."""
        self.statistics = statistics or PutStatistics(settings.broker_name, settings.cluster)
        self._metrics = metrics
        self._service = service
        self._config = service.config
        self._writer = service.store.writer
        self._turns = Turns()
        self._writing = threading.Lock()
        """Held while op messages are written; before `_lock`."""
        self._lock = threading.Lock()
        """Held for what follows, and never while something is put."""
        self._ops = OpBatch(rules.transaction_op_msg_max_size, rules.transaction_op_batch_interval, now_ms)
        self._waiting: set[int] = set()
        self._known = KnownEnds()
        self._fresh: dict[int, int] = {}
        """Places of halves whose commits cannot be found by key yet, and up to where the log must be dispatched for that."""
        self._counts: Counter[str] = Counter()

    @classmethod
    def of(cls, store: MessageStore, now_ms: int) -> TransactionEnder:
        """For one thread, in a store that its caller has open for writing, and closes."""
        return cls(DirectService(store), now_ms)

    def end(self, request: EndTransactionRequest, now_ms: int, *, is_heard: bool = True) -> Verdict | None:
        """Do what a request says, and say what it is answered; None = no answer, the state is unknown.

        A rollback whose op message cannot be written is SERVICE_NOT_AVAILABLE. A commit is done without its op message, which waits.
        Without `is_heard` a commit is not refused because the store is busy: its put waits.
        """
        half = self._half(request.half_commitlog_offset)
        verdict = judge_request(
            request,
            half,
            transaction_timeout_ms=self._config.transaction.transaction_time_out,
            now_ms=now_ms,
            is_slave=self.state.is_slave,
        )
        if verdict != PASSED or half is None:
            return verdict
        with self._turns.of(_name_of(half)):
            ending, verdict, without_op = self._settle(request, half)
            if ending is Ending.COMMIT:
                status = self._commit(half, now_ms, is_heard=is_heard)
                if not status.is_stored:
                    return put_answer(status, self._config, self._service.settings.max_message_size)
                reach("half-committed")
            try:
                if ending is not Ending.NOTHING:
                    self._add_ops(half, without_op, ending, now_ms)
            except StoreNotWritableError:
                _LOG.exception("an op message was not written; transaction %s, %s", _name_of(half), ending.name)
                if ending is Ending.ROLLBACK:
                    unavailable = PutStatus.SERVICE_NOT_AVAILABLE
                    return put_answer(unavailable, self._config, self._service.settings.max_message_size)
            self._note_end(half, ending, now_ms)
        return verdict

    def _note_end(self, half: Message, ending: Ending, now_ms: int) -> None:
        if self._metrics is None:
            return
        topic = half.properties.get(REAL_TOPIC, "")
        if ending is Ending.COMMIT:
            self._metrics.committed(topic, max(0, now_ms - half.born_time_ms) // 1_000)
        elif ending is Ending.ROLLBACK:
            self._metrics.rolled_back(topic)

    @property
    def ended(self) -> Mapping[str, int]:
        """By real topic, a negative number: transactions that were ended since the start."""
        with self._lock:
            return dict(self._counts)

    def configure(self, config: StoreConfig) -> None:
        """An operator has changed settings: these hold from now on."""
        rules = config.transaction
        with self._lock:
            self._config = config
            self._ops.max_size_bytes = rules.transaction_op_msg_max_size
            self._ops.interval_ms = rules.transaction_op_batch_interval

    def write_due(self, now_ms: int) -> None:
        """Write the op message that is due, if one is."""
        with self._lock:
            is_due = self._ops.is_due(now_ms)
        if is_due:
            self._write_ops(now_ms)

    def write_all(self, now_ms: int) -> None:
        """Write what waits, due or not: a check of transactions must see what has ended."""
        self._write_ops(now_ms)

    def close(self, now_ms: int) -> None:
        """Write what waits, and the counts. The store stays open."""
        self.write_all(now_ms)
        with self._lock:
            counts, self._counts = self._counts, Counter()
        save_counts(self._service.store, counts, now_ms=now_ms)

    def _half(self, commitlog_offset: int) -> Message | None:
        try:
            return self._service.message_by_commitlog_offset(commitlog_offset)
        except (CorruptRecordError, OffsetOutOfRangeError):
            return None

    def _settle(self, request: EndTransactionRequest, half: Message) -> tuple[Ending, Verdict, list[int]]:
        """What to write, what to answer, and the queue offsets of the halves that no op message names.

        A broker that takes the store over would check a later copy without an op message as if it were another transaction's.
        """
        fresh = self._fresh_commits()  # before the index is read: a commit that is dispatched meanwhile is found below
        indexed_from = self._writer.ends.indexed_from
        found = None if indexed_from is None else find_transaction(self._service, half, indexed_from)
        if found is not None:
            self._learn_ops(found.started_at)
            with self._lock:
                is_ended = found.is_ended(self._is_op)
                without_op = found.without_op(half.queue_offset, self._is_op)
            is_committed = found.is_committed or not fresh.isdisjoint(found.half_places)
        else:
            with self._alone() as store:
                outcomes = outcomes_of(store, half_at(store, half))
            places = (half.commitlog_offset, *outcomes.copies.places[outcomes.copies.of(0)].tolist())
            with self._lock:
                is_ended = bool(outcomes.is_ended[0]) or self._is_op(half.queue_offset)
                without_op = [
                    offset for offset in outcomes.without_op(0, half.queue_offset).tolist() if not self._is_op(offset)
                ]
            is_committed = bool(outcomes.is_committed[0]) or not fresh.isdisjoint(places)
        ending, verdict = settle(
            request.commit_or_rollback,
            is_committed=is_committed,
            is_rolled_back=is_ended and not is_committed,
            has_op=not without_op,
        )
        return ending, verdict, without_op

    def _is_op(self, half_offset: int) -> bool:
        return half_offset in self._waiting or half_offset in self._known

    def _learn_ops(self, started_at: int) -> None:
        """Read the op messages that others have written since a place in the log, if they are not known yet."""
        appended_end = self._writer.ends.queue_ends.get((OP_TOPIC, QUEUE_ID), 0)
        with self._lock:
            lacks = self._known.lacks(appended_end, started_at)
        if lacks:
            with self._alone() as store, self._lock:
                self._known.learn(store, started_at)

    def _alone(self) -> AbstractContextManager[MessageStore]:
        """The store, for reading what its service's threads must not change meanwhile."""
        return self._service.exclusive()

    def _fresh_commits(self) -> frozenset[int]:
        with self._lock:
            for known in [known for known, end in self._fresh.items() if end <= self._writer.dispatched_end]:
                del self._fresh[known]
            return frozenset(self._fresh)

    def _add_ops(self, half: Message, without_op: list[int], ending: Ending, now_ms: int) -> None:
        with self._lock:
            for offset in without_op:
                self._ops.add(offset)
            self._waiting.update(without_op)
            if ending is not Ending.OP_MISSING:
                self._counts[half.properties.get(REAL_TOPIC, "")] -= 1
        if ending is Ending.ROLLBACK:  # known nowhere else
            self._write_ops(now_ms)
        else:
            self.write_due(now_ms)

    def _write_ops(self, now_ms: int) -> None:
        """Returns when all that waited at the call is written, by this thread or by the one before it."""
        with self._writing:
            with self._lock:
                offsets = self._ops.take(now_ms)
            try:
                places = [
                    self._put_op(op, now_ms)
                    for op in op_messages(np.array(offsets, np.int64), self._ops.max_size_bytes, now_ms)
                ]
            except BaseException:
                with self._lock:
                    for offset in offsets:
                        self._ops.add(offset)
                raise
            if not offsets:
                return
            reach("op-written")
            with self._lock:
                for place in places:
                    self._known.wrote(place, offsets)
                self._waiting.difference_update(offsets)

    def _put_op(self, op: InnerMessage, now_ms: int) -> int:
        """Its queue offset."""
        put = self._put(op, now_ms)
        if not put.status.is_stored:
            raise StoreNotWritableError(self._service.root, f"no op message: {put.reason or put.status.value}")
        return put.queue_offset

    def _commit(self, half: Message, now_ms: int, *, is_heard: bool) -> PutStatus:
        try:
            halves, places = InnerMessages.of([InnerMessage.of(half)]), np.array([half.commitlog_offset])
            names_real_queue = self._config.release.commit_names_real_queue
            committed = committed_messages(halves, places, names_real_queue=names_real_queue)
        except PutRefusedError as refused:
            return refused.status
        status = self._put(committed.message(0), now_ms, is_heard=is_heard).status
        if status.is_stored and (end := self._writer.log_end) > self._writer.dispatched_end:
            with self._lock:
                self._fresh[half.commitlog_offset] = end
        return status

    def _put(self, message: InnerMessage, now_ms: int, *, is_heard: bool = True) -> PutMessageResult:
        settings = self._service.settings
        rules = PutRules(
            config=self._config,
            host=settings.host,
            now_ms=now_ms,
            topics=settings.topics.topics,
            state=state_now(self._service, self.state, is_heard=is_heard),
            is_heard=is_heard,
        )
        try:
            plan = plan_inner(message, rules, may_wait=False)
        except PutRefusedError as refused:
            return PutMessageResult(refused.status, reason=refused.reason)
        # Without waiting for replicas, as in Java: if a fail-over takes the record back, the half is checked again.
        waiting = self._service.put_later(plan.messages, needs_copies=False, is_heard=is_heard)
        put = put_result(waiting, message.topic)
        if put.status is PutStatus.PUT_OK:
            self.statistics.put(message.topic, message.queue_id, 1, plan.size_bytes)
        return put


def _name_of(half: Message) -> str:
    """The identity of its transaction."""
    return half.unique_key or f"at {half.commitlog_offset}"


def request_for(
    half: Message, commit_or_rollback: int, *, from_transaction_check: bool = False
) -> EndTransactionRequest:
    """The request that a producer sends for a half that it knows. Java: DefaultMQProducerImpl.endTransaction."""
    return EndTransactionRequest(
        producer_group=half.properties.get(PRODUCER_GROUP, ""),
        half_queue_offset=half.queue_offset,
        half_commitlog_offset=half.commitlog_offset,
        commit_or_rollback=commit_or_rollback,
        from_transaction_check=from_transaction_check,
        message_id=half.unique_key or "",
        transaction_id=half.unique_key,
        topic=half.properties.get(REAL_TOPIC),
    )
