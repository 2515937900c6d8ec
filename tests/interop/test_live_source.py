"""The live source against Apache's name server and broker: the same rows, offsets and losses as of the broker's store.

The readers run in this process; `test_live_queries.py` has Spark around them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_mq.conditions import ConvertedError, DataLossError, NoGroupOffsetsError, OptionError
from spark_mq.source.batch_reader import BatchReader
from spark_mq.source.options import SourceOptions
from spark_mq.source.partition_reader import read_partition
from spark_mq.source.rows import COLUMN_NAMES, EARLIER_PLACE_COLUMN_NAMES
from spark_mq.source.stream_reader import StreamReader
from spark_mq.spark_api import ReadAllAvailable
from tests.interop.test_consumer_progress import consumer_progress
from tests.interop.test_live_stream import add_queues
from tests.support.java_broker import Oracle, RunningBroker, wait_until
from tests.support.planned_server import Certificate

pytestmark = [pytest.mark.interop, pytest.mark.slow]

Rows = list[dict[str, Any]]
ALL_COLUMNS = ",".join((*COLUMN_NAMES, *EARLIER_PLACE_COLUMN_NAMES))


def batch(options: dict[str, str]) -> Rows:
    """The rows of a batch query, as its tasks yield them."""
    parsed = SourceOptions.parse(options, "batch")
    reader = BatchReader(parsed, parsed.column_names)
    return [row for part in reader.partitions() for rows in read_partition(part) for row in rows.to_pylist()]


class Stream:
    """A streaming query as Spark drives it; its checkpoint is `position`, so it can go on as another one."""

    def __init__(self, options: dict[str, str], position: dict[str, Any] | None = None) -> None:
        parsed = SourceOptions.parse(options, "streaming")
        self.reader = StreamReader(parsed, parsed.column_names)
        self.position = position if position is not None else self.reader.initialOffset()

    def batch(self) -> Rows:
        end = json.loads(json.dumps(self.reader.latestOffset(self.position, ReadAllAvailable())))
        if end == self.position:
            return []
        parts = self.reader.partitions(self.position, end)
        self.position = end
        return [row for part in parts for rows in read_partition(part) for row in rows.to_pylist()]

    def until(self, count: int) -> Rows:
        """The rows of as many batches as it takes."""
        rows: Rows = []
        wait_until(lambda: rows.extend(self.batch()) or len(rows) >= count, f"{count} rows")  # type: ignore[func-returns-value]
        return rows


def sorted_rows(rows: Rows) -> Rows:
    return sorted(rows, key=lambda row: (row.get("topic", ""), row["queue_id"], row["queue_offset"]))


@pytest.fixture(scope="module")
def broker(oracle: Oracle, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    directory = tmp_path_factory.mktemp("live-")
    settings = {"brokerName": "broker-live", "enablePropertyFilter": "true"}
    servers = with_certificate(oracle, directory) if oracle.is_ours else oracle
    with servers.namesrv() as name_server, servers.broker(directory / "store", name_server, **settings) as running:
        oracle.send(directory / "sent.jsonl", running, "LiveA", queues=4, count=2_000, maxBody=6_000)
        oracle.send(directory / "delayed.jsonl", running, "LiveB", queues=2, count=50, delayLevels="0,1", batch=1)
        yield running


def with_certificate(oracle: Oracle, directory: Path) -> Oracle:
    """The same servers with a certificate, which Java's make for themselves (tls.test.mode)."""
    certificate = Certificate(directory)
    files = (f"-Dtls.server.certPath={certificate.cert}", f"-Dtls.server.keyPath={certificate.key}")
    return Oracle(oracle.directory, oracle.home, java_properties=files, is_ours=True)


def of_store(broker: RunningBroker, **options: str) -> dict[str, str]:
    return {"path": str(broker.store), "conf": str(broker.conf), "topic": "LiveA", **options}


def of_cluster(broker: RunningBroker, **options: str) -> dict[str, str]:
    return {"nameServer": broker.name_server, "topic": "LiveA", **options}


@pytest.mark.parametrize(
    "options",
    [
        {"columns": ALL_COLUMNS},
        {"columns": "kafka", "includeHeaders": "true"},
        {"tags": "TagA || TagC"},
        {"key": "key7"},
        {"verifyCrc": "true", "mode": "PERMISSIVE"},
        {"decompress": "false", "minPartitions": "9"},
        {"startingOffsets": '{"LiveA": {"0": 17, "1": 499, "2": -2, "3": 3}}',
         "endingOffsets": '{"LiveA": {"0": 18, "1": -1, "2": 77, "3": 3}}'},
    ],
    ids=lambda options: ",".join(options),
)  # fmt: skip
def test_a_batch_has_the_rows_of_the_store(broker: RunningBroker, options: dict[str, str]) -> None:
    rows = batch(of_cluster(broker, **options))
    assert rows
    assert rows == batch(of_store(broker, **options))


