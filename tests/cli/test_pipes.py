"""A command whose output nobody reads any more ends quietly, as other programs do in a pipe."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

from spark_mq.terminal import NOBODY_READS
from tests.support.fixture_stores import Fixture
from tests.support.places import COMMAND, PROJECT


@pytest.mark.parametrize(
    "words",
    [
        ["dump"],
        ["dump", "-f", "%o %s"],
        ["dump", "--limit", "1"],
        ["topics"],
        ["lag", "--csv"],
        ["report"],
    ],
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
