"""Extension units: what the broker wrote, and addresses that point at nothing."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from storage.files.local_file_system import LocalFileSystem
from storage.queues.ext import ConsumeQueueExt, ExtUnit
from tests.support.fixture_stores import Fixture, golden_lines

LEAST = -(2**63)


def test_units_are_those_that_apache_reads(pristine_store: Callable[[str], Fixture]) -> None:
    fixture = pristine_store("ext")
    queues: dict[tuple[str, int], list[dict[str, object]]] = {}
    for line in golden_lines(fixture.golden, "message"):
        queues.setdefault((line["cqTopic"], line["cqQueueId"]), []).append(line)
    checked = 0
    for (topic, queue_id), lines in queues.items():
        ext = ConsumeQueueExt(LocalFileSystem(), f"{fixture.root}/consumequeue_ext/{topic}/{queue_id}")
        raw = np.array([line["tagsCodeRaw"] for line in lines], np.int64)
        assert ext.tags_codes(raw).tolist() == [line["tagsCode"] for line in lines]
        for line in lines:
            golden = line.get("ext")
            if isinstance(golden, dict) and isinstance(line["tagsCodeRaw"], int):
                assert ext.unit(line["tagsCodeRaw"]) == ExtUnit(
                    golden["size"], golden["tagsCode"], golden["msgStoreTime"], bytes.fromhex(golden["bitMap"] or "")
                )
                checked += 1
        ext.close()
    assert checked > 100


@pytest.fixture
def units(tmp_path: Path) -> ConsumeQueueExt:
    """Two files of 100 bytes: units at 0 and 22 of the first, at 100 in all of the second."""
    first = struct.pack(">hqqh2s", 22, 7, 8, 2, b"ab") + struct.pack(">hqqh", 20, -9, 1, 0)
    (tmp_path / f"{0:020d}").write_bytes(first.ljust(100, b"\0"))
    (tmp_path / f"{100:020d}").write_bytes(struct.pack(">hqqh", 20, 11, 2, 0).ljust(100, b"\0"))
    return ConsumeQueueExt(LocalFileSystem(), str(tmp_path), 100)


def test_addresses_lead_to_units(units: ConsumeQueueExt) -> None:
    assert units.unit(LEAST) == ExtUnit(22, 7, 8, b"ab")
    assert units.unit(LEAST + 22) == ExtUnit(20, -9, 1, b"")
    assert units.unit(LEAST + 100) == ExtUnit(20, 11, 2, b"")
    codes = np.array([LEAST + 100, 5, LEAST, -(2**31), LEAST + 22, 0, -1])
    assert units.tags_codes(codes).tolist() == [11, 5, 7, -(2**31), -9, 0, -1]


@pytest.mark.parametrize("position", [42, 81, 99, 190, 199, 200, 10**6, 2**62])
def test_an_address_without_a_unit_is_no_tag(units: ConsumeQueueExt, position: int) -> None:
    assert units.unit(LEAST + position) is None
    assert units.tags_codes(np.array([LEAST + position])).tolist() == [0]
    assert units.tags_codes(np.array([LEAST, LEAST + position])).tolist() == [7, 0]


def test_plain_codes_need_no_file(tmp_path: Path) -> None:
    ext = ConsumeQueueExt(LocalFileSystem(), str(tmp_path / "none"))
    assert ext.tags_codes(np.array([1, -(2**31), 0])).tolist() == [1, -(2**31), 0]
    assert ext.tags_codes(np.array([LEAST])).tolist() == [0]
    assert ext.unit(LEAST) is None
