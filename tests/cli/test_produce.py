"""Lines of standard input are in the store afterwards, each once, where an Apache-written store holds them too; bad ones are not."""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from jobs.verify_store import verify_store
from spark_mq.cli import app
from storage import Message, open_store
from storage.format.arrays import string_hash
from storage.format.record import host_text
from storage.tables.topics import TopicConfig, TopicTable
from tests.support.commands import run
from tests.support.fixture_stores import Fixture, golden_lines

FixtureStore = Callable[[str], Fixture]


def produce(path: Path, *arguments: str, lines: list[bytes], exit_code: int = 0) -> str:
    result = CliRunner().invoke(app, ["produce", str(path), *arguments], input=b"".join(line + b"\n" for line in lines))
    assert result.exit_code == exit_code, result.output
    return result.output


def produce_json(path: Path, *arguments: str, rows: list[dict[str, Any]], exit_code: int = 0) -> str:
    lines = [json.dumps(row).encode() for row in rows]
    return produce(path, "--json", *arguments, lines=lines, exit_code=exit_code)


def messages_of(path: Path, topic: str) -> list[Message]:
    """All messages of a topic in the order of the log."""
    with open_store(path) as store:
        found = [
            message
            for queue_id in store.queue_ids(topic)
            for message in store.get(topic, queue_id, 0, 10_000, max_bytes=1 << 30).messages
        ]
    return sorted(found, key=lambda message: message.commitlog_offset)


def test_each_line_is_a_message_of_a_store_that_is_made_and_closed(tmp_path: Path) -> None:
    root = tmp_path / "new" / "store"
    lines = [f"line {number}".encode() for number in range(2_345)] + [b"", b"\xff\x00 not text"]
    out = produce(root, "--topic", "orders", lines=lines)
    assert f"made a new store at {root}" in " ".join(out.split())
    assert "2,347 message(s)" in out
    assert [message.body for message in messages_of(root, "orders")] == lines
    assert not (root / "abort").exists()
    assert verify_store(str(root)).findings == ()
    with open_store(root) as store:
        assert sorted(store.max_offset("orders", queue_id) for queue_id in range(8)) == [293] * 5 + [294] * 3
    assert "made a new store" not in produce(root, "--topic", "orders", lines=[b"one more"])


def test_a_line_may_end_as_on_windows_or_not_at_all(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["produce", str(tmp_path / "s"), "--topic", "T"], input=b"a\r\nb\rc\n\r\nlast")
    assert result.exit_code == 0, result.output
    assert [message.body for message in messages_of(tmp_path / "s", "T")] == [b"a", b"b\rc", b"", b"last"]


OBJECTS = [b'{"body": "a"}', b' {"id": 1} ']


@pytest.mark.parametrize(
    ("arguments", "lines", "notices"),
    [
        ([], OBJECTS, 1),
        ([], OBJECTS * 600, 1),
        ([], [*OBJECTS, b"text"], 0),
        ([], [*OBJECTS * 600, b"text"], 0),
        ([], [b"{braces}"], 0),
        ([], [b"[1]"], 0),
        ([], [b""], 0),
        ([], [], 0),
        (["--json"], OBJECTS[:1], 0),
    ],
)
def test_lines_that_all_look_like_objects_are_bodies_and_one_notice_tells_of_json(
    tmp_path: Path, arguments: list[str], lines: list[bytes], notices: int
) -> None:
    result = CliRunner().invoke(
        app,
        ["produce", str(tmp_path / "s"), "--topic", "T", *arguments],
        input=b"".join(line + b"\n" for line in lines),
    )
    assert result.exit_code == 0, result.output
    notice = "each line looks like a JSON object and was sent as a body, as it stands; with --json a line has a message's columns"
    assert result.stderr.splitlines().count(notice) == notices
    assert "JSON" not in result.stdout
    if not arguments and lines:
        assert [message.body for message in messages_of(tmp_path / "s", "T")] == lines


