"""A log that lacks a file amid others: refused for writing, told to readers, found by the audit, and nothing that is there is lost."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from jobs.verify_store import verify_store
from spark_mq.conditions import DataLossError
from storage import MessageStore, StoreConfig, open_store
from storage.errors import LogFileMissingError, StoreDamagedError
from storage.recovery.verify import Kind
from tests.spark.in_process import read_batch
from tests.support.message_builder import StoreBuilder
from tests.support.served import bodies_of

CONFIG = StoreConfig.tiny()
NAME = ("T", 0)
MESSAGES = 60


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Sixty messages in several log files of 4 KiB."""
    place = tmp_path / "store"
    (tmp_path / "broker.conf").write_text("".join(f"{name}={value}\n" for name, value in CONFIG.settings.items()))
    with open_store(place, config=CONFIG, read_only=False, create=True) as store:
        bodies = [(b"%d" % number).ljust(400) for number in range(MESSAGES)]
        columns = {"topic": ["T"] * MESSAGES, "queue_id": np.zeros(MESSAGES, np.int32), "body": bodies}
        store.put_batch(pa.record_batch(columns), queue_count=1)
    return place


def lose(root: Path, number: int) -> tuple[Path, list[bytes]]:
    """Take a file of the log away; returns it and the bodies that are left."""
    with open_store(root, config=CONFIG) as store:
        places = [store.position(*NAME, offset) for offset in range(MESSAGES)]
    lost = sorted((root / "commitlog").iterdir())[number]
    lost.rename(root.parent / lost.name)
    start = int(lost.name)
    left = [
        b"%d" % offset
        for offset, place in enumerate(places)
        if place is not None and not start <= place.commitlog_offset < start + 4096
    ]
    assert 0 < len(left) < MESSAGES
    return lost, left


def opened_with_a_warning(root: Path, lost: Path) -> MessageStore:
    with pytest.warns(RuntimeWarning, match=lost.name):
        return open_store(root, config=CONFIG)


@pytest.mark.parametrize("number", [1, 3, -3])
@pytest.mark.parametrize("way", ["clean", "killed", "killed, no checkpoint"])
def test_a_log_that_lacks_a_file_is_refused_for_writing_and_told_to_readers(root: Path, way: str, number: int) -> None:
    lost, left = lose(root, number)
    if way != "clean":
        (root / "abort").touch()
    if way == "killed, no checkpoint":
        (root / "checkpoint").unlink()
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    with pytest.raises(LogFileMissingError, match=lost.name) as raised:
        open_store(root, config=CONFIG, read_only=False)
    assert raised.value.file == str(lost)
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
    with opened_with_a_warning(root, lost) as store:
        assert [gap.start for gap in store.plan.gaps] == [int(lost.name)]
        assert bodies_of(store, *NAME) == left
    with pytest.warns(RuntimeWarning, match=lost.name):
        kinds = {finding.kind for finding in verify_store(str(root)).findings}
    assert Kind.DAMAGED_LOG in kinds


def test_the_file_before_an_empty_last_one_is_missed_too(root: Path) -> None:
    last = max((root / "commitlog").iterdir())
    if any(last.read_bytes()):
        (last.parent / f"{int(last.name) + 4096:020d}").write_bytes(bytes(4096))
    lost, _ = lose(root, -2)
    with pytest.raises(LogFileMissingError, match=lost.name):
        open_store(root, config=CONFIG, read_only=False)


def test_it_is_refused_though_a_hint_holds(root: Path) -> None:
    with open_store(root, config=CONFIG, read_only=False) as store:
        store.put("T", b"60", queue_id=0)
        store.release()
    lost, _ = lose(root, 1)
    with pytest.raises(LogFileMissingError, match=lost.name):
        open_store(root, config=CONFIG, read_only=False)


def test_the_file_brought_back_is_all_that_was_wanting(root: Path) -> None:
    lost, _ = lose(root, 2)
    (root.parent / lost.name).rename(lost)
    with open_store(root, config=CONFIG, read_only=False) as store:
        assert len(bodies_of(store, *NAME)) == MESSAGES
    assert verify_store(str(root)).findings == ()


@pytest.mark.parametrize("way", ["clean", "killed"])
def test_repair_bridges_it_and_cuts_nothing(root: Path, way: str) -> None:
    lost, left = lose(root, 1)
    if way == "killed":
        (root / "abort").touch()
    with open_store(root, config=CONFIG, read_only=False, truncate_damage=True) as store:
        assert bodies_of(store, *NAME) == left
        assert store.put("T", b"new", queue_id=0).queue_offset == MESSAGES
    assert lost.stat().st_size == 4096
    with open_store(root, config=CONFIG, read_only=False) as store:
        assert store.plan.gaps == ()
        assert bodies_of(store, *NAME) == [*left, b"new"]
    assert sorted(path.name for path in root.iterdir() if path.name.endswith(".tmp")) == []


def test_messages_of_a_missing_file_are_data_loss_to_spark(root: Path) -> None:
    _, left = lose(root, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(DataLossError):
            read_batch(root, topic="T")
        rows = read_batch(root, topic="T", failOnDataLoss="false")
    assert [row["body"].strip() for row in rows] == left


def test_empty_files_behind_the_end_are_no_missing_ones(tmp_path: Path) -> None:
    """A broker makes files ahead; a power loss may keep the name of the later one only."""
    store = StoreBuilder(tmp_path)
    while store.end < 3_500:
        store.put(body=bytes(300))
    store.checkpoint(store.store_time_ms)
    store.abort()
    (tmp_path / "commitlog" / f"{8_192:020d}").write_bytes(bytes(4_096))
    with store.open(read_only=False) as opened:
        assert len(opened.log.files) == 1
        assert opened.max_offset("TopicA", 0) == len(store.messages)


def test_the_error_names_every_file_that_is_missing() -> None:
    error = LogFileMissingError("/s/commitlog/1000", "/s/commitlog/0", "/s/commitlog/3000", 1000, 3000, 2)
    assert isinstance(error, StoreDamagedError)
    assert "/s/commitlog/1000" in str(error)
    assert "2 files" in str(error)
    assert "/s/commitlog/0" in str(error)
    assert "/s/commitlog/3000" in str(error)
