"""Wrong ways to call `spark-mq`. Its answer is a line `error: …` and a line `hint: …`, which is taken as one."""

from __future__ import annotations

from typer.testing import CliRunner

from spark_mq.cli import app
from tests.first_mistakes.usages import Places, Wrong


class Refused(Exception):
    """What a command prints."""


def _call(*words: str, lines: str = "one\n"):  # type: ignore[no-untyped-def]
    """The command; STORE, SERVER and CLOSED stand for the places."""

    def call(places: Places) -> None:
        known = {
            "STORE": places.store,
            "SERVER": places.name_server,
            "CLOSED": places.closed,
            "NEW": str(places.root / "cli"),
        }
        result = CliRunner().invoke(app, [known.get(word, word) for word in words], input=lines)
        if result.exit_code:
            raise Refused(" ".join(result.stderr.split()))

    return call


USAGES = (
    Wrong("no command of that name", _call("topic", "STORE"), "No such command 'topic'", "topics"),
    Wrong("no option of that name", _call("dump", "STORE", "--topics", "orders"), "No such option", "--topic"),
    Wrong("no place", _call("dump"), "PATH", "--name-server"),
    Wrong("a place twice", _call("topics", "STORE", "--name-server", "SERVER"), "PATH", "--name-server"),
    Wrong(
        "a path where nothing is",
        _call("topics", "/no/such/store"),
        "no RocketMQ store at /no/such/store",
        "give the directory that holds commitlog/",
    ),
    Wrong("an address as path", _call("topics", "localhost:9876"), "this looks like a name server", "--name-server"),
    Wrong(
        "a misspelt topic",
        _call("dump", "STORE", "--topic", "Orders"),
        "there is no topic Orders",
        "did you mean orders?",
    ),
    Wrong(
        "a list of topics",
        _call("dump", "STORE", "--topic", "orders,payments"),
        "there is no topic",
        "--topic takes one name",
    ),
    Wrong("a queue that is not there", _call("dump", "STORE", "--topic", "orders", "--queue-id", "99"), "99", "0 to"),
    Wrong(
        "a name server where none runs",
        _call("topics", "--name-server", "CLOSED", "--request-timeout", "400ms"),
        "no name server answers",
        "Check the addresses",
    ),
    Wrong(
        "a name server without a port",
        _call("topics", "--name-server", "localhost"),
        "localhost",
        "an address is host:port",
    ),
    Wrong(
        "a time in seconds",
        _call("offset-by-time", "STORE", "--topic", "orders", "--time", "1700000000"),
        "looks like seconds",
        "1700000000000",
    ),
    Wrong("lines without a topic", _call("produce", "NEW"), "topic", "--topic"),
    Wrong("a line that is no JSON", _call("produce", "NEW", "--topic", "T", "--json"), "line 1", "JSON"),
    Wrong(
        "a line with a strange field",
        _call("produce", "NEW", "--topic", "T", "--json", lines='{"body": "x", "tag": "a"}\n'),
        "tag",
        "did you mean tags?",
    ),
    Wrong(
        "keys that are a number",
        _call("produce", "NEW", "--topic", "T", "--json", lines='{"body": "x", "keys": 7}\n'),
        "line 1, column keys",
        "expected a text or a list of texts",
    ),
    Wrong("a job of another name", _call("job", "verify", "STORE"), "verify", "verify_store"),
)
