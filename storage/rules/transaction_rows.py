"""Rows that are transactions: their columns `transaction_state` and `producer_group`, judged. Pure.

Every row is a half message; where its state is known, what ends it goes into the log with the same batch.

    commit (null)   half · commit · op       visible
    rollback        half · op                never visible
    unknown         half                     a transaction check asks back

Java: DefaultMQProducerImpl.sendMessageInTransaction, LocalTransactionState, TransactionalMessageBridge.parseHalfMessageInner.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from storage.errors import NameIllegalError
from storage.format.arrays import as_texts, empty_as_null
from storage.format.record import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from storage.names import validate_group
from storage.rules.half_messages import client_properties, half_properties
from storage.rules.row_rules import TransactionRules
from storage.rules.row_values import Rejections

COLUMNS = ("transaction_state", "producer_group")
UNKNOWN = 0
HALF_PROPERTIES = client_properties("") | half_properties("", "", "")
"""What a half has besides the message's own properties."""
STATES = {"commit": TRANSACTION_COMMIT, "rollback": TRANSACTION_ROLLBACK, "unknown": UNKNOWN}


class TransactionColumns(NamedTuple):
    """What n rows have of it; columns of equal length."""

    states: np.ndarray
    """int8: the transaction bits of what ends each half, `UNKNOWN` where nothing does yet."""
    producer_groups: pa.Array | None
    """large_string without nulls; None = all have the one of the rules."""

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
    """Why a group can be nobody's; None if it can."""
    if name is None:
        return None if default is not None else "it is null, and the option producerGroup is not given"
    try:
        validate_group(name)
    except NameIllegalError as error:
        return error.describe()
    return None


def _encoded(column: pa.Array) -> tuple[list[str | None], np.ndarray]:
    """The distinct texts, and which of them each row has. What is not UTF-8 gets U+FFFD, which no name holds."""
    encoded = as_texts(column).dictionary_encode("encode")
    names = encoded.dictionary.cast(pa.large_binary()).to_pylist()
    return [None if name is None else name.decode(errors="replace") for name in names], encoded.indices.to_numpy()
