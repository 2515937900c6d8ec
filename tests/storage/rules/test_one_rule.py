"""Each rule of the put path stands in one function, which everybody calls who judges a message: request, put, rows, commit, job.

`RULES` is the list. It is held against the source: a rule has one definition, and exactly the listed modules call it. What
stood twice once must not come back under its name.
"""

from __future__ import annotations

import ast
from functools import cache
from typing import NamedTuple

import pytest

from tests.test_layering import SOURCES


class Rule(NamedTuple):
    """One rule."""

    what: str
    module: str
    function: str
    callers: str
    """Modules, apart by blanks."""


REQUEST, SEND, SEND_BACK, END = (
    f"spark_mq.broker.{name}" for name in ("put_plan", "send", "send_back", "end_transaction")
)
DELAYS, HALVES, INNER, RETRIES, TOPICS = (
    f"storage.rules.{name}" for name in ("delays", "half_messages", "inner_messages", "retries", "topics")
)
PRIORITIES, GUARDS = "storage.rules.priorities", "storage.rules.put_guards"
CLIENT = "spark_mq.client.outgoing_messages"
COLUMNS, ROWS, ROW_RETRIES, ROW_RULES = (
    f"storage.rules.{name}" for name in ("row_columns", "message_rows", "retry_rows", "row_rules")
)
PUT, SETTINGS, HALF_ENDS, CHECK = (
    *("storage.put.put", "storage.put.settings", "storage.put.half_ends"),
    "storage.transaction.check",
)
FLAGS, COMMIT_RECORDS = "storage.format.record", "storage.format.record_block"

RULES = [
    # A message waits
    Rule("where a message waits, and which may not", DELAYS, "judge_delays", f"{DELAYS} {ROW_RETRIES}"),
    Rule("until when the timer keeps it", DELAYS, "timer_out_ms", DELAYS),
    Rule("flow control of the timer", DELAYS, "is_slot_full", "storage.put.settings"),
    Rule("flow control as the wheel says", "storage.put.settings", "full_slots", SETTINGS),
    # Which queue
    Rule("the queue of a request's priority", PRIORITIES, "by_priority", SEND),
    Rule("the queues of rows' priorities", PRIORITIES, "read_priorities", COLUMNS),
    Rule("which text is a priority", PRIORITIES, "parse_priority", PRIORITIES),
    # How large
    Rule("sizes of topic, properties, body, record", INNER, "excesses", f"{INNER} {COLUMNS} {ROW_RETRIES} {CLIENT}"),
    Rule("sizes of a request", INNER, "refuse_excess", REQUEST),
    Rule("sizes of a request's batch", INNER, "refuse_first_excess", REQUEST),
    Rule("sizes of what a broker itself puts", INNER, "refuse_any_excess", f"{INNER} spark_mq.broker.send"),
    Rule("a record that the timer can read", INNER, "timer_record_limit", f"{INNER} storage.delay.timer_records"),
    Rule("length of a topic's name", INNER, "topic_limit", f"{GUARDS} {ROW_RETRIES}"),
    # Transactions
    Rule("rejection of transactions", HALVES, "takes_transactions", f"{REQUEST} {SETTINGS}"),
    Rule("which messages become no halves", HALVES, "half_refusals", f"{HALVES} {COLUMNS} {CLIENT}"),
    Rule("what a half says", HALVES, "half_properties", f"{HALVES} {ROWS}"),
    Rule("what a client says of a half", HALVES, "client_properties", f"{HALVES} {CLIENT}"),
    Rule("flags of what is committed", FLAGS, "committed_flags", f"{HALVES} {ROWS} {COMMIT_RECORDS}"),
    Rule("what a commit makes visible", HALVES, "committed_messages", f"{END} {CHECK}"),
    Rule("where a half belongs", HALVES, "real_queues", f"{HALVES} storage.transaction.half_queue"),
    # Retries and dead letters
    Rule("retry or dead letter, and its level", RETRIES, "sent_back_to", f"{SEND_BACK} {ROW_RETRIES}"),
    Rule("how often a message failed", RETRIES, "next_reconsume_times", f"{SEND_BACK} {ROW_RETRIES}"),
    Rule("what a message sent back says", RETRIES, "sent_back_says", f"{RETRIES} {ROW_RETRIES}"),
    Rule("whether a group takes messages back", RETRIES, "return_bar", f"{SEND_BACK} {ROW_RETRIES}"),
    Rule("how often a group tries again", RETRIES, "most_retries", f"{REQUEST} {ROW_RULES} {ROW_RETRIES}"),
    Rule("what is sent to a retry topic too often", RETRIES, "is_sent_too_often", f"{REQUEST} {ROW_RETRIES}"),
    # Guards
    Rule("state of the store, body, topic", GUARDS, "check_before_put", REQUEST),
    Rule("inner batches", GUARDS, "check_inner_batch", REQUEST),
    Rule("batch consume queues", TOPICS, "has_batch_queues", f"{GUARDS} {TOPICS}"),
    # Topics
    Rule("start gate", TOPICS, "check_start", f"{SEND} {SETTINGS}"),
    Rule("which topic takes a message", TOPICS, "check_topic", f"{SEND} {TOPICS}"),
    # What a record says to queues and index
    Rule("queue entries", "storage.log.dispatch", "entries_by_queue", "storage.log.dispatch storage.dispatch.writer"),
    Rule(
        "when a delayed message is due",
        "storage.format.delay",
        "due_codes",
        f"storage.format.delay storage.log.dispatch {DELAYS}",
    ),
    Rule("keys in the index", "storage.format.keys", "message_keys", f"storage.log.dispatch {ROWS}"),
    Rule("keys of a few messages", "storage.format.keys", "few_message_keys", "storage.rules.inner_messages"),
]

