"""Imports point one way, room by room; the format does no I/O, one room touches the disk, nothing unfinished stays behind.

`ROOMS` is the architecture: each room, from the ground up, and the rooms that its modules may import. ARCHITECTURE.md shows the same
table. Imports are read off the source by `ast`, so those inside functions count too.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeGuard

import pytest

from tests.support.places import PROJECT

OURS = ("storage", "spark_mq", "jobs", "pyspark_spark_mq", "pytest_spark_mq")

ROOMS = {
    "words": "",
    "format": "words",
    "files": "words format",
    "settings": "words format",
    "log": "words format files settings",
    "queues": "words format files log",
    "index": "words format files log",
    "tables": "words format files settings log queues",
    "dispatch": "words format files log queues index tables",
    "rules": "words format settings log tables",
    "put": "words format files settings log queues index tables dispatch rules",
    "batch": "words format files log queues tables dispatch rules put",
    "recovery": "words format files settings log queues index tables dispatch rules put batch",
    "facade": "words format files settings log queues index tables dispatch rules put batch recovery",
    "service": "words format settings log queues index tables dispatch rules put facade",
    "ha": "words format files settings log tables rules put recovery facade service",
    "delay": "words format files log queues tables rules facade",
    "transaction": "words format settings queues tables rules facade",
    "hand_over": "words format files tables rules batch facade transaction",
    "remoting": "words format",
    "dledger": "words format files",
    "prometheus": "words",
    "access": "words format rules remoting",
    "client": "words format rules remoting",
    "remoting_server": "words files settings rules remoting dledger access client",
    "namesrv": "words format files tables rules remoting remoting_server",
    "controller": "words format files rules remoting dledger remoting_server",
    "conditions": "words files client",
    "broker": "words format files settings log tables rules facade service transaction remoting prometheus access client",
    "broker_server": "words format files settings log tables rules put batch facade service ha delay transaction hand_over remoting "
    "dledger prometheus access client remoting_server broker",
    "source": "words format files settings log queues tables rules facade hand_over remoting prometheus client conditions",
    "sink": "words format files settings log tables rules put batch facade transaction hand_over remoting "
    "client conditions broker source",
    "archive": "words files conditions source",
    "lag": "words files tables rules facade remoting client conditions source",
    "spark_mq": "words format files settings queues rules put facade remoting client conditions source sink",
    "jobs": "words format files settings log tables dispatch rules recovery facade delay transaction conditions source sink archive "
    "spark_mq",
    "cli": "words format files settings tables dispatch rules put batch recovery facade service ha hand_over remoting "
    "client remoting_server namesrv controller conditions broker_server source lag prometheus spark_mq jobs",
    "console": "words format files queues tables rules batch facade delay transaction remoting client conditions source lag "
    "spark_mq jobs cli",
    "testing": "words format rules client remoting remoting_server namesrv broker_server",
}
"""From the ground up: a room's row names only rooms above its own line, so there is no circle."""

HALLS = {
    "storage": {
        "words": "compiler epoch_times errors failpoints names pending",
        "facade": "",
    },
    "spark_mq": {
        "conditions": "conditions options spark_api spark_versions",
        "spark_mq": "",
    },
}
"""Which modules beside the folders of a package belong to which room; the one without names has the rest."""

FORMAT_MAY_IMPORT = {"numpy", "pyarrow", "isal", "lz4", "zstandard"}
KERNELS = "storage.format.kernels"
KERNELS_MAY_IMPORT = {"numba", "llvmlite"}
# Disk, network, processes, and what would make a pure function answer differently twice.
IO_MODULES = {
    *("os", "pathlib", "io", "mmap", "fcntl", "shutil", "tempfile", "glob", "posixpath"),
    *("socket", "ssl", "select", "selectors", "asyncio", "urllib", "http", "subprocess", "multiprocessing"),
    *("threading", "time", "random", "secrets"),
}
ARROW_IO = {"pyarrow.fs", "pyarrow.dataset", "pyarrow.parquet", "pyarrow.feather", "pyarrow.csv"}

DISK_MODULES = {"io", "mmap", "fcntl", "shutil", "tempfile", "glob", "pathlib", "fsspec"}

