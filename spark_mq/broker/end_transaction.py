"""END_TRANSACTION: a producer says that a transaction is committed, rolled back or still unknown. Java: EndTransactionProcessor.

    request + half ─judge─▶ refuse | commit | roll back          (pure)
    outcome so far ─settle─▶ what is still to write              (pure)

Order of writes: commit record · op message. Commit point of a commit: its record; behind a crash in between the same
request, or the next check, finds the record and only writes the op message. A rollback's is its op message.

Departures from Java: a second END_TRANSACTION writes no second commit record (Java does, apache/rocketmq#5574), and one that
contradicts the first is refused; what it names must be a message of the half topic.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from enum import Enum

import numpy as np

from spark_mq.broker.put_plan import PutRules, plan_inner
from spark_mq.broker.put_response import PutOutcome
from spark_mq.broker.put_statistics import PutStatistics
from spark_mq.broker.store_put import Put, put_into
from storage.errors import CorruptRecordError, OffsetOutOfRangeError, PutRefusedError, StoreNotWritableError
from storage.failpoints import reach
from storage.format.record import Message
from storage.format.sys_flag import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from storage.message_store import MessageStore
from storage.messages.delays import REAL_TOPIC
from storage.messages.half_messages import HALF_TOPIC, IMMUNITY, PRODUCER_GROUP, committed_messages
from storage.messages.inner_messages import InnerMessage, InnerMessages
from storage.messages.op_messages import OpBatch
from storage.put_status import PutStatus
from storage.rules.put_guards import BrokerState
from storage.rules.response_codes import ResponseCode
from storage.settings.load import StoreConfig
from storage.transaction.half_queue import half_at
from storage.transaction.outcomes import outcomes_of
from storage.transaction.progress import save_counts


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransactionRequest:
    """What a producer sends. Java: EndTransactionRequestHeader."""

    producer_group: str
    tran_state_table_offset: int
    """The half's queue offset."""
    commit_log_offset: int
    commit_or_rollback: int
    """TRANSACTION_COMMIT, TRANSACTION_ROLLBACK, or 0: unknown."""
    from_transaction_check: bool = False
    msg_id: str = ""
    transaction_id: str | None = None
    topic: str | None = None


@dataclass(frozen=True, slots=True)
class EndTransactionResponse:
    """The answer; the client of 5.3 does not wait for it."""

    code: ResponseCode
    remark: str | None = None


class Ending(Enum):
    """What is to be written for a request that is right."""

    COMMIT = "commit record, then op message"
    ROLLBACK = "op message"
    OP_MISSING = "op message of an ending that stands already"
    NOTHING = "nothing"


