"""A slice of the killed writers, and faults that their judge must notice. A whole round: `python -m tests.torture kills --seed N`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

import storage.recovery.mending
from storage import MessageStore
from storage.failpoints import COMMIT, STAGING, UPKEEP
from tests.crash.duty_rounds import failpoints_in_source, failpoints_of_duties
from tests.support.queue_history import Seen, see
from tests.support.writer_life import Writers
from tests.torture import kills

pytestmark = [pytest.mark.crash, pytest.mark.slow]

SEED = 5
SOME_FAILPOINTS = Random(SEED).sample(kills.FAILPOINTS, 6)


@pytest.fixture(scope="module")
def writers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Writers]:
    with Writers(tmp_path_factory.mktemp("writers") / "log") as started:
        yield started


@pytest.mark.parametrize("count", [3, pytest.param(len(SOME_FAILPOINTS), marks=pytest.mark.slow)])
def test_what_was_acknowledged_outlives_its_writers(tmp_path: Path, writers: Writers, count: int) -> None:
    chain = kills.Chain(tmp_path, Random(SEED), writers)
    for failpoint in SOME_FAILPOINTS[:count]:
        chain.kill_at([failpoint])
        chain.kill_at_random(1)
    outcome = chain.finish()

    assert outcome.failures == []
    assert outcome.figures["killed at a failpoint"] == count
    assert outcome.figures["killed at random"] >= count // 2
    assert outcome.figures["messages acknowledged"] > 25 * count


def test_what_the_transient_store_pool_had_acknowledged_is_lost_with_its_process(
    tmp_path: Path, writers: Writers
) -> None:
    """As in Java, where CommitRealTimeService writes later what was acknowledged: the figure is not hidden."""
    chain = kills.Chain(tmp_path, Random(SEED), writers)
    chain.kill_at(["before-pool-write"] * 3)
    outcome = chain.finish()

    assert outcome.failures == []
    assert outcome.figures[kills.LOST_BY_THE_POOL] > 0


def test_every_failpoint_of_a_writer_is_one_to_be_killed_at() -> None:
    """All names stand in the source; the others there are passed by the duties of `tests/crash`."""
    assert {*STAGING, *COMMIT, *UPKEEP} <= failpoints_in_source()
    assert {*STAGING, *COMMIT} <= failpoints_of_duties()


def test_a_pool_that_loses_more_than_what_was_last_is_noticed(
    tmp_path: Path, writers: Writers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_the_first_of_the_life(store: MessageStore) -> list[Seen]:
        seen = sorted(see(store), key=lambda one: one.commitlog_offset)
        return [one for one in seen if one.key != next(other.key for other in seen if other.key.startswith("0."))]

    chain = kills.Chain(tmp_path, Random(SEED), writers)
    monkeypatch.setattr(kills, "see", without_the_first_of_the_life)
    chain.kill_at(["before-pool-write"])

    assert any("behind it are there" in failure for failure in chain.outcome.failures)


@pytest.mark.slow
def test_a_writer_that_acknowledges_before_it_writes_is_noticed(tmp_path: Path, writers: Writers) -> None:
    chain = kills.Chain(tmp_path, Random(SEED), writers, fault="acknowledges first")
    chain.kill_at(["before-records"] * 4)

    assert any("lost:" in failure for failure in chain.outcome.failures)


@pytest.mark.slow
def test_a_recovery_that_dispatches_nothing_is_noticed(
    tmp_path: Path, writers: Writers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage.recovery.mending, "_batches", lambda *arguments: iter(()))
    chain = kills.Chain(tmp_path, Random(SEED), writers)
    chain.kill_at(["after-records"] * 3)

    assert any("lacks" in failure for failure in chain.outcome.failures)
