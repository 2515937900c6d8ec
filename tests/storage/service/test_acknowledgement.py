"""A put that waits for its disk and for its copies has a time for each."""

from __future__ import annotations

import time
from concurrent.futures import Future

from storage.pending import PutStatus
from storage.service.put_group import Acknowledgement, ReplicaAcks
from storage.settings.nouns import ReplicationConfig, StoreModeConfig


def test_the_disk_is_waited_for_first_and_then_the_copies_for_what_is_left_of_their_time() -> None:
    flush: Future[None] = Future()
    acks = ReplicaAcks(StoreModeConfig(), ReplicationConfig())
    told: list[str] = []

    def waiting(slave_timeout_ms: int) -> Acknowledgement:
        return Acknowledgement(flush, acks.want(100, 2), acks, "store", (60_000, slave_timeout_ms))

    def left(waits: Acknowledgement) -> float | None:
        return waits.when_settled(lambda: told.append("over"))

    patient, hurried = waiting(30_000), waiting(1)
    for_disk = left(patient)
    assert for_disk is not None
    assert 30 < for_disk <= 60
    flush.set_result(None)
    assert told == ["over"]
    for_copies = left(patient)
    assert for_copies is not None
    assert 0 < for_copies <= 30
    time.sleep(0.01)
    assert left(hurried) is None  # its time is over
    assert hurried() is PutStatus.FLUSH_SLAVE_TIMEOUT
