"""Two drivers that meet, tasks that run more than once. `tests/crash/test_killed_drivers.py` has the killed drivers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tests.torture import drivers
from tests.torture.kind import Outcome

pytestmark = [pytest.mark.crash, pytest.mark.spark, pytest.mark.slow]

SEED = 20_261_121
long = pytest.mark.long


@pytest.mark.parametrize(
    ("story", "point"),
    [
        pytest.param(
            drivers.killed_executor, "after-staging", id="an executor killed after its task has staged", marks=long
        ),
        pytest.param(drivers.killed_executor, "amid-staging", id="an executor killed amid staging", marks=long),
        pytest.param(drivers.retried_task, "after-staging", id="a task killed after staging", marks=long),
        pytest.param(drivers.retried_task, "amid-staging", id="a task killed amid staging", marks=long),
        pytest.param(drivers.speculated_task, "after-staging", id="a task speculated after staging", marks=long),
        pytest.param(drivers.speculated_task, "amid-staging", id="a task speculated amid staging", marks=long),
        pytest.param(drivers.two_drivers, "after-staging", id="two drivers, one held before its commit", marks=long),
        pytest.param(drivers.two_drivers, "amid-slice", id="two drivers, one held amid its commit", marks=long),
        pytest.param(drivers.two_drivers, "before-release", id="two drivers, one held after its commit", marks=long),
    ],
)
def test_every_row_is_there_once(story: Callable[[Random, Path, str], Outcome], point: str, tmp_path: Path) -> None:
    outcome = story(Random(SEED), tmp_path, point)
    assert outcome.failures == []
    assert outcome.figures[f"at {point}"] == 1
