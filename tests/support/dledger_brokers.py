"""Three brokers of a DLedger group, ours and Apache's, each a process. The name server says who leads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from spark_mq.broker_server.grouped import GroupedBroker
from spark_mq.client.admin import Admin
from spark_mq.client.errors import ClientError
from spark_mq.client.settings import ClientSettings
from tests.support.java_broker import Oracle, RunningBroker, free_ports, wait_until
from tests.support.own_servers import our_name_server

NAME = "broker-lab"
LOG_FILE_BYTES = 1 << 20
_LIMIT_SECONDS = 90
_SETTINGS: Mapping[str, str | int] = {
    "commitlog_file_size_bytes": LOG_FILE_BYTES,
    "enableDLegerCommitLog": "true",
    "dLegerGroup": NAME,
    "brokerName": NAME,
}


@dataclass
class DLedgerBrokers:
    """The brokers by the ids of their members."""

    home: Path
    name_server: str
    oracles: Mapping[str, Oracle]
    """Whose broker each is."""
    settings: Mapping[str, str | int] = field(default_factory=dict)
    ports: dict[str, tuple[int, int]] = field(default_factory=dict)
    """The port for clients, and for the other members."""
    running: dict[str, ExitStack] = field(default_factory=dict)
    brokers: dict[str, RunningBroker] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ports |= {each: (free_ports(), free_ports()) for each in self.oracles}

    def start(self, member: str) -> RunningBroker:
        """A broker on its own store, which is made at first."""
        port, _ = self.ports[member]
        with ExitStack() as opened:
            broker = opened.enter_context(
                self.oracles[member].broker(
                    self.home / member,
                    self.name_server,
                    port=port,
                    dLegerSelfId=member,
                    dLegerPeers=";".join(f"{each}-127.0.0.1:{own}" for each, (_, own) in self.ports.items()),
                    **{**_SETTINGS, **self.settings},
                )
            )
            self.brokers[member] = broker
            self.running[member] = opened.pop_all()
        return broker

    def kill(self, member: str) -> None:
        """SIGKILL."""
        self.brokers[member].kill()
        self.running.pop(member).close()

    def stop(self, member: str) -> None:
        """SIGTERM."""
        self.running.pop(member).close()

    def is_ours(self, member: str) -> bool:
        """Whether the broker that it has now is none of Apache's."""
        return self.oracles[member].is_ours

    def was_stopped_in_order(self, member: str) -> bool:
        """Whether its broker has closed its store itself: Apache's recovers another one, and loses entries of its queues then."""
        return not (self.brokers[member].store / "abort").exists()

    def addresses(self) -> Mapping[int, str]:
        """brokerId → address, as the name server knows them now."""
        with suppress(ClientError), Admin(ClientSettings((self.name_server,))) as admin:
            found = admin.cluster_info().broker_address_table.get(NAME)
            return {} if found is None else found.broker_addresses
        return {}

    def leader(self) -> str | None:
        """The member that the name server knows as master."""
        master = self.addresses().get(0)
        return next((each for each in self.running if self.brokers[each].address == master), None)

    def await_leader(self) -> str:
        """Until one of those that run leads."""
        wait_until(lambda: self.leader() is not None, "one of the group leads", _LIMIT_SECONDS)
        found = self.leader()
        return self.await_leader() if found is None else found

    def await_all(self) -> str:
        """Until the name server knows all that run, one as master; who that is."""
        wait_until(lambda: self._knows_all(), "the name server knows all of the group", _LIMIT_SECONDS)
        return self.await_leader()

    def _knows_all(self) -> bool:
        known = set(self.addresses().values())
        return self.leader() is not None and {self.brokers[each].address for each in self.running} <= known


@contextmanager
def dledger_brokers(home: Path, oracles: Mapping[str, Oracle], **settings: str | int) -> Iterator[DLedgerBrokers]:
    """A name server of ours, and all of the group's brokers; what runs is stopped with the context."""
    with our_name_server(home) as name_server:
        found = DLedgerBrokers(home, name_server.address, oracles, settings)
        try:
            for member in oracles:
                found.start(member)
            yield found
        finally:
            for member in list(found.running):
                found.stop(member)


def going_on_amid_its_close(broker: GroupedBroker, meanwhile: Callable[[], None]) -> None:
    """If this member of ours is closed in its present role, `meanwhile` happens when its store is closed and the member still follows.
    It runs in this process.
    """
    running = broker.running
    assert running is not None
    close = running.close

    async def close_and_go_on() -> None:
        await close()
        await asyncio.to_thread(meanwhile)

    setattr(running, "close", close_and_go_on)  # noqa: B010
