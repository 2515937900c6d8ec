"""The orders that faults are made of are those of storage/README.md, and a fault is what its name says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.files.local_file_system import LocalFileSystem
from tests.crash.stories import STORIES
from tests.support.places import PROJECT
from tests.torture.orders import ORDERS
from tests.torture.orders.verdicts import VERDICTS, Harmless
from tests.torture.step_faults import STEP_FAULTS, Outcome, judges_of, outcome_of, plant_all, report
from tests.torture.steps import Order, Step, faults_of, planted

_ORDER = re.compile(r"- \*\*(Order[^*]*)\.\*\* (.*?)\.(?:\s|$)", re.DOTALL)

REPLACED = "storage.files.local_file_system:LocalFileSystem"
TOY = Order(
    "A file",
    f"{REPLACED}.replace",
    (
        Step("written", f"{REPLACED}.write"),
        Step("renamed", f"{REPLACED}.rename"),
        Step("looked at"),
        Step("synced", f"{REPLACED}.sync"),
    ),
)

QUICK = (
    'Closing: "`checkpoint`" is left out',
    'Delivering delay levels (`delay/schedule.py`): "log synced" after "`delayOffset.json`"',
    'Putting (`put`, `put_batch`): "under SYNC_FLUSH their sync" after "queue entries"',
    'Closing: "hint deleted" is left out',
    'A batch (`storage/batch/commit.py`): "under SYNC_FLUSH, and without a consumer offset, log synced" after "intent dropped"',
)


def orders_of_the_readme() -> Iterator[tuple[str, str, list[str]]]:
    """Heading, title and steps of each."""
    text = (PROJECT / "storage/README.md").read_text("utf-8")
    for section in re.split(r"^###? ", text, flags=re.MULTILINE)[1:]:
        heading, _, body = section.partition("\n")
        for title, steps in _ORDER.findall(body):
            yield heading, title, " ".join(steps.split()).split(" · ")


def test_the_orders_are_those_of_the_readme() -> None:
    declared = {(order.heading, order.title): [step.text for step in order.steps] for order in ORDERS}
    found = {(heading, title): steps for heading, title, steps in orders_of_the_readme()}
    assert found == declared


@pytest.mark.slow
def test_each_step_can_be_planted_and_is_gone_afterwards() -> None:
    before = [vars(LocalFileSystem)[name] for name in ("write", "sync", "replace", "rename")]
    for fault in STEP_FAULTS.values():
        with planted(fault):
            pass
    assert [vars(LocalFileSystem)[name] for name in ("write", "sync", "replace", "rename")] == before


def test_every_fault_has_a_judge_that_is_there_or_a_reason() -> None:
    assert set(VERDICTS) <= set(STEP_FAULTS)
    for name, fault in STEP_FAULTS.items():
        assert judges_of(fault), name
        assert set(fault.order.stories) <= set(STORIES)
        for judge in judges_of(fault):
            path, _, test = judge.partition("::")
            assert test.partition("[")[0] in (PROJECT / path).read_text("utf-8"), name


def test_an_order_gives_each_step_left_out_and_each_pair_of_neighbours_swapped() -> None:
    names = [fault.name for fault in faults_of(TOY)]
    assert names == [
        'A file: "written" is left out',
        'A file: "written" after "renamed"',
        'A file: "renamed" is left out',
        'A file: "renamed" after "synced"',
        'A file: "synced" is left out',
    ]


@pytest.mark.parametrize(
    ("number", "calls"),
    [
        (0, ["sync", "rename", "sync"]),
        (2, ["write", "sync", "sync"]),
        (3, ["write", "sync", "sync", "rename"]),
        (4, ["write", "rename"]),
    ],
)
def test_a_fault_touches_its_step_within_its_operation_only(tmp_path: Path, number: int, calls: list[str]) -> None:
    told: list[str] = []

    class Told(LocalFileSystem):
        def write(self, path: str, position: int, data: object) -> None:
            told.append("write")

        def sync(self, path: str) -> None:
            told.append("sync")

        def rename(self, path: str, new_path: str) -> None:
            told.append("rename")

    with planted(list(faults_of(TOY))[number]) as met:
        Told().replace(str(tmp_path / "name"), b"x")
        assert told == calls
        told.clear()
        Told().sync(str(tmp_path))
    assert told == ["sync"]
    assert met.count


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_a_fault_of_a_step_is_noticed_or_harmless(name: str) -> None:
    assert outcome_of(STEP_FAULTS[name]) is not Outcome.MISSED


@pytest.mark.slow
def test_many_faults_are_judged_in_forks_of_one_process() -> None:
    outcomes = plant_all(1, names=QUICK[2:4])
    assert list(outcomes.values()) == [Outcome.NOTICED, Outcome.HARMLESS]


def test_a_page_counts_and_tells_why() -> None:
    name, harmless = next((name, verdict) for name, verdict in VERDICTS.items() if isinstance(verdict, Harmless))
    others = [other for other in STEP_FAULTS if other != name][:2]
    text = report({name: Outcome.HARMLESS, others[0]: Outcome.NOTICED, others[1]: Outcome.MISSED})
    assert text[0] == "planted faults by step 2/3: 1 noticed, 1 shown to be harmless"
    assert f"| {name} | {harmless.reason} |" in text
    assert f"- FAILED, not noticed: {others[1]}" in text


@pytest.mark.crash
@pytest.mark.long
@pytest.mark.slow
def test_every_fault_of_a_step_is_noticed_or_harmless() -> None:
    outcomes = plant_all(2)
    assert [name for name, outcome in outcomes.items() if outcome is Outcome.MISSED] == []
