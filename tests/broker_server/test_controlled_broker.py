"""Brokers in controller mode under our controller: who is master, who is in sync, and what a change of it leaves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest

from spark_mq.broker_server.controlled import ControlledBroker
from spark_mq.broker_server.settings import read_configuration
from spark_mq.client.errors import ClientError
from spark_mq.client.message import Message
from spark_mq.client.producer import Producer
from spark_mq.client.settings import ClientSettings
from spark_mq.testing.servers import OwnLoop
from storage import open_store
from storage.ha.follower import FollowedLog
from tests.support.java_broker import free_ports, wait_until
from tests.support.own_servers import OurController, our_controller, our_name_server

pytestmark = pytest.mark.slow


def _conf(root: Path, port: int, name_server: str, controller: OurController) -> bytes:
    return (
        f"brokerName=b\nlistenPort={port}\nstorePathRootDir={root}\nnamesrvAddr={name_server}\nbrokerIP1=127.0.0.1\n"
        f"enableControllerMode=true\ncontrollerAddr={controller.address}\nallAckInSyncStateSet=true\ninSyncReplicas=2\n"
        "mappedFileSizeCommitLog=1048576\nwaitTimeMillsInSendQueue=20000\n"
    ).encode()


@contextmanager
def controlled(root: Path, port: int, name_server: str, controller: OurController) -> Iterator[ControlledBroker]:
    """One broker of the group `b`."""
    loop = OwnLoop()
    try:
        configuration = read_configuration(_conf(root, port, name_server, controller), None, {})
        broker = loop.run(ControlledBroker.start(configuration))
        try:
            yield broker
        finally:
            loop.run(broker.close())
    finally:
        loop.close()


def in_sync(controller: OurController) -> set[int]:
    found = controller.group("b")
    return set() if found is None else set(found.sync_state_set)


def knows(broker: ControlledBroker, topic: str) -> bool:
    return broker.running is not None and topic in broker.running.broker.parts.store.topics


def await_shown(*brokers: ControlledBroker) -> None:
    """Until readers of each see all of the master's log."""

    def is_shown() -> bool:
        found = [broker.running.position() for broker in brokers if broker.running is not None]
        ends = {each.max_offset for each in found}
        return len(found) == len(brokers) and ends == {each.confirm_offset for each in found} and len(ends) == 1

    wait_until(is_shown, "all is confirmed", 20)


def send(producer: Producer, body: bytes) -> None:
    """Until it is acknowledged."""

    def is_sent() -> bool:
        try:
            return producer.send(Message("Topic", body)).status.name == "SEND_OK"
        except ClientError:
            return False

    wait_until(is_sent, f"{body!r} is sent", 30)


def test_the_other_one_is_master_when_the_master_ends_and_has_what_was_acknowledged(tmp_path: Path) -> None:
    with our_name_server(tmp_path) as names, our_controller(tmp_path) as controller:
        settings = ClientSettings((names.address,), poll_name_server_interval_ms=500)
        ports = free_ports(), free_ports()
        with Producer(settings, "G") as producer, ExitStack() as later:
            with controlled(tmp_path / "1", ports[0], names.address, controller) as one:
                wait_until(lambda: in_sync(controller) == {1}, "the first one is master", 20)
                send(producer, b"alone")
                two = later.enter_context(controlled(tmp_path / "2", ports[1], names.address, controller))
                wait_until(lambda: in_sync(controller) == {1, 2}, "the second one is in sync", 30)
                wait_until(lambda: knows(two, "Topic"), "the second one knows the topic", 30)
                for number in range(20):
                    send(producer, b"both %d" % number)
                assert one.role is not None
                assert one.role.is_master
            wait_until(lambda: in_sync(controller) == {2}, "the second one is master", 30)
            send(producer, b"after")
            assert two.role is not None
            assert two.role.term.epoch == 2
            with controlled(tmp_path / "1", ports[0], names.address, controller) as one:
                wait_until(lambda: in_sync(controller) == {1, 2}, "the first one is back", 30)
                send(producer, b"both again")
                await_shown(one, two)
    ends = []
    for number in (1, 2):
        with open_store(tmp_path / str(number)) as store:
            found = [each.body for queue in range(4) for each in store.get("Topic", queue, 0, 32).messages]
            assert {b"alone", b"after", b"both again", *(b"both %d" % each for each in range(20))} <= set(found)
            ends.append(store.log_end)
        assert (tmp_path / str(number) / "epochFileCheckpoint").read_text("ascii").splitlines()[2] == "1-0"
    assert ends[0] == ends[1]


