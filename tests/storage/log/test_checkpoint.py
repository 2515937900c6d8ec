"""The checkpoint page: the broker's bytes, and pages that are short."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from jobs import rebuild_queues as rebuilding
from storage import MessageStore, StoreConfig, open_store
from storage.files.local_file_system import LocalFileSystem
from storage.ha.follower import truncate_store
from storage.log.commit_log import CHECKPOINT_SIZE, Checkpoint, decode_checkpoint, encode_checkpoint, read_checkpoint
from tests.support.fixture_stores import FIXTURE_NAMES, Fixture, golden_lines


@pytest.mark.parametrize("name", FIXTURE_NAMES)
def test_the_brokers_page_decodes_and_encodes_to_itself(name: str, pristine_store: Callable[[str], Fixture]) -> None:
    fixture = pristine_store(name)
    page = (fixture.root / "checkpoint").read_bytes()
    (config,) = golden_lines(fixture.golden, "config")
    assert decode_checkpoint(page)[:5] == tuple(config["checkpoint"].values())[:5]
    assert list(config["checkpoint"])[:5] == [
        *("physicMsgTimestamp", "logicsMsgTimestamp", "indexMsgTimestamp", "masterFlushedOffset", "confirmPhyOffset")
    ]
    assert (decode_checkpoint(page).logics_physical_offset > 0) == name.startswith("v5.5")
    assert encode_checkpoint(decode_checkpoint(page)) == page
    assert len(page) == CHECKPOINT_SIZE


@pytest.mark.parametrize("length", range(0, 48, 7))
def test_a_short_page_reads_as_none(length: int) -> None:
    assert decode_checkpoint(b"\1" * length) == Checkpoint()


@pytest.mark.parametrize(
    ("physic", "logics", "expected"), [(10_000, 20_000, 7_000), (20_000, 10_000, 7_000), (1_000, 1_000, 0), (0, 0, 0)]
)
def test_recovery_goes_back_three_seconds_before_the_older_time(physic: int, logics: int, expected: int) -> None:
    assert Checkpoint(physic, logics).recovery_timestamp == expected


def position(root: Path) -> int:
    return decode_checkpoint((root / "checkpoint").read_bytes()).logics_physical_offset


def last_record(store: MessageStore) -> int:
    *_, (offsets, _) = store.log.walk(store.log.minimum)
    return int(offsets[-1])


@pytest.mark.parametrize("version", [None, "5.3.3", "5.5.0"])
@pytest.mark.parametrize("name", ["v5.5.0", "v5.5.0-killed"])
def test_the_queues_position_that_a_broker_wrote_goes_on(
    name: str, version: str | None, fixture_store: Callable[[str], Fixture]
) -> None:
    """With enableAcceleratedRecovery a 0 stops a 5.5.0 broker, and a place where no record begins would cut its log."""
    fixture = fixture_store(name)
    with open_store(fixture.root, config=str(fixture.conf), read_only=False, rocketmq_version=version) as store:
        assert position(fixture.root) == last_record(store)
        for _ in range(3):
            store.put("T", b"m")
        store.writer.checkpoint()
        assert position(fixture.root) == last_record(store)
        store.put("T", b"m")
        end = last_record(store)
    assert position(fixture.root) == end


@pytest.mark.parametrize(("version", "is_written"), [(None, False), ("5.4.0", False), ("5.5.0", True)])
def test_a_new_store_has_the_position_for_a_release_that_reads_it(
    version: str | None, is_written: bool, tmp_path: Path
) -> None:
    root = tmp_path / "store"
    with open_store(root, read_only=False, create=True, rocketmq_version=version) as store:
        store.put("T", b"m")
        store.put("T", b"m")
        end = last_record(store)
    assert position(root) == (end if is_written else 0)


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_position_that_is_lost_for_a_while_comes_back(
    is_killed: bool, fixture_store: Callable[[str], Fixture], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rebuilding has no queues at first, and the release of the store's broker is not named."""
    fixture = fixture_store("v5.5.0")
    conf = without_release(fixture)
    if is_killed:
        monkeypatch.setattr(rebuilding, "_move", lambda root, aside: os.rename(root / "consumequeue", root / "gone"))
        monkeypatch.setattr(rebuilding, "_move_back", killed)
        monkeypatch.setattr(rebuilding, "progress_bar", killed)
        with pytest.raises(KeyboardInterrupt):
            rebuilding.rebuild_queues(str(fixture.root), conf=conf)
        assert position(fixture.root) < 0, "5.5.0 takes it for unknown, as 0"
        with open_store(fixture.root, config=conf, read_only=False):
            pass
    else:
        rebuilding.rebuild_queues(str(fixture.root), conf=conf)
    with open_store(fixture.root, config=conf) as store:
        assert position(fixture.root) == last_record(store)


