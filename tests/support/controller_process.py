"""Our controller as a process of its own that a test kills and starts again, on one port and one journal."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

from spark_mq.controller.state import Group, Replica
from spark_mq.dledger.messages import (
    DLedgerCode,
    DLedgerMessage,
    DLedgerRequestCode,
    HeartBeatRequest,
    HeartBeatResponse,
    LeadershipTransferRequest,
    LeadershipTransferResponse,
)
from spark_mq.remoting import (
    FrameReader,
    RemotingCommand,
    encode_frame,
    make_request,
    read_body,
    read_header,
    write_body,
)
from spark_mq.remoting.command import write_texts
from spark_mq.remoting.controllers import BrokerReplicasInfo, ControllerMetadataAnswer, ReplicasInfo
from tests.support.java_broker import Oracle, free_ports, wait_until
from tests.support.places import COMMAND, PROJECT

_CONTROLLER = (*COMMAND, "controller", "--verbose")
_APACHES = "org.apache.rocketmq.controller.ControllerStartup"
_LIMIT_SECONDS = 60
_CATCH_UP_SECONDS = 1
_METADATA = 1005
_IN_SYNC_DATA = 1006
_REPLICA_INFO = 1004
_NOBODY = 2008


class ControllerProcess:
    """What is asked of it goes over the wire. With an oracle it is Apache's, else ours."""

    def __init__(self, home: Path, oracle: Oracle | None = None, port: int | None = None, **settings: str) -> None:
        """`settings` by Java's names, beside those of a single node."""
        self.home = home
        self.oracle = oracle
        self.port = port or free_ports()
        self.address = f"127.0.0.1:{self.port}"
        self.settings = {
            "controllerDLegerGroup": "controller",
            "controllerDLegerSelfId": "n0",
            "controllerDLegerPeers": f"n0-{self.address}",
            "controllerStorePath": str(home / "controller"),
            "mappedFileSize": "1048576",
            **settings,
        }
        self._left = ExitStack()

    def start(self) -> None:
        """Ours listens when this returns."""
        conf = self.home / "controller.conf"
        conf.write_text("".join(f"{name}={text}\n" for name, text in self.settings.items()), "ascii")
        with ExitStack() as opened:
            if self.oracle is not None:
                opened.enter_context(self.oracle.java_running(_APACHES, "-c", conf))
            else:
                process = opened.enter_context(_ours(conf, self.home / "controller.log"))
                assert process.stdout is not None
                said = select.poll()  # select() fails for the 1,025th file of a process
                said.register(process.stdout, select.POLLIN)
                assert said.poll(_LIMIT_SECONDS * 1_000), (
                    f"{_LIMIT_SECONDS} s have passed, and not yet: the controller at {self.address} has started"
                )
                assert "boot success" in process.stdout.readline()
            self._left = opened.pop_all()

    def kill(self) -> None:
        """SIGKILL."""
        self._left.close()

    close = kill

    def group(self, name: str) -> Group | None:
        """What it says of the brokers of a name; None where it knows nothing, or is not there."""
        with suppress(OSError):
            answer = self._ask(make_request(_IN_SYNC_DATA, None, write_texts((name,))))
            if answer.code:
                return None
            info = read_body(BrokerReplicasInfo, answer.body).replicas_info_table.get(name)
            return None if info is None else _group(name, info)
        return None

    def leader_id(self) -> str | None:
        """Who leads, as it knows it."""
        with suppress(OSError):
            return read_header(ControllerMetadataAnswer, self._ask(make_request(_METADATA))).controller_leader_id
        return None

    def leads(self) -> bool:
        """Whether it takes decisions."""
        with suppress(OSError):
            return self._ask(make_request(_REPLICA_INFO, {"brokerName": "nobody"})).code == _NOBODY
        return False

    def hand_over(self, leader: str, to: str, term: int) -> DLedgerCode:
        """Ask it, which leads in a term, to let another one lead; its answer."""
        group = self.settings["controllerDLegerGroup"]
        request = LeadershipTransferRequest(
            group=group, remote_id=leader, leader_id=leader, term=term, transfer_id=leader, transferee_id=to
        )
        answer = self._ask_member(DLedgerRequestCode.LEADERSHIP_TRANSFER, request)
        return DLedgerCode(read_body(LeadershipTransferResponse, answer.body).code)

    def term(self, leader: str, other: str) -> int:
        """The term in which it leads: its answer to the heartbeat of a leader of long ago."""
        group = self.settings["controllerDLegerGroup"]
        beat = HeartBeatRequest(group=group, remote_id=leader, local_id=other, leader_id=other, term=0)
        answer = read_body(HeartBeatResponse, self._ask_member(DLedgerRequestCode.HEART_BEAT, beat).body)
        assert answer.code == DLedgerCode.EXPIRED_TERM
        return answer.term

    def _ask_member(self, code: DLedgerRequestCode, request: DLedgerMessage) -> RemotingCommand:
        return self._ask(make_request(code, None, write_body(request)))

    def _ask(self, request: RemotingCommand) -> RemotingCommand:
        reader = FrameReader()
        deadline = time.monotonic() + _LIMIT_SECONDS
        with closing(socket.create_connection(("127.0.0.1", self.port), _LIMIT_SECONDS)) as sock:
            sock.sendall(b"".join(map(bytes, encode_frame(request))))
            while data := sock.recv(1 << 16):
                if found := reader.feed(data):
                    return found[0]
                if time.monotonic() > deadline:
                    raise TimeoutError(f"no whole answer to request {request.code} from {self.address}")
        raise ConnectionResetError(os.strerror(104))


