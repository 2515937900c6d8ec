"""The runners of rounds and of long runs, and their pages, with kinds that are no torture."""

from __future__ import annotations

from collections import Counter
from itertools import product
from pathlib import Path
from random import Random

import pytest

from tests.crash.driver_chain import FAILPOINTS, Victim, plan_deaths
from tests.torture import __main__ as torture
from tests.torture import by_hand, page, rounds
from tests.torture.by_hand import ByHand, Report, Run
from tests.torture.kind import Kind, Outcome

SOUND = Kind(
    "sound", "nothing happens", "dice", lambda random, directory: Outcome(3, [], Counter(pips=random.randint(1, 6)))
)


def _raises(random: Random, directory: Path) -> Outcome:
    raise AssertionError(f"lost in {directory.name}")


def test_a_round_follows_from_its_seed_and_leaves_nothing_behind() -> None:
    def play(random: Random, directory: Path) -> Outcome:
        (directory / "left").write_bytes(b"over")
        places.append(directory)
        return Outcome(1, [], Counter(drawn=random.getrandbits(30)))

    places: list[Path] = []
    kind = Kind("drawing", "", "draws", play)
    assert rounds.play(kind, 7) == rounds.play(kind, 7) != rounds.play(kind, 8)
    assert not any(place.exists() for place in places)


def test_what_a_round_lets_out_is_a_failure_with_its_traceback() -> None:
    outcome = rounds.play(Kind("raising", "", "rounds", _raises), 1)
    assert outcome.trials == 1
    assert "AssertionError: lost in torture-raising" in outcome.failures[0]


def test_an_outcome_crosses_between_processes_whole() -> None:
    outcome = Outcome(5, ["first\nsecond"], Counter({"lost under ASYNC_FLUSH": 2}))
    assert rounds.from_line(rounds.to_line(outcome)) == outcome


def test_every_kind_gets_a_round_even_when_the_time_is_over() -> None:
    records = rounds.run(dict.fromkeys("abc", SOUND), 1, 0, jobs=2, play_round=lambda name, seed: Outcome(1))
    assert {name: len(record.seeds) for name, record in records.items()} == {"a": 1, "b": 1, "c": 1}


def test_the_same_seed_plays_the_same_rounds() -> None:
    played = [
        rounds.run(dict.fromkeys("ab", SOUND), 5, 0, jobs=1, play_round=lambda name, seed: Outcome(1)) for _ in range(2)
    ]
    assert played[0]["a"].seeds == played[1]["a"].seeds != played[0]["b"].seeds


def test_the_parts_of_a_whole_are_each_played_once() -> None:
    parts = tuple(lambda directory, number=number: Outcome(number) for number in range(5))
    kinds = {"whole": Kind("whole", "", "parts", lambda random, directory: Outcome(100), parts=parts)}
    records = rounds.run(kinds, 2, 10, jobs=2, play_round=lambda name, seed: rounds.play(kinds[name], seed))
    assert sorted(records["whole"].seeds) == [0, 1, 2, 3, 4]
    assert records["whole"].outcome.trials == 0 + 1 + 2 + 3 + 4
    assert rounds.play(kinds["whole"], 5).trials == 100


def test_a_seed_that_failed_is_told_and_takes_the_bound_away(tmp_path: Path) -> None:
    kinds = {"sound": SOUND, "raising": Kind("raising", "all is well", "rounds", _raises)}
    records = rounds.run(kinds, 3, 0, jobs=1, play_round=lambda name, seed: rounds.play(kinds[name], seed))
    (tmp_path / "page.md").write_text(f"before\n{page.BEGIN}\nold\n{page.END}\nafter\n")
    page.write_into(tmp_path / "page.md", page.torture(records, {"a fault": None}, kinds, 3, 0.5, "commit 1"))
    written = (tmp_path / "page.md").read_text()
    assert written.startswith("before\n")
    assert written.endswith("\nafter\n")
    assert "\nold\n" not in written
    sound, raising = (next(line for line in written.splitlines() if line.startswith(f"| {name} ")) for name in kinds)
    assert "| 3 dice | 0 | 1.0e+00 |" in sound
    assert "| 1 rounds | 1 |  |" in raising
    assert f"FAILED, seed {records['raising'].failed_seeds[0]}" in written
    assert "mutants killed 0/1" in written


def test_a_kind_may_show_its_figures_as_it_likes() -> None:
    rendered = Kind("rendered", "", "dice", SOUND.play, lambda figures: f"a table of {len(figures)}")
    kinds = {"sound": SOUND, "rendered": rendered}
    records = rounds.run(kinds, 3, 0, jobs=1, play_round=lambda name, seed: rounds.play(kinds[name], seed))
    written = page.torture(records, {}, kinds, 3, 0, "commit 1").splitlines()
    assert "**rendered** (dice): a table of 1" in written
    assert f"**sound** (dice): pips: {records['sound'].outcome.figures['pips']}." in written


def test_a_process_that_dies_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "command", lambda name, seed: ["sh", "-c", "echo gone >&2; kill -9 $$"])
    outcome = rounds.play_in_process("any", 1)
    assert outcome.failures == ["the round's process ended with code -9:\ngone"]


def test_a_round_that_does_not_end_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "command", lambda name, seed: ["sh", "-c", "exec sleep 60"])
    monkeypatch.setattr(rounds, "HANG_SECONDS", 0.05)
    assert "did not end" in rounds.play_in_process("any", 1).failures[0]


# Long runs


@pytest.mark.parametrize("name", by_hand.MODULES)
def test_a_long_run_is_found_by_its_name(name: str) -> None:
    assert by_hand.load(name).rounds > 0


def test_a_report_is_the_page_or_stands_behind_it_or_between_its_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    ByHand(_found_nothing, rounds=1).put(page, "whole\n")
    by_hand.behind(page, "behind\n")
    page.write_text(page.read_text() + "(old)")
    by_hand.between("(", ")")(page, "new")
    assert page.read_text() == "whole\n\nbehind\n(\n\nnew\n\n)"


@pytest.mark.parametrize("is_sound", [True, False])
def test_a_long_run_that_finds_something_ends_with_1(
    is_sound: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kind = ByHand(lambda run: _found_nothing(run)._replace(is_sound=is_sound), rounds=7, scenes=("one",))
    monkeypatch.setattr(by_hand, "load", lambda name: kind)
    arguments = ["killed-drivers", "--seed", "5", "--scene", "one", "--page", str(tmp_path / "page.md")]
    assert torture.main(arguments) == (0 if is_sound else 1)
    assert (tmp_path / "page.md").read_text() == "7 rounds of one with seed 5"
    assert "7 rounds of one with seed 5" in capsys.readouterr().out


def _found_nothing(run: Run) -> Report:
    assert not any(run.directory.iterdir())
    return Report(f"{run.rounds} rounds of {run.scene} with seed {run.seed}")


@pytest.mark.parametrize("rounds", [50, 120])
def test_fifty_rounds_and_more_kill_at_each_failpoint_with_either_victim(rounds: int) -> None:
    deaths = Counter((death.failpoint, death.victim) for death in plan_deaths(rounds, Random(1)))
    assert deaths.total() == rounds
    planned = {(str(failpoint).partition(":")[0], victim) for failpoint, victim in deaths if failpoint is not None}
    assert planned == {
        (name.partition(":")[0], victim) for name, victim in product(FAILPOINTS, (Victim.ALL, Victim.WORKER))
    }
    assert any(failpoint is None for failpoint, _ in deaths), "some die at random moments"
