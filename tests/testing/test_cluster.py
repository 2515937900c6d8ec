"""A cluster for tests: what it starts, what its clock moves, what a kill leaves, and that nothing is left of it."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

from spark_mq.client import (
    Admin,
    ConsumeFrom,
    ConsumeStatus,
    Message,
    PushConsumer,
    PushSettings,
    SendStatus,
    TopicRouteNotFoundError,
    TransactionProducer,
    TransactionState,
)
from spark_mq.testing import Cluster, ClusterError
from spark_mq.testing import cluster as module
from spark_mq.testing.ports import free_ports
from spark_mq.testing.servers import BrokerInProcess
from storage import open_store
from storage.errors import ConfigurationError
from tests.support.places import PROJECT
from tests.support.waiting import wait_until

DAY_S = 24 * 60 * 60
KINDS = [pytest.param(False, id="threads"), pytest.param(True, id="processes", marks=pytest.mark.slow)]


@pytest.fixture(scope="module", params=KINDS)
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with Cluster(processes=request.param) as running:
        yield running


def bodies(cluster: Cluster, topic: str, count: int | None = None) -> list[bytes]:
    return [message.body for message in cluster.messages(topic, count)]


def test_what_is_sent_is_there(cluster: Cluster) -> None:
    cluster.create_topic("sent", queues=1)
    results = cluster.send("sent", b"one", "zwei", tags="Paid", keys=["order-1"])
    assert [result.status for result in results] == [SendStatus.SEND_OK] * 2
    found = cluster.messages("sent", count=2)
    assert [(each.body, each.tags, each.keys) for each in found] == [
        (b"one", "Paid", ["order-1"]),
        (b"zwei", "Paid", ["order-1"]),
    ]
    with open_store(cluster.brokers[0].store) as store:
        assert store.max_offset("sent", 0) == 2


def test_more_messages_than_one_pull_gives_come_whole_and_in_order(cluster: Cluster) -> None:
    cluster.create_topic("many", queues=2)
    sent = [b"%d" % number for number in range(200)]
    cluster.send("many", *sent)
    assert sorted(bodies(cluster, "many", 200), key=int) == sent
    places = [(each.queue_id, each.queue_offset) for each in cluster.messages("many")]
    assert places == sorted(places)


def test_a_topic_that_is_not_there_is_an_error_and_no_empty_list(cluster: Cluster) -> None:
    with pytest.raises(TopicRouteNotFoundError):
        cluster.messages("never-made")
    with pytest.raises(ClusterError, match="1 messages of topic never-made, there are 0"):
        cluster.messages("never-made", count=1, timeout_s=0.1)


def test_levels_and_times_follow_the_clock(cluster: Cluster) -> None:
    cluster.create_topic("later")
    cluster.send("later", b"level", delay_level=3)
    cluster.send("later", b"time", deliver_time_ms=cluster.now_ms() + 2 * DAY_S * 1_000)
    assert [each.body for each in cluster.delayed("later")] == [b"level"]
    cluster.advance(9)
    assert bodies(cluster, "later") == []
    cluster.advance(2)
    assert bodies(cluster, "later") == [b"level"]
    assert cluster.delayed("later") == []
    cluster.advance(2 * DAY_S)
    assert set(bodies(cluster, "later")) == {b"level", b"time"}


def test_store_times_follow_the_clock(cluster: Cluster) -> None:
    cluster.create_topic("dated", queues=1)
    cluster.send("dated", b"before")
    cluster.advance(DAY_S)
    cluster.send("dated", b"after")
    before, after = cluster.messages("dated", count=2)
    assert DAY_S * 1_000 <= after.store_time_ms - before.store_time_ms < DAY_S * 1_000 + 600_000


def test_a_failed_message_comes_again_and_then_is_a_dead_letter(cluster: Cluster) -> None:
    tries: Queue[int] = Queue()

    def listen(messages: list[Any], context: Any) -> ConsumeStatus:
        tries.put(messages[0].reconsume_times)
        return ConsumeStatus.LATER

    cluster.create_topic("fails")
    cluster.send("fails", b"body")
    options = PushSettings(consume_from=ConsumeFrom.FIRST, max_reconsume_times=1)
    consumer = PushConsumer(cluster.client_settings, "failing", listen, options=options)
    consumer.subscribe("fails")
    with consumer:
        assert tries.get(timeout=60) == 0
        cluster.delayed("%RETRY%failing", count=1)
        cluster.advance(10)
        assert tries.get(timeout=60) == 1
        assert bodies(cluster, "%DLQ%failing", 1) == [b"body"]


class Asked:
    """A listener that knows no transaction when it begins, and counts the questions."""

    def __init__(self) -> None:
        self.questions: Queue[str] = Queue()
        self.answer = TransactionState.UNKNOWN

    def execute(self, message: Message, transaction_id: str, arg: Any) -> TransactionState:
        return TransactionState.UNKNOWN

    def check(self, message: Any) -> TransactionState:
        self.questions.put(message.keys[0])
        return self.answer


def test_each_move_of_the_clock_asks_once_about_an_open_transaction(cluster: Cluster) -> None:
    asked = Asked()
    cluster.create_topic("paid")
    with TransactionProducer(cluster.client_settings, "payments", asked) as producer:
        producer.send_in_transaction(Message("paid", b"body", keys=["order-1"]))
        for _ in range(3):
            cluster.advance(60)
            assert asked.questions.get(timeout=60) == "order-1"
        asked.answer = TransactionState.COMMIT
        cluster.advance(60)
        assert bodies(cluster, "paid", 1) == [b"body"]
    assert asked.questions.get(timeout=60) == "order-1"
    assert asked.questions.empty()


def test_a_restart_keeps_messages_address_and_clock(cluster: Cluster) -> None:
    (broker,) = cluster.brokers
    cluster.create_topic("kept", queues=1)
    cluster.advance(DAY_S)
    cluster.send("kept", b"before")
    address = broker.address
    cluster.restart()
    assert broker.is_running
    assert broker.address == address
    cluster.send("kept", b"after")
    before, after = cluster.messages("kept", count=2)
    assert (before.body, after.body) == (b"before", b"after")
    assert after.store_time_ms >= before.store_time_ms


def test_a_thread_is_not_killed(tmp_path: Path) -> None:
    with Cluster(directory=tmp_path) as cluster:
        with pytest.raises(ClusterError, match="Cluster\\(processes=True\\)"):
            cluster.kill()
        cluster.brokers[0].stop()
        assert not cluster.brokers[0].is_running
        cluster.restart()
        assert cluster.brokers[0].is_running
    with open_store(cluster_store(tmp_path)) as store:
        assert store.log_end >= 0
    assert not (cluster_store(tmp_path) / "abort").exists()


def cluster_store(directory: Path) -> Path:
    return directory / "broker-0-0"


@pytest.mark.slow
def test_a_killed_broker_saves_nothing_and_goes_on_after_a_restart(tmp_path: Path) -> None:
    with Cluster(processes=True, directory=tmp_path) as cluster:
        cluster.create_topic("orders", queues=1)
        cluster.send("orders", b"before")
        cluster.kill()
        assert not cluster.brokers[0].is_running
        assert (cluster_store(tmp_path) / "abort").exists()
        with Admin(cluster.client_settings) as admin:
            wait_until(lambda: not admin.cluster_info().broker_address_table, "the name server knows it no more")
        cluster.restart()
        cluster.send("orders", b"after")
        assert bodies(cluster, "orders", 2) == [b"before", b"after"]


@pytest.mark.slow
def test_a_slave_has_each_message_that_was_sent_and_serves_it_without_its_master() -> None:
    with Cluster(slaves=1, processes=True) as cluster:
        cluster.create_topic("orders", queues=2)
        sent = [b"%d" % number for number in range(8)]
        cluster.send("orders", *sent)
        with open_store(cluster.brokers[1].store) as store:
            assert sum(store.max_offset("orders", queue) for queue in store.queue_ids("orders")) == 8
        cluster.kill()
        assert sorted(bodies(cluster, "orders", 8)) == sent
        cluster.restart()
        cluster.send("orders", b"8")
        assert sorted(bodies(cluster, "orders", 9)) == [*sent, b"8"]


def test_masters_come_before_slaves() -> None:
    assert [(each.name, each.broker_id, each.is_master) for each in Cluster(brokers=2, slaves=1).brokers] == [
        ("broker-0", 0, True),
        ("broker-1", 0, True),
        ("broker-0", 1, False),
        ("broker-1", 1, False),
    ]


@pytest.mark.slow
def test_a_broker_whose_process_ends_by_itself_is_an_error_at_the_end() -> None:
    cluster = Cluster(processes=True).start()
    node = cluster.brokers[0]._node
    assert isinstance(node, BrokerInProcess)
    os.kill(node.pid, 9)
    wait_until(lambda: not cluster.brokers[0].is_running, "it is gone")
    with pytest.raises(ClusterError, match="the broker's process ended with -9"):
        cluster.close()


@pytest.mark.slow
def test_a_broker_whose_process_has_ended_by_itself_is_restarted_and_one_that_hangs_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Cluster(processes=True) as cluster:
        cluster.create_topic("orders", queues=1)
        cluster.send("orders", b"before")
        node = cluster.brokers[0]._node
        assert isinstance(node, BrokerInProcess)
        os.kill(node.pid, 9)
        wait_until(lambda: not cluster.brokers[0].is_running, "it is gone")
        with pytest.raises(ClusterError, match="ended with -9"):
            cluster.advance(1_000)
        with pytest.raises(ClusterError, match="ended with -9"):
            node.stop()
        cluster.restart()
        cluster.send("orders", b"after")
        assert bodies(cluster, "orders", 2) == [b"before", b"after"]
        node = cluster.brokers[0]._node
        assert isinstance(node, BrokerInProcess)
        os.kill(node.pid, 19)  # SIGSTOP
        monkeypatch.setattr("spark_mq.testing.servers._ANSWER_S", 0.5)
        with pytest.raises(ClusterError, match=r"not answered for 0\.5 s: it is killed"):
            cluster.advance(1_000)
        monkeypatch.undo()
        cluster.restart()


def test_wrong_arguments_are_refused_by_name() -> None:
    with pytest.raises(ClusterError, match="at least 1 broker"):
        Cluster(brokers=0)
    with pytest.raises(ClusterError, match="the cluster chooses listenPort"):
        Cluster(settings={"listenPort": 10_911})
    with pytest.raises(ConfigurationError, match="mappedFileSize"), Cluster(settings={"mappedFileSizeCommitLog": -1}):
        raise AssertionError("it runs")
    with (
        pytest.warns(UserWarning, match="settings: noSuchSetting: no broker knows this name"),
        Cluster(settings={"noSuchSetting": 1}),
    ):
        pass
    with Cluster() as cluster, pytest.raises(ClusterError, match="forward only"):
        cluster.advance(-1)
    for call in (lambda: cluster.send("orders", b""), lambda: cluster.name_server, lambda: cluster.directory):
        with pytest.raises(ClusterError, match="does not run"):
            call()


def test_a_port_that_another_process_takes_first_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = free_ports()
    ports = iter([taken, taken, free_ports()])
    monkeypatch.setattr(module, "free_ports", lambda: next(ports))
    with socket.create_server(("127.0.0.1", taken)), Cluster() as cluster:
        assert cluster.brokers[0].port != taken


def test_two_clusters_at_once_have_nothing_in_common() -> None:
    with Cluster() as one, Cluster() as other:
        assert one.name_server != other.name_server
        for cluster, body in ((one, b"one"), (other, b"other")):
            cluster.create_topic("orders")
            cluster.send("orders", body)
        one.advance(DAY_S)
        assert bodies(one, "orders", 1) == [b"one"]
        assert bodies(other, "orders", 1) == [b"other"]
        assert one.now_ms() - other.now_ms() > DAY_S * 1_000 - 600_000


def test_a_notebook_or_an_asynchronous_test_whose_thread_runs_a_loop_may_use_it() -> None:
    async def use() -> list[bytes]:
        with Cluster() as cluster:
            cluster.create_topic("orders")
            cluster.send("orders", b"body")
            cluster.restart()
            return bodies(cluster, "orders", 1)

    assert asyncio.run(use()) == [b"body"]


# Nothing is left


def traces() -> Counter[str]:
    """What this process holds now: threads, descriptors, children, and what lies in its temporary directory."""
    gc.collect()
    files = filter(None, map(_open_file, os.listdir("/proc/self/fd")))
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text("ascii").split()
    return Counter(
        (
            *(f"thread {thread.name}" for thread in threading.enumerate()),
            *(f"file {file}" for file in files),
            *(f"child {child}" for child in children),
            *map(str, Path(tempfile.gettempdir()).iterdir()),
        )
    )


def is_nothing_new(before: Counter[str]) -> bool:
    return not traces() - before


def _open_file(number: str) -> str | None:
    try:
        target = os.readlink(f"/proc/self/fd/{number}")
    except OSError:
        return None
    return target if target.startswith("/") else target.partition(":")[0]


def rounds(count: int, *, processes: bool, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Starts and stops, each with a message; then nothing more is there than after the first, which starts the client's thread."""
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    before: Counter[str] = Counter()
    for _ in range(count):
        with Cluster(processes=processes) as cluster:
            cluster.create_topic("orders")
            cluster.send("orders", b"body")
            assert bodies(cluster, "orders", 1) == [b"body"]
            ports = [
                int(cluster.name_server.rpartition(":")[2]),
                *(cluster.brokers[0].port + step for step in (-2, 0, 1)),
            ]
        for port in ports:
            with socket.create_server(("127.0.0.1", port)):  # SO_REUSEADDR: but for connections that are at their end
                pass
        before = before or traces()
        wait_until(partial(is_nothing_new, before), f"nothing is there but {before}", 10)
    assert list(temporary.iterdir()) == []