def test_what_a_deposed_master_has_alone_is_cut_when_it_comes_back(tmp_path: Path) -> None:
    with our_name_server(tmp_path) as names, our_controller(tmp_path) as controller:
        settings = ClientSettings((names.address,), poll_name_server_interval_ms=500)
        ports = free_ports(), free_ports()
        with Producer(settings, "G") as producer, ExitStack() as later:
            with controlled(tmp_path / "1", ports[0], names.address, controller):
                wait_until(lambda: in_sync(controller) == {1}, "the first one is master", 20)
                two = later.enter_context(controlled(tmp_path / "2", ports[1], names.address, controller))
                wait_until(lambda: in_sync(controller) == {1, 2}, "the second one is in sync", 30)
                send(producer, b"both")
                wait_until(lambda: knows(two, "Topic"), "the second one knows the topic", 30)
            wait_until(lambda: in_sync(controller) == {2}, "the second one is master", 30)
            config = read_configuration(_conf(tmp_path / "1", ports[0], names.address, controller), None, {}).store
            with open_store(tmp_path / "1", config=config, read_only=False, writes_as="controlled") as store:
                agreed = store.log_end
                for number in range(9):  # as if they had come before it was killed, and had not been copied
                    store.put("Topic", b"mine %d" % number)
            send(producer, b"theirs")
            with controlled(tmp_path / "1", ports[0], names.address, controller) as one:
                wait_until(lambda: in_sync(controller) == {1, 2}, "the first one is back", 30)
                send(producer, b"both again")
                await_shown(one, two)
            assert two.role is not None
            assert agreed > 0
    contents = []
    for number in (1, 2):
        with open_store(tmp_path / str(number)) as store:
            queues = [[each.body for each in store.get("Topic", queue, 0, 32).messages] for queue in range(4)]
            contents.append(queues)
    assert contents[0] == contents[1]
    assert {b"both", b"theirs", b"both again"} == {body for queue in contents[0] for body in queue}
    logs = [(tmp_path / str(number) / "commitlog" / f"{0:020}").read_bytes() for number in (1, 2)]
    assert logs[0] == logs[1]


def read(root: Path) -> set[bytes]:
    """What somebody is served who opens the store now."""
    with open_store(root) as store:
        return {each.body for queue in range(4) for each in store.get("Topic", queue, 0, 32).messages}


def test_nobody_reads_what_not_all_in_sync_have(tmp_path: Path) -> None:
    with our_name_server(tmp_path) as names, our_controller(tmp_path) as controller:
        settings = ClientSettings((names.address,), poll_name_server_interval_ms=500)
        ports = free_ports(), free_ports()
        with (
            controlled(tmp_path / "1", ports[0], names.address, controller) as one,
            Producer(settings, "G") as producer,
        ):
            wait_until(lambda: in_sync(controller) == {1}, "the first one is master", 20)
            send(producer, b"alone")
            with controlled(tmp_path / "2", ports[1], names.address, controller) as two:
                wait_until(lambda: in_sync(controller) == {1, 2}, "the second one is in sync", 30)
                await_shown(one, two)
                with patch.object(FollowedLog, "settle", lambda log, confirmed=None: log.end):  # it keeps nothing
                    assert (
                        producer.send(Message("Topic", b"mine"), timeout_ms=9_000).status.name == "FLUSH_SLAVE_TIMEOUT"
                    )
                    assert read(tmp_path / "1") == {b"alone"}
                send(producer, b"both")
                await_shown(one, two)
                everything = {b"alone", b"mine", b"both"}
                wait_until(lambda: read(tmp_path / "1") == read(tmp_path / "2") == everything, "all is shown", 30)
