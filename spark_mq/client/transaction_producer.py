"""A producer of messages that appear when a local transaction has come to its end. Java: TransactionMQProducer.

    class Payments:
        def execute(self, message, transaction_id, arg):      # in the caller's thread, once the half message is stored
            ...
            return TransactionState.COMMIT

        def check(self, message):                             # in another thread, when a broker asks what became of it
            return TransactionState.COMMIT if is_paid(message.message_id) else TransactionState.UNKNOWN

    with TransactionProducer(ClientSettings("ns:9876"), "payments", Payments()) as producer:
        result = producer.send_in_transaction(Message("orders", b"..."))

The end is told one-way (37). Where it does not reach the broker, the broker asks (39): after 6 s, then each 30 s, 15 times in all,
and any producer of the group. So `check` must know what each of them did.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple, Protocol

from spark_mq.client.errors import ClientError
from spark_mq.client.event_loop import run
from spark_mq.client.message import Message, MessageExt
from spark_mq.client.namespaces import with_namespace
from spark_mq.client.producer import Producer, ProducerMember
from spark_mq.client.producer_settings import ProducerSettings
from spark_mq.client.send_results import SendResult
from spark_mq.client.send_retries import SendStatus
from spark_mq.client.settings import ClientSettings
from spark_mq.client.transaction_checks import END_TIMEOUT_MS, TransactionChecks, judged
from spark_mq.client.transaction_ends import end_after_send
from spark_mq.remoting import RemotingCommand
from spark_mq.remoting.message_headers import CheckTransactionStateRequest
from storage.messages.half_messages import TransactionState as TransactionState

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
    """What the listener raised."""


class TransactionProducer(Producer):
    """A producer with a listener. One that shall only answer for others names its `topics`: their brokers ask it then."""

    def __init__(
        self,
        settings: ClientSettings,
        group: str,
        listener: TransactionListener,
        options: ProducerSettings | None = None,
        *,
        topics: Iterable[str] = (),
    ) -> None:
        """Raises GroupTakenError, ClientSettingError."""
        self._listener = listener
        super().__init__(settings, group, options, topics=topics)

    def send_in_transaction(
        self, message: Message, arg: object = None, timeout_ms: int | None = None
    ) -> TransactionResult:
        """Send the half message, run the local transaction in this thread, and tell the broker how it ended.

        A half that is stored with another status than SEND_OK is rolled back; the listener is not asked. A delay level is dropped, as
        in Java, and a deliver time is refused. Raises ClientError where the half was not sent; the listener is not asked either.
        """
        begun = self._begin_send()
        sent = self._send(self._maker.half(message), None, timeout_ms, begun)
        state, error = TransactionState.ROLLBACK, None
        if sent.status is SendStatus.SEND_OK:
            transaction_id = sent.transaction_id or sent.message_id
            execute = partial(self._listener.execute, message, transaction_id, arg)
            state, error = judged(execute, f"the local transaction {transaction_id}", self.group)
        try:
            topic = with_namespace(self.settings.namespace, message.topic)
            command = end_after_send(self._member.group, topic, sent, state, error)
            run(self._tell(sent.queue.broker_name, command), 2 * END_TIMEOUT_MS, "the end of a transaction")
        except ClientError as failure:
            _LOG.warning("the broker is not told the end of transaction %s, and will ask: %s", sent.message_id, failure)
        return TransactionResult(sent, state, error)

    async def _tell(self, broker_name: str, command: RemotingCommand) -> None:
        address = await self._instance.broker_address(broker_name)
        await self._instance.invoke_oneway(address, command, END_TIMEOUT_MS)

    def _make_member(self, group: str) -> ProducerMember:
        checks = TransactionChecks(self._instance, self.options, group, self._listener.check)
        return _TransactionMember(group, self, checks)


class _TransactionMember(ProducerMember):
    """The producer among the instance's members, asked for its transactions."""

    def __init__(self, group: str, producer: TransactionProducer, checks: TransactionChecks) -> None:
        super().__init__(group, producer._sender)
        self._checks = checks

    async def check_transaction(self, address: str, header: CheckTransactionStateRequest, record: bytes) -> None:
        """Ask the listener, in another thread."""
        self._checks.ask(address, header, record)

    async def close(self, timeout_ms: int) -> None:
        """Let the listener end what it is being asked."""
        await self._checks.close(timeout_ms)
