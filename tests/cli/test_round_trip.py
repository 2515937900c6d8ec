"""What one command prints another one takes, and what a DataFrame says has the same names: message by message."""

from __future__ import annotations

import json
import time
from base64 import b64decode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from spark_mq.cli import app
from spark_mq.source.rows import COLUMN_NAMES, RowSource, arrow_schema, columns_named, to_record_batches
from storage import Message, open_store
from storage.format.properties import EARLIER_LIFE, MADE_ANEW
from storage.names import is_retry_or_dead_letter_topic, is_system_topic
from storage.queues.scan import scan_queue
from tests.support.commands import run
from tests.support.fixture_stores import Fixture
from tests.support.served import served

FixtureStore = Callable[[str], Fixture]
BORN_MS = 1_700_000_000_123


def users_messages(root: Path) -> dict[tuple[str, int], list[Message]]:
    """Of each queue of users' topics, in order."""
    with open_store(root) as store:
        return {
            (topic, queue_id): messages
            for topic in store.topics()
            if not is_retry_or_dead_letter_topic(topic)
            and not is_system_topic(topic, broker_name="broker-lab", cluster_name="LabCluster")
            for queue_id in store.queue_ids(topic)
            if (messages := list(served(store, topic, queue_id)))
        }


def what_is_sent(message: Message, *, unique_key: bool) -> tuple[Any, ...]:
    """All of a message that its producer decides; brokers and clients set the rest anew."""
    own = {name: text for name, text in message.properties.items() if name not in {*MADE_ANEW, *EARLIER_LIFE}}
    return (
        message.plain_body, message.tags, message.properties.get("KEYS"), own, message.flag, message.born_time_ms,
        message.unique_key if unique_key else None,
    )  # fmt: skip


