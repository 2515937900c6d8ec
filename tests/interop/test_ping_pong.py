"""Ping-pong on one store: our sink, killed in mid-commit; a broker, which serves and appends and is killed; our sink again, and again.

After each round Apache's own store classes list every message exactly once and in order, and find each by its keys. Nothing
here asks our own reader.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.support import sink_process
from tests.support.java_broker import Oracle, RunningBroker, free_ports
from tests.support.sink_process import SinkProcess

pytestmark = [pytest.mark.interop, pytest.mark.spark, pytest.mark.slow]

Line = dict[str, Any]

ROWS = 700
PONGS = 1_000
QUEUES = 4
LONG_MAX = 2**63 - 1
LOOK_UP_LIMIT = 32  # messages that a dump's query asks for

# Files so small that a batch crosses files of log, queues and index.
SETTINGS: dict[str, Any] = {
    "commitlog_file_size_bytes": 256 << 10,
    "consume_queue_file_size_bytes": 6_000,
    "maxHashSlotNum": 500,
    "maxIndexNum": 1_000,
    # A broker on a loaded machine turns messages away that waited for 200 ms, or while a write took a second.
    "waitTimeMillsInSendQueue": 60_000,
    "osPageCacheBusyTimeOutMills": 60_000,
}


class Round(NamedTuple):
    """Which sink writes, and where it dies."""

    sink: str
    failpoint: str


ROUNDS = (
    Round("PingStream", "after-begin"),
    Round("PingBatch", "after-intent"),
    Round("PingBatch", "after-queues:2"),  # the first time is that of BEGIN
    Round("PingBatch", "before-end"),
    Round("PingStream", "after-records:2"),
)


def test_sink_and_broker_take_turns_on_a_store_and_die_in_between(
    oracle: Oracle, spark: SparkSession, tmp_path: Path
) -> None:
    with ExitStack() as running:
        store, conf, port = tmp_path / "store", tmp_path / "broker.conf", free_ports()
        name_server = running.enter_context(oracle.namesrv())
        conf.write_text(oracle.broker_conf(store, name_server, port, **SETTINGS), "utf-8")
        options = {"path": str(store), "conf": str(conf), "queueNum": str(QUEUES)}
        sinks: dict[str, Sink] = {
            "PingStream": StreamSink("PingStream", tmp_path, options, spark),
            "PingBatch": BatchSink("PingBatch", tmp_path, options),
        }
        pongs: list[Line] = []
        for number, (name, failpoint) in enumerate(ROUNDS):
            sink = sinks[name]
            sink.be_killed(failpoint, running)
            with oracle.broker(store, name_server, port=port, **SETTINGS) as broker:
                written = [topic for topic, one in sinks.items() if one.row_count] + ["Pong"] * bool(pongs)
                served = oracle.consume_all(tmp_path / f"served-{number}.jsonl", broker, written)
                sent = send_pongs(oracle, broker, tmp_path, number)
                broker.kill()
            sink.finish()
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
            assert_all_was_served(served, [line for line in messages if line["physicalOffset"] < broker_began], written)
        for rolled in ("commitlog", "consumequeue/PingStream/0", "consumequeue/PingBatch/0", "index"):
            assert len(list((store / rolled).iterdir())) > 2, f"{rolled} was to roll"


def send_pongs(oracle: Oracle, broker: RunningBroker, directory: Path, number: int) -> list[Line]:
    return oracle.send(
        directory / f"pongs-{number}.jsonl", broker, "Pong", count=PONGS, queues=2, keys=500, seed=number
    )


# Our side


class Sink:
    """Writes numbered messages of one topic, in the order of their numbers. Each run writes ROWS more."""

    def __init__(self, topic: str, directory: Path, options: dict[str, str]) -> None:
        self.topic = topic
        self.row_count = 0
        self._directory = directory
        self._input = directory / f"{topic}-input"
        self._input.mkdir()
        self._options = {**options, "topic": topic}

    def be_killed(self, failpoint: str, running: ExitStack) -> None:
        """Write a batch in a process that dies at the failpoint."""
        raise NotImplementedError

    def finish(self) -> None:
        """Write the batch again, from its checkpoint, and another one."""
        raise NotImplementedError

    def _more_rows(self, parts: int = 1) -> list[str]:
        """Files with the next rows, and of what came before nothing."""
        files = []
        for _ in range(parts):
            numbers = range(self.row_count, self.row_count + ROWS // parts)
            files.append(str(self._input / f"{numbers[0]:06}.parquet"))
            pq.write_table(rows_of(self.topic, numbers), files[-1])
            self.row_count += len(numbers)
        return files

    def _killed(self, mode: str, failpoint: str, running: ExitStack, **arguments: Any) -> None:
        log = self._directory / f"{self.topic}-{self.row_count}.log"
        process = SinkProcess(mode, log, failpoint, options=self._options, **arguments)
        running.callback(process.end)
        process.run_until_killed()


class StreamSink(Sink):
    """A streaming query; once its process is killed, the next one goes on from the checkpoint in the tests' own session."""

    def __init__(self, topic: str, directory: Path, options: dict[str, str], spark: SparkSession) -> None:
        super().__init__(topic, directory, options)
        checkpoint = str(directory / "checkpoint")
        self._arguments = {"source": str(self._input), "checkpoint": checkpoint}
        self._spark = spark

    def be_killed(self, failpoint: str, running: ExitStack) -> None:
        self._more_rows()
        self._killed("stream", failpoint, running, **self._arguments)

    def finish(self) -> None:
        self._more_rows()
        sink_process.stream(self._spark, options=self._options, **self._arguments)


