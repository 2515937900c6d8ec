"""Our master and a slave of Apache's, Apache's master and our follower: the same log byte for byte, whatever is killed in between."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from spark_mq.client.message import Message
from spark_mq.client.producer import Producer
from spark_mq.client.settings import ClientSettings
from storage import open_store
from storage.delay.timer_store import deliver_timed
from storage.ha.follower import promote
from storage.tables.consumer_groups import ConsumerOffsets
from storage.tables.masters import followed_timer_path
from storage.tables.topics import TopicTable
from tests.support.java_broker import Oracle, RunningBroker, free_ports, wait_until
from tests.support.places import COMMAND, PROJECT

pytestmark = [pytest.mark.interop, pytest.mark.slow]

FILE_SIZE = 65_536
SIZES: dict[str, Any] = {"commitlog_file_size_bytes": FILE_SIZE}
QUICK: dict[str, Any] = {"haSendHeartbeatInterval": 1_000}
KEPT = {"maxMessageSize": 4 << 20}
TOPIC = "Replicated"


def log_bytes(store: Path) -> dict[str, bytes]:
    """The content of each log file, without the zeros behind it."""
    return {path.name: path.read_bytes().rstrip(b"\0") for path in sorted((store / "commitlog").iterdir())}


def log_end(store: Path) -> int:
    """Behind the last byte that is not zero."""
    written = [int(name) + len(content) for name, content in log_bytes(store).items() if content]
    return max(written, default=0)


def has_caught_up(replica: Path, master: Path) -> Callable[[], bool]:
    return lambda: (replica / "commitlog").is_dir() and log_end(replica) >= log_end(master) > 0


def assert_same_log(master: Path, replica: Path) -> None:
    """Every byte, in all files that the replica has."""
    theirs, ours = log_bytes(master), log_bytes(replica)
    assert {name: content for name, content in ours.items() if content} == {
        name: content for name, content in theirs.items() if content and name in ours
    }


def messages(lines: list[dict[str, Any]]) -> dict[tuple[str, int, int], str]:
    """What Apache's classes find in the queues of a store: each message's record by its place in its queue."""
    found = [line for line in lines if line["type"] == "message"]
    return {(line["cqTopic"], line["queueId"], line["cqOffset"]): line["recordSha256"] for line in found}


@contextmanager
def ha_slave(
    oracle: Oracle, directory: Path, store: Path, name_server: str, ha_address: str
) -> Iterator[Callable[[], None]]:
    """A Java broker as a slave that follows `ha_address`; yields what kills it."""
    directory.mkdir(exist_ok=True)
    settings: dict[str, Any] = {"brokerRole": "SLAVE", "brokerId": 1, "haMasterAddress": ha_address, **QUICK}
    conf = directory / "slave.conf"
    text = oracle.broker_conf(store, name_server, free_ports(), commitlog_file_size_bytes=FILE_SIZE, **settings)
    conf.write_text(text, "utf-8")
    with oracle.java_running("SlaveMain", ha_address, "-c", conf) as process:
        yield process.kill


@contextmanager
def command(*words: str | Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A `spark-mq` command that runs; killed with the context, if it was not before."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            [*COMMAND, *map(str, words)], cwd=PROJECT, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait(60)


def stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    assert process.wait(60) == 0


def conf_of_replica(directory: Path, broker: RunningBroker) -> Path:
    """A configuration with the master's file sizes."""
    conf = directory / "replica.conf"
    kept = ("mappedFileSize", "maxHash", "maxIndex", "messageDelayLevel")
    lines = [line for line in broker.conf.read_text("utf-8").splitlines() if line.startswith(kept)]
    conf.write_text("\n".join([*lines, "haSendHeartbeatInterval=1000", "brokerRole=SLAVE"]) + "\n", "utf-8")
    return conf


def ha_address_of(broker: RunningBroker) -> str:
    return f"127.0.0.1:{int(broker.address.rpartition(':')[2]) + 1}"