def test_an_object_holds_the_columns_of_the_sink(tmp_path: Path) -> None:
    full = {
        "body": "größer",
        "topic": "TopicJ",
        "tags": "TagA",
        "keys": ["k1", "k2"],
        "properties": {"a": "1", "ü": "2"},
        "flag": -7,
        "born_timestamp": 1_767_225_600_123,
        "queue_id": 3,
    }
    rows = [
        full,
        {"body_base64": base64.b64encode(b"\x00\xff").decode(), "keys": "k3 k4", "tags": None, "topic": "Other"},
        {"body": "", "sharding_key": "customer-4711", "topic": "Other"},
        {"body": "as it is read", "queue_offset": 17, "msg_id": "X", "store_host": "10.0.0.1:1", "topic": "Other"},
    ]
    root = tmp_path / "store"
    produce_json(root, rows=rows)
    (first,) = messages_of(root, "TopicJ")
    assert (first.body, first.tags, tuple(first.keys)) == ("größer".encode(), "TagA", ("k1", "k2"))
    assert (first.flag, first.born_time_ms, first.queue_id) == (-7, 1_767_225_600_123, 3)
    assert {name: first.properties[name] for name in ("a", "ü")} == {"a": "1", "ü": "2"}
    second, third, fourth = messages_of(root, "Other")
    assert (second.body, tuple(second.keys), second.tags) == (b"\x00\xff", ("k3", "k4"), None)
    assert (third.body, third.queue_id) == (b"", abs(string_hash("customer-4711")) % 8)
    assert fourth.body == b"as it is read"
    with open_store(root) as store:
        assert [message.msg_id for message in store.query("Other", "k4")] == [second.msg_id]


def test_an_object_may_ask_for_a_delay_or_a_retry(tmp_path: Path) -> None:
    """HookUtils.handleScheduleMessage, SendMessageProcessor.handleRetryAndDLQ: what waits lies in a system topic."""
    root = tmp_path / "store"
    deliver_at = time.time_ns() // 1_000_000 + 3_600_000
    rows: list[dict[str, Any]] = [
        {"body": "now", "delay_level": 0},
        {"body": "level", "delay_level": 3},
        {"body": "time", "deliver_at": deliver_at},
        {"body": "retry", "retry_group": "Billing", "reconsume_times": 2, "origin_msg_id": "FIRST"},
    ]
    produce_json(root, "--topic", "T", rows=rows)
    assert [message.body for message in messages_of(root, "T")] == [b"now"]
    parked = {message.body: message.properties for message in messages_of(root, "SCHEDULE_TOPIC_XXXX")}
    assert (parked[b"level"]["DELAY"], parked[b"level"]["REAL_TOPIC"]) == ("3", "T")
    assert (parked[b"retry"]["DELAY"], parked[b"retry"]["REAL_TOPIC"]) == ("5", "%RETRY%Billing")
    assert (parked[b"retry"]["RETRY_TOPIC"], parked[b"retry"]["ORIGIN_MESSAGE_ID"]) == ("T", "FIRST")
    (timed,) = messages_of(root, "rmq_sys_wheel_timer")
    assert (timed.body, timed.properties["REAL_TOPIC"]) == (b"time", "T")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b'{"body": 5}', 'line 3, column body: expected a text, found 5'),
        (b'{"topic": "T"}', "line 3, column body: it is missing"),
        (b'{"body": null}', "line 3, column body: it is missing"),
        (b'{"body": "x", "body_base64": "eA=="}', "line 3, column body_base64: it is there beside body"),
        (b'{"body_base64": "x"}', "line 3, column body_base64: it is no base64"),
        (b'{"body": "x", "queue_id": 1.0}', "line 3, column queue_id: expected a whole number"),
        (b'{"body": "x", "flag": true}', "line 3, column flag: expected a whole number"),
        (b'{"body": "x", "flag": 9223372036854775808}', "line 3, column flag: expected a whole number"),
        (b'{"body": "x", "flag": 2147483648}', "line 3, column flag: 2147483648 does not fit into 32 bits"),
        (b'{"body": "x", "keys": ["a", 1]}', "line 3, column keys: expected a text, found 1"),
        (b'{"body": "x", "keys": ["a b"]}', "line 3, column keys: a key of the list holds a blank"),
        (b'{"body": "x", "properties": ["a"]}', "line 3, column properties: expected an object"),
        (b'{"body": "x", "properties": {"a": null}}', "line 3, column properties: expected a text, found null"),
        (b'{"body": "x", "tags": "a\\u0001b"}', "line 3, column tags: it holds a control character"),
        (b'{"body": "x", "tags": "\\ud800"}', "line 3, column tags: it holds half of a surrogate pair"),
        (b'{"body": "x", "queue_id": 4096}', "line 3, column queue_id: 4096 is no queue"),
        (b'{"body": "x", "tgas": "a"}', "line 3, column tgas: there is no such column; did you mean tags?"),
        (b'{"body": "x", "transaction_state": "c"}', "line 3, column transaction_state: there is no such column; a line may have"),
        (b'{"body": "x", "delay_level": "3"}', "line 3, column delay_level: expected a whole number"),
        (b'["body"]', "line 3: expected a JSON object"),
        (b'{"body": "x"', "line 3: it is no JSON"),
        (b'{"body": "\xff"}', "line 3: it is no JSON"),
        (b"[" * 100_000, "line 3: it is no JSON"),
    ],
)  # fmt: skip
def test_a_bad_line_is_named_and_nothing_of_its_batch_is_written(tmp_path: Path, line: bytes, told: str) -> None:
    lines = [b'{"body": "good"}', b"  ", line, b'{"body": "good too"}']
    out = produce(tmp_path / "store", "--json", "--topic", "T", lines=lines, exit_code=1)
    assert f"error: {told}" in out
    assert "hint: nothing was written" in out
    assert os.listdir(tmp_path) == []


