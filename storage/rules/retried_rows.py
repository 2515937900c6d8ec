"""Rows that clients send to a consumer group's retry topic themselves: their columns `retry_group` and `reconsume_times`. Pure.

    reconsume_times >  maximum   %DLQ%GROUP, DELAY −1
    else                         %RETRY%GROUP, by way of the schedule topic: DELAY delay_level, or 3 + reconsume_times

The row's topic becomes RETRY_TOPIC, and column `origin_msg_id` ORIGIN_MESSAGE_ID. This is an orderly consumer's way, and everybody's
who could not send a message back; messages that are given back as they were consumed go through `returns.py`.
Java: SendMessageProcessor.handleRetryAndDLQ, ConsumeMessageOrderlyService.sendMessageBack.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from storage.errors import NameIllegalError
from storage.format.arrays import SEPARATORS, as_texts, is_valid
from storage.names import validate_topic
from storage.rules.delayed_rows import decimal_texts
from storage.rules.retries import (
    FIRST_RETRY_LEVEL,
    MAX_RECONSUME_TIMES,
    RECONSUME_TIMES,
    SENT_DEAD_LETTER_LEVEL,
    is_sent_too_often,
)
from storage.rules.row_rules import MessageRules, TopicTarget
from storage.rules.row_values import Rejections, read_integers, read_texts

COLUMNS = ("retry_group", "reconsume_times", "origin_msg_id")
RETRY_TOPIC, ORIGIN_MESSAGE_ID = "RETRY_TOPIC", "ORIGIN_MESSAGE_ID"

Targets = tuple[tuple[TopicTarget, ...], np.ndarray]
"""Distinct topics, and which of them each row goes to."""


class Retries(NamedTuple):
    """What n rows have of it; columns of equal length."""

    rows: np.ndarray
    """bool: which rows name a group."""
    dead: np.ndarray
    """bool: which of these are dead letters."""
    reconsume_times: np.ndarray
    """int32; 0 in other rows."""
    properties: dict[str, pa.Array]
    """RETRY_TOPIC and ORIGIN_MESSAGE_ID as large_string, null in rows that have none."""

    def filter(self, keep: pa.Array) -> Retries:
        """Some of the rows, by a mask."""
        mask = keep.to_numpy(zero_copy_only=False)
        kept = {name: values.filter(keep) for name, values in self.properties.items()}
        return Retries(self.rows[mask], self.dead[mask], self.reconsume_times[mask], kept)

    def levels(self, asked: np.ndarray, is_asked: np.ndarray) -> np.ndarray:
        """The levels of all rows: those asked for, else what a client asks for; dead letters wait for nothing."""
        own = np.where(is_asked, asked, FIRST_RETRY_LEVEL + self.reconsume_times.astype(np.int64))
        return np.asarray(np.where(self.rows, np.where(self.dead, 0, own), asked), np.int64)

    def dead_letter_levels(self) -> pa.Array:
        """DELAY of dead letters, null in other rows."""
        return pa.array(np.full(len(self.dead), SENT_DEAD_LETTER_LEVEL), mask=~self.dead).cast(pa.large_string())

    def asked(self, max_reconsume_times: int | None) -> dict[str, pa.Array]:
        """What a client says besides, for its request's header: RECONSUME_TIME, and MAX_RECONSUME_TIMES where it knows one."""
        said = {RECONSUME_TIMES: decimal_texts(self.reconsume_times, self.rows)}
        if max_reconsume_times is not None:
            said[MAX_RECONSUME_TIMES] = decimal_texts(np.full(len(self.rows), max_reconsume_times), self.rows)
        return said


def read_retries(
    given: dict[str, pa.Array], origins: Targets, rules: MessageRules, rejections: Rejections
) -> tuple[Retries, Targets] | None:
    """What rows that name a group have of it, and where all rows go, when `origins` are the topics that they name.

    None where no row names a group.
    """
    texts = as_texts(given["retry_group"])
    rows = is_valid(texts)
    if not rows.any():
        return None
    count = len(rows)
    times = read_integers("reconsume_times", given.get("reconsume_times"), count, 0, np.int32, rejections)
    times = np.where(rows, times, 0).astype(np.int32)
    rejections.add(np.flatnonzero(times < 0), "reconsume_times", lambda row: f"{times[row]} is negative")
    encoded = texts.dictionary_encode()
    groups = [name.decode(errors="replace") for name in encoded.dictionary.cast(pa.large_binary()).to_pylist()]
    group_codes = encoded.indices.fill_null(0).to_numpy()
    maxima = np.array([rules.max_reconsume_times(group) for group in groups])[group_codes]
    dead = rows & is_sent_too_often(times, maxima)
    codes = np.where(rows, len(origins[0]) + 2 * group_codes + dead, origins[1]).astype(np.int32)
    targets = [*origins[0], *(rules.retry_target(group, is_dead) for group in groups for is_dead in (False, True))]
    for code in range(len(origins[0]), len(targets)):
        if (refusal := targets[code].refusal) is not None:
            rejections.add(np.flatnonzero(codes == code), "retry_group", refusal)
    for code, origin in enumerate(origins[0]):
        if (refusal := _refusal_of_origin(origin)) is not None:
            rejections.add(np.flatnonzero(rows & (origins[1] == code)), "topic", refusal)
    topics = pa.array([target.topic for target in origins[0]], pa.large_string())
    properties = {RETRY_TOPIC: topics.take(pa.array(origins[1], mask=~rows))}
    origin_ids = read_texts("origin_msg_id", given.get("origin_msg_id"), SEPARATORS, rejections)
    if origin_ids is not None:
        properties[ORIGIN_MESSAGE_ID] = _where(rows, origin_ids)
    return Retries(rows, dead, times, properties), (tuple(targets), codes)


def _refusal_of_origin(origin: TopicTarget) -> str | None:
    """Why it can be no topic that a message was consumed from. Its name alone is asked for: a broker looks for no entry of it."""
    try:
        validate_topic(origin.topic)
    except NameIllegalError as error:
        return origin.refusal or error.describe()
    return None


def _where(rows: np.ndarray, texts: pa.Array) -> pa.Array:
    return texts.take(pa.array(np.arange(len(texts)), mask=~rows))
