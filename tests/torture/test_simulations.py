"""A round of the kinds `elections`, `replicas` and `controlled-replicas`, and what it must notice."""

from __future__ import annotations

from pathlib import Path
from random import Random
from unittest.mock import patch

import pytest

from spark_mq.controller import decisions
from tests.torture import simulations


def test_lives_by_seeds_break_no_promise(tmp_path: Path) -> None:
    outcome = simulations.play_elections(Random(7), tmp_path, lives=8)
    assert outcome.failures == []
    assert outcome.trials == 8 * simulations.STEPS_OF_ELECTIONS
    assert min(outcome.figures[name] for name in ("masters", "sets altered", "controller restarted")) > 3


def test_a_set_that_anybody_alters_is_noticed_with_its_seed(tmp_path: Path) -> None:
    with patch.object(decisions, "_against_it", lambda *given: None):
        outcome = simulations.play_elections(Random(7), tmp_path, lives=40)
    assert outcome.failures
    assert outcome.failures[0].startswith("seed ")


@pytest.mark.slow
def test_a_round_of_replicas_finds_nothing(tmp_path: Path) -> None:
    outcome = simulations.play_replicas(Random(1), tmp_path, lives=3, steps=60)
    assert outcome.failures == []
    assert outcome.trials >= 180


@pytest.mark.slow
def test_a_round_of_replicas_with_a_controller_finds_nothing(tmp_path: Path) -> None:
    outcome = simulations.play_controlled(Random(1), tmp_path, lives=3, steps=100)
    assert outcome.failures == []
    assert outcome.trials >= 300
