"""A producer whose messages appear when a local transaction commits. Java: TransactionMQProducer.

    class Payments:
        def execute(self, message, transaction_id, arg):      # in the caller's thread, once the half message is stored
            ...
            return TransactionState.COMMIT

        def check(self, message):                             # in another thread, when a broker asks what became of it
            return TransactionState.COMMIT if is_paid(message.message_id) else TransactionState.UNKNOWN

    with TransactionProducer(ClientSettings("ns:9876"), "payments", Payments()) as producer:
        result = producer.send_in_transaction(Message("orders", b"..."))

The end is sent one-way (37). If it does not reach the broker, the broker asks any producer of the group (39): after 6 s, then every
30 s, 15 times in all. So `check` must know the transactions of all producers of the group.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, NamedTuple, Protocol

from spark_mq.client.errors import ClientError
from spark_mq.client.event_loop import ListenerPool, run
from spark_mq.client.hooks import OF_TRANSACTION_PRODUCERS, EndTransactionContext, EndTransactionHook, Hook, call_each
from spark_mq.client.instance import ClientInstance
from spark_mq.client.message import Message, MessageExt
from spark_mq.client.producer import Producer, ProducerMember
from spark_mq.client.send_results import SendResult, SendStatus, end_after_check, end_after_send
from spark_mq.client.settings import ClientSettings, ProducerSettings, with_namespace, without_namespace
from spark_mq.remoting import RemotingCommand
from spark_mq.remoting.messages import CheckTransactionStateRequest
from storage.errors import CorruptRecordError
from storage.format.record import Message as Record
from storage.format.record import decode_record
from storage.names import MASTER_ID
from storage.rules.half_messages import TransactionState as TransactionState

END_TIMEOUT_MS = 3_000
Check = Callable[[MessageExt], TransactionState | None]
_LOG = logging.getLogger(__name__)


class TransactionListener(Protocol):
    """The program's side of its transactions. What either raises, and None, counts as UNKNOWN: the broker asks again."""

    def execute(self, message: Message, transaction_id: str, arg: Any) -> TransactionState | None:
        """Do the local transaction that belongs to the message."""

    def check(self, message: MessageExt) -> TransactionState | None:
        """Say what became of it; `message.message_id` is the transaction's id."""


class TransactionResult(NamedTuple):
    """A half message that is stored, and how its transaction ended here. Java: TransactionSendResult."""

    sent: SendResult
    state: TransactionState
    error: Exception | None = None
    """The listener's exception."""


class TransactionProducer(Producer):
    """A producer with a listener. One that shall only answer for others names its `topics`: their brokers ask it then."""

    _HOOK_KINDS: ClassVar[tuple[type, ...]] = OF_TRANSACTION_PRODUCERS

    def __init__(
        self,
        settings: ClientSettings,
        group: str,
        listener: TransactionListener,
        options: ProducerSettings | None = None,
        *,
        topics: Iterable[str] = (),
        hooks: Iterable[Hook] = (),
    ) -> None:
        """Raises GroupTakenError, ClientSettingError."""
        self._listener = listener
        super().__init__(settings, group, options, topics=topics, hooks=hooks)

    def send_in_transaction(
        self, message: Message, arg: object = None, timeout_ms: int | None = None
    ) -> TransactionResult:
        """Send the half message, run the local transaction in this thread, and tell the broker how it ended.

        A half that is stored with another status than SEND_OK is rolled back, without a call of the listener. A delay level is dropped,
        as in Java, and a deliver time is refused. Raises ClientError if the half was not sent; the listener is not called then either.
        """
        started_at = self._begin_send()
        sent = self._send(self._maker.half(message), None, timeout_ms, started_at)
        state, error = TransactionState.ROLLBACK, None
        if sent.status is SendStatus.SEND_OK:
            transaction_id = sent.transaction_id or sent.message_id
            execute = partial(self._listener.execute, message, transaction_id, arg)
            state, error = judged(execute, f"the local transaction {transaction_id}", self.group)
        try:
            topic = with_namespace(self.settings.namespace, message.topic)
            command = end_after_send(self._member.group, topic, sent, state, error)
            where = self._instance.broker_name_of(sent.queue._replace(topic=topic))
            if self._end_hooks:
                address = self._instance.broker_addresses(where).get(MASTER_ID, "")
                message_id = sent.message_id
                context = EndTransactionContext(
                    self.group, message, address, message_id, message_id, state, from_check=False
                )
                call_each(self._end_hooks, lambda hook: hook.end_transaction(context))
            run(self._tell(where, command), 2 * END_TIMEOUT_MS, "the end of a transaction")
        except ClientError as failure:
            _LOG.warning("the end of transaction %s was not sent; the broker will ask: %s", sent.message_id, failure)
        return TransactionResult(sent, state, error)

    async def _tell(self, broker_name: str, command: RemotingCommand) -> None:
        address = await self._instance.broker_address(broker_name)
        await self._instance.invoke_oneway(address, command, END_TIMEOUT_MS)

    def _make_member(self, group: str) -> ProducerMember:
        checks = TransactionChecks(self._instance, self.options, group, self._listener.check, self._end_hooks)
        return _TransactionMember(group, self, checks)


