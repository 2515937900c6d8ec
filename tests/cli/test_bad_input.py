"""Every command answers bad input with a few lines: what is wrong and what to do, no traceback, no stranger's page of text."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from spark_mq.cli import app
from spark_mq.cli.app import COMMANDS
from spark_mq.testing.ports import free_ports
from storage import open_store
from tests.support.fixture_stores import Fixture

SCREENFUL = 24
FIRST_LINE = 300

# Each command as it is called on PATH; `demo` and `doctor` take none.
CALLS = {
    "alter-topic": ["alter-topic", "PATH", "T", "--perm", "4"],
    "bind-log": ["bind-log", "PATH"],
    "console": ["console", "PATH"],
    "convert": ["convert", "PATH", "TARGET"],
    "confirm-sink": ["confirm-sink", "PATH", "sink-a"],
    "close": ["close", "PATH"],
    "create-topic": ["create-topic", "PATH", "T"],
    "delete-topic": ["delete-topic", "PATH", "TopicA", "--yes"],
    "dump": ["dump", "PATH"],
    "exporter": ["exporter", "PATH", "--once"],
    "job": ["job", "verify_store", "PATH"],
    "follow": ["follow", "127.0.0.1:1", "PATH"],
    "lag": ["lag", "PATH"],
    "offset-by-time": ["offset-by-time", "PATH", "--topic", "T", "--time", "2026-01-01"],
    "produce": ["produce", "PATH", "--topic", "T"],
    "promote": ["promote", "PATH"],
    "quarantine": ["quarantine", "PATH"],
    "query": ["query", "PATH", "--topic", "T", "--key", "k"],
    "recover": ["recover", "PATH"],
    "repair": ["repair", "PATH"],
    "replicate": ["replicate", "PATH", "--port", "0"],
    "report": ["report", "PATH"],
    "sink-status": ["sink-status", "PATH"],
    "topics": ["topics", "PATH"],
    "verify": ["verify", "PATH"],
}
MAKES_A_STORE = {"produce", "create-topic", "follow"}
WRITES = MAKES_A_STORE | {
    *("alter-topic", "bind-log", "close", "confirm-sink", "convert", "delete-topic", "promote", "recover", "repair")
}


def test_every_command_is_tried_here() -> None:
    of_clusters = {"brokers", "consume", "groups", "reset-offset"}  # test_live_bad_input
    without_a_path = {"broker", "controller", "demo", "doctor", "namesrv"}
    assert set(COMMANDS) - without_a_path - of_clusters == set(CALLS)


@pytest.fixture(params=["missing", "file", "unknown scheme", "circle", "long name", "no store"])
def bad_path(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    match request.param:
        case "file":
            (tmp_path / "x").write_text("no store", encoding="utf-8")
        case "unknown scheme":
            return "foo://host/x"
        case "circle":
            (tmp_path / "x").symlink_to(tmp_path / "x")
        case "long name":
            return f"{tmp_path}/{'x' * 300}"
        case "no store":
            (tmp_path / "x").mkdir()
            (tmp_path / "x" / "file").write_text("somebody's", encoding="utf-8")
    return f"{tmp_path}/x"


@pytest.mark.parametrize("command", CALLS)
def test_a_bad_path_is_a_few_lines(command: str, bad_path: str) -> None:
    if command in MAKES_A_STORE and not os.path.lexists(bad_path) and len(bad_path) < 200 and "foo" not in bad_path:
        pytest.skip("it makes a store there")
    text = said([bad_path if word == "PATH" else word for word in CALLS[command]])
    assert text[0].startswith("error: ")
    assert len(text[0]) <= FIRST_LINE
    assert bad_path[:60] in text[0]


@pytest.mark.parametrize("command", CALLS)
def test_a_directory_that_may_not_be_read_is_named_with_user_and_host(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A user who may do everything is told so too: the error is what the system would raise.
    scandir = os.scandir

    def refuse(path: str = ".") -> object:
        if str(path).startswith(str(tmp_path)):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    text = said([str(tmp_path / "store") if word == "PATH" else word for word in CALLS[command]])
    assert text[0].startswith("error: user ")
    assert f" on host {socket.gethostname()} may not open {tmp_path}" in text[0]
    assert any("right to read" in line for line in text[1:])


@pytest.mark.parametrize("command", CALLS)
def test_a_tilde_is_explained_and_the_path_is_told_once(command: str) -> None:
    text = said(["~/store" if word == "PATH" else word for word in CALLS[command]])
    assert text[0].endswith(
        "~/store is refused: ~ is not expanded by Spark or Python, only by a shell; write the home directory out"
    )


@pytest.mark.parametrize("command", sorted(WRITES))
def test_a_store_that_is_not_local_is_not_written_and_asks_for_no_credentials(command: str) -> None:
    text = said(["s3://bucket/store" if word == "PATH" else word for word in CALLS[command]])
    assert text[0] == (
        "error: store s3://bucket/store cannot be written: only a local or mounted directory is written; s3:// is for reading"
    )


@pytest.mark.parametrize("command", sorted(MAKES_A_STORE))
def test_no_store_is_made_at_the_address_of_a_name_server(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = said(["localhost:9876" if word == "PATH" else word for word in CALLS[command]])
    assert "this looks like a name server" in text[0]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", sorted(MAKES_A_STORE))
def test_no_store_is_made_among_other_things(command: str, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x", "utf-8")
    text = said([str(tmp_path) if word == "PATH" else word for word in CALLS[command]])
    assert text[0] == f"error: no RocketMQ store at {tmp_path}: the directory is not empty and holds no store"
    assert text[1] == "hint: give an empty or new directory, or the store itself"
    assert [path.name for path in tmp_path.rglob("*")] == ["notes.txt"]


HOLD = {name: CALLS[name] for name in sorted(WRITES - {"bind-log", "convert", "follow", "promote"})}
"""Commands that wait for the store's lock."""