@pytest.mark.long
def test_a_java_slave_follows_our_broker_over_files_and_kills(oracle: Oracle, tmp_path: Path) -> None:
    ours, port, master, replica = (
        Oracle(tmp_path, is_ours=True),
        free_ports(),
        tmp_path / "master",
        tmp_path / "replica",
    )
    rng = random.Random(5)
    with oracle.namesrv() as name_server:
        for number in range(3):
            with ours.broker(master, name_server, port=port, **SIZES, **KEPT, **QUICK) as broker:
                address = ha_address_of(broker)
                with ha_slave(oracle, tmp_path / f"slave-{number}", replica, name_server, address) as kill:
                    out = tmp_path / f"sent-{number}.jsonl"
                    sent = ours.send(out, broker, TOPIC, queues=4, count=300, maxBody=3_000, seed=number)
                    assert {line["status"] for line in sent} == {"SEND_OK"}
                    if rng.random() < 0.5:
                        kill()
                        ours.send(tmp_path / "more.jsonl", broker, TOPIC, queues=4, count=50, seed=70 + number)
                        with ha_slave(oracle, tmp_path / f"again-{number}", replica, name_server, address):
                            wait_until(has_caught_up(replica, master), "the slave has it all")
                    else:
                        wait_until(has_caught_up(replica, master), "the slave has it all")
                broker.kill()
        conf = broker.conf
    assert_same_log(master, replica)
    assert len(log_bytes(replica)) > 5
    assert messages(oracle.dump(replica, conf)) == messages(oracle.dump(master, conf))


@pytest.mark.long
def test_our_follower_follows_apaches_broker_over_files_and_kills(oracle: Oracle, tmp_path: Path) -> None:
    port, master, replica = free_ports(), tmp_path / "master", tmp_path / "replica"
    log = tmp_path / "follow.log"
    rng = random.Random(6)
    with oracle.namesrv() as name_server:
        for number in range(3):
            with oracle.broker(master, name_server, port=port, **SIZES, **KEPT, **QUICK) as broker:
                conf = conf_of_replica(tmp_path, broker)
                words = ("follow", name_server, replica, "--broker-name", "broker-lab", "--conf", conf, "--verbose")
                for kill in (True, True, False):
                    with command(*words, log=log) as process:
                        out = tmp_path / f"sent-{number}.jsonl"
                        oracle.send(out, broker, TOPIC, queues=4, count=100, maxBody=3_000, seed=rng.randrange(10**6))
                        if kill:
                            time.sleep(rng.random())
                            os.kill(process.pid, signal.SIGKILL)
                        else:
                            wait_until(has_caught_up(replica, master), log.read_text("utf-8")[-2_000:])
                            stop(process)
                if number != 1:
                    broker.kill()
        broker_conf = broker.conf
    assert_same_log(master, replica)
    assert len(log_bytes(replica)) > 5
    assert messages(oracle.dump(replica, broker_conf)) == messages(oracle.dump(master, broker_conf))


@pytest.mark.long
def test_all_kinds_of_messages_reach_our_follower(oracle: Oracle, tmp_path: Path) -> None:
    master, replica, log = tmp_path / "master", tmp_path / "replica", tmp_path / "follow.log"
    with oracle.namesrv() as name_server, oracle.broker(master, name_server, **SIZES, **KEPT, **QUICK) as broker:
        conf = conf_of_replica(tmp_path, broker)
        with command("follow", ha_address_of(broker), replica, "--conf", conf, log=log) as process:
            wait_until(lambda: b"follows" in log.read_bytes(), "it runs")
            oracle.produce(tmp_path / "sent.jsonl", broker)
            time.sleep(2)
            wait_until(has_caught_up(replica, master), "the follower has it all")
            stop(process)
        broker.kill()
    theirs, ours = log_bytes(master), log_bytes(replica)
    assert all(theirs[name].startswith(content) for name, content in ours.items())  # it goes on with transaction checks
    of_master = messages(oracle.dump(master, broker.conf))
    of_replica = messages(oracle.dump(replica, broker.conf))
    assert len(of_replica) > 1_000
    assert of_replica.items() <= of_master.items()


