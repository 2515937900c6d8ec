"""Two Apache brokers of one name under our controller, a Java producer that sends through all of it, and a Java consumer that judges.

A master is killed only while both are in sync: of one that is in sync alone nobody else holds what it has acknowledged.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from spark_mq.controller.state import Group
from tests.support.java_broker import Oracle, RunningBroker, free_ports, wait_until
from tests.support.own_servers import OurNameServer, our_controller, our_name_server

NAME = "broker-lab"
TOPIC = "Controlled"
_LIMIT_SECONDS = 90


class Controlling(Protocol):
    """A controller, in this process or in one of its own."""

    @property
    def address(self) -> str:
        """`host:port`."""

    def group(self, name: str) -> Group | None:
        """What it knows of the brokers of a name."""


@dataclass
class ControlledBrokers:
    """The brokers by their ids at the controller."""

    oracle: Oracle
    home: Path
    name_server: OurNameServer
    controller: Controlling
    ports: dict[int, int] = field(default_factory=dict)
    running: dict[int, ExitStack] = field(default_factory=dict)
    servers: dict[int, Oracle] = field(default_factory=dict)
    """Whose broker an id is, where it is not `oracle`'s."""
    brokers: dict[int, RunningBroker] = field(default_factory=dict)

    @property
    def group(self) -> Group:
        """What the controller knows."""
        found = self.controller.group(NAME)
        assert found is not None
        return found

    def start(self, broker_id: int, **settings: str | int) -> None:
        """A broker on its own store, which is made at first. Ids are given in the order of first starts."""
        port = self.ports.setdefault(broker_id, free_ports())
        with ExitStack() as opened:
            broker = opened.enter_context(
                self.servers.get(broker_id, self.oracle).broker(
                    self.home / f"store-{broker_id}",
                    self.name_server.address,
                    port=port,
                    commitlog_file_size_bytes=1 << 20,
                    brokerName=NAME,
                    haListenPort=port + 1,
                    enableControllerMode="true",
                    inSyncReplicas=2,
                    allAckInSyncStateSet="true",
                    **{"controllerAddr": self.controller.address, **settings},
                )
            )
            self.brokers[broker_id] = broker
            self.running[broker_id] = opened.pop_all()

    def kill(self, broker_id: int) -> None:
        """SIGKILL."""
        self.brokers[broker_id].kill()
        self.running.pop(broker_id).close()

    def await_set(self, broker_ids: set[int]) -> Group:
        """Until these are in sync, and one of them is master."""
        wait_until(lambda: self._is_set(broker_ids), f"{broker_ids} are in sync", _LIMIT_SECONDS)
        return self.group

    def _is_set(self, broker_ids: set[int]) -> bool:
        found = self.controller.group(NAME)
        return found is not None and set(found.sync_state_set) == broker_ids and found.master_id in broker_ids

    def await_master_after(self, epoch: int) -> Group:
        """Until there is a master of a later epoch."""
        wait_until(lambda: self._is_after(epoch), f"a master after epoch {epoch}", _LIMIT_SECONDS)
        return self.group

    def _is_after(self, epoch: int) -> bool:
        found = self.controller.group(NAME)
        return found is not None and found.master_epoch > epoch and found.master_id is not None

    def await_copied(self, topic: str) -> None:
        """Until every broker has written down the topic."""
        await_copied(self.brokers.values(), topic)


def await_copied(brokers: Iterable[RunningBroker], topic: str) -> None:
    """Until each of these brokers has written down the topic."""
    for broker in brokers:
        path = broker.store / "config" / "topics.json"
        wait_until(lambda path=path: _mentions(path, topic), f"{path} has {topic}", _LIMIT_SECONDS)  # type: ignore[misc]


def _mentions(path: Path, topic: str) -> bool:
    with suppress(FileNotFoundError):
        return f'"{topic}"' in path.read_text("utf-8")
    return False


@contextmanager
def brokers_under(controller: Controlling, oracle: Oracle, home: Path) -> Iterator[ControlledBrokers]:
    """A name server of ours, and no brokers yet; what was started ends with the context."""
    with our_name_server(home) as name_server:
        found = ControlledBrokers(oracle, home, name_server, controller)
        try:
            yield found
        finally:
            for broker_id in list(found.running):
                found.kill(broker_id)


@contextmanager
def controlled_brokers(oracle: Oracle, home: Path, **settings: str) -> Iterator[ControlledBrokers]:
    """The same under a controller of ours in this process."""
    with our_controller(home, **settings) as controller, brokers_under(controller, oracle, home) as found:
        yield found


class SendingOn:
    """A Java producer that goes on until it is told to stop."""

    def __init__(self, out: Path, process: subprocess.Popen[str]) -> None:
        self.out = out
        self.process = process

    def lines(self) -> list[dict[str, Any]]:
        """A line for each message, sent or failed."""
        text = self.out.read_text("utf-8") if self.out.exists() else ""
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def acknowledged(self) -> list[dict[str, Any]]:
        """Those that were answered SEND_OK."""
        return [line for line in self.lines() if line.get("status") == "SEND_OK"]

    def await_more(self, count: int) -> None:
        """Until so many more than now are acknowledged."""
        now = len(self.acknowledged())
        wait_until(lambda: len(self.acknowledged()) >= now + count, f"{count} more are sent", _LIMIT_SECONDS)

    def stop(self) -> None:
        """Tells it to end, and waits."""
        Path(f"{self.out}.stop").touch()
        assert self.process.wait(60) == 0


@contextmanager
def sending_on(oracle: Oracle, out: Path, name_server: str, topic: str = TOPIC) -> Iterator[SendingOn]:
    """It sends from now on; killed with the context."""
    with oracle.java_running("SendOn", out, f"ns={name_server}", f"topic={topic}") as process:
        yield SendingOn(out, process)
