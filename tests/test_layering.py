"""Imports point one way, the format does no I/O, nothing unfinished stays behind.

    storage.format ◀ storage.files ◀ storage.<noun> ◀ storage.message_store
        ◀ spark_mq.broker ◀ spark_mq.<source, sink> ◀ jobs ◀ spark_mq.cli

The rules are read off the source by `ast`, so imports inside functions count too.
"""

from __future__ import annotations

import ast
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
OURS = ("storage", "spark_mq", "jobs", "pyspark_spark_mq")

# The longest matching prefix counts. A module imports from its own height or from below.
HEIGHTS = {
    "storage.errors": 0,
    "storage.put_status": 0,
    "storage.failpoints": 0,
    "storage.format": 0,
    "storage.files": 1,
    "storage.": 2,  # every noun
    "storage.message_store": 3,
    "storage.put_service": 3,
    "storage.delay": 3,  # services over an open store …
    "storage.transaction": 3,
    "storage.delay.routing": 2,  # … and the pure rules that a put needs, too
    "storage.transaction.half_messages": 2,
    "storage.transaction.op_messages": 2,
    "storage": 3,  # the package itself: its public names
    "spark_mq.remoting": 4,
    "spark_mq.broker": 4,
    "spark_mq": 5,
    "pyspark_spark_mq": 5,
    "jobs": 6,
    "spark_mq.cli": 7,
    "spark_mq.__main__": 7,
}

FORMAT_MAY_IMPORT = {"numpy", "pyarrow", "isal", "lz4", "zstandard"}
# Disk, network, processes, and what would make a pure function answer differently twice.
IO_MODULES = {
    *("os", "pathlib", "io", "mmap", "fcntl", "shutil", "tempfile", "glob", "posixpath"),
    *("socket", "ssl", "select", "selectors", "asyncio", "urllib", "http", "subprocess", "multiprocessing"),
    *("threading", "time", "random", "secrets"),
}
ARROW_IO = {"pyarrow.fs", "pyarrow.dataset", "pyarrow.parquet", "pyarrow.feather", "pyarrow.csv"}

VAGUE_NAMES = {"utils", "util", "common", "helpers", "helper", "misc"}
UNFINISHED = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK)\b")


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def python_files(*places: str) -> list[Path]:
    found = [path for place in places for path in sorted((ROOT / place).rglob("*.py"))]
    return found + [ROOT / f"{place}.py" for place in places if (ROOT / f"{place}.py").is_file()]


SOURCES = {module_name(path): path for path in python_files(*OURS)}
FORMAT = [name for name in SOURCES if name.startswith("storage.format")]


def is_ours(name: str) -> bool:
    return name.partition(".")[0] in OURS


