"""The name server as it runs: connections, time, files, notices to brokers, and the command."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path

import pytest
from typer.testing import CliRunner

from spark_mq.cli import app, processes
from spark_mq.client.admin import Admin
from spark_mq.client.blocking_connection import PROBE_CODE
from spark_mq.client.settings import ClientSettings
from spark_mq.controller.quorum import Failure
from spark_mq.namesrv.settings import Configuration
from spark_mq.remoting import FrameReader, RemotingCommand, encode_frame, make_request, write_body, write_header
from spark_mq.remoting.administration import MinBrokerIdRequest
from spark_mq.remoting.command import read_header
from spark_mq.remoting.routes import RegisterBrokerRequest
from spark_mq.remoting_server.server import ListenError
from spark_mq.remoting_server.settings import texts_of_file
from spark_mq.testing.ports import free_ports
from storage.errors import ConfigurationError, StateFileError
from storage.settings.java_properties import changed_properties, parse_properties
from tests.namesrv.asking import registered
from tests.support.own_servers import OurNameServer, our_name_server
from tests.support.places import COMMAND
from tests.support.planned_server import planned_server
from tests.support.waiting import wait_until

LIMIT_SECONDS = 30


@contextmanager
def admin_of(server: OurNameServer) -> Iterator[Admin]:
    with Admin(ClientSettings((server.address,))) as admin:
        yield admin


class Broker:
    """A broker's connection: it registers, and keeps silent."""

    def __init__(self, server: OurNameServer) -> None:
        host, port = server.address.rsplit(":", 1)
        self.sock = socket.create_connection((host, int(port)), LIMIT_SECONDS)

    def register(self, broker_id: int = 0, address: str = "127.0.0.1:1", timeout_ms: int | None = None) -> None:
        header = RegisterBrokerRequest(
            broker_name="b",
            broker_address=address,
            cluster_name="C",
            ha_server_address="127.0.0.1:2",
            broker_id=broker_id,
            heartbeat_timeout_ms=timeout_ms,
            enable_acting_master=True,
        )
        assert self.ask(make_request(103, write_header(header), write_body(registered(("T", "U"))))).code == 0

    def ask(self, command: RemotingCommand) -> RemotingCommand:
        self.sock.sendall(b"".join(map(bytes, encode_frame(command))))
        reader = FrameReader()
        while True:
            found = reader.feed(self.sock.recv(1 << 16))
            if found:
                return found[0]


def test_a_broker_leaves_with_its_connection(tmp_path: Path) -> None:
    with our_name_server(tmp_path) as server, admin_of(server) as admin:
        broker = Broker(server)
        broker.register()
        assert dict(admin.cluster_info().broker_address_table["b"].broker_addresses) == {0: "127.0.0.1:1"}
        assert admin.route("T").master_addresses == ("127.0.0.1:1",)
        assert set(admin.topics()) == {"T", "U"}
        broker.sock.close()
        wait_until(lambda: not admin.cluster_info().broker_address_table, "the broker leaves")


def test_a_silent_broker_leaves_and_its_connection_is_closed(tmp_path: Path) -> None:
    with our_name_server(tmp_path, scanNotActiveBrokerInterval="50") as server, admin_of(server) as admin:
        broker = Broker(server)
        with closing(broker.sock):
            broker.register(timeout_ms=300)
            assert "b" in admin.cluster_info().broker_address_table
            assert broker.sock.recv(1) == b""
            assert "b" not in admin.cluster_info().broker_address_table


@pytest.mark.parametrize("days", [3, -3])
def test_a_clock_that_is_set_empties_no_route(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, days: int) -> None:
    with our_name_server(tmp_path, scanNotActiveBrokerInterval="20") as server, admin_of(server) as admin:
        broker = Broker(server)
        with closing(broker.sock):
            broker.register()
            set_ns = time.time_ns() + days * 86_400 * 10**9
            monkeypatch.setattr(time, "time_ns", lambda: set_ns)
            scans = count()
            of_server = server.running._name_server
            scan = of_server.scan
            monkeypatch.setattr(of_server, "scan", lambda now_ms: (next(scans), scan(now_ms))[1])
            wait_until(lambda: next(scans) > 10, "it looks for silent brokers")
            assert admin.route("T").master_addresses == ("127.0.0.1:1",)
            assert broker.ask(make_request(105, {"topic": "T"})).code == 0


