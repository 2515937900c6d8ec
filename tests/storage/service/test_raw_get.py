"""Which entries a pull takes: arrays against a straight reading of Java's loop."""

from __future__ import annotations

import numpy as np
import pytest

from storage.format.consume_queue import ENTRY
from storage.queues.get import GetStatus
from storage.service.served_store import (
    LogSpan,
    TransferLimits,
    candidates,
    entries_looked_at,
    status_of_nothing,
    stop_of,
)

LIMITS = TransferLimits(memory_bytes=60_000)
FILE = 16_384


def one_by_one(
    entries: np.ndarray, wanted: frozenset[int] | None, most: int, span: LogSpan
) -> tuple[list[int], int, GetStatus]:
    """The rows that are taken, how many entries were looked at, and the status. Java: DefaultMessageStore.getMessage."""
    rows: list[int] = []
    total, looked, passed_over_until = 0, 0, -1
    status = GetStatus.NO_MATCHED_MESSAGE
    for row, (place, size, code) in enumerate(entries.tolist()):
        in_memory = span.written_end - place <= LIMITS.memory_bytes
        bytes_most = LIMITS.in_memory_bytes if in_memory else LIMITS.on_disk_bytes
        count_most = LIMITS.in_memory_count if in_memory else LIMITS.on_disk_count
        if rows and (len(rows) + 1 > most or total + size > bytes_most or len(rows) > count_most - 1):
            break
        looked = row + 1
        if place < passed_over_until:
            continue
        if wanted is not None and code not in wanted:
            status = status if rows else GetStatus.NO_MATCHED_MESSAGE
            continue
        if place < span.minimum or place + size > span.end:
            status = status if rows else GetStatus.MESSAGE_WAS_REMOVING
            passed_over_until = (place // FILE + 1) * FILE
            continue
        rows.append(row)
        total += size
        status, passed_over_until = GetStatus.FOUND, -1
    return rows, looked, status


@pytest.mark.parametrize("seed", range(60))
def test_a_pull_takes_what_javas_loop_takes(seed: int) -> None:
    chance = np.random.default_rng(seed)
    count = int(chance.integers(1, 120))
    entries = np.zeros(count, ENTRY)
    sizes = chance.integers(100, [400, 6_000, 40_000][seed % 3], count)
    gaps = chance.integers(0, 2_000, count)
    entries["size_bytes"] = sizes
    entries["commitlog_offset"] = np.cumsum(sizes + gaps) - sizes
    entries["tags_code"] = chance.integers(0, 4, count)
    end = int(entries["commitlog_offset"][-1] + sizes[-1])
    minimum = int(chance.integers(0, end)) // FILE * FILE if seed % 2 else 0
    span = LogSpan(minimum, end, end + int(chance.integers(0, 100_000)), FILE)
    wanted = [None, frozenset({1}), frozenset({1, 3}), frozenset({9})][seed % 4]
    most = int(chance.choice([1, 5, 32, 100, 0, -3]))
    seen = candidates(entries, entries["tags_code"], wanted, span)
    taken = seen.passes & seen.is_there
    stop = stop_of(seen, taken, most, LIMITS, span)
    rows = np.flatnonzero(taken[:stop]).tolist()
    expected_rows, expected_stop, status = one_by_one(entries, wanted, most, span)
    assert (rows, stop) == (expected_rows, expected_stop)
    if not rows:
        assert status_of_nothing(seen, stop, span) is status


@pytest.mark.parametrize(
    ("most", "entries"), [(32, 800), (800, 800), (801, 801), (0, 800), (-5, 800), (2**31 - 1, 800), (100_000, 100_000)]
)
def test_a_pull_looks_at_sixteen_thousand_bytes_of_entries_or_at_as_many_as_it_wants(most: int, entries: int) -> None:
    assert entries_looked_at(most, LIMITS) == entries
