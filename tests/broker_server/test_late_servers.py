"""Brokers that start before their name servers or their master: they are known soon after these are there."""

from __future__ import annotations

import logging
import socket
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import Mock

import pytest

from spark_mq.broker_server.controlled import ControlledBroker
from spark_mq.broker_server.name_servers import Registration
from spark_mq.broker_server.settings import ProcessSettings, read_configuration
from spark_mq.client.admin import Admin
from spark_mq.client.errors import ClientError
from spark_mq.client.settings import ClientSettings
from spark_mq.remoting import RequestCode, make_request
from spark_mq.testing.servers import OwnLoop
from tests.broker_server.test_running_broker import running
from tests.support.java_broker import free_ports, wait_until
from tests.support.own_servers import OurNameServer, our_controller, our_name_server

SLOW = "registerNameServerPeriod=60000\n"
SOON_SECONDS = 40.0
"""Nothing but another try comes before the period's minute is over."""


def knows(names: OurNameServer, count: int = 1) -> bool:
    with Admin(ClientSettings((names.address,))) as admin:
        try:
            return (
                sum(len(each.broker_addresses) for each in admin.cluster_info().broker_address_table.values()) == count
            )
        except ClientError:
            return False


def test_a_broker_registers_soon_at_a_name_server_that_starts_after_it_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "spark_mq.broker_server.name_servers")
    port = free_ports()
    with our_name_server(tmp_path / "first") as first:
        late = f"127.0.0.1:{port}"
        with running(tmp_path / "store", free_ports(), f"{first.address};{late}", SLOW) as broker:
            assert knows(first), "the one that is there does not wait for the other one"
            assert broker.unknown_to == (late,)
            with our_name_server(tmp_path / "second", listenPort=str(port)) as second:
                wait_until(lambda: knows(second), "the late one knows it", SOON_SECONDS)
                wait_until(lambda: broker.unknown_to == (), "it knows that it is known")
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert said[0].startswith(f"name server {late} does not know this broker yet: ")
    assert said[1] == f"name server {late} knows this broker now"


def test_a_name_server_that_was_away_and_has_forgotten_all_is_told_soon(tmp_path: Path) -> None:
    port = str(free_ports())
    with ExitStack() as stack:
        with our_name_server(tmp_path / "names", listenPort=port) as names:
            broker = stack.enter_context(running(tmp_path / "store", free_ports(), names.address, SLOW))
            assert knows(names)
        broker.tell_name_servers()
        wait_until(lambda: broker.unknown_to == (names.address,), "it has noticed")
        with our_name_server(tmp_path / "names", listenPort=port) as names:
            wait_until(lambda: knows(names), "it is known again", SOON_SECONDS)


@pytest.mark.slow
def test_a_broker_that_starts_before_its_controller_is_master_soon_after_it_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "spark_mq.broker_server.controlled")
    port, loop = free_ports(), OwnLoop()
    text = f"brokerName=b\nlistenPort={free_ports()}\nstorePathRootDir={tmp_path}/store\nbrokerIP1=127.0.0.1\n"
    text += f"enableControllerMode=true\ncontrollerAddr=127.0.0.1:{port}\nmappedFileSizeCommitLog=1048576\n"
    try:
        broker = loop.run(ControlledBroker.start(read_configuration(text.encode(), None, {})))
        try:
            wait_until(lambda: bool(caplog.records), "it has found no controller")
            with our_controller(tmp_path, listenPort=str(port)):
                wait_until(lambda: broker.role is not None and broker.role.is_master, "it is master", SOON_SECONDS)
                wait_until(lambda: len(caplog.records) > 1, "it has said so")
                said = [record.getMessage() for record in caplog.records]
        finally:
            loop.run(broker.close())
    finally:
        loop.close()
    assert said[0].startswith("no controller says what this broker is: ")
    assert said[1:] == ["a controller has said what this broker is"]


def test_a_slave_that_starts_before_its_master_follows_it_soon(tmp_path: Path) -> None:
    with our_name_server(tmp_path / "names") as names:
        slave_settings = SLOW + "brokerRole=SLAVE\nbrokerId=1\n"
        with running(tmp_path / "slave", free_ports(), names.address, slave_settings) as slave:
            assert slave.following is not None
            follower = slave.following.follower
            with running(tmp_path / "master", free_ports(), names.address, SLOW):
                assert follower.wait(lambda status: status.is_connected, SOON_SECONDS), (
                    "it has heard where its master is"
                )


def test_a_name_server_that_hangs_is_named_once_however_long_it_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    command = make_request(RequestCode.REGISTER_BROKER, {})
    monkeypatch.setattr("spark_mq.broker_server.name_servers.registration", lambda *_: command)
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        address = f"127.0.0.1:{hanging.getsockname()[1]}"
        telling = Registration(Mock(), ClientSettings((address,)), ProcessSettings())
        for timeout_ms in (60, 50, 60, 50):
            telling._register((address,), timeout_ms)
        assert telling.missing == (address,)
        telling.close()
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1
