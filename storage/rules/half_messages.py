"""A transaction's messages: the waiting half, its committed message, and halves that are put back, given up and resumed.

A half is an ordinary message in queue 0 of the half topic without transaction bits, so it has a queue offset and an entry. It is ended
by an op message that names its queue offset. If it is committed, a commit record precedes that in the topic that it was sent to, and
names the half by its log offset.

Rules take one message's values or columns of them; functions on whole messages take columns, with one row for a single one.

For rows every one is a half; if its state is known, the messages that end it go into the log with the same batch:

    commit (null)   half · commit · op       visible
    rollback        half · op                never visible
    unknown         half                     a transaction check decides

An op message names ended halves. Body: their queue offsets, each followed by a comma; tag `d`.

    half queue   0 1 2 3 4 …          op queue   "0,2," "1," …

Java: TransactionalMessageBridge.parseHalfMessageInner, EndTransactionProcessor.endMessageTransaction; TransactionalMessageServiceImpl.
deletePrepareMessage, getOpMessage, batchSendOpMessage; DefaultMQProducerImpl.sendMessageInTransaction, LocalTransactionState.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.errors import NameIllegalError, PutRefusedError
from storage.format.arrays import as_texts, bytes_and_offsets, empty_as_null, joined
from storage.format.properties import closed, decode_property_maps, encoded_property
from storage.format.record import (
    TRANSACTION_COMMIT,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
    Message,
    committed_flags,
    half_flags,
)
from storage.format.record_batch import Records
from storage.names import validate_group
from storage.pending import PutStatus
from storage.rules.delays import REAL_QUEUE_ID, REAL_TOPIC, TIMES, Refusal, delay_level
from storage.rules.inner_messages import InnerMessage, InnerMessages, Numbers, Truths
from storage.rules.values import Rejections
from storage.settings.nouns import SendConfig

HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
DISCARD_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
"""The topic of halves that were given up without an answer."""
QUEUE_ID = 0
"""The only queue of the half, op and discard topics."""
GROUP = "CID_RMQ_SYS_TRANS"
"""The consumer group whose offsets say how far halves and op messages are processed."""

PREPARED = "TRAN_MSG"
PRODUCER_GROUP = "PGROUP"
TRANSACTION_ID = "__transactionId__"
UNIQUE_KEY = "UNIQ_KEY"
WAIT = "WAIT"
CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
IMMUNITY = "CHECK_IMMUNITY_TIME_IN_SECONDS"
FIRST_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"
"""Property of a half that was put back unchecked: the queue offset of the first one."""

_TOPIC = "[%|a-zA-Z0-9_.-]{0,254}[%|a-zA-Z0-9_-]"  # it becomes a directory; a last dot would allow . and ..
_BELONGS_NOWHERE = f"{REAL_TOPIC} is no topic, or {REAL_QUEUE_ID} no queue id"

HALF_DELAYED = Refusal(
    PutStatus.MESSAGE_ILLEGAL,
    "a message of a transaction cannot be delayed: a broker would throw it away when it is due",
)
HALF_EMPTY = Refusal(PutStatus.MESSAGE_ILLEGAL, "it is empty, and a broker cannot commit such a half message")

Value = TypeVar("Value", str, pa.Array | str)


class TransactionState(Enum):
    """The outcome of a transaction. Java: LocalTransactionState."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    UNKNOWN = "unknown"
    """Check again later."""


def takes_transactions(send: SendConfig) -> bool:
    """Whether the broker accepts halves at all. Java: rejectTransactionMessage, for sends and rows alike."""
    return not send.reject_transaction_message


def half_refusals(
    levels: Numbers, asks_time: Truths, is_empty: Truths, *, parks_delayed: bool = False
) -> tuple[tuple[Truths, Refusal], ...]:
    """Which messages cannot be halves, and why; the first reason of each counts. The same rule for a request and a row.

    Departures: Java's broker accepts all of them. It parks a half with a level in the schedule topic and discards it when it is due; a
    request to a broker of a named release before 5.5 does the same (`Release.parks_delayed_halves`), a row never. It refuses the commit
    of one without a body, which it reads back as null.
    """
    return ((levels > 0) & (not parks_delayed) | asks_time, HALF_DELAYED), (is_empty, HALF_EMPTY)


