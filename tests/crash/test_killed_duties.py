"""Processes that do all duties of one store, killed at every step, and each next one goes on: nothing is lost, doubled, early, undone.

`duty_life.py` is such a process, `duty_stories.py` what it is given to do, `duty_judge.py` what must hold after each death.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.crash.duty_process import Kill, Nursery, Step
from tests.crash.duty_rounds import (
    DutyChain,
    failpoints_of_duties,
    kill_at_every_step,
    kill_at_random,
    once_a_failpoint,
    once_a_step,
)
from tests.crash.duty_stories import Fate, Notes, Stories, Story

pytestmark = [pytest.mark.crash, pytest.mark.slow]

SEED = 20_261_121


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    with Nursery(tmp_path_factory.mktemp("nursery") / "log") as started:
        yield started


@pytest.fixture
def short(tmp_path: Path, nursery: Nursery) -> DutyChain:
    """A chain whose first life begins stories that are soon told, among them a commit by the producer, and a level that waits 30 s."""
    stories = Stories(SEED)
    lives = (life for life in range(10, 100) if _is_short({story.fate: story for story in stories.of_life(life)}))
    return DutyChain(tmp_path, SEED, nursery, first_life=next(lives))


def _is_short(stories: dict[Fate, Story]) -> bool:
    committed, timed = stories[Fate.COMMITTED], stories[Fate.TIMED]
    is_told = not (committed.is_late or committed.immunity_s or stories[Fate.ROLLED_BACK].is_late)
    is_told &= not (stories[Fate.COMMITTED_WHEN_ASKED].immunity_s or stories[Fate.GIVEN_UP].immunity_s)
    return (
        is_told and stories[Fate.LEVEL].level >= 4 and timed.wait_ms > 20_000 and stories[Fate.FAILING].dies_after > 0
    )


@pytest.mark.long
def test_a_store_lives_on_over_a_kill_at_each_failpoint(
    tmp_path: Path, nursery: Nursery, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each of the source, in some duty, and behind what each duty appends; a failpoint that no duty reaches is an error."""
    chain = DutyChain(tmp_path, SEED, nursery)
    kill_at_every_step(chain, Random(SEED), once_a_failpoint)
    assert chain.finish() == []
    assert chain.judge.unfinished() == []
    assert chain.judge.doubles == set()
    assert chain.tally.points == failpoints_of_duties()
    with capsys.disabled():
        print(f"\n{chain.summary()}")


@pytest.mark.long
def test_a_store_lives_on_over_a_kill_at_each_failpoint_of_each_duty(tmp_path: Path, nursery: Nursery) -> None:
    chain = DutyChain(tmp_path, SEED + 1, nursery)
    kill_at_every_step(chain, Random(SEED + 1), once_a_step)
    assert chain.finish() == []
    assert chain.judge.unfinished() == []


@pytest.mark.long
def test_a_store_lives_on_over_kills_at_random(tmp_path: Path, nursery: Nursery) -> None:
    chain = DutyChain(tmp_path, SEED + 2, nursery)
    kill_at_random(chain, 60, Random(SEED + 2))
    assert chain.finish() == []
    assert chain.judge.unfinished() == []


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param([("deliver", "after-mark"), ("deliver", "amid-delivery")], id="before a delivery, and in it"),
        pytest.param([("deliver", "amid-delivery")] * 3, id="in a delivery"),
        pytest.param([("timer", "timer-put"), ("timer", "timer-put-sync")], id="while the timer delivers"),
        pytest.param(
            [("check", "half-committed"), ("check", "half-put-back"), ("check", "before-half-offset")], id="in checks"
        ),
    ],
)
def test_who_goes_on_is_killed_too(short: DutyChain, steps: list[tuple[str, str]]) -> None:
    """Others append in between, so that what was put lies in several places."""
    short.live()
    for step in steps:
        assert short.live(Kill(Step(*step)))
    assert short.finish() == []


# The judge


def test_the_stories_have_every_fate() -> None:
    stories = Stories(SEED)
    begun = [story for life in range(12) for story in stories.of_life(life)]
    assert {story.fate for story in begun} == set(Fate)
    assert {story.is_late for story in begun if story.fate is Fate.COMMITTED} == {True, False}
    assert {story.asks for story in begun} >= {0, 1, 2}
    assert {story.dies_after for story in begun if story.fate is Fate.FAILING} == {0, 2, 16}
    assert all(stories.named(story.name) == story for story in [*begun, *stories.rows(3)])


@pytest.mark.parametrize(
    ("fault", "step", "finding"),
    [
        ("no commit record is ever found", ("end", "half-committed"), r"'Orders', 'committed\..* is there 2 times"),
        ("a rollback commits", None, r"^rolled-back\..* is rolled back, and visible"),
        ("a check moves on over halves", None, r"'Orders', 'committed-when-asked\..* is missing"),
        ("a check goes back to the first half", None, r"^RMQ_SYS_TRANS_HALF_TOPIC offset went from \d+ back to 0"),
        (
            "progress is saved before the delivery",
            ("deliver", "after-delivery-save"),
            r"'Later', 'level\..* is missing",
        ),
        ("a killed delivery is forgotten", ("deliver", "after-delivery-sync"), r"'Later', 'level\..* is there 2 times"),
        ("levels are delivered early", None, r"^level\..* and was due at"),
        ("the timer runs ahead", None, r"^timed\..* and was due at"),
        ("the timer does not look back", ("timer", "timer-put-sync"), r"'Later', 'timed\..* is there 2 times"),
        ("requests are repeated without looking", ("send back", "after-records"), r"'failing\..* is there 2 times"),
    ],
)
def test_the_judge_notices(short: DutyChain, fault: str, step: tuple[str, str] | None, finding: str) -> None:
    kill = Kill(Step(*step)) if step else None
    was_killed = [short.live(kill, fault=fault) for _ in range(2)]  # what is delivered has to wait first
    assert any(was_killed) or step is None
    findings = short.finish(fault=fault, lives=4)
    assert any(re.search(finding, found) for found in findings), findings


def test_the_judge_finds_nothing_wrong_where_nothing_is(short: DutyChain) -> None:
    short.live()
    assert short.finish(lives=4) == []


def test_the_judge_notices_what_was_acknowledged_and_is_gone(short: DutyChain) -> None:
    short.live()
    assert short.judge.look() == []
    notes = Notes(short.notes)
    notes.add("sent", "level.995", place=17, offset=0)
    notes.add("failed", "failing.999/0")
    assert short.judge.look() == [
        "level.995 was acknowledged at 17, and is not there",
        "failing.999/0 was sent back, and is not there",
    ]


def test_the_judge_notices_progress_of_a_level_that_is_undone(short: DutyChain) -> None:
    short.live()
    short.live()
    path = short.root / "config" / "delayOffset.json"
    table = json.loads(path.read_text("utf-8"))
    level, offset = next((level, offset) for level, offset in table["offsetTable"].items() if offset)
    path.write_text(json.dumps({**table, "offsetTable": {**table["offsetTable"], level: 0}}), "utf-8")
    assert short.judge.look() == [f"offset of level {level} went from {offset} back to 0"]
