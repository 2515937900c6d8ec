"""A group's progress in a store: three files, in an order that survives a crash, under the lock."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from storage.errors import NameIllegalError, StateFileError, StoreLockedError
from storage.files.local_file_system import LocalFileSystem, write_with_backup
from storage.tables import offline_changes
from storage.tables.consumer_groups import ConsumerOffsets, SubscriptionGroupTable
from storage.tables.offline_changes import write_group_offsets
from storage.tables.topics import TopicTable
from tests.support.places import VECTORS

CONFIG = VECTORS / "config"
NOW_MS = 1_900_000_000_000
FILES = ("topics.json", "subscriptionGroup.json", "consumerOffset.json")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store's root with the state files of an Apache broker, and nothing else."""
    (tmp_path / "config").mkdir()
    for name in FILES:
        shutil.copy(CONFIG / name, tmp_path / "config" / name)
    return tmp_path


def write(root: Path, group: str = "GroupNew", **offsets: int) -> bool:
    by_queue = {("TopicA", int(name[1:])): offset for name, offset in offsets.items()}
    return write_group_offsets(str(root), group, by_queue, now_ms=NOW_MS, file_system=LocalFileSystem())


def tables(root: Path) -> tuple[TopicTable, SubscriptionGroupTable, ConsumerOffsets]:
    topics, groups, offsets = ((root / "config" / name).read_text("utf-8") for name in FILES)
    return TopicTable.load(topics), SubscriptionGroupTable.load(groups), ConsumerOffsets.load(offsets)


def content(root: Path) -> dict[str, bytes]:
    files = sorted(path for path in root.rglob("*") if path.is_file() and path.name != "lock")
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


def test_a_new_group_gets_what_tools_ask_for(root: Path) -> None:
    before = tables(root)
    assert write(root, q0=12, q3=7)
    topics, groups, offsets = tables(root)
    assert {queue: offsets.get("TopicA", "GroupNew", queue) for queue in range(4)} == {0: 12, 1: None, 2: None, 3: 7}
    retry = topics.topics["%RETRY%GroupNew"]
    assert (retry.read_queue_count, retry.write_queue_count, retry.perm) == (1, 1, 6)
    assert groups.groups["GroupNew"].consume_enable
    for old, new in zip(before, (topics, groups, offsets), strict=True):
        assert new.version.counter == old.version.counter + 1
        assert new.version.timestamp_ms == NOW_MS


def test_everything_else_stays_as_it_was(root: Path) -> None:
    topics, groups, offsets = tables(root)
    write(root, q0=12)
    new_topics, new_groups, new_offsets = tables(root)
    assert {name: new_topics.topics[name] for name in topics.topics} == topics.topics
    assert {name: new_groups.groups[name] for name in groups.groups} == groups.groups
    assert {key: new_offsets.offsets[key] for key in offsets.offsets} == offsets.offsets
    assert sorted(path.name for path in root.iterdir()) == ["config", "lock"]  # no abort


def test_the_former_content_stands_beside_as_backup(root: Path) -> None:
    before = content(root)
    write(root, q0=12)
    assert {name: (root / "config" / f"{name}.bak").read_bytes() for name in FILES} == {
        name: before[f"config/{name}"] for name in FILES
    }


def test_a_group_that_is_known_changes_its_offsets_only(root: Path) -> None:
    write(root, q0=12)
    before = content(root)
    assert write(root, q0=13)
    after = content(root)
    changed = {name for name in after if after[name] != before.get(name)}
    assert changed == {"config/consumerOffset.json", "config/consumerOffset.json.bak"}


def test_the_same_again_writes_nothing(root: Path) -> None:
    write(root, q0=12)
    before = content(root)
    assert not write(root, q0=12)
    assert content(root) == before


def test_offsets_go_back_when_told_to(root: Path) -> None:
    write(root, q0=12)
    assert write(root, q0=3)
    assert tables(root)[2].get("TopicA", "GroupNew", 0) == 3


def test_a_store_without_state_files_gets_them(tmp_path: Path) -> None:
    assert write(tmp_path, q0=12)
    assert tables(tmp_path)[2].get("TopicA", "GroupNew", 0) == 12


def test_a_store_that_another_holds_is_not_waited_for_and_not_changed(root: Path) -> None:
    before = content(root)
    with LocalFileSystem().locked(str(root / "lock")), pytest.raises(StoreLockedError):
        write(root, q0=12)
    assert content(root) == before
    assert write(root, q0=12)


@pytest.mark.parametrize("name", FILES)
def test_an_unreadable_table_without_backup_is_not_written_over(root: Path, name: str) -> None:
    (root / "config" / name).write_text('{"dataVersion":{"coun', "utf-8")
    before = content(root)
    with pytest.raises(StateFileError, match=name):
        write(root, q0=12)
    assert content(root) == before


def test_an_unreadable_table_is_mended_from_its_backup(root: Path) -> None:
    write(root, q0=12)
    write(root, q0=13)
    (root / "config" / "consumerOffset.json").write_text("", "utf-8")
    write(root, q1=5)
    offsets = tables(root)[2]
    assert (offsets.get("TopicA", "GroupNew", 0), offsets.get("TopicA", "GroupNew", 1)) == (12, 5)
    assert offsets.get("TopicA", "GroupA", 0) == 150


@pytest.mark.parametrize("group", ["", "a/b", "../x", "G@T", "g" * 256])
def test_an_illegal_group_changes_nothing(root: Path, group: str) -> None:
    before = content(root)
    with pytest.raises(NameIllegalError):
        write(root, group, q0=12)
    assert content(root) == before


@pytest.mark.crash
@pytest.mark.parametrize("writes", [0, 1, 2])
def test_a_crash_between_two_files_leaves_no_offset_without_group_and_no_group_without_retry_topic(
    root: Path, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    done: list[str] = []

    def write_until_the_crash(path: str, text: str, files: LocalFileSystem) -> None:
        if len(done) == writes:
            raise SystemExit("crash")
        write_with_backup(path, text, files)
        done.append(path)

    with monkeypatch.context() as patched:
        patched.setattr(offline_changes, "write_with_backup", write_until_the_crash)
        with pytest.raises(SystemExit):
            write(root, q0=12)
    topics, groups, offsets = tables(root)
    present = "%RETRY%GroupNew" in topics.topics, "GroupNew" in groups.groups, "GroupNew" in offsets.groups()
    assert present == (writes > 0, writes > 1, False)
    assert write(root, q0=12)
    assert tables(root)[2].get("TopicA", "GroupNew", 0) == 12
