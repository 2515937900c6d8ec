"""docs/errors.md names every condition that the code can raise, and no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main

from spark_mq import conditions
from spark_mq.cli import app
from spark_mq.client import errors as client_errors
from spark_mq.sink.options import live_sink_option_rows, sink_option_rows
from spark_mq.source.options import option_rows
from storage import errors as storage_errors
from tests.support.places import PROJECT

ERRORS = (conditions, client_errors, storage_errors)
"""The modules whose classes have conditions."""

PAGE = (PROJECT / "docs" / "errors.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `(SPARK_MQ_\w+)` \| (.+?) \| (.+?) \|$", re.MULTILINE)

# Names of the same prefix that are no conditions: properties of messages, variables of the environment.
OTHER_NAMES = {
    "SPARK_MQ_CONSOLE_TOKEN",
    "SPARK_MQ_KERNELS",
    "SPARK_MQ_SINK",
    "SPARK_MQ_SECRET_KEY",
    "SPARK_MQ_SECURITY_TOKEN",
    "SPARK_MQ_TLS_KEY_PASSWORD",
    "SPARK_MQ_ROW",
    "SPARK_MQ_QUERY",
    "SPARK_MQ_BATCH",
    "SPARK_MQ_FAILPOINT",
    "SPARK_MQ_FAILPOINT_PAUSE",
}
JAVA_NAMES = {
    *("maxMessageSize", "fileReservedTime", "storePathCommitLog", "regionId", "traceOn", "brokerClusterName"),
    *("indexRocksDBEnable", "indexFileWriteEnable"),
}
"""Settings of a broker."""


def rows() -> dict[str, tuple[str, str]]:
    return {name: (meaning, cure) for name, meaning, cure in ROW.findall(PAGE)}


def condition_names() -> set[str]:
    """Every condition that an error of this package can have."""
    kinds = [kind for module in ERRORS for kind in vars(module).values() if isinstance(kind, type)]
    return {kind.condition for kind in kinds if hasattr(kind, "condition")}


def texts_of(path: Path) -> Iterator[str]:
    """The string constants of a module that are no docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    prose = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in prose:
            yield node.value


def test_every_condition_has_a_row_and_every_row_is_a_condition() -> None:
    listed = [name for name, _, _ in ROW.findall(PAGE)]
    assert listed == sorted(condition_names())


@pytest.mark.parametrize("name", sorted(condition_names()))
def test_a_row_is_whole_sentences_about_meaning_and_cure(name: str) -> None:
    for text in rows()[name]:
        assert text.strip().endswith("."), text
        assert len(text.split()) >= 3, text


def test_no_module_names_a_condition_that_is_not_registered() -> None:
    modules = [path for place in ("spark_mq", "storage", "jobs") for path in sorted((PROJECT / place).rglob("*.py"))]
    named = {
        name for path in modules for text in texts_of(path) for name in re.findall(r"\bSPARK_MQ_[A-Z_]*[A-Z]\b", text)
    }
    assert named - OTHER_NAMES == condition_names()


def test_commands_of_the_page_exist() -> None:
    named = set(re.findall(r"`spark-mq ([a-z-]+)", PAGE))
    assert named <= set(typer.main.get_command(app).commands)


def test_options_of_the_page_exist() -> None:
    named = set(re.findall(r"`([a-z]+[A-Z]\w+)(?:=\w+)?`", PAGE)) - JAVA_NAMES
    assert named <= {row.name for row in [*option_rows(), *sink_option_rows(), *live_sink_option_rows()]}
