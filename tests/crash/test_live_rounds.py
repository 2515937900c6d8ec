"""A few rounds of exactly once on a real broker. Long runs are made by hand: `python -m tests.torture live-rounds --rounds 200`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.java_broker import needed_oracle
from tests.torture.by_hand import Run

from .live_drivers import POINTS, run_drivers
from .live_rounds import SCENES, play

pytestmark = [pytest.mark.interop, pytest.mark.long]


@pytest.fixture(autouse=True)
def _java(tmp_path: Path) -> None:
    needed_oracle(tmp_path)


@pytest.mark.parametrize("scene", SCENES)
def test_rows_are_there_whatever_dies(scene: str, tmp_path: Path) -> None:
    assert "lost 0" in play(Run(12, 11, tmp_path, scene)).text


@pytest.mark.spark
def test_a_query_whose_processes_die_at_every_point_sends_each_row_once(tmp_path: Path) -> None:
    assert "lost 0, doubled 0" in run_drivers(POINTS, Run(0, 1, tmp_path))


@pytest.mark.spark
@pytest.mark.parametrize("guarantee", ["exactlyOnce", "atLeastOnce"])
def test_executors_in_processes_of_their_own_send_each_row_once(guarantee: str, tmp_path: Path) -> None:
    """They share no directory with the driver but, exactly once, the one for staging."""
    assert "lost 0, doubled 0" in run_drivers((), Run(0, 3, tmp_path), "local-cluster[2,1,1024]", guarantee)