def client_properties(producer_group: Value) -> dict[str, Value | str]:
    """The properties that a client gives a half. Java: DefaultMQProducerImpl.sendMessageInTransaction."""
    return {PREPARED: "true", PRODUCER_GROUP: producer_group}


def half_properties(topic: Value, queue_id: Value, unique_key: Value) -> dict[str, Value]:
    """The properties that a broker gives halves, as values or columns: where they belong, and their transaction.

    Java: TransactionalMessageBridge.parseHalfMessageInner.
    """
    return {TRANSACTION_ID: unique_key, REAL_TOPIC: topic, REAL_QUEUE_ID: queue_id}


def half_message(
    message: InnerMessage, producer_group: str | None = None, *, parks_delayed: bool = False
) -> InnerMessage:
    """The half of a message, which waits until its transaction ends. Java: TransactionalMessageBridge.parseHalfMessageInner.

    With `producer_group` also with the client's properties. Raises PutRefusedError (MESSAGE_ILLEGAL) by `half_refusals`.
    """
    asks_time = any(name in message.properties for name in TIMES)
    for is_refused, refusal in half_refusals(
        delay_level(message), asks_time, not message.body, parks_delayed=parks_delayed
    ):
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


def sent_again(half: InnerMessage) -> InnerMessage:
    """A waiting half as its producer sent it, for a broker that does not have it and makes it a half of its own.

    It keeps the count of its checks. Raises PutRefusedError (MESSAGE_ILLEGAL) if it names no topic and queue.
    Java: TransactionalMessageUtil.buildTransactionalMessageFromHalfMessage.
    """
    columns = (pa.array([half.properties.get(name)], pa.string()) for name in (REAL_TOPIC, REAL_QUEUE_ID))
    topics, queue_ids = real_queues(*columns)
    if queue_ids[0] < 0:
        raise PutRefusedError(PutStatus.MESSAGE_ILLEGAL, f"a half message: {_BELONGS_NOWHERE}")
    dropped = (FIRST_OFFSET, REAL_QUEUE_ID)
    properties = {name: value for name, value in half.properties.items() if name not in dropped}
    return replace(
        half,
        topic=topics[0].as_py(),
        queue_id=int(queue_ids[0]),
        sys_flag=half.sys_flag | TRANSACTION_PREPARED,
        properties={**properties, PREPARED: "true"},
    )


def real_queue(half: Message) -> tuple[str, int]:
    """The topic and queue that a half was sent to. Raises PutRefusedError (MESSAGE_ILLEGAL) if it does not name them."""
    columns = (pa.array([half.properties.get(name)], pa.string()) for name in (REAL_TOPIC, REAL_QUEUE_ID))
    topics, queue_ids = real_queues(*columns)
    if queue_ids[0] < 0:
        raise PutRefusedError(
            PutStatus.MESSAGE_ILLEGAL, f"the half message at {half.commitlog_offset}: {_BELONGS_NOWHERE}"
        )
    return topics[0].as_py(), int(queue_ids[0])


# Many at once


def committed_messages(
    halves: InnerMessages, commitlog_offsets: np.ndarray | None = None, *, names_real_queue: bool = True
) -> InnerMessages:
    """The visible messages of committed halves. Java: EndTransactionProcessor.endMessageTransaction.

    Their properties are the halves', including TRAN_MSG, and REAL_TOPIC and REAL_QID if the release leaves them
    (`Release.commit_names_real_queue`).
    `commitlog_offsets` are the halves' log offsets; None = not known yet, 0. Raises PutRefusedError (MESSAGE_ILLEGAL) if
    a half does not name its topic and queue, where Java throws.
    """
    properties = decode_property_maps(halves.properties.cast(pa.binary()))
    topics, queue_ids = real_queues(properties.values_of(REAL_TOPIC), properties.values_of(REAL_QUEUE_ID))
    if (queue_ids < 0).any():
        raise PutRefusedError(PutStatus.MESSAGE_ILLEGAL, _BELONGS_NOWHERE)
    places = np.zeros(halves.row_count, np.int64) if commitlog_offsets is None else commitlog_offsets.astype(np.int64)
    encoded = halves.properties
    if not names_real_queue:
        encoded = _without(_without(closed(encoded), REAL_TOPIC), REAL_QUEUE_ID)
    return halves._replace(
        properties=encoded,
        topics=topics,
        queue_ids=queue_ids.astype(np.int32),
        sys_flags=committed_flags(halves.sys_flags).astype(np.int32),
        prepared_transaction_offsets=places,
    )


