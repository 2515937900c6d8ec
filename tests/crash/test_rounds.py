"""What the rounds of `make test-crash` promise of themselves."""

from __future__ import annotations

from collections import Counter
from itertools import product
from random import Random

import pytest

from tests.crash.driver_chain import FAILPOINTS, Victim, plan_deaths


@pytest.mark.parametrize("rounds", [50, 120])
def test_fifty_rounds_and_more_kill_at_each_failpoint_with_either_victim(rounds: int) -> None:
    deaths = Counter((death.failpoint, death.victim) for death in plan_deaths(rounds, Random(1)))
    assert deaths.total() == rounds
    planned = {(str(failpoint).partition(":")[0], victim) for failpoint, victim in deaths if failpoint is not None}
    assert planned == {
        (name.partition(":")[0], victim) for name, victim in product(FAILPOINTS, (Victim.ALL, Victim.WORKER))
    }
    assert any(failpoint is None for failpoint, _ in deaths), "some die at random moments"