def assert_same(first: Path, second: Path, *, unique_key: bool) -> None:
    sent = {
        root: {
            queue: [what_is_sent(message, unique_key=unique_key) for message in messages]
            for queue, messages in users_messages(root).items()
        }
        for root in (first, second)
    }
    assert sent[first] == sent[second]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Messages of every kind, in more queues than a new topic has."""
    root = tmp_path / "first"
    rows: dict[str, pa.Array] = {
        "topic": pa.array([*["Wide"] * 13, *["Kinds"] * 7]),
        "queue_id": pa.array([*range(13), *[0] * 7], pa.int32()),
        "body": pa.array(
            [*[b"wide %d" % number for number in range(13)], b"", b"\xff\x00\x80", "grö\u2028ßer\r\n\"".encode(), b"\x00", b"z" * 9_000,
             b"\xed\xa0\x80", b"plain"],
            pa.binary(),
        ),
        "tags": pa.array([*[None] * 13, "TagA", "a b", None, "ü", None, None, "TagB"]),
        "keys": pa.array([*[None] * 13, "k1", "k1  k2 ", None, " k", "ü", None, "k3"]),
        "flag": pa.array([*[0] * 13, 1, -7, 2**31 - 1, 0, 0, 0, 0], pa.int32()),
        "sharding_key": pa.array([*[None] * 13, None, "customer-1", None, None, None, None, None]),
        "born_timestamp": pa.array([BORN_MS + number for number in range(20)], pa.int64()),
        "properties": pa.array(
            [*[None] * 13, [("a", "1"), ("ü", "\u2028\"")], None, [("REALLY", "yes")], None, None, None, [("b", "2")]],
            pa.map_(pa.string(), pa.string()),
        ),
    }  # fmt: skip
    with open_store(root, read_only=False, create=True) as made:
        made.put_batch(pa.record_batch(rows), compress_body_over=4_096)
        made.put_batch(
            pa.record_batch({"topic": ["Late"], "body": [b"waits"], "delay_level": pa.array([3], pa.int32())})
        )
    return root


@pytest.mark.parametrize("keep", [True, False])
def test_what_dump_prints_produce_writes_again(store: Path, tmp_path: Path, *, keep: bool) -> None:
    lines = run("dump", store, "--bodies")
    options = ["--keep-unique-key"] if keep else []
    run("produce", tmp_path / "second", "--json", *options, lines=lines)
    assert len(lines.splitlines()) == 20
    assert_same(store, tmp_path / "second", unique_key=keep)


def test_messages_of_an_apache_broker_make_the_same_way(fixture_store: FixtureStore, tmp_path: Path) -> None:
    fixture = fixture_store("clean")
    run("produce", tmp_path / "second", "--json", "--keep-unique-key", lines=run("dump", fixture.root, "--bodies"))
    assert users_messages(tmp_path / "second")
    assert_same(fixture.root, tmp_path / "second", unique_key=True)


def test_a_line_has_the_columns_of_the_dataframe_and_their_values(fixture_store: FixtureStore) -> None:
    fixture = fixture_store("clean")
    rows = list(rows_of_source(fixture.root, "TopicA", "broker-lab"))
    lines = [json.loads(line) for line in run("dump", fixture.root, "--topic", "TopicA", "--bodies").splitlines()]
    for line in lines:
        assert [name.removesuffix("_base64") for name in line] == list(COLUMN_NAMES)
        line["body"] = b64decode(line.pop("body_base64")) if "body_base64" in line else line["body"].encode()
    assert lines == rows


def rows_of_source(root: Path, topic: str, broker_name: str) -> Iterator[dict[str, Any]]:
    """What the Spark source gives, with times in ms."""
    columns = columns_named(COLUMN_NAMES, kafka=False)
    with open_store(root) as store:
        for queue_id in store.queue_ids(topic):
            queue = store.queues.get(topic, queue_id)
            assert queue is not None
            for part in scan_queue(queue, store.log, store.log_end, 0, store.max_offset(topic, queue_id)):
                source = RowSource(part, topic, broker_name, queue_id, all_properties=True)
                for batch in to_record_batches(source, columns, arrow_schema(columns)):
                    for row in batch.to_pylist():
                        times = {
                            name: round(row[name].timestamp() * 1_000) for name in ("born_timestamp", "store_timestamp")
                        }
                        yield {**row, **times, "properties": dict(row["properties"])}


def test_topics_that_are_not_a_users_are_dumped_only_when_asked_for(store: Path) -> None:
    def topics_of(*options: str) -> set[str]:
        return {json.loads(line)["topic"] for line in run("dump", store, *options).splitlines()}

    assert topics_of() == {"Wide", "Kinds"}
    assert topics_of("--all") == {"Wide", "Kinds", "SCHEDULE_TOPIC_XXXX"}
    assert topics_of("--topic", "SCHEDULE_TOPIC_XXXX") == {"SCHEDULE_TOPIC_XXXX"}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--java", "--bodies"], "line 1: it is a line of `dump --java`, which is for comparing: leave --java away"),
        ([], "line 1, column body: it is missing, and body_base64 too; dump prints it with --bodies"),
    ],
)
def test_lines_that_are_no_messages_are_refused_with_the_option_that_helps(
    store: Path, tmp_path: Path, options: list[str], told: str
) -> None:
    lines = run("dump", store, *options)
    result = CliRunner().invoke(app, ["produce", str(tmp_path / "second"), "--json"], input=lines)
    assert result.exit_code == 1
    assert told in result.output
    assert not (tmp_path / "second").exists()


def test_a_query_prints_the_lines_of_a_dump(store: Path) -> None:
    (line,) = [one for one in map(json.loads, run("dump", store, "--bodies").splitlines()) if one["keys"] == "k3"]
    assert json.loads(run("query", store, "--topic", "Kinds", "--key", "k3", "--json")) == line
    assert json.loads(run("query", store, "--topic", "Kinds", "--key", "k3", "--java"))["msgId"] == line["msg_id"]


def test_an_entry_that_leads_to_no_message_is_told_and_no_line(store: Path) -> None:
    path = store / "consumequeue" / "Kinds" / "0" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[20:40] = data[0:20]
    path.write_bytes(data)
    result = CliRunner().invoke(app, ["dump", str(store), "--topic", "Kinds"])
    assert result.exit_code == 1
    assert len(result.stdout.splitlines()) == 6
    assert (
        "no message: Kinds queue 0 offset 1: its entry leads to the message of Kinds queue 0 offset 0" in result.stderr
    )


@pytest.mark.parametrize("column", ["born_timestamp", "deliver_at"])
def test_a_time_in_seconds_is_refused(tmp_path: Path, column: str) -> None:
    line = json.dumps({"body": "x", column: time.time_ns() // 10**9})
    result = CliRunner().invoke(app, ["produce", str(tmp_path / "s"), "--json", "--topic", "T"], input=line)
    assert f"line 1, column {column}: " in result.output
    assert "looks like seconds" in result.output
    assert not (tmp_path / "s").exists()
