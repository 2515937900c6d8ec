"""Brokers ask what became of half messages (39): threads that ask the listener, and the answers (37).

Everything but the listener runs on the event loop's thread. Java: DefaultMQProducerImpl.checkTransactionState.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from spark_mq.client.errors import ClientError
from spark_mq.client.instance import ClientInstance
from spark_mq.client.listener_pool import ListenerPool
from spark_mq.client.message import MessageExt
from spark_mq.client.namespaces import without_namespace
from spark_mq.client.producer_settings import ProducerSettings
from spark_mq.client.transaction_ends import end_after_check
from spark_mq.remoting.message_headers import CheckTransactionStateRequest
from storage.errors import CorruptRecordError
from storage.format.record import Message as Record
from storage.format.record import decode_record
from storage.messages.half_messages import TransactionState

END_TIMEOUT_MS = 3_000
Check = Callable[[MessageExt], TransactionState | None]
_LOG = logging.getLogger(__name__)


class _Question(NamedTuple):
    address: str
    asked: CheckTransactionStateRequest
    message: MessageExt


class _Verdict(NamedTuple):
    state: TransactionState
    error: Exception | None


class TransactionChecks:
    """The questions of one group."""

    def __init__(self, instance: ClientInstance, settings: ProducerSettings, group: str, check: Check) -> None:
        """`group` as brokers know it. `check` is called in threads; what it raises, and None, counts as UNKNOWN."""
        self._instance = instance
        self._settings = settings
        self._group = group
        self._check = check
        self._pool: ListenerPool | None = None
        self._waiting = 0
        self._answers: set[asyncio.Task[None]] = set()

    def ask(self, address: str, asked: CheckTransactionStateRequest, record: bytes) -> None:
        """Have the question answered. One too many is dropped: the broker asks again."""
        try:
            found = decode_record(record, check_crc=False)  # it came over a connection, not from a disk
        except CorruptRecordError as error:
            _LOG.warning("%s asks about a half message that cannot be read: %s", address, error.describe())
            return
        if not isinstance(found, Record):
            _LOG.warning("%s asks about a half message of which it sends only a part", address)
            return
        if self._waiting >= self._settings.check_limit:
            _LOG.warning("%d questions about transactions of group %s wait: one is dropped", self._waiting, self._group)
            return
        if self._pool is None:
            self._pool = ListenerPool(f"spark-mq-checks-{self._group}", self._settings.check_threads)
        message = MessageExt.of(found, asked.broker_name or "")
        topic = without_namespace(self._instance.settings.namespace, message.topic)
        question = _Question(address, asked, replace(message, topic=topic))
        self._waiting += 1
        self._pool.submit(partial(self._judged, question.message), partial(self._answer, question))

    async def close(self, timeout_ms: int) -> None:
        """Ask the listener nothing more; what it is being asked is answered if it ends within the time."""
        if self._pool is not None:
            await self._pool.close(timeout_ms)
            if self._answers:
                await asyncio.wait(self._answers, timeout=timeout_ms / 1000)

    def _judged(self, message: MessageExt) -> _Verdict:
        """What the listener says; in one of the threads."""
        return judged(partial(self._checked, message), f"the check of transaction {message.message_id}", self._group)

    def _checked(self, message: MessageExt) -> TransactionState | None:
        """What the listener says. Raises Exception only: what would exit the thread too says nothing about a transaction."""
        try:
            return self._check(message)
        except Exception:
            raise
        except BaseException as error:
            raise RuntimeError(f"the listener ended with {type(error).__name__}") from error

    def _answer(self, question: _Question, verdict: _Verdict | None) -> None:
        self._waiting -= 1
        if verdict is None:
            return  # closed before the listener was asked: another producer of the group will be
        task = asyncio.get_running_loop().create_task(self._tell(question, verdict))
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)

    async def _tell(self, question: _Question, verdict: _Verdict) -> None:
        command = end_after_check(self._group, question.asked, question.message, verdict.state, verdict.error)
        try:
            await self._instance.invoke_oneway(question.address, command, END_TIMEOUT_MS)
        except ClientError as error:
            _LOG.warning("%s is not told what it asked, and will ask again: %s", question.address, error.describe())


def judged(ask: Callable[[], object], what: str, group: str) -> _Verdict:
    """What a listener says; UNKNOWN where it raises, or gives what is no state."""
    try:
        state = ask()
    except Exception as error:
        _LOG.exception("%s of group %s raised", what, group)
        return _Verdict(TransactionState.UNKNOWN, error)
    if state is None:
        return _Verdict(TransactionState.UNKNOWN, None)
    if isinstance(state, TransactionState):
        return _Verdict(state, None)
    wrong = TypeError(f"{what}: a listener gives a TransactionState, not {state!r:.80}")
    _LOG.error("%s", wrong)
    return _Verdict(TransactionState.UNKNOWN, wrong)
