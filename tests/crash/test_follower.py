"""A follower dies, or its machine, at any step of appending: what it has is a prefix of the master's log, and it goes on from there.

Frames are cut anywhere, fillers too. A killed process loses nothing that was checked; in SYNC_FLUSH a power loss neither.
"""

from __future__ import annotations

import random
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest

from storage import StoreConfig, open_store
from storage.format.record import MAGIC_BLANK
from storage.ha.follower import FollowedLog, truncate_store
from storage.ha.sessions import Received
from storage.service.put_service import PutService
from storage.settings.nouns import FlushConfig
from tests.support.crash_disk import Disk
from tests.support.crash_file_system import CrashFileSystem

pytestmark = [pytest.mark.crash, pytest.mark.slow]

FLUSH = pytest.mark.parametrize("sync_flush", [False, True], ids=["ASYNC_FLUSH", "SYNC_FLUSH"])
STRIDES = pytest.mark.parametrize("stride", [7, pytest.param(1, marks=pytest.mark.long)])
NOW_MS = 1_700_000_000_000


class Followed:
    """A master's store, and a follower's on a disk that remembers."""

    def __init__(self, directory: Path, *, sync_flush: bool) -> None:
        flush = FlushConfig("SYNC_FLUSH") if sync_flush else FlushConfig()
        self.config = replace(StoreConfig.tiny(), flush=flush)
        self.master, self.root = directory / "master", directory / "replica"
        rng = random.Random(1)
        with open_store(self.master, read_only=False, create=True, config=self.config, clock=lambda: NOW_MS) as store:
            for number in range(40):
                store.put(
                    f"t{number % 3}", rng.randbytes(rng.randrange(1, 500)), keys=[f"k{number}"], queue_id=number % 2
                )
            self.end = store.log_end
        files = sorted((self.master / "commitlog").iterdir())
        self.data = b"".join(path.read_bytes() for path in files)[: self.end]
        self.root.mkdir()

    def run(self, files: CrashFileSystem, seed: int) -> int:
        """Follow to the end of the log; marks what is checked. Returns where the follower's log ended at first."""
        rng = random.Random(seed)
        store = open_store(
            self.root,
            read_only=False,
            create=True,
            holder="follower",
            config=self.config,
            file_system=files,
            clock=lambda: NOW_MS + 1_000 * files.boot,
        )
        with PutService(store, starts_duties=False) as service:
            log = FollowedLog(service)
            begun = place = log.cut_torn_end()
            assert self.data[:begun] == self.log_of_replica()[:begun]
            while place < self.end:
                file_end = place // 4096 * 4096 + 4096
                size = min(rng.choice([1, 50, 333, 1_500, 4_096]), file_end - place, self.end - place)
                log.take(Received(place, self.data[place : place + size], None))
                place += size
                if rng.random() < 0.7:
                    log.settle()
                    files.mark(f"{log.end}")
                if rng.random() < 0.1:
                    place = log.cut_torn_end()  # the connection broke
                if rng.random() < 0.1:
                    service.flush()
                    service.queue_turn()
            log.settle()
            assert log.end == self.end
        return begun

    def log_of_replica(self) -> bytes:
        directory = self.root / "commitlog"
        return b"".join(path.read_bytes() for path in sorted(directory.iterdir())) if directory.is_dir() else b""

    def check(self, disk: Disk, boot: int, promised: int) -> None:
        """Another process goes on."""
        files = CrashFileSystem(str(self.root), disk, boot)
        begun = self.run(files, boot)
        assert begun >= promised or self.is_filler(begun, promised)
        assert self.log_of_replica()[: self.end] == self.data
        assert not any(self.log_of_replica()[self.end :])
        assert self.queues(self.root) == self.queues(self.master)
        with open_store(self.root, config=self.config) as store:
            assert [message.keys for message in store.query("t1", "k1")] == [["k1"]]

    def is_filler(self, start: int, end: int) -> bool:
        """Whether nothing but the unused rest of a file lies there."""
        return self.data[start + 4 : start + 8] == MAGIC_BLANK.to_bytes(4, "big") and end - start < 4096

    def queues(self, root: Path) -> dict[str, bytes]:
        files = [path for path in (root / "consumequeue").rglob("*") if path.is_file()]
        return {str(path.relative_to(root)): path.read_bytes() for path in files}


@FLUSH
@STRIDES
@pytest.mark.parametrize("loses_power", [False, True])
def test_a_cut_that_dies_is_done_again(tmp_path: Path, sync_flush: bool, stride: int, loses_power: bool) -> None:
    followed = Followed(tmp_path, sync_flush=sync_flush)
    files = CrashFileSystem(str(followed.root))
    followed.run(files, 0)
    end = 0
    while end < followed.end // 3:
        end += int.from_bytes(followed.data[end : end + 4], "big")
    files = CrashFileSystem(str(followed.root))
    truncate_store(str(followed.root), end, config=followed.config, file_system=files)
    for number, _, disk in files.states():
        if number % stride == 0:
            left = disk.after_power_loss(random.Random(number)) if loses_power else deepcopy(disk)
            again = CrashFileSystem(str(followed.root), left, 2)
            truncate_store(str(followed.root), end, config=followed.config, file_system=again)
            assert followed.log_of_replica()[:end] == followed.data[:end]
            assert not any(followed.log_of_replica()[end:])
            assert followed.run(again, number) == end
            assert followed.queues(followed.root) == followed.queues(followed.master)


def promise(marks: list[str]) -> int:
    return max(map(int, marks), default=0)


@FLUSH
@STRIDES
def test_a_killed_follower_keeps_what_it_has_checked(tmp_path: Path, sync_flush: bool, stride: int) -> None:
    followed = Followed(tmp_path, sync_flush=sync_flush)
    files = CrashFileSystem(str(followed.root))
    followed.run(files, 0)
    for number, marks, disk in files.states():
        if number % stride == 0:
            followed.check(deepcopy(disk), files.boot, promise(marks))


@FLUSH
@STRIDES
def test_a_power_loss_leaves_a_prefix(tmp_path: Path, sync_flush: bool, stride: int) -> None:
    followed = Followed(tmp_path, sync_flush=sync_flush)
    files = CrashFileSystem(str(followed.root))
    followed.run(files, 0)
    for number, marks, disk in files.states():
        if number % stride == 3 % stride:
            left = disk.after_power_loss(random.Random(number))
            followed.check(left, 2, promise(marks) if sync_flush else 0)
