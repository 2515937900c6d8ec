"""Two archivers, killed at their steps and at any moment, beside a writer and expiry: every message once, or in a named gap."""

from __future__ import annotations

from pathlib import Path
from random import randrange

import pytest

from .kill_hunt import Hunt, hunt

pytestmark = pytest.mark.crash


def hunted(place: Path, kills: int) -> Hunt:
    seed = randrange(1 << 30)
    print(f"seed {seed}")
    found = hunt(place, kills, seed)
    print(found)
    return found


def test_a_few_kills_leave_every_message_once(tmp_path: Path) -> None:
    found = hunted(tmp_path, 2)
    assert found.wrong == []
    assert found.archived > 0


@pytest.mark.slow
def test_kills_leave_every_message_once(tmp_path: Path) -> None:
    assert hunted(tmp_path, 40).wrong == []


@pytest.mark.long
def test_many_kills_leave_every_message_once(tmp_path: Path) -> None:
    found = hunted(tmp_path, 220)
    assert found.wrong == []
    assert found.conflicts > 0
