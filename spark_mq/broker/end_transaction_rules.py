"""What END_TRANSACTION is answered, and what it makes a broker write. Pure. Java: EndTransactionProcessor.

request + half ─judge_request─▶ refuse | pass
what became of the transaction so far ─settle─▶ what is still to write, and the answer
how the put of the commit record ended ─put_answer─▶ the answer
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from storage.format.record import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK, Message
from storage.put_status import PutStatus
from storage.rules.half_messages import HALF_TOPIC, IMMUNITY, PRODUCER_GROUP
from storage.rules.response_codes import ResponseCode
from storage.settings.load import StoreConfig


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
    client_address: str = ""
    """address:port of the producer, for hooks."""
    is_heard: bool = True
    """False: one-way, or of a client that has gone. It is not refused because the store is busy: the put of its commit waits."""


@dataclass(frozen=True, slots=True)
class EndTransactionResponse:
    """The answer; the client of 5.3 does not wait for it."""

    code: int
    """A ResponseCode, or what a hook has said."""
    remark: str | None = None


class Ending(Enum):
    """What is to be written for a request that is right."""

    COMMIT = "commit record, then op message"
    ROLLBACK = "op message"
    OP_MISSING = "op message of an ending that stands already"
    NOTHING = "nothing"


_UNSET = "not set any response code"
"""The remark of a response that Java makes and does not touch. Java: RemotingCommand.createResponseCommand."""
PASSED = EndTransactionResponse(ResponseCode.SUCCESS, _UNSET)
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
    return PASSED


def settle(
    commit_or_rollback: int, *, is_committed: bool, is_rolled_back: bool, has_op: bool
) -> tuple[Ending, EndTransactionResponse]:
    """What to write and to answer, by what the store says of the transaction."""
    wants_commit = commit_or_rollback == TRANSACTION_COMMIT
    done = _COMMITTED if wants_commit else PASSED
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
