"""`spark-mq` as tests call it, in their own process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from spark_mq.cli import app


def run(*arguments: str | Path, exit_code: int = 0, lines: str | None = None, **environment: str) -> str:
    """What a command prints: to stdout where it succeeds, else everything. `lines` are its standard input."""
    result = CliRunner(env=environment).invoke(app, list(map(str, arguments)), input=lines)
    assert result.exit_code == exit_code, result.output
    return result.stdout if exit_code == 0 else result.output


def json_of(*arguments: str | Path, exit_code: int = 0) -> Any:
    """The object that a command prints with --json."""
    return json.loads(run(*arguments, "--json", exit_code=exit_code))


def lines_of(*arguments: str | Path) -> list[dict[str, Any]]:
    """The objects that a command prints, one a line."""
    return [json.loads(line) for line in run(*arguments).splitlines()]
