"""The controller as it runs: connections, time, files, notices to brokers, and the command."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from spark_mq.cli import app
from spark_mq.controller.journal import FILE_NAME
from spark_mq.controller.server import PatientClock, RunningController
from spark_mq.controller.settings import Configuration
from spark_mq.remoting import FrameReader, Header, RemotingCommand, encode_frame, make_request, read_body, read_header
from spark_mq.remoting import write_header as as_fields
from spark_mq.remoting.controllers import (
    ApplyBrokerIdRequest,
    ControllerMetadataAnswer,
    ElectMasterRequest,
    RegisterToControllerRequest,
    RoleChangedRequest,
    SyncStateSet,
)
from spark_mq.remoting.routes import BrokerHeartbeatRequest
from spark_mq.remoting_server.server import ListenError, RemotingServer
from storage.errors import ConfigurationError, StateFileError
from tests.support.own_servers import OurController, our_controller
from tests.support.places import COMMAND
from tests.support.planned_server import planned_server
from tests.support.waiting import wait_until

LIMIT_SECONDS = 30
NAME, CLUSTER = "b", "C"


class Broker:
    """A broker's connection."""

    def __init__(self, at: str, broker_id: int, address: str = "127.0.0.1:1") -> None:
        host, port = at.rsplit(":", 1)
        self.sock = socket.create_connection((host, int(port)), LIMIT_SECONDS)
        self.broker_id = broker_id
        self.address = address

    def enter(self, timeout_ms: int = 10_000) -> None:
        """Applies, registers, and beats once."""
        code = f"{self.address};{self.broker_id}"
        self.ask(
            1013,
            ApplyBrokerIdRequest(
                cluster_name=CLUSTER, broker_name=NAME, applied_broker_id=self.broker_id, register_check_code=code
            ),
        )
        self.ask(
            1003,
            RegisterToControllerRequest(
                cluster_name=CLUSTER, broker_name=NAME, broker_id=self.broker_id, broker_address=self.address
            ),
        )
        self.beat(timeout_ms)

    def beat(self, timeout_ms: int = 10_000) -> None:
        """904."""
        self.ask(
            904,
            BrokerHeartbeatRequest(
                cluster_name=CLUSTER,
                broker_name=NAME,
                broker_id=self.broker_id,
                broker_address=self.address,
                heartbeat_timeout_ms=timeout_ms,
            ),
        )

    def elect(self) -> None:
        """1002."""
        self.ask(
            1002,
            ElectMasterRequest(cluster_name=CLUSTER, broker_name=NAME, broker_id=self.broker_id, designate_elect=False),
        )

    def ask(self, code: int, header: Header | None = None) -> RemotingCommand:
        """The answer, which is no refusal."""
        found = self.answer(code, None if header is None else as_fields(header))
        assert found.code == 0, found
        return found

    def answer(self, code: int, fields: Mapping[str, str] | None = None) -> RemotingCommand:
        """The answer, whatever it says."""
        request = make_request(code, fields)
        self.sock.sendall(b"".join(map(bytes, encode_frame(request))))
        reader = FrameReader()
        deadline = time.monotonic() + LIMIT_SECONDS
        what = f"the answer to request {code} of broker {self.broker_id}"
        while data := self.sock.recv(1 << 16):
            if found := reader.feed(data):
                return found[0]
            assert time.monotonic() < deadline, f"{LIMIT_SECONDS} s have passed, and not yet: {what}"
        raise ConnectionResetError(f"the controller has hung up before {what}")


def test_a_master_is_gone_with_its_connection_and_the_others_hear_of_the_next(tmp_path: Path) -> None:
    with planned_server(lambda peer, command: None) as second, our_controller(tmp_path) as controller:
        master, slave = Broker(controller.address, 1), Broker(controller.address, 2, second.address)
        with closing(slave.sock):
            master.enter()
            slave.enter()
            master.elect()
            (first,) = second.until(1008)
            controller.running.controller.configuration = Configuration.of({"enableElectUncleanMaster": "true"})
            master.sock.close()
            wait_until(lambda: _master(controller) == (2, 2), "the other one is master")
            _, told = second.until(1008, 2)
    assert read_header(RoleChangedRequest, first).master_broker_id == 1
    header = read_header(RoleChangedRequest, told)
    assert told.is_oneway
    assert (header.master_broker_id, header.master_address, header.master_epoch) == (2, second.address, 2)
    assert read_body(SyncStateSet, told.body) == SyncStateSet(broker_ids=(2,), epoch=2)


