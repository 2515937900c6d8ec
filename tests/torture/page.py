"""What the torture has come to, as a part of docs/tables/torture.md: between two marks, the rest of the page is written by hand."""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from tests.torture.kind import Kind
from tests.torture.rounds import Record

BEGIN, END = "<!-- torture: written by make torture -->", "<!-- torture: end -->"
STEPS_BEGIN, STEPS_END = "<!-- steps: written by make torture -->", "<!-- steps: end -->"
_SEEDS_SHOWN = 3


def torture(
    records: Mapping[str, Record],
    killed: Mapping[str, str | None],
    kinds: Mapping[str, Kind],
    seed: int,
    minutes: float,
    version: str,
) -> str:
    """The table, the other figures, and the mutants. `version` is the commit that was tried."""
    lines = [
        f"`make torture MINUTES={minutes:g}` with seed {seed} at {version}: rounds of every kind, each in a process of its own, on "
        f"{os.cpu_count()} cores ({platform.system()}, Python {platform.python_version()}). A round plays again by "
        "`python -m tests.torture KIND --seed N`; a kind's seeds, one after the other, follow from the run's and its name.",
        "",
        "| kind | what holds | rounds | minutes | trials | failed rounds | 95 % bound | first seeds |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    lines += [_row(kinds[name], record) for name, record in records.items()]
    lines += [
        "",
        "A trial is what the figures of its kind name. Where n trials found nothing, the true rate of failure is below 3/n with 95 % "
        "confidence, as far as trials are independent; n is the number in brackets where there is one.",
    ]
    for name, record in records.items():
        if record.outcome.figures:
            lines += ["", f"**{name}** ({kinds[name].unit}): {_figures(kinds[name], record.outcome.figures)}"]
        lines += [f"- FAILED, seed {failed}" for failed in record.failed_seeds]
        if is_toothless(kinds[name], record):
            lines += [f"- FAILED: {kinds[name].bites} is 0, so nothing was tried"]
    lines += ["", f"mutants killed {sum(by is not None for by in killed.values())}/{len(killed)}", ""]
    lines += ["| planted fault | noticed by |", "| --- | --- |"]
    lines += [f"| {mutant} | {by or '**nothing**'} |" for mutant, by in killed.items()]
    return "\n".join(lines)


def is_toothless(kind: Kind, record: Record) -> bool:
    """Whether nothing was lost where losing is allowed: then the faults may not be faults."""
    return bool(kind.bites) and not record.outcome.figures[kind.bites]


def _figures(kind: Kind, figures: Counter[str]) -> str:
    if kind.render is not None:
        return kind.render(figures)
    return "; ".join(f"{what}: {count:,}" for what, count in sorted(figures.items())) + "."


def _row(kind: Kind, record: Record) -> str:
    outcome = record.outcome
    failures = len(record.failed_seeds)
    cells = (
        kind.name,
        kind.claim,
        f"{len(record.seeds):,}",
        f"{record.seconds / 60:.1f}",
        f"{outcome.trials:,} {kind.unit}",
        f"{failures}",
        _bound(kind, record),
        ", ".join(map(str, record.seeds[:_SEEDS_SHOWN])),
    )
    return f"| {' | '.join(cells)} |"


def _bound(kind: Kind, record: Record) -> str:
    """Of parts of a whole there is none: they are no sample."""
    if kind.parts:
        return f"{len(record.seeds)} of {len(kind.parts)} parts"
    trials = record.outcome.figures[kind.bound_on] if kind.bound_on else record.outcome.trials
    if record.failed_seeds or not trials:
        return ""
    return f"{3 / trials:.1e}" + (f" ({trials:,} {kind.bound_on})" if kind.bound_on else "")


def write_into(path: Path, text: str, begin: str = BEGIN, end: str = END) -> None:
    """Put the text between two marks of the page."""
    page = path.read_text(encoding="utf-8")
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    path.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}", encoding="utf-8")