def imported_names(module: str, source: str, *, is_package: bool = False) -> Iterator[str]:
    """Every module an import statement names; `from a import b` gives a.b if that is one of ours, else a."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = module.split(".") if is_package else module.split(".")[:-1]
                above = package[: len(package) - (node.level - 1)]
                base = ".".join([*above, base] if base else above)
            submodules = [f"{base}.{alias.name}" for alias in node.names]
            known = [name for name in submodules if name in SOURCES]
            yield from known
            if len(known) < len(submodules):
                yield base


def imports_of(module: str) -> set[str]:
    path = SOURCES[module]
    source = path.read_text(encoding="utf-8")
    return set(imported_names(module, source, is_package=path.name == "__init__.py"))


def height(module: str) -> int:
    def matches(prefix: str) -> bool:
        return module.startswith(prefix if prefix.endswith(".") else f"{prefix}.") or module == prefix

    return HEIGHTS[max(filter(matches, HEIGHTS), key=len)]


def imports_against_the_flow(module: str, imported: set[str]) -> list[str]:
    return sorted(name for name in imported if is_ours(name) and height(name) > height(module))


def calls_of(source: str, names: set[str]) -> list[int]:
    """Lines that call one of these built-in functions."""
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    return [call.lineno for call in calls if isinstance(call.func, ast.Name) and call.func.id in names]


@pytest.mark.parametrize("module", sorted(SOURCES))
def test_imports_only_from_its_own_height_or_below(module: str) -> None:
    assert imports_against_the_flow(module, imports_of(module)) == []


@pytest.mark.parametrize(
    ("module", "imported", "expected"),
    [
        ("storage.format.record", "storage.commit_log", ["storage.commit_log"]),
        ("storage.files.mapped_file", "storage.format.record", []),
        ("storage.files.mapped_file", "storage.config", ["storage.config"]),
        ("storage.commit_log", "storage.message_store", ["storage.message_store"]),
        ("storage.commit_log", "storage", ["storage"]),
        ("storage.message_store", "spark_mq.broker.put", ["spark_mq.broker.put"]),
        ("storage", "storage.message_store", []),
        ("spark_mq.broker.put", "spark_mq.remoting.codes", []),
        ("spark_mq.broker.put", "spark_mq.options", ["spark_mq.options"]),
        ("spark_mq.options", "spark_mq.broker.put", []),
        ("spark_mq.options", "jobs.verify_store", ["jobs.verify_store"]),
        ("jobs.verify_store", "spark_mq.cli", ["spark_mq.cli"]),
        ("spark_mq.cli", "jobs.verify_store", []),
    ],
)
def test_the_rule_itself_tells_up_from_down(module: str, imported: str, expected: list[str]) -> None:
    assert imports_against_the_flow(module, {imported}) == expected


@pytest.mark.parametrize(
    ("source", "is_package", "expected"),
    [
        ("import os.path", False, {"os.path"}),
        ("from . import b", False, {"spark_mq.remoting"}),
        ("from ..session import build_session", False, {"spark_mq.session"}),
        ("from .. import session", False, {"spark_mq.session"}),
        ("from ..session import x", True, {"spark_mq.session"}),
        ("from spark_mq import session, java", False, {"spark_mq.session", "spark_mq.java"}),
        ("from spark_mq import __version__", False, {"spark_mq"}),
        ("def f():\n    import pyspark", False, {"pyspark"}),
    ],
)
def test_every_form_of_import_is_seen(source: str, is_package: bool, expected: set[str]) -> None:
    module = "spark_mq.remoting" if is_package else "spark_mq.remoting.a"
    assert set(imported_names(module, source, is_package=is_package)) == expected


@pytest.mark.parametrize("module", [name for name in SOURCES if name.partition(".")[0] == "storage"])
def test_the_engine_knows_no_spark(module: str) -> None:
    roots = {name.partition(".")[0] for name in imports_of(module)}
    assert roots.isdisjoint({"pyspark", "delta", "py4j", "spark_mq", "jobs"})


@pytest.mark.parametrize("module", FORMAT)
def test_the_format_is_pure(module: str) -> None:
    imported = imports_of(module)
    roots = {name.partition(".")[0] for name in imported if not is_ours(name)}
    assert roots - FORMAT_MAY_IMPORT <= sys.stdlib_module_names
    assert roots.isdisjoint(IO_MODULES)
    assert imported.isdisjoint(ARROW_IO)
    assert calls_of(SOURCES[module].read_text(encoding="utf-8"), {"open", "print", "input"}) == []


@pytest.mark.parametrize("path", python_files(*OURS, "tests", "bench"), ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_unfinished_stays_behind(path: Path) -> None:
    with path.open("rb") as file:
        comments = [token for token in tokenize.tokenize(file.readline) if token.type == tokenize.COMMENT]
    assert [(token.start[0], token.string) for token in comments if UNFINISHED.search(token.string)] == []
    assert calls_of(path.read_text(encoding="utf-8"), {"breakpoint"}) == []


def test_modules_are_named_after_what_they_hold() -> None:
    assert [name for name in SOURCES if name.rpartition(".")[2] in VAGUE_NAMES] == []
