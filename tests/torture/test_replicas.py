"""A round of the kinds `replicas` and `controlled-replicas`."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.torture import replicas


@pytest.mark.slow
def test_a_round_finds_nothing(tmp_path: Path) -> None:
    outcome = replicas.play(Random(1), tmp_path, lives=3, steps=60)
    assert outcome.failures == []
    assert outcome.trials >= 180


@pytest.mark.slow
def test_a_round_with_a_controller_finds_nothing(tmp_path: Path) -> None:
    outcome = replicas.play_controlled(Random(1), tmp_path, lives=3, steps=100)
    assert outcome.failures == []
    assert outcome.trials >= 300
