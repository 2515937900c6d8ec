"""An empty store: made where nothing is, and at once a store for readers and writers."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from storage import StoreConfig, open_store
from storage.errors import StoreNotFoundError, StoreRefusedError
from storage.files.local_file_system import LocalFileSystem
from storage.recovery.opening import create_store
from storage.settings.load import parse_config
from storage.tables.surroundings import AN_OWNER, find_log, is_empty_place

FILES = LocalFileSystem()
TINY = StoreConfig.tiny()


def directories(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_dir()}


def test_the_directories_of_a_store_are_made_and_nothing_else(tmp_path: Path) -> None:
    root = tmp_path / "a" / "store"
    create_store(str(root), (f"{root}/commitlog",), FILES)
    assert directories(root) == {"commitlog", "consumequeue", "index", "config"}
    assert not [path for path in root.rglob("*") if path.is_file()]


def test_several_log_directories_are_made_inside_of_root_where_the_configuration_says(tmp_path: Path) -> None:
    root = tmp_path / "store"
    config = parse_config(f"storePathCommitLog={root}/d0,{root}/d1\n".encode())
    create_store(str(root), find_log(str(root), config, FILES, may_be_empty=True, writer=AN_OWNER).directories, FILES)
    assert directories(root) == {"d0", "d1", "consumequeue", "index", "config"}


def test_what_is_there_stays(tmp_path: Path) -> None:
    with open_store(tmp_path, config=TINY, read_only=False, create=True) as store:
        store.put("T", b"body", queue_id=0)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    create_store(str(tmp_path), (f"{tmp_path}/commitlog",), FILES)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_every_new_directory_is_on_the_disk_before_its_content(tmp_path: Path) -> None:
    synced = []

    class Watched(LocalFileSystem):
        def sync(self, path: str) -> None:
            assert stat.S_ISDIR(Path(path).stat().st_mode)
            synced.append((path, sorted(child.name for child in Path(path).iterdir())))
            super().sync(path)

    create_store(str(tmp_path / "a" / "b"), (str(tmp_path / "a" / "b" / "commitlog"),), Watched())
    assert (str(tmp_path), ["a"]) in synced
    assert (str(tmp_path / "a"), ["b"]) in synced
    assert synced[-1] == (str(tmp_path / "a" / "b"), ["commitlog", "config", "consumequeue", "index"])


@pytest.mark.parametrize(
    ("names", "empty"),
    [
        ([], True),
        (["lock"], True),
        (["spark_mq", "lock", "broker.conf"], True),
        (["data.parquet"], False),
        (["consumequeue_r"], False),
        (["dledger-n0"], False),
    ],
)
def test_a_store_is_made_only_where_nothing_else_is(names: list[str], empty: bool, tmp_path: Path) -> None:
    root = tmp_path / "place"
    for name in names:
        (root / name).mkdir(parents=True)
    assert is_empty_place(str(root), FILES) == empty
    if not empty:
        before = sorted(root.iterdir())
        with pytest.raises((StoreNotFoundError, StoreRefusedError)):
            open_store(root, config=TINY, read_only=False, create=True)
        assert sorted(root.iterdir()) == before


def test_a_file_is_no_place_for_a_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert not is_empty_place(str(tmp_path / "file"), FILES)
    with pytest.raises(StoreNotFoundError):
        open_store(tmp_path / "file", read_only=False, create=True)


def test_a_stores_log_directories_are_found_and_those_of_one_that_could_be_made(tmp_path: Path) -> None:
    root = f"{tmp_path}/store"
    config = parse_config(f"storePathCommitLog={root}/d0,{root}/d1\n".encode())
    with pytest.raises(StoreNotFoundError, match=r"d0/ or .*d1/"):
        find_log(root, config, FILES)
    place = find_log(root, config, FILES, may_be_empty=True)
    assert place.directories == (f"{root}/d0", f"{root}/d1")
    create_store(root, place.directories, FILES)
    (tmp_path / "store" / "notes.txt").write_text("x", "utf-8")
    assert find_log(root, config, FILES).directories == place.directories


def test_a_store_made_from_nothing_can_be_read_before_and_after_its_first_message(tmp_path: Path) -> None:
    open_store(tmp_path / "store", config=TINY, read_only=False, create=True).close()
    with open_store(tmp_path / "store", config=TINY) as reader:
        assert (reader.topics(), reader.log_end) == ([], 0)
    assert not list((tmp_path / "store" / "commitlog").iterdir())
    with open_store(tmp_path / "store", config=TINY, read_only=False) as store:
        store.put("T", b"body", queue_id=0)
    with open_store(tmp_path / "store", config=TINY) as reader:
        assert [message.body for message in reader.get("T", 0, 0).messages] == [b"body"]


@pytest.mark.crash
def test_a_creation_that_was_cut_off_is_gone_on_with(tmp_path: Path) -> None:
    class Cut(Exception):
        pass

    class Dying(LocalFileSystem):
        left = 0

        def make_directories(self, path: str) -> None:
            if not self.left:
                raise Cut
            self.left -= 1
            super().make_directories(path)

    files = Dying()
    for left in range(5):
        root, files.left = tmp_path / str(left), left
        with pytest.raises(Cut):
            open_store(root, config=TINY, read_only=False, create=True, file_system=files)
        with open_store(root, config=TINY, read_only=False, create=True) as store:
            store.put("T", b"body", queue_id=0)
