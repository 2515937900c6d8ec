"""What the Apache broker says in the conversation is what `tests/broker/test_conversation.py` holds a `Broker` to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.broker.conversation import SETTINGS, Conversation, as_text
from tests.broker.peers import SocketPeers
from tests.broker.test_conversation import APACHES
from tests.support.java_broker import Oracle

pytestmark = [pytest.mark.interop, pytest.mark.slow]


def test_the_apache_broker_says_what_the_vector_holds(oracle: Oracle, tmp_path: Path) -> None:
    with oracle.namesrv() as name_server, oracle.broker(tmp_path / "java", name_server, **SETTINGS) as running:
        peers = SocketPeers(running.address)
        said = Conversation(peers, int(running.address.partition(":")[2])).all()
        peers.close()
    if os.environ.get("SPARK_MQ_RECORD"):
        APACHES.write_text(as_text(said), "utf-8")
    assert as_text(said).splitlines() == APACHES.read_text("utf-8").splitlines()
