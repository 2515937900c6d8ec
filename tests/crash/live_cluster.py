"""A cluster of real brokers for rounds: a name server, and masters that can be killed and started again on their stores."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from spark_mq.client.admin import Admin, NewTopic
from spark_mq.client.blocking_connection import BlockingConnection
from spark_mq.client.settings import ClientSettings
from spark_mq.remoting import RequestCode, make_request
from tests.support.java_broker import Oracle, RunningBroker, free_ports, wait_until
from tests.support.waiting import await_route

TOPIC = "LiveRounds"
QUEUES = 4
BROKER_SETTINGS: dict[str, int | str] = {
    "commitlog_file_size_bytes": 8 << 20,
    "consume_queue_file_size_bytes": 200_000,
}
HALVES_END_SOON: dict[str, int | str] = {
    "transactionTimeOut": 1_000,
    "transactionCheckInterval": 1_000,
    "transactionCheckMax": 2,
}
"""Halves that nobody ends are asked about twice, and given up."""
WITHOUT_SLAVE: dict[str, int | str] = {"brokerRole": "SYNC_MASTER", "slaveTimeout": 50}
"""Releases from 5.0 on wait for slaves where `inSyncReplicas` says how many, those up to 4.9 for any."""


def confirmation(version: str, *, is_on: bool) -> dict[str, str]:
    """What is to be set so that a master without a slave confirms what it stores, or does not."""
    if version.startswith("4."):
        return {"brokerRole": "ASYNC_MASTER" if is_on else "SYNC_MASTER"}
    return {"inSyncReplicas": "1" if is_on else "2"}


class Cluster:
    """So many masters, each with a store of its own. Their names are `broker-0`, `broker-1`, …"""

    def __init__(
        self, directory: Path, running: ExitStack, masters: int, version: str, settings: dict[str, int | str]
    ) -> None:
        self.oracle = Oracle(directory)
        self.name_server = running.enter_context(self.oracle.namesrv())
        self.release = self.oracle if version == self.oracle.version else self.oracle.release(version)
        self.version = version
        self._directory = directory
        self._settings = settings
        self._ports = [free_ports() for _ in range(masters)]
        self._running = running
        self.brokers = [self._start(number) for number in range(masters)]

    def _start(self, number: int) -> RunningBroker:
        given = {**BROKER_SETTINGS, **self._settings, "brokerName": self.name(number)}
        broker = self.release.broker(
            self._directory / f"store-{number}",
            self.name_server,
            port=self._ports[number],
            **given,  # type: ignore[arg-type]
        )
        return self._running.enter_context(broker)

    def name(self, number: int) -> str:
        return f"broker-{number}"

    def start_again(self, number: int) -> None:
        self.brokers[number] = self._start(number)

    def confirm(self, *, is_on: bool) -> None:
        """Let the masters confirm from now on what they store, or not. A master that is started again does not."""
        lines = "".join(f"{name}={value}\n" for name, value in confirmation(self.version, is_on=is_on).items())
        for broker in self.brokers:
            connection = BlockingConnection[None](broker.address, ClientSettings((self.name_server,)))
            connection.send([(make_request(RequestCode.UPDATE_BROKER_CONFIG, None, lines.encode()), None)])
            ((_, answer),) = connection.receive()
            assert answer.code == 0, answer.remark
            connection.close()

    def make_topic(self) -> None:
        with Admin(ClientSettings((self.name_server,))) as admin:
            wait_until(lambda: len(admin.broker_addresses()) == len(self.brokers), "the brokers are registered")
            for broker in self.brokers:
                admin.create_topic(NewTopic(TOPIC, QUEUES, QUEUES), address=broker.address)
            await_route(admin, TOPIC, QUEUES * len(self.brokers))
