"""The torture of elections plays, and notices what it must."""

from __future__ import annotations

from pathlib import Path
from random import Random
from unittest.mock import patch

from spark_mq.controller import decisions
from tests.torture import elections


def test_lives_by_seeds_break_no_promise(tmp_path: Path) -> None:
    outcome = elections.play(Random(7), tmp_path, lives=8)
    assert outcome.failures == []
    assert outcome.trials == 8 * elections.STEPS
    assert min(outcome.figures[name] for name in ("masters", "sets altered", "controller restarted")) > 3


def test_a_set_that_anybody_alters_is_noticed_with_its_seed(tmp_path: Path) -> None:
    with patch.object(decisions, "_against_it", lambda *given: None):
        outcome = elections.play(Random(7), tmp_path, lives=40)
    assert outcome.failures
    assert outcome.failures[0].startswith("seed ")
