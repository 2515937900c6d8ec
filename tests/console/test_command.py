"""The command: where it listens, which token it wants, what it says when it cannot begin, and that it ends with its signal."""

from __future__ import annotations

import http.client
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from spark_mq.cli import app
from spark_mq.console.command import TOKEN, _place, _token
from spark_mq.terminal import UsageError
from tests.support.places import PROJECT

END_S = 60


@pytest.mark.parametrize(
    ("listen", "place"),
    [("127.0.0.1:9877", ("127.0.0.1", 9877)), ("[::1]:80", ("::1", 80)), ("localhost:0", ("localhost", 0))],
)
def test_a_place_is_host_and_port(listen: str, place: tuple[str, int]) -> None:
    assert _place(listen) == place


@pytest.mark.parametrize("listen", ["9877", ":9877", "host", "host:x", "host:70000", ""])
def test_what_is_no_place_is_refused(listen: str) -> None:
    with pytest.raises(UsageError, match="--listen"):
        _place(listen)


def test_a_token_comes_from_its_file_else_from_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("of-the-file-with-some-length\n", "utf-8")
    environment = {TOKEN: "of-the-environment-x"}
    assert _token(str(file), environment) == "of-the-file-with-some-length"
    assert _token(None, environment) == "of-the-environment-x"
    assert _token(None, {}) is None
    file.write_text("short", "utf-8")
    with pytest.raises(UsageError, match="at least 16 characters"):
        _token(str(file), environment)


def said(*words: str) -> list[str]:
    result = CliRunner().invoke(app, ["console", *words])
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code
    return result.stderr.splitlines()


def test_a_port_that_is_taken_is_named(root: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        text = said(str(root), "--listen", f"127.0.0.1:{port}")
    assert text[0].startswith(f"error: cannot listen on 127.0.0.1:{port}: ")
    assert text[1] == "hint: another process may listen there: --listen says where"


def test_several_stores_are_looked_at_and_not_changed(root: Path, tmp_path: Path) -> None:
    home = tmp_path / "both"
    home.mkdir()
    (home / "a").symlink_to(root)
    (home / "b").symlink_to(root)
    assert "name one of them" in " ".join(said(str(home), "--allow-changes"))


@contextmanager
def running(*words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A console, and the line that it says once it runs."""
    command = [sys.executable, "-c", "from spark_mq.cli import main; main()", "console", *words]
    process = subprocess.Popen(
        command, cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
    )
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline()
    finally:
        process.kill()
        process.communicate()


def get(port: int, path: str, **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=END_S)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_until_its_signal(number: signal.Signals, root: Path) -> None:
    with running(str(root), "--listen", "127.0.0.1:0") as (process, line):
        found = re.fullmatch(rf"the console of {root} is at http://127\.0\.0\.1:(\d+)/; it changes nothing\n", line)
        assert found, line
        status, page = get(int(found[1]), "/topics")
        assert status == 200
        assert "Orders" in page
        assert get(int(found[1]), "/topics", Host="evil.example")[0] == 421
        process.send_signal(number)
        out, err = process.communicate(timeout=END_S)
        assert (process.returncode, out, err) == (0, "", "")


@pytest.mark.slow
def test_for_other_machines_it_makes_a_token_and_says_it(root: Path) -> None:
    with running(str(root), "--listen", "0.0.0.0:0") as (process, line):
        port = int(re.findall(r":(\d+)/;", line)[0])
        assert get(port, "/topics")[0] == 303
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=END_S)
        assert re.fullmatch(r"the token of this run: [\w-]{32}\n", err)
