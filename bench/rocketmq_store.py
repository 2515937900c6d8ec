"""A store that the Apache broker wrote: made once through `tests/oracle/oracle.sh`, then found again.

    HOME/rocketmq-<messages>/store/        the store: a topic with <messages> of `bench.messages`
    HOME/rocketmq-<messages>/broker.conf   what wrote it: Java's default file sizes and index geometry
    HOME/rocketmq-<messages>/made          exists once the broker has stopped cleanly over the whole of it

HOME is the directory that every run's data stays in.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.messages import BATCH_MESSAGES, BODY_SIZE_BYTES, QUEUES, TOPIC, bodies
from bench.ports import free_port

BROKER_NAME = "broker-bench"
# Java's defaults (MessageStoreConfig); the oracle's own are small, made for tests.
LOG_FILE_SIZE_BYTES = 1 << 30
QUEUE_FILE_SIZE_BYTES = 300_000 * 20
INDEX_GEOMETRY = ("maxHashSlotNum=5000000", "maxIndexNum=20000000")


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


def make_store(home: Path, script: Path, messages: int) -> Path:
    """The store of `messages` messages under `home`, written now unless an earlier run finished it.

    `script` is the oracle's. Needs a JDK, Maven and about 1.5 KB of disk a message. When a step fails, the
    servers' logs lie beside the store until the next try.
    """
    directory = home.resolve() / f"rocketmq-{messages}"
    made = directory / "made"
    if not made.exists():
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        _write(directory, script.resolve(), messages)
        made.touch()
    return directory / "store"


def _write(directory: Path, script: Path, messages: int) -> None:
    name_server_port = free_port()
    port = free_port(-2, 1)  # a broker also listens two below its port (VIP clients) and for slaves
    oracle = Oracle(script, os.environ | {"NAMESRV_PORT": str(name_server_port), "TMPDIR": str(directory)})
    name_server, broker = f"127.0.0.1:{name_server_port}", f"127.0.0.1:{port}"

    names = (f"brokerName={BROKER_NAME}", f"namesrvAddr={name_server}")
    settings = (*names, f"listenPort={port}", f"haListenPort={port + 1}", *INDEX_GEOMETRY)
    file_sizes = (LOG_FILE_SIZE_BYTES, QUEUE_FILE_SIZE_BYTES)
    conf = directory / "broker.conf"
    conf.write_text(oracle.run("conf", directory / "store", *file_sizes, *settings))
    bodies_file = directory / "bodies"
    bodies_file.write_bytes(b"".join(bodies()))

    load = (Path(__file__).with_name("LoadRocketMQ.java"), name_server, broker, BROKER_NAME)
    what = (TOPIC, QUEUES, messages, BATCH_MESSAGES, bodies_file, BODY_SIZE_BYTES)
    oracle.run("build")
    with (
        oracle.server("namesrv", directory / "namesrv"),
        oracle.server("broker", directory / "broker", conf),
    ):
        oracle.run("java", *load, *what)