@pytest.mark.long
@pytest.mark.parametrize("is_ours", [True, False], ids=["our-master", "apaches-master"])
def test_a_message_of_four_mebibytes_crosses(oracle: Oracle, tmp_path: Path, is_ours: bool) -> None:
    servers = Oracle(tmp_path, is_ours=is_ours)
    master, replica, log = tmp_path / "master", tmp_path / "replica", tmp_path / "follow.log"
    sizes: dict[str, Any] = {"commitlog_file_size_bytes": 8 << 20}
    with oracle.namesrv() as name_server, servers.broker(master, name_server, **sizes, **KEPT, **QUICK) as broker:
        conf = conf_of_replica(tmp_path, broker)
        with command("follow", ha_address_of(broker), replica, "--conf", conf, log=log) as process:
            wait_until(lambda: b"follows" in log.read_bytes(), "it runs")
            most = (4 << 20) - 4_000  # what does not shrink grows when it is compressed
            oracle.send(tmp_path / "sent.jsonl", broker, TOPIC, queues=1, count=4, minBody=most, maxBody=most)
            wait_until(has_caught_up(replica, master), "the follower has it all")
            stop(process)
    assert_same_log(master, replica)
    assert len(messages(oracle.dump(replica, broker.conf))) == 4


@pytest.mark.long
@pytest.mark.parametrize("is_ours", [True, False], ids=["our-master", "apaches-master"])
def test_a_follower_finds_its_master_by_name_and_copies_its_state(
    oracle: Oracle, tmp_path: Path, is_ours: bool
) -> None:
    servers = Oracle(tmp_path, is_ours=is_ours)
    master, replica, log = tmp_path / "master", tmp_path / "replica", tmp_path / "follow.log"
    with oracle.namesrv() as name_server, servers.broker(master, name_server, **SIZES, **KEPT, **QUICK) as broker:
        conf = conf_of_replica(tmp_path, broker)
        sent = servers.send(tmp_path / "sent.jsonl", broker, TOPIC, queues=3, count=60)
        with servers.client("Consume", tmp_path / "got.jsonl", broker, group="GCopied", topics=TOPIC) as client:
            client.until(lambda lines: len(lines) >= len(sent), "message")
            wait_until(lambda: broker.consumer_offset(TOPIC, "GCopied", 2) == 20, "the group's offsets are saved")
        words = ("follow", name_server, replica, "--broker-name", "broker-lab", "--conf", conf, "--verbose")
        with command(*words, log=log) as process:
            wait_until(has_caught_up(replica, master), "the follower has it all")
            offsets = replica / "config" / "consumerOffset.json"
            wait_until(offsets.exists, log.read_text("utf-8")[-2_000:])
            stop(process)
    assert_same_log(master, replica)
    table = ConsumerOffsets.load(offsets.read_text("utf-8"))
    assert [table.get(TOPIC, "GCopied", queue_id) for queue_id in range(3)] == [20, 20, 20]
    topics = TopicTable.load((replica / "config" / "topics.json").read_text("utf-8")).topics
    assert topics[TOPIC].read_queue_count == 3
    assert promote(str(replica), config=str(conf))
    with oracle.namesrv() as name_server, oracle.broker(replica, name_server, **SIZES, **KEPT) as broker:
        more = oracle.send(tmp_path / "more.jsonl", broker, TOPIC, queues=3, count=30)
        assert sorted({line["queueOffset"] for line in more}) == list(range(20, 30))


