"""Sends to our broker that wait for a slave of Apache's, and for a follower of ours: what Apache's producer hears (REPLICATION 2.4)."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.interop.test_replication import (
    KEPT,
    QUICK,
    SIZES,
    TOPIC,
    assert_same_log,
    command,
    conf_of_replica,
    ha_address_of,
    has_caught_up,
    stop,
)
from tests.support.java_broker import Oracle, RunningBroker, wait_until

pytestmark = [pytest.mark.interop, pytest.mark.slow]

WAITING: dict[str, Any] = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": 2, "slaveTimeout": 15_000}
HASTY: dict[str, Any] = {**WAITING, "slaveTimeout": 500}


def statuses(oracle: Oracle, broker: RunningBroker, out: Path, count: int = 20) -> list[str]:
    """What Apache's producer hears of each of so many sends."""
    return [line["status"] for line in oracle.send(out, broker, TOPIC, queues=1, count=count, maxBody=500)]


@contextmanager
def followed_by_us(broker: RunningBroker, directory: Path) -> Iterator[tuple[Path, int]]:
    """Our follower's store, and its process."""
    log, replica = directory / "follow.log", directory / "replica"
    conf = conf_of_replica(directory, broker)
    with command("follow", ha_address_of(broker), replica, "--conf", conf, "--verbose", log=log) as process:
        wait_until(lambda: b"follows" in log.read_bytes(), "it runs")
        yield replica, process.pid
        stop(process)


@contextmanager
def master(oracle: Oracle, directory: Path, settings: dict[str, Any]) -> Iterator[tuple[Oracle, RunningBroker, str]]:
    ours = Oracle(directory, is_ours=True)
    with oracle.namesrv() as name_server:
        broker = ours.broker(directory / "master", name_server, **SIZES, **KEPT, **QUICK, **settings)
        with broker as running:
            yield ours, running, name_server


@pytest.mark.parametrize("is_ours", [True, False], ids=["our-follower", "apaches-slave"])
def test_a_send_is_ok_when_a_slave_has_it(oracle: Oracle, tmp_path: Path, is_ours: bool) -> None:
    with master(oracle, tmp_path, WAITING) as (ours, broker, name_server), ExitStack() as slaves:
        if is_ours:
            replica, _ = slaves.enter_context(followed_by_us(broker, tmp_path))
        else:
            replica = tmp_path / "replica"
            slave: dict[str, Any] = {"brokerRole": "SLAVE", "brokerId": 1, **QUICK, **SIZES}
            slaves.enter_context(oracle.broker(replica, name_server, **slave))
        assert set(statuses(ours, broker, tmp_path / "sent.jsonl")) == {"SEND_OK"}
        assert has_caught_up(replica, tmp_path / "master")(), "an acknowledged message is at the slave"
    assert_same_log(tmp_path / "master", tmp_path / "replica")


def test_without_a_slave_a_send_is_stored_and_says_so(oracle: Oracle, tmp_path: Path) -> None:
    with master(oracle, tmp_path, HASTY) as (ours, broker, _):
        assert statuses(ours, broker, tmp_path / "sent.jsonl", 3) == ["FLUSH_SLAVE_TIMEOUT"] * 3
        with ours.client("Consume", tmp_path / "got.jsonl", broker, group="GStored", topics=TOPIC) as client:
            client.until(lambda lines: len(lines) == 3, "message")


def test_a_slave_that_is_frozen_delays_sends_and_has_them_later(oracle: Oracle, tmp_path: Path) -> None:
    with (
        master(oracle, tmp_path, HASTY) as (ours, broker, _),
        followed_by_us(broker, tmp_path) as (replica, process),
    ):
        sent = tmp_path / "first.jsonl"
        wait_until(lambda: statuses(ours, broker, sent, 1) == ["SEND_OK"], "the follower acknowledges")
        os.kill(process, signal.SIGSTOP)
        try:
            assert statuses(ours, broker, tmp_path / "frozen.jsonl", 2) == ["FLUSH_SLAVE_TIMEOUT"] * 2
        finally:
            os.kill(process, signal.SIGCONT)
        wait_until(has_caught_up(replica, tmp_path / "master"), "it has them all the same")
        wait_until(lambda: statuses(ours, broker, sent, 1) == ["SEND_OK"], "and acknowledges again")
    assert_same_log(tmp_path / "master", replica)