def test_nothing_is_left_of_a_cluster_in_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds(3, processes=False, temporary=tmp_path, monkeypatch=monkeypatch)


@pytest.mark.slow
def test_nothing_is_left_of_a_cluster_in_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds(2, processes=True, temporary=tmp_path, monkeypatch=monkeypatch)


@pytest.mark.long
@pytest.mark.parametrize("processes", [False, True], ids=["threads", "processes"])
def test_nothing_is_left_after_twenty_rounds_on_a_busy_machine(
    processes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        rounds(20, processes=processes, temporary=tmp_path, monkeypatch=monkeypatch)
    finally:
        for process in busy:
            process.kill()
            process.wait()


def script(code: str, *arguments: str, **named: Any) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        **named,
    )


@pytest.mark.slow
@pytest.mark.parametrize("processes", [False, True], ids=["threads", "processes"])
def test_a_test_process_that_is_killed_leaves_no_broker_behind(processes: bool, tmp_path: Path) -> None:
    code = f"""
import os, signal, sys
from spark_mq.testing import Cluster
cluster = Cluster(processes={processes}, directory=sys.argv[1]).start()
print(cluster.brokers[0].port, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = script(code, str(tmp_path))
    assert done.returncode == -9, done.stderr
    port = int(done.stdout)

    def is_free() -> bool:
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            return False
        return True

    wait_until(is_free, "the broker is gone")


def test_it_needs_neither_spark_nor_pytest_and_starts_small(tmp_path: Path) -> None:
    """A process that imports and starts a cluster, and exchanges a message, has 120 MB at most."""
    code = r"""
import json, re, sys
class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pyspark", "py4j", "pandas", "pytest", "_pytest"):
            raise ImportError(name)
sys.meta_path.insert(0, Without())
from spark_mq.testing import Cluster
with Cluster(directory=sys.argv[1]) as cluster:
    cluster.create_topic("orders")
    cluster.send("orders", b"body")
    bodies = [message.body.decode() for message in cluster.messages("orders", count=1)]
most = re.search(r"VmHWM:\s+(\d+) kB", open("/proc/self/status").read())
print(json.dumps([bodies, int(most[1])]))
"""
    done = script(code, str(tmp_path))
    assert done.returncode == 0, done.stderr
    found, most_kib = json.loads(done.stdout)
    assert found == ["body"]
    assert most_kib <= 120 * 1000
