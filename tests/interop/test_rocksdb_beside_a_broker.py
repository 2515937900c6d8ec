"""Beside a running Apache broker whose consume queues lie in RocksDB: its own client is the judge, and it is not disturbed.

The broker keeps new entries in memory, so what RocksDB's files lack comes from the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from storage import MessageStore, open_store
from storage.queues import derived
from tests.storage.test_version_stores import expected, lines, read_all
from tests.support.java_broker import Oracle, RunningBroker

pytestmark = [pytest.mark.interop, pytest.mark.slow]

TOPICS = ("TopicA", "TopicB")


@pytest.fixture(scope="module")
def name_server(oracle: Oracle) -> Iterator[str]:
    with oracle.namesrv() as address:
        yield address


@pytest.mark.parametrize("most_kept", [1 << 20, 50], ids=["", "RocksDB opened again"])
def test_what_a_running_broker_serves_is_read_beside_it(
    most_kept: int, oracle: Oracle, name_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(derived, "_MOST_KEPT", most_kept)
    root = tmp_path / "store"
    with oracle.broker(root, name_server, storeType="defaultRocksDB") as broker:
        oracle.send(tmp_path / "first.jsonl", broker, "TopicA", queues=3, count=90)
        oracle.send(tmp_path / "second.jsonl", broker, "TopicB", queues=1, count=20, batch=5)
    with oracle.broker(root, name_server, storeType="defaultRocksDB") as broker, open_store(root) as store:
        oracle.send(tmp_path / "third.jsonl", broker, "TopicA", queues=3, count=60, seed=2)
        assert_same(store, oracle, broker, tmp_path / "served.jsonl")
        before = {path.name for path in (root / "consumequeue").iterdir()}
        assert {"CURRENT", "LOCK"} <= before
        assert "rocksdict-config.json" not in before
        oracle.send(tmp_path / "fourth.jsonl", broker, "TopicB", queues=1, count=70, seed=3)
        assert_same(store, oracle, broker, tmp_path / "served-again.jsonl")
        broker.kill()
        rows = {topic: read_all(store, topic) for topic in TOPICS}
    with open_store(root) as store:
        assert {topic: read_all(store, topic) for topic in TOPICS} == rows
    with oracle.broker(root, name_server, storeType="defaultRocksDB") as broker, open_store(root) as store:
        assert_same(store, oracle, broker, tmp_path / "served-at-last.jsonl")
        assert sum(map(len, rows.values())) == 240


def assert_same(store: MessageStore, oracle: Oracle, broker: RunningBroker, out: Path) -> None:
    oracle.consume_all(out, broker, TOPICS)
    store.refresh()
    assert {topic: read_all(store, topic) for topic in TOPICS} == expected(lines(out))
