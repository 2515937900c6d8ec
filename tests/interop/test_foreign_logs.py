"""A running Apache broker, and configurations that name its log for another store: every way in is refused, the broker loses nothing.

The broker keeps its log in two directories, as storePathCommitLog allows: one in its store, the other beside it, as on another disk.
"""

from __future__ import annotations

import hashlib
import shutil
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from storage import open_store
from storage.errors import ForeignLogError, StoreLockedError
from storage.settings.load import ConfigurationWarning
from tests.support.java_broker import Oracle, RunningBroker, free_ports
from tests.support.store_copies import picture
from tests.support.ways_in import GROUP, READING, WRITING

pytestmark = [pytest.mark.interop, pytest.mark.spark, pytest.mark.slow]

TOPIC = "Live"
COUNT = 600
LOG_FILE_BYTES = 64 << 10
BY_ALL_WAYS = ("new, root and log", "new, only the log", "backup, a log on another disk")
BY_SPARK = ("new, only the log", "backup, both")
FEW_WAYS = ("open_store", "open_store create", "sink, plan", "sink, task", "command produce", "command bind-log")


class Acknowledged(NamedTuple):
    queue_id: int
    queue_offset: int
    unique_key: str
    body_sha256: str


class Place(NamedTuple):
    """Where somebody would write, with a configuration that names the broker's log."""

    root: Path
    conf: Path


def acknowledged(sent: Iterable[dict[str, Any]]) -> list[Acknowledged]:
    sent = list(sent)
    assert {line["status"] for line in sent} == {"SEND_OK"}
    return sorted(
        Acknowledged(line["queueId"], line["queueOffset"], line["msgId"], line["bodySha256"]) for line in sent
    )


def served(oracle: Oracle, broker: RunningBroker, out: Path) -> list[Acknowledged]:
    lines = oracle.consume_all(out, broker, [TOPIC], lookUps=0)
    return sorted(
        Acknowledged(line["queueId"], line["queueOffset"], line["uniqKey"], line["bodySha256"])
        for line in lines
        if line["type"] == "message"
    )


def seen_here(root: Path, conf: Path) -> list[Acknowledged]:
    found = []
    with open_store(root, config=str(conf)) as store:
        for queue_id in store.queue_ids(TOPIC):
            offset = 0
            while messages := store.get(TOPIC, queue_id, offset).messages:
                found += [
                    Acknowledged(
                        queue_id,
                        message.queue_offset,
                        message.properties["UNIQ_KEY"],
                        hashlib.sha256(message.body).hexdigest(),
                    )
                    for message in messages
                ]
                offset = messages[-1].queue_offset + 1
    return sorted(found)


def places(store: Path, logs: tuple[Path, Path], directory: Path) -> dict[str, Place]:
    """New directories, and one with the broker's queues as a backup has them, each with each of the configurations."""
    sizes = f"mappedFileSizeCommitLog={LOG_FILE_BYTES}\nmappedFileSizeConsumeQueue=20000\n"
    texts = {
        "root and log": f"storePathRootDir={store}\nstorePathCommitLog={logs[0]}\n",
        "only the log": f"storePathCommitLog={logs[0]}\n",
        "a log on another disk": f"storePathCommitLog={logs[1]}\n",
        "both": f"storePathCommitLog={logs[0]},{logs[1]}\n",
    }
    found = {}
    for number, (name, text) in enumerate(texts.items()):
        home = directory / f"home-{number}"
        home.mkdir()
        (home / "a.conf").write_text(sizes + text, "utf-8")
        found[f"new, {name}"] = Place(home / "newone", home / "a.conf")
        backup = home / "backup"
        shutil.copytree(store, backup, ignore=shutil.ignore_patterns("commitlog"))
        (backup / "consumequeue" / f"%DLQ%{GROUP}" / "0").mkdir(parents=True)
        found[f"backup, {name}"] = Place(backup, home / "a.conf")
    return found


def write_by_spark(spark: SparkSession, place: Place, checkpoint: Path) -> list[str]:
    """What a batch, a stream, and a stream that commits its offsets are refused with; "" where they are not."""
    options = {"path": str(place.root), "conf": str(place.conf), "topic": TOPIC}
    rows = spark.createDataFrame([("one",), ("two",)], "body string")
    ticks = spark.readStream.format("rate").load().selectExpr("CAST(value AS STRING) AS body")
    source = spark.readStream.format("spark_mq").options(**options)
    progress = source.options(commitOffsets="true", consumerGroup="GroupSpark", startingOffsets="earliest")

    def batch() -> None:
        rows.write.format("spark_mq").mode("append").options(**options).save()

    def stream() -> None:
        writer = ticks.writeStream.format("spark_mq").options(**options, checkpointLocation=f"{checkpoint}-sink")
        writer.trigger(once=True).start().awaitTermination(60)

    def offsets() -> None:
        writer = progress.load().writeStream.format("noop").option("checkpointLocation", f"{checkpoint}-offsets")
        writer.trigger(availableNow=True).start().awaitTermination(60)

    refusals = []
    for write in (batch, stream, offsets):
        try:
            write()
        except PySparkException as error:
            refusals.append(str(error))
        else:
            refusals.append("")
    return refusals