def put_back_messages(halves: InnerMessages, check_times: np.ndarray) -> InnerMessages:
    """Halves that were checked without an answer, for the end of their queue. `check_times` includes this check.

    Java: TransactionalMessageBridge.renewHalfMessageInner. Java loses `flag` here, so that a message committed after a check comes
    without it; here it stays.
    """
    times = pa.array(check_times).cast(pa.string())
    return _moved(halves, HALF_TOPIC)._replace(properties=with_property(closed(halves.properties), CHECK_TIMES, times))


def put_back_unchecked(halves: InnerMessages, queue_offsets: np.ndarray) -> InnerMessages:
    """Halves that are still immune, for the end of their queue. Java: TransactionalMessageBridge.renewImmunityHalfMessageInner.

    Each keeps the first one's queue offset; `queue_offsets` are their own. The put does not wait (WAIT), which Java sets in these
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
    """Topic and queue id (int64) that halves were sent to, of REAL_TOPIC and REAL_QID; "" and −1 if one lacks either."""
    topics = topics.fill_null("")
    numbers = integers(queue_ids, -1)
    numbers[~np.array(pc.match_substring_regex(topics, f"^(?:{_TOPIC})$"), bool)] = -1
    return topics, numbers


def integers(texts: pa.Array, otherwise: int, digits: int = 9) -> np.ndarray:
    """Decimal numbers as int64; `otherwise` for a missing or longer one."""
    is_number = pc.match_substring_regex(texts, f"^[0-9]{{1,{digits}}}$")
    numbers = pc.if_else(is_number, texts, pa.scalar(None, texts.type)).cast(pa.int64())
    return np.array(numbers.fill_null(otherwise), np.int64)


def with_property(encoded: pa.Array, name: str, values: pa.Array | str) -> pa.Array:
    """Closed property strings with a property set, replacing the present one; a null or empty value sets nothing."""
    kept = _without(encoded, name)
    if isinstance(values, str):
        return joined(kept, f"{name}\x01{values}\x02")
    pieces = encoded_property(name, empty_as_null(as_texts(values)))
    return joined(pc.if_else(pieces.is_valid(), kept, encoded) if pieces.null_count else kept, pieces)


def _without(encoded: pa.Array, name: str) -> pa.Array:
    if not pc.any(pc.match_substring(encoded, f"{name}\x01")).as_py():
        return encoded
    pattern = f"(^|\x02)(?:{re.escape(name)}\x01[^\x02]*\x02)+"
    return pc.replace_substring_regex(encoded, pattern=pattern, replacement="\\1")


def _moved(messages: InnerMessages, topic: str) -> InnerMessages:
    """The same messages in queue 0 of a topic."""
    count = messages.row_count
    return messages._replace(
        topics=pa.repeat(pa.scalar(topic, pa.string()), count), queue_ids=np.full(count, QUEUE_ID, np.int32)
    )


OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
ENDED_TAG = "d"
_PROPERTIES = {"WAIT": "true", "TAGS": ENDED_TAG}
_OFFSET = "^[0-9]{1,18}$"


def op_bodies(half_queue_offsets: np.ndarray, max_size_bytes: int) -> list[bytes]:
    """The bodies that name these halves, in order. Java: getOpMessage, which ends a body with the offset that fills it.

    With a size of 0 each body is one offset without a comma: the form of releases before 5.1, and the only one that these read.
    """
    numbers = pa.array(half_queue_offsets, pa.int64()).cast(pa.large_string())
    if max_size_bytes == 0:
        return [number.encode() for number in numbers.to_pylist()]
    entries = pc.binary_join_element_wise(numbers, pa.scalar(",", pa.large_string()), pa.scalar("", pa.large_string()))
    data, places = bytes_and_offsets(entries)
    bodies = []
    first = 0
    while first < len(entries):
        last = int(np.searchsorted(places, places[first] + max_size_bytes))
        last = min(max(last, first + 1), len(entries))
        bodies.append(data[places[first] : places[last]].tobytes())
        first = last
    return bodies


def op_messages(half_queue_offsets: np.ndarray, max_size_bytes: int, now_ms: int) -> list[InnerMessage]:
    """The messages that end these halves.

    Java: TransactionalMessageBridge.makeOpMessageInner, whose unique key never reaches the record.
    """
    return [
        InnerMessage(topic=OP_TOPIC, queue_id=QUEUE_ID, body=body, properties=_PROPERTIES, born_time_ms=now_ms)
        for body in op_bodies(half_queue_offsets, max_size_bytes)
    ]


class EndedHalves(NamedTuple):
    """The halves that a range of the op queue names; one row for each."""

    op_offsets: np.ndarray
    """int64: queue offset of the op message, ascending."""
    half_offsets: np.ndarray
    """int64: queue offset of the half."""

    def done_before(self, end: int, half_offset: int) -> int:
        """Op offset up to which all op messages before `end` are processed, once the halves before `half_offset` are.

        Java: calculateOpOffset.
        """
        ahead = self.op_offsets[self.half_offsets >= half_offset]
        return int(ahead[0]) if len(ahead) else end


def ended_halves(op_offsets: np.ndarray, records: Records) -> EndedHalves:
    """The halves that records of the op topic end. A record without the tag, and a body's parts that are no number, end nothing."""
    tags = decode_property_maps(records.raw_properties()).values_of("TAGS")
    is_op = pc.fill_null(pc.equal(tags, ENDED_TAG), False)
    lists = pc.split_pattern(records.bodies().cast(pa.large_binary()).filter(is_op), ",")
    texts, rows = lists.flatten(), np.asarray(pc.list_parent_indices(lists))
    is_number = pc.match_substring_regex(texts, _OFFSET)
    numbers = texts.filter(is_number).cast(pa.large_string()).cast(pa.int64())
    return EndedHalves(
        op_offsets[np.asarray(is_op, bool)][rows[np.asarray(is_number, bool)]], np.asarray(numbers, np.int64)
    )


