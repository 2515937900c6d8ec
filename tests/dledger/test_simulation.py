"""Lives of DLedger groups by seeds; a failure says how to play it again."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.dledger.disks import RealDisk
from tests.dledger.faults import FAULTS, noticed
from tests.dledger.life import Life, lived
from tests.dledger.world import World
from tests.support.shares import one_in

HAPPENED = (
    *("elections", "cuts", "restarts of a log", "trimmed", "kills", "partitions", "acknowledged"),
    *("power lost", "power lost of two", "power lost of all", "handed over: SUCCESS"),
)


@pytest.mark.parametrize("lives", [50, pytest.param(150, marks=pytest.mark.slow)])
def test_no_life_breaks_an_invariant(lives: int) -> None:
    found = lived(range(lives))
    assert found.failures == []
    assert found.counts["acknowledged"] > 0


def test_a_life_follows_from_its_seed() -> None:
    first, again = Life(12), Life(12)
    first.run(20)
    again.run(20)
    assert first.world.counts == again.world.counts
    assert first.world.now_ms == again.world.now_ms


@pytest.mark.parametrize(
    "lives", [5, pytest.param(50, marks=pytest.mark.slow), pytest.param(300, marks=pytest.mark.long)]
)
def test_no_life_on_real_files_breaks_an_invariant(lives: int, tmp_path: Path) -> None:
    found = lived(range(500, 500 + lives), make_disk=lambda seed, name: RealDisk(tmp_path / str(seed) / name))
    assert found.failures == []
    assert found.counts["acknowledged"] > 0


@pytest.mark.slow
@pytest.mark.long
def test_no_life_of_hundreds_breaks_an_invariant() -> None:
    found = lived(range(1_000, 1_400))
    assert found.failures == []
    assert [what for what in HAPPENED if not found.counts[what]] == []


@pytest.mark.long
def test_no_life_of_ten_thousand_breaks_an_invariant() -> None:
    assert lived(range(100_000, 110_000)).failures == []


@pytest.mark.slow
@pytest.mark.parametrize("name", one_in(3, list(FAULTS), others=pytest.mark.long))
def test_a_planted_fault_is_noticed(name: str) -> None:
    assert noticed(name) is not None


def test_a_member_that_comes_back_again_and_again_does_not_depose_the_leader() -> None:
    """It has led, and has voted for itself in the term of the one that leads now."""
    world = World(Random(3), 3, {})
    for node in world.nodes.values():
        node.start()
    world.run_for(10_000)
    before = _leader(world)
    world.nodes[before].stop(power=False)
    world.run_for(15_000)
    after = _leader(world)
    term = _term(world, after)
    for _ in range(5):
        world.nodes[before].start()
        world.run_for(5_000)
        assert (_leader(world), _term(world, after)) == (after, term)
        world.nodes[before].stop(power=False)
        world.run_for(3_000)


def _leader(world: World) -> str:
    (found,) = [name for name, node in world.nodes.items() if node.leads]
    return found


def _term(world: World, name: str) -> int:
    member = world.nodes[name].member
    assert member is not None
    return member.state.term