class BatchSink(Sink):
    """The same without Spark: two tasks a batch."""

    def __init__(self, topic: str, directory: Path, options: dict[str, str]) -> None:
        super().__init__(topic, directory, options)
        self._next_batch = 0
        self._repeat: Callable[[], None] = lambda: None

    def be_killed(self, failpoint: str, running: ExitStack) -> None:
        batch = {"batch_id": self._next_batch, "parts": self._more_rows(parts=2)}
        self._repeat = partial(sink_process.commit, options=self._options, **batch)
        self._killed("batch", failpoint, running, **batch)

    def finish(self) -> None:
        self._repeat()
        sink_process.commit(self._next_batch + 1, self._more_rows(parts=2), self._options)
        self._next_batch += 2


def rows_of(topic: str, numbers: Iterable[int]) -> pa.Table:
    rows = [
        {
            "body": body_of(topic, number),
            "keys": f"{topic}-{number} every-{number % 83}" if number % 5 else None,
            "tags": f"Tag{number % 3}" if number % 7 else None,
        }
        for number in numbers
    ]
    return pa.Table.from_pylist(rows, pa.schema([("body", pa.binary()), ("keys", pa.string()), ("tags", pa.string())]))


def body_of(topic: str, number: int) -> bytes:
    return f"{topic} {number} ".encode() + random.Random(number).randbytes(number * 7919 % 500)


# What the judges say


def of_type(lines: Iterable[Line], type_: str) -> list[Line]:
    return [line for line in lines if line["type"] == type_]


def assert_each_once_and_in_order(messages: list[Line], sink: Sink) -> None:
    """All rows of a sink that has nothing unfinished: no row twice, none missing, none out of order in its queue."""
    number_of = {sha256(body_of(sink.topic, number)): number for number in range(sink.row_count)}
    queues = defaultdict(list)
    for line in messages:
        if line["topic"] == sink.topic:
            assert line["queueOffset"] == line["cqOffset"] == len(queues[line["queueId"]])
            queues[line["queueId"]].append(number_of[line["bodySha256"]])
    assert sorted(number for numbers in queues.values() for number in numbers) == list(range(sink.row_count))
    assert all(numbers == sorted(numbers) for numbers in queues.values())
    assert len(queues) == (QUEUES if sink.row_count else 0)


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


def sha256(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()
