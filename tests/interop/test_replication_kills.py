"""Masters, Java slaves and our followers killed at random under load, thirty times; a follower that was away past the expiry."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from spark_mq.client import ClientError, ClientSettings, Message, Producer, ProducerSettings
from tests.interop.test_replication import (
    KEPT,
    QUICK,
    SIZES,
    TOPIC,
    assert_same_log,
    command,
    conf_of_replica,
    ha_address_of,
    ha_slave,
    has_caught_up,
    log_end,
    messages,
    stop,
)
from tests.support.java_broker import Oracle, RunningBroker, free_ports, wait_until
from tests.support.kill_hunts import Place, bytes_apart, judged

pytestmark = [pytest.mark.interop, pytest.mark.slow]

SLAVE: dict[str, Any] = {"brokerRole": "SLAVE", "brokerId": 1, **QUICK, **SIZES}
KILLS = 30
SEED = 19


class Roles:
    """A master and its slaves, each of which is started again when it was killed."""

    def __init__(self, start: dict[str, Callable[[ExitStack], Callable[[], None]]]) -> None:
        """By role, what starts it; that returns what kills it."""
        self._start = start
        self._stacks = {name: ExitStack() for name in start}
        self._kill: dict[str, Callable[[], None]] = {}

    def start(self, name: str) -> None:
        self._kill[name] = self._start[name](self._stacks[name])

    def kill(self, name: str) -> None:
        self._kill[name]()
        self._stacks[name].close()

    def close(self) -> None:
        for stack in self._stacks.values():
            stack.close()


@contextmanager
def load(name_server: str, seed: int) -> Iterator[list[Place]]:
    """Send messages without a pause, each once, also while processes are killed. Yields the acknowledged ones."""
    acknowledged: list[Place] = []
    ending = threading.Event()

    def send() -> None:
        rng = random.Random(seed)
        once = ProducerSettings(retries=0)
        with Producer(ClientSettings(name_server, request_timeout_ms=2_000), "kills", once) as producer:
            for number in itertools.count():
                if ending.is_set():
                    break
                key, body = str(number), rng.randbytes(rng.choice([10, 500, 3_000, 40_000]))
                try:
                    result = producer.send(Message(TOPIC, body, keys=key))
                    acknowledged.append(Place(key, result.queue.queue_id, result.queue_offset))
                except ClientError:
                    time.sleep(0.1)
                time.sleep(0.01)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield acknowledged
    finally:
        ending.set()
        thread.join()


@pytest.mark.long
@pytest.mark.parametrize("is_ours", [True, False], ids=["our-master", "apaches-master"])
def test_logs_are_the_same_after_thirty_kills(oracle: Oracle, tmp_path: Path, is_ours: bool) -> None:
    servers, others, port = (*(Oracle(tmp_path, is_ours=each) for each in (is_ours, not is_ours)), free_ports())
    master, follower, slave = tmp_path / "master", tmp_path / "follower", tmp_path / "slave"
    log = tmp_path / "follow.log"
    rng = random.Random(SEED + is_ours)
    running: list[RunningBroker] = []
    number = 0

    with oracle.namesrv() as name_server:

        def start_master(stack: ExitStack) -> Callable[[], None]:
            broker = stack.enter_context(servers.broker(master, name_server, port=port, **SIZES, **KEPT, **QUICK))
            running[:] = [broker]
            return broker.kill

        def start_follower(stack: ExitStack) -> Callable[[], None]:
            conf = conf_of_replica(tmp_path, running[0])
            words = ("follow", name_server, follower, "--broker-name", "broker-lab", "--conf", conf, "--verbose")
            return stack.enter_context(command(*words, log=log)).kill

        def start_slave(stack: ExitStack) -> Callable[[], None]:
            nonlocal number
            number += 1
            if is_ours:
                place = tmp_path / f"slave-{number}"
                return stack.enter_context(ha_slave(oracle, place, slave, name_server, ha_address_of(running[0])))
            return stack.enter_context(others.broker(slave, name_server, **SLAVE)).kill

        starts = {"master": start_master, "follower": start_follower, "slave": start_slave}
        roles, killed = Roles(starts), []
        try:
            for name in starts:
                roles.start(name)
            with load(name_server, SEED) as acknowledged:
                for _ in range(KILLS):
                    killed.append(name := rng.choice(list(starts)))
                    time.sleep(rng.uniform(0.2, 3))
                    roles.kill(name)
                    roles.start(name)
            assert len(acknowledged) > 100
            for replica in (follower, slave):
                wait_until(has_caught_up(replica, master), f"{replica} has it all", 120)
            conf = running[0].conf
        finally:
            roles.close()
    lines = oracle.dump(master, conf)
    for replica in (follower, slave):
        assert_same_log(master, replica)
        assert bytes_apart(master, replica) == 0
        assert messages(oracle.dump(replica, conf)) == messages(lines)
    verdict = judged(killed, acknowledged, placed(lines))
    print(f"{'our' if is_ours else oracle.version} master: {verdict}")
    assert verdict.is_clean, verdict


def placed(lines: list[dict[str, Any]]) -> list[Place]:
    """The load's messages in the queues of a dumped store."""
    found = [line for line in lines if line["type"] == "message" and line["cqTopic"] == TOPIC]
    return [Place(line["properties"]["KEYS"], line["queueId"], line["cqOffset"]) for line in found]


@pytest.mark.long
def test_a_follower_that_was_away_past_the_expiry_of_an_apache_master_says_so(oracle: Oracle, tmp_path: Path) -> None:
    master, replica, log = tmp_path / "master", tmp_path / "replica", tmp_path / "follow.log"
    port = free_ports()
    with oracle.namesrv() as name_server:
        words: tuple[Any, ...] = ()
        for is_back in (False, True):
            with oracle.broker(master, name_server, port=port, **SIZES, **KEPT, **QUICK) as broker:
                conf = conf_of_replica(tmp_path, broker)
                words = ("follow", name_server, replica, "--broker-name", "broker-lab", "--conf", conf, "--verbose")
                if not is_back:
                    oracle.send(tmp_path / "sent.jsonl", broker, TOPIC, queues=2, count=20)
                with command(*words, log=log) as process:
                    if is_back:
                        wait_until(lambda: b"expired there" in log.read_bytes(), "it says so")
                    else:
                        wait_until(has_caught_up(replica, master), "the follower has it all")
                    stop(process)
                if not is_back:
                    oracle.send(tmp_path / "more.jsonl", broker, TOPIC, queues=2, count=300, maxBody=3_000)
            files = sorted((master / "commitlog").iterdir())
            assert len(files) > 3
            if not is_back:
                for path in files[:2]:
                    path.unlink()
    assert 0 < log_end(replica) < 2 * 65_536
