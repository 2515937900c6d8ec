"""What a task leaves to the search for partition_reader."""

from __future__ import annotations

import gc
import sys
from types import ModuleType

import pytest
from pyspark import TaskContext

from spark_mq.source import partition_reader
from spark_mq.source.partition_reader import QueuePartition, read_partition


@pytest.fixture
def freezes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many modules there were each time."""
    found: list[int] = []
    monkeypatch.setattr(gc, "freeze", lambda: found.append(len(sys.modules)))
    monkeypatch.setattr(partition_reader, "_seen_modules", 0)
    return found


def test_a_worker_searches_modules_once(freezes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TaskContext, "_taskContext", object.__new__(TaskContext))
    for _ in range(3):
        assert list(read_partition(QueuePartition())) == []
    assert len(freezes) == 1
    monkeypatch.setitem(sys.modules, "spark_mq.loaded_by_a_task", ModuleType("loaded_by_a_task"))
    for _ in range(3):
        partition_reader.leave_modules_alone()
    assert freezes == [freezes[0], freezes[0] + 1]


def test_who_reads_outside_of_a_worker_keeps_his_search(freezes: list[int]) -> None:
    assert list(read_partition(QueuePartition())) == []
    assert freezes == []
    with partition_reader.collected_later():
        assert not gc.isenabled()
    assert gc.isenabled()
