"""A stripe of wrong bits, and what shows that the kind can fail."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from storage import StorageError
from tests.support.shares import one_in
from tests.torture.bit_flips import (
    ALONE,
    CLASSES,
    DETECTED,
    HARMLESS,
    REPAIRED,
    SILENT,
    Bench,
    Bit,
    Judge,
    silent_failures,
    sweep,
    table,
)
from tests.torture.faults import recovery_checks_no_body
from tests.torture.kind import Outcome
from tests.torture.small_stores import INDEX_SLOTS, STORES
from tests.torture.store_fields import FREE, fields_of

pytestmark = pytest.mark.slow

STRIPES = 997
CLOSED = STORES["closed"]


@pytest.mark.parametrize("name", one_in(4, STORES))
def test_no_wrong_bit_of_a_stripe_goes_unnoticed_where_a_checksum_reaches(tmp_path: Path, name: str) -> None:
    outcome = Outcome()
    sweep(STORES[name], tmp_path / "bits", 17, STRIPES, outcome)
    assert outcome.failures == []
    assert sum(count for what, count in outcome.figures.items() if what.endswith(CLASSES)) == outcome.trials > 20
    assert f"gone through: {name} 1." in table(outcome.figures)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench.make(CLOSED, tmp_path)


def first_bit(bench: Bench, field: str) -> Bit:
    return next(bit for bit in bench.bits if bit.field == field)


def test_what_readers_that_check_nothing_are_served_is_told(bench: Bench) -> None:
    """As the body of a record in a file that opening does not walk over, and the flag, which no checksum covers, show."""
    outcome, judge = Outcome(), Judge(bench)
    assert judge.flip(first_bit(bench, "commitlog: body"), outcome) == DETECTED
    assert judge.flip(first_bit(bench, "commitlog: flag"), outcome) == SILENT
    assert judge.flip(first_bit(bench, "consumequeue: tags code"), outcome) == REPAIRED
    assert judge.flip(first_bit(bench, f"checkpoint: {FREE}"), outcome) == HARMLESS
    assert outcome.figures[f"closed | commitlog: body | {ALONE}"] == 1
    assert outcome.failures == silent_failures(outcome.figures) == []
    assert "| commitlog: flag | 1 |  |  |  | 1 | 1 | 1 |" in table(outcome.figures)


def test_an_engine_that_checks_no_body_is_noticed(bench: Bench) -> None:
    outcome, judge = Outcome(), Judge(bench)
    with recovery_checks_no_body():
        assert judge.flip(first_bit(bench, "commitlog: body"), outcome) == SILENT
    assert [text.split(": ")[1] for text in silent_failures(outcome.figures)] == [
        "body | silently wrong",
        "body | served wrong",
        "body | served wrong with verifyCrc",
    ][::2]


def test_a_store_is_put_right_after_each_bit(bench: Bench) -> None:
    def state() -> list[tuple[str, int]]:
        return sorted((path, os.stat(path).st_mtime_ns) for path, _, _ in os.walk(bench.root))

    before = state()
    judge, outcome = Judge(bench), Outcome()
    for bit in (bench.bits[0], first_bit(bench, "commitlog: size"), bench.bits[-1]):
        judge.flip(bit, outcome)
    assert {path: file.read_bytes() for path, file in bench._walk()} == bench.files
    assert state() == before


@pytest.mark.parametrize("name", STORES)
def test_every_byte_of_a_store_belongs_to_one_field(tmp_path: Path, name: str) -> None:
    bench = Bench.make(STORES[name], tmp_path)
    for path, content in bench.files.items():
        at = 0
        for part in fields_of(path, content, index_slots=INDEX_SLOTS):
            assert part.start == at
            at = part.end
            if part.name == FREE:
                assert not any(content[part.start : part.end]) or path.startswith("index/"), (path, part)
        assert at == len(content)
    with STORES[name].open(bench.root, read_only=True) as store:
        assert store.topics()
    with pytest.raises(StorageError):
        STORES[name].open(tmp_path / "nowhere", read_only=True)