@pytest.mark.long
@pytest.mark.parametrize("is_ours", [True, False], ids=["our-master", "apaches-master"])
def test_a_promoted_follower_delivers_what_its_masters_timer_has_not(
    oracle: Oracle, tmp_path: Path, is_ours: bool
) -> None:
    servers, log = Oracle(tmp_path, is_ours=is_ours), tmp_path / "follow.log"
    master, replica = tmp_path / "master", tmp_path / "replica"
    timer: dict[str, Any] = {"timerWheelEnable": "true", "mappedFileSizeTimerLog": 10_400}
    now_ms = time.time_ns() // 1_000_000
    with oracle.namesrv() as name_server, servers.broker(master, name_server, **SIZES, **QUICK, **timer) as broker:
        conf = conf_of_replica(tmp_path, broker)
        with Producer(ClientSettings((name_server,), request_timeout_ms=30_000), "GTimed") as producer:
            for number in range(10):
                due_ms = now_ms + (3_000 if number < 5 else 3_600_000)
                producer.send(Message(TOPIC, f"{number}".encode(), deliver_time_ms=due_ms))
        wait_until(lambda: delivered(master) == {f"{number}": 1 for number in range(5)}, "five are delivered", 60)
        with command("follow", name_server, replica, "--broker-name", "broker-lab", "--conf", conf, log=log) as process:
            wait_until(has_caught_up(replica, master), "the follower has it all")
            wait_until(Path(followed_timer_path(str(replica))).exists, "it knows how far the timer is")
            stop(process)
    assert promote(str(replica), config=str(conf))
    lines = conf.read_text("utf-8").splitlines(keepends=True)
    conf.write_text("".join(line for line in lines if not line.startswith("brokerRole")), "utf-8")
    later_ms = now_ms + 7_200_000
    with open_store(replica, config=str(conf), read_only=False, clock=lambda: later_ms) as store:
        report = deliver_timed(store, later_ms)
    assert report.delivered == 5
    assert delivered(replica) == {f"{number}": 1 for number in range(10)}


def delivered(store: Path) -> dict[str, int]:
    """How often each body stands in the topic."""
    with open_store(store) as reading:
        found = (reading.get(TOPIC, queue_id, 0, 32).messages for queue_id in reading.queue_ids(TOPIC))
        return dict(Counter(message.body.decode() for messages in found for message in messages))


@pytest.mark.long
def test_a_java_slave_finds_our_broker_by_the_name_server(oracle: Oracle, tmp_path: Path) -> None:
    ours, master, replica = Oracle(tmp_path, is_ours=True), tmp_path / "master", tmp_path / "replica"
    slave: dict[str, Any] = {"brokerRole": "SLAVE", "brokerId": 1, **QUICK, **SIZES}
    with oracle.namesrv() as name_server, ours.broker(master, name_server, **SIZES, **KEPT, **QUICK) as broker:
        ours.send(tmp_path / "sent.jsonl", broker, TOPIC, queues=4, count=200, maxBody=2_000)
        with oracle.broker(replica, name_server, **slave):
            wait_until(has_caught_up(replica, master), "the slave has it all")
            ours.send(tmp_path / "more.jsonl", broker, TOPIC, queues=4, count=100, maxBody=2_000)
            wait_until(has_caught_up(replica, master), "the slave has it all")
    assert_same_log(master, replica)
    assert messages(oracle.dump(replica, broker.conf)) == messages(oracle.dump(master, broker.conf))


@pytest.mark.long
def test_a_java_slave_follows_a_store_that_a_writer_beside_it_writes(oracle: Oracle, tmp_path: Path) -> None:
    """`spark-mq replicate`: the store is a sink's, and no broker serves it."""
    master, replica, log = tmp_path / "master", tmp_path / "replica", tmp_path / "replicate.log"
    conf = tmp_path / "broker.conf"
    port = free_ports()
    with oracle.namesrv() as name_server:
        conf.write_text(oracle.broker_conf(master, name_server, port, commitlog_file_size_bytes=FILE_SIZE), "utf-8")
        rng = random.Random(3)
        with open_store(master, read_only=False, create=True, config=str(conf)) as store:
            store.put(TOPIC, b"first")
            words = ("replicate", master, "--conf", conf, "--port", str(port + 1), "--verbose")
            with command(*words, log=log) as process:
                wait_until(lambda: b"is served" in log.read_bytes(), "it listens")
                with ha_slave(oracle, tmp_path / "slave", replica, name_server, f"127.0.0.1:{port + 1}"):
                    for _ in range(200):
                        store.put(TOPIC, rng.randbytes(rng.randrange(1, 3_000)), keys=["k"])
                    store.flush()
                    wait_until(has_caught_up(replica, master), "the slave has it all")
                stop(process)
    assert_same_log(master, replica)
    assert len(log_bytes(replica)) > 4
    assert messages(oracle.dump(replica, conf)) == messages(oracle.dump(master, conf))
