"""Wrong ways to call `spark-mq`. Its answer is a line `error: …` and a line `hint: …`, which is taken as one."""

from __future__ import annotations

from typer.testing import CliRunner

from spark_mq.cli import app
from tests.first_mistakes.usages import Places, Wrong


class Refused(Exception):
    """What a command prints."""


def _call(*words: str):  # type: ignore[no-untyped-def]
    """The command; STORE and SERVER stand for the places."""

    def call(places: Places) -> None:
        known = {"STORE": places.store, "SERVER": places.name_server}
        result = CliRunner().invoke(app, [known.get(word, word) for word in words])
        if result.exit_code:
            raise Refused(" ".join(result.stderr.split()))

    return call


USAGES = (
    Wrong("no command of that name", _call("topic", "STORE"), "No such command 'topic'", "topics"),
    Wrong("no option of that name", _call("dump", "STORE", "--topics", "orders"), "No such option", "--topic"),
    Wrong("no place", _call("dump"), "PATH", "--name-server"),
    Wrong("a place twice", _call("topics", "STORE", "--name-server", "SERVER"), "PATH", "--name-server"),
    Wrong(
        "a time in seconds",
        _call("offset-by-time", "STORE", "--topic", "orders", "--time", "1700000000"),
        "looks like seconds",
        "1700000000000",
    ),
)
"""`tests/cli` has the others: paths, topics, queues, lines and jobs in `test_bad_input.py`, `test_commands.py`, `test_produce.py`,
`test_jobs.py`, clusters in `test_live_bad_input.py`.
"""