VAGUE_NAMES = {"utils", "util", "common", "helpers", "helper", "misc"}
UNFINISHED = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK)\b")


def module_name(path: Path) -> str:
    parts = path.relative_to(PROJECT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def python_files(*places: str) -> list[Path]:
    found = [path for place in places for path in sorted((PROJECT / place).rglob("*.py"))]
    return found + [PROJECT / f"{place}.py" for place in places if (PROJECT / f"{place}.py").is_file()]


SOURCES = {module_name(path): path for path in python_files(*OURS)}
FORMAT = [name for name in SOURCES if name.startswith("storage.format")]


def is_ours(name: str) -> bool:
    return name.partition(".")[0] in OURS


def imported_names(module: str, source: str, *, is_package: bool = False) -> Iterator[tuple[int, str]]:
    """Line and name of every module an import statement names; `from a import b` gives a.b if that is one of ours, else a."""
    for node in ast.walk(tree_of(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = module.split(".") if is_package else module.split(".")[:-1]
                above = package[: len(package) - (node.level - 1)]
                base = ".".join([*above, base] if base else above)
            submodules = [f"{base}.{alias.name}" for alias in node.names]
            known = [name for name in submodules if name in SOURCES]
            yield from ((node.lineno, name) for name in known)
            if len(known) < len(submodules):
                yield node.lineno, base


@cache
def located_imports_of(module: str) -> list[tuple[int, str]]:
    path = SOURCES[module]
    return list(imported_names(module, path.read_text(encoding="utf-8"), is_package=path.name == "__init__.py"))


def imports_of(module: str) -> set[str]:
    return {name for _, name in located_imports_of(module)}


def room_of(module: str) -> str:
    """The room in which a module lives: its folder, or its part of the hall."""
    package, _, rest = module.partition(".")
    folder, _, inside = rest.partition(".")
    is_folder = bool(inside) or SOURCES.get(module, Path()).name == "__init__.py"
    if package in HALLS and folder in ROOMS and is_folder:
        return folder
    if package in HALLS:
        named = [room for room, modules in HALLS[package].items() if folder in modules.split()]
        return named[0] if named else next(room for room, modules in HALLS[package].items() if not modules)
    return {"jobs": "jobs", "pytest_spark_mq": "testing"}.get(package, "spark_mq")


class Import(NamedTuple):
    """An import that the table does not allow."""

    path: str
    line: int
    rule: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}"


def imports_against_the_table(module: str, path: str, imported: Iterator[tuple[int, str]]) -> list[str]:
    """A line for each import of a room that the module's room may not import: file, line and rule."""
    room = room_of(module)
    against = []
    for line, name in imported:
        other = room_of(name) if is_ours(name) else room
        if other != room and other not in ROOMS[room].split():
            rule = f"room {room} may not import room {other} ({name}); it may import: {ROOMS[room] or 'nothing'}"
            against.append(str(Import(path, line, rule)))
    return against


@cache
def tree_of(source: str) -> ast.Module:
    return ast.parse(source)


def calls_of(source: str, names: set[str]) -> list[int]:
    """Lines that call one of these built-in functions."""
    if not any(name in source for name in names):
        return []
    calls = (node for node in ast.walk(tree_of(source)) if isinstance(node, ast.Call))
    return [call.lineno for call in calls if isinstance(call.func, ast.Name) and call.func.id in names]


def is_attribute_of(node: ast.AST, name: str) -> TypeGuard[ast.Attribute]:
    """Whether it is `name.something`."""
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == name


def test_a_room_imports_only_the_rooms_that_the_table_allows() -> None:
    against = [
        found
        for module, path in SOURCES.items()
        for found in imports_against_the_table(module, str(path.relative_to(PROJECT)), iter(located_imports_of(module)))
    ]
    assert against == []
    assert len(SOURCES) > 250


def test_the_table_has_every_room_and_goes_one_way() -> None:
    assert {room_of(module) for module in SOURCES} == set(ROOMS)
    above: set[str] = set()
    for room, allowed in ROOMS.items():
        assert set(allowed.split()) <= above, f"room {room} may import only rooms above its line"
        above.add(room)


def test_the_table_allows_nothing_that_nobody_imports() -> None:
    used = {(room_of(module), room_of(name)) for module in SOURCES for name in imports_of(module) if is_ours(name)}
    unused = {(room, other) for room, allowed in ROOMS.items() for other in allowed.split()} - used
    assert unused == set()


def test_the_page_shows_the_table() -> None:
    page = (PROJECT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z_]+)` \| .* \| ([a-z_ ]*) ?\|$", page, re.MULTILINE)
    assert {room: allowed.split() for room, allowed in rows} == {
        room: allowed.split() for room, allowed in ROOMS.items()
    }
    assert [room for room, _ in rows] == list(ROOMS)


def test_each_room_says_what_lives_there_and_where_to_begin() -> None:
    for module, path in SOURCES.items():
        if path.name == "__init__.py" and room_of(module) in ROOMS and module not in OURS and module != "spark_mq.cli":
            said = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
            begin = re.search(r"Begin with `([\w.]+)`|`(\w+\.py)`", said)
            assert begin is not None, module
            assert (path.parent / (begin[1] or begin[2])).is_file(), module


@pytest.mark.parametrize(
    ("module", "imported", "is_allowed"),
    [
        ("storage.format.record", "storage.log.commit_log", False),
        ("storage.format.record", "storage.errors", True),
        ("storage.files.file_system", "storage.format.record", True),
        ("storage.files.file_system", "storage.settings.load", False),
        ("storage.errors", "storage.names", True),
        ("storage.errors", "storage.format.record", False),
        ("storage.log.commit_log", "storage.store", False),
        ("storage.log.commit_log", "storage", False),
        ("storage.store", "spark_mq.broker.send", False),
        ("storage", "storage.store", True),
        ("storage.batch.commit", "storage.put.store_writer", True),
        ("storage.put.store_writer", "storage.batch.intent", False),
        ("storage.rules.topics", "spark_mq.broker.send", False),
        ("spark_mq.broker.send", "spark_mq.source.options", False),
        ("spark_mq.source.options", "spark_mq.sink.options", False),
        ("spark_mq.sink.options", "jobs.verify_store", False),
        ("jobs.verify_store", "spark_mq.cli.app", False),
        ("spark_mq.cli.app", "jobs.verify_store", True),
        ("storage.format.record", "numpy", True),
    ],
)
def test_the_rule_itself_tells_up_from_down(module: str, imported: str, is_allowed: bool) -> None:
    assert (imports_against_the_table(module, "a.py", iter([(1, imported)])) == []) is is_allowed


def test_an_import_against_the_table_is_named_with_file_line_and_rule() -> None:
    source = "from __future__ import annotations\n\nfrom storage.log.commit_log import CommitLog\n"
    found = imports_against_the_table(
        "storage.format.record", "storage/format/record.py", imported_names("storage.format.record", source)
    )
    rule = "room format may not import room log (storage.log.commit_log); it may import: words"
    assert found == [f"storage/format/record.py:3: {rule}"]


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
    assert {name for _, name in imported_names(module, source, is_package=is_package)} == expected


def test_the_engine_knows_no_spark() -> None:
    engine = [name for name in SOURCES if name.partition(".")[0] == "storage"]
    assert len(engine) > 100
    for module in engine:
        roots = {name.partition(".")[0] for name in imports_of(module)}
        assert roots.isdisjoint({"pyspark", "delta", "py4j", "spark_mq", "jobs"}), module


def test_the_format_is_pure() -> None:
    assert len(FORMAT) > 20
    for module in FORMAT:
        imported = imports_of(module)
        roots = {name.partition(".")[0] for name in imported if not is_ours(name)}
        may_import = FORMAT_MAY_IMPORT | (KERNELS_MAY_IMPORT if module.startswith(f"{KERNELS}.") else set())
        assert roots - may_import <= sys.stdlib_module_names, module
        assert roots.isdisjoint(IO_MODULES), module
        assert imported.isdisjoint(ARROW_IO), module
        assert calls_of(SOURCES[module].read_text(encoding="utf-8"), {"open", "print", "input"}) == [], module


def test_kernels_are_reached_by_one_door() -> None:
    """Who imports a module of kernels waits for Numba, or fails without it; `storage/compiler.py` decides whether that pays."""
    inside = {name for name in SOURCES if name.startswith(f"{KERNELS}.")}
    closed = {name for name in inside if imports_of(name) & (KERNELS_MAY_IMPORT | {f"{KERNELS}.ground"})}
    assert f"{KERNELS}.ground" in closed
    assert "storage.compiler" not in closed
    assert [name for name in SOURCES if name not in inside and imports_of(name) & closed] == []


def test_one_room_touches_the_disk() -> None:
    others = [name for name in SOURCES if name.startswith("storage.") and room_of(name) not in ("files", "words")]
    assert len(others) > 100
    for module in others:
        source = SOURCES[module].read_text(encoding="utf-8")
        roots = {name.partition(".")[0] for name in imports_of(module)}
        assert roots.isdisjoint(DISK_MODULES), module
        assert calls_of(source, {"open"}) == [], module
        if re.search(r"\bos\b", source):
            of_os = {node.attr for node in ast.walk(tree_of(source)) if is_attribute_of(node, "os")}
            assert of_os <= {"PathLike", "fspath", "getpid"}, module


def test_nothing_unfinished_stays_behind() -> None:
    paths = python_files(*OURS, "tests", "bench")
    assert len(paths) > 900
    for path in paths:
        source = path.read_text(encoding="utf-8")
        assert (unfinished_comments(source) if UNFINISHED.search(source) else []) == [], path
        assert calls_of(source, {"breakpoint"}) == [], path


def unfinished_comments(source: str) -> list[tuple[int, str]]:
    """Line and text of each comment that says so; a string may hold such a word."""
    comments = (
        token for token in tokenize.generate_tokens(io.StringIO(source).readline) if token.type == tokenize.COMMENT
    )
    return [(token.start[0], token.string) for token in comments if UNFINISHED.search(token.string)]


def test_an_unfinished_comment_is_seen_and_a_string_is_none() -> None:
    assert unfinished_comments('x = "TO' + 'DO"  # FIX' + "ME: later\n") == [(1, "# FIX" + "ME: later")]


USERS_NAME_THEM = {
    "storage.store.open_store",
    "storage.store.MessageStore.put",
    "spark_mq.sink.transactions.Transaction.send",
    "spark_mq.cli.topic_changes.alter_topic",
    *(
        f"spark_mq.cli.{name}"
        for name in ("cluster.consume", "lag.lag", "messages.dump", "messages.query", "produce.produce")
    ),
}
"""Functions whose parameters a user names, each for itself, in Python or on a command line."""
MOST_PARAMETERS = 8


def parameter_counts(tree: ast.AST, prefix: str) -> Iterator[tuple[str, int]]:
    """Each function below a node with its number of parameters; the object or class of a method is none."""
    for node in ast.iter_child_nodes(tree):
        name = f"{prefix}.{node.name}" if isinstance(node, ast.ClassDef | ast.FunctionDef) else prefix
        if isinstance(node, ast.FunctionDef):
            given = node.args
            names = [one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
            of_many = sum(one is not None for one in (given.vararg, given.kwarg))
            yield name, len(names) - (names[:1] in (["self"], ["cls"])) + of_many
        yield from parameter_counts(node, name)


def test_a_function_of_many_parameters_takes_a_value_instead_unless_users_name_them() -> None:
    counts = [
        found
        for module, path in SOURCES.items()
        for found in parameter_counts(tree_of(path.read_text(encoding="utf-8")), module)
    ]
    assert {name for name, count in counts if count > MOST_PARAMETERS} == USERS_NAME_THEM


def test_parameters_of_every_kind_are_counted() -> None:
    source = "class A:\n    def f(self, a, /, b, *c, d, **e):\n        def g(h): ...\n"
    assert dict(parameter_counts(ast.parse(source), "m")) == {"m.A.f": 5, "m.A.f.g": 1}


def test_modules_are_named_after_what_they_hold() -> None:
    assert [name for name in SOURCES if name.rpartition(".")[2] in VAGUE_NAMES] == []
