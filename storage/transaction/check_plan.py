"""Which half messages a check sends to the checker, and what it does with the others. Pure.

Java: TransactionalMessageServiceImpl.check, needDiscard, needSkip, getImmunityTime.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from storage.settings.load import StoreConfig
from storage.transaction.half_queue import ABSENT, MALFORMED, Halves, transaction_codes


class Action(IntEnum):
    """What a check does with a half."""

    SKIP = 0
    """It is ended, or a later copy replaces it."""
    END = 1
    """It is ended, but no op message says so: one is written."""
    DISCARD = 2
    PUT_BACK_UNCHECKED = 3
    ASK = 4


@dataclass(frozen=True, slots=True)
class CheckRules:
    """When to check and when to give up. Java: BrokerConfig, MessageStoreConfig."""

    timeout_ms: int = 6_000
    max_checks: int = 15
    file_reserved_ms: int = 72 * 3_600_000
    op_max_size_bytes: int = 4_096

    @classmethod
    def of(cls, config: StoreConfig) -> CheckRules:
        """The rules of a broker.conf."""
        transaction = config.transaction
        return cls(
            transaction.transaction_time_out,
            transaction.transaction_check_max,
            config.retention.file_reserved_time * 3_600_000,
            transaction.transaction_op_msg_max_size,
        )


def check_end(halves: Halves, is_ended: np.ndarray, now_ms: int, rules: CheckRules) -> int:
    """The row where a check that started at `now_ms` ends: the first half stored since, or too young to be checked.

    Halves that are ended or given up, or have their own immunity, do not stop it.
    """
    age_ms = now_ms - halves.born_times_ms
    is_young = (halves.immunities_s == ABSENT) & (age_ms >= 0) & (age_ms < rules.timeout_ms)
    stops = (halves.store_times_ms >= now_ms) | is_young
    stops &= ~is_ended & ~_is_hopeless(halves, now_ms, rules)
    return int(np.argmax(stops)) if stops.any() else halves.row_count


def plan_checks(
    halves: Halves,
    has_op: np.ndarray,
    is_ended: np.ndarray,
    is_superseded: np.ndarray,
    now_ms: int,
    rules: CheckRules,
) -> np.ndarray:
    """The Action for each half, int8. The masks: an op message names it; its transaction is ended; a later half replaces it."""
    immunities_ms = np.where(halves.immunities_s == MALFORMED, rules.timeout_ms, halves.immunities_s * 1_000)
    is_immune = (halves.immunities_s != ABSENT) & (now_ms - halves.born_times_ms < immunities_ms)
    decisions = {
        Action.END: is_ended,
        Action.DISCARD: _is_hopeless(halves, now_ms, rules),
        Action.PUT_BACK_UNCHECKED: is_immune,
    }
    actions = np.select(list(decisions.values()), list(decisions), Action.ASK).astype(np.int8)
    actions[has_op | (is_superseded & ~is_ended)] = Action.SKIP
    return actions


def superseded(halves: Halves) -> np.ndarray:
    """Which halves have a later one of the same transaction: a crash between putting back and moving on leaves two."""
    codes = transaction_codes(halves)
    last = np.full(int(codes.max(initial=-1)) + 1, -1, np.int64)
    np.maximum.at(last, codes[codes >= 0], halves.queue_offsets[codes >= 0])
    result = np.zeros(halves.row_count, bool)
    result[codes >= 0] = halves.queue_offsets[codes >= 0] < last[codes[codes >= 0]]
    return result


def next_count(check_times: np.ndarray) -> np.ndarray:
    """The count plus this check; one that is no number counts as −1. Java: needDiscard."""
    return np.where(check_times == ABSENT, 1, check_times + 1)


def _is_hopeless(halves: Halves, now_ms: int, rules: CheckRules) -> np.ndarray:
    """Checked too often, or older than the log's files live. Java: needDiscard, needSkip."""
    checked_too_often = (halves.check_times >= rules.max_checks) & (halves.check_times != ABSENT)
    return checked_too_often | (now_ms - halves.born_times_ms > rules.file_reserved_ms)
