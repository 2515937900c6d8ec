"""The power goes, or the process, at any step of a repair: no record that was intact is lost, and the repair can be done again.

Every intact record stands in the log still, or in a quarantine that is complete; tests/oracle/damage.py tells which are intact.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import pytest

from storage import MessageStore, StoreConfig, open_store
from storage.errors import StoreDamagedError
from storage.files.local_file_system import LocalFileSystem
from storage.recovery.quarantine import list_quarantines, read_quarantine
from tests.oracle.damage import stale
from tests.support.crash_disk import Disk
from tests.support.crash_file_system import CrashFileSystem
from tests.support.message_builder import StoreBuilder

pytestmark = [pytest.mark.crash, pytest.mark.slow]

BAD = 13


@pytest.fixture
def store(tmp_path: Path) -> StoreBuilder:
    """Damaged in the first of three log files; it was not closed."""
    store = StoreBuilder(tmp_path / "store")
    for number in range(36):
        store.put("TopicA", number % 2, body=b"%4d" % number * 40, properties={"UNIQ_KEY": f"u{number}"})
    store.open(read_only=False).close()
    store.write_log(store.messages[BAD].commitlog_offset + 95, b"\xff")
    store.abort()
    store.checkpoint(store.messages[-1].store_time_ms + 1, store.messages[0].store_time_ms)
    return store


def opened(root: Path, files: LocalFileSystem | None = None, *, truncate_damage: bool = False) -> MessageStore:
    config = StoreConfig.tiny()
    return open_store(root, config=config, read_only=False, truncate_damage=truncate_damage, file_system=files)


def offsets_in_log(root: Path) -> set[int]:
    found = stale(root, 0)["staleRecords"]
    assert isinstance(found, list)
    return {offset for offset, _ in found}


def offsets_in_quarantines(root: Path) -> set[int]:
    files = LocalFileSystem()
    return {
        message.commitlog_offset
        for made in list_quarantines(files, str(root))
        for message in read_quarantine(files, made)
    }


@pytest.mark.parametrize(
    "crash", [lambda disk, number: disk.after_power_loss(random.Random(number)), lambda disk, number: deepcopy(disk)],
    ids=["power loss", "kill"],
)  # fmt: skip
def test_no_intact_record_is_lost_and_the_repair_can_be_done_again(
    crash: Callable[[Disk, int], Disk], store: StoreBuilder
) -> None:
    root = store.root
    intact = offsets_in_log(root)
    kept = {message.commitlog_offset for message in store.messages[:BAD]}
    assert intact == {message.commitlog_offset for message in store.messages} - {store.messages[BAD].commitlog_offset}
    files = CrashFileSystem(str(root))
    opened(root, files, truncate_damage=True).close()
    refused = finished = 0
    for number, _, disk in files.states():
        if number % 2:
            continue
        after = CrashFileSystem(str(root), crash(disk, number), boot=2)
        assert offsets_in_log(root) | offsets_in_quarantines(root) == intact, number
        assert kept <= offsets_in_log(root), number
        try:
            opened(root, after).close()
            finished += 1
        except StoreDamagedError:
            refused += 1
            opened(root, after, truncate_damage=True).close()
        assert offsets_in_log(root) == kept
        assert offsets_in_quarantines(root) == intact - kept
    assert refused > 10
    assert finished > 10


def test_a_cut_that_was_killed_half_way_is_refused_again_and_the_next_repair_keeps_what_is_left(
    store: StoreBuilder,
) -> None:
    """Later files are gone and the bad record is zero already; sound ones still stand behind it."""
    root = store.root
    intact, end = offsets_in_log(root), store.messages[BAD].commitlog_offset
    last = max((root / "commitlog").iterdir())
    shutil.copytree(root, copy := root.with_name("copy"))
    opened(copy, truncate_damage=True).close()
    shutil.copytree(copy / "spark_mq/quarantine", root / "spark_mq/quarantine")
    last.unlink()
    store.write_log(end, bytes(store.messages[BAD].size_bytes))
    left = offsets_in_log(root)
    assert left < intact
    with pytest.raises(StoreDamagedError) as error:
        opened(root)
    assert error.value.commitlog_offset == end
    opened(root, truncate_damage=True).close()
    first, second = list_quarantines(LocalFileSystem(), str(root))
    found = [
        {message.commitlog_offset for message in read_quarantine(LocalFileSystem(), made)} for made in (first, second)
    ]
    assert found == [{offset for offset in intact if offset > end}, {offset for offset in left if offset > end}]
