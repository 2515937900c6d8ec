"""A slice of failed operations, and what shows that the kind can fail."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from random import Random

import pytest

from tests.support.crash_disk import PAGE_BYTES
from tests.support.crash_file_system import CrashFileSystem
from tests.support.failing_file_system import SHORT, FailingFileSystem, Fault, Step
from tests.support.shares import one_in
from tests.torture.failed_io import FAILED_SYNC, TELLING, Mode, Sweep
from tests.torture.faults import failed_sync_is_success, writer_goes_on_after_a_failure
from tests.torture.kind import Outcome


def swept(directory: Path, mode: Mode, seed: int, *, sync_flush: bool, steps: int, trials: int | None) -> Outcome:
    outcome = Outcome()
    Sweep(directory, mode, seed, sync_flush, steps).run(outcome, trials)
    return outcome


@pytest.mark.parametrize("sync_flush", one_in(2, [True, False]), ids=["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_whichever_sync_fails_nothing_is_acknowledged_that_a_power_loss_takes(tmp_path: Path, sync_flush: bool) -> None:
    outcome = swept(tmp_path, FAILED_SYNC, 3, sync_flush=sync_flush, steps=4, trials=7)
    assert outcome.failures == []
    assert outcome.figures["steps that failed"] >= outcome.trials


@pytest.mark.parametrize("mode", [mode for mode in TELLING if mode != FAILED_SYNC], ids=lambda mode: str(mode.at(1)))
def test_whatever_operation_fails_the_store_holds_what_it_promised(tmp_path: Path, mode: Mode) -> None:
    outcome = swept(tmp_path, mode, 5, sync_flush=True, steps=5, trials=3)
    assert outcome.failures == []


@pytest.mark.crash
@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("mode", TELLING, ids=lambda mode: str(mode.at(1)))
def test_whichever_operation_of_a_workload_fails_the_store_holds_what_it_promised(tmp_path: Path, mode: Mode) -> None:
    """n = 1, 2, 3 … until the workload is done without meeting the fault."""
    outcome = swept(tmp_path, mode, 11, sync_flush=True, steps=8, trials=None)
    assert outcome.failures == []
    assert outcome.trials > 8


@pytest.mark.slow
def test_a_failed_sync_that_is_taken_for_success_is_noticed(tmp_path: Path) -> None:
    with failed_sync_is_success():
        outcome = swept(tmp_path, FAILED_SYNC, 1, sync_flush=True, steps=4, trials=6)
    assert any("lost: " in text or "hole: " in text for text in outcome.failures), outcome.failures


@pytest.mark.slow
def test_a_writer_that_goes_on_after_a_failed_sync_is_noticed(tmp_path: Path) -> None:
    with writer_goes_on_after_a_failure():
        outcome = swept(tmp_path, FAILED_SYNC, 3, sync_flush=True, steps=4, trials=6)
    assert any("a put is taken" in text for text in outcome.failures), outcome.failures


@pytest.fixture
def root(tmp_path: Path) -> Path:
    place = tmp_path / "store"
    place.mkdir()
    return place


def make_three_pages(root: Path, fault: Fault | None = None, *, seed: int = 0) -> tuple[FailingFileSystem, str]:
    path = f"{root}/file"
    files = FailingFileSystem(str(root), seed=seed)
    files.create_file(path, 3 * PAGE_BYTES)
    files.write(path, 0, b"first")
    files.sync(path)
    files.sync(str(root))
    files.fault = fault
    return files, path


def after_power_loss(files: CrashFileSystem, path: str) -> list[bytes]:
    """What the pages may hold, by what several power losses leave."""
    found = {files.disk.after_power_loss(Random(seed)).content(path) for seed in range(20)}
    assert len(found) == 1, "everything is synced, as far as the system knows"
    content = found.pop()
    return [content[at : at + PAGE_BYTES].rstrip(b"\0") for at in range(0, 3 * PAGE_BYTES, PAGE_BYTES)]


def test_what_a_failed_sync_did_not_write_no_later_sync_writes(root: Path) -> None:
    """fsync(2), EIO; as Linux does it."""
    fault = Fault(frozenset({Step.SYNC}), errno.EIO, 1)
    seed = next(seed for seed in range(99) if not Random(seed).getrandbits(8) & 0b11)  # neither page is written
    files, path = make_three_pages(root, fault, seed=seed)
    files.write(path, 0, b"other")
    files.write(path, PAGE_BYTES, b"second")
    with pytest.raises(OSError, match="Input/output") as caught:
        files.sync(path)
    assert (caught.value.errno, caught.value.filename) == (errno.EIO, path)
    files.sync(path)
    files.write(path, 2 * PAGE_BYTES, b"third")
    files.sync(path)
    assert after_power_loss(files, path) == [b"first", b"", b"third"]
    files.write(path, PAGE_BYTES + 6, b" again")
    files.sync(path)
    assert after_power_loss(files, path) == [b"first", b"second again", b"third"]


def test_a_fault_comes_once_or_for_good_and_only_to_its_steps(root: Path) -> None:
    files, path = make_three_pages(root, Fault(frozenset({Step.RENAME}), errno.EIO, 2))
    for _ in range(2):
        files.write(path, 0, b"x")
    files.rename(path, f"{path}1")
    with pytest.raises(OSError, match="Input/output"):
        files.rename(f"{path}1", f"{path}2")
    files.rename(f"{path}1", f"{path}2")
    files.fault = Fault(frozenset(Step), errno.EMFILE, files.counted + 1, for_good=True)
    for ask in (files.exists, files.list_directory, files.open_file, files.unlink):
        with pytest.raises(OSError, match="Too many open files"):
            ask(f"{path}2")
    files.take_away()
    assert files.exists(f"{path}2")


def test_of_a_failed_write_whole_pages_are_there_and_of_a_short_one_all(root: Path) -> None:
    data = os.urandom(3 * PAGE_BYTES)
    lengths = set()
    for seed in range(12):
        (root / "file").unlink(missing_ok=True)
        files, path = make_three_pages(root, Fault(frozenset({Step.WRITE}), errno.ENOSPC, 1), seed=seed)
        with pytest.raises(OSError, match="No space"):
            files.write(path, 0, data)
        there, pages = Path(path).read_bytes(), range(0, len(data), PAGE_BYTES)
        lengths.add(sum(there[at : at + PAGE_BYTES] == data[at : at + PAGE_BYTES] for at in pages))
    assert lengths == {0, 1, 2}
    (root / "file").unlink()
    files, path = make_three_pages(root, Fault(frozenset({Step.WRITE}), SHORT, 1))
    files.write(path, 0, data)
    assert Path(path).read_bytes() == data
    assert len(files.met) == 1
