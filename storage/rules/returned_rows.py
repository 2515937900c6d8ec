"""Rows that consumers of a group failed on, to be sent back: a task's rows, batch after batch. Pure.

    rows ─prepare─▶ OutgoingMessages by way of the schedule topic to %RETRY%GROUP, or to %DLQ%GROUP, and the rows that cannot go back

What becomes of a row is said by `retry_rows.py`. Java: AbstractSendMessageProcessor.consumerSendMsgBack.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from storage.format.properties import with_crc_room
from storage.format.record_block import OutgoingMessages
from storage.rules.inner_messages import InnerMessages, outgoing_messages, sizes_of_messages
from storage.rules.message_rows import RejectedRow
from storage.rules.retries import (
    ReturnBar,
    dead_letter_topic_config,
    retry_queue_count,
    retry_topic_config,
    return_bar,
)
from storage.rules.retry_rows import send_back_rows
from storage.rules.row_rules import DEFAULT_DELAYS_MS
from storage.rules.row_values import Rejections
from storage.rules.sizes import Limits, excesses
from storage.tables.subscription_groups import SubscriptionGroupConfig
from storage.tables.topics import PERM_READ, PERM_WRITE, TopicConfig


@dataclass(frozen=True, slots=True)
class ReturnRules:
    """What tasks must know of group and store to send rows back; a value that is sent to them."""

    group: SubscriptionGroupConfig
    host: bytes
    """Of the store."""
    topics: Mapping[str, TopicConfig] = field(default_factory=dict, hash=False)
    max_reconsume_times: int | None = None
    """How often the consumer tries again; None = as the group's entry says."""
    delays_ms: tuple[int, ...] = DEFAULT_DELAYS_MS
    limits: Limits = Limits()  # noqa: RUF009 (a frozen value)
    appends_crc: bool = False
    broker_permission: int = PERM_READ | PERM_WRITE
    """Java: brokerPermission."""

    @property
    def spread_group(self) -> SubscriptionGroupConfig:
        """The group, with as many retry queues as its topic has of them."""
        count = retry_queue_count(self.group, retry_topic_config(self.group, self.topics))
        return replace(self.group, retry_queue_count=count)

    def refusal(self) -> str | None:
        """Why nothing can be sent back for this group; None if it can."""
        return return_refusal(self.group, self.topics, self.broker_permission)


def return_refusal(
    group: SubscriptionGroupConfig,
    topics: Mapping[str, TopicConfig] | None = None,
    broker_permission: int = PERM_READ | PERM_WRITE,
) -> str | None:
    """Why nothing can be sent back for a group that has this entry; None if it can.

    Departure: of a group without retry queues a broker says that it took the message, and forgets it.
    """
    target = retry_topic_config(group, topics or {})
    match return_bar(group, target, broker_permission):
        case ReturnBar.BROKER_FORBIDS:
            return f"the broker takes no messages (brokerPermission {broker_permission})"
        case ReturnBar.NO_RETRIES:
            return f"group {group.group} takes no retries (retryQueueNums {group.retry_queue_count}): it would be lost"
        case ReturnBar.TOPIC_FORBIDS:
            return f"nobody may write to topic {target.topic!r} (perm {target.perm})"
    return None


class Returned(NamedTuple):
    """A batch of rows, judged."""

    parts: tuple[OutgoingMessages, ...]
    """One for each kind of born host, stretch by stretch."""
    rejected: tuple[RejectedRow, ...]
    rejected_indices: np.ndarray
    topics: Mapping[str, int]
    """Topics that must be there, and with how many queues they are made."""


class ReturnedRows:
    """Sends one task's rows back. Retry queues take turns by the rows' numbers, so that a task that is run again does the same."""

    def __init__(self, rules: ReturnRules) -> None:
        self._rules = rules
        self._row_count = 0

    def prepare(self, batch: pa.RecordBatch, now_ms: int) -> Returned:
        """The messages of a batch that has `retry_rows.NEEDED_COLUMNS` and any of `retry_rows.COLUMNS`."""
        rules, first_row = self._rules, self._row_count
        self._row_count += len(batch)
        rejections = Rejections()
        if (refusal := rules.refusal()) is not None:
            rejections.add(np.arange(len(batch)), "topic", refusal)
        sent = send_back_rows(
            batch,
            rules.spread_group,
            rejections,
            delays_ms=rules.delays_ms,
            now_ms=now_ms,
            max_reconsume_times=rules.max_reconsume_times,
            first_row=first_row,
            appends_crc=rules.appends_crc,
        )
        messages, dead = sent.messages, sent.dead
        if (too_large := self._too_large(messages, sent.rows, rejections)).any():
            messages, dead = messages.take(~too_large), dead[~too_large]
        parts = outgoing_messages(messages, rules.host, rules.delays_ms, rules.limits, appends_crc=rules.appends_crc)
        indices = np.array(sorted(rejections), np.int64)
        rejected = tuple(RejectedRow(first_row + row, *rejections[row]) for row in indices.tolist())
        return Returned(tuple(parts), rejected, indices, self._topics(dead))

    def _topics(self, dead: np.ndarray) -> dict[str, int]:
        if not len(dead):
            return {}
        wanted = [retry_topic_config(self._rules.group, self._rules.topics)]
        if dead.any():
            wanted.append(dead_letter_topic_config(self._rules.group.group, self._rules.topics))
        return {topic.topic: topic.write_queue_count for topic in wanted}

    def _too_large(self, messages: InnerMessages, rows: np.ndarray, rejections: Rejections) -> np.ndarray:
        """Which of the messages are too large to be stored; a body that was compressed may be, as the source shows it."""
        with_room = messages
        if self._rules.appends_crc:
            with_room = messages._replace(properties=with_crc_room(messages.properties))
        too_large = np.zeros(len(rows), bool)
        for excess in excesses(sizes_of_messages(with_room, len(self._rules.host)), self._rules.limits):
            over = np.flatnonzero(excess.over)
            reasons = {int(rows[message]): excess.reason(message) for message in over.tolist()}
            column = "properties" if excess.what == "properties" else "body"
            rejections.add(rows[over], column, reasons.__getitem__)
            too_large[over] = True
        return too_large
