"""Commands that only a process of its own shows: following a store, a closed pipe, the demo."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from storage import open_store
from storage.rules.inner_messages import InnerMessage
from storage.service.put_service import PutService
from storage.tables.topics import TopicConfig
from tests.support.fixture_stores import Fixture, golden_lines
from tests.support.java_broker import free_ports
from tests.support.places import COMMAND, PROJECT

pytestmark = pytest.mark.slow


def start(*arguments: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        cwd=PROJECT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )


def test_follow_prints_what_a_writer_appends_until_interrupted(fixture_store: Callable[[str], Fixture]) -> None:
    fixture = fixture_store("roll")
    golden = list(golden_lines(fixture.golden, "message"))
    last = max(golden, key=lambda line: int(line["physicalOffset"]))
    (queue_file,) = [
        (path, 20 * last["cqOffset"] - int(path.name))
        for path in (fixture.root / "consumequeue" / last["cqTopic"] / str(last["cqQueueId"])).iterdir()
        if 0 <= 20 * last["cqOffset"] - int(path.name) < path.stat().st_size
    ]
    log_start = last["physicalOffset"] // 65_536 * 65_536
    log_file = fixture.root / "commitlog" / f"{log_start:020d}", last["physicalOffset"] - log_start
    record = cut(*log_file, last["storeSize"])
    entry = cut(*queue_file, 20)
    with start("dump", fixture.root, "--topic", last["cqTopic"], "--java", "--follow") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        of_topic = [line for line in golden if line["cqTopic"] == last["cqTopic"]]
        try:
            first = [json.loads(process.stdout.readline()) for _ in range(len(of_topic) - 1)]
            assert first == [line for line in of_topic if line != last]
            overwrite(*log_file, record)  # as a broker does: the record, then its entry
            overwrite(*queue_file, entry)
            assert json.loads(process.stdout.readline()) == last
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=60) == 0
            assert (process.stdout.read(), process.stderr.read()) == ("", "")
        finally:
            process.kill()


def test_follow_begins_again_with_a_topic_that_was_made_again(tmp_path: Path) -> None:
    def put(service: PutService, *bodies: bytes) -> None:
        service.make_topic(TopicConfig("Again", 1, 1))
        service.put_inner([InnerMessage(topic="Again", queue_id=0, body=body, properties={}) for body in bodies])

    with PutService(open_store(tmp_path / "store", read_only=False, create=True)) as service:
        put(service, b"1", b"2", b"3")
        with start("dump", tmp_path / "store", "--topic", "Again", "--bodies", "--follow") as process:
            assert process.stdout is not None
            assert process.stderr is not None
            try:
                assert [json.loads(process.stdout.readline())["body"] for _ in range(3)] == ["1", "2", "3"]
                service.delete_topic("Again")
                put(service, b"new")
                line = json.loads(process.stdout.readline())
                assert (line["body"], line["queue_offset"]) == ("new", 0)
                process.send_signal(signal.SIGINT)
                assert process.wait(timeout=60) == 0
                assert "ended at 3 and ends at 1: its topic was deleted and made again" in process.stderr.read()
            finally:
                process.kill()


def cut(path: Path, position: int, size: int) -> bytes:
    data = path.read_bytes()[position : position + size]
    overwrite(path, position, bytes(size))
    return data


def overwrite(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


WATERMARKS = {
    "broker": "".join(
        rf"[^\n]*\[WATERMARK\] {pool} Queue Size: 0 SlowTimeMills: 0\n"
        for pool in ("Send", "Pull", "Query", "Lite Pull", "Transaction", "ClientManager", "Heartbeat", "Ack", "Admin")
    ),
    "namesrv": r"[^\n]*\[WATERMARK\] ClientQueueSize:0 ClientQueueSlowTime:0 DefaultQueueSize:0 DefaultQueueSlowTime:0\n",
}
"""Java: BrokerController.printWaterMark, NamesrvController.printWaterMark."""


def test_a_broker_says_at_its_start_which_name_servers_do_not_know_it_yet(tmp_path: Path) -> None:
    conf, nobody = tmp_path / "broker.conf", f"127.0.0.1:{free_ports()}"
    conf.write_text(f"listenPort={free_ports()}\nstorePathRootDir={tmp_path}/store\n", "ascii")
    with start("broker", "-c", conf, "-n", nobody) as process:
        assert process.stdout is not None
        try:
            said = process.stdout.readline()
            assert said.endswith(f"and name server is {nobody}; not yet known to {nobody}: it is tried again\n")
            assert "boot success" in said
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=60) == 0
        finally:
            process.kill()


@pytest.mark.parametrize("server", ["broker", "namesrv"])
@pytest.mark.parametrize("asked", [True, False])
def test_a_server_prints_how_many_requests_wait_where_that_is_asked_for(
    tmp_path: Path, server: str, asked: bool
) -> None:
    conf = tmp_path / "server.conf"
    conf.write_text(
        f"listenPort={free_ports()}\nstorePathRootDir={tmp_path}/store\nkvConfigPath={tmp_path}/kv.json\n", "ascii"
    )
    with start(server, "-c", conf, *(["--watermarks"] if asked else ["--verbose"])) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            assert "boot success" in process.stdout.readline()
            text = ""
            while asked and not re.search(WATERMARKS[server], text):
                line = process.stderr.readline()
                assert line, text
                text += line
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=60) == 0
            assert asked or "WATERMARK" not in process.stderr.read()
        finally:
            process.kill()


SERVERS = ("broker", "namesrv", "controller", "replicate")


@pytest.mark.parametrize("server", SERVERS)
def test_a_server_that_may_open_few_files_does_not_start_and_says_how_many_it_needs(
    tmp_path: Path, server: str
) -> None:
    with limited(tmp_path, server, 64, 64) as process:
        out, err = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "may open 64 files" in err
    assert "ulimit -n 256" in err
    assert out == ""


@pytest.mark.parametrize("server", SERVERS)
def test_a_server_takes_as_many_files_as_it_may_have(tmp_path: Path, server: str) -> None:
    with limited(tmp_path, server, 64, 4_096) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline()
            assert "Max open files            4096" in Path(f"/proc/{process.pid}/limits").read_text("ascii")
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=60) == 0
        finally:
            process.kill()


def limited(tmp_path: Path, server: str, soft: int, hard: int) -> subprocess.Popen[str]:
    """A server whose process may have so many open files."""
    if server == "replicate":
        open_store(tmp_path / "store", read_only=False, create=True).close()
        asked = f"replicate {tmp_path}/store --port 0"
    else:
        conf = tmp_path / "server.conf"
        conf.write_text(
            f"listenPort={free_ports()}\nstorePathRootDir={tmp_path}/store\nkvConfigPath={tmp_path}/kv.json\n"
            f"controllerStorePath={tmp_path}/controller\n",
            "ascii",
        )
        asked = f"{server} -c {conf}"
    before = f"import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard})); "
    return subprocess.Popen(
        [sys.executable, "-c", before + COMMAND[2], *asked.split()],
        cwd=PROJECT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )


def test_a_pipe_that_its_reader_closes_is_no_error(pristine_store: Callable[[str], Fixture]) -> None:
    with start("dump", pristine_store("clean").root) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""


@pytest.mark.spark
@pytest.mark.slow
def test_the_demo_reads_streams_and_copies() -> None:
    with start("demo") as process:
        out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    assert 'spark.read.format("spark_mq")' in out
    assert "600 messages, as many as the batch read found" in out
    batches = [line.split()[:2] for line in out.splitlines() if "broker-lab 0:" in line]
    assert [number for number, _ in batches] == ["0", "1", "2"]
    assert sum(int(count) for _, count in batches) == 600
    assert "1959 messages, the same in both stores" in out
