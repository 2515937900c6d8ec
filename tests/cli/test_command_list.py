"""`spark-mq --help` lists every command in a line of its group, and a command loads no more than it needs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable

import pytest
from typer.testing import CliRunner

from spark_mq.cli import app
from spark_mq.cli.app import COMMANDS, LOOK, READ_AND_WRITE, REPAIR, RUN_SERVERS, UPKEEP, function_of
from tests.support.fixture_stores import Fixture
from tests.support.option_list import PLACE, option_list
from tests.support.places import PROJECT

SCREEN = 15
ENGINE = {"numpy", "pyarrow", "storage"}
SPARK = {"numba", "pandas", "py4j", "pyspark"}
CLIENT = {"asyncio", "spark_mq.client.admin", "spark_mq.remoting_server", "spark_mq.broker_server"}


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - {"job"}))
def test_a_command_is_listed_by_the_line_that_its_docstring_begins_with(name: str) -> None:
    document = function_of(name).__doc__
    assert document.partition("\n")[0] == COMMANDS[name].line


def test_help_lists_each_command_in_one_line_of_its_group_and_no_group_is_longer_than_a_screen() -> None:
    lines = CliRunner(env={"COLUMNS": "80", "TERM": "dumb"}).invoke(app, ["--help"]).output.splitlines()
    for name, listed in COMMANDS.items():
        assert [line for line in lines if line.strip("│ ").split()[:1] == [name] and listed.line in line], name
    groups = Counter(listed.panel for listed in COMMANDS.values())
    assert list(groups) == [LOOK, READ_AND_WRITE, RUN_SERVERS, UPKEEP, REPAIR]
    assert max(groups.values()) <= SCREEN


def loaded_by(*arguments: str, **environment: str) -> set[str]:
    """The modules that a process of the command has loaded at its end."""
    code = (
        "import json, sys\nfrom spark_mq.cli import main\ntry:\n    main()\nfinally:\n"
        "    print(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=PROJECT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return set(json.loads(ran.stderr.splitlines()[-1]))


def of(packages: set[str], loaded: set[str]) -> set[str]:
    return {name for name in packages if name in loaded}


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], []])
def test_what_needs_no_store_loads_neither_engine_nor_spark(arguments: list[str]) -> None:
    assert of(ENGINE | SPARK | CLIENT, loaded_by(*arguments)) == set()


def test_a_look_into_a_store_loads_neither_spark_nor_a_client(pristine_store: Callable[[str], Fixture]) -> None:
    loaded = loaded_by("topics", str(pristine_store("clean").root))
    assert of(SPARK | CLIENT, loaded) == set()
    assert "storage.store" in loaded


# The Tab key


def typed(line: str, shell: str = "bash") -> dict[str, str]:
    """What the shell's script of --show-completion sets; the last word is being typed."""
    place = str(line.count(" "))
    asked = {"COMP_WORDS": line, "COMP_CWORD": place, "_TYPER_COMPLETE_ARGS": line}
    return {"_SPARK_MQ_COMPLETE": f"complete_{shell}", **asked}


def test_the_list_of_options_is_that_of_the_commands() -> None:
    assert PLACE.read_text("utf-8") == option_list(), "python -m tests.support.option_list writes it"


@pytest.mark.parametrize("line", ["spark-mq to", "spark-mq topics --que", "spark-mq job deliver_delayed --every"])
def test_a_completion_loads_neither_engine_nor_spark(line: str) -> None:
    assert of(ENGINE | SPARK | CLIENT, loaded_by(**typed(line, "zsh"))) == set()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("spark-mq topics --que", ["--queues"]),
        ("spark-mq topics /store --queues --que", []),
        ("spark-mq topics -n h:9876 --name", ["--namespace"]),
        ("spark-mq topics --topic=T --topi", []),
        ("spark-mq topics ", []),
        ("spark-mq lag --sort ca", ["catch-up"]),
        ("spark-mq lag --sort ", ["lag", "age", "name", "in", "out", "catch-up"]),
        ("spark-mq job deliver-delayed /store --eve", ["--every"]),
        ("spark-mq job deli", ["deliver_delayed"]),
        ("spark-mq no-such-command --que", []),
    ],
)
def test_the_tab_key_offers_options_that_may_still_be_given_and_their_values(line: str, offered: list[str]) -> None:
    result = CliRunner(env=typed(line)).invoke(app, [], prog_name="spark-mq")
    assert result.stdout.split() == offered


def test_a_shell_that_shows_help_gets_that_of_the_option() -> None:
    result = CliRunner(env=typed("spark-mq topics --que", "fish") | {"_TYPER_COMPLETE_FISH_ACTION": "get-args"}).invoke(
        app, [], prog_name="spark-mq"
    )
    assert result.stdout == "--queues\tA line for each queue, with its offsets.\n"