class OpBatch:
    """Ended halves that no op message names yet: one is due when they fill it, or some time after the last. Java:
    MessageQueueOpContext.

    They live in memory, and a crash loses them. A commit is also known by its record, so nothing is committed twice. A rollback is
    known only here, so a broker that acknowledges one writes at once.
    """

    def __init__(self, max_size_bytes: int, interval_ms: int, now_ms: int) -> None:
        self.max_size_bytes = max_size_bytes
        """The text size of one op message."""
        self.interval_ms = interval_ms
        """How long the last may wait."""
        self._last_write_ms = now_ms
        self._offsets: list[int] = []
        self._size_bytes = 0

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, half_queue_offset: int) -> None:
        """Add an ended half."""
        self._offsets.append(half_queue_offset)
        self._size_bytes += len(str(half_queue_offset)) + 1

    def is_due(self, now_ms: int) -> bool:
        """Whether to write now. Java: batchSendOpMessage."""
        waited = now_ms - self._last_write_ms >= self.interval_ms
        return bool(self._offsets) and (waited or self._size_bytes >= self.max_size_bytes)

    def messages(self, now_ms: int) -> list[InnerMessage]:
        """The op messages of all waiting halves. Call `written` after they are in the log."""
        return op_messages(np.array(self._offsets, np.int64), self.max_size_bytes, now_ms)

    def take(self, now_ms: int) -> list[int]:
        """Remove and return all waiting halves, for a caller that writes them now; the time starts anew."""
        taken = self._offsets
        self.written(now_ms)
        return taken

    def written(self, now_ms: int) -> None:
        """Start anew."""
        self._offsets, self._size_bytes, self._last_write_ms = [], 0, now_ms


