"""A process that writes a member's files is killed: what it said to be durable is there, and nothing that was never written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from tests.dledger.appending import body_of, opened
from tests.support.places import PROJECT


def killed(directory: str, seed: int) -> list[list[str]]:
    """What a process says until it is killed, after some lines of its own choice."""
    command = [sys.executable, "-m", "tests.dledger.appending", directory, str(seed)]
    random, lines = Random(seed), list[str]()
    with subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(random.randint(2, 60)):
            lines.append(process.stdout.readline())
        process.kill()
        lines += process.stdout
    return [line.split() for line in lines if line.endswith("\n")]  # the last one may be cut


@pytest.mark.parametrize("rounds", [2, pytest.param(30, marks=pytest.mark.long)])
def test_what_a_killed_member_had_made_durable_is_there(rounds: int, tmp_path: Path) -> None:
    directory, end, term = str(tmp_path / "dledger-n0"), -1, 0
    for seed in range(rounds):
        for kind, number in killed(directory, seed):
            if kind == "vote":
                term = max(term, int(number))
            else:
                end = int(number) if kind == "durable" else min(end, int(number))
        files = opened(directory)
        found = files.restored()
        assert found.vote.term in (term, term + 1), seed
        assert found.end_index >= end, seed
        entries = [files.entry(index) for index in range(found.end_index + 1)]
        assert [entry.body for entry in entries] == [body_of(entry.index, entry.term) for entry in entries], seed
        assert [entry.term for entry in entries] == sorted(entry.term for entry in entries), seed
        files.close()
        end, term = found.end_index, found.vote.term
    assert end > 0
