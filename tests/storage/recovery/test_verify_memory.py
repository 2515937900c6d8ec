"""What an audit holds in memory follows what is in the store, not how long its preallocated files are."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from jobs.verify_store import verify_store
from storage import StoreConfig, open_store
from storage.settings.nouns import CommitLogConfig, ConsumeQueueConfig, IndexConfig

QUEUES = 500
QUEUE_FILE = 6_000_000  # a broker's: a byte for each entry that could stand there would be 150 MB
MOST_BYTES = 30 << 20


def test_queues_of_one_message_each_take_little_memory(tmp_path: Path) -> None:
    conf = {"maxHashSlotNum": 1_000, "maxIndexNum": 10_000}
    config = replace(
        StoreConfig(),
        commit_log=CommitLogConfig(mapped_file_size_commit_log=4 << 20),
        consume_queue=ConsumeQueueConfig(mapped_file_size_consume_queue=QUEUE_FILE),
        index=IndexConfig(max_hash_slot_num=1_000, max_index_num=10_000),
    )
    (tmp_path / "broker.conf").write_text("".join(f"{name}={value}\n" for name, value in conf.items()))
    root = tmp_path / "store"
    with open_store(root, config=config, read_only=False, create=True) as store:
        queue_ids = np.arange(QUEUES, dtype=np.int32)
        rows = pa.record_batch({"topic": ["T"] * QUEUES, "queue_id": queue_ids, "body": [b"x"] * QUEUES})
        store.put_batch(rows, queue_count=QUEUES)
    tracemalloc.start()
    try:
        report = verify_store(str(root))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (report.findings, report.queue_entries) == ((), QUEUES)
    assert peak < MOST_BYTES
