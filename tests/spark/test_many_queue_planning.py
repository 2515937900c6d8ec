"""What planning asks of a store of many queues: each look compares all positions with the log at once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_mq.source.partition_reader import QueuePartition
from storage import MessageStore, StoreConfig, open_store
from storage.format.record_batch import Records
from storage.log.commit_log import CommitLog
from storage.settings.nouns import ConsumeQueueConfig

from .in_process import open_stream, rows_between

pytestmark = pytest.mark.slow

TOPICS = 40
QUEUES_A_TOPIC = 5
QUEUES = TOPICS * QUEUES_A_TOPIC
CONFIG = replace(StoreConfig.tiny(), consume_queue=ConsumeQueueConfig(mapped_file_size_consume_queue=6_000))


def put_into_all(store: MessageStore) -> None:
    topics = np.repeat([f"Topic{number:02d}" for number in range(TOPICS)], QUEUES_A_TOPIC)
    queue_ids = np.tile(np.arange(QUEUES_A_TOPIC, dtype=np.int32), TOPICS)
    columns = {"topic": topics, "queue_id": queue_ids, "body": [b"body"] * QUEUES}
    store.put_batch(pa.record_batch(columns), queue_count=QUEUES_A_TOPIC)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    place = tmp_path / "broker-a"
    with open_store(place, config=CONFIG, read_only=False, create=True) as store:
        put_into_all(store)
    return place


def test_a_plan_looks_into_the_log_a_few_times_however_many_queues_there_are(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: Counter[str] = Counter()
    records = CommitLog.records

    def counted(log: CommitLog, *asked: Any) -> Iterator[tuple[slice, Records]]:
        looks["log"] += 1
        return records(log, *asked)

    reader = open_stream(root, subscribePattern="Topic.*", startingOffsets="earliest")
    limit = reader.getDefaultReadLimit()
    start = reader.initialOffset()
    monkeypatch.setattr(CommitLog, "records", counted)
    end = json.loads(json.dumps(reader.latestOffset(start, limit)))
    reader.reportLatestOffset()
    assert len(rows_between(reader, start, end)) == QUEUES
    looks.clear()
    with open_store(root, config=CONFIG, read_only=False) as store:
        put_into_all(store)
    looks.clear()
    later = json.loads(json.dumps(reader.latestOffset(end, limit)))
    reader.reportLatestOffset()
    reader.partitions(end, later)
    assert looks["log"] < 40
    assert len(rows_between(reader, end, later)) == QUEUES


def test_many_small_queues_share_partitions(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = open_stream(root, subscribePattern="Topic.*", startingOffsets="earliest")
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert len(reader.partitions(start, end)) == QUEUES
    monkeypatch.setattr("spark_mq.source.partition_reader.MOST_PARTITIONS", 10)
    parts = [part for part in reader.partitions(start, end) if isinstance(part, QueuePartition)]
    assert len(parts) <= 10
    queues = [split.queue for part in parts for split in part.splits]
    assert len(queues) == QUEUES
    assert queues == sorted(queues)
    read = [batch for part in parts for batch in reader.read(part)]
    assert sum(batch.num_rows for batch in read) == QUEUES
