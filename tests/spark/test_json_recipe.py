"""The function of the JSON recipe, as the page shows it, on bodies whose types change: no value is lost without a word."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.support.pages import examples

pytestmark = [pytest.mark.spark, pytest.mark.slow]

WHOLE = [
    '{"order": 1, "customer": 2, "amount": 3.5}',
    '{"order": 2, "customer": 2, "amount": 3}',
    '{"order": 3, "customer": 2}',
    '{"order": 4, "customer": 2, "amount": null}',
]
UNPARSED = [
    '{"order": 1, "customer": 2, "amount": "3.5"}',
    '{"order": "1", "customer": 2, "amount": 3.5}',
    '{"order": {"id": 1}, "customer": 2, "amount": 3.5}',
    '{"order": 1, "customer": 99999999999, "amount": 3.5}',
    '{"order": 1, "customer": 2.5, "amount": 3.5}',
    '{"order": 1, "customer": true, "amount": 3.5}',
    '[{"order": 1, "customer": 2, "amount": 3.5}]',
    '{"order": 1, "customer": 2',
    "no json",
    "null",
    "7",
    "",
]
GROWN = ['{"order": 1, "customer": 2, "amount": 3.5, "coupon": "SPRING"}', '{"Order": 1, "customer": 2, "amount": 3.5}']


def recipe() -> Callable[[DataFrame], DataFrame]:
    """`parsed` of docs/recipes.md with its FIELDS."""
    (code,) = (each.code for each in examples("docs/recipes.md") if "def parsed(" in each.code)
    wanted = [node for node in ast.parse(code).body if _name(node) in ("FIELDS", "parsed")]
    names: dict[str, Any] = {"F": F}
    exec(compile(ast.Module(wanted, []), "docs/recipes.md", "exec"), names)
    found: Callable[[DataFrame], DataFrame] = names["parsed"]
    return found


def _name(node: ast.stmt) -> str | None:
    """What the statement defines."""
    if isinstance(node, ast.FunctionDef):
        return node.name
    return ast.unparse(node.targets[0]) if isinstance(node, ast.Assign) else None


def test_what_does_not_parse_is_named_counted_and_kept(spark: SparkSession) -> None:
    bodies = [*WHOLE, *UNPARSED, *GROWN]
    sent = spark.createDataFrame([("k", text.encode()) for text in bodies], "keys STRING, body BINARY")
    rows = recipe()(sent.withColumn("store_timestamp", F.current_timestamp())).collect()
    assert sorted(bytes(row.body).decode() for row in rows) == sorted(bodies)
    faults = {bytes(row.body).decode(): row.fault for row in rows}
    assert {text for text, fault in faults.items() if fault is None} == set(WHOLE)
    assert {text for text, fault in faults.items() if fault == "not of the schema"} == set(UNPARSED)
    assert [faults[text] for text in GROWN] == ["also has coupon", "also has Order"]
    assert sum(row.fault is not None for row in rows) == len(UNPARSED) + len(GROWN)
