"""What the Tab key offers after a command: its options, from a list, so that the command's module is not loaded.

`options.json` has the options of each command and job. `python -m tests.support.option_list` writes it, and a test compares it with the
commands.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.resources import files
from typing import Any, NamedTuple

from typer.core import TyperCommand, TyperGroup

OPTIONS_FILE = "options.json"


class CompletedOption(NamedTuple):
    """An option as it is completed."""

    names: Sequence[str]
    help: str
    repeats: bool
    """Whether it may be given more than once."""
    values: Sequence[str] | None
    """Those that are valid; None where the list does not know."""


class CompletedCommand(TyperGroup):
    """A command while a shell completes it. Typer offers the names of a group; here they are names of options, or values of one."""

    def __init__(self, name: str, options: Sequence[CompletedOption]) -> None:
        super().__init__(name=name)
        self._options = options
        self._given: Sequence[str] = ()

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parses nothing: a value may be incomplete, or wrong."""
        self._given = [arg.partition("=")[0] if arg.startswith("-") else arg for arg in args]
        return []

    def get_params(self, ctx: Any) -> list[Any]:
        """None: only what `shell_complete` offers."""
        return []

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Values of the option that stands before, else options that may still be given."""
        offered = self._offered(incomplete)
        self.commands = {name: TyperCommand(name) for name in offered}
        found = super().shell_complete(ctx, incomplete)
        for item in found:
            item.help = offered[item.value]
        return found

    def _offered(self, incomplete: str) -> dict[str, str | None]:
        last = self._given[-1] if self._given else ""
        for option in self._options:
            if last in option.names and option.values is not None:
                return dict.fromkeys(option.values)
        if not incomplete.startswith("-"):
            return {}
        left = [option for option in self._options if option.repeats or not {*option.names} & {*self._given}]
        return {name: option.help for option in left for name in option.names}


def completed_command(name: str) -> CompletedCommand:
    """A command by its name, or a job: `job NAME`."""
    listed = json.loads(files("spark_mq.cli").joinpath(OPTIONS_FILE).read_text("utf-8"))
    return CompletedCommand(name, [CompletedOption(*fields) for fields in listed[name]])
