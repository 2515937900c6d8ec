"""Messages over 4 MiB, into a broker of Apache's that takes them: by the sink with either guarantee, and by the command."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from spark_mq.cli import app
from spark_mq.client.blocking_connection import BlockingConnection
from spark_mq.client.settings import ClientSettings
from spark_mq.conditions import InvalidRowError
from spark_mq.remoting import RequestCode, make_request
from spark_mq.sink import live_routes
from spark_mq.sink.columns import InputColumns
from spark_mq.sink.direct_writer import send_rows
from spark_mq.sink.live_sink import commit_to_brokers, stage_for_brokers
from spark_mq.sink.options import LiveSinkOptions
from storage.batch.ledger import Batch
from tests.support.java_broker import Oracle, RunningBroker

pytestmark = [pytest.mark.interop, pytest.mark.slow]

TOPIC = "Large"
SETTINGS = {"maxMessageSize": 12 << 20, "mappedFileSizeCommitLog": 64 << 20, "waitTimeMillsInSendQueue": 60_000}
BODY = random.Random(4).randbytes(5_000_000).hex().encode()
COLUMNS = InputColumns(("body",))


def allow(broker: RunningBroker, size: int) -> None:
    settings = ClientSettings((broker.name_server,))
    connection = BlockingConnection[None](broker.address, settings)
    connection.send([(make_request(RequestCode.UPDATE_BROKER_CONFIG, None, b"maxMessageSize=%d\n" % size), None)])
    ((_, answer), *_) = connection.receive()
    connection.close()
    assert answer.code == 0
    live_routes._known.clear()


def test_what_a_broker_takes_is_written_to_it_and_nothing_larger(broker: RunningBroker, tmp_path: Path) -> None:
    broker.make_topic(TOPIC)
    given = {"nameServer": broker.name_server, "topic": TOPIC, "sendTimeout": "60s"}
    frame = pa.record_batch({"body": [b"small", BODY]})
    at_least_once = LiveSinkOptions.parse(given, "batch")
    assert send_rows(at_least_once, COLUMNS, 0, bytes(8), iter([frame])).statuses == {0: 2}
    exact = LiveSinkOptions.parse({**given, "stagingPath": str(tmp_path / "staged"), "writeId": "w"}, "batch")
    commit_to_brokers(exact, [stage_for_brokers(exact, COLUMNS, Batch("w", "w", 0), 0, 0, iter([frame]))], 0)
    command = ["produce", "-n", broker.name_server, "--topic", TOPIC, "--request-timeout", "30s"]
    ran = CliRunner().invoke(app, command, input=BODY + b"\n")
    assert ran.exit_code == 0, ran.output
    lines = Oracle(tmp_path).consume_all(tmp_path / "seen.jsonl", broker, [TOPIC], lookUps=0)
    hashes = [line["bodySha256"] for line in lines if line["type"] == "message"]
    assert sorted(hashes) == sorted(hashlib.sha256(body).hexdigest() for body in (*[b"small", BODY] * 2, BODY))
    allow(broker, 8 << 20)
    with pytest.raises(InvalidRowError, match="maxMessageSize is 8388608"):
        send_rows(at_least_once, COLUMNS, 0, bytes(8), iter([frame]))


def test_what_fits_into_no_file_of_the_log_is_not_sent(live_broker: RunningBroker) -> None:
    """That broker's files have 2 MiB. It would acknowledge the message, and store nothing."""
    live_broker.make_topic(TOPIC)
    options = LiveSinkOptions.parse({"nameServer": live_broker.name_server, "topic": TOPIC}, "batch")
    frame = pa.record_batch({"body": [b"x" * 3_000_000]})
    with pytest.raises(InvalidRowError, match="do not fit into a log file"):
        send_rows(options, COLUMNS, 0, bytes(8), iter([frame]))
