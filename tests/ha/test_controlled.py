"""Lives of brokers and their controller, by seeds; a failure says how to play it again."""

from __future__ import annotations

import pytest

from tests.ha.controlled_faults import CONTROLLED_FAULTS, CONTROLLERS_DIALECT
from tests.ha.faults import noticed
from tests.ha.lives import CONTROLLED, live, lived, table
from tests.support.shares import one_in

HAPPENED = ("masters", "slaves", "put: PUT_OK", "put: FLUSH_SLAVE_TIMEOUT", "batches", "kills", "power losses", "stops")
CONTROLLER = ("controller killed", "controller frozen", "partitions", "isolations", "blackouts", "offsets", "epochs")
QUICK = (
    "a set that is asked for is not waited for",
    "an epoch is noted behind its bytes",
    "a refusal counts for all that was asked",
    "logs are compared without the starts of epochs",
    "a lost end is not heeded",
    "an epoch without a byte is forgotten",
)


def test_no_life_breaks_an_invariant() -> None:
    found = lived(range(3), 150, kind=CONTROLLED)
    assert found.failures == []
    assert found.counts["put: PUT_OK"] > 0


def test_a_life_follows_from_its_seed() -> None:
    assert live(11, 120, CONTROLLED) == live(11, 120, CONTROLLED)


@pytest.mark.parametrize(
    ("seed", "steps"),
    [
        pytest.param(17, 600, id="a frozen controller adds a replica when nobody waits for its answer any more"),
        pytest.param(46, 600, id="a master that has lost its end goes on in its epoch, and its slave has more of it"),
        pytest.param(14, 600, id="the elected one has not a byte of the first epoch"),
        pytest.param(19, 600, id="offsets count what the end of the log, which is cut soon, has otherwise"),
    ],
)
def test_what_was_found_is_not_found_again(seed: int, steps: int) -> None:
    assert lived([seed], steps, kind=CONTROLLED).failures == []


@pytest.mark.slow
@pytest.mark.long
def test_no_life_of_many_breaks_an_invariant() -> None:
    found = lived(range(2_000, 2_024), 300, kind=CONTROLLED)
    assert found.failures == []
    assert [what for what in (*HAPPENED, *CONTROLLER) if not found.counts[what]] == []
    assert table(found)[0].startswith("24 seeds")


OTHERS = [pytest.param(name, marks=pytest.mark.long) for name in CONTROLLED_FAULTS if name not in QUICK]


@pytest.mark.parametrize("name", [*one_in(3, QUICK), *OTHERS])
def test_a_planted_fault_is_noticed(name: str) -> None:
    assert noticed(name, CONTROLLERS_DIALECT) is not None