def _master(controller: OurController) -> tuple[int | None, int]:
    group = controller.group(NAME)
    return (None, 0) if group is None else (group.master_id, group.master_epoch)


def test_a_silent_master_is_gone_and_its_connection_is_closed(tmp_path: Path) -> None:
    with our_controller(tmp_path, scanNotActiveBrokerInterval="50") as controller:
        broker = Broker(controller.address, 1)
        with closing(broker.sock):
            broker.enter(timeout_ms=300)
            broker.elect()
            assert broker.sock.recv(1) == b""
            assert _master(controller) == (None, 2)


def test_decisions_outlive_the_process_whose_end_is_nobodys_absence(tmp_path: Path) -> None:
    with ExitStack() as brokers:
        with our_controller(tmp_path) as controller:
            for broker_id in (1, 2):
                broker = Broker(controller.address, broker_id)
                brokers.callback(broker.sock.close)
                broker.enter()
                if broker_id == 1:
                    broker.elect()
            known = controller.group(NAME)
        assert known is not None
        assert (known.master_id, known.master_epoch) == (1, 1)
    with our_controller(tmp_path) as controller:
        assert controller.group(NAME) == known
    path = tmp_path / "controller" / FILE_NAME
    path.write_bytes(path.read_bytes()[5:])
    with pytest.raises(StateFileError), our_controller(tmp_path):
        pass


def test_a_directory_has_one_controller(tmp_path: Path) -> None:
    rule = re.escape(f"controllerStorePath: {tmp_path}/controller: another controller has it")
    with our_controller(tmp_path) as controller:
        with pytest.raises(ConfigurationError, match=rule), our_controller(tmp_path):
            pass
        port = controller.address.rsplit(":", 1)[1]
        with pytest.raises(ListenError), our_controller(tmp_path / "other", listenPort=port):
            pass
    with our_controller(tmp_path):
        pass


def test_a_start_that_fails_and_an_end_that_fails_leave_the_directory_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = {
        "tls.server.mode": "enforcing",
        "tls.server.certPath": f"{tmp_path}/no",
        "tls.server.keyPath": f"{tmp_path}/no",
    }
    kept = None
    try:
        with our_controller(tmp_path, **bad):
            pass
    except ConfigurationError as error:
        kept = error  # its frames hold what they opened
    assert "no" in str(kept)

    async def fails(server: RemotingServer) -> None:
        raise OSError(5, "the end")

    with (
        monkeypatch.context() as patched,
        pytest.raises(OSError, match="the end"),
        our_controller(tmp_path) as controller,
    ):
        patched.setattr(RemotingServer, "close", fails)
    assert controller.running._pool.is_closed
    with our_controller(tmp_path):
        pass


def test_brokers_are_told_the_address_at_which_they_reach_it(tmp_path: Path) -> None:
    with our_controller(tmp_path) as controller, closing((broker := Broker(controller.address, 1)).sock):
        found = read_header(ControllerMetadataAnswer, broker.ask(1005))
        assert found.controller_leader_address == controller.address
    named = {"controllerDLegerPeers": "n1-ctl.example:9999", "controllerDLegerSelfId": "n1"}
    with our_controller(tmp_path, **named) as controller, closing((broker := Broker(controller.address, 1)).sock):
        found = read_header(ControllerMetadataAnswer, broker.ask(1005))
        assert (found.controller_leader_address, found.peers) == ("ctl.example:9999", "n1:ctl.example:9999;")


def test_time_in_which_the_controller_stood_still_is_nobodys_silence() -> None:
    now = [100.0]

    async def look() -> list[int]:
        clock = PatientClock(lambda: now[0])
        seen = []
        for step in (0.125, 0.125, 40.0, 0.5):
            now[0] += step
            clock._tick()
            seen.append(clock.now_ms())
        clock.close()
        return seen

    assert asyncio.run(look()) == [125, 250, 1_250, 1_750]


