"""The deeds whose files are counted: open a store, read, write a batch, SEND, PULL, a SEND with a slave, `dump`.

Each is done before it is traced, then traced `ROUNDS` times: a file counts when every round enters it. What a broker is sent is traced
`BROKER_ROUNDS` times, and its duties by the clock rest: what runs beside a deed does not count.
"""

from __future__ import annotations

import asyncio
import pickle
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from unittest.mock import patch

import pyarrow as pa
from typer.testing import CliRunner

from spark_mq.broker_server import duties
from spark_mq.broker_server.server import RunningBroker
from spark_mq.broker_server.settings import read_configuration
from spark_mq.cli.app import app
from spark_mq.remoting import RemotingCommand, RequestCode, make_request
from spark_mq.remoting.command import FrameLimits
from spark_mq.remoting.frames import Connection
from spark_mq.sink.columns import InputColumns
from spark_mq.sink.commit import commit_rows
from spark_mq.sink.options import SinkOptions
from spark_mq.sink.partition_writer import stage_rows
from spark_mq.source.options import SourceOptions
from spark_mq.source.stream_reader import StreamReader
from spark_mq.testing.ports import free_ports
from storage import open_store
from storage.batch.ledger import Batch
from tests.walks.trace import Trace, seen_by_threads, traced

ROUNDS = 3
BROKER_ROUNDS = 10
DUTIES = ("TICK_MS", "LEVELS_MS", "TIMER_MS", "RELIEF_MS")
TOPIC = "TopicA"
T = TypeVar("T")


class Walk(NamedTuple):
    """What one deed enters."""

    deed: str
    files: list[str]
    """In the order in which they are entered."""
    functions: int


def walks() -> Iterator[Walk]:
    """All deeds, in the order of the page's table."""
    with tempfile.TemporaryDirectory() as directory:
        root = f"{directory}/broker-a"
        yield from _write_walks(root)
        yield _walk("open a store", lambda: open_store(root).close())
        yield _walk("read 10 rows", lambda: _read(root))
        yield _walk("spark-mq dump --limit 5", lambda: _command("dump", root, "--topic", TOPIC, "--limit", "5"))
    at_rest = patch.multiple(duties, **dict.fromkeys(DUTIES, 3_600_000))
    with at_rest, seen_by_threads(), tempfile.TemporaryDirectory() as directory:
        yield from _broker_walks(Path(directory))
        yield from _slave_walks(Path(directory))


def _walk(deed: str, work: Callable[[], object], rounds: int = ROUNDS) -> Walk:
    work()
    traces = []
    for _ in range(rounds):
        with traced() as trace:
            work()
        traces.append(trace)
    return _common(deed, traces)


def _common(deed: str, traces: list[Trace]) -> Walk:
    always = set.intersection(*(set(trace.files) for trace in traces))
    return Walk(deed, [name for name in traces[0].files if name in always], min(trace.functions for trace in traces))


def _read(root: str) -> int:
    options = SourceOptions.parse({"path": root, "topic": TOPIC, "startingoffsets": "earliest"}, "streaming")
    reader = StreamReader(options, list(options.column_names))
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    read = sum(batch.num_rows for part in reader.partitions(start, end) for batch in reader.read(part))
    reader.stop()
    assert read > 0
    return read


