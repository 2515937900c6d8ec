"""The local disk: what is listed, read, written, zeroed and locked."""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from storage.errors import StoreLockedError
from storage.files.file_system import PIECE_BYTES, LocalFile, LocalFileInMemory, Scratch
from storage.files.local_file_system import LocalFileSystem
from storage.format.arrays import Memory
from storage.format.window_decoder import WindowLayout
from tests.support.kernels import loaded

FILES = LocalFileSystem()


def test_a_directory_is_listed_by_name_with_sizes(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b"12345")
    (tmp_path / "a").mkdir()
    (tmp_path / "c").touch()
    listed = [(entry.name, entry.is_directory, entry.size_bytes) for entry in FILES.list_directory(str(tmp_path))]
    assert listed == [("a", True, 0), ("b", False, 5), ("c", False, 0)]


def test_what_is_no_directory_lists_as_empty(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert FILES.list_directory(str(tmp_path / "none")) == []
    assert FILES.list_directory(str(tmp_path / "file")) == []


def test_an_entry_that_vanishes_while_it_is_listed_does_not_take_the_others_along(tmp_path: Path) -> None:
    (tmp_path / "kept").write_bytes(b"1")
    (tmp_path / "link").symlink_to(tmp_path / "gone")  # as if deleted between the listing and the look at its size
    assert [entry.name for entry in FILES.list_directory(str(tmp_path))] == ["kept"]


def test_a_small_file_is_read_whole(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    assert FILES.read_file(str(tmp_path / "file")) == b"content"
    assert FILES.read_file(str(tmp_path / "none")) is None


@pytest.mark.parametrize("position", [0, 1, 7, 19, 20, 25])
@pytest.mark.parametrize("length", [0, 1, 13, 20, 30])
def test_a_view_is_a_range_and_shorter_at_the_end(tmp_path: Path, position: int, length: int) -> None:
    data = bytes(range(20))
    (tmp_path / "file").write_bytes(data)
    file = FILES.open_file(str(tmp_path / "file"))
    assert file.view(position, length).tobytes() == data[position : position + length]


def test_a_view_of_a_map_shows_what_is_written_later(tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    FILES.create_file(path, 100)
    file = LocalFile(path)
    view = file.view(10, 3)
    FILES.write(path, 10, b"abc")
    assert view.tobytes() == b"abc"


def test_views_and_files_outlive_closing_and_deleting(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    file = FILES.open_file(str(path))
    path.unlink()
    view = file.view(0, 7)
    file.close()
    file.close()
    assert view.tobytes() == b"content"


@pytest.mark.parametrize("kind", [LocalFile, LocalFileInMemory])
def test_with_a_map_or_without_a_file_reads_as_what_is_in_it(
    tmp_path: Path, kind: type[LocalFile | LocalFileInMemory]
) -> None:
    path = str(tmp_path / "file")
    FILES.create_file(path, 6 << 20)
    file = kind(path)
    FILES.write(path, (3 << 20) - 2, b"abcd")
    os.unlink(path)
    content = bytes((3 << 20) - 2) + b"abcd" + bytes((3 << 20) - 2)
    for start, length in ((0, 8 << 20), (1 << 20, 4 << 20), ((3 << 20) - 1, 2), (3 << 20, 3 << 20), (7 << 20, 5)):
        assert file.view(start, length).tobytes() == content[start : start + length]
    positions = np.array([5, (3 << 20) - 2, (6 << 20) - 3], np.int64)
    for scratch in (None, Scratch()):
        buffer, places = file.gather(positions, np.array([3, 3, 50]), scratch)
        assert [buffer[place : place + 3].tobytes() for place in places] == [bytes(3), b"abc", bytes(3)]
    whole = file.view(0, 6 << 20)
    file.close()
    file.close()
    assert whole.tobytes() == content


def test_a_file_without_a_map_that_is_cut_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(100))
    file = LocalFileInMemory(str(path))
    os.truncate(path, 50)
    with pytest.raises(OSError, match="cut while it was read"):
        file.gather(np.array([60]), np.array([10]))


def test_a_write_without_room_names_the_file() -> None:
    with pytest.raises(OSError, match=r"No space left on device.*/dev/full"):
        FILES.write("/dev/full", 0, b"x")


def test_small_views_and_long_ones_are_of_one_file(tmp_path: Path) -> None:
    """Another file of its name is another file, also where the first small view comes late."""
    path = tmp_path / "a"
    content = np.random.default_rng(1).integers(0, 255, 300_000, np.uint8).tobytes()
    path.write_bytes(content)
    opened, late = LocalFile(str(path)), LocalFile(str(path))
    for position in (0, 131_071, 131_072, 299_990, 299_999, 300_000, 400_000):
        for length in (1, 20, 16_384, 16_385, 200_000):
            assert opened.view(position, length).tobytes() == content[position : position + length]
    kept = opened.view(131_070, 10)
    path.unlink()
    path.write_bytes(bytes(300_000))
    for file in (opened, late):
        assert file.view(131_070, 10).tobytes() == content[131_070:131_080]
        file.give_pages_back()
        file.close()
    assert kept.tobytes() == content[131_070:131_080]
    assert not len(opened.view(0, 10))


def test_a_long_write_goes_out_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, whole = [], os.pwrite

    def pwrite(descriptor: int, data: memoryview, position: int) -> int:
        sizes.append(len(data))
        return whole(descriptor, data, position)

    monkeypatch.setattr("os.pwrite", pwrite)
    path, content = tmp_path / "a", np.random.default_rng(1).integers(0, 255, 2 * PIECE_BYTES + 7, np.uint8)
    path.touch()
    LocalFileSystem().write(str(path), 5, content)
    assert sizes == [PIECE_BYTES, PIECE_BYTES, 7]
    assert path.read_bytes() == bytes(5) + content.tobytes()


def test_an_empty_file_has_no_bytes(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    file = FILES.open_file(str(tmp_path / "file"))
    assert (file.size_bytes, len(file.view(0, 10)), file.data_ranges(0)) == (0, 0, [])


def test_many_ranges_are_one_buffer(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(range(200)))
    buffer, places = FILES.open_file(str(tmp_path / "file")).gather(np.array([3, 50, 190]), np.array([2, 5, 50]))
    assert [buffer[place : place + 2].tolist() for place in places] == [[3, 4], [50, 51], [190, 191]]


@pytest.mark.parametrize("kind", [LocalFile, LocalFileInMemory])
@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("window_bytes", [1, 700, 5_000, 1 << 20])
def test_ranges_come_in_windows(
    window_bytes: int, keep: bool, kind: type[LocalFile] | type[LocalFileInMemory], tmp_path: Path
) -> None:
    random = np.random.default_rng(window_bytes)
    content = random.integers(0, 255, 400_000, np.uint8)
    (tmp_path / "file").write_bytes(content.tobytes())
    file, scratch = kind(str(tmp_path / "file")), Scratch()
    layout = WindowLayout(loaded(), Memory(), window_bytes, keep)
    for _ in range(10):
        sizes = random.integers(1, 900, 150)
        gaps = random.choice([0, 0, 0, 10, 3_000, 20_000], 150) * (random.random(150) < 0.2)
        positions = np.cumsum(sizes + gaps) - sizes
        wanted = positions < len(content) - 1_000
        positions, sizes = positions[wanted], sizes[wanted]
        row, longest = 0, 0
        for window in file.gather_windows(positions, sizes, scratch, layout):
            assert window.rows.start == row
            assert window.has_all == keep
            longest = max(longest, len(window.buffer))
            for row in range(0 if window.has_all else window.rows.start, window.rows.stop):
                begin, place, size = positions[row], window.places[row], sizes[row]
                assert window.buffer[place : place + size].tobytes() == content[begin : begin + size].tobytes()
            row = window.rows.stop
        assert row == len(positions)
        assert keep or longest <= max(window_bytes, 900)


def test_a_new_file_has_its_full_length_at_once_and_is_made_once(tmp_path: Path) -> None:
    path = str(tmp_path / "a" / "b" / "file")
    FILES.create_file(path, 1 << 30)
    assert os.stat(path).st_size == 1 << 30
    assert os.stat(path).st_blocks == 0
    with pytest.raises(FileExistsError):
        FILES.create_file(path, 10)


def test_only_written_parts_are_data(tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    FILES.create_file(path, 1 << 24)
    assert FILES.open_file(path).data_ranges(0) == []
    FILES.write(path, 1 << 20, b"x" * 5_000)
    FILES.write(path, 9 << 20, np.full(10, 7, np.uint8))
    ranges = FILES.open_file(path).data_ranges(0)
    assert sum(end - start for start, end in ranges) < 1 << 20
    for place in (1 << 20, (1 << 20) + 4_999, 9 << 20):
        assert any(start <= place < end for start, end in ranges)
    assert FILES.open_file(path).data_ranges(10 << 20) == []
    inside = FILES.open_file(path).data_ranges((1 << 20) + 10)
    assert inside[0][0] == (1 << 20) + 10


@pytest.mark.parametrize(("position", "length"), [(0, 10), (5, 0), (1_048_570, 20), (0, 3 << 20), (2_097_152, 1 << 20)])
def test_zeros_take_the_place_of_what_stands_there_and_of_nothing_else(
    tmp_path: Path, position: int, length: int
) -> None:
    path = tmp_path / "file"
    content = b"x" * (3 << 20)
    path.write_bytes(content)
    FILES.zero(str(path), position, length)
    assert path.read_bytes() == content[:position] + bytes(length) + content[position + length :]


def test_zeroing_fills_no_holes_and_leaves_no_descriptor(tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    FILES.create_file(path, 1 << 24)
    FILES.write(path, 5 << 20, b"x")
    blocks, descriptors = os.stat(path).st_blocks, len(os.listdir("/proc/self/fd"))
    FILES.zero(path, 0, 1 << 24)
    assert os.stat(path).st_blocks <= blocks
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert not any(Path(path).read_bytes())


def test_writing_makes_no_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        FILES.write(str(tmp_path / "none"), 0, b"x")
    assert not FILES.exists(str(tmp_path / "none"))


def test_files_and_directories_are_synced(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    FILES.sync(str(tmp_path / "file"))
    FILES.sync(str(tmp_path))
    with pytest.raises(FileNotFoundError):
        FILES.sync(str(tmp_path / "none"))


def test_a_lock_is_held_once_even_within_a_process(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    with FILES.locked(path):
        with pytest.raises(StoreLockedError) as raised, FILES.locked(path):
            pass
        assert raised.value.path == path
        os.close(os.open(path, os.O_RDWR))  # closing another descriptor does not lose it
        with pytest.raises(StoreLockedError), FILES.locked(path):
            pass
    with FILES.locked(path):
        pass


def test_the_lock_is_the_one_that_a_broker_takes(tmp_path: Path) -> None:
    """A POSIX lock on the first byte, which is what Java's FileChannel.tryLock(0, 1, false) asks for."""
    path = tmp_path / "lock"
    asks = (
        "import fcntl, sys\n"
        "file = open(sys.argv[1], 'r+b')\n"
        "try:\n    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)\n"
        "except OSError:\n    sys.exit(3)\n"
    )
    with FILES.locked(str(path)):
        assert subprocess.run([sys.executable, "-c", asks, str(path)], check=False).returncode == 3
    assert subprocess.run([sys.executable, "-c", asks, str(path)], check=False).returncode == 0
    with path.open("r+b") as broker:
        request = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        fcntl.fcntl(broker, fcntl.F_OFD_SETLK, request)
        with pytest.raises(StoreLockedError), FILES.locked(str(path)):
            pass


@pytest.mark.parametrize(
    ("umask", "file", "directory"), [(0o022, 0o640, 0o750), (0, 0o660, 0o770), (0o077, 0o600, 0o700)]
)
def test_new_files_and_directories_are_for_owner_and_group_at_most(
    tmp_path: Path, umask: int, file: int, directory: int
) -> None:
    files = LocalFileSystem()
    before = os.umask(umask)
    try:
        files.create_file(str(tmp_path / "a" / "b" / "c"), 8)
        files.make_directories(str(tmp_path / "d" / "e"))
        files.replace(str(tmp_path / "f" / "g.json"), b"{}")
        with files.locked(str(tmp_path / "lock")):
            pass
    finally:
        os.umask(before)
    modes = {path.relative_to(tmp_path).as_posix(): path.stat().st_mode & 0o7777 for path in tmp_path.rglob("*")}
    assert modes == {
        **dict.fromkeys(("a", "a/b", "d", "d/e", "f"), directory),
        **dict.fromkeys(("a/b/c", "f/g.json", "lock"), file),
    }


def test_a_replaced_file_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    path.write_bytes(b"old")
    for mode in (0o644, 0o600, 0o664):
        path.chmod(mode)
        LocalFileSystem().replace(str(path), b"new")
        assert (path.read_bytes(), path.stat().st_mode & 0o7777) == (b"new", mode)


def test_a_private_file_is_its_owners_alone_whoever_could_read_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "users.json"
    path.write_bytes(b"old")
    path.chmod(0o664)
    (tmp_path / "users.json.tmp").write_bytes(b"left by a crash")
    (tmp_path / "users.json.tmp").chmod(0o666)
    LocalFileSystem().replace(str(path), b"new", is_private=True)
    assert (path.read_bytes(), path.stat().st_mode & 0o7777) == (b"new", 0o600)


def test_a_link_in_the_place_of_a_new_file_is_not_followed(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"another's")
    (tmp_path / "table.json.tmp").symlink_to(other)
    with pytest.raises(OSError, match=r"table\.json\.tmp"):
        LocalFileSystem().replace(str(tmp_path / "table.json"), b"{}")
    (tmp_path / "file").symlink_to(tmp_path / "nothing")
    with pytest.raises(OSError, match="file"):
        LocalFileSystem().create_file(str(tmp_path / "file"), 8)
    assert (other.read_bytes(), (tmp_path / "nothing").exists()) == (b"another's", False)


_HOLD = {
    "java": "import fcntl, sys; f = open(sys.argv[1], 'a+b'); fcntl.lockf(f, fcntl.LOCK_EX, 1); print(flush=True); sys.stdin.read()",
    "ours": "\n\n  # a comment\t of  somebody's\n\nimport sys; from storage.files.local_file_system import LocalFileSystem\n"
    "with LocalFileSystem().locked(sys.argv[1]): print(flush=True); sys.stdin.read()",
}


@pytest.mark.parametrize("kind", _HOLD)
def test_who_waits_for_a_lock_says_at_once_for_whom(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = str(tmp_path / "lock")
    command = [sys.executable, "-c", _HOLD[kind], path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        holder.stdout.readline()
        expected = f"another writer, process {holder.pid} .*python.* on "
        with pytest.raises(StoreLockedError, match=expected) as raised, LocalFileSystem().locked(path, 1_000):
            pass
        holder.stdin.close()
    assert raised.value.waited_ms == 1_000
    (record,) = caplog.records
    assert record.name == "storage.lock"
    assert f"waiting for {path}, up to 1 s: process {holder.pid} " in record.message
    for text in (raised.value.describe(), record.message):
        assert text == " ".join(text.split()), "one line, whatever the program looks like"
        assert len(text) < len(path) + 250


def test_a_lock_that_is_not_waited_for_is_no_news(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = str(tmp_path / "lock")
    with (
        LocalFileSystem().locked(path),
        pytest.raises(StoreLockedError, match=f"process {os.getpid()} "),
        LocalFileSystem().locked(path),
    ):
        pass
    assert caplog.records == []
