"""Where a broker is: at an IPv6 address, and in the directories that relative paths name."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from spark_mq.broker_server.opening import opened_store
from spark_mq.broker_server.settings import read_configuration
from spark_mq.client.admin import Admin
from spark_mq.client.message import Message
from spark_mq.client.producer import Producer
from spark_mq.client.pull_consumer import PullConsumer
from spark_mq.client.settings import ClientSettings
from storage import open_store
from tests.broker_server.test_running_broker import running
from tests.support.java_broker import free_ports, wait_until
from tests.support.own_servers import our_name_server


def need_ipv6_loopback() -> None:
    """Skips where the machine has none."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError as error:
        pytest.skip(f"this machine has no IPv6 loopback address: {error}")


@pytest.mark.parametrize("lines", ["bindAddress=::1\n", "bindAddress=[::1]\nbrokerIP1=[::1]\nbrokerIP2=::1\n"])
def test_a_broker_its_slave_its_name_server_and_its_clients_meet_at_an_ipv6_address(tmp_path: Path, lines: str) -> None:
    need_ipv6_loopback()
    port = str(free_ports())
    with our_name_server(tmp_path, bindAddress="::1", listenPort=port):
        settings = ClientSettings((f"::1:{port}",), vip_channel_enabled=True)
        master, slave = free_ports(), free_ports()
        with running(tmp_path / "master", master, f"[::1]:{port}", lines), Producer(settings, "G") as producer:
            sent = producer.send(Message("Topic", b"body"))
            slave_lines = lines + "brokerRole=SLAVE\nbrokerId=1\nslaveReadEnable=true\n"
            with running(tmp_path / "slave", slave, f"[::1]:{port}", slave_lines) as second, Admin(settings) as admin:
                (found,) = admin.cluster_info().broker_address_table.values()
                assert dict(found.broker_addresses) == {0: f"[::1]:{master}", 1: f"[::1]:{slave}"}
                viewed = admin.view_message(sent.offset_message_id)
                assert (viewed.body, viewed.broker_name) == (b"body", "b")
                assert {viewed.record.store_host[:16], viewed.record.born_host[:16]} == {
                    socket.inet_pton(socket.AF_INET6, "::1")
                }
                wait_until(lambda: second.broker.parts.store.service.dispatched_end > 0, "the slave has it")
            with PullConsumer(settings, "lookers") as consumer:
                (queue,) = [queue for queue in consumer.queues("Topic") if consumer.end_offset(queue)]
                consumer.assign([queue])
                consumer.seek(queue, 0)
                assert [each.body for each in consumer.poll(10_000)] == [b"body"]


def test_clients_and_slaves_of_both_families_reach_a_broker_that_listens_on_all_addresses(tmp_path: Path) -> None:
    """Java: an IPv4 client's messages say that they were born at its IPv4 address."""
    need_ipv6_loopback()
    port = free_ports()
    with our_name_server(tmp_path) as names:
        settings = ClientSettings((names.address,))
        both = running(tmp_path / "store", port, names.address, "bindAddress=::\nbrokerIP1=127.0.0.1\n")
        with both, Producer(settings, "G") as producer, Admin(settings) as admin:
            viewed = admin.view_message(producer.send(Message("Topic", b"body")).offset_message_id)
            assert viewed.record.born_host[:4] == socket.inet_aton("127.0.0.1")
            for host in ("127.0.0.1", "::1"):
                with socket.create_connection((host, port + 1), 10) as slave:
                    slave.sendall(bytes(8))
                    assert slave.recv(1)


def test_relative_paths_are_those_of_the_processs_directory_wherever_the_file_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java: new File(path). `storePathCommitLog` as `storePathRootDir`."""
    conf = tmp_path / "conf" / "broker.conf"
    conf.parent.mkdir()
    conf.write_text("brokerName=b\nstorePathRootDir=store\nstorePathCommitLog=./store/commitlog\n", "ascii")
    monkeypatch.chdir(tmp_path)
    for number in range(2):
        with opened_store(read_configuration(conf.read_bytes(), str(conf), {}), "owner") as store:
            store.put("T", b"body", queue_id=0)
            assert store.max_offset("T", 0) == number + 1
    assert [path.name for path in (tmp_path / "store" / "commitlog").iterdir()] == [f"{0:020d}"]
    assert [path.name for path in conf.parent.iterdir()] == ["broker.conf"]
    monkeypatch.chdir(conf.parent)
    with open_store(tmp_path / "store", config=str(conf)) as store:  # a warning would be an error
        assert store.max_offset("T", 0) == 2


def test_a_relative_log_elsewhere_is_seen_from_the_processs_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = read_configuration(b"storePathCommitLog=store/a,store/b\n", "/elsewhere/broker.conf", {}).store
    monkeypatch.chdir(tmp_path)
    with open_store(tmp_path / "store", config=config, read_only=False, create=True) as store:
        assert store.place.directories == (f"{tmp_path}/store/a", f"{tmp_path}/store/b")
