"""A transaction's messages: the half that waits for an answer, what is committed of it, what is put back, given up and resumed.

A half is an ordinary message of queue 0 of the half topic, transaction bits cleared, so it has a queue offset and an entry. It ends by
an op message that names its queue offset (`op_messages.py`); where it is committed, a commit record stands before that in the
topic that it was sent to, and names the half by its place in the log.

Rules take one message's values or columns of them; what works on whole messages takes columns, of one row where there is one.

Java: TransactionalMessageBridge.parseHalfMessageInner, EndTransactionProcessor.endMessageTransaction.
"""

from __future__ import annotations

import re
from dataclasses import replace
from enum import Enum
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.errors import PutRefusedError
from storage.format.properties import decode_property_maps
from storage.format.record import Message, committed_flags, half_flags
from storage.put_status import PutStatus
from storage.rules.delays import (
    REAL_QUEUE_ID,
    REAL_TOPIC,
    TIMES,
    Refusal,
    delay_level,
)
from storage.rules.inner_messages import InnerMessage, InnerMessages
from storage.rules.sizes import Numbers, Truths
from storage.settings.nouns import SendConfig

HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
DISCARD_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
"""Where a half goes that nobody has answered for."""
QUEUE_ID = 0
"""The only queue of the half, op and discard topics."""
GROUP = "CID_RMQ_SYS_TRANS"
"""Whose consume offsets say how far halves and op messages are dealt with."""

PREPARED = "TRAN_MSG"
PRODUCER_GROUP = "PGROUP"
TRANSACTION_ID = "__transactionId__"
UNIQUE_KEY = "UNIQ_KEY"
WAIT = "WAIT"
CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
IMMUNITY = "CHECK_IMMUNITY_TIME_IN_SECONDS"
FIRST_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"
"""Of a half that was put back unasked: the queue offset of the first one."""

_TOPIC = "[%|a-zA-Z0-9_.-]{0,254}[%|a-zA-Z0-9_-]"  # it becomes a directory; a last dot would leave room for . and ..
_BELONGS_NOWHERE = f"{REAL_TOPIC} is no topic, or {REAL_QUEUE_ID} no queue id"
_NO_END = b"[^\x02]$"

HALF_DELAYED = Refusal(
    PutStatus.MESSAGE_ILLEGAL,
    "a message of a transaction cannot be delayed: a broker would throw it away when it is due",
)
HALF_EMPTY = Refusal(PutStatus.MESSAGE_ILLEGAL, "it is empty, and a broker cannot commit such a half message")

Value = TypeVar("Value", str, pa.Array)


