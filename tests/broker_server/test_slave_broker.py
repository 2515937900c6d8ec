"""A broker with brokerRole=SLAVE: it follows its master, refuses sends, serves pulls where it may, and may become a master later."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_mq.broker_server.opening import epoch_cache, sent_ha_address
from spark_mq.broker_server.server import RunningBroker
from spark_mq.broker_server.settings import read_configuration
from spark_mq.client.admin import Admin
from spark_mq.client.message import Message
from spark_mq.client.producer import Producer
from spark_mq.client.settings import ClientSettings
from storage import open_store
from storage.errors import ConfigurationError
from storage.format.replication import EpochEntry
from tests.broker_server.test_running_broker import running
from tests.support.java_broker import free_ports, wait_until
from tests.support.own_servers import our_name_server

SLAVE = "brokerRole=SLAVE\nbrokerId=1\n"


def bodies(broker: RunningBroker, topic: str) -> list[bytes]:
    """Of the first queue that has any."""
    with open_store(broker.broker.parts.store.service.root) as store:
        found = (store.get(topic, queue_id, 0, 32).messages for queue_id in range(8))
        return next(([each.body for each in messages] for messages in found if messages), [])


@pytest.mark.slow
def test_a_slave_has_what_its_master_has_and_takes_no_sends(tmp_path: Path) -> None:
    with our_name_server(tmp_path) as names:
        settings = ClientSettings((names.address,))
        master = running(tmp_path / "master", free_ports(), names.address)
        slave = running(tmp_path / "slave", free_ports(), names.address, SLAVE + "slaveReadEnable=true\n")
        with master as first, Producer(settings, "G") as producer:
            sent = producer.send(Message("Topic", b"before"))
            with slave as second:
                producer.send(Message("Topic", b"after"), sent.queue)
                wait_until(lambda: bodies(second, "Topic") == [b"before", b"after"], "the slave has both", 20)
                wait_until(lambda: "Topic" in second.broker.parts.store.topics, "it knows the topic", 20)
                assert (
                    second.broker.parts.store.service.dispatched_end == first.broker.parts.store.service.dispatched_end
                )
                with Admin(settings) as admin:
                    (found,) = admin.cluster_info().broker_address_table.values()
                    assert set(found.broker_addresses) == {0, 1}
                assert second.broker.parts.store.is_slave
                assert first.replication is not None
                address = second.broker.parts.store.address
                with Admin(settings) as admin:
                    assert "followingTrouble" not in admin.runtime_info(address)
                    first.replication.close()
                    wait_until(lambda: "followingTrouble" in admin.runtime_info(address), "operators are told", 20)
        with running(tmp_path / "slave", free_ports(), names.address), Producer(settings, "H") as producer:
            placed = producer.send(Message("Topic", b"as master"), sent.queue)
            assert placed.queue_offset == 2


def test_settings_of_a_slave_are_judged(tmp_path: Path) -> None:
    text = "listenPort=20011\nnamesrvAddr=127.0.0.1:9876\nbrokerRole=SLAVE\n"
    assert read_configuration(f"{text}brokerId=3\n".encode(), None, {}).is_slave
    for wrong, name in (
        (text, "brokerId"),
        ("brokerRole=SLAVE\nbrokerId=1\n", "namesrvAddr"),
    ):
        with pytest.raises(ConfigurationError, match=name):
            read_configuration(wrong.encode(), None, {})


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("", "10.0.0.7:20012"),
        ("brokerIP2=192.168.1.7\n", "192.168.1.7:20012"),
        ("brokerIP2=fd00::7\nhaListenPort=30000\n", "[fd00::7]:30000"),
    ],
)
def test_slaves_are_told_the_second_address_of_a_master(said: str, told: str) -> None:
    text = f"listenPort=20011\nbindAddress=0.0.0.0\nbrokerIP1=10.0.0.7\n{said}"
    assert sent_ha_address(read_configuration(text.encode(), None, {}), "10.0.0.7") == told


def test_1007_says_where_epochs_begin_and_end() -> None:
    told = epoch_cache((EpochEntry(1, 0), EpochEntry(4, 500)), "c", "b", 2, 900)
    spans = [(each.epoch, each.start_offset, each.end_offset) for each in told.epochs or ()]
    assert spans == [(1, 0, 500), (4, 500, 2**63 - 1)]
    assert (told.broker_name, told.broker_id, told.max_offset) == ("b", 2, 900)
