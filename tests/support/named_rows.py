"""Rows of a test that share a topic and a producer group, but for those that name their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from storage.rules.row_rules import MessageRules

Row = dict[str, Any]


def each_named(rows: Sequence[Row], rules: MessageRules) -> tuple[list[Row], MessageRules]:
    """What the rules say of all rows is said row by row, where a row says something else: else it would come before the row."""
    named = [dict(row) for row in rows]
    if rules.topic is not None and any("topic" in row for row in named):
        named = [_filled(row, "topic", rules.topic) for row in named]
        rules = replace(rules, topic=None)
    transaction = rules.transaction
    if transaction is not None and transaction.producer_group and any("producer_group" in row for row in named):
        named = [_filled(row, "producer_group", transaction.producer_group) for row in named]
        rules = replace(rules, transaction=replace(transaction, producer_group=None))
    return named, rules


def _filled(row: Row, column: str, text: str) -> Row:
    return {**row, column: text} if row.get(column) is None else row
