"""JSON has names in one spelling, that of the Spark source's columns, whichever command prints it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from spark_mq.cli import app
from tests.support.fixture_stores import Fixture

SNAKE = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
NAMED_BY_OTHERS = {"properties", "topics", "settings", "put", "by_level"}
"""Objects whose names are those of properties, topics, settings of broker.conf, and delay levels."""

CALLS = [
    ["topics"],
    ["lag", "--all"],
    ["lag", "--all", "--queues"],
    ["offset-by-time", "--topic", "TopicA", "--time", "0"],
    ["sink-status"],
    ["query", "--topic", "TopicA", "--key", "key14"],
    ["verify"],
    ["recover"],
    ["close"],
    ["quarantine"],
    ["alter-topic", "TopicA", "--perm", "6"],
    ["create-topic", "New"],
    ["delete-topic", "TopicA", "--yes"],
    *(["job", name] for name in ("verify_store", "delete_expired_files", "deliver_delayed", "rebuild_queues")),
    ["job", "redrive_transactions"],
    ["topics", "--topic", "None"],
]


def names(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for each in value:
            yield from names(each)
    elif isinstance(value, dict):
        for name, each in value.items():
            yield name
            if name not in NAMED_BY_OTHERS:
                yield from names(each)


@pytest.mark.parametrize("words", CALLS, ids=" ".join)
def test_every_name_is_in_snake_case(fixture_store: Callable[[str], Fixture], words: list[str]) -> None:
    fixture = fixture_store("clean")
    number = 2 if words[0] == "job" else 1
    line = [*words[:number], str(fixture.root), *words[number:], "--json"]
    result = CliRunner().invoke(app, line)
    found = [name for text in result.stdout.splitlines() for name in names(json.loads(text))]
    assert found or result.stdout == "[]\n", result.output
    assert [name for name in found if SNAKE.fullmatch(name) is None] == []