def test_a_line_for_a_topic_of_rocketmqs_own_is_refused(tmp_path: Path) -> None:
    rows = [{"body": "x", "topic": "T"}, {"body": "x", "topic": "SCHEDULE_TOPIC_XXXX"}]
    out = produce_json(tmp_path / "store", rows=rows, exit_code=1)
    assert "error: line 2, column topic: topic name 'SCHEDULE_TOPIC_XXXX' is illegal" in out


def test_the_topic_of_the_command_line_comes_before_a_lines_which_is_said_once(tmp_path: Path) -> None:
    rows = [{"body": str(number), "topic": "Read"} for number in range(1_001)]
    out = produce_json(tmp_path / "store", "--topic", "Copy", rows=rows)
    assert out.count("lines name topic Read: all are written to Copy, as --topic says") == 1
    with open_store(tmp_path / "store") as store:
        assert "Read" not in store.topics()
    assert len(messages_of(tmp_path / "store", "Copy")) == 1_001


def test_what_was_written_before_a_bad_line_is_said_and_stays(tmp_path: Path) -> None:
    rows = [{"body": str(number)} for number in range(2_500)]
    rows[2_200]["tags"] = rows[2_300]["tags"] = "\n"
    out = produce_json(tmp_path / "store", "--topic", "T", rows=rows, exit_code=1)
    assert "error: line 2201, column tags: it holds a control character; 1 more of these lines are refused" in out
    assert "hint: 2,000 message(s) were written, up to the line before 2001" in out
    assert [message.body.decode() for message in messages_of(tmp_path / "store", "T")] == [str(n) for n in range(2_000)]


def test_lines_go_behind_what_an_apache_broker_wrote(fixture_store: FixtureStore) -> None:
    fixture = fixture_store("clean")
    before = list(golden_lines(fixture.golden, "message"))
    produce(fixture.root, "--topic", "TopicA", lines=[b"w", b"x", b"y", b"z"])
    listed = [json.loads(line) for line in run("dump", fixture.root, "--java", "--all").splitlines()]
    added = [line for line in listed if line not in before]
    assert [line for line in listed if line in before] == before
    assert sorted((line["topic"], line["queueId"], line["queueOffset"]) for line in added) == [
        ("TopicA", queue_id, 150) for queue_id in range(4)
    ]
    hosts = {line["storeHost"] for line in before if line["topic"] == "TopicA"}
    assert {line["storeHost"] for line in added} == hosts
    assert verify_store(str(fixture.root)).findings == ()


def test_topics_are_made_as_asked_or_refused(tmp_path: Path) -> None:
    root = tmp_path / "store"
    out = produce(root, "--topic", "T", "--no-create-topic", lines=[b"x"], exit_code=1)
    assert "there is no topic 'T'" in out
    produce(root, "--topic", "T", "--queue-num", "3", lines=[b"x"] * 6)
    config = TopicTable.load((root / "config" / "topics.json").read_text("utf-8")).topics["T"]
    assert (config.read_queue_count, config.write_queue_count, config.perm) == (3, 3, 6)
    produce(root, "--topic", "T", "--queue-num", "5", "--no-create-topic", lines=[b"x"] * 6)
    with open_store(root) as store:
        assert [store.max_offset("T", queue_id) for queue_id in store.queue_ids("T")] == [4, 4, 4]


def topics_of(root: Path) -> Mapping[str, TopicConfig]:
    return TopicTable.load((root / "config" / "topics.json").read_text("utf-8")).topics