class _TransactionMember(ProducerMember):
    """The producer as a member of the instance; answers checks of transactions."""

    def __init__(self, group: str, producer: TransactionProducer, checks: TransactionChecks) -> None:
        super().__init__(group, producer._sender, producer._requests)
        self._checks = checks

    async def check_transaction(self, address: str, header: CheckTransactionStateRequest, record: bytes) -> None:
        """Ask the listener, in another thread."""
        self._checks.ask(address, header, record)

    async def close(self, timeout_ms: int) -> None:
        """Let the listener finish its current checks."""
        await self._checks.close(timeout_ms)


class _Question(NamedTuple):
    address: str
    request: CheckTransactionStateRequest
    message: MessageExt


class _Verdict(NamedTuple):
    state: TransactionState
    error: Exception | None


class TransactionChecks:
    """Brokers ask what became of half messages of a group (39): threads that ask the listener, and the answers (37).

    Everything but the listener runs on the event loop's thread. Java: DefaultMQProducerImpl.checkTransactionState.
    """

    def __init__(
        self,
        instance: ClientInstance,
        settings: ProducerSettings,
        group: str,
        check: Check,
        hooks: Sequence[EndTransactionHook] = (),
    ) -> None:
        """`group` as brokers know it. `check` is called in threads; what it raises, and None, counts as UNKNOWN."""
        self._hooks = hooks
        self._instance = instance
        self._settings = settings
        self._group = group
        self._check = check
        self._pool: ListenerPool | None = None
        self._waiting = 0
        self._answers: set[asyncio.Task[None]] = set()

    def ask(self, address: str, check: CheckTransactionStateRequest, record: bytes) -> None:
        """Queue a check for the listener. If too many wait, it is dropped: the broker asks again."""
        try:
            found = decode_record(record, check_crc=False)  # it came over a connection, not from a disk
        except CorruptRecordError as error:
            _LOG.warning("%s asks about a half message that cannot be read: %s", address, error.describe())
            return
        if not isinstance(found, Record):
            _LOG.warning("%s asks about a half message and sends only a part of it", address)
            return
        if self._waiting >= self._settings.check_limit:
            _LOG.warning("%d questions about transactions of group %s wait: one is dropped", self._waiting, self._group)
            return
        if self._pool is None:
            self._pool = ListenerPool(f"spark-mq-checks-{self._group}", self._settings.check_threads)
        message = MessageExt.of(found, check.broker_name or "")
        topic = without_namespace(self._instance.settings.namespace, message.topic)
        question = _Question(address, check, replace(message, topic=topic))
        self._waiting += 1
        self._pool.submit(partial(self._judged, question), partial(self._answer, question))

    async def close(self, timeout_ms: int) -> None:
        """Start no more checks; a running check is answered if it ends within the time."""
        if self._pool is not None:
            await self._pool.close(timeout_ms)
            if self._answers:
                await asyncio.wait(self._answers, timeout=timeout_ms / 1000)

    def _judged(self, question: _Question) -> _Verdict:
        """The listener's verdict; in one of the threads."""
        message = question.message
        verdict = judged(partial(self._checked, message), f"the check of transaction {message.message_id}", self._group)
        if self._hooks:
            group = without_namespace(self._instance.settings.namespace, self._group)
            message_id, state = message.message_id, verdict.state
            context = EndTransactionContext(
                group, message, question.address, message_id, message_id, state, from_check=True
            )
            call_each(self._hooks, lambda hook: hook.end_transaction(context))
        return verdict

    def _checked(self, message: MessageExt) -> TransactionState | None:
        """The listener's state. Raises Exception only: an exception that would exit the thread says nothing about a transaction."""
        try:
            return self._check(message)
        except Exception:
            raise
        except BaseException as error:
            raise RuntimeError(f"the listener ended with {type(error).__name__}") from error

    def _answer(self, question: _Question, verdict: _Verdict | None) -> None:
        self._waiting -= 1
        if verdict is None:
            return  # closed before the listener was called: the broker asks another producer of the group
        task = asyncio.get_running_loop().create_task(self._tell(question, verdict))
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)

    async def _tell(self, question: _Question, verdict: _Verdict) -> None:
        command = end_after_check(self._group, question.request, question.message, verdict.state, verdict.error)
        try:
            await self._instance.invoke_oneway(question.address, command, END_TIMEOUT_MS)
        except ClientError as error:
            _LOG.warning("%s gets no answer to its check, and will ask again: %s", question.address, error.describe())


def judged(ask: Callable[[], object], what: str, group: str) -> _Verdict:
    """The listener's state; UNKNOWN if it raises, or returns anything else."""
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
