"""Ping-pong on one store: our sink, killed in mid-commit; a broker, which serves and appends and is killed; our sink again, and again.

After each round Apache's own store classes list every message exactly once and in order, and find each by its keys. Nothing
here asks our own reader.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.support import sink_process
from tests.support.java_broker import RELEASE, Oracle, RunningBroker, free_ports

pytestmark = [pytest.mark.interop, pytest.mark.spark, pytest.mark.slow]

Line = dict[str, Any]

ROWS = 700
PONGS = 1_000
QUEUES = 4
LONG_MAX = 2**63 - 1
LOOK_UP_LIMIT = 32  # messages that a dump's query asks for

# Files so small that a batch crosses files of log, queues and index. The log files of a batch are made before its rows are written, and
# from 5.4.0 on a broker looks for the log's end in the last ten only: so there are fewer of them (docs/compatibility.md).
SETTINGS: dict[str, Any] = {
    "commitlog_file_size_bytes": 256 << 10 if RELEASE == "5.3.3" else 1 << 20,
    "consume_queue_file_size_bytes": 6_000,
    "maxHashSlotNum": 500,
    "maxIndexNum": 1_000,
    "rocketmqVersion": RELEASE,
    # A broker on a loaded machine turns messages away that waited for 200 ms, or while a write took a second.
}


class Round(NamedTuple):
    """Which sink writes, and where it dies."""

    sink: str
    failpoint: str
    max_body_bytes: int = 500


ROUNDS = (
    Round("PingStream", "amid-records:3", max_body_bytes=16_000),
    Round("PingBatch", "after-intent"),
    Round("PingBatch", "after-queues"),
    Round("PingBatch", "before-end"),
    Round("PingStream", "after-records:2"),
)


@pytest.mark.long
def test_sink_and_broker_take_turns_on_a_store_and_die_in_between(
    oracle: Oracle, spark: SparkSession, tmp_path: Path
) -> None:
    store, conf, port = tmp_path / "store", tmp_path / "broker.conf", free_ports()
    options = {"path": str(store), "conf": str(conf), "queueNum": str(QUEUES)}
    sinks: dict[str, Sink] = {
        "PingStream": StreamSink("PingStream", tmp_path, options, spark),
        "PingBatch": BatchSink("PingBatch", tmp_path, options),
    }
    pongs: list[Line] = []
    partly_served = 0
    with oracle.namesrv() as name_server:
        conf.write_text(oracle.broker_conf(store, name_server, port, **SETTINGS), "utf-8")
        for number, turn in enumerate(ROUNDS):
            killed = sinks[turn.sink]
            killed.be_killed(turn)
            topics = [topic for topic, sink in sinks.items() if sink.bodies] + ["Pong"] * bool(pongs)
            with oracle.broker(store, name_server, port=port, **SETTINGS) as broker:
                served = oracle.consume_all(tmp_path / f"served-{number}.jsonl", broker, topics)
                sent = send_pongs(oracle, broker, tmp_path, number)
                broker.kill()
            killed.finish()
            pongs += sent

            dumped = oracle.dump(store, conf)
            messages = of_type(dumped, "message")
            for sink in sinks.values():
                assert_each_once_and_in_order(messages, sink)
            assert Counter(line["msgId"] for line in messages if line["topic"] == "Pong") == Counter(
                line["offsetMsgId"] for line in pongs
            )
            assert_no_look_up_is_incomplete(dumped, messages)
            broker_began = min(int(line["offsetMsgId"][-16:], 16) for line in sent)
            assert_all_was_served(served, [line for line in messages if line["physicalOffset"] < broker_began], topics)
            partly_served += sum(line["topic"] == killed.topic for line in of_type(served, "message")) % ROWS > 0
    assert partly_served, "no kill has left part of a batch"
    for rolled in ("commitlog", "consumequeue/PingStream/0", "consumequeue/PingBatch/0", "index"):
        assert len(list((store / rolled).iterdir())) > 1, f"{rolled} was to roll"


def send_pongs(oracle: Oracle, broker: RunningBroker, directory: Path, number: int) -> list[Line]:
    return oracle.send(
        directory / f"pongs-{number}.jsonl", broker, "Pong", count=PONGS, queues=2, keys=500, seed=number
    )


# Our side


class Sink:
    """Writes messages of one topic whose bodies all differ: ROWS a batch, in the order of `bodies`."""

    def __init__(self, topic: str, directory: Path, options: dict[str, str]) -> None:
        self.topic = topic
        self.bodies: list[bytes] = []
        self._directory = directory
        self._input = directory / f"{topic}-input"
        self._input.mkdir()
        self._options = {**options, "topic": topic}

    def be_killed(self, turn: Round) -> None:
        """Write a batch in a process that dies at the failpoint."""
        raise NotImplementedError

    def finish(self) -> None:
        """Write the batch again, as after a restart, and another one."""
        raise NotImplementedError

    def _more_rows(self, *, parts: int = 1, max_body_bytes: int = 500) -> list[str]:
        """Files with the next batch's rows."""
        files = []
        for _ in range(parts):
            first = len(self.bodies)
            for number in range(first, first + ROWS // parts):
                filler = random.Random(number).randbytes(number * 7919 % max_body_bytes)
                self.bodies.append(f"{self.topic} {number} ".encode() + filler)
            files.append(str(self._input / f"{first:06}.parquet"))
            pq.write_table(rows_of(self.topic, first, self.bodies[first:]), files[-1])
        return files

    def _be_killed(self, mode: str, failpoint: str, **arguments: Any) -> None:
        log = self._directory / f"{self.topic}-{len(self.bodies)}.log"
        sink_process.run_until_killed(mode, failpoint, log, options=self._options, **arguments)


class StreamSink(Sink):
    """A streaming query; when its process is killed, the tests' own session goes on from its checkpoint."""

    def __init__(self, topic: str, directory: Path, options: dict[str, str], spark: SparkSession) -> None:
        super().__init__(topic, directory, options)
        checkpoint = str(directory / "checkpoint")
        self._arguments = {"source": str(self._input), "checkpoint": checkpoint}
        self._spark = spark

    def be_killed(self, turn: Round) -> None:
        self._more_rows(max_body_bytes=turn.max_body_bytes)
        self._be_killed("stream", turn.failpoint, **self._arguments)

    def finish(self) -> None:
        self._more_rows()
        sink_process.stream(self._spark, options=self._options, **self._arguments)


class BatchSink(Sink):
    """The same without Spark: two tasks a batch."""

    def __init__(self, topic: str, directory: Path, options: dict[str, str]) -> None:
        super().__init__(topic, directory, options)
        self._batch_id = -1
        self._parts: list[str] = []

    def be_killed(self, turn: Round) -> None:
        self._begin_batch(turn.max_body_bytes)
        self._be_killed("batch", turn.failpoint, batch_id=self._batch_id, parts=self._parts)

    def finish(self) -> None:
        sink_process.commit(self._batch_id, self._parts, self._options)
        self._begin_batch()
        sink_process.commit(self._batch_id, self._parts, self._options)

    def _begin_batch(self, max_body_bytes: int = 500) -> None:
        self._batch_id += 1
        self._parts = self._more_rows(parts=2, max_body_bytes=max_body_bytes)


def rows_of(topic: str, first: int, bodies: list[bytes]) -> pa.Table:
    """Most have a key of their own and one that they share with some, and a tag."""
    numbers = range(first, first + len(bodies))
    keys = [f"{topic}-{number} every-{number % 83}" if number % 5 else None for number in numbers]
    tags = [f"Tag{number % 3}" if number % 7 else None for number in numbers]
    return pa.table({"body": pa.array(bodies, pa.binary()), "keys": keys, "tags": tags})


# What the judges say


def of_type(lines: Iterable[Line], type_: str) -> list[Line]:
    return [line for line in lines if line["type"] == type_]


def assert_each_once_and_in_order(messages: list[Line], sink: Sink) -> None:
    """All rows of a sink that has nothing unfinished: no row twice, none missing, none out of order in its queue."""
    number_of = {hashlib.sha256(body).hexdigest(): number for number, body in enumerate(sink.bodies)}
    queues = defaultdict(list)
    for line in messages:
        if line["topic"] == sink.topic:
            assert line["queueOffset"] == line["cqOffset"] == len(queues[line["queueId"]])
            queues[line["queueId"]].append(number_of[line["bodySha256"]])
    assert sorted(number for numbers in queues.values() for number in numbers) == list(range(len(sink.bodies)))
    assert all(numbers == sorted(numbers) for numbers in queues.values())
    assert len(queues) == (QUEUES if sink.bodies else 0)


def assert_no_look_up_is_incomplete(dumped: list[Line], messages: list[Line]) -> None:
    """Each key that Apache's classes looked up leads to every message that has it."""
    holders = places_of_keys(messages, "physicalOffset", unique_key=lambda line: line["properties"].get("UNIQ_KEY"))
    asked = [line for line in of_type(dumped, "query") if (line["begin"], line["end"]) == (0, LONG_MAX)]
    asked = [line for line in asked if line["maxNum"] == LOOK_UP_LIMIT and line["topic"].startswith(("Ping", "Pong"))]
    assert len(asked) > 400
    incomplete = {
        (line["topic"], line["key"]): missing
        for line in asked
        if len(holders[line["topic"], line["key"]]) < LOOK_UP_LIMIT // 2  # some may be listed twice
        and (missing := holders[line["topic"], line["key"]] - set(line["physicalOffsets"]))
    }
    assert not incomplete


def assert_all_was_served(served: list[Line], messages: list[Line], topics: list[str]) -> None:
    """A consumer and mqadmin got all that stood in the log when the broker was started, whatever the killed commit had left."""
    listed = {line["topic"]: line for line in of_type(served, "listed")}
    for topic in topics:
        queues = 2 if topic == "Pong" else QUEUES
        assert (listed[topic]["readQueueNums"], listed[topic]["writeQueueNums"], listed[topic]["perm"]) == (
            queues,
            queues,
            6,
        )
    expected = {
        place(line): (line["physicalOffset"], line["properties"]["UNIQ_KEY"], line["bodySha256"])
        for line in messages
        if line["topic"] in topics
    }
    pulled = of_type(served, "message")
    assert {place(line): (line["commitLogOffset"], line["uniqKey"], line["bodySha256"]) for line in pulled} == expected
    assert len(pulled) == len(expected)
    holders = places_of_keys(pulled, "commitLogOffset", unique_key=lambda line: line["uniqKey"])
    for line in of_type(served, "lookUp"):
        assert set(line["commitLogOffsets"]) == holders[line["topic"], line["key"]], line["key"]


def place(line: Line) -> tuple[str, int, int]:
    return line["topic"], line["queueId"], line["queueOffset"]


def places_of_keys(
    messages: Iterable[Line], offset: str, unique_key: Callable[[Line], str | None]
) -> dict[tuple[str, str], set[int]]:
    """By topic and key, unique key included: where in the log the messages lie that have it."""
    places = defaultdict(set)
    for line in messages:
        keys = line["keys"] if "keys" in line else line["properties"].get("KEYS")
        for key in [unique_key(line), *(keys or "").split(" ")]:
            if key:
                places[line["topic"], key].add(line[offset])
    return places