RETIRED = (
    *("route_delayed_rows", "half_messages", "committed_message", "check_sizes", "record_size_bytes"),
    *("_index_keys", "run_dispatch", "_timer_record_size", "_refusal_of_count"),
)
"""Functions that judged, or made, the same as another one."""


class Used(NamedTuple):
    """What a module says of functions."""

    defined: tuple[str, ...]
    """In classes too."""
    imported: frozenset[tuple[str, str]]
    """Module and name."""
    called: frozenset[str]
    """By their names alone."""


@cache
def used_in(module: str) -> Used:
    nodes = list(ast.walk(ast.parse(SOURCES[module].read_text(encoding="utf-8"))))
    imports = ((node.module, alias.name) for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names)
    functions = (node.func for node in nodes if isinstance(node, ast.Call))
    return Used(
        tuple(node.name for node in nodes if isinstance(node, ast.FunctionDef)),
        frozenset((source, name) for source, name in imports if source is not None),
        frozenset(function.id for function in functions if isinstance(function, ast.Name)),
    )


def definitions(name: str) -> list[str]:
    """The modules that define a function of that name."""
    return [module for module in SOURCES for defined in used_in(module).defined if defined == name]


def calls(module: str, rule: Rule) -> bool:
    """Whether a module calls the rule's function under its name, which it defines or imports from where the rule stands."""
    used = used_in(module)
    is_its = module == rule.module or (rule.module, rule.function) in used.imported
    return is_its and rule.function in used.called


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.function)
def test_a_rule_has_one_function_and_these_callers(rule: Rule) -> None:
    assert definitions(rule.function) == [rule.module], rule.what
    assert {module for module in SOURCES if calls(module, rule)} == set(rule.callers.split()), rule.what


@pytest.mark.parametrize("name", RETIRED)
def test_what_stood_twice_does_not_come_back(name: str) -> None:
    assert definitions(name) == []


def test_a_caller_is_told_from_who_only_imports_or_has_another_function_of_that_name() -> None:
    rule = Rule("", DELAYS, "judge_delays", "")
    assert calls(ROW_RETRIES, rule)
    assert not calls(SEND, rule)
    assert not calls(ROW_RETRIES, rule._replace(module=INNER))
