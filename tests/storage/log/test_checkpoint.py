"""The checkpoint page: the broker's bytes, and pages that are short."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from storage import MessageStore, StoreConfig, open_store
from storage.files.local_file_system import LocalFileSystem
from storage.ha.follower import truncate_store
from storage.log.checkpoint import PAGE_SIZE, Checkpoint, decode_checkpoint, encode_checkpoint, read_checkpoint
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
    assert len(page) == PAGE_SIZE


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
