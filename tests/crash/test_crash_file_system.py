"""The disk that forgets: what it may lose and what it may not. Without this the crash tests would show nothing."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.crash_disk import PAGE_BYTES
from tests.support.crash_file_system import CrashFileSystem

pytestmark = pytest.mark.crash

OLD, NEW = b"o" * PAGE_BYTES * 3, b"n" * PAGE_BYTES * 3


@pytest.fixture
def files(tmp_path: Path) -> CrashFileSystem:
    """A disk that holds `old`, and has forgotten how that came."""
    (tmp_path / "old").write_bytes(OLD)
    return CrashFileSystem(str(tmp_path))


def outcomes(files: CrashFileSystem, look: Callable[[CrashFileSystem], object], tries: int = 100) -> set[object]:
    """What a look at the disk may find after a power loss now."""
    *_, (_, _, disk) = files.states()
    return {look(CrashFileSystem(files.root, disk.after_power_loss(random.Random(seed)), 2)) for seed in range(tries)}


def content(name: str) -> Callable[[CrashFileSystem], object]:
    return lambda files: files.read_file(f"{files.root}/{name}")


def names(*wanted: str) -> Callable[[CrashFileSystem], object]:
    return lambda files: "".join(name[0] for name in wanted if files.exists(f"{files.root}/{name}"))


def test_pages_that_were_not_synced_are_there_or_not_each_on_its_own(files: CrashFileSystem) -> None:
    path = f"{files.root}/old"
    files.write(path, 0, NEW)
    found = outcomes(files, content("old"), tries=300)
    pages = {bytes(text[at] for at in range(0, len(OLD), PAGE_BYTES)) for text in found if isinstance(text, bytes)}
    assert pages == {bytes((a, b, c)) for a in b"on" for b in b"on" for c in b"on"}
    files.sync(path)
    assert outcomes(files, content("old")) == {NEW}


def test_a_page_may_be_any_of_the_versions_that_it_had(files: CrashFileSystem) -> None:
    path = f"{files.root}/old"
    files.write(path, 10, b"first")
    files.write(path, 12, b"second")
    found = {text[10:18] for text in outcomes(files, content("old")) if isinstance(text, bytes)}
    assert found == {b"oooooooo", b"firstooo", b"fisecond"}


def test_a_new_file_may_be_missing_empty_or_there(files: CrashFileSystem) -> None:
    path = f"{files.root}/new"
    files.create_file(path, 10)
    files.write(path, 0, b"0123456789")
    assert outcomes(files, content("new")) == {None, b"", bytes(10), b"0123456789"}
    files.sync(path)
    assert outcomes(files, content("new")) == {None, b"0123456789"}
    files.sync(files.root)
    assert outcomes(files, content("new")) == {b"0123456789"}


def test_a_file_is_lost_with_its_directory(files: CrashFileSystem) -> None:
    path = f"{files.root}/inner/new"
    files.create_file(path, 0)
    files.sync(path)
    files.sync(f"{files.root}/inner")
    assert outcomes(files, names("inner/new")) == {"", "i"}
    files.sync(files.root)
    assert outcomes(files, names("inner/new")) == {"i"}


def test_what_was_deleted_may_be_back(files: CrashFileSystem) -> None:
    files.unlink(f"{files.root}/old")
    assert outcomes(files, names("old")) == {"", "o"}
    files.sync(files.root)
    assert outcomes(files, names("old")) == {""}


def test_a_renamed_file_has_the_old_name_or_the_new_one(files: CrashFileSystem) -> None:
    files.rename(f"{files.root}/old", f"{files.root}/young")
    assert outcomes(files, names("old", "young")) == {"o", "y"}


def test_a_file_renamed_into_another_directory_may_have_both_names_but_never_none(files: CrashFileSystem) -> None:
    files.make_directories(f"{files.root}/home")
    files.rename(f"{files.root}/old", f"{files.root}/home/x")
    assert outcomes(files, names("old", "home/x")) == {"o", "oh", "h"}
    files.sync(files.root)
    assert outcomes(files, names("old", "home/x")) == {"h"}


def test_entries_of_a_directory_are_lost_from_some_point_on(files: CrashFileSystem) -> None:
    for name in "abc":
        files.create_file(f"{files.root}/{name}", 0)
    assert outcomes(files, names("a", "b", "c")) == {"", "a", "ab", "abc"}


def test_a_replaced_file_is_the_old_one_or_the_new_one(files: CrashFileSystem) -> None:
    path = f"{files.root}/old"
    found: set[object] = set()
    files.replace(path, b"new")
    for _, _, disk in files.states():
        found |= {
            content("old")(CrashFileSystem(files.root, disk.after_power_loss(random.Random(seed)), 2))
            for seed in range(50)
        }
    assert found == {OLD, b"new"}
    assert outcomes(files, content("old")) == {b"new"}


def test_nothing_but_the_boot_id_tells_that_power_was_lost_when_all_is_synced(files: CrashFileSystem) -> None:
    path = f"{files.root}/old"
    *_, (_, _, disk) = files.states()
    after = CrashFileSystem(files.root, disk.after_power_loss(random.Random(1)), 2)
    assert after.identity(path) == files.identity(path)
    assert after.boot_id() != files.boot_id()


def test_a_planted_fault_leaves_syncs_out(files: CrashFileSystem) -> None:
    path = f"{files.root}/old"
    files.forgets = lambda path: path.endswith("old")
    files.write(path, 0, NEW)
    files.sync(path)
    writer = files.open_for_writing(path)
    writer.sync()
    writer.close()
    assert len(outcomes(files, content("old"))) > 2