@pytest.mark.filterwarnings("ignore::storage.settings.load.ConfigurationWarning")
@pytest.mark.filterwarnings(
    "ignore:store .* the log lacks:RuntimeWarning"
)  # a configuration that names one of the log's places
@pytest.mark.long
def test_a_running_brokers_log_is_written_by_no_way_in_and_the_broker_serves_all_it_acknowledged(
    spark: SparkSession, oracle: Oracle, tmp_path: Path
) -> None:
    store, disk = tmp_path / "live", tmp_path / "disk" / "log"
    logs = store / "commitlog", disk
    settings: dict[str, Any] = {
        "port": free_ports(),
        "commitlog_file_size_bytes": LOG_FILE_BYTES,
        "storePathCommitLog": f"{logs[0]},{logs[1]}",
    }
    with oracle.namesrv() as name_server:
        with oracle.broker(store, name_server, **settings) as broker:
            sent = acknowledged(oracle.send(tmp_path / "sent", broker, TOPIC, count=COUNT, maxBody=400))
            assert all(len(list(log.iterdir())) > 1 for log in logs)
            before = picture(*logs)
            assert seen_here(store, broker.conf) == sent, "a log outside of ROOT is read"
            with pytest.raises((ForeignLogError, StoreLockedError)):
                open_store(store, config=str(broker.conf), read_only=False)
            for name, place in places(store, logs, tmp_path).items():
                left = picture(place.root)
                for way in (*WRITING, *READING) if name in BY_ALL_WAYS else FEW_WAYS:
                    refusal = (WRITING.get(way) or READING[way])(str(place.root), str(place.conf))
                    assert refusal is not None or way in READING, f"{name}: {way}"
                    assert picture(*logs) == before, f"{name}: {way}"
                    assert picture(place.root) == left, f"{name}: {way}"
                if name in BY_SPARK:
                    for refusal in write_by_spark(spark, place, tmp_path / name):
                        assert "SPARK_MQ_" in refusal or "is not written: " in refusal, name
                    assert picture(*logs) == before, f"{name}: Spark"
                    assert picture(place.root) == left, f"{name}: Spark"
            assert served(oracle, broker, tmp_path / "served-before") == sent
            broker.kill()
        with oracle.broker(store, name_server, **settings) as broker:
            assert served(oracle, broker, tmp_path / "served-after") == sent
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert seen_here(store, broker.conf) == sent
    told = [str(warning.message) for warning in caught if warning.category is ConfigurationWarning]
    assert any(str(disk) in text for text in told)


@pytest.mark.long
def test_a_broker_that_keeps_its_log_elsewhere_goes_on_from_what_is_written_after_it_was_bound(
    oracle: Oracle, tmp_path: Path
) -> None:
    store, log = tmp_path / "live", tmp_path / "disk" / "log"
    settings: dict[str, Any] = {
        "port": free_ports(),
        "commitlog_file_size_bytes": LOG_FILE_BYTES,
        "storePathCommitLog": str(log),
    }
    with oracle.namesrv() as name_server:
        with oracle.broker(store, name_server, **settings) as broker:
            sent = acknowledged(oracle.send(tmp_path / "sent", broker, TOPIC, count=200, maxBody=400))
            refusal = WRITING["command bind-log"](str(store), str(broker.conf))
            assert refusal is not None
            assert "locked by another writer" in refusal
        assert WRITING["command bind-log"](str(store), str(broker.conf)) is None
        with open_store(store, config=str(broker.conf), read_only=False) as opened:
            placed = opened.put(TOPIC, b"from here", queue_id=0)
        with oracle.broker(store, name_server, **settings) as broker:
            found = served(oracle, broker, tmp_path / "served")
    assert len(found) == len(sent) + 1
    assert set(sent) < set(found)
    (added,) = set(found) - set(sent)
    assert (added.queue_id, added.queue_offset) == (0, placed.queue_offset)
    assert added.body_sha256 == hashlib.sha256(b"from here").hexdigest()
