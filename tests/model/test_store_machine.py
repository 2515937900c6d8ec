"""A slice of the scripts, always the same ones; and that the model notices what is wrong.

`python -m tests.torture state-machine` runs others.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import storage.recovery.opening
from storage.dispatch.recovery_plan import RecoveryPlan
from storage.index.store import IndexWriter
from storage.log.dispatch import QueueEntries
from storage.queues.writer import ConsumeQueueWriter
from tests.support.crash_file_system import CrashFileSystem
from tests.torture import state_machine

SEED = 6
FEW = 12
"""Scripts in which each of the planted faults shows."""


@pytest.mark.slow
def test_a_store_is_as_its_model_says_after_every_step(tmp_path: Path) -> None:
    outcome = state_machine.run(SEED, tmp_path, scripts=8)

    assert outcome.failures == []
    assert outcome.trials >= 8
    assert outcome.figures["crashes"] > 10
    assert outcome.figures["bytes lost"] > 0, "the disk forgets nothing"


def test_a_dispatch_that_drops_an_entry_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append = ConsumeQueueWriter.append

    def append_some(writer: ConsumeQueueWriter, new: QueueEntries) -> None:
        append(writer, new.rows(new.queue_offsets != 3))

    monkeypatch.setattr(ConsumeQueueWriter, "append", append_some)

    assert re.search("not there|a hole at", _failure(tmp_path))


@pytest.mark.slow
def test_a_recovery_that_cuts_one_record_too_many_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = storage.recovery.opening.read_plan

    def plan_too_short(*arguments: Any, **settings: Any) -> RecoveryPlan:
        found = plan(*arguments, **settings)
        if found.was_clean or found.last_record is None:
            return found
        return replace(found, log_end=found.last_record.commitlog_offset)

    monkeypatch.setattr(storage.recovery.opening, "read_plan", plan_too_short)

    assert "was certain" in _failure(tmp_path)


def test_keys_that_are_not_entered_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(IndexWriter, "append", lambda writer, keys: None)

    assert "a look-up of" in _failure(tmp_path)


@pytest.mark.slow
def test_a_log_that_is_not_synced_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sync = CrashFileSystem.sync

    def sync_all_but_the_log(files: CrashFileSystem, path: str) -> None:
        if "/commitlog/" not in path:
            sync(files, path)

    monkeypatch.setattr(CrashFileSystem, "sync", sync_all_but_the_log)

    assert "was certain" in _failure(tmp_path)


def _failure(directory: Path) -> str:
    outcome = state_machine.run(SEED, directory, scripts=FEW, shrinks=False)
    assert outcome.failures
    return outcome.failures[0]
