"""An Apache RocketMQ 5.3.3 name server and broker, started and stopped by `tests/oracle/oracle.sh`, on loopback.

DIRECTORY/broker.conf     its settings: Java's default file sizes and index geometry
DIRECTORY/broker/         its process id, output and log
DIRECTORY/namesrv/        the same of the name server
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.ports import free_port
from spark_mq.client.admin import Admin, NewTopic
from spark_mq.client.calls import make_call
from spark_mq.client.errors import ClientError
from spark_mq.client.settings import ClientSettings
from spark_mq.remoting import RequestCode
from spark_mq.source.cluster_questions import ClusterQuestions

BROKER_NAME = "broker-bench"
# Java's defaults (MessageStoreConfig); the oracle's own are small, made for tests.
LOG_FILE_SIZE_BYTES = 1 << 30
QUEUE_FILE_SIZE_BYTES = 300_000 * 20
INDEX_GEOMETRY = ("maxHashSlotNum=5000000", "maxIndexNum=20000000")
# A broker on a busy machine refuses what waited for 200 ms, or while a write took a second. Here nobody is refused.
UNHURRIED = ("waitTimeMillsInSendQueue=60000", "osPageCacheBusyTimeOutMills=60000")
KEPT_FOR_EVER = "fileReservedTime=876000"  # hours; else a store that was made a month ago would be emptied
CLEANS_AT_ONCE = "cleanResourceInterval=1000"
PATIENCE_S = 180.0  # a broker looks for files to delete only from its second minute on


@dataclass(frozen=True, slots=True)
class Oracle:
    """The Apache servers and tools, as `script` starts and stops them."""

    script: Path
    environment: Mapping[str, str]

    def run(self, *arguments: object) -> str:
        """What the script prints. Raises CalledProcessError when it fails; it says why on standard error."""
        command = [str(self.script), *map(str, arguments)]
        done = subprocess.run(command, env=self.environment, check=True, stdout=subprocess.PIPE, text=True)
        return done.stdout

    @contextmanager
    def server(self, kind: str, directory: Path, *arguments: object) -> Iterator[None]:
        """A `kind` of server that runs in `directory` meanwhile, stopped cleanly at the end."""
        try:
            self.run(kind, directory, *arguments)
            yield
        finally:
            if (directory / "pid").exists():
                self.run("stop", directory)


@dataclass(frozen=True, slots=True)
class RunningBroker:
    oracle: Oracle
    name_server: str
    address: str
    """Where it listens."""
    pid: int
    store: Path

    @property
    def settings(self) -> ClientSettings:
        return ClientSettings((self.name_server,), request_timeout_ms=30_000)

    def make_topics(self, topics: Sequence[str], queues: int) -> None:
        """Make topics of so many queues and wait until the name server knows them. Raises RuntimeError when it does not."""
        with Admin(self.settings) as admin:
            _await(lambda: bool(admin.broker_addresses()), "the broker is not registered")
            for topic in topics:
                admin.create_topic(NewTopic(topic, queues, queues))
            for topic in topics:
                _await(lambda: len(admin.route(topic).publish_queues) == queues, f"topic {topic} has no route")  # noqa: B023

    def delete_topic(self, topic: str) -> None:
        with Admin(self.settings) as admin:
            admin.delete_topic(topic)

    def free_disk(self) -> None:
        """Have it delete all files of its log but the last, where several are full. Raises RuntimeError when they stay."""
        if self._full_log_files() < 2:
            return
        questions = ClusterQuestions(self.settings)
        try:
            for hours in ("0", KEPT_FOR_EVER.partition("=")[2]):
                body = f"fileReservedTime={hours}\n".encode()
                questions.ask(self.address, [make_call(RequestCode.UPDATE_BROKER_CONFIG, body=body)])[0].expect()
                if hours == "0":
                    questions.ask(self.address, [make_call(RequestCode.DELETE_EXPIRED_COMMITLOG)])[0].expect()
                    _await(lambda: self._full_log_files() < 2, f"{self.store}: the broker does not delete its old log")
        finally:
            questions.close()

    def _full_log_files(self) -> int:
        """How many are full: but for the room that the next message did not fit in."""
        full = LOG_FILE_SIZE_BYTES - (8 << 20)
        return sum(file.stat().st_blocks * 512 >= full for file in (self.store / "commitlog").iterdir())


@contextmanager
def running_broker(script: Path, directory: Path, store: Path, *settings: str) -> Iterator[RunningBroker]:
    """A name server, and a broker over `store`; both leave their settings and logs in `directory`.

    `settings` are lines of broker.conf. A setting `brokerIP1` is where clients are told to go, at the broker's own port.
    """
    name_server_port = free_port()
    port = free_port(-2, 1)  # a broker also listens two below its port (VIP clients) and for slaves
    environment = os.environ | {"NAMESRV_PORT": str(name_server_port), "TMPDIR": str(directory)}
    oracle = Oracle(script.resolve(), environment)
    name_server = f"127.0.0.1:{name_server_port}"
    names = (f"brokerName={BROKER_NAME}", f"namesrvAddr={name_server}")
    lines = (*names, f"listenPort={port}", f"haListenPort={port + 1}", *INDEX_GEOMETRY, *settings)
    conf = directory / "broker.conf"
    conf.write_text(oracle.run("conf", store, LOG_FILE_SIZE_BYTES, QUEUE_FILE_SIZE_BYTES, *lines))
    oracle.run("build")
    with (
        oracle.server("namesrv", directory / "namesrv"),
        oracle.server("broker", directory / "broker", conf),
    ):
        pid = int((directory / "broker" / "pid").read_text())
        yield RunningBroker(oracle, name_server, f"127.0.0.1:{port}", pid, store)


def _await(met: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    why = ""
    while time.monotonic() < deadline:
        try:
            if met():
                return
        except ClientError as error:
            why = f": {error}"
        time.sleep(0.1)
    raise RuntimeError(f"{otherwise}, for {PATIENCE_S:.0f} s{why}")
