"""A message whose body is not what its record says: one that a producer called compressed, or one that a disk has changed.

FAILFAST names it; PERMISSIVE makes it a row that says what is wrong.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from spark_mq.conditions import ConvertedError, OptionError
from spark_mq.data_source import SparkMqDataSource
from storage.format.record import COMPRESSED, COMPRESSION_LZ4, COMPRESSION_ZSTD

from ..support.store_builder import StoreBuilder
from .conftest import ReadStore
from .in_process import next_batch, open_stream, read_batch

pytestmark = pytest.mark.slow

UNKNOWN_TYPE = 0x400
FORGED = {
    1: ("zlib", COMPRESSED, "incorrect header check"),
    2: ("lz4", COMPRESSED | COMPRESSION_LZ4, "LZ4"),
    4: ("zstd", COMPRESSED | COMPRESSION_ZSTD, "zstd"),
    5: ("unknown", COMPRESSED | UNKNOWN_TYPE, "compression type 0 to 3, found 4"),
}
"""Queue offset → key, sysFlag, and what the reason speaks of."""
COUNT = 7


@pytest.fixture
def store(tmp_path: Path) -> StoreBuilder:
    """Seven messages in one queue: sound ones, a compressed one, and four that no decompressor takes."""
    store = StoreBuilder(tmp_path / "broker-a", log_file_size_bytes=512)
    for offset in range(COUNT):
        if offset in FORGED:
            key, sys_flag, _ = FORGED[offset]
            store.send("Topic", b"no such stream", sys_flag=sys_flag, keys=key, tags="Bad", queue_id=2)
        elif offset == 3:
            store.send("Topic", zlib.compress(b"sound 3"), sys_flag=COMPRESSED, queue_id=2, tags="Good")
        else:
            store.send("Topic", f"sound {offset}", queue_id=2, tags="Good")
    return store


def spoil_body(store: StoreBuilder, body: bytes) -> None:
    """In the first file of several: what opening a store walks over, it checks."""
    file = store.log_files[0]
    content = file.read_bytes()
    assert content.count(body) == 1
    file.write_bytes(content.replace(body, body.upper()))


def place_of(store: StoreBuilder, offset: int) -> int:
    rows = read_batch(store.root, topic="Topic", columns="queue_offset,commitlog_offset")
    return next(row["commitlog_offset"] for row in rows if row["queue_offset"] == offset)


def test_failfast_names_the_message_what_is_wrong_and_the_cure(store: StoreBuilder) -> None:
    place = place_of(store, 1)
    with pytest.raises(ConvertedError) as raised:
        read_batch(store.root, topic="Topic")
    text = str(raised.value)
    assert text.startswith("[SPARK_MQ_CORRUPT_RECORD] ")
    for part in (
        "offset 1 of topic Topic, queue 2, broker broker-a",
        f"byte {place} of the commit log",
        "bad body",
        "incorrect header check",
        "mode=PERMISSIVE",
        "startingOffsets",
    ):
        assert part in text, part
    assert "found Error -3" in text


def test_a_stream_says_the_same_and_passes_it_in_permissive_mode(store: StoreBuilder) -> None:
    reader = open_stream(store.root, topic="Topic", startingOffsets="earliest")
    with pytest.raises(ConvertedError, match=r"CORRUPT_RECORD\].*offset 1 of topic Topic, queue 2"):
        next_batch(reader, reader.initialOffset())
    tolerant = open_stream(store.root, topic="Topic", startingOffsets="earliest", mode="PERMISSIVE")
    end, rows = next_batch(tolerant, reader.initialOffset())
    assert [row["queue_offset"] for row in rows] == list(range(COUNT))
    assert next_batch(tolerant, end) == (end, [])


def test_permissive_gives_such_a_message_a_null_body_and_the_reason(store: StoreBuilder) -> None:
    rows = read_batch(store.root, topic="Topic", mode="permissive")
    assert list(rows[0])[-1] == "_corrupt"
    for offset, row in enumerate(rows):
        if offset in FORGED:
            key, sys_flag, reason = FORGED[offset]
            assert (row["body"], row["keys"], row["sys_flag"]) == (None, key, sys_flag)
            assert reason in row["_corrupt"], row["_corrupt"]
        else:
            assert (row["body"], row["_corrupt"]) == (f"sound {offset}".encode(), None)


def test_permissive_works_with_kafkas_columns(store: StoreBuilder) -> None:
    rows = read_batch(store.root, subscribe="Topic", mode="PERMISSIVE", columns="kafka", includeHeaders="true")
    assert list(rows[0]) == [
        *("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers", "_corrupt"),
    ]
    assert [row["value"] is None for row in rows] == [offset in FORGED for offset in range(COUNT)]
    assert [row["_corrupt"] is not None for row in rows] == [offset in FORGED for offset in range(COUNT)]


@pytest.mark.parametrize("columns", ["queue_offset", "queue_offset,_corrupt", "_corrupt,queue_offset"])
def test_the_reason_is_there_whether_the_body_is_asked_for_or_not(columns: str, store: StoreBuilder) -> None:
    rows = read_batch(store.root, topic="Topic", mode="PERMISSIVE", columns=columns)
    assert set(rows[0]) == {"queue_offset", "_corrupt"}
    assert [row["queue_offset"] for row in rows if row["_corrupt"] is not None] == list(FORGED)


def test_the_reason_goes_with_its_row_when_tags_and_keys_pick_some(store: StoreBuilder) -> None:
    rows = read_batch(store.root, topic="Topic", mode="PERMISSIVE", tags="Bad")
    assert [(row["queue_offset"], FORGED[row["queue_offset"]][2] in row["_corrupt"]) for row in rows] == [
        (offset, True) for offset in FORGED
    ]
    assert [row["body"] for row in read_batch(store.root, topic="Topic", mode="PERMISSIVE", tags="Good")] == [
        b"sound 0",
        b"sound 3",
        b"sound 6",
    ]


def test_bodies_in_several_parts_keep_their_reasons(store: StoreBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    store.send("Topic", zlib.compress(b"more"), sys_flag=COMPRESSED, queue_id=2)
    store.send("Topic", b"neither", sys_flag=COMPRESSED, queue_id=2)
    monkeypatch.setattr("spark_mq.source.rows.PLAIN_BYTES", 1)
    rows = read_batch(store.root, topic="Topic", mode="PERMISSIVE")
    assert [row["queue_offset"] for row in rows if row["_corrupt"]] == [*FORGED, 8]
    assert [row["queue_offset"] for row in rows if row["body"] is None] == [*FORGED, 8]
    assert [row["body"] for row in rows][6:] == [b"sound 6", b"more", None]


def test_a_body_with_another_sum_is_corrupt_where_sums_are_checked(store: StoreBuilder) -> None:
    spoil_body(store, b"sound 0")
    unchecked = read_batch(store.root, topic="Topic", mode="PERMISSIVE")
    assert (unchecked[0]["body"], unchecked[0]["_corrupt"]) == (b"SOUND 0", None)
    rows = read_batch(store.root, topic="Topic", mode="PERMISSIVE", verifyCrc="true")
    assert [row["queue_offset"] for row in rows if row["_corrupt"]] == [0, *FORGED]
    assert rows[0]["body"] is None
    assert "bad body CRC" in rows[0]["_corrupt"]
    good = read_batch(store.root, topic="Topic", mode="PERMISSIVE", verifyCrc="true", tags="Good")
    assert [row["_corrupt"] is None for row in good] == [False, True, True]
    with pytest.raises(ConvertedError, match=r"offset 0 of topic Topic, queue 2, broker broker-a.*bad body CRC"):
        read_batch(store.root, topic="Topic", verifyCrc="true")


def test_bodies_as_stored_are_there_whatever_is_wrong_with_them(store: StoreBuilder) -> None:
    spoil_body(store, b"sound 0")
    options = {"decompress": "false", "columns": "queue_offset,body", "mode": "PERMISSIVE"}
    rows = read_batch(store.root, topic="Topic", **options)
    assert [rows[offset]["body"] for offset in FORGED] == [b"no such stream"] * len(FORGED)
    assert {row["_corrupt"] for row in rows} == {None}
    checked = read_batch(store.root, topic="Topic", **options, verifyCrc="true")
    assert (checked[0]["body"], "bad body CRC" in checked[0]["_corrupt"]) == (b"SOUND 0", True)
    assert {row["_corrupt"] for row in checked[1:]} == {None}
    assert len(read_batch(store.root, topic="Topic", decompress="false")) == COUNT


def test_the_column_needs_the_mode(store: StoreBuilder) -> None:
    with pytest.raises(OptionError, match="_corrupt needs mode=PERMISSIVE"):
        read_batch(store.root, topic="Topic", columns="body,_corrupt")
    schema = StructType([StructField("_corrupt", StringType())])
    with pytest.raises(OptionError, match="_corrupt needs mode=PERMISSIVE"):
        SparkMqDataSource({"path": str(store.root), "topic": "Topic"}).reader(schema)
    not_null = StructType([StructField("body", BinaryType(), nullable=False)])
    with pytest.raises(OptionError, match="column body can be null"):
        SparkMqDataSource({"path": str(store.root), "topic": "Topic", "mode": "PERMISSIVE"}).streamReader(
            not_null
        ).initialOffset()


@pytest.mark.parametrize("mode", ["DROPMALFORMED", "strict", ""])
def test_another_mode_is_refused(mode: str, store: StoreBuilder) -> None:
    with pytest.raises(OptionError, match="mode"):
        read_batch(store.root, topic="Topic", mode=mode)


@pytest.mark.spark
def test_sparks_users_get_the_column_and_good_rows_go_on(
    read_store: ReadStore, spark: SparkSession, store: StoreBuilder, tmp_path: Path
) -> None:
    frame = read_store(store.root, topic="Topic", mode="PERMISSIVE")
    assert (frame.schema["body"].nullable, frame.schema.fields[-1]) == (True, StructField("_corrupt", StringType()))
    assert frame.where("_corrupt is not null").count() == len(FORGED)
    own = frame.select("_corrupt", "body").schema
    assert spark.read.format("spark_mq").schema(own).options(topic="Topic", mode="PERMISSIVE").load(
        str(store.root)
    ).where("_corrupt is null").count() == COUNT - len(FORGED)
    good = frame.where("_corrupt is null")
    good.write.format("spark_mq").mode("append").option("path", str(tmp_path / "copy")).save()
    assert read_store(tmp_path / "copy", topic="Topic").count() == COUNT - len(FORGED)
    with pytest.raises(Exception, match=r"SPARK_MQ_INVALID_ROW.*column body: it is null"):
        frame.write.format("spark_mq").mode("append").option("path", str(tmp_path / "all")).save()


@pytest.mark.spark
def test_a_stream_that_such_a_message_stopped_goes_on_from_its_checkpoint(
    stream_store: Callable[..., Any], spark: SparkSession, store: StoreBuilder, tmp_path: Path
) -> None:
    def run(mode: str) -> None:
        rows = (
            spark.readStream.format("spark_mq").options(topic="Topic", startingOffsets="earliest", mode=mode)
            .load(str(store.root)).select("queue_offset", "body")
        )  # fmt: skip
        writer = rows.writeStream.format("parquet").option("path", str(tmp_path / "out"))
        writer.option("checkpointLocation", str(tmp_path / "check")).trigger(
            availableNow=True
        ).start().awaitTermination()

    with pytest.raises(Exception, match="SPARK_MQ_CORRUPT_RECORD"):
        run("FAILFAST")
    run("PERMISSIVE")
    found = spark.read.parquet(str(tmp_path / "out")).orderBy("queue_offset").collect()
    assert [row.queue_offset for row in found if row.body is None] == list(FORGED)
    assert len(found) == COUNT
    assert json.loads(next((tmp_path / "check" / "offsets").glob("0")).read_text().splitlines()[-1])
