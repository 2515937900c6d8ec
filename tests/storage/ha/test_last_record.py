"""A follower whose log ends where a record of the master's ends, and holds others: its last record tells, and it copies nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from storage import open_store
from storage.ha.follower import FollowerStatus, Following, MasterAsks, open_following
from tests.storage.ha.test_replicating import PATIENCE, QUICK, TINY, Master
from tests.support.replicas import holders


def put(root: Path, *bodies: bytes) -> int:
    with open_store(root, config=TINY, read_only=False, create=True) as store:
        for body in bodies:
            store.put("orders", body, queue_id=0)
        return store.writer.log_end


@pytest.fixture
def master(tmp_path: Path) -> Iterator[Master]:
    made = Master(tmp_path / "master")
    try:
        yield made
    finally:
        made.close()


@contextmanager
def following(root: Path, master: Master, *, asks: bool = True) -> Iterator[Following]:
    def record(place: int, topic: str) -> bytes | None:
        with master.service.exclusive() as store:
            store.log.list_files()
            size = store.log.message_at(place, master.end).size_bytes
            return store.log.bytes_at(place, size)

    said = MasterAsks(record=record) if asks else None
    with open_following(
        str(root), master.address, config=TINY, timing=QUICK, reconnect_ms=50, asks=said, adopts=True
    ) as made:
        yield made


def test_a_last_record_that_has_expired_at_the_master_is_no_other_log(master: Master, tmp_path: Path) -> None:
    with master.service.exclusive() as store:
        store.put("orders", b"one", queue_id=0)
    with following(tmp_path / "slave", master) as slave:
        assert slave.follower.wait(lambda status: status.end == master.end, PATIENCE), slave.follower.status
    with master.service.exclusive() as store:
        store.put("orders", b"two", queue_id=0)
    expired = MasterAsks(lambda: (master.end, master.end), lambda place, topic: b"")
    with open_following(
        str(tmp_path / "slave"), master.address, config=TINY, timing=QUICK, reconnect_ms=50, asks=expired, adopts=True
    ) as slave:
        assert slave.follower.wait(lambda status: status.end == master.end, PATIENCE), slave.follower.status


def is_told(status: FollowerStatus) -> bool:
    return status.is_hopeless and "is not the master's" in (status.trouble or "")


def test_records_of_equal_sizes_are_told_apart(master: Master, tmp_path: Path) -> None:
    with master.service.exclusive() as store:
        for body in (b"theirs", b"theirs"):
            store.put("orders", body, queue_id=0)
    end = put(tmp_path / "slave", b"mine..")
    assert end < master.end
    with following(tmp_path / "slave", master) as slave:
        assert slave.follower.wait(is_told, PATIENCE), slave.follower.status
        assert slave.follower.status.end == end
        assert holders(master.listener.replicas.snapshot(), 1) == 0


def test_what_was_copied_is_gone_on_with(master: Master, tmp_path: Path) -> None:
    with master.service.exclusive() as store:
        store.put("orders", b"one", queue_id=0)
    for _ in range(2):
        with following(tmp_path / "slave", master) as slave:
            assert slave.follower.wait(lambda status: status.end == master.end, PATIENCE), slave.follower.status
            assert not slave.follower.status.is_hopeless
        with master.service.exclusive() as store:
            store.put("orders", b"more", queue_id=0)


def test_a_master_that_cannot_be_asked_is_followed(master: Master, tmp_path: Path) -> None:
    with master.service.exclusive() as store:
        store.put("orders", b"theirs", queue_id=0)
    put(tmp_path / "slave", b"mine..")
    with following(tmp_path / "slave", master, asks=False) as slave:
        assert slave.follower.wait(lambda status: status.is_connected, PATIENCE)