def test_brokers_hear_of_a_new_lowest_id(tmp_path: Path) -> None:
    with (
        planned_server(lambda peer, command: None) as slave,
        our_name_server(tmp_path, notifyMinBrokerIdChanged="true") as server,
    ):
        master, other = Broker(server), Broker(server)
        with closing(other.sock):
            master.register(0, "127.0.0.1:1")
            other.register(1, slave.address)
            master.sock.close()
            (command,) = slave.until(905)
    told = read_header(MinBrokerIdRequest, command)
    assert command.is_oneway
    assert (told.min_broker_id, told.min_broker_address, told.offline_broker_address) == (
        1,
        slave.address,
        "127.0.0.1:1",
    )
    assert PROBE_CODE != 905


def test_texts_outlive_the_process_and_a_torn_file_does_not_start_one(tmp_path: Path) -> None:
    put = make_request(100, {"namespace": "N", "key": "k", "value": "é"})
    get = make_request(101, {"namespace": "N", "key": "k"})
    with our_name_server(tmp_path) as server, closing((broker := Broker(server)).sock):
        assert broker.ask(put).code == 0
    assert (tmp_path / "kvConfig.json").read_text("utf-8") == '{"configTable":{"N":{"k":"é"}}}'
    with our_name_server(tmp_path) as server, closing((broker := Broker(server)).sock):
        assert broker.ask(get).ext_fields == {"value": "é"}
    (tmp_path / "kvConfig.json").write_text('{"configTable":')
    with pytest.raises(StateFileError), our_name_server(tmp_path):
        pass


def test_changed_settings_are_written_so_that_they_are_read_again(tmp_path: Path) -> None:
    odd = str(tmp_path / "a\\b é😀.json")
    path = tmp_path / "namesrv.properties"
    path.write_bytes(changed_properties(b"# ours\norderMessageEnable = false\n\n! the end\n", {"kvConfigPath": odd}))
    with our_name_server(tmp_path, kvConfigPath=odd) as server, closing((broker := Broker(server)).sock):
        assert broker.ask(make_request(318, None, b"orderMessageEnable=true\nscanNotActiveBrokerInterval=70")).code == 0
        refused = broker.ask(make_request(318, None, b"scanNotActiveBrokerInterval=71\nlistenPort=1"))
        assert (refused.code, "listenPort" in (refused.remark or "")) == (16, True)
    content = path.read_bytes()
    assert content.splitlines()[:4] == [b"# ours", b"orderMessageEnable=true", b"", b"! the end"]
    assert {"kvConfigPath": odd}.items() <= {each.key: each.value for each in parse_properties(content)}.items()
    again = Configuration.read(content, "namesrv.properties").name_server
    assert (again.order_message_enable, again.scan_interval_ms, again.kv_config_path) == (True, 70, odd)


def test_a_taken_address_is_named(tmp_path: Path) -> None:
    with our_name_server(tmp_path) as server:
        port = server.address.rsplit(":", 1)[1]
        rule = re.escape(f"cannot listen on 127.0.0.1:{port}: Address already in use")
        with pytest.raises(ListenError, match=rule), our_name_server(tmp_path, listenPort=port):
            pass
        with admin_of(server) as admin:
            assert admin.topics() == ()


# Settings and the command.


