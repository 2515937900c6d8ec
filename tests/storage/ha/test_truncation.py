"""A log cut where it stops agreeing: queues, keys and epochs go with it, and nothing comes back."""

from __future__ import annotations

import random
from itertools import count
from pathlib import Path

import pytest

from storage import StoreConfig, open_store
from storage.errors import CorruptRecordError, OffsetOutOfRangeError, StoreRefusedError
from storage.files.local_file_system import LocalFileSystem
from storage.format.replication import EpochEntry
from storage.ha import follower
from storage.ha.epochs import load_epochs, save_epochs
from storage.ha.follower import truncate_store
from storage.log.commit_log import CommitLog, read_checkpoint
from storage.recovery.mending import cut_log

TINY = StoreConfig.tiny()
FILES = LocalFileSystem()


def made(root: Path, count: int = 40) -> list[int]:
    """A store of several files; returns where each record begins, and where the last one ends."""
    rng = random.Random(2)
    places = []
    with open_store(root, read_only=False, create=True, config=TINY) as store:
        for number in range(count):
            body = rng.randbytes(rng.randrange(1, 300))
            places.append(store.put("orders", body, queue_id=number % 3, keys=[f"k{number}"]).commitlog_offset)
        return [*places, store.log_end]


@pytest.mark.parametrize("number", [0, 1, 7, 20, 39, 40])
def test_what_stands_behind_the_place_is_gone_everywhere_and_writing_goes_on_there(tmp_path: Path, number: int) -> None:
    root = tmp_path / "store"
    places = made(root)
    save_epochs(FILES, str(root), [EpochEntry(1, 0), EpochEntry(3, places[7]), EpochEntry(4, places[30])])
    kept = truncate_store(str(root), places[number], config=TINY)
    assert [entry.epoch for entry in kept] == [1, 3, 4][: 1 + (number >= 7) + (number >= 30)]
    assert load_epochs(FILES, str(root)) == tuple(kept)
    data = b"".join(path.read_bytes() for path in sorted((root / "commitlog").iterdir()))
    assert not any(data[places[number] :])
    with open_store(root, read_only=False, config=TINY) as store:
        assert sum(store.max_offset("orders", queue_id) for queue_id in range(3)) == number
        assert bool(store.query("orders", "k20")) is (number > 20)
        placed = store.put("orders", b"new", queue_id=0)
        assert placed.queue_offset == (number + 2) // 3


def test_a_place_inside_a_record_or_outside_of_the_log_changes_nothing(tmp_path: Path) -> None:
    root = tmp_path / "store"
    places = made(root)
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    with pytest.raises(StoreRefusedError, match="no record begins"):
        truncate_store(str(root), places[9] + 3, config=TINY)
    with pytest.raises(OffsetOutOfRangeError):
        truncate_store(str(root), places[-1] + 1, config=TINY)
    with pytest.raises(StoreRefusedError, match="all replicas"):
        truncate_store(str(root), places[9], config=TINY, confirm_offset=places[10])
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


def test_the_checkpoint_vouches_for_nothing_that_is_cut_before_it_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash may come at any later step: what opens the store then goes by the checkpoint."""
    root, times, config = tmp_path / "store", count(1_000), TINY.of_version("5.5.0")
    with open_store(root, read_only=False, create=True, config=config, clock=lambda: next(times)) as store:
        placed = [store.put("orders", b"x" * 300, queue_id=0) for _ in range(30)]
    with open_store(root, config=config) as store:
        stored_ms = store.get("orders", queue_id=0, offset=8, max_count=1).messages[0].store_time_ms
    before = read_checkpoint(FILES, str(root))
    assert before.physic_msg_timestamp > stored_ms
    assert before.logics_physical_offset == placed[-1].commitlog_offset
    seen: list[tuple[int, int, bool]] = []

    def cut(files: LocalFileSystem, log: CommitLog, end: int, *why: str) -> None:
        left = read_checkpoint(files, str(root))
        seen.append((left.physic_msg_timestamp, left.logics_physical_offset, (root / "abort").exists()))
        cut_log(files, log, end, *why)

    monkeypatch.setattr(follower, "cut_log", cut)
    truncate_store(str(root), placed[9].commitlog_offset, config=config)
    expected = stored_ms, placed[8].commitlog_offset, True
    assert seen == [expected], "and the store is marked as open, so that the next opening looks"


def test_the_epoch_file_survives_its_own_loss_once(tmp_path: Path) -> None:
    root = str(tmp_path)
    assert load_epochs(FILES, root) == ()
    save_epochs(FILES, root, [EpochEntry(1, 0)])
    save_epochs(FILES, root, [EpochEntry(1, 0), EpochEntry(2, 9)])
    (tmp_path / "epochFileCheckpoint").write_bytes(b"2\n1\n1-0\n")
    assert load_epochs(FILES, root) == (EpochEntry(1, 0),)
    (tmp_path / "epochFileCheckpoint.bak").unlink()
    with pytest.raises(CorruptRecordError):
        load_epochs(FILES, root)
    save_epochs(FILES, root, [])
    assert load_epochs(FILES, root) == ()