TRANSACTION_COLUMNS = ("transaction_state", "producer_group")
UNKNOWN = 0
HALF_PROPERTIES = client_properties("") | half_properties("", "", "")
"""The properties that a half has in addition to the message's own."""
STATES = {"commit": TRANSACTION_COMMIT, "rollback": TRANSACTION_ROLLBACK, "unknown": UNKNOWN}


@dataclass(frozen=True, slots=True)
class TransactionRules:
    """Makes every row a half message; its column `transaction_state` gives the outcome."""

    producer_group: str | None = None
    """The producer group that a broker checks for all rows; None = each row's column."""
    marks: tuple[tuple[str, str], ...] = ()
    """Additional properties of halves whose end is known, for a producer that is checked nevertheless."""
    is_rejected: bool = False
    """Java: rejectTransactionMessage."""


class TransactionColumns(NamedTuple):
    """The transactions of n rows; columns of equal length."""

    states: np.ndarray
    """int8: the transaction bits of each half's end, `UNKNOWN` if it is open."""
    producer_groups: pa.Array | None
    """large_string without nulls; None = all have the group of the rules."""

    def filter(self, keep: pa.Array) -> TransactionColumns:
        """Some of the rows, by a mask."""
        groups = None if self.producer_groups is None else self.producer_groups.filter(keep)
        return TransactionColumns(self.states[keep.to_numpy(zero_copy_only=False)], groups)


def read_transactions(
    state_column: pa.Array | None,
    group_column: pa.Array | None,
    count: int,
    rules: TransactionRules,
    rejections: Rejections,
) -> TransactionColumns:
    """The rows' states and groups."""
    if rules.is_rejected:
        rule = "the broker takes no transactions (rejectTransactionMessage)"
        rejections.add(np.arange(count), "transaction_state", rule)
    states = np.full(count, TRANSACTION_COMMIT, np.int8)
    if state_column is not None and state_column.null_count < count:
        names, codes = _encoded(state_column)
        values = np.array(
            [TRANSACTION_COMMIT if name is None else STATES.get(name.lower(), -1) for name in names], np.int8
        )
        states = values[codes]
        expected = ", ".join(STATES)
        rejections.add(
            np.flatnonzero(states < 0),
            "transaction_state",
            lambda row: f"expected one of {expected}, found {names[codes[row]]!r:.40}",
        )
    return TransactionColumns(states, _groups(group_column, count, rules.producer_group, rejections))


def _groups(column: pa.Array | None, count: int, default: str | None, rejections: Rejections) -> pa.Array | None:
    if column is None or column.null_count == count:
        if default is None:
            rule = "the row has none, and the option producerGroup is not given: a broker asks the group back"
            rejections.add(np.arange(count), "producer_group", rule)
        return None
    texts = empty_as_null(as_texts(column))
    names, codes = _encoded(texts)
    for code, name in enumerate(names):
        if (refusal := _group_rule(name, default)) is not None:
            rejections.add(np.flatnonzero(codes == code), "producer_group", refusal)
    return texts.fill_null(default or "")


def _group_rule(name: str | None, default: str | None) -> str | None:
    """Why a group is illegal; None if it is legal."""
    if name is None:
        return None if default is not None else "it is null, and the option producerGroup is not given"
    try:
        validate_group(name)
    except NameIllegalError as error:
        return error.describe()
    return None


def _encoded(column: pa.Array) -> tuple[list[str | None], np.ndarray]:
    """The distinct texts, and each row's index in them. Invalid UTF-8 becomes U+FFFD, which no name has."""
    encoded = as_texts(column).dictionary_encode("encode")
    names = encoded.dictionary.cast(pa.large_binary()).to_pylist()
    return [None if name is None else name.decode(errors="replace") for name in names], encoded.indices.to_numpy()