def test_a_topic_that_is_made_gets_the_queues_that_lines_name_however_late(tmp_path: Path) -> None:
    root = tmp_path / "store"
    rows = [{"body": "x", "queue_id": number // 1_500} for number in range(30_000)]
    produce_json(root, "--topic", "T", rows=rows)
    with open_store(root) as store:
        assert [store.max_offset("T", queue_id) for queue_id in store.queue_ids("T")] == [1_500] * 20
    assert (topics_of(root)["T"].read_queue_count, topics_of(root)["T"].write_queue_count) == (20, 20)
    later = produce_json(root, "--topic", "T", rows=[{"body": "x", "queue_id": 20}], exit_code=1)
    assert "20 is no queue: topic 'T' has 20 queues (queueNum=21 adds more)" in later
    produce_json(root, "--topic", "T", "--queue-num", "21", rows=[{"body": "x", "queue_id": 20}])
    assert topics_of(root)["T"].write_queue_count == 21


def test_the_store_host_is_in_the_records_unless_the_configuration_says_another(tmp_path: Path) -> None:
    root = tmp_path / "store"
    produce(root, "--topic", "T", "--store-host", "10.1.2.3:20911", "--sync", lines=[b"x"])
    assert [host_text(message.store_host) for message in messages_of(root, "T")] == ["10.1.2.3:20911"]
    (tmp_path / "broker.conf").write_text("brokerIP1=10.1.2.3\nlistenPort=20911\n", "utf-8")
    refused = produce(root, "--topic", "T", "--store-host", "10.1.2.4:20911", lines=[b"y"], exit_code=1)
    assert "give storeHost=10.1.2.3:20911" in refused
    assert "storeHost" in produce(root, "--topic", "T", "--store-host", "0.0.0.0:1", lines=[b"y"], exit_code=1)
    assert [message.body for message in messages_of(root, "T")] == [b"x"]


def test_what_cannot_be_done_is_said_before_anything_is_made(tmp_path: Path) -> None:
    root = tmp_path / "store"
    assert "give --topic" in produce(root, lines=[b"x"], exit_code=2)
    assert "--lock-timeout" in produce(root, "--topic", "T", "--lock-timeout", "soon", lines=[b"x"], exit_code=2)
    assert list(tmp_path.iterdir()) == []
    (root / "elsewhere").mkdir(parents=True)
    assert "no RocketMQ store" in produce(root, "--topic", "T", lines=[b"x"], exit_code=1)
    assert [path.name for path in root.iterdir()] == ["elsewhere"]
    assert "nothing was written" in produce(tmp_path / "empty", "--topic", "T", lines=[])


def test_a_topic_is_entered_beside_the_brokers_own(fixture_store: FixtureStore) -> None:
    root = fixture_store("clean").root
    path = root / "config" / "topics.json"
    before = TopicTable.load(path.read_text("utf-8"))
    told = json.loads(run("create-topic", root, "NewTopic", "--queues", "12", "--perm", "4", "--json"))
    assert (told["created"], told["read_queue_nums"], told["write_queue_nums"], told["perm"]) == (True, 12, 12, 4)
    after = TopicTable.load(path.read_text("utf-8"))
    made = after.topics["NewTopic"]
    assert (made.read_queue_count, made.write_queue_count, made.perm, made.topic_filter_type) == (
        12,
        12,
        4,
        "SINGLE_TAG",
    )
    assert {name: config for name, config in after.topics.items() if name != "NewTopic"} == before.topics
    assert after.version.counter == before.version.counter + 1
    assert not (root / "abort").exists()
    assert "cannot be written" in produce(root, "--topic", "NewTopic", lines=[b"x"], exit_code=1)


def test_a_topic_that_is_there_is_never_changed(tmp_path: Path) -> None:
    root = tmp_path / "store"
    assert "made, with 8 read queues" in run("create-topic", root, "T")
    content = (root / "config" / "topics.json").read_bytes()
    assert "was there already" in run("create-topic", root, "T")
    told = json.loads(run("create-topic", root, "T", "--json"))
    assert told["created"] is False
    for different in (["--queues", "9"], ["--queues", "7"], ["--perm", "2"]):
        assert "is there already, with 8 read queues" in run("create-topic", root, "T", *different, exit_code=1)
    assert (root / "config" / "topics.json").read_bytes() == content


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("SCHEDULE_TOPIC_XXXX", "system topic"),
        ("rmq_sys_spark_mq_ledger", "system topic"),
        ("DefaultCluster", "system topic"),
        ("%RETRY%GroupA", "belongs to a consumer group"),
        ("%DLQ%GroupA", "belongs to a consumer group"),
        ("../../etc", "is none of"),
        ("T" * 128, "the limit is 127"),
    ],
)
def test_no_topic_of_a_brokers_own_is_entered(tmp_path: Path, name: str, rule: str) -> None:
    assert rule in run("create-topic", tmp_path / "store", name, exit_code=1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["broker-lab", "LabCluster", "LabCluster_REPLY_TOPIC"])
def test_without_its_configuration_the_topics_of_a_store_tell_which_are_its_brokers(
    fixture_store: FixtureStore, name: str
) -> None:
    fixture = fixture_store("clean")
    fixture.conf.write_text("maxHashSlotNum=1000\nmaxIndexNum=2000\n", "utf-8")
    assert "system topic" in run("create-topic", fixture.root, name, exit_code=1)
    assert "system topic" in produce(fixture.root, "--topic", name, lines=[b"x"], exit_code=1)
