"""Lives of masters and slaves, by seeds; a failure says how to play it again."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.ha.faults import DEFAULT_DIALECT, FAULTS, noticed
from tests.ha.lives import live, lived, table

HAPPENED = (
    *("puts", "put: PUT_OK", "put: FLUSH_SLAVE_TIMEOUT", "batches", "batches again"),
    *("strangers", "lines dropped", "kills", "isolations", "blackouts"),
)
QUICK = ("any acknowledgement counts", "acknowledged before it is written", "a copy too few")


def test_no_life_breaks_an_invariant() -> None:
    found = lived(range(3), 60)
    assert found.failures == []
    assert found.counts["put: PUT_OK"] > 0


def test_a_life_follows_from_its_seed() -> None:
    assert live(7, 40) == live(7, 40)
    first, again = live(12, 120), live(12, 120)  # masters are deposed in it, and second lines come
    assert first == again


@pytest.mark.slow
def test_no_life_of_many_breaks_an_invariant() -> None:
    found = lived(range(1_000, 1_020), 150)
    assert found.failures == []
    assert [what for what in HAPPENED if not found.counts[what]] == []
    assert table(found)[0].startswith("20 seeds")


def _slow(names: Sequence[str]) -> list[object]:
    """Those of `QUICK` as they are, of the others each third slow, the rest long."""
    marks = {name: pytest.mark.slow if place % 3 == 0 else pytest.mark.long for place, name in enumerate(names)}
    return [name if name in QUICK else pytest.param(name, marks=marks[name]) for name in names]


@pytest.mark.parametrize("name", _slow(list(FAULTS)))
def test_a_planted_fault_is_noticed(name: str) -> None:
    assert noticed(name, DEFAULT_DIALECT) is not None