def test_a_new_leader_hears_brokers_before_it_looks_for_masters(tmp_path: Path) -> None:
    async def look() -> tuple[bool, list[int], list[int]]:
        running = await RunningController.start(_configuration(tmp_path))
        try:
            waiting, scanned = list[Callable[[], None]](), list[int]()
            running._decide = waiting.append  # type: ignore[method-assign]
            running.controller.scan_masters = scanned.append  # type: ignore[method-assign]
            before = running._timers["masters"]
            running._scan_masters()
            begun = running._timers["masters"]
            running._serves_now()
            waiting.pop()()
            at_once = list(scanned)
            while running._timers["masters"] is begun:
                await asyncio.sleep(0)
            running._scan_masters()
            waiting.pop()()
            return before.cancelled() and begun.cancelled(), at_once, scanned
        finally:
            await running.close()

    were_cancelled, at_once, later = asyncio.run(look())
    assert were_cancelled, "each of them would go on for ever"
    assert (at_once, len(later)) == ([], 1)


def test_heartbeats_that_wait_behind_a_scan_are_no_silence(tmp_path: Path) -> None:
    async def look() -> list[int]:
        running = await RunningController.start(_configuration(tmp_path))
        try:
            waiting, seen = list[Callable[[], None]](), list[int]()
            running._decide = waiting.append  # type: ignore[method-assign]
            running.controller.scan_masters = seen.append  # type: ignore[method-assign]
            running.controller.scan_brokers = lambda now_ms: seen.append(now_ms) or []  # type: ignore[method-assign,func-returns-value]
            running.controller.close_channel = lambda channel, now_ms: seen.append(now_ms)  # type: ignore[method-assign]
            running._clock._ms = 1_000
            running._scan_brokers()
            running._scan_masters()
            running._peer_left(object())  # type: ignore[arg-type]
            running._clock._ms = 50_000
            for call in waiting:
                call()
            return seen
        finally:
            await running.close()

    assert asyncio.run(look()) == [1_000] * 3


def test_metadata_leaves_notices_to_the_thread_that_decides(tmp_path: Path) -> None:
    async def look() -> tuple[int, list[str]]:
        running = await RunningController.start(_configuration(tmp_path))
        try:
            running.controller._notices.append("one")  # type: ignore[arg-type]
            answer = running._answer_at_once(make_request(1005), SimpleNamespace(host="127.0.0.1"))  # type: ignore[arg-type]
            return answer.code, [str(each) for each in running.controller.take_notices()]
        finally:
            await running.close()

    assert asyncio.run(look()) == (0, ["one"])


def _configuration(home: Path, **settings: str) -> Configuration:
    return Configuration.of({"listenPort": "0", "controllerStorePath": f"{home}/controller", **settings})


# Settings and the command.


def test_a_file_is_read_as_java_reads_it_and_what_does_nothing_is_said() -> None:
    text = (
        b"controllerDLegerGroup = group1\ncontrollerDLegerPeers = n0-127.0.0.1:9878\ncontrollerDLegerSelfId = n0\n"
        b"electMasterMaxRetryCount=3\ncontrollerstorepath=/x\ncontrollerType=DLedger\nisProcessReadEvent=true\n"
    )
    found = Configuration.read(text, "/etc/controller.conf")
    assert (found.server.listen_port, found.server.bind_address) == (9_878, "127.0.0.1")
    assert found.controller.group == "group1"
    assert found.controller.config_store_path == "/etc/controller.conf"
    assert found.warnings == (
        "/etc/controller.conf: electMasterMaxRetryCount: it has no effect here",
        "/etc/controller.conf: controllerstorepath: no controller knows this name; did you mean controllerStorePath?",
        "/etc/controller.conf: isProcessReadEvent: it has no effect here",
    )


