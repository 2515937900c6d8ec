"""END_TRANSACTION: a producer says that a transaction is committed, rolled back or still unknown. Java: EndTransactionProcessor.

    request + half ─judge─▶ refuse | commit | roll back          (pure)
    outcome so far ─settle─▶ what is still to write              (pure)

Order of writes: commit record · op message. Commit point of a commit: its record; behind a crash in between the same
request, or the next check, finds the record and only writes the op message. A rollback's is its op message.

Departures from Java: a second END_TRANSACTION writes no second commit record (Java does, apache/rocketmq#5574), and one that
contradicts the first is refused; what it names must be a message of the half topic.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np

from spark_mq.broker.end_transaction_rules import (
    PASSED,
    Ending,
    EndTransactionRequest,
    EndTransactionResponse,
    judge_request,
    put_answer,
    settle,
)
from spark_mq.broker.put_plan import PutRules, plan_inner
from spark_mq.broker.put_response import PutOutcome
from spark_mq.broker.send_hooks import RpcHook, answer_between
from spark_mq.broker.store_put import HandlerStore, Put, put_into, state_now, store_of
from spark_mq.broker.turns import Turns
from storage.errors import CorruptRecordError, OffsetOutOfRangeError, PutRefusedError, StoreNotWritableError
from storage.failpoints import reach
from storage.format.record import Message
from storage.put_status import PutStatus
from storage.rules.delays import REAL_TOPIC
from storage.rules.half_messages import OP_TOPIC, PRODUCER_GROUP, QUEUE_ID, OpBatch, committed_messages, op_messages
from storage.rules.inner_messages import InnerMessage, InnerMessages
from storage.rules.put_guards import BrokerState
from storage.service.put_service import PutService
from storage.settings.load import StoreConfig
from storage.store import MessageStore
from storage.tables.put_statistics import PutStatistics
from storage.transaction.half_queue import half_at
from storage.transaction.known_ends import KnownEnds
from storage.transaction.outcomes import find_transaction, outcomes_of
from storage.transaction.progress import save_counts

_LOG = logging.getLogger(__name__)


class TransactionEnder:
    """Ends transactions in a store that is open for writing. Op messages of commits are written together, as Java writes them.

    Java: EndTransactionProcessor, TransactionalMessageServiceImpl.deletePrepareMessage and batchSendOpMessage.
    `write_due` is for whoever has a clock; `close` writes what is left. Thread-safe in front of a `PutService`, as hooks must then be:
    requests about one transaction wait for each other, all others do not.

    What a request reads does not grow with what lies behind its half: the half by its place, its transaction by its key in the index,
    and of op messages those that others have written since this ender last looked.
    """

    def __init__(
        self,
        store: HandlerStore,
        now_ms: int,
        *,
        put: Put | None = None,
        statistics: PutStatistics | None = None,
        rpc_hooks: Sequence[RpcHook] = (),
    ) -> None:
        """`put` stores (the default: `put_into`, without waiting for replicas, as Java); `statistics` are those of the sends to the
        same store.
        """
        rules, settings = store.config.transaction, store.settings
        self.state = BrokerState()
        """Whether anything is ended; whoever runs the broker sets it."""
        self.statistics = statistics or PutStatistics(settings.broker_name, settings.cluster)
        self._store = store
        self._config = store.config
        self._writer = store_of(store).writer
        self._put = put or put_into(store, needs_copies=False)  # what a fail-over takes back is asked about again
        self._rpc_hooks = tuple(rpc_hooks)
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

    def end(self, request: EndTransactionRequest, now_ms: int) -> EndTransactionResponse | None:
        """Answer a request and do what it says; None = no answer, the state is unknown.

        A rollback whose op message cannot be written is SERVICE_NOT_AVAILABLE. A commit is done without its op message, which waits.
        """
        return answer_between(
            self._rpc_hooks,
            request.client_address,
            request,
            lambda asked: self._end(asked, now_ms),
            EndTransactionResponse,
        )

    def _end(self, request: EndTransactionRequest, now_ms: int) -> EndTransactionResponse | None:
        half = self._half(request.commit_log_offset)
        response = judge_request(
            request,
            half,
            transaction_timeout_ms=self._config.transaction.transaction_time_out,
            now_ms=now_ms,
            is_slave=self.state.is_slave,
        )
        if response != PASSED or half is None:
            return response
        with self._turns.of(_name_of(half)):
            ending, response, without_op = self._settle(request, half)
            if ending is Ending.COMMIT:
                status = self._commit(half, now_ms, is_heard=request.is_heard)
                if not status.is_stored:
                    return put_answer(status, self._config, self._store.settings.max_message_size)
                reach("half-committed")
            try:
                if ending is not Ending.NOTHING:
                    self._add_ops(half, without_op, ending, now_ms)
            except StoreNotWritableError:
                _LOG.exception("an op message was not written; transaction %s, %s", _name_of(half), ending.name)
                if ending is Ending.ROLLBACK:
                    unavailable = PutStatus.SERVICE_NOT_AVAILABLE
                    return put_answer(unavailable, self._config, self._store.settings.max_message_size)
        return response

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
        """Write what waits, due or not: whoever checks transactions must see what has ended."""
        self._write_ops(now_ms)

    def close(self, now_ms: int) -> None:
        """Write what waits, and the counts. The store stays open."""
        self.write_all(now_ms)
        with self._lock:
            counts, self._counts = self._counts, Counter()
        save_counts(store_of(self._store), counts, now_ms=now_ms)

    def _half(self, commitlog_offset: int) -> Message | None:
        try:
            return self._store.message_by_commitlog_offset(commitlog_offset)
        except (CorruptRecordError, OffsetOutOfRangeError):
            return None

    def _settle(
        self, request: EndTransactionRequest, half: Message
    ) -> tuple[Ending, EndTransactionResponse, list[int]]:
        """What to write and to answer, and the queue offsets of the halves that no op message names: a later copy would be asked
        about, by a broker that takes the store over, as if it were another transaction's.
        """
        fresh = self._fresh_commits()  # asked first: what is dispatched meanwhile is found below
        indexed_from = self._writer.ends.indexed_from
        found = None if indexed_from is None else find_transaction(self._store, half, indexed_from)
        if found is not None:
            self._learn_ops(found.began_at)
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
        ending, response = settle(
            request.commit_or_rollback,
            is_committed=is_committed,
            is_rolled_back=is_ended and not is_committed,
            has_op=not without_op,
        )
        return ending, response, without_op

    def _is_op(self, half_offset: int) -> bool:
        return half_offset in self._waiting or half_offset in self._known

    def _learn_ops(self, began_at: int) -> None:
        """What others have written of op messages since a place in the log, where it is not known yet."""
        appended_end = self._writer.ends.queue_ends.get((OP_TOPIC, QUEUE_ID), 0)
        with self._lock:
            lacks = self._known.lacks(appended_end, began_at)
        if lacks:
            with self._alone() as store, self._lock:
                self._known.learn(store, began_at)

    def _alone(self) -> AbstractContextManager[MessageStore]:
        """The store, for reading what its service's threads must not change meanwhile."""
        return self._store.exclusive() if isinstance(self._store, PutService) else nullcontext(self._store)

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
        outcome = self._append(op, now_ms)
        if not outcome.status.is_stored or outcome.appended is None:
            reason = f"no op message: {outcome.reason or outcome.status.value}"
            raise StoreNotWritableError(str(self._store.root), reason)
        return outcome.appended.queue_offset

    def _commit(self, half: Message, now_ms: int, *, is_heard: bool) -> PutStatus:
        try:
            committed = committed_messages(InnerMessages.of([InnerMessage.of(half)]), np.array([half.commitlog_offset]))
        except PutRefusedError as refused:
            return refused.status
        status = self._append(committed.message(0), now_ms, is_heard=is_heard).status
        if status.is_stored and (end := self._writer.log_end) > self._writer.dispatched_end:
            with self._lock:
                self._fresh[half.commitlog_offset] = end
        return status

    def _append(self, message: InnerMessage, now_ms: int, *, is_heard: bool = True) -> PutOutcome:
        settings = self._store.settings
        rules = PutRules(
            config=self._config,
            host=settings.host,
            now_ms=now_ms,
            topics=settings.topics.topics,
            state=state_now(self._store, self.state, is_heard=is_heard),
            is_heard=is_heard,
        )
        try:
            plan = plan_inner(message, message.body, rules, may_wait=False)
        except PutRefusedError as refused:
            return PutOutcome(refused.status, reason=refused.reason)
        outcome = self._put(plan)
        if outcome.status is PutStatus.PUT_OK:
            self.statistics.put(message.topic, message.queue_id, 1, plan.size_bytes)
        return outcome


