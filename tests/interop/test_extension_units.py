"""Extension units (`enableConsumeQueueExt`) that we wrote: a broker serves them by tag, goes on, and rebuilds them to the byte.

Java: ConsumeQueueExt, ConsumeQueue.putMessagePositionInfoWrapper.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from jobs.rebuild_queues import rebuild_queues
from jobs.verify_store import verify_store
from storage import open_store
from storage.format.consume_queue import ENTRY_SIZE, decode_entries, is_ext_address
from tests.support.fixture_stores import copy_store
from tests.support.java_broker import Oracle, free_ports, wait_until

pytestmark = [pytest.mark.interop, pytest.mark.slow]

EXT_FILE = 1_024  # 51 units
SETTINGS: dict[str, Any] = {
    "commitlog_file_size_bytes": 1 << 20,
    "consume_queue_file_size_bytes": 2_000,
    "enableConsumeQueueExt": "true",
    "mappedFileSizeConsumeQueueExt": EXT_FILE,
    "timerWheelEnable": "false",
}
TAGS = ("TagA", "TagB", None)


@pytest.mark.long
def test_a_broker_serves_our_units_by_tag_and_rebuilds_them_to_the_byte(oracle: Oracle, tmp_path: Path) -> None:
    store, port = tmp_path / "store", free_ports()
    conf = tmp_path / "broker.conf"
    with oracle.namesrv() as name_server:
        conf.write_text(oracle.broker_conf(store, name_server, port, **SETTINGS), "utf-8")
        put(store, conf, 500)
        with oracle.broker(store, name_server, port=port, **SETTINGS) as broker:
            served = oracle.consume_all(tmp_path / "served.jsonl", broker, ["Units"], tags="TagB", lookUps=0)
            sent = oracle.send(tmp_path / "sent.jsonl", broker, "Units", count=60)
        found = [line for line in served if line["type"] == "message"]
        assert {line["tags"] for line in found} == {"TagB"}
        assert len(found) == sum(TAGS[number % 3] == "TagB" for number in range(500))
        assert len(sent) == 60
        put(store, conf, 70)
        assert all_have_units(store)
        assert verify_store(str(store), conf=str(conf)).findings == ()

        rebuilt = tmp_path / "rebuilt"
        copy_store(store, rebuilt)
        for name in ("consumequeue", "consumequeue_ext"):
            shutil.rmtree(rebuilt / name)
        with oracle.broker(rebuilt, name_server, **SETTINGS):
            expected = queue_files(store).keys()
            wait_until(lambda: queue_files(rebuilt).keys() >= expected, "a broker to dispatch its log")
            time.sleep(2)  # its last entries are written when its files are there; it flushes them when it stops
    rebuild_queues(str(store), conf=str(conf))
    ours, theirs = queue_files(store), queue_files(rebuilt)
    assert ours == {path: theirs[path] for path in ours}
    assert sum("consumequeue_ext/" in path for path in ours) > 10


def put(store: Path, conf: Path, count: int) -> None:
    tags = [TAGS[number % 3] for number in range(count)]
    queue_ids = pa.array([number // 3 % 2 for number in range(count)], pa.int32())
    columns = {"topic": ["Units"] * count, "body": [b"%d" % number for number in range(count)], "queue_id": queue_ids}
    with open_store(store, config=str(conf), read_only=False, create=True) as opened:
        opened.writer.topic_entries.ensure({"Units": 4})
        opened.put_batch(pa.table(columns | {"tags": pa.array(tags, pa.string())}))


def queue_files(store: Path) -> dict[str, bytes]:
    """Files of the queues of our topic and of their units, by path."""
    return {str(path.relative_to(store)): path.read_bytes() for path in store.glob("consumequeue*/Units/*/*")}


def all_have_units(store: Path) -> bool:
    """Whether each entry of our topic names a unit: the broker's entries and ours."""
    named = []
    for path, content in queue_files(store).items():
        if path.startswith("consumequeue/"):
            entries = decode_entries(content[: len(content) // ENTRY_SIZE * ENTRY_SIZE])
            entries = entries[entries["size_bytes"] > 0]
            named += is_ext_address(entries["tags_code"]).tolist()
    return len(named) == 630 and all(named)
