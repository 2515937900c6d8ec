"""Pages for what will be written soon: what is asked of the kernel, and that files stay as they are."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from storage.files.local_file_system import LocalFileSystem
from storage.log.pages_ahead import FileStretch, PagesAhead

PAGE = mmap.PAGESIZE


@pytest.fixture
def advised(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """What the kernel is told of, [start, end)."""
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda _, start, length, advice: told.append((start, start + length)))
    return told


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A file of 64 pages with room on the disk and two and a half pages of data."""
    files, path = LocalFileSystem(), str(tmp_path / "00000000000000000000")
    files.create_file(path, 64 * PAGE)
    files.reserve(path, 0, 64 * PAGE)
    files.write(path, 0, b"x" * (2 * PAGE + PAGE // 2))
    return path


def test_whole_pages_behind_the_data_are_made(path: str, advised: list[tuple[int, int]]) -> None:
    LocalFileSystem().make_pages(path, 2 * PAGE + PAGE // 2, 8 * PAGE)
    assert advised == [(3 * PAGE, 10 * PAGE + PAGE // 2)]


def test_nothing_is_made_from_data_on_which_a_disk_would_be_read_for(path: str, advised: list[tuple[int, int]]) -> None:
    LocalFileSystem().write(path, 8 * PAGE, b"x" * PAGE)
    LocalFileSystem().make_pages(path, 0, 64 * PAGE)
    LocalFileSystem().make_pages(path, 4 * PAGE, 60 * PAGE)
    assert advised == [(4 * PAGE, 8 * PAGE)]


def test_the_file_reads_as_before(path: str) -> None:
    before = Path(path).read_bytes()
    LocalFileSystem().make_pages(path, 0, 64 * PAGE)
    LocalFileSystem().make_pages(path, 3 * PAGE, 200 * PAGE)
    assert Path(path).read_bytes() == before


def test_each_page_is_asked_for_once(path: str, advised: list[tuple[int, int]]) -> None:
    with PagesAhead(LocalFileSystem()) as pages:
        for start, end in ((3, 10), (4, 10), (5, 20)):
            pages.make(FileStretch(path, start * PAGE, end * PAGE))
    assert advised == [(3 * PAGE, 10 * PAGE), (10 * PAGE, 20 * PAGE)]


def test_a_file_that_is_not_there_is_passed_over(tmp_path: Path) -> None:
    with PagesAhead(LocalFileSystem()) as pages:
        pages.make(FileStretch(str(tmp_path / "gone"), 0, PAGE))