def without_release(fixture: Fixture) -> str:
    """Its broker.conf names 5.5.0."""
    kept = [line for line in fixture.conf.read_text("utf-8").splitlines() if "rocketmqVersion" not in line]
    fixture.conf.write_text("\n".join(kept), "utf-8")
    return str(fixture.conf)


def killed(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def test_a_store_that_is_cut_to_nothing_and_goes_on_has_the_position_again(
    fixture_store: Callable[[str], Fixture],
) -> None:
    fixture = fixture_store("v5.5.0")
    conf = without_release(fixture)
    truncate_store(str(fixture.root), 0, config=conf)
    assert position(fixture.root) < 0
    with open_store(fixture.root, config=conf, read_only=False) as store:
        for _ in range(2):
            store.put("T", b"m")
        end = last_record(store)
    assert position(fixture.root) == end


def test_a_store_that_is_cut_has_no_position_behind_its_end(fixture_store: Callable[[str], Fixture]) -> None:
    fixture = fixture_store("v5.5.0")
    conf = str(fixture.conf)
    with open_store(fixture.root, config=conf) as store:
        *_, (offsets, _) = store.log.walk(store.log.minimum)
        before, end = int(offsets[-5]), int(offsets[-4])
    truncate_store(str(fixture.root), end, config=conf)
    assert position(fixture.root) == before


@pytest.mark.parametrize(("version", "is_written"), [("5.3.3", False), ("5.5.0", True)])
def test_a_store_that_is_let_go_waits_with_no_more_of_the_log_than_its_broker_recovers(
    version: str, is_written: bool, tmp_path: Path
) -> None:
    """CommitLog.recoverAbnormally walks back commitLogRecoverMaxNum files, whatever the checkpoint says."""
    config = StoreConfig.tiny().of_version(version)
    store = open_store(tmp_path / "store", config=config, read_only=False, create=True)
    before = read_checkpoint(LocalFileSystem(), str(tmp_path / "store"))
    for _ in range(40):
        store.put("T", bytes(800))
    end = last_record(store)
    assert end > 6 * 4096
    store.release()
    after = read_checkpoint(LocalFileSystem(), str(tmp_path / "store"))
    assert (after.physic_msg_timestamp > before.physic_msg_timestamp) == is_written
    assert after.logics_physical_offset == (end if is_written else 0)


def test_files_are_counted_from_the_last_checkpoint_and_not_from_the_last_opening(tmp_path: Path) -> None:
    """Each of these openings appends less than half of what a broker of 5.5.0 recovers."""
    root, config = tmp_path / "store", StoreConfig.tiny().of_version("5.5.0")
    written = []
    for _ in range(8):
        store = open_store(root, config=config, read_only=False, create=True)
        for _ in range(10):
            store.put("T", bytes(800))
        store.release()
        written.append(read_checkpoint(LocalFileSystem(), str(root)).logics_physical_offset)
    assert len(set(written[1:])) > 1
    with open_store(root, config=config) as store:
        assert store.log_end - written[-1] <= 6 * 4096
