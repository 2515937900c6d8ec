"""Expressions become the subscriptions that Java makes of them, and the tag's text decides, not its hash."""

from __future__ import annotations

from typing import Any

import pytest

from spark_mq.client.pulls import subscription
from spark_mq.remoting import write_body
from tests.client.java_consumer import java_says


@pytest.mark.parametrize(
    "line", java_says("subscription"), ids=lambda line: repr((line.get("expression"), line.get("expressionType")))
)
def test_an_expression_means_what_java_says(line: dict[str, Any]) -> None:
    expression, type_, answer = line.get("expression"), line.get("expressionType") or "TAG", line["answer"]
    if "refused" in answer:
        with pytest.raises(ValueError, match=r"SQL92 subscription|names no tag"):
            subscription("T", expression, 7, type_)
        return
    ours = subscription("T", expression, 7, type_).wire_form()
    assert sorted(ours.tags) == sorted(answer["tags"])
    assert list(ours.codes) == answer["codes"]
    assert (ours.sub_string, ours.expression_type) == (answer["subString"], answer["expressionType"])


def test_the_wire_form_is_javas_text() -> None:
    (line,) = java_says("subscriptionText")
    assert write_body(subscription("T", "TagA", 7).wire_form()).decode() == line["text"]


def test_a_tag_with_the_wanted_hash_and_another_text_is_left_out() -> None:
    wanted = subscription("T", "BB", 1)  # "Aa" and "BB" have one hash
    assert [tag for tag in ("Aa", "BB", None) if wanted.admits(tag)] == ["BB"]


@pytest.mark.parametrize("of", [("*", "TAG"), ("a = 1", "SQL92")])
def test_everything_and_sql_admit_messages_without_tags(of: tuple[str, Any]) -> None:
    wanted = subscription("T", of[0], 1, of[1])
    assert wanted.admits(None)
    assert wanted.admits("A")


def test_a_renewed_subscription_is_equal_but_for_its_version() -> None:
    first = subscription("T", "A", 1)
    assert first.renewed(2) == first
    assert first.renewed(2).version == 2


def test_a_renewed_subscription_has_a_later_version_also_where_the_clock_was_set_back() -> None:
    """Java: ConsumerGroupInfo.updateSubscription, which keeps the one it has unless the new version is greater."""
    assert subscription("T", "A", 1_000).renewed(500).version > 1_000