def test_an_address_that_brokers_do_not_reach_is_warned_of() -> None:
    named = {"controllerDLegerPeers": "n0-10.0.0.5:9877"}
    assert Configuration.of(named).warnings == (
        "configuration: bindAddress: brokers get 10.0.0.5:9877, and it listens on 127.0.0.1 alone",
    )
    assert Configuration.of({**named, "bindAddress": "0.0.0.0"}).warnings == ()
    own = {"controllerDLegerPeers": "n0-127.0.0.1:9877"}
    assert Configuration.of(own).warnings == Configuration.of({**own, "listenPort": "9877"}).warnings == ()
    assert Configuration.of({**own, "listenPort": "9878"}).warnings == (
        "configuration: listenPort: others reach 127.0.0.1:9877, and it listens on port 9878",
    )


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("controllerType=jRaft", "controllerType: 'jRaft' is not supported"),
        ("controllerDLegerPeers=n0-a:1;n0-b:2", "'n0-a:1;n0-b:2': each id and each address stands there once"),
        (
            "controllerDLegerPeers=n1-a:1;n2-b:2",
            "controllerDLegerSelfId: 'n0': no peer of controllerDLegerPeers has that id",
        ),
        (
            "controllerDLegerPeers=n0-a:1;n1-b:2\ntls.server.mode=enforcing\ntls.server.certPath=c\ntls.server.keyPath=k",
            "tls.server.mode: 'enforcing': several controllers speak no TLS with each other",
        ),
        ("mappedFileSize=100", "mappedFileSize: 100: a file has at least 4096 bytes"),
        ("controllerDLegerPeers=a:1", "controllerDLegerPeers: 'a:1': a peer is id-host:port"),
        (r"controllerDLegerPeers=\u0142-a:1", "controllerDLegerPeers: '\u0142-a:1': a peer is id-host:port"),
        ("controllerDLegerPeers=a/b-a:1", "an id has letters, digits, _ and . alone"),
        (
            "controllerDLegerPeers=n0-a:0",
            "controllerDLegerPeers: 'n0-a:0': a port is 1 to 65535; an address is host:port",
        ),
        ("controllerDLegerPeers=n1-a:1", "controllerDLegerSelfId: 'n0': no peer of controllerDLegerPeers has that id"),
        ("bindAddress=0.0.0.0", "controllerDLegerPeers: it is needed where bindAddress is 0.0.0.0"),
        ("scanInactiveMasterInterval=0", "scanInactiveMasterInterval: 0: it must be greater than 0"),
        ("initAuthenticationUser=root", "initAuthenticationUser: it must be"),
    ],
)
def test_settings_that_cannot_be_followed_are_refused(text: str, rule: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^controller\.conf: ") as caught:
        Configuration.read(text.encode(), "controller.conf")
    assert rule in str(caught.value)


def test_the_command_prints_its_settings(tmp_path: Path) -> None:
    conf = tmp_path / "controller.conf"
    conf.write_text("controllerDLegerPeers=n0-127.0.0.1:1234\n")
    said = {}
    for option in ("-p", "-m"):
        result = CliRunner().invoke(app, ["controller", option, "-c", str(conf)])
        assert result.exit_code == 0, result.output
        said[option] = dict(line.split("=", 1) for line in result.stdout.splitlines())
    assert said["-m"].items() <= said["-p"].items()
    assert said["-m"]["listenPort"] == "1234"
    assert len(said["-m"]) < len(said["-p"])


@pytest.mark.slow
def test_the_command_runs_until_it_is_told_to_end_and_a_killed_one_goes_on(tmp_path: Path) -> None:
    conf = tmp_path / "controller.conf"
    conf.write_text(f"listenPort=0\ncontrollerStorePath={tmp_path}/kept\n")
    command = [*COMMAND, "controller", "-c", str(conf)]
    for signal_number, code in ((signal.SIGKILL, -9), (signal.SIGTERM, 0)):
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env={**os.environ, "HOME": str(tmp_path)}
        ) as process:
            try:
                assert process.stdout is not None
                said = process.stdout.readline()
                assert said.startswith("The Controller Server boot success. serializeType=JSON, address 127.0.0.1:")
                broker = Broker(said.split()[-1], 1)
                with closing(broker.sock):
                    broker.enter()
                    process.send_signal(signal_number)
                    assert process.wait(LIMIT_SECONDS) == code
            finally:
                process.kill()
    with our_controller(tmp_path, controllerStorePath=f"{tmp_path}/kept") as controller:
        group = controller.group(NAME)
        assert group is not None
        assert set(group.replicas) == {1}
