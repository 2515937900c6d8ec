"""Apache's controller and ours are asked the same, step by step: codes, remarks, fields and bodies are compared."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import NamedTuple

import pytest

from spark_mq.remoting import FrameReader, RemotingCommand, encode_frame, make_request
from tests.support.java_broker import Oracle, free_ports, wait_until
from tests.support.own_servers import our_controller

pytestmark = [pytest.mark.interop, pytest.mark.slow]

STARTUP = "org.apache.rocketmq.controller.ControllerStartup"
WHO = {"clusterName": "C", "brokerName": "b"}
BEAT = {"brokerAddr": "127.0.0.1:1", "epoch": "1", "maxOffset": "0", "heartbeatTimeoutMills": "60000"}


class Step(NamedTuple):
    """A request over the connection of a broker; without fields its connection is closed, and the notice of it awaited."""

    name: str
    broker: int
    code: int = 0
    fields: Mapping[str, str] | None = None
    body: bytes = b""


def apply(name: str, broker: int, code: str, **fields: str) -> Step:
    return Step(name, broker, 1013, {**WHO, "appliedBrokerId": str(broker), "registerCheckCode": code, **fields})


def register(name: str, broker: int, **fields: str) -> Step:
    told = {**WHO, "brokerId": str(broker), "brokerAddress": f"127.0.0.1:{broker}", "invokeTime": "1", **fields}
    return Step(name, broker, 1003, told)


def beat(name: str, broker: int, **fields: str) -> Step:
    return Step(name, broker, 904, {**WHO, **BEAT, "brokerId": str(broker), **fields})


def elect(name: str, broker: int, **fields: str) -> Step:
    told = {**WHO, "brokerId": str(broker), "designateElect": "false", "invokeTime": "1", **fields}
    return Step(name, broker, 1002, told)


def alter(name: str, body: str, **fields: str) -> Step:
    told = {"brokerName": "b", "masterBrokerId": "1", "masterEpoch": "1", "invokeTime": "1", **fields}
    return Step(name, 1, 1001, told, body.encode())


def clean(name: str, **fields: str) -> Step:
    return Step(name, 9, 1011, {**WHO, "isCleanLivingBroker": "false", "invokeTime": "1", **fields})


def replica_info(name: str, who: str = "b") -> Step:
    return Step(name, 9, 1004, {"brokerName": who})


def in_sync(name: str, body: bytes = b'["b","x"]') -> Step:
    return Step(name, 9, 1006, None, body)


FIRST = (
    Step("next id of nobody", 1, 1012, WHO),
    register("registers without an id", 1),
    elect("asks for a master without an id", 1),
    apply("a second id first", 2, "127.0.0.1:2;5"),
    apply("the first id", 1, "127.0.0.1:1;5"),
    apply("the first id again", 1, "127.0.0.1:1;5"),
    apply("the first id by another", 1, "127.0.0.1:7;6"),
    Step("next id", 1, 1012, WHO),
    register("registers", 1),
    register("registers with another id", 9),
    beat("beats", 1),
    Step("beats without an id", 1, 904, {**WHO, **BEAT}),
    replica_info("no master yet"),
)
LATER = (
    elect("the first master", 1),
    elect("the same again", 1),
    apply("another broker", 2, "127.0.0.1:2;5"),
    register("registers elsewhere", 2, brokerAddress="127.0.0.1:22"),
    beat("another beats", 2),
    elect("another asks", 2),
    replica_info("the master"),
    alter("the same set", '{"syncStateSet":[1],"syncStateSetEpoch":1}'),
    alter("of nobody", '{"syncStateSet":[1],"syncStateSetEpoch":1}', brokerName="x"),
    alter("by another", '{"syncStateSet":[1,2],"syncStateSetEpoch":1}', masterBrokerId="2"),
    alter("of another epoch", '{"syncStateSet":[1,2],"syncStateSetEpoch":1}', masterEpoch="2"),
    alter("of another set", '{"syncStateSet":[1,2],"syncStateSetEpoch":2}'),
    alter("with a stranger", '{"syncStateSet":[1,9],"syncStateSetEpoch":1}'),
    alter("without the master", '{"syncStateSet":[2],"syncStateSetEpoch":1}'),
    alter("with another", '{"syncStateSet":[2,1],"syncStateSetEpoch":1}'),
    in_sync("both in sync"),
    in_sync("nobody's", b"[]"),
    in_sync("nobody at all", b""),
    apply("a third", 3, "127.0.0.1:3;5"),
    alter("with one that is not alive", '{"syncStateSet":[1,2,3],"syncStateSetEpoch":2}'),
    elect("designates one that is not in sync", 3, designateElect="true"),
    elect("designates another", 2, designateElect="true"),
    elect("designates the master", 2, designateElect="true"),
    alter("the old master alters", '{"syncStateSet":[1],"syncStateSetEpoch":3}'),
    alter("the new one", '{"syncStateSet":[1,2],"syncStateSetEpoch":3}', masterBrokerId="2", masterEpoch="2"),
    beat("the best one", 1, epoch="2", maxOffset="9"),
    clean("a group with a master"),
    clean("an id that is alive", brokerControllerIdsToClean="1;3"),
    clean("nobody", brokerName="x"),
    clean("an id that is not alive", brokerControllerIdsToClean="3"),
    in_sync("two are left"),
    Step("next id is not given again", 1, 1012, WHO),
    Step("the master hangs up", 2),
    replica_info("the other one follows"),
    register("comes back", 2, brokerAddress="127.0.0.1:2"),
    beat("is alive again", 2),
    alter("is in sync again", '{"syncStateSet":[1,2],"syncStateSetEpoch":5}', masterEpoch="3"),
    in_sync("both again"),
    replica_info("the master of nobody", "x"),
    Step("what no controller answers", 9, 10, {}),
)


class Asked:
    """A controller, and a connection for each broker."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self._place = host, int(port)
        self._lines: dict[int, tuple[socket.socket, FrameReader]] = {}
        self._opaque = 0

    def play(self, steps: tuple[Step, ...]) -> dict[str, tuple[object, ...]]:
        """What comes of each step."""
        return {step.name: self._do(step) for step in steps}

    def _do(self, step: Step) -> tuple[object, ...]:
        if step.code == 0:
            before = self.master()
            self._lines.pop(step.broker)[0].close()
            wait_until(lambda: self.master() != before, step.name, 30)
            return ()
        answer = self.ask(step.broker, make_request(step.code, step.fields, step.body))
        return answer.code, dict(answer.ext_fields or {}), bytes(answer.body), answer.remark

    def master(self) -> Mapping[str, str]:
        """Who it is, and in which epoch."""
        return dict(self.ask(9, make_request(1004, {"brokerName": "b"})).ext_fields or {})

    def ask(self, broker: int, request: RemotingCommand) -> RemotingCommand:
        """The answer over the broker's connection."""
        if broker not in self._lines:
            self._lines[broker] = socket.create_connection(self._place, 30), FrameReader()
        sock, reader = self._lines[broker]
        self._opaque += 1
        sock.sendall(b"".join(map(bytes, encode_frame(request._replace(opaque=self._opaque)))))
        while True:
            data = sock.recv(1 << 16)
            assert data, f"{request} was answered by hanging up"
            for found in reader.feed(data):
                if found.opaque == self._opaque and found.is_response:
                    return found

    def close(self) -> None:
        """Hangs up."""
        for sock, _ in self._lines.values():
            sock.close()


