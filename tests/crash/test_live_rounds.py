"""A few rounds of exactly once on a real broker. Long runs are made by hand: `python -m tests.crash.live_rounds --rounds 200`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.java_broker import Oracle

from .live_drivers import POINTS, run_drivers
from .live_rounds import AT_LEAST_ONCE, Scene, run_rounds

pytestmark = [pytest.mark.interop, pytest.mark.long]


@pytest.fixture(autouse=True)
def _java() -> None:
    if (reason := Oracle.available()) is not None:
        pytest.skip(reason)


SCENES = {
    "exactly once": Scene(),
    "at least once": Scene(AT_LEAST_ONCE),
    "two masters": Scene(masters=2),
    "two masters, at least once": Scene(AT_LEAST_ONCE, masters=2),
    "transactions": Scene(AT_LEAST_ONCE, transactional=True),
    "no slave, stored": Scene(acks="stored"),
    "no slave, all": Scene(acks="all"),
}


@pytest.mark.parametrize("scene", [pytest.param(scene, id=name) for name, scene in SCENES.items()])
def test_rows_are_there_whatever_dies(scene: Scene, tmp_path: Path) -> None:
    rounds, verdict = run_rounds(12, 11, tmp_path, print, scene)
    assert all(round_.ends[-1] == "committed" for round_ in rounds)
    assert "lost 0" in verdict


@pytest.mark.spark
def test_a_query_whose_processes_die_at_every_point_sends_each_row_once(tmp_path: Path) -> None:
    assert "lost 0, doubled 0" in run_drivers(POINTS, 1, tmp_path, print)


@pytest.mark.spark
@pytest.mark.parametrize("guarantee", ["exactlyOnce", "atLeastOnce"])
def test_executors_in_processes_of_their_own_send_each_row_once(guarantee: str, tmp_path: Path) -> None:
    """They share no directory with the driver but, exactly once, the one for staging."""
    assert "lost 0, doubled 0" in run_drivers((), 3, tmp_path, print, "local-cluster[2,1,1024]", guarantee)
