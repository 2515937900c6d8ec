"""Waiting for replicas, thread by thread."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from storage.pending import PutStatus
from storage.service.put_group import ReplicaAcks
from storage.settings.load import parse_config


def acks_of(text: str) -> ReplicaAcks:
    config = parse_config(text.encode())
    return ReplicaAcks(config.mode, config.replication)


def test_a_replica_that_never_said_where_it_stands_is_not_in_sync() -> None:
    acks = acks_of("brokerRole=SYNC_MASTER\nhaMaxGapNotInSync=100")
    assert acks.in_sync(50) == 1
    acks.see({"silent": -1, "near": 1, "far": 0, "at the end": 100})
    assert acks.in_sync(100) == 3
    assert acks.in_sync(101) == 2


def test_members_of_a_set_are_in_sync_however_near_they_are() -> None:
    acks = acks_of("brokerRole=SYNC_MASTER\nenableControllerMode=true")
    acks.set_members({"id:2", "id:3"})
    assert acks.in_sync(1 << 40) == 3


def test_an_acknowledgement_that_comes_with_the_deadline_counts() -> None:
    acks = acks_of("brokerRole=SYNC_MASTER\ninSyncReplicas=2")
    wanted = acks.want(10, 2)
    assert wanted is not None
    acks.see({"a": 10})
    assert acks.wait(wanted, 0) is PutStatus.PUT_OK


def test_who_waits_for_replicas_to_come_hears_of_them() -> None:
    acks = acks_of("brokerRole=SYNC_MASTER\ninSyncReplicas=3")
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(acks.in_sync_within, 10, 3, 60)
        acks.see({"a": 10})
        acks.see({"a": 10, "b": 9})
        assert waiting.result(30) == 3
    assert acks.in_sync_within(10, 4, 0) == 3