def test_a_file_is_read_as_java_reads_it_and_what_does_nothing_is_said() -> None:
    text = (
        b"listenPort=1234\nserverWorkerThreads=4\nlistenport=7\nbindAddress = 0.0.0.0 \nnotifyMinBrokerIdChanged=TRUE\n"
    )
    found = Configuration.read(text, "/etc/namesrv.conf")
    assert (found.server.listen_port, found.server.bind_address) == (1_234, "0.0.0.0")
    assert found.name_server.notifies_min_id
    assert found.name_server.config_store_path == "/etc/namesrv.conf"
    assert found.warnings == (
        "/etc/namesrv.conf: serverWorkerThreads: it has no effect here",
        "/etc/namesrv.conf: listenport: no name server knows this name; did you mean listenPort?",
    )


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("listenPort=70000", "listenPort: 70000: a port is 0 to 65535"),
        ("listenPort=many", "listenPort: 'many' is not a plain integer of 32 bits"),
        ("clusterTest=true", "clusterTest: 'true' is not supported"),
        ("scanNotActiveBrokerInterval=0", "scanNotActiveBrokerInterval: 0: it must be greater than 0"),
        ("initAuthenticationUser=root", "initAuthenticationUser: it must be"),
        ("tls.server.mode=enforcing", "tls.server.mode: 'enforcing': a certificate is needed"),
    ],
)
def test_settings_that_cannot_be_followed_are_refused(text: str, rule: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^namesrv\.conf: ") as caught:
        Configuration.read(text.encode(), "namesrv.conf")
    assert rule in str(caught.value)


def invoke(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["namesrv", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_controller_in_its_process_has_its_settings_from_the_same_file(tmp_path: Path) -> None:
    conf = tmp_path / "namesrv.conf"
    text = "listenPort=1234\nenableControllerInNamesrv=true\nscanNotActiveBrokerInterval=70\n"
    conf.write_text(text)
    refused = CliRunner().invoke(app, ["namesrv", "-p", "-c", str(conf)])
    assert "controllerDLegerPeers: it is needed where enableControllerInNamesrv is true" in refused.output
    conf.write_text(f"{text}controllerDLegerPeers=n0-127.0.0.1:5678\ncontrollerDLegerSelfId=n0\nkvConfigPat=x\n")
    result = CliRunner().invoke(app, ["namesrv", "-p", "-c", str(conf)])
    assert result.exit_code == 0, result.output
    everything = dict(line.split("=", 1) for line in result.stdout.splitlines())
    assert everything["listenPort"] == "1234", "the controller's port is in its peers"
    assert everything["controllerDLegerPeers"] == "n0-127.0.0.1:5678"
    assert everything["scanNotActiveBrokerInterval"] == "70"
    assert result.stderr.splitlines() == [
        f"warning: {conf}: kvConfigPat: no name server knows this name; did you mean kvConfigPath?"
    ]


@pytest.mark.slow
def test_a_name_server_and_a_controller_run_in_one_process(tmp_path: Path) -> None:
    ports = free_ports(), free_ports()
    conf = tmp_path / "namesrv.conf"
    conf.write_text(
        f"listenPort={ports[0]}\nenableControllerInNamesrv=true\ncontrollerDLegerPeers=n0-127.0.0.1:{ports[1]}\n"
        f"controllerStorePath={tmp_path}/controller\nkvConfigPath={tmp_path}/kv.json\n"
    )
    command = [*COMMAND, "namesrv", "-c", str(conf)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        said = [process.stdout.readline(), process.stdout.readline()]
        assert [f"address 127.0.0.1:{port}\n" in text for port, text in zip(ports, said, strict=True)] == [True, True]
        process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.communicate()


def test_a_controller_that_fails_ends_alone_and_the_name_server_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (
        f"listenPort=0\nbindAddress=127.0.0.1\nenableControllerInNamesrv=true\nkvConfigPath={tmp_path}/kv.json\n"
        f"controllerDLegerPeers=n0-127.0.0.1:{free_ports()}\ncontrollerStorePath={tmp_path}/controller\n"
    )
    monkeypatch.setattr(processes, "_LOOK_SECONDS", 0.01)

    async def look() -> tuple[bool, bool]:
        settings = processes._name_server_settings(texts_of_file(text.encode(), "f", {}))
        running = await processes._NameServerProcess.start(*settings)
        controller = running.controller
        assert controller is not None
        monkeypatch.setattr(type(controller), "failure", Failure("its disk", "another disk"))
        assert running._watching is not None
        await running._watching
        is_there = running.name_server._remoting._listeners != []
        await running.close()
        return controller._is_closing, is_there

    assert asyncio.run(look()) == (True, True)


def test_the_command_prints_its_settings(tmp_path: Path) -> None:
    conf = tmp_path / "namesrv.conf"
    conf.write_text("listenPort=1234\n")
    everything = dict(line.split("=", 1) for line in invoke("-p", "-c", str(conf)).splitlines())
    assert (everything["listenPort"], everything["bindAddress"], everything["supportActingMaster"]) == (
        "1234",
        "127.0.0.1",
        "false",
    )
    important = invoke("-m", "-n", "ignored:9876", "-c", str(conf)).splitlines()
    assert "listenPort=1234" in important
    assert len(important) < len(everything)
    assert "--configFile" in invoke("-h")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["namesrv", "-c", str(tmp_path / "absent")])
    assert result.exit_code == 1
    assert "there is no such file" in result.output


@pytest.mark.slow
def test_the_command_runs_until_it_is_told_to_end(tmp_path: Path) -> None:
    conf = tmp_path / "namesrv.conf"
    conf.write_text(f"listenPort=0\nkvConfigPath={tmp_path}/kvConfig.json\n")
    command = [*COMMAND, "namesrv", "-c", str(conf)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "HOME": str(tmp_path)}
    ) as process:
        try:
            assert process.stdout is not None
            said = process.stdout.readline()
            assert said.startswith("The Name Server boot success. serializeType=JSON, address 127.0.0.1:")
            with Admin(ClientSettings((said.split()[-1],))) as admin:
                assert admin.topics() == ()
            process.send_signal(signal.SIGTERM)
            assert process.wait(LIMIT_SECONDS) == 0
        finally:
            process.kill()
