"""A `Broker` says what the Apache broker said in the same conversation, field by field: `tests/vectors/broker/how_made.md`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spark_mq.broker.broker import Broker
from spark_mq.broker.request_table import REQUEST_TABLE
from storage import open_store
from storage.service.put_service import PutService
from storage.settings.load import parse_config
from tests.broker.conversation import BROKER, SETTINGS, Conversation, Exchange, as_text
from tests.broker.peers import BrokerPeers, FakeClock
from tests.support.places import VECTORS

APACHES = VECTORS / "broker" / "conversation.jsonl"
PORT = 10_911
CONF = {
    "brokerClusterName": "LabCluster",
    "brokerName": BROKER,
    "brokerIP1": "127.0.0.1",
    "listenPort": str(PORT),
    "mappedFileSizeCommitLog": str(1 << 20),
    "mappedFileSizeConsumeQueue": "20000",
    "maxHashSlotNum": "1000",
    "maxIndexNum": "2000",
    "defaultTopicQueueNums": "4",
    "messageDelayLevel": "1s 2s 3s 4s 5s 6s 7s 8s 9s 10s 20s 30s 1m 2m 5m 10m 1h 2h",
    "transactionTimeOut": "2000",
} | SETTINGS
AS_IN_5_5 = {"groups of a subscribed topic (300)", "system topics (305)"}
"""Steps in which ours says what newer releases say, whatever the release is."""
SINCE = {"5.4.0": "5.4.0", "5.5.0": "5.4.0"}
"""The first release that says all that this one says."""
NOT_ASKED = {28, 43, 45, *range(50, 54), 60, 61, 323, 324, 329, 402, 513, 906, 1007, *range(3001, 3011)}
"""Requests of the table that the conversation has no step for."""


def said_by(release: str) -> list[str]:
    """The lines of what a broker of that release said: those of 5.3.3, and those in which a later one differs."""
    lines, later = (
        APACHES.read_text("utf-8").splitlines(),
        APACHES.with_name(f"conversation-{SINCE.get(release)}.jsonl"),
    )
    changed = {json.loads(line)[0]: line for line in later.read_text("utf-8").splitlines()} if later.exists() else {}
    return [changed.get(json.loads(line)[0], line) for line in lines]


def differences(theirs: object, ours: object, place: str = "") -> list[str]:
    """Where two parts of an answer differ."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        keys = theirs.keys() | ours.keys()
        return [found for key in keys for found in differences(theirs.get(key), ours.get(key), f"{place}.{key}")]
    if isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        pairs = enumerate(zip(theirs, ours, strict=True))
        return [found for number, pair in pairs for found in differences(*pair, f"{place}[{number}]")]
    return [] if theirs == ours else [f"{place}: theirs {theirs!r:.200}, ours {ours!r:.200}"]


@pytest.mark.slow
def test_a_broker_says_what_the_apache_broker_says(tmp_path: Path) -> None:
    config = parse_config("".join(f"{name}={value}\n" for name, value in CONF.items()).encode())
    clock = FakeClock()
    store = open_store(tmp_path / "store", config=config, read_only=False, create=True, clock=clock)
    with PutService(store, starts_duties=False) as service, Broker(service, clock=clock, steady=clock) as broker:
        ours = Conversation(BrokerPeers(broker, clock), PORT).all()
    theirs = [
        Exchange(*json.loads(newer if json.loads(line)[0] in AS_IN_5_5 else line))
        for line, newer in zip(said_by("5.3.3"), said_by("5.5.0"), strict=True)
    ]
    mine = [Exchange(*json.loads(line)) for line in as_text(ours).splitlines()]
    assert [exchange.step for exchange in mine] == [exchange.step for exchange in theirs]
    pairs = zip(theirs, mine, strict=True)
    found = [(their.step, *differences(their.said, my.said)) for their, my in pairs if their.said != my.said]
    assert found == []


def test_the_conversation_asks_for_most_of_what_a_broker_answers() -> None:
    steps = [json.loads(line)[0] for line in APACHES.read_text("utf-8").splitlines()]
    asked = {int(step.rpartition("(")[2].rstrip(")")) for step in steps if step.endswith(")") and "(" in step}
    assert set(REQUEST_TABLE) - asked == NOT_ASKED
