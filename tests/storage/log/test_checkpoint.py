"""The checkpoint page: the broker's bytes, and pages that are short."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from storage.log.checkpoint import PAGE_SIZE, Checkpoint, decode_checkpoint, encode_checkpoint
from tests.support.fixture_stores import FIXTURE_NAMES, Fixture, golden_lines


@pytest.mark.parametrize("name", FIXTURE_NAMES)
def test_the_brokers_page_decodes_and_encodes_to_itself(name: str, pristine_store: Callable[[str], Fixture]) -> None:
    fixture = pristine_store(name)
    page = (fixture.root / "checkpoint").read_bytes()
    (config,) = golden_lines(fixture.golden, "config")
    assert decode_checkpoint(page) == Checkpoint(*config["checkpoint"].values())
    assert list(config["checkpoint"])[:5] == [
        *("physicMsgTimestamp", "logicsMsgTimestamp", "indexMsgTimestamp", "masterFlushedOffset", "confirmPhyOffset")
    ]
    assert list(config["checkpoint"])[5:] in ([], ["logicsPhysicalOffset"])
    assert encode_checkpoint(decode_checkpoint(page)) == page
    assert len(page) == PAGE_SIZE


@pytest.mark.parametrize("length", range(0, 40, 7))
def test_a_short_page_reads_as_none(length: int) -> None:
    assert decode_checkpoint(b"\1" * length) == Checkpoint()


@pytest.mark.parametrize(
    ("physic", "logics", "expected"), [(10_000, 20_000, 7_000), (20_000, 10_000, 7_000), (1_000, 1_000, 0), (0, 0, 0)]
)
def test_recovery_goes_back_three_seconds_before_the_older_time(physic: int, logics: int, expected: int) -> None:
    assert Checkpoint(physic, logics).recovery_timestamp == expected
