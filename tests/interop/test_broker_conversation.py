"""The same conversation with the Apache broker and with a `Broker`: answers compared field by field."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from spark_mq.broker.broker import Broker
from storage import open_store
from storage.service.put_service import PutService
from storage.settings.load import parse_config
from tests.broker.conversation import SETTINGS, Conversation
from tests.broker.peers import BrokerPeers, SocketPeers
from tests.support.java_broker import Oracle

pytestmark = [pytest.mark.interop, pytest.mark.slow]


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_both_brokers_say_the_same(oracle: Oracle, tmp_path: Path) -> None:
    with oracle.namesrv() as name_server, oracle.broker(tmp_path / "java", name_server, **SETTINGS) as running:
        peers = SocketPeers(running.address)
        port = int(running.address.partition(":")[2])
        said = Conversation(peers, port).all()
        peers.close()
        conf = running.conf.read_text("utf-8")
    root = tmp_path / "ours"
    config = parse_config(conf.replace(str(tmp_path / "java"), str(root)).encode())
    store = open_store(root, config=config, read_only=False, create=True)
    with PutService(store) as service, Broker(service) as broker:
        ours = Conversation(BrokerPeers(broker, now_ms), port).all()
    differences = [(theirs, mine) for theirs, mine in zip(said, ours, strict=True) if theirs != mine]
    assert not differences, "\n".join(f"{theirs}\n  ours: {mine.said}" for theirs, mine in differences)
