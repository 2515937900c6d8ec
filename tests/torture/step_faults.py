"""The planted faults that the orders of storage/README.md give, by name, and whether each is noticed.

What each fault is, `steps.py` says; who must notice it, or why nobody must, `orders/`. A fault is noticed where a test that has met it
fails with it and passes without. One that is called harmless is met by a test that passes all the same.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from enum import Enum
from pathlib import Path
from queue import SimpleQueue
from types import MappingProxyType

from tests.support.places import PROJECT
from tests.torture.judge_process import JudgeProcess
from tests.torture.orders import ORDERS
from tests.torture.orders.verdicts import VERDICTS, Harmless
from tests.torture.steps import StepFault, faults_of

STEP_FAULTS: Mapping[str, StepFault] = MappingProxyType(
    {fault.name: fault for order in ORDERS for fault in faults_of(order)}
)
ENVIRONMENT = "SPARK_MQ_MUTANT"
MET = "planted fault met "
_ARGUMENTS = ("-q", "-x", "-p", "tests.torture.planting", "-p", "no:cacheprovider", "-p", "no:randomly")
_STORY = "tests/crash/test_orders.py::test_the_disk_is_told_the_order"
_PATIENCE_S, _PATIENCE_WITH_ALL_S = 120, 1_200
_BLUNDER = re.compile(r"^E\s+(TypeError|AttributeError|NameError|UnboundLocalError)\b", re.MULTILINE)
"""What a fault shows that is planted wrongly: it counts for nothing."""


class Outcome(Enum):
    NOTICED = "noticed"
    HARMLESS = "harmless"
    MISSED = "NOT NOTICED"


def judges_of(fault: StepFault) -> tuple[str, ...]:
    """The tests that are run with the fault planted: one of them must fail, or, of a harmless one, all pass."""
    match VERDICTS.get(fault.name):
        case Harmless(_, shown_by):
            return (shown_by,)
        case str(judge):
            return (judge,)
    return tuple(f"{_STORY}[{story}]" for story in fault.order.stories)


def plant_all(
    jobs: int, note: Callable[[str], None] = lambda line: None, names: Iterable[str] = tuple(STEP_FAULTS)
) -> dict[str, Outcome]:
    """What became of each fault. Raises RuntimeError where a judge fails in the sound engine."""
    faults = [STEP_FAULTS[name] for name in names]
    judges = sorted({judge for fault in faults for judge in judges_of(fault)})
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="judges-")))
        processes = SimpleQueue[JudgeProcess]()
        for number in range(jobs):
            processes.put(stack.enter_context(JudgeProcess(directory, number)))

        def ask(judges: Iterable[str], fault: StepFault | None) -> subprocess.CompletedProcess[str]:
            process = processes.get()
            try:
                patience_s = _PATIENCE_S if fault is not None else _PATIENCE_WITH_ALL_S
                return process.run([*_ARGUMENTS, *judges], _environment(fault), patience_s)
            finally:
                processes.put(process)

        sound = ask(judges, None)
        if sound.returncode:
            raise RuntimeError(f"the judges do not pass on the sound engine:\n{sound.stdout}")
        pool = stack.enter_context(ThreadPoolExecutor(jobs))
        found = pool.map(lambda fault: _outcome(fault, ask(judges_of(fault), fault)), faults)
        outcomes = dict(zip((fault.name for fault in faults), found, strict=True))
    for name, outcome in outcomes.items():
        if outcome is Outcome.MISSED:
            note(f"step fault: {name}: {outcome.value}")
    return outcomes


def outcome_of(fault: StepFault) -> Outcome:
    """Plant it, and ask its judges, in a process of their own."""
    arguments = [sys.executable, "-m", "pytest", *_ARGUMENTS, *judges_of(fault)]
    environment = {**os.environ, **_environment(fault)}
    try:
        ended = subprocess.run(
            arguments, cwd=PROJECT, env=environment, capture_output=True, text=True, timeout=_PATIENCE_S
        )
    except subprocess.TimeoutExpired:
        return Outcome.MISSED
    return _outcome(fault, ended)


def _environment(fault: StepFault | None) -> dict[str, str]:
    return {} if fault is None else {ENVIRONMENT: fault.name}


def _outcome(fault: StepFault, ended: subprocess.CompletedProcess[str]) -> Outcome:
    """What its judges have shown. Who takes too long has noticed nothing."""
    met = re.search(rf"{MET}(\d+) times", ended.stdout)
    if met is None or met[1] == "0":
        return Outcome.MISSED
    if isinstance(VERDICTS.get(fault.name), Harmless):
        return Outcome.MISSED if ended.returncode else Outcome.HARMLESS
    is_noticed = ended.returncode == 1 and not _BLUNDER.search(ended.stdout)
    return Outcome.NOTICED if is_noticed else Outcome.MISSED


def report(outcomes: Mapping[str, Outcome]) -> list[str]:
    """As a part of a page: how many of how many, operation by operation, and why some are harmless."""
    counts = Counter(outcomes.values())
    shown = counts[Outcome.NOTICED] + counts[Outcome.HARMLESS]
    lines = [
        f"planted faults by step {shown}/{len(outcomes)}: {counts[Outcome.NOTICED]} noticed, "
        f"{counts[Outcome.HARMLESS]} shown to be harmless",
        "",
        "| operation ([storage/README.md](../../storage/README.md)) | faults | noticed | harmless |",
        "| --- | ---: | ---: | ---: |",
    ]
    for order in ORDERS:
        of_order = Counter(outcomes[fault.name] for fault in faults_of(order) if fault.name in outcomes)
        if of_order:
            numbers = (of_order.total(), of_order[Outcome.NOTICED], of_order[Outcome.HARMLESS])
            lines.append(f"| {order.name} | {' | '.join(map(str, numbers))} |")
    lines += ["", "| harmless fault | why |", "| --- | --- |"]
    for name, outcome in outcomes.items():
        verdict = VERDICTS.get(name)
        if outcome is Outcome.HARMLESS and isinstance(verdict, Harmless):
            lines.append(f"| {name} | {verdict.reason} |")
    lines += [f"- FAILED, not noticed: {name}" for name, outcome in outcomes.items() if outcome is Outcome.MISSED]
    return lines
