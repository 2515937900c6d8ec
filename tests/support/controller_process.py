"""Our controller as a process of its own that a test kills and starts again, on one port and one journal."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from spark_mq.controller.state import Group, Replica
from spark_mq.remoting import FrameReader, RemotingCommand, encode_frame, make_request, read_body
from spark_mq.remoting.controllers import BrokerReplicasInfo, ReplicasInfo
from spark_mq.remoting.headers_and_bodies import write_texts
from tests.support.java_broker import Oracle, free_ports, wait_until
from tests.support.places import PROJECT

_COMMAND = (sys.executable, "-c", "from spark_mq.cli import main; main()", "controller", "--verbose")
_LIMIT_SECONDS = 60
_IN_SYNC_DATA = 1006
_REPLICA_INFO = 1004
_NOBODY = 2008


class ControllerProcess:
    """What is asked of it goes over the wire."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.port = free_ports()
        self.address = f"127.0.0.1:{self.port}"
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """It listens when this returns."""
        conf = self.home / "controller.conf"
        conf.write_text(f"controllerDLegerPeers=n0-{self.address}\ncontrollerStorePath={self.home}/controller\n")
        with (self.home / "controller.log").open("a") as log:
            self._process = subprocess.Popen(
                [*_COMMAND, "-c", str(conf)], cwd=PROJECT, stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self._process.stdout is not None
        assert "boot success" in self._process.stdout.readline()

    def kill(self) -> None:
        """SIGKILL."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        assert self._process.wait(_LIMIT_SECONDS) == -signal.SIGKILL
        self.close()

    def close(self) -> None:
        """Ends it, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(_LIMIT_SECONDS)
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None

    def group(self, name: str) -> Group | None:
        """What it says of the brokers of a name; None where it knows nothing, or is not there."""
        with suppress(OSError):
            answer = self._ask(make_request(_IN_SYNC_DATA, None, write_texts((name,))))
            info = read_body(BrokerReplicasInfo, answer.body).replicas_info_table.get(name)
            return None if info is None else _group(name, info)
        return None

    def leads(self) -> bool:
        """Whether it takes decisions."""
        with suppress(OSError):
            return self._ask(make_request(_REPLICA_INFO, {"brokerName": "nobody"})).code == _NOBODY
        return False

    def _ask(self, request: RemotingCommand) -> RemotingCommand:
        reader = FrameReader()
        with closing(socket.create_connection(("127.0.0.1", self.port), _LIMIT_SECONDS)) as sock:
            sock.sendall(b"".join(map(bytes, encode_frame(request))))
            while data := sock.recv(1 << 16):
                if found := reader.feed(data):
                    return found[0]
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
    """The same, of Apache's: it is neither killed nor started again."""
    found = ControllerProcess(home)
    conf = home / "apaches-controller.conf"
    conf.write_text(
        f"controllerDLegerGroup=controller\ncontrollerDLegerPeers=n0-{found.address}\ncontrollerDLegerSelfId=n0\n"
        f"controllerStorePath={home}/apaches-controller\nmappedFileSize=1048576\n",
        "ascii",
    )
    with oracle.java_running("org.apache.rocketmq.controller.ControllerStartup", "-c", conf):
        wait_until(found.leads, "Apache's controller leads")
        yield found