def _command(*arguments: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output


def _write_walks(root: str) -> Iterator[Walk]:
    rows = [{"body": b"x%d" % number, "keys": f"k{number}", "tags": "A"} for number in range(200)]

    def stage(batch_id: int) -> tuple[SinkOptions, Any]:
        options = SinkOptions.parse({"path": root, "topic": TOPIC}, "streaming")
        columns = InputColumns(tuple(rows[0]), kafka=False)
        batches = iter([pa.RecordBatch.from_pylist(rows)])
        staged = stage_rows(options, columns, Batch("sink", "query", batch_id), 0, 0, batches)
        return options, pickle.loads(pickle.dumps(staged))

    tasks: list[Trace] = []
    commits: list[Trace] = []
    both: list[Trace] = []
    for number in range(ROUNDS + 1):
        with traced() as whole:
            with traced() as task:
                options, staged = stage(number)
            with traced() as commit:
                commit_rows(options, [staged], number, mirrored=True)
        if number:  # the first makes the store
            tasks.append(task)
            commits.append(commit)
            both.append(whole)
    yield _common("one batch: the task", tasks)
    yield _common("one batch: the commit", commits)
    yield _common("one batch written", both)


class _OwnLoop:
    """An event loop on a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)


class _Client:
    """One connection, which sends frames that were made before the trace."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))

    def send(self, frame: bytes) -> None:
        self._socket.sendall(frame)

    def answer(self) -> bytes:
        return self._exactly(int.from_bytes(self._exactly(4), "big"))

    def ask(self, frame: bytes) -> bytes:
        self.send(frame)
        return self.answer()

    def close(self) -> None:
        self._socket.close()

    def _exactly(self, count: int) -> bytes:
        read = b""
        while len(read) < count:
            piece = self._socket.recv(count - len(read))
            assert piece, "the broker closed the connection"
            read += piece
        return read


def _frame(code: RequestCode, fields: Mapping[str, str], body: bytes = b"") -> bytes:
    command: RemotingCommand = make_request(code, fields, body)
    _, pieces = Connection(FrameLimits()).send_request(command, object())
    return b"".join(bytes(piece) for piece in pieces)


def _send_frame() -> bytes:
    fields = {
        "producerGroup": "G",
        "topic": TOPIC,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "0",
        "sysFlag": "0",
        "flag": "0",
        "bornTimestamp": str(int(time.time() * 1000)),
        "properties": "KEYS\x01k1\x02UNIQ_KEY\x017F0000010000000000000000000000AA\x02",
        "reconsumeTimes": "0",
        "unitMode": "false",
        "batch": "false",
    }
    return _frame(RequestCode.SEND_MESSAGE, fields, b"hello")


def _pull_frame(offset: int) -> bytes:
    fields = {
        "consumerGroup": "CG",
        "topic": TOPIC,
        "queueId": "0",
        "queueOffset": str(offset),
        "maxMsgNums": "32",
        "sysFlag": "6",
        "commitOffset": "0",
        "suspendTimeoutMillis": "15000",
        "subscription": "*",
        "subVersion": "0",
    }
    return _frame(RequestCode.PULL_MESSAGE, fields)


@contextmanager
def _brokers(loop: _OwnLoop, *configurations: str) -> Iterator[list[RunningBroker]]:
    running: list[RunningBroker] = []
    try:
        for text in configurations:
            running.append(loop.run(RunningBroker.start(read_configuration(text.encode(), None, {}))))
        yield running
    finally:
        for broker in reversed(running):
            loop.run(broker.close())


def _broker_walks(directory: Path) -> Iterator[Walk]:
    port = free_ports()
    text = f"brokerName=b\nlistenPort={port}\nhaListenPort={free_ports()}\nstorePathRootDir={directory}/alone\nbrokerIP1=127.0.0.1\n"
    with _brokers(_OwnLoop(), text):
        client, other = _Client(port), _Client(port)
        send, end = _send_frame(), 1
        client.ask(send)

        def put() -> None:
            client.ask(send)
            time.sleep(0.05)

        yield _walk("SEND", put, BROKER_ROUNDS)
        found = _pull_frame(0)
        yield _walk("PULL that finds", lambda: client.ask(found), BROKER_ROUNDS)
        end += BROKER_ROUNDS + 1
        traces = []
        for _ in range(ROUNDS + 1):
            parked = _pull_frame(end)
            with traced() as trace:
                client.send(parked)
                time.sleep(0.3)
                other.ask(send)
                client.answer()
                time.sleep(0.05)
            traces.append(trace)
            end += 1
        yield _common("PULL that waits and is woken", traces[1:])
        client.close()
        other.close()


def _slave_walks(directory: Path) -> Iterator[Walk]:
    master, ha, slave, slave_ha = free_ports(), free_ports(), free_ports(), free_ports()
    both = "brokerName=b\nbrokerIP1=127.0.0.1\n"
    texts = (
        f"{both}brokerRole=SYNC_MASTER\nbrokerId=0\ninSyncReplicas=2\nminInSyncReplicas=1\n"
        f"listenPort={master}\nhaListenPort={ha}\nstorePathRootDir={directory}/master\n",
        f"{both}brokerRole=SLAVE\nbrokerId=1\nhaMasterAddress=127.0.0.1:{ha}\n"
        f"listenPort={slave}\nhaListenPort={slave_ha}\nstorePathRootDir={directory}/slave\n",
    )
    with _brokers(_OwnLoop(), *texts):
        client, send = _Client(master), _send_frame()
        deadline = time.monotonic() + 30
        while b'"code":0' not in client.ask(send) and time.monotonic() < deadline:
            time.sleep(0.1)

        def put() -> None:
            client.ask(send)
            time.sleep(0.05)

        yield _walk("SEND at a SYNC_MASTER with a slave", put, BROKER_ROUNDS)
        client.close()
