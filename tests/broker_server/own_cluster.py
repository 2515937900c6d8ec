"""Our name server and our broker, each a process of its own on loopback; the broker can be killed and started again on its store."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from spark_mq.client.admin import Admin, NewTopic
from spark_mq.client.message import Message
from spark_mq.client.producer import Producer
from spark_mq.client.settings import ClientSettings
from spark_mq.remoting import MessageQueue
from tests.support import own_servers
from tests.support.java_broker import free_ports
from tests.support.waiting import await_route

HOST = "127.0.0.1"
BROKER_NAME = "own"
_END_SECONDS = 60


class OwnCluster:
    """One of each. `name_server` and `address` are where they listen; clients are told the broker's port at `advertised`."""

    def __init__(self, directory: Path, advertised: str = HOST, **settings: str | int) -> None:
        self.store = directory / "store"
        self.port = free_ports()
        self.name_server_port = next(port for port in iter(free_ports, None) if abs(port - self.port) > 4)
        self.name_server = f"{HOST}:{self.name_server_port}"
        self.address = f"{HOST}:{self.port}"
        self._conf = directory / "broker.conf"
        told = {
            "brokerName": BROKER_NAME,
            "brokerIP1": advertised,
            "listenPort": self.port,
            "namesrvAddr": self.name_server,
            "storePathRootDir": self.store,
            "diskMaxUsedSpaceRatio": 95,
            "mappedFileSizeCommitLog": 16 << 20,
            "mappedFileSizeConsumeQueue": 200_000,
            "maxHashSlotNum": 50_000,
            "maxIndexNum": 200_000,
            "waitTimeMillsInSendQueue": 20_000,  # a busy machine would make refusals of slowness
            "osPageCacheBusyTimeOutMills": 20_000,
            **settings,
        }
        self._conf.write_text("".join(f"{name}={value}\n" for name, value in told.items()), "utf-8")
        self._homes = directory / "namesrv", directory / "broker"
        for home in self._homes:
            home.mkdir()
        self._running: list[subprocess.Popen[bytes]] = []

    @property
    def settings(self) -> ClientSettings:
        """Of a client with nothing in between."""
        return ClientSettings((self.name_server,))

    @property
    def output(self) -> str:
        """What the broker has written since it was started last."""
        return (self._homes[1] / "out.log").read_text("utf-8", "replace")

    @property
    def _broker(self) -> subprocess.Popen[bytes]:
        return self._running[-1]

    @property
    def pid(self) -> int:
        """The broker's, which runs or ran last."""
        return self._broker.pid

    @property
    def name_server_pid(self) -> int:
        """Of the name server."""
        return self._running[0].pid

    @property
    def has_broker(self) -> bool:
        """Whether one was started, and runs."""
        return len(self._running) > 1 and self.is_running

    @property
    def is_running(self) -> bool:
        """Whether the broker is."""
        return self._broker.poll() is None

    def begin(self) -> None:
        """Both run when this returns."""
        self.begin_name_server()
        self.start()

    def begin_name_server(self) -> None:
        """It runs when this returns."""
        self._running.append(own_servers.start_name_server(self._homes[0], self.name_server_port))

    def start(self, through: Sequence[str] = ()) -> None:
        """The broker; it has recovered its store, and is registered, when this returns. `through`: a command that runs it."""
        self._running.append(own_servers.start_broker(self._homes[1], self._conf, through=through))

    def kill(self) -> None:
        """SIGKILL to the broker."""
        self._broker.kill()
        self._broker.wait(_END_SECONDS)

    def stop(self) -> None:
        """SIGSTOP to the broker: it is silent, and its name server still has it."""
        os.kill(self.pid, signal.SIGSTOP)

    def end(self) -> int:
        """The broker ends as it should; its exit code."""
        self._broker.send_signal(signal.SIGTERM)
        return self._broker.wait(_END_SECONDS)

    def make_topic(self, topic: str, queues: int) -> None:
        """Clients find it when this returns."""
        with Admin(self.settings) as admin:
            admin.create_topic(NewTopic(topic, queues, queues), address=self.address)
            await_route(admin, topic, queues)

    def close(self) -> None:
        """Kills what runs."""
        for process in self._running:
            process.kill()
            process.wait(_END_SECONDS)


@contextmanager
def own_cluster(directory: Path, advertised: str = HOST, **settings: str | int) -> Iterator[OwnCluster]:
    """Both run meanwhile; `settings` are further lines of the broker.conf."""
    cluster = OwnCluster(directory, advertised, **settings)
    try:
        cluster.begin()
        yield cluster
    finally:
        cluster.close()


SILENT = "silent"
DEAD_LETTERS = "%DLQ%billing"


@contextmanager
def half_silent(directory: Path) -> Iterator[tuple[OwnCluster, OwnCluster]]:
    """Two brokers of one name server; the second one has stopped to answer and is still registered.

    Both have a message with key `both` and unique key `SAME` in topics Orders and %DLQ%billing, and its body says at which of them.
    """
    for name in ("first", "second"):
        (directory / name).mkdir()
    with own_cluster(directory / "first") as made, ExitStack() as others:
        second = OwnCluster(directory / "second", brokerName=SILENT, namesrvAddr=made.name_server)
        others.callback(second.close)
        second.start()
        topics = "Orders", DEAD_LETTERS
        with Admin(made.settings) as admin:
            for topic in topics:
                for address in (made.address, second.address):
                    admin.create_topic(NewTopic(topic, 1, 1), address=address)
                await_route(admin, topic, 2)
        with Producer(made.settings, "Makers") as producer:
            for broker in (BROKER_NAME, SILENT):
                for topic in topics:
                    properties = {"KEYS": "both", "UNIQ_KEY": "SAME"}
                    message = Message(topic, f"at {broker}".encode(), properties=properties)
                    producer.hand_on(message, MessageQueue(topic, broker, 0))
        second.stop()
        yield made, second
