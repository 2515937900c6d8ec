"""A store with a little of everything: two queues of orders, a group that is behind, three dead letters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from starlette.testclient import TestClient

from storage import open_store
from storage.rules.inner_messages import InnerMessage
from storage.tables.consumer_groups import ConsumerOffsets
from storage.tables.document import OFFSETS_FILE
from storage.tables.topics import TopicConfig

BASE = "http://127.0.0.1:9877"
DEAD = "%DLQ%billing"
SETTINGS = {
    "brokerName": "broker-a",
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 20_000,
    "maxHashSlotNum": 1_000,
    "maxIndexNum": 4_000,
}
ORDERS = 120
"""Messages of topic Orders, in two queues."""

OpenConsole = Callable[..., TestClient]


def make_store(directory: Path) -> Path:
    """Orders of two queues, group billing behind in them, with three dead letters; returns ROOT."""
    root = directory / "store"
    (directory / "broker.conf").write_text("".join(f"{name}={value}\n" for name, value in SETTINGS.items()), "utf-8")
    with open_store(root, read_only=False, create=True) as store:
        store.save_topic(TopicConfig("Orders", 2, 2))
        for number in range(ORDERS):
            store.put(
                "Orders",
                b'{"order": %d, "price": 1.10}' % number,
                queue_id=number % 2,
                keys=f"order-{number}",
                tags="paid" if number % 10 else "open",
            )
        store.put_inner([dead_letter(number) for number in range(3)])
        offsets = ConsumerOffsets().with_offsets("billing", {("Orders", 0): 40, ("Orders", 1): 60}, now_ms=1)
        store.save_state(OFFSETS_FILE, offsets.to_text())
    return root


def dead_letter(number: int) -> InnerMessage:
    properties = {"UNIQ_KEY": f"DEAD{number}", "KEYS": f"order-{number}", "RETRY_TOPIC": "Orders", "REAL_QID": "0"}
    return InnerMessage(
        topic=DEAD, queue_id=0, body=b"dead %d" % number, properties=properties, born_time_ms=1, reconsume_times=16
    )
