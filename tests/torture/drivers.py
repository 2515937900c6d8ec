"""Spark's side of exactly once: drivers, executors and tasks that die, are tried again, run twice, or meet another driver.

A round is one story: a query from store to store, and something that happens to it at a named point of a task or a commit. In the
end the sink's queues equal the source's, the ledger ends every batch once, and nothing is left over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random

from storage.failpoints import COMMIT, STAGING
from tests.crash.driver_chain import FAILPOINTS, ROWS_AT_FAILPOINT, Death, DriverChain, Victim
from tests.support.driver_process import FAILED, Driver
from tests.support.spark_cluster import SPECULATION, TWO_EXECUTORS, TWO_HOSTS
from tests.torture.kind import Kind, Outcome

THREE_ATTEMPTS = "local[2,3]"
_DEATHS = 3
_KILLED = {Victim.ALL: "driver and workers killed", Victim.WORKER: "commit or task killed, and aborted by Spark"}
_CONCURRENT = (
    *("CONCURRENT_STREAM_LOG_UPDATE", "Multiple streaming jobs", "ConcurrentModification", "already exists"),
    "SPARK_MQ_SINK_AHEAD",
)
"""How Spark, or the sink, says that another driver was faster."""
_LEAD_SECONDS = 6


def killed_drivers(random: Random, directory: Path) -> Outcome:
    """A few drivers, one after the other: the driver with all that belongs to it, or the process alone that commits or stages.

    Of the latter Spark hears, calls `abort`, and the query fails.
    """
    chain = DriverChain(directory, random)
    outcome = Outcome()
    victims = random.choices((Victim.ALL, Victim.WORKER), k=_DEATHS)
    deaths = [Death.at(*both, random) for both in zip(random.sample(FAILPOINTS, _DEATHS), victims, strict=True)]
    for death, _ in chain.die_in_turn(deaths):
        outcome.trials += 1
        outcome.figures[_KILLED[death.victim]] += 1
        outcome.figures[f"at {_name(death)}"] += 1
    chain.assert_sound()
    return outcome


def killed_executor(random: Random, directory: Path, point: str | None = None) -> Outcome:
    """An executor's JVM is killed with a task that is staging or has staged; Spark runs the task on another one."""
    return _within_a_run(random, directory, point, "executor killed", TWO_EXECUTORS, Driver.kill_paused_executor)


def retried_task(random: Random, directory: Path, point: str | None = None) -> Outcome:
    """A task's process is killed, and Spark runs the task again."""
    return _within_a_run(random, directory, point, "task killed and retried", THREE_ATTEMPTS, Driver.kill_paused_worker)


def speculated_task(random: Random, directory: Path, point: str | None = None) -> Outcome:
    """A task does not come to its end, and Spark runs it a second time on the other host, and kills the first one in the end."""
    return _within_a_run(random, directory, point, "task speculated", TWO_HOSTS, lambda driver: None, SPECULATION)


def two_drivers(random: Random, directory: Path, point: str | None = None) -> Outcome:
    """Two drivers on one checkpoint: one is held at some point, the other works, then both do. Spark lets one of them fail, or none."""
    chain = DriverChain(directory, random)
    chain.add_rows(ROWS_AT_FAILPOINT)
    death = Death.at(point or random.choice(FAILPOINTS), Victim.ALL, random)
    with chain.driver(death, is_paused=True) as first, chain.driver(None, is_paused=False) as second:
        first.begin()
        assert first.wait() is None, f"{death.failpoint} was never reached\n{first.output}"
        chain.add_rows(random.choice((0, ROWS_AT_FAILPOINT // 2)))
        second.begin()
        second.wait(random.uniform(0, _LEAD_SECONDS))
        first.resume()
        failed = sum(_has_lost(driver) for driver in (first, second))
    with chain.prepare(None) as last:
        chain.finish(last)
    chain.assert_sound()
    figures = {"two drivers at once": 1, f"at {_name(death)}": 1, "of two drivers lost": failed}
    outcome = Outcome(trials=1)
    outcome.figures.update(figures)
    return outcome


def _has_lost(driver: Driver) -> bool:
    exit_code = driver.wait_for_end()
    is_named = exit_code == FAILED and any(words in driver.output for words in _CONCURRENT)
    assert exit_code == 0 or is_named, driver.output
    return exit_code != 0


def _within_a_run(
    random: Random,
    directory: Path,
    point: str | None,
    what: str,
    master: str,
    strike: Callable[[Driver], None],
    config: Mapping[str, str] | None = None,
) -> Outcome:
    """One driver that comes to its end, though something happens to the first task that reaches a point."""
    chain = DriverChain(directory, random)
    chain.add_rows(ROWS_AT_FAILPOINT)
    death = Death.at(point or random.choice(STAGING), Victim.WORKER, random)
    with chain.driver(death, is_paused=True, master=master, config=config) as driver:
        driver.begin()
        assert driver.wait() is None, f"{death.failpoint} was never reached\n{driver.output}"
        strike(driver)
        assert driver.wait_for_end() == 0, driver.output
    chain.assert_sound()
    outcome = Outcome(trials=1)
    outcome.figures.update({what: 1, f"at {_name(death)}": 1})
    return outcome


def _name(death: Death) -> str:
    return (death.failpoint or "").partition(":")[0]


STORIES: tuple[Callable[[Random, Path], Outcome], ...] = (
    *(killed_drivers, killed_drivers, killed_drivers, two_drivers, two_drivers),
    *(killed_executor, retried_task, speculated_task),
)


def play(random: Random, directory: Path) -> Outcome:
    """One of the stories."""
    return random.choice(STORIES)(random, directory)


assert {*COMMIT, *STAGING} == {*FAILPOINTS}

KIND = Kind(
    "drivers",
    "Every row of a query is in the sink once, whatever becomes of drivers, executors and tasks",
    "deaths and meetings",
    play,
)
