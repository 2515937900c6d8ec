"""The options of every command and job, as the Tab key offers them: `python -m tests.support.option_list` writes the file."""

from __future__ import annotations

import json
import sys
from typing import Any

from jobs import JOBS
from spark_mq.cli.app import COMMANDS, load_command, load_job
from spark_mq.cli.completion import OPTIONS_FILE, CompletedOption
from tests.support.places import PROJECT

PLACE = PROJECT / "spark_mq" / "cli" / OPTIONS_FILE


def options_of(command: Any) -> list[CompletedOption]:
    """Those that `--help` shows, `--help` with them."""
    shown = [
        param for param in command.get_params(command.make_context("it", [], resilient_parsing=True))
        if param.param_type_name == "option" and not param.hidden
    ]  # fmt: skip
    return [
        CompletedOption([*param.opts, *param.secondary_opts], param.help or "", param.multiple, _values(param))
        for param in shown
    ]


def _values(param: Any) -> list[str] | None:
    # A command that has no value yet completes the empty text with all of them.
    found = [str(item.value) for item in param.shell_complete(None, "")]
    return found if any(found) else None


def option_list() -> str:
    """The file's text: a line for each option."""
    commands = {name: load_command(name) for name in COMMANDS if name != "job"}
    commands |= {f"job {name}": load_job(name) for name in JOBS}
    blocks = [
        f"{json.dumps(name)}: [\n"
        + ",\n".join(f"  {json.dumps(option, ensure_ascii=False)}" for option in options)
        + "\n]"
        for name, options in sorted((name, options_of(command)) for name, command in commands.items())
    ]
    return "{\n" + ",\n".join(blocks) + "\n}\n"


if __name__ == "__main__":
    PLACE.write_text(option_list(), "utf-8")
    sys.exit()
