"""A command whose output nobody reads any more ends quietly, as other programs do in a pipe."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_mq.terminal import NOBODY_READS
from tests.support.fixture_stores import Fixture
from tests.support.java_broker import free_ports, wait_until
from tests.support.places import COMMAND, PROJECT
from tests.support.shares import one_in


@pytest.mark.parametrize(
    "words",
    one_in(
        3,
        [
            ["dump"],
            ["dump", "-f", "%o %s"],
            ["dump", "--limit", "1"],
            ["topics"],
            ["lag", "--csv"],
            ["report"],
        ],
    ),
    ids=" ".join,
)
def test_a_command_ends_without_a_word_when_its_reader_has_gone(
    pristine_store: Callable[[str], Fixture], words: list[str]
) -> None:
    root = str(pristine_store("clean").root)
    with subprocess.Popen(
        [*COMMAND, words[0], root, *words[1:]], cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == NOBODY_READS


@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("words", one_in(3, [["dump"], ["topics"], ["lag", "--csv"]]), ids=" ".join)
def test_a_closed_standard_output_is_one_whose_reader_has_gone(
    pristine_store: Callable[[str], Fixture], words: list[str], closed: str
) -> None:
    root = str(pristine_store("clean").root)
    done = run_closed(closed, words[0], root, *words[1:])
    assert (done.returncode, done.stderr) == (NOBODY_READS, b"")


def run_closed(closed: str, *words: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Run the command with some of its standard streams closed, or somewhere else."""
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", *COMMAND, *words]
    return subprocess.run(command, cwd=PROJECT, capture_output=True, env={**os.environ, **environment})


def test_what_a_command_opens_gets_no_number_of_a_closed_stream(tmp_path: Path) -> None:
    program = "import os; from spark_mq.cli.app import _open_what_is_closed as f; f(); n = os.open('/', 0); os._exit(n)"
    command = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", sys.executable, "-c", program]
    assert subprocess.run(command, cwd=PROJECT).returncode > 2


def test_an_output_that_cannot_be_written_is_named(pristine_store: Callable[[str], Fixture]) -> None:
    root = str(pristine_store("clean").root)
    done = run_closed("> /dev/full", "topics", root, "--json", PYTHONUNBUFFERED="")
    assert done.returncode == 1
    assert done.stderr == b"error: standard output cannot be written: No space left on device\n"
    unbuffered = run_closed("> /dev/full", "topics", root, "--json", PYTHONUNBUFFERED="1")
    assert unbuffered.returncode == 1
    assert unbuffered.stderr.startswith(b"error: ")
    assert b"No space left on device" in unbuffered.stderr


def test_a_server_runs_on_whose_output_nobody_reads(tmp_path: Path) -> None:
    port = free_ports()
    (tmp_path / "namesrv.conf").write_text(f"listenPort={port}\nkvConfigPath={tmp_path / 'kv.json'}\n", "utf-8")
    command = ["sh", "-c", 'exec "$@" >&-', "sh", *COMMAND, "namesrv", "-c", str(tmp_path / "namesrv.conf")]
    with subprocess.Popen(command, cwd=PROJECT, stderr=subprocess.PIPE) as process:
        try:
            wait_until(lambda: answers(port), "it listens")
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate(timeout=60)
            assert (process.returncode, err) == (0, b"")
        finally:
            process.kill()


def answers(port: int) -> bool:
    with socket.socket() as asking:
        return asking.connect_ex(("127.0.0.1", port)) == 0


def test_what_was_read_is_whole_up_to_there(pristine_store: Callable[[str], Fixture]) -> None:
    root = str(pristine_store("clean").root)
    with subprocess.Popen(
        [*COMMAND, "dump", root], cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith(b'{"topic":')
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == NOBODY_READS


def test_a_reader_that_takes_all_gets_exit_code_0(pristine_store: Callable[[str], Fixture]) -> None:
    done = subprocess.run([*COMMAND, "topics", str(pristine_store("clean").root)], cwd=PROJECT, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
