"""A store whose consume queues lie in RocksDB as a Spark source: what a broker served, as a batch and as a stream that is restarted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_mq.conditions import SparkMqError
from tests.storage.test_version_stores import expected, lines
from tests.support.fixture_stores import unpack_left

from .in_process import next_batch, open_stream, read_batch
from .streams import Stream

pytestmark = pytest.mark.slow

NAMES = [f"{release}{end}" for release in ("5.3.3", "5.5.0") for end in ("", "-killed", "-behind")]
Row = tuple[str, int, int, str]


def served(root: Path) -> list[Row]:
    """(topic, queue id, queue offset, offset message id) of every message that the broker served."""
    topics = expected(lines(root.parent / "served.jsonl"))
    return sorted((topic, *place, str(row[0])) for topic, rows in topics.items() for place, row in rows.items())


def options_of(root: Path, **more: str) -> dict[str, str]:
    topics = sorted({row[0] for row in served(root)})
    return {"subscribe": ",".join(topics), "startingOffsets": "earliest", **more}


def shown(rows: list[dict[str, Any]]) -> list[Row]:
    return sorted((row["topic"], row["queue_id"], row["queue_offset"], row["msg_id"]) for row in rows)


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_read_gives_what_the_broker_served(name: str, tmp_path: Path) -> None:
    root = unpack_left("rocksdb", name, tmp_path)
    assert shown(read_batch(root, **options_of(root))) == served(root)


@pytest.mark.parametrize("name", NAMES)
def test_a_stream_that_is_restarted_in_the_middle_gives_each_message_once(name: str, tmp_path: Path) -> None:
    root = unpack_left("rocksdb", name, tmp_path)
    options = options_of(root, maxOffsetsPerTrigger="70")
    position = open_stream(root, **options).initialOffset()
    rows: list[dict[str, Any]] = []
    for _ in range(20):  # a new reader each time
        position, new = next_batch(open_stream(root, **options), json.loads(json.dumps(position)))
        if not new:
            break
        rows += new
    assert len(rows) > 200
    assert shown(rows) == served(root)


def test_a_stream_follows_a_store_that_a_broker_goes_on_with(tmp_path: Path) -> None:
    """The killed store, as a broker beside which the stream runs has it before and after it writes more."""
    root, later = (unpack_left("rocksdb", name, tmp_path) for name in ("5.5.0-killed", "5.5.0"))
    options = options_of(root)
    reader = open_stream(root, **options)
    position, first = next_batch(reader, reader.initialOffset())
    assert shown(first) == served(root)
    for path in sorted((later / "commitlog").iterdir()):
        content = path.read_bytes()
        (root / "commitlog" / path.name).write_bytes(content)
    position, second = next_batch(reader, position)
    wanted = set(served(later)) - set(served(root))
    assert wanted
    assert set(shown(second)) == wanted


@pytest.mark.spark
def test_spark_reads_it_with_its_own_tasks(spark: SparkSession, tmp_path: Path) -> None:
    root = unpack_left("rocksdb", "5.5.0-behind", tmp_path)
    rows = spark.read.format("spark_mq").options(**options_of(root)).load(str(root))
    found = sorted((row.topic, row.queue_id, row.queue_offset) for row in rows.collect())
    assert found == [row[:3] for row in served(root)]
    stream = Stream(spark, root, tmp_path / "checkpoint", options_of(root, maxOffsetsPerTrigger="90"))
    stream.run()
    assert len(stream.batches) > 1
    stream.run()
    places = sorted((row.topic, row.queue_id, row.queue_offset) for rows in stream.batches.values() for row in rows)
    assert places == found


def test_offsets_are_not_committed_into_it(tmp_path: Path) -> None:
    root = unpack_left("rocksdb", "5.3.3", tmp_path)
    (root.parent / "broker.conf").unlink()
    with pytest.raises(SparkMqError, match=r"commitOffsets.*RocksDB"):
        open_stream(root, **options_of(root, consumerGroup="Ours", commitOffsets="true")).initialOffset()