def test_so_it_has_of_other_topics(broker: RunningBroker) -> None:
    for options in ({"topic": "SCHEDULE_TOPIC_XXXX"}, {"topic": "LiveB"}):
        rows = sorted_rows(batch({**of_cluster(broker), **options}))
        assert rows
        assert rows == sorted_rows(batch({**of_store(broker), **options}))


def test_a_pattern_selects_topics_of_the_cluster(broker: RunningBroker) -> None:
    live = {"nameServer": broker.name_server, "subscribePattern": "Live[AB]", "columns": "topic,queue_id,queue_offset"}
    assert {row["topic"] for row in batch(live)} == {"LiveA", "LiveB"}


@pytest.mark.parametrize("which", ["startingTimestamp", "endingTimestamp"])
def test_times_cut_as_in_the_store(broker: RunningBroker, which: str) -> None:
    stored = batch(of_store(broker, columns="queue_id,queue_offset,store_timestamp"))
    times = sorted({int(row["store_timestamp"].timestamp() * 1000) for row in stored})
    for time_ms in (times[0], times[len(times) // 3], times[len(times) // 3] + 1, times[-2]):
        options = {
            which: str(time_ms),
            "columns": "queue_id,queue_offset",
            "startingOffsetsByTimestampStrategy": "latest",
        }
        assert batch(of_cluster(broker, **options)) == batch(of_store(broker, **options)), time_ms


def test_brokers_filter_by_sql(broker: RunningBroker) -> None:
    wanted = {"subExpression": "n BETWEEN 100 AND 199 AND TAGS = 'TagA'", "expressionType": "SQL92"}
    rows = batch(of_cluster(broker, **wanted))
    expected = [row for row in batch(of_store(broker, tags="TagA")) if 100 <= int(dict(row["properties"])["n"]) <= 199]
    assert rows == expected != []


def test_an_expression_that_does_not_compile_is_refused(broker: RunningBroker) -> None:
    with pytest.raises(ConvertedError, match=r"\[SPARK_MQ_BROKER_REFUSED\] .* 23 .SUBSCRIPTION_PARSE_FAILED"):
        batch(of_cluster(broker, subExpression="a !!", expressionType="SQL92"))


def test_a_topic_that_is_not_there_is_refused_with_the_nearest(broker: RunningBroker) -> None:
    with pytest.raises(
        OptionError, match=rf"Livea: not in the cluster of name server {broker.name_server}; did you mean Live"
    ):
        batch(of_cluster(broker, topic="Livea"))


def test_batch_queues_are_refused(broker: RunningBroker, oracle: Oracle) -> None:
    mqadmin = "org.apache.rocketmq.tools.command.MQAdminStartup"
    to = "-n", broker.name_server, "-b", broker.address
    oracle.java(mqadmin, "updateTopic", *to, "-t", "LiveBatches", "-r", 1, "-w", 1, "-a", "+queue.type=BatchCQ")
    with pytest.raises(OptionError, match="LiveBatches: its queues are batch consume queues"):
        wait_until(lambda: batch(of_cluster(broker, topic="LiveBatches")) == [], "a route")


def test_a_name_server_that_is_not_there_is_an_error_in_time() -> None:
    began = time.monotonic()
    with pytest.raises(ConvertedError, match=r"\[SPARK_MQ_NAME_SERVER_UNREACHABLE\] no name server answers"):
        batch({"nameServer": "127.0.0.1:1", "topic": "T"})
    assert time.monotonic() - began < 30


def test_tls_is_spoken_with_name_server_and_broker(broker: RunningBroker) -> None:
    options = of_cluster(broker, tls="true", columns="queue_id,queue_offset")
    assert len(batch({**options, "tlsVerify": "false"})) == 2_000
    with pytest.raises(ConvertedError, match=r"\[SPARK_MQ_TLS_FAILED\] .*certificate"):
        batch(options)


def test_a_namespace_is_a_part_of_names(broker: RunningBroker, oracle: Oracle, tmp_path: Path) -> None:
    oracle.send(tmp_path / "one.jsonl", broker, "ns1%LiveNamed", queues=2, count=10)
    rows = batch(of_cluster(broker, topic="LiveNamed", namespace="ns1", consumerGroup="G"))
    assert {row["topic"] for row in rows} == {"ns1%LiveNamed"}
    assert rows == batch(of_store(broker, topic="ns1%LiveNamed"))


def test_a_checkpoint_of_empty_queues_moves_to_the_store(broker: RunningBroker, oracle: Oracle, tmp_path: Path) -> None:
    """A cluster shows queues that nothing was ever put into; a store has no files of them."""
    oracle.send(tmp_path / "one.jsonl", broker, "LiveSparse", queues=4, count=10, onlyQueues="1")
    first = Stream(of_cluster(broker, topic="LiveSparse", startingOffsets="earliest"))
    assert len(first.until(10)) == 10
    assert set(first.position["LiveSparse"]["broker-live"]) == {"0", "1", "2", "3"}
    oracle.send(tmp_path / "two.jsonl", broker, "LiveSparse", count=10, onlyQueues="1,2")
    second = Stream(of_store(broker, topic="LiveSparse"), first.position)
    assert len(second.until(10)) == 10
    oracle.send(tmp_path / "three.jsonl", broker, "LiveSparse", count=10, onlyQueues="0,2")
    assert len(Stream(of_cluster(broker, topic="LiveSparse"), second.position).until(10)) == 10


def test_a_stream_moves_between_path_and_name_server(broker: RunningBroker, oracle: Oracle, tmp_path: Path) -> None:
    seen: Rows = []
    position: dict[str, Any] = {}
    ways: list[Callable[..., dict[str, str]]] = [of_store, of_cluster, of_store, of_cluster]
    for number, way in enumerate(ways):
        oracle.send(tmp_path / f"{number}.jsonl", broker, "LiveMoves", queues=3, count=20, seed=number)
        options = way(broker, topic="LiveMoves", startingOffsets="earliest")
        stream = Stream(options, position or None)
        seen += stream.until(20)
        assert stream.batch() == []
        position = stream.position
        stream.reader.stop()
    assert sorted_rows(seen) == sorted_rows(batch(of_store(broker, topic="LiveMoves")))
    assert len(seen) == 80


def test_queues_that_are_added_join_a_running_stream(broker: RunningBroker, oracle: Oracle, tmp_path: Path) -> None:
    oracle.send(tmp_path / "one.jsonl", broker, "LiveGrows", queues=2, count=10)
    stream = Stream(of_cluster(broker, topic="LiveGrows", startingOffsets="earliest"))
    assert len(stream.until(10)) == 10
    add_queues(oracle, broker, "LiveGrows", 4)
    oracle.send(tmp_path / "two.jsonl", broker, "LiveGrows", count=40, onlyQueues="2,3")
    assert {row["queue_id"] for row in stream.until(40)} == {2, 3}


def test_a_topic_that_was_made_again_is_noticed(broker: RunningBroker, oracle: Oracle, tmp_path: Path) -> None:
    oracle.send(tmp_path / "one.jsonl", broker, "LiveAgain", queues=1, count=10)
    position = (first := Stream(of_cluster(broker, topic="LiveAgain", startingOffsets="earliest"))).position
    assert len(first.until(10)) == 10
    position = first.position
    mqadmin = "org.apache.rocketmq.tools.command.MQAdminStartup"
    oracle.java(mqadmin, "deleteTopic", "-n", broker.name_server, "-c", "LabCluster", "-t", "LiveAgain")
    oracle.send(tmp_path / "two.jsonl", broker, "LiveAgain", queues=1, count=30, seed=2)
    with pytest.raises(DataLossError, match="deleted and made again"):
        Stream(of_cluster(broker, topic="LiveAgain"), position).batch()


def test_consumer_progress_agrees_with_the_position(broker: RunningBroker, oracle: Oracle, tmp_path: Path) -> None:
    oracle.send(tmp_path / "one.jsonl", broker, "TopicProgress", queues=2, count=30)
    group = {"consumerGroup": "GroupLive", "commitOffsets": "true"}
    with pytest.raises(NoGroupOffsetsError):
        batch(of_cluster(broker, topic="TopicProgress", consumerGroup="GroupLive", startingOffsets="group"))
    stream = Stream(of_cluster(broker, topic="TopicProgress", startingOffsets="earliest", **group))
    stream.until(30)

    def lags() -> set[int]:
        found = consumer_progress(oracle, broker, "GroupLive")
        return {one.diff for (topic, _), one in found.items() if topic == "TopicProgress"}

    # The stream is asked as Spark asks an idle one. After a write that took long the next one waits ten times as long.
    wait_until(lambda: stream.batch() == [] and lags() == {0}, "the group is at the queues' ends", 90)
    report = stream.reader.reportLatestOffset()
    assert report["commitOffsets"] == {"group": "GroupLive", "skipped": {}}
    oracle.send(tmp_path / "two.jsonl", broker, "TopicProgress", count=8)
    rows = batch(of_cluster(broker, topic="TopicProgress", consumerGroup="GroupLive", startingOffsets="group"))
    assert len(rows) == 8
