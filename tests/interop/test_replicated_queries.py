"""A Spark query whose batches wait for a slave, while slave and line are spoilt, and then the master's machine is lost.

The slave is promoted, and the query goes on there from its checkpoint: each batch that was called done is there, and each row once, in
order.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from jobs.verify_store import verify_store
from storage.ha.follower import promote
from tests.interop.test_replication import QUICK, command, conf_of_replica, ha_address_of
from tests.sink.test_sink_tasks import stored
from tests.support.driver_process import Driver, Query
from tests.support.java_broker import Oracle, RunningBroker, free_ports, wait_until
from tests.support.proxies import Line
from tests.support.store_builder import StoreBuilder

pytestmark = [pytest.mark.interop, pytest.mark.spark, pytest.mark.long]

TOPIC, ROWS, ROWS_A_BATCH = "Copied", 8_000, 40
SIZES: dict[str, Any] = {"commitlog_file_size_bytes": 1 << 20}
WAITING: dict[str, Any] = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": 2, "slaveTimeout": 60_000}


def bodies(store: Path) -> list[list[str]]:
    """Of each queue, in its order."""
    found: list[list[str]] = [[], []]
    for message in sorted(stored(str(store), TOPIC), key=lambda message: message.queue_offset):
        found[message.queue_id].append(message.body.decode())
    return found


def batches_done(checkpoint: Path) -> int:
    """So many batches Spark calls done."""
    commits = checkpoint / "commits"
    return sum(name.isdigit() for name in os.listdir(commits)) if commits.is_dir() else 0


@contextmanager
def a_slave(kind: str, oracle: Oracle, master: RunningBroker, line: str, directory: Path, start: int) -> Iterator[int]:
    """A slave that follows `line`, with its store at `directory`/replica, until it is killed with the context; its process."""
    replica, home = directory / "replica", directory / f"slave-{start}"
    home.mkdir()
    if kind == "apaches-slave":
        settings: dict[str, Any] = {"brokerRole": "SLAVE", "brokerId": 1, **QUICK, **SIZES}
        conf = home / "slave.conf"
        conf.write_text(oracle.broker_conf(replica, master.name_server, free_ports(), **settings), "utf-8")
        with oracle.java_running("SlaveMain", line, "-c", conf) as process:
            yield process.pid
    elif kind == "our-broker":
        slave: dict[str, Any] = {"brokerRole": "SLAVE", "brokerId": 1, "haMasterAddress": line, **QUICK, **SIZES}
        with Oracle(home, is_ours=True).broker(replica, master.name_server, **slave) as running:
            yield running.pid
    else:
        conf = conf_of_replica(directory, master)
        with command("follow", line, replica, "--conf", conf, log=home / "follow.log") as ours:
            yield ours.pid


@pytest.mark.parametrize("kind", ["apaches-slave", "our-follower", "our-broker"])
def test_each_row_is_there_once_when_the_masters_machine_is_lost(oracle: Oracle, tmp_path: Path, kind: str) -> None:
    rng = random.Random(kind)
    source = StoreBuilder(tmp_path / "source")
    expected = [source.send_many(TOPIC, ROWS // 2, queue_id=queue) for queue in range(2)]
    target, checkpoint = tmp_path / "target", tmp_path / "checkpoint"
    waiting = {"inSyncReplicas": "2", "slaveTimeout": "60s"}
    query = Query(
        *(str(source.root), str(target), TOPIC, str(checkpoint), ROWS_A_BATCH),
        trigger="0 seconds",
        sink_options=waiting,
    )

    def done(count: int) -> Callable[[], bool]:
        return lambda: batches_done(checkpoint) >= count

    ours = Oracle(tmp_path, is_ours=True)
    with oracle.namesrv() as name_server, ExitStack() as left:
        broker = left.enter_context(ours.broker(target, name_server, **SIZES, **QUICK, **WAITING))
        line = left.enter_context(Line(ha_address_of(broker)))
        slave = ExitStack()
        left.push(slave)
        pid = slave.enter_context(a_slave(kind, oracle, broker, line.address, tmp_path, 0))
        driver = left.enter_context(Driver(query, tmp_path / "driver"))
        driver.begin()
        wait_until(done(3), "batches are done", 120)

        os.kill(pid, signal.SIGSTOP)
        time.sleep(2)
        held = batches_done(checkpoint)
        time.sleep(2)
        assert batches_done(checkpoint) <= held + 1, "no batch is done while the slave is frozen"
        os.kill(pid, signal.SIGCONT)
        wait_until(done(held + 3), driver.output[-2_000:], 120)

        for _ in range(3):
            line.part()
            time.sleep(rng.random())
            line.heal()
            wait_until(done(batches_done(checkpoint) + 2), driver.output[-2_000:], 120)

        time.sleep(rng.random())
        os.kill(pid, signal.SIGKILL)
        slave.close()
        time.sleep(2)
        held = batches_done(checkpoint)
        pid = slave.enter_context(a_slave(kind, oracle, broker, line.address, tmp_path, 1))
        wait_until(done(held + 3), driver.output[-2_000:], 120)

        time.sleep(rng.random())
        broker.kill()
        driver.kill()
        told = batches_done(checkpoint)
        slave.close()
        left.pop_all().close()
        conf = broker.conf
    shutil.rmtree(target)

    replica = tmp_path / "replica"
    if kind == "our-follower":
        assert promote(str(replica), config=str(tmp_path / "replica.conf"))
    there = bodies(replica)
    assert (told - 1) * ROWS_A_BATCH <= sum(map(len, there)), "what was called done is on the slave"
    for got, wanted in zip(there, expected, strict=True):
        assert got == wanted[: len(got)]
    assert sum(map(len, there)) < ROWS, "the query was not at its end"

    (replica / "broker.conf").write_text(
        "".join(
            f"{line}\n"
            for line in conf.read_text("utf-8").splitlines()
            if not line.startswith(("brokerRole", "inSyncReplicas", "storePath"))
        )
    )
    again = Query(str(source.root), str(replica), TOPIC, str(checkpoint), ROWS_A_BATCH * 10)
    with Driver(again, tmp_path / "again") as driver:
        driver.begin()
        assert driver.wait_for_end() == 0, driver.output
    assert bodies(replica) == expected
    report = verify_store(str(replica))
    assert report.findings == (), report.findings