@contextmanager
def asking(address: str) -> Iterator[Asked]:
    """It hangs up with the context."""
    asked = Asked(address)
    try:
        yield asked
    finally:
        asked.close()


@pytest.fixture(scope="module")
def conversations(oracle: Oracle, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Asked, Asked]]:
    """Apache's controller and ours, of one group."""
    home = tmp_path_factory.mktemp("controllers-")
    port = free_ports()
    conf = home / "controller.conf"
    conf.write_text(
        f"controllerDLegerGroup=controller\ncontrollerDLegerPeers=n0-127.0.0.1:{port}\ncontrollerDLegerSelfId=n0\n"
        f"controllerStorePath={home}/apache\nmappedFileSize=1048576\nscanInactiveMasterInterval=600000\n"
    )
    with oracle.java_running(STARTUP, "-c", conf), our_controller(home) as ours:
        wait_until(lambda: _leads(port), "Apache's controller leads")
        with asking(f"127.0.0.1:{port}") as apache, asking(ours.address) as own:
            yield apache, own


def _leads(port: int) -> bool:
    with suppress(OSError, AssertionError), asking(f"127.0.0.1:{port}") as asked:
        answer = asked.ask(9, make_request(1004, {"brokerName": "b"}))
        return answer.code == 2008
    return False


def test_brokers_enter_then_masters_and_sets_come_and_go(conversations: tuple[Asked, Asked]) -> None:
    apache, own = conversations
    expected, found = apache.play((*FIRST, *LATER)), own.play((*FIRST, *LATER))
    for name, answer in expected.items():
        assert found[name] == answer, name
