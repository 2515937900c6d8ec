"""The system says whether a file is open for writing, in any process and by any way of writing."""

from __future__ import annotations

import mmap
import subprocess
from pathlib import Path

import pytest

from storage.files.lock import is_open_for_writing


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "file").write_bytes(bytes(4096))
    return tmp_path / "file"


def test_a_file_that_nobody_has_open_or_that_is_only_read_is_not_written(path: Path) -> None:
    assert is_open_for_writing(str(path)) is False
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ):
        assert is_open_for_writing(str(path)) is False


def test_a_writer_is_seen_until_it_closes_the_file(path: Path) -> None:
    with path.open("r+b"):
        assert is_open_for_writing(str(path)) is True
    assert is_open_for_writing(str(path)) is False


def test_a_writable_map_counts_though_its_descriptor_is_closed(path: Path) -> None:
    with path.open("r+b") as file:
        written = mmap.mmap(file.fileno(), 0)
    assert is_open_for_writing(str(path)) is True
    written.close()
    assert is_open_for_writing(str(path)) is False


def test_a_writer_in_another_process_is_seen(path: Path) -> None:
    with subprocess.Popen(["sh", "-c", f'exec 3<>"{path}"; echo open; read line'], stdin=-1, stdout=-1) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"open\n"
        assert is_open_for_writing(str(path)) is True
        other.communicate(b"\n")
    assert is_open_for_writing(str(path)) is False


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        is_open_for_writing(str(tmp_path / "none"))
