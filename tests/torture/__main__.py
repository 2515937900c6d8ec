"""The engine under torture.

    python -m tests.torture --minutes 60 docs/tables/torture.md    rounds of all kinds, and the page
    python -m tests.torture KIND --seed 4711                    one round again
    python -m tests.torture mutants                             which planted faults are noticed, and by what
    python -m tests.torture steps                               the same of each step of an order, left out or late
    python -m tests.torture NAME --rounds 50                    a long run of `by_hand.py`

Exit code 1 where something was found.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from random import SystemRandom

from tests.torture import by_hand, mutants, page, rounds, step_faults
from tests.torture.kinds import KINDS

DEFAULT_MINUTES = 10.0


def main(arguments: Sequence[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    if given and given[0] in by_hand.MODULES:
        return by_hand.main(given[0], given[1:])
    options = _parser().parse_args(given)
    seed = SystemRandom().getrandbits(32) if options.seed is None else options.seed
    if options.what == "mutants":
        return _plant_all(options.jobs)
    if options.what == "steps":
        outcomes = step_faults.plant_all(options.jobs, note=_note)
        print("\n".join(step_faults.report(outcomes)))
        return int(step_faults.Outcome.MISSED in outcomes.values())
    if options.what in KINDS:
        return _play(options.what, seed, options.mutant, options.json)
    if options.what is not None and not Path(options.what).is_file():
        print(f"{options.what} is no kind of {', '.join(KINDS)}, and no page", file=sys.stderr)
        return 2
    return _torture(options, seed)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "what",
        nargs="?",
        help=f"the page to write; or one of {', '.join((*KINDS, 'mutants', 'steps', *by_hand.MODULES))}",
    )
    parser.add_argument("--seed", type=int, help="the same seed plays the same round")
    parser.add_argument("--minutes", type=float, default=DEFAULT_MINUTES)
    parser.add_argument("--jobs", type=int, default=2, help="rounds at a time")
    parser.add_argument("--kinds", default=",".join(KINDS), help="which kinds, between commas")
    parser.add_argument("--mutant", choices=sorted(mutants.MUTANTS), help="plant this fault first")
    parser.add_argument(
        "--no-steps", action="store_true", help="plant no faults by step, and leave the page's part about them"
    )
    parser.add_argument("--json", action="store_true", help="the outcome as one line")
    return parser


def _play(name: str, seed: int, mutant: str | None, as_json: bool) -> int:
    with mutants.planted(mutant):
        outcome = rounds.play(KINDS[name], seed)
    if as_json:
        print(rounds.to_line(outcome))
        return 0
    print(f"{name} --seed {seed}: {outcome.trials:,} {KINDS[name].unit}, {len(outcome.failures)} failures")
    for what, count in sorted(outcome.figures.items()):
        print(f"  {what}: {count:,}")
    for failure in outcome.failures:
        print(failure)
    return bool(outcome.failures)


def _plant_all(jobs: int) -> int:
    killed = mutants.plant_all(jobs, note=_note)
    print(f"mutants killed {sum(by is not None for by in killed.values())}/{len(killed)}")
    return None in killed.values()


def _torture(options: argparse.Namespace, seed: int) -> int:
    _note(f"seed {seed}")
    kinds = {name: KINDS[name] for name in options.kinds.split(",") if name}
    killed = mutants.plant_all(options.jobs, note=_note)
    outcomes = {} if options.no_steps else step_faults.plant_all(options.jobs, note=_note)
    records = rounds.run(kinds, seed, options.minutes, jobs=options.jobs, note=_note)
    text = page.torture(records, killed, KINDS, seed, options.minutes, _version())
    print(text)
    if options.what is not None:
        page.write_into(Path(options.what), text)
    if outcomes:
        steps = "\n".join(step_faults.report(outcomes))
        print("", steps, sep="\n")
        if options.what is not None:
            page.write_into(Path(options.what), steps, page.STEPS_BEGIN, page.STEPS_END)
    found = any(record.outcome.failures or page.is_toothless(kinds[name], record) for name, record in records.items())
    return int(found or None in killed.values() or step_faults.Outcome.MISSED in outcomes.values())


def _version() -> str:
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=rounds.PROJECT, capture_output=True, text=True
    )
    return f"commit {described.stdout.strip()}" if not described.returncode else "an unknown commit"


def _note(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
