"""A broker that is killed amid a batch that a sink has handed to it: each row is there once, whichever process finishes the batch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs.verify_store import verify_store
from spark_mq.conditions import SparkMqError
from spark_mq.hand_over.local_socket import SOCKET_NAME
from spark_mq.sink.commit import commit_rows
from storage import open_store
from storage.batch.intent import load_intents
from storage.batch.ledger import UNNAMED_PREFIX
from storage.failpoints import ENVIRONMENT, ENVIRONMENT_PAUSE
from storage.files.local_file_system import LocalFileSystem
from tests.sink.test_sink_tasks import bodies, commit, options_of, stage, texts
from tests.support.java_broker import free_ports, wait_until
from tests.support.places import COMMAND, PROJECT
from tests.support.shares import one_in

pytestmark = [pytest.mark.slow, pytest.mark.crash]

BOOT_SECONDS = 60
BODY = "x" * 1_500_000
"""Three of them are more than a slice."""
ROWS = [f"{name}{BODY}" for name in "abcdefg"]


class Broker:
    """A broker process with its store at `home`/store."""

    def __init__(self, home: Path, flush: str) -> None:
        self.root = home / "store"
        self._home = home
        self._output = home / "out.log"
        self.port = free_ports()
        (home / "own.conf").write_text(
            f"storePathRootDir={self.root}\nlistenPort={self.port}\nbrokerName=b\nbrokerIP1=127.0.0.1\n"
            f"flushDiskType={flush}\nmappedFileSizeCommitLog=8388608\n"
        )
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, failpoint: str | None = None, pause: Path | None = None) -> None:
        """Listens when this returns. At the failpoint it dies, or with `pause` waits."""
        environment = {
            name: value for name, value in os.environ.items() if name not in (ENVIRONMENT, ENVIRONMENT_PAUSE)
        }
        if failpoint is not None:
            environment[ENVIRONMENT] = failpoint
        if pause is not None:
            environment[ENVIRONMENT_PAUSE] = str(pause)
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                [*COMMAND, "broker", "-c", str(self._home / "own.conf"), "--verbose"],
                cwd=PROJECT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        deadline = time.monotonic() + BOOT_SECONDS
        while b"boot success" not in self._output.read_bytes():
            assert self._process.poll() is None, self._output.read_text()
            assert time.monotonic() < deadline, self._output.read_text()
            time.sleep(0.05)

    def wait_for_death(self) -> None:
        assert self._process is not None
        assert self._process.wait(BOOT_SECONDS) == -signal.SIGKILL, self._output.read_text()

    def end(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            assert self._process.wait(BOOT_SECONDS) == 0, self._output.read_text()

    def kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(BOOT_SECONDS)


POINTS = [
    *("before-intent", "after-intent", "amid-slice", "amid-slice:2", "after-slice", "after-slice:2", "before-end"),
    *("after-end", "after-mirror", "before-drop", "after-drop", "after-commit"),
]
UNNAMED_POINTS = ("after-intent", "after-end", "after-drop", "after-commit")
SYNC_ONLY = ("before-drop", "after-drop")
CASES = [
    *((point, "SYNC_FLUSH", "sink", number % 2 == 0) for number, point in enumerate(POINTS)),
    *((point, "ASYNC_FLUSH", "sink", number % 2 == 1) for number, point in enumerate(POINTS) if point not in SYNC_ONLY),
    *((point, "ASYNC_FLUSH", UNNAMED_PREFIX + "1", number % 2 == 0) for number, point in enumerate(UNNAMED_POINTS)),
]


@pytest.mark.parametrize(("point", "flush", "sink", "starts_again"), one_in(2, CASES, others=pytest.mark.long))
def test_each_row_is_there_once(tmp_path: Path, point: str, flush: str, sink: str, starts_again: bool) -> None:
    broker = Broker(tmp_path, flush)
    is_named = sink == "sink"
    options = options_of(str(broker.root), conf=str(tmp_path / "own.conf"), lockTimeout="60s")
    failed: list[BaseException] = []
    try:
        broker.start(point)
        staged = [
            stage(options, bodies(*ROWS[start : start + 4]), partition=start, sink_id=sink, query_id=sink)
            for start in (0, 4)
        ]

        def write() -> None:
            try:
                commit_rows(options, staged, 0, mirrored=is_named)
            except BaseException as error:
                failed.append(error)

        writing = threading.Thread(target=write)
        writing.start()
        broker.wait_for_death()
        if starts_again:
            broker.start()
        writing.join()
        assert failed == []
        assert [text[:1] for text in texts(str(broker.root))] == list("abcdefg")
        if is_named:
            again = [stage(options, bodies(*ROWS), sink_id=sink, query_id=sink, attempt=9)]
            commit_rows(options, again, 0, mirrored=True)
        other = stage(options, bodies("h"), batch_id=1, sink_id="other", query_id="other")
        commit(options, other, batch_id=1)
        broker.end()
        assert [text[:1] for text in texts(str(broker.root))] == list("abcdefgh")
    finally:
        broker.kill()
    open_store(broker.root, config=str(tmp_path / "own.conf"), read_only=False).close()
    assert load_intents(LocalFileSystem(), str(broker.root)) == []
    report = verify_store(str(broker.root), conf=str(tmp_path / "own.conf"))
    assert report.findings == (), report.findings


def test_a_batch_whose_sink_is_gone_too_is_finished_by_the_next_broker(tmp_path: Path) -> None:
    """Only the intent tells of it."""
    broker = Broker(tmp_path, "ASYNC_FLUSH")
    rows = pa.table({"body": [text.encode() for text in ROWS], "keys": [None] * 7, "tags": [None] * 7}).cast(
        pa.schema([("body", pa.binary()), ("keys", pa.string()), ("tags", pa.string())])
    )
    pq.write_table(rows, tmp_path / "rows.parquet")
    options = {"path": str(broker.root), "topic": "T", "conf": str(tmp_path / "own.conf")}
    arguments = {"batch_id": 0, "parts": [str(tmp_path / "rows.parquet")], "options": options}
    pause = tmp_path / "pause"
    sink = None
    try:
        broker.start("after-slice", pause)
        command = [sys.executable, "-m", "tests.support.sink_process", "batch", json.dumps(arguments)]
        sink = subprocess.Popen(command, cwd=PROJECT, stdin=subprocess.DEVNULL)
        wait_until(pause.exists, "the broker is amid the batch", BOOT_SECONDS)
        sink.kill()
        sink.wait(BOOT_SECONDS)
        broker.kill()
        assert (broker.root / "spark_mq" / SOCKET_NAME).exists()
        assert texts(str(broker.root)) == []
        broker.start()
        assert [text[:1] for text in texts(str(broker.root))] == list("abcdefg")
        broker.end()
    finally:
        broker.kill()
        if sink is not None:
            sink.kill()
            sink.wait(BOOT_SECONDS)


def test_a_stopped_broker_is_named_and_the_batch_is_written_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows whether it has the batch: the next try finds out."""
    monkeypatch.setattr("spark_mq.sink.commit.SILENCE_SECONDS", 3.0)
    broker = Broker(tmp_path, "ASYNC_FLUSH")
    options = options_of(str(broker.root), conf=str(tmp_path / "own.conf"))
    try:
        broker.start()
        staged = stage(options, bodies("a"))
        assert broker._process is not None
        broker._process.send_signal(signal.SIGSTOP)
        with pytest.raises(SparkMqError, match=r"SPARK_MQ_STORE_SERVED.* has said nothing for 3 s; whether the batch"):
            commit(options, staged)
        broker._process.send_signal(signal.SIGCONT)
        commit(options, stage(options, bodies("a"), attempt=1))
        assert texts(str(broker.root)) == ["a"]
        broker.end()
    finally:
        broker.kill()