class TransactionState(Enum):
    """What became of a transaction. Java: LocalTransactionState."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    UNKNOWN = "unknown"
    """Ask again later."""


def takes_transactions(send: SendConfig) -> bool:
    """Whether the broker takes halves at all. Java: rejectTransactionMessage, for sends and rows alike."""
    return not send.reject_transaction_message


def half_refusals(levels: Numbers, asks_time: Truths, is_empty: Truths) -> tuple[tuple[Truths, Refusal], ...]:
    """Which messages become no halves, and why; of a message's reasons the first one counts. The one rule for a request and a row.

    Departures: a broker of 5.3 takes both. It parks a half with a delay in the schedule topic and throws it away when it is due, and it
    refuses the commit of one without a body, which it reads back as null.
    """
    return ((levels > 0) | asks_time, HALF_DELAYED), (is_empty, HALF_EMPTY)


def client_properties(producer_group: Value) -> dict[str, Value | str]:
    """What a client says of a half. Java: DefaultMQProducerImpl.sendMessageInTransaction."""
    return {PREPARED: "true", PRODUCER_GROUP: producer_group}


def half_properties(topic: Value, queue_id: Value, unique_key: Value) -> dict[str, Value]:
    """What a broker says of a half, of one or of columns of them: where it belongs, and its transaction.

    Java: TransactionalMessageBridge.parseHalfMessageInner.
    """
    return {TRANSACTION_ID: unique_key, REAL_TOPIC: topic, REAL_QUEUE_ID: queue_id}


def half_message(message: InnerMessage, producer_group: str | None = None) -> InnerMessage:
    """The half that stands for a message until its transaction ends. Java: TransactionalMessageBridge.parseHalfMessageInner.

    With `producer_group` also what a client adds. Raises PutRefusedError (MESSAGE_ILLEGAL) by `half_refusals`.
    """
    asks_time = any(name in message.properties for name in TIMES)
    for is_refused, refusal in half_refusals(delay_level(message), asks_time, not message.body):
        if is_refused:
            raise PutRefusedError(refusal.status, refusal.reason)
    properties = dict(message.properties)
    if producer_group is not None:
        properties |= client_properties(producer_group)
    added = half_properties(message.topic, str(message.queue_id), properties.get(UNIQUE_KEY, ""))
    properties |= {name: value for name, value in added.items() if value}
    return replace(
        message,
        topic=HALF_TOPIC,
        queue_id=QUEUE_ID,
        sys_flag=half_flags(message.sys_flag),
        properties=properties,
    )


def real_queue(half: Message) -> tuple[str, int]:
    """The topic and queue that a half was sent to. Raises PutRefusedError (MESSAGE_ILLEGAL) where it does not say."""
    columns = (pa.array([half.properties.get(name)], pa.string()) for name in (REAL_TOPIC, REAL_QUEUE_ID))
    topics, queue_ids = real_queues(*columns)
    if queue_ids[0] < 0:
        raise PutRefusedError(
            PutStatus.MESSAGE_ILLEGAL, f"the half message at {half.commitlog_offset}: {_BELONGS_NOWHERE}"
        )
    return topics[0].as_py(), int(queue_ids[0])


# Many at once


def committed_messages(halves: InnerMessages, commitlog_offsets: np.ndarray | None = None) -> InnerMessages:
    """What a commit of these makes visible. Java: EndTransactionProcessor.endMessageTransaction.

    Their properties are the halves', REAL_TOPIC, REAL_QID and TRAN_MSG among them: Java clears these after it made the string.
    `commitlog_offsets` is where the halves lie; None = not known yet, 0. Raises PutRefusedError (MESSAGE_ILLEGAL) where
    a half does not say what topic and queue it belongs to, at which Java throws.
    """
    properties = decode_property_maps(halves.properties.cast(pa.binary()))
    topics, queue_ids = real_queues(properties.values_of(REAL_TOPIC), properties.values_of(REAL_QUEUE_ID))
    if (queue_ids < 0).any():
        raise PutRefusedError(PutStatus.MESSAGE_ILLEGAL, _BELONGS_NOWHERE)
    places = np.zeros(halves.row_count, np.int64) if commitlog_offsets is None else commitlog_offsets.astype(np.int64)
    return halves._replace(
        topics=topics,
        queue_ids=queue_ids.astype(np.int32),
        sys_flags=committed_flags(halves.sys_flags).astype(np.int32),
        prepared_transaction_offsets=places,
    )


def put_back_messages(halves: InnerMessages, check_times: np.ndarray) -> InnerMessages:
    """Halves that were asked back without an answer, to stand at the end of their queue. `check_times` counts this time too.

    Java: TransactionalMessageBridge.renewHalfMessageInner. Java loses `flag` here, so that a message committed after a check comes
    without it; here it stays.
    """
    times = pa.array(check_times).cast(pa.string())
    return _moved(halves, HALF_TOPIC)._replace(properties=with_property(closed(halves.properties), CHECK_TIMES, times))


def put_back_unasked(halves: InnerMessages, queue_offsets: np.ndarray) -> InnerMessages:
    """Halves that are still immune, to stand at the end of their queue. Java: TransactionalMessageBridge.renewImmunityHalfMessageInner.

    Each remembers the first one's queue offset; `queue_offsets` are their own. Nobody waits for it (WAIT), which Java says in these
    copies only. Java counts a check here (apache/rocketmq#8311), so that a long immunity uses up all checks; here none was made and
    none is counted.
    """
    known = decode_property_maps(halves.properties.cast(pa.binary())).values_of(FIRST_OFFSET)
    first = pc.coalesce(known, pa.array(queue_offsets).cast(pa.string()))
    encoded = with_property(closed(halves.properties), FIRST_OFFSET, first)
    return _moved(halves, HALF_TOPIC)._replace(properties=with_property(encoded, WAIT, "false"))


def discarded_messages(halves: InnerMessages) -> InnerMessages:
    """Halves that are given up. Java: DefaultTransactionalMessageCheckListener.toMessageExtBrokerInner."""
    return _moved(halves, DISCARD_TOPIC)


def resumed_messages(discarded: InnerMessages) -> InnerMessages:
    """Discarded halves as halves again, their checks counted from 0. Java: AdminBrokerProcessor.resumeCheckHalfMessage."""
    return _moved(discarded, HALF_TOPIC)._replace(
        properties=with_property(closed(discarded.properties), CHECK_TIMES, "0")
    )


def real_queues(topics: pa.Array, queue_ids: pa.Array) -> tuple[pa.Array, np.ndarray]:
    """Topic and queue id (int64) that halves were sent to, of REAL_TOPIC and REAL_QID; "" and −1 where one does not say both."""
    topics = topics.fill_null("")
    numbers = integers(queue_ids, -1)
    numbers[~np.array(pc.match_substring_regex(topics, f"^(?:{_TOPIC})$"), bool)] = -1
    return topics, numbers


def integers(texts: pa.Array, otherwise: int, digits: int = 9) -> np.ndarray:
    """Decimal numbers as int64; `otherwise` where there is none, or one of more digits."""
    is_number = pc.match_substring_regex(texts, f"^[0-9]{{1,{digits}}}$")
    numbers = pc.if_else(is_number, texts, pa.scalar(None, texts.type)).cast(pa.int64())
    return np.array(numbers.fill_null(otherwise), np.int64)


def closed(encoded: pa.Array) -> pa.Array:
    """Property strings whose last separator, which Java may leave out, stands."""
    is_open = pc.match_substring_regex(encoded, _NO_END)
    if not pc.any(is_open).as_py():
        return encoded
    closing = pc.if_else(is_open, pa.scalar(b"\x02", pa.large_binary()), pa.scalar(b"", pa.large_binary()))
    return pc.binary_join_element_wise(encoded, closing, pa.scalar(b"", pa.large_binary()))


def with_property(encoded: pa.Array, name: str, values: pa.Array | str) -> pa.Array:
    """Closed property strings with a property set in place of what they had under that name; a null or empty value sets nothing."""
    pieces: pa.Array | pa.Scalar
    if isinstance(values, str):
        pieces = pa.scalar(f"{name}\x01{values}\x02".encode(), pa.large_binary())
        is_set: pa.Array | None = None
    else:
        texts = values.cast(pa.large_string()).view(pa.large_binary()) if not _is_binary(values) else values
        is_set = pc.fill_null(pc.greater(pc.binary_length(texts), 0), False)
        head, tail = (pa.scalar(text, pa.large_binary()) for text in (f"{name}\x01".encode(), b"\x02"))
        pieces = pc.binary_join_element_wise(head, texts.fill_null(b""), tail, pa.scalar(b"", pa.large_binary()))
        if not pc.all(is_set).as_py():
            pieces = pc.if_else(is_set, pieces, pa.scalar(b"", pa.large_binary()))
    kept = _without(encoded, name)
    if is_set is not None and not pc.all(is_set).as_py():
        kept = pc.if_else(is_set, kept, encoded)
    return pc.binary_join_element_wise(kept, pieces, pa.scalar(b"", pa.large_binary()))


def _without(encoded: pa.Array, name: str) -> pa.Array:
    if not pc.any(pc.match_substring(encoded, f"{name}\x01")).as_py():
        return encoded
    pattern = f"(^|\x02)(?:{re.escape(name)}\x01[^\x02]*\x02)+"
    return pc.replace_substring_regex(encoded, pattern=pattern, replacement="\\1")


def _is_binary(values: pa.Array) -> bool:
    return pa.types.is_large_binary(values.type)


def _moved(messages: InnerMessages, topic: str) -> InnerMessages:
    """The same in queue 0 of a topic."""
    count = messages.row_count
    return messages._replace(
        topics=pa.repeat(pa.scalar(topic, pa.string()), count), queue_ids=np.full(count, QUEUE_ID, np.int32)
    )
