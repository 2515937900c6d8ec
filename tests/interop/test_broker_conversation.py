"""What the Apache broker says in the conversation is what `tests/broker/test_conversation.py` holds a `Broker` to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.broker.conversation import SETTINGS, Conversation, as_text
from tests.broker.peers import SocketPeers
from tests.broker.test_conversation import APACHES, said_by
from tests.support.java_broker import Oracle

pytestmark = [pytest.mark.interop, pytest.mark.slow]


def test_the_apache_broker_says_what_the_vector_holds(oracle: Oracle, tmp_path: Path) -> None:
    with oracle.namesrv() as name_server, oracle.broker(tmp_path / "java", name_server, **SETTINGS) as running:
        peers = SocketPeers(running.address)
        said = Conversation(peers, int(running.address.partition(":")[2])).all()
        peers.close()
    lines = as_text(said).splitlines()
    if os.environ.get("SPARK_MQ_RECORD"):
        record(oracle.version, lines)
    assert lines == said_by(oracle.version)


def record(release: str, lines: list[str]) -> None:
    if release == "5.3.3":
        APACHES.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    else:
        changed = [line for line, older in zip(lines, said_by("5.3.3"), strict=True) if line != older]
        APACHES.with_name(f"conversation-{release}.jsonl").write_text("".join(f"{line}\n" for line in changed), "utf-8")
