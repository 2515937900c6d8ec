"""A broker that runs, on loopback: who may ask what, and what its end leaves behind."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from spark_mq.broker_server.batch_server import BatchServer
from spark_mq.broker_server.server import RunningBroker
from spark_mq.broker_server.settings import read_configuration
from spark_mq.client.admin import Admin
from spark_mq.client.errors import ClientError
from spark_mq.client.message import Message
from spark_mq.client.producer import Producer
from spark_mq.client.settings import ClientSettings, Credentials
from spark_mq.remoting_server.server import ListenError
from spark_mq.testing.servers import on_own_loop
from storage import open_store
from storage.errors import StoreLockedError
from storage.ha.listener import ReplicationListener
from storage.service.put_service import PutService
from tests.support.java_broker import free_ports, wait_until
from tests.support.own_servers import our_name_server


@contextmanager
def running(root: Path, port: int, name_server: str = "", settings: str = "") -> Iterator[RunningBroker]:
    text = f"brokerName=b\nlistenPort={port}\nstorePathRootDir={root}\nnamesrvAddr={name_server}\n{settings}"
    configuration = read_configuration(text.encode(), None, {})
    with on_own_loop(lambda: RunningBroker.start(configuration), "broker") as (broker, _):
        yield broker


def test_a_message_is_sent_served_and_stored_and_the_store_closed_cleanly(tmp_path: Path) -> None:
    with our_name_server(tmp_path) as names:
        settings = ClientSettings((names.address,))
        with running(tmp_path / "store", free_ports(), names.address) as broker, Producer(settings, "G") as producer:
            sent = producer.send(Message("Topic", b"body"))
            with Admin(settings) as admin:
                assert admin.max_offset(sent.queue) == sent.queue_offset + 1
                assert [each.broker_addresses[0] for each in admin.cluster_info().broker_address_table.values()] == [
                    "{}:{}".format(*broker.address)
                ]
        with Admin(settings) as admin:
            wait_until(lambda: not admin.cluster_info().broker_address_table, "it has left the name server", 10)
    with open_store(tmp_path / "store") as store:
        assert [found.body for found in store.get("Topic", sent.queue.queue_id, 0, 8).messages] == [b"body"]
    assert not (tmp_path / "store" / "abort").exists()


def test_a_broker_that_cannot_listen_takes_nobodys_name_from_the_name_server(tmp_path: Path) -> None:
    port = free_ports()
    with our_name_server(tmp_path) as names:
        with running(tmp_path / "one", port, names.address):
            with pytest.raises(ListenError), running(tmp_path / "two", port, names.address):
                raise AssertionError("it listens")
            with Admin(ClientSettings((names.address,))) as admin:
                assert admin.cluster_info().broker_address_table
        open_store(tmp_path / "two", read_only=False).close()  # nobody holds it


def test_whatever_fails_at_its_end_batches_end_before_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a batch would find its store closed amid a sync, and nobody would hear how that sync has ended."""
    ended: list[str] = []

    def planted(_: ReplicationListener) -> None:
        ended.append("replication")
        raise OSError(errno.EIO, "planted")

    def noted(name: str, close: Callable[..., None]) -> Callable[..., None]:
        def noting(*args: Any) -> None:
            ended.append(name)
            close(*args)

        return noting

    monkeypatch.setattr(ReplicationListener, "close", planted)
    monkeypatch.setattr(BatchServer, "close", noted("batches", BatchServer.close))
    monkeypatch.setattr(PutService, "close", noted("store", PutService.close))
    with pytest.raises(OSError, match="planted"), running(tmp_path / "store", free_ports()):
        pass
    assert ended == ["replication", "batches", "store"]
    open_store(tmp_path / "store", read_only=False).close()  # nobody holds it


def test_one_store_has_one_broker(tmp_path: Path) -> None:
    with (
        running(tmp_path / "store", free_ports()),
        pytest.raises(StoreLockedError),
        running(tmp_path / "store", free_ports()),
    ):
        raise AssertionError("both run")


def test_what_operators_ask_is_answered_to_this_host_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with our_name_server(tmp_path) as names:
        settings = ClientSettings((names.address,))
        with running(tmp_path / "store", free_ports(), names.address), Producer(settings, "G") as producer:
            monkeypatch.setattr("spark_mq.broker_server.server.is_this_host", lambda host: False)
            queue = producer.send(Message("Topic", b"body")).queue
            with Admin(settings) as admin:
                assert admin.max_offset(queue) == 1
                with pytest.raises(ClientError, match="this host alone"):
                    admin.delete_topic("Topic")


@pytest.mark.parametrize("is_fast", [False, True], ids=["main port", "fast port"])
def test_with_access_control_operators_come_from_elsewhere_and_nobody_without_a_signature(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_fast: bool
) -> None:
    """At both listeners; what nobody is allowed to say changes nothing."""
    monkeypatch.setattr("spark_mq.broker_server.server.is_this_host", lambda host: False)
    more = (
        "authenticationEnabled=true\nauthorizationEnabled=true\n"
        'initAuthenticationUser={"username":"root","password":"roots"}\n'
    )
    with our_name_server(tmp_path) as names, running(tmp_path / "store", free_ports(), names.address, more) as broker:
        root = ClientSettings(
            (names.address,),
            credentials=Credentials("root", "roots"),
            vip_channel_enabled=is_fast,
            instance_name="root",
        )
        nobody = ClientSettings((names.address,), vip_channel_enabled=is_fast, instance_name="nobody")
        with Admin(root) as admin, Producer(root, "G") as producer, Producer(nobody, "N") as stranger:
            queue = producer.send(Message("Topic", b"body")).queue
            with pytest.raises(ClientError, match="username cannot be null"):
                stranger.send(Message("Topic", b"stranger's"))
            assert admin.max_offset(queue) == 1
            with Admin(nobody) as unsigned, pytest.raises(ClientError, match="username cannot be null"):
                unsigned.delete_topic("Topic")
            assert "Topic" in broker.broker.parts.store.topics
            admin.delete_topic("Topic")
            assert "Topic" not in broker.broker.parts.store.topics