def _name_of(half: Message) -> str:
    """What tells its transaction from others."""
    return half.unique_key or f"at {half.commitlog_offset}"


def end_transaction(store: MessageStore, request: EndTransactionRequest, now_ms: int) -> EndTransactionResponse | None:
    """Answer one request; its op message is written before this returns. For many, a `TransactionEnder` writes fewer.

    Raises TypeError for a `PutService`: its threads must share one `TransactionEnder`, in which requests about one transaction wait
    for each other. With an ender a call two threads could write its commit twice.
    """
    if store_of(store) is not store:
        raise TypeError("end_transaction takes an open store; the threads of a PutService share one TransactionEnder")
    ender = TransactionEnder(store, now_ms)
    response = ender.end(request, now_ms)
    ender.close(now_ms)
    return response


def request_for(
    half: Message, commit_or_rollback: int, *, from_transaction_check: bool = False
) -> EndTransactionRequest:
    """The request that a producer sends for a half that it knows. Java: DefaultMQProducerImpl.endTransaction."""
    return EndTransactionRequest(
        producer_group=half.properties.get(PRODUCER_GROUP, ""),
        tran_state_table_offset=half.queue_offset,
        commit_log_offset=half.commitlog_offset,
        commit_or_rollback=commit_or_rollback,
        from_transaction_check=from_transaction_check,
        msg_id=half.unique_key or "",
        transaction_id=half.unique_key,
        topic=half.properties.get(REAL_TOPIC),
    )