def _group(name: str, info: ReplicasInfo) -> Group:
    in_sync, others = info.in_sync_replicas or (), info.not_in_sync_replicas or ()
    return Group(
        cluster="",
        broker_name=name,
        replicas={each.broker_id or 0: Replica(each.broker_address or "", "") for each in (*in_sync, *others)},
        master_id=info.master_broker_id,
        master_epoch=info.master_epoch or 0,
        sync_state_set=frozenset(each.broker_id or 0 for each in in_sync),
        sync_state_set_epoch=info.sync_state_set_epoch or 0,
    )


@contextmanager
def _ours(conf: Path, log: Path) -> Iterator[subprocess.Popen[str]]:
    with log.open("a") as errors:
        process = subprocess.Popen(
            [*_CONTROLLER, "-c", str(conf)], cwd=PROJECT, stdout=subprocess.PIPE, stderr=errors, text=True
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait(_LIMIT_SECONDS)
        assert process.stdout is not None
        process.stdout.close()


@contextmanager
def controller_process(home: Path) -> Iterator[ControllerProcess]:
    """It runs, and ends with the context."""
    found = ControllerProcess(home)
    found.start()
    try:
        yield found
    finally:
        found.close()


@contextmanager
def apaches_controller(oracle: Oracle, home: Path) -> Iterator[ControllerProcess]:
    """The same, of Apache's; it leads."""
    found = ControllerProcess(home, oracle, controllerStorePath=str(home / "apaches-controller"))
    found.start()
    try:
        wait_until(found.leads, "Apache's controller leads")
        yield found
    finally:
        found.close()


class ControllerQuorum:
    """Several controllers of a group, by id, of both kinds. Java: `n0` and so on."""

    def __init__(self, home: Path, oracle: Oracle, are_ours: Sequence[bool]) -> None:
        ports = {f"n{at}": free_ports() for at in range(len(are_ours))}
        peers = ";".join(f"{name}-127.0.0.1:{port}" for name, port in ports.items())
        self.members: dict[str, ControllerProcess] = {}
        self.running: set[str] = set()
        for (name, port), is_ours in zip(ports.items(), are_ours, strict=True):
            (own := home / name).mkdir()
            settings = {"controllerDLegerPeers": peers, "controllerDLegerSelfId": name}
            self.members[name] = ControllerProcess(own, None if is_ours else oracle, port, **settings)

    @property
    def address(self) -> str:
        """All of them, for brokers."""
        return ";".join(each.address for each in self.members.values())

    def start(self, name: str) -> None:
        self.members[name].start()
        self.running.add(name)

    def kill(self, name: str) -> None:
        """SIGKILL."""
        self.running.discard(name)
        self.members[name].kill()

    def is_ours(self, name: str) -> bool:
        """Whether it is none of Apache's."""
        return self.members[name].oracle is None

    def leader(self) -> str | None:
        """The one that decides."""
        return next((name for name in sorted(self.running) if self.members[name].leads()), None)

    def await_leader(self) -> str:
        found: list[str] = []
        wait_until(lambda: found.extend(filter(None, [self.leader()])) or found, "a controller leads", _LIMIT_SECONDS)
        return found[0]

    def await_joined(self, name: str) -> None:
        """Until one that was started follows the leader, and has had the time to get what it lacks."""
        joined = self.members[name]
        wait_until(lambda: joined.leader_id() in {self.leader()} - {None}, f"{name} follows", _LIMIT_SECONDS)
        time.sleep(_CATCH_UP_SECONDS)

    def await_leader_of(self, is_ours: bool) -> str:
        """Until one of that kind leads: a leader of the other kind is asked to hand over. Java: DLedger's LeadershipTransferCommand."""
        wanted = [name for name in sorted(self.running) if (self.members[name].oracle is None) == is_ours]
        answers: list[DLedgerCode] = []

        def leads() -> bool:
            leader = self.leader()
            if leader is not None and leader not in wanted:
                asked = self.members[leader]
                answers.append(asked.hand_over(leader, wanted[0], asked.term(leader, wanted[0])))
            return leader in wanted

        try:
            wait_until(leads, f"one of {wanted} leads", _LIMIT_SECONDS, pause_seconds=1)
        except AssertionError as late:
            raise AssertionError(f"{late}; answers to requests to hand over: {answers}") from None
        return self.await_leader()

    def group(self, name: str) -> Group | None:
        """What the leader knows of the brokers of a name."""
        leader = self.leader()
        return None if leader is None else self.members[leader].group(name)


@contextmanager
def controller_quorum(home: Path, oracle: Oracle, are_ours: Sequence[bool]) -> Iterator[ControllerQuorum]:
    """They run, one of them leads, and they end with the context."""
    found = ControllerQuorum(home, oracle, are_ours)
    try:
        for name in found.members:
            found.start(name)
        found.await_leader()
        yield found
    finally:
        for each in found.members.values():
            each.close()