_UNSET = "not set any response code"
"""The remark of a response that Java makes and does not touch. Java: RemotingCommand.createResponseCommand."""
_PASSED = EndTransactionResponse(ResponseCode.SUCCESS, _UNSET)
_COMMITTED = EndTransactionResponse(ResponseCode.SUCCESS)
_NOT_FOUND = EndTransactionResponse(ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed")
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
) -> EndTransactionResponse | None:
    """The answer of the checks that come before anything is written: SUCCESS where all pass, None where there is no answer.

    Java: EndTransactionProcessor.processRequest, rejectCommitOrRollback, checkPrepareMessage. A half without a producer group, at which
    Java throws, has the wrong one.
    """
    if is_slave:
        return EndTransactionResponse(ResponseCode.SLAVE_NOT_AVAILABLE, _UNSET)
    if request.commit_or_rollback not in (TRANSACTION_COMMIT, TRANSACTION_ROLLBACK):
        return None
    if half is None or half.topic != HALF_TOPIC:
        return _NOT_FOUND
    if _is_too_late(request, half, transaction_timeout_ms, now_ms):
        return EndTransactionResponse(ResponseCode.ILLEGAL_OPERATION, _UNSET)
    if half.properties.get(PRODUCER_GROUP) != request.producer_group:
        return EndTransactionResponse(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
    if half.queue_offset != request.tran_state_table_offset:
        return EndTransactionResponse(ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong")
    if half.commitlog_offset != request.commit_log_offset:
        return EndTransactionResponse(ResponseCode.SYSTEM_ERROR, "The commit log offset wrong")
    return _PASSED


def settle(
    commit_or_rollback: int, *, is_committed: bool, is_rolled_back: bool, has_op: bool
) -> tuple[Ending, EndTransactionResponse]:
    """What to write and to answer, by what the store says of the transaction."""
    wants_commit = commit_or_rollback == TRANSACTION_COMMIT
    done = _COMMITTED if wants_commit else _PASSED
    if not (is_committed or is_rolled_back):
        return (Ending.COMMIT if wants_commit else Ending.ROLLBACK), done
    ending = Ending.NOTHING if has_op else Ending.OP_MISSING
    if is_committed == wants_commit:
        return ending, done
    how = "committed" if is_committed else "rolled back"
    return ending, EndTransactionResponse(ResponseCode.ILLEGAL_OPERATION, f"the transaction is {how} already")


def put_answer(status: PutStatus, config: StoreConfig, max_message_size: int) -> EndTransactionResponse:
    """The answer for how the put of a commit record ended; time-outs of disk and slave come after it is stored.

    Java: EndTransactionProcessor.sendFinalMessage.
    """
    if status.is_stored:
        return _COMMITTED
    code, remark = _PUT_ANSWERS.get(status, (ResponseCode.SYSTEM_ERROR, "UNKNOWN_ERROR DEFAULT"))
    congestion, timer = config.timer.timer_congest_num_each_slot, config.timer
    return EndTransactionResponse(
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
    """How long after its birth a half is not asked back: what it says in seconds, at least the broker's time-out.

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
    """Ends transactions in a store that is open for writing. Op messages of commits are written together, as Java writes them.

    Java: EndTransactionProcessor, TransactionalMessageServiceImpl.deletePrepareMessage and batchSendOpMessage.
    `write_due` is for whoever has a clock; `close` writes what is left.
    """

    def __init__(
        self,
        store: MessageStore,
        now_ms: int,
        *,
        put: Put | None = None,
        statistics: PutStatistics | None = None,
    ) -> None:
        """`put` stores (the default: `put_into`); `statistics` are those of the sends to the same store."""
        rules, settings = store.config.transaction, store.writer.settings
        self.state = BrokerState()
        """Whether anything is ended; whoever runs the broker sets it."""
        self.statistics = statistics or PutStatistics(settings.broker_name, settings.cluster)
        self._store = store
        self._put = put or put_into(store)
        self._timeout_ms = rules.transaction_time_out
        self._ops = OpBatch(rules.transaction_op_msg_max_size, rules.transaction_op_batch_interval, now_ms)
        self._waiting: set[int] = set()
        self._counts: Counter[str] = Counter()

    def end(self, request: EndTransactionRequest, now_ms: int) -> EndTransactionResponse | None:
        """Answer a request and do what it says; None = no answer, the state is unknown.

        Raises StoreNotWritableError where an op message cannot be written.
        """
        half = self._half(request.commit_log_offset)
        response = judge_request(
            request, half, transaction_timeout_ms=self._timeout_ms, now_ms=now_ms, is_slave=self.state.is_slave
        )
        if response != _PASSED or half is None:
            return response
        ending, response, without_op = self._settle(request, half)
        if ending is Ending.COMMIT:
            status = self._commit(half, now_ms)
            if not status.is_stored:
                return put_answer(status, self._store.config, self._store.writer.settings.max_message_size)
            reach("half-committed")
        if ending is not Ending.NOTHING:
            self._add_ops(half, without_op, ending, now_ms)
        return response

    def write_due(self, now_ms: int) -> None:
        """Write the op message that is due, if one is."""
        if self._ops.is_due(now_ms):
            self._write_ops(now_ms)

    def close(self, now_ms: int) -> None:
        """Write what waits, and the counts. The store stays open."""
        if len(self._ops):
            self._write_ops(now_ms)
        save_counts(self._store, self._counts, now_ms=now_ms)
        self._counts.clear()

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
        outcomes = outcomes_of(self._store, half_at(self._store, half))
        without_op = sorted(set(outcomes.without_op(0, half.queue_offset).tolist()) - self._waiting)
        ending, response = settle(
            request.commit_or_rollback,
            is_committed=bool(outcomes.is_committed[0]),
            is_rolled_back=bool(outcomes.is_rolled_back[0]),
            has_op=not without_op,
        )
        return ending, response, without_op

    def _add_ops(self, half: Message, without_op: list[int], ending: Ending, now_ms: int) -> None:
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
        for op in self._ops.messages(now_ms):
            outcome = self._append(op, now_ms)
            if not outcome.status.is_stored:
                raise StoreNotWritableError(
                    str(self._store.root), f"no op message: {outcome.reason or outcome.status.value}"
                )
        reach("op-written")
        self._ops.written(now_ms)
        self._waiting.clear()

    def _commit(self, half: Message, now_ms: int) -> PutStatus:
        try:
            committed = committed_messages(InnerMessages.of([InnerMessage.of(half)]), np.array([half.commitlog_offset]))
        except PutRefusedError as refused:
            return refused.status
        return self._append(committed.message(0), now_ms).status

    def _append(self, message: InnerMessage, now_ms: int) -> PutOutcome:
        settings = self._store.writer.settings
        rules = PutRules(
            config=self._store.config,
            host=settings.host,
            now_ms=now_ms,
            topics=settings.topics.topics,
            state=self.state,
        )
        try:
            plan = plan_inner(message, message.body, rules, may_wait=False)
        except PutRefusedError as refused:
            return PutOutcome(refused.status, reason=refused.reason)
        outcome = self._put(plan)
        if outcome.status is PutStatus.PUT_OK:
            self.statistics.put(message.topic, message.queue_id, 1, plan.size_bytes)
        return outcome


def end_transaction(store: MessageStore, request: EndTransactionRequest, now_ms: int) -> EndTransactionResponse | None:
    """Answer one request; its op message is written before this returns. For many, a `TransactionEnder` writes fewer."""
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