@pytest.mark.parametrize("command", HOLD)
def test_a_store_that_another_writer_has_is_left_alone(command: str, fixture_store: Callable[[str], Fixture]) -> None:
    root = fixture_store("clean").root
    words = [str(root) if word == "PATH" else word for word in HOLD[command]]
    words += [] if command in ("recover", "repair") else ["--lock-timeout", "0"]
    with open_store(root, read_only=False):
        before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
        text = said(words, exit_code=75)
        assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
    assert f"store {root}/lock is locked by another writer" in text[0]
    assert "stop the broker" in text[1]


@pytest.mark.parametrize("more", ["", "enableControllerMode=true\ncontrollerAddr=127.0.0.1:1\n"])
def test_a_second_broker_names_the_first_whatever_its_port(tmp_path: Path, more: str) -> None:
    """MessageStore.start: "Lock failed,MQ already started". Also in controller mode, where no role is known yet."""
    own, other, root = free_ports(), free_ports(), tmp_path / "store"
    with open_store(root, read_only=False, create=True, holder="broker"):
        for port in (own, other):
            conf = tmp_path / "broker.conf"
            conf.write_text(f"storePathRootDir={root}\nlistenPort={port}\nbrokerName=b\n{more}")
            text = said(["broker", "-c", str(conf)], exit_code=75)
            assert text[0].startswith(f"error: store {root}/lock is locked by another writer, process ")


@pytest.mark.parametrize("command", [name for name, words in CALLS.items() if "--topic" in words] + ["dump"])
def test_one_topic_is_taken(command: str, tmp_path: Path) -> None:
    assert CliRunner().invoke(app, ["produce", f"{tmp_path}/s", "--topic", "A"], input="line\n").exit_code == 0
    words = [*CALLS[command], "--topic", "A,B"]
    text = said([f"{tmp_path}/s" if word == "PATH" else word for word in words])
    if command == "produce":
        assert "topic name 'A,B' is illegal" in text[0]
    else:
        assert text == ["error: there is no topic A,B", "hint: --topic takes one name"]


def said(arguments: list[str], exit_code: int = 1) -> list[str]:
    """What a command that fails prints, in lines; it ends by its own exit code, without an error that nobody caught."""
    result = CliRunner().invoke(app, arguments, input="line\n")
    assert result.exit_code == exit_code, result.output
    assert isinstance(result.exception, SystemExit), result.exception
    assert "Traceback" not in result.output
    lines = result.output.splitlines()
    assert len(lines) <= SCREENFUL
    return lines
