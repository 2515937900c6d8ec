"""What clients have said before they went is done, and leaves nothing of them: no client, no pull that waits, no broker's name."""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from spark_mq.broker.broker import Broker
from spark_mq.broker_server.server import RunningBroker
from spark_mq.client.admin import Admin
from spark_mq.client.calls import make_call
from spark_mq.client.message import Message
from spark_mq.client.producer import Producer
from spark_mq.client.settings import ClientSettings
from spark_mq.namesrv.server import RunningNameServer
from spark_mq.remoting import RemotingCommand, RequestCode, encode_frame, make_request, write_body, write_header
from spark_mq.remoting.consumers import ConsumerData, HeartbeatData, ProducerData, UpdateConsumerOffsetRequest
from spark_mq.remoting.messages import PullMessageRequest
from spark_mq.remoting.routes import RegisterBrokerRequest
from spark_mq.remoting_server import channel
from spark_mq.remoting_server.peer import Peer
from spark_mq.remoting_server.server import RemotingServer
from tests.broker_server.test_running_broker import running
from tests.namesrv.asking import registered
from tests.support.java_broker import free_ports, wait_until
from tests.support.own_servers import our_name_server

LIMIT_SECONDS = 30


def frames(commands: Sequence[RemotingCommand]) -> bytes:
    numbered = (command._replace(opaque=number) for number, command in enumerate(commands))
    return b"".join(bytes(piece) for command in numbered for piece in encode_frame(command))


def beat(name: str, group: str) -> RemotingCommand:
    consumer = ConsumerData(group_name=group, consume_type="CONSUME_PASSIVELY", message_model="CLUSTERING")
    body = HeartbeatData(client_id=name, consumers=(consumer,), producers=(ProducerData(group_name="P"),))
    return make_request(RequestCode.HEART_BEAT, {}, write_body(body))


def commit(group: str, offset: int, queue_id: int) -> RemotingCommand:
    header = UpdateConsumerOffsetRequest(consumer_group=group, topic="Topic", queue_id=queue_id, commit_offset=offset)
    return make_request(RequestCode.UPDATE_CONSUMER_OFFSET, write_header(header))


def pull(group: str, offset: int, queue_id: int) -> RemotingCommand:
    header = PullMessageRequest(
        consumer_group=group,
        topic="Topic",
        queue_id=queue_id,
        queue_offset=offset,
        max_messages=32,
        sys_flag=6,
        commit_offset=0,
        suspend_timeout_ms=60_000,
        subscription="*",
        sub_version=0,
    )
    return make_call(RequestCode.PULL_MESSAGE, header)


def remoting_of(broker: RunningBroker) -> RemotingServer:
    return broker._remoting


def until_done(server: RemotingServer) -> None:
    shared = server._shared
    wait_until(lambda: not shared.channels and not shared.request_count and not shared.behind, "all is done")


def test_a_client_that_has_gone_is_not_known_by_what_it_said_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its heartbeat, its pull and its commit wait behind another request, and are done when it has gone."""
    holds, gate, begin = threading.Event(), threading.Event(), Broker.begin

    def gated(broker: Broker, connection: Any, command: RemotingCommand, now_ms: int) -> Any:
        if command.code == RequestCode.HEART_BEAT and holds.is_set():
            assert gate.wait(LIMIT_SECONDS)
        return begin(broker, connection, command, now_ms)

    monkeypatch.setattr(channel, "_UNANSWERED_MOST", 1)
    monkeypatch.setattr(Broker, "begin", gated)
    with our_name_server(tmp_path) as names, running(tmp_path / "store", free_ports(), names.address) as broker:
        with Producer(ClientSettings((names.address,)), "makers") as producer:
            sent = producer.send(Message("Topic", b"one"))
        parts, server = broker.broker.parts, remoting_of(broker)
        wait_until(lambda: not server.connection_count, "the producer has gone")
        holds.set()
        queue_id, end = sent.queue.queue_id, sent.queue_offset + 1
        said = [beat("first", "A"), beat("second", "B"), pull("B", end, queue_id), commit("B", end, queue_id)]
        with socket.create_connection(broker.address, LIMIT_SECONDS) as client:
            client.sendall(frames(said))
            wait_until(lambda: len(server._shared.behind) == 1, "they wait")
            (peer,) = server.peers
            peer.close("it has gone")
            wait_until(lambda: not server.connection_count, "it is known to have gone")
            gate.set()
            until_done(server)
        with parts.clients.lock:
            assert parts.offsets.offset("B", "Topic", queue_id) == end
            assert not parts.clients.consumers.groups
            assert not parts.clients.producers.groups
        with parts.pulls.held_lock:
            assert len(parts.pulls.held) == 0
        assert not broker._peers


def test_a_broker_that_has_gone_is_not_registered_by_what_it_said_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is gone when its first request is answered, and its registration comes behind."""
    header = RegisterBrokerRequest(
        broker_name="b",
        broker_address="127.0.0.1:1",
        cluster_name="C",
        ha_server_address="127.0.0.1:2",
        broker_id=0,
    )
    said = make_request(RequestCode.REGISTER_BROKER, write_header(header), write_body(registered(("T", "U"))))
    answer, answered = RunningNameServer._answer, []

    def closing(running: RunningNameServer, request: RemotingCommand, peer: Peer) -> RemotingCommand:
        if not answered:
            peer.close("it has gone")
        answered.append(request.code)
        return answer(running, request, peer)

    monkeypatch.setattr(channel, "_SHARE", 1)
    monkeypatch.setattr(RunningNameServer, "_answer", closing)
    with our_name_server(tmp_path) as names:
        host, port = names.address.split(":")
        with socket.create_connection((host, int(port)), LIMIT_SECONDS) as client:
            client.sendall(frames([make_request(RequestCode.GET_BROKER_CLUSTER_INFO), said]))
            wait_until(lambda: len(answered) == 2, "both are answered")
        until_done(names.running._remoting)
        with Admin(ClientSettings((names.address,))) as admin:
            wait_until(lambda: not admin.cluster_info().broker_address_table, "its name is free")
    assert answered[1] == RequestCode.REGISTER_BROKER
