"""What the commands print agrees with what Apache's own classes say of the same store."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from spark_mq.cli import app
from storage import open_store
from storage.epoch_times import current_time_ms
from storage.errors import CorruptMessageError
from storage.format.record import COMPRESSED
from storage.rules.inner_messages import InnerMessage
from tests.support.commands import json_of, lines_of, run
from tests.support.fixture_stores import Fixture, golden_lines

FixtureStore = Callable[[str], Fixture]


def messages(fixture: Fixture, topic: str, queue_id: int) -> list[dict[str, Any]]:
    return [m for m in golden_lines(fixture.golden, "message") if (m["cqTopic"], m["cqQueueId"]) == (topic, queue_id)]


@pytest.mark.parametrize("name", ["crashed", "ext"])
def test_a_dump_is_the_golden_listing(fixture_store: FixtureStore, name: str) -> None:
    fixture = fixture_store(name)
    run("recover", fixture.root)
    assert lines_of("dump", fixture.root, "--java", "--all") == list(golden_lines(fixture.golden, "message"))


@pytest.mark.parametrize("follow", [[], ["--follow"]])
def test_a_dump_of_what_cannot_be_there_is_refused_at_once(pristine_store: FixtureStore, follow: list[str]) -> None:
    root = pristine_store("clean").root
    refused = run("dump", root, "--topic", "Topica", *follow, exit_code=1)
    assert "there is no topic Topica" in refused
    assert "did you mean TopicA?" in refused
    refused = run("dump", root, "--topic", "TopicA", "--queue-id", "99", *follow, exit_code=1)
    assert "there is no queue 99 of topic TopicA" in refused
    assert "the queues are 0 to 3" in refused
    refused = run(
        "dump", root, "--topic", "TopicA", "--queue-id", "1", "--from", "10", "--to", "5", *follow, exit_code=2
    )
    assert "--to must be greater than --from" in refused
    assert "the queues hold offsets 0 to 149" in refused


def test_a_topic_without_messages_dumps_nothing_without_an_error(tmp_path: Path) -> None:
    run("create-topic", tmp_path / "new", "Empty", "--queues", "4")
    assert lines_of("dump", tmp_path / "new", "--topic", "Empty") == []
    assert lines_of("dump", tmp_path / "new", "--topic", "Empty", "--queue-id", "3") == []
    assert "the queues are 0 to 3" in run("dump", tmp_path / "new", "--topic", "Empty", "--queue-id", "4", exit_code=1)


def test_a_dump_can_be_cut(pristine_store: FixtureStore) -> None:
    fixture = pristine_store("clean")
    queue = messages(fixture, "TopicA", 1)
    asked = "dump", fixture.root, "--topic", "TopicA", "--queue-id", "1", "--java"
    assert lines_of(*asked, "--from", "3", "--to", "9") == queue[3:9]
    assert lines_of(*asked, "--from", "3", "--limit", "2") == queue[3:5]
    assert lines_of(*asked, "--limit", "0") == []
    assert lines_of(*asked, "--from", "150") == []
    (line,) = lines_of(*asked, "--limit", "1", "--bodies")
    assert {**line, "body": None} == {**queue[0], "body": None}
    assert len(lines_of("dump", fixture.root, "--from", "149", "--topic", "TopicA")) == 4


def test_topics_are_the_golden_queues_with_their_settings(pristine_store: FixtureStore) -> None:
    fixture = pristine_store("clean")
    listed = {entry["topic"]: entry for entry in json_of("topics", fixture.root, "--all")}
    golden = groupby(golden_lines(fixture.golden, "queue"), key=lambda line: str(line["topic"]))
    for topic, queues in golden:
        expected = [
            (line["queueId"], line["minOffset"], line["maxOffset"], line["maxOffset"] - line["minOffset"])
            for line in queues
        ]
        assert [tuple(queue.values()) for queue in listed[topic]["queues"]] == expected
    settings = json.loads((fixture.root / "config" / "topics.json").read_text("utf-8"))["topicConfigTable"]
    for topic, config in settings.items():
        found = listed[topic]
        assert (found["read_queue_nums"], found["write_queue_nums"], found["perm"]) == (
            config["readQueueNums"],
            config["writeQueueNums"],
            config["perm"],
        )
    assert "TopicOrder" in run("topics", fixture.root)


def test_a_query_finds_at_least_what_the_broker_finds(pristine_store: FixtureStore) -> None:
    fixture = pristine_store("clean")
    asked = [line for line in golden_lines(fixture.golden, "query") if line["topic"] in ("TopicA", "TopicTx")]
    for line in [
        *islice((q for q in asked if not q["uniq"]), 0, None, 60),
        *islice((q for q in asked if q["uniq"]), 5),
    ]:
        arguments = ["query", fixture.root, "--topic", line["topic"], "--max", str(line["maxNum"])]
        arguments += ["--unique-key" if line["uniq"] else "--key", line["key"]]
        arguments += ["--from", str(line["begin"]), "--to", str(line["end"])]
        found = lines_of(*arguments, "--json")
        assert {message["commitlog_offset"] for message in found} >= set(line["physicalOffsets"])


def test_a_query_by_message_id_finds_that_message(pristine_store: FixtureStore) -> None:
    fixture = pristine_store("clean")
    message = messages(fixture, "TopicOrder", 0)[3]
    (found,) = lines_of("query", fixture.root, "--msg-id", message["msgId"], "--java")
    assert found.items() >= {name: message[name] for name in ("topic", "queueOffset", "recordSha256")}.items()
    assert lines_of("query", fixture.root, "--msg-id", message["msgId"][:-1] + "0", "--json") == []
    assert message["msgId"] in run("query", fixture.root, "--msg-id", message["msgId"])


def test_offsets_by_time_are_the_brokers(pristine_store: FixtureStore) -> None:
    fixture = pristine_store("clean")
    golden = [line for line in golden_lines(fixture.golden, "offsetByTime") if line["topic"] == "TopicA"]
    for line in golden[::12]:
        asked = ["offset-by-time", fixture.root, "--topic", "TopicA", "--queue-id", str(line["queueId"])]
        (lower,) = json_of(*asked, "--time", str(line["timestamp"]))
        (upper,) = json_of(*asked, "--time", str(line["timestamp"]), "--upper")
        assert (lower["queue_offset"], upper["queue_offset"]) == (line["lower"], line["upper"])


def test_lag_is_counted_from_the_stored_offsets_and_unknown_stays_unknown(fixture_store: FixtureStore) -> None:
    fixture = fixture_store("clean")
    stored = fixture.root / "config" / "consumerOffset.json"
    text = stored.read_text("utf-8")
    assert "{0:150,1:150,2:150,3:150" in text
    stored.write_text(text.replace("{0:150,1:150,2:150,3:150", "{0:140,2:9999,3:0,9:5"), "utf-8")
    before_ms = current_time_ms()
    lines = json_of("lag", fixture.root, "--group", "GroupA", "--queues")
    after_ms = current_time_ms()
    found = {line["queue_id"]: line for line in lines if line["topic"] == "TopicA"}
    waiting = messages(fixture, "TopicA", 0)[140:]
    assert behind(found[0]) == (10, sum(message["storeSize"] for message in waiting))
    stored_ms = waiting[0]["storeTimestamp"]
    assert before_ms - stored_ms <= found[0]["oldest_unread_ms"] <= after_ms - stored_ms
    assert behind(found[1]) == behind(found[2]) == behind(found[9]) == (None, None)
    assert behind(found[3]) == (150, sum(message["storeSize"] for message in messages(fixture, "TopicA", 3)))
    assert (found[1]["group_offset"], found[9]["broker_offset"]) == (None, None)
    (group,) = json_of("lag", fixture.root, "--group", "GroupA", "--topic", "TopicA")
    assert (group["lag"], group["queues"], group["unknown_queues"]) == (160, 5, 3)
    assert group["worst"] == {"topic": "TopicA", "broker_name": found[3]["broker_name"], "queue_id": 3, "lag": 150}
    caught_up = [
        line
        for line in json_of("lag", fixture.root, "--all", "--queues")
        if line["topic"] == "RMQ_SYS_TRANS_OP_HALF_TOPIC"
    ]
    assert [(*behind(line), line["oldest_unread_ms"], line["catch_up_ms"]) for line in caught_up] == [(0, 0, 0, 0)]
    assert "GroupA" in run("lag", fixture.root)


def behind(line: dict[str, Any]) -> tuple[int | None, int | None]:
    return line["lag"], line["bytes"]


def test_recover_says_what_it_cut_and_built(fixture_store: FixtureStore) -> None:
    fixture = fixture_store("crcflip")
    before = next(golden_lines(fixture.golden, "summary"))
    report = json_of("recover", fixture.root)
    assert (report["was_clean"], report["log_end"]) == (False, before["afterLoadMaxPhy"])
    assert report["cut_bytes"] == before["rawLastNonZero"] - before["afterLoadMaxPhy"]
    assert "body CRC" in report["cut_at"]
    again = json_of("recover", fixture.root)
    assert (again["was_clean"], again["cut_bytes"], again["cut_at"], again["added_entries"]) == (True, 0, None, 0)
    assert "cleanly" in run("recover", fixture.root)


def test_several_stores_are_read_as_one_cluster_but_mended_one_by_one(
    pristine_store: FixtureStore, tmp_path: Path
) -> None:
    for name in ("roll", "clean"):
        shutil.copytree(pristine_store(name).conf.parent, tmp_path / name)
        conf = tmp_path / name / "broker.conf"
        conf.write_text(f"{conf.read_text('utf-8')}\nbrokerName={name}\n", "utf-8")
    brokers = {entry["broker_name"] for entry in json_of("topics", tmp_path)}
    assert brokers == {"roll", "clean"}
    assert {line["broker_name"] for line in lines_of("dump", tmp_path)} == brokers
    assert {line["brokerName"] for line in lines_of("dump", tmp_path, "--java")} == brokers
    for command in ("recover", "verify"):
        assert "holds 2 stores" in run(command, tmp_path, exit_code=1)


def test_errors_are_one_line_and_a_hint(pristine_store: FixtureStore, tmp_path: Path) -> None:
    root = pristine_store("clean").root
    lines = run("dump", tmp_path, exit_code=1).splitlines()
    assert [line.partition(":")[0] for line in lines] == ["error", "hint"]
    assert "--unique-key" in run("query", root, "--msg-id", "abc", exit_code=2)
    assert "--time" in run("offset-by-time", root, "--topic", "TopicA", "--time", "noon", exit_code=2)
    assert "did you mean GroupA?" in run("lag", root, "--group", "groupa", exit_code=1)
    assert "there is no such" in run("dump", root, "--conf", tmp_path / "none.conf", exit_code=1)


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("dump", "{}", "--topic", "TopcA"), 1, None),
        (("topics", "{}", "--json"), 1, "no RocketMQ store"),
        (("query", "{}", "--json", "--topic", "T"), 2, "give exactly one of --key, --unique-key and --msg-id"),
        (("lag", "--json"), 2, "PATH"),
        (("topics", "{}", "--json", "--nothing"), 2, "--nothing"),
        (("job", "verify_stor", "{}", "--json"), 2, None),
        (("job", "verify_store", "{}", "--json"), 1, "no RocketMQ store"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_errors_are_an_object_on_stdout_too_where_json_is_asked_for(
    arguments: tuple[str, ...], code: int, text: str | None, tmp_path: Path
) -> None:
    result = CliRunner().invoke(app, [argument.format(tmp_path) for argument in arguments])
    assert result.exit_code == code
    assert result.stderr
    if text is None:
        assert result.stdout == ""
        return
    found = json.loads(result.stdout)
    assert found["exit_code"] == code
    assert text in found["error"]


def test_debug_shows_where_an_error_comes_from(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["--debug", "dump", str(tmp_path)])
    assert type(result.exception).__name__ == "StoreNotFoundError"


def test_an_index_of_unknown_geometry_asks_for_the_configuration(fixture_store: FixtureStore) -> None:
    fixture = fixture_store("clean")
    conf = fixture.conf.rename(fixture.conf.with_name("elsewhere.conf"))
    assert "broker.conf" in run("query", fixture.root, "--topic", "TopicA", "--key", "key14", exit_code=1)
    assert lines_of("query", fixture.root, "--topic", "TopicA", "--key", "key14", "--conf", conf, "--json") != []


def test_doctor_answers_in_json() -> None:
    result = CliRunner().invoke(app, ["doctor", "--json"])
    assert {finding["severity"] for finding in json.loads(result.stdout)} <= {"error", "warning", "note"}


def test_a_body_that_does_not_decompress_is_named_and_ends_no_command(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with open_store(path, read_only=False, create=True) as store:
        store.put("Topic", b"good", queue_id=0)
        forged = {"body": b"no such stream", "properties": {"KEYS": "bad"}, "sys_flag": COMPRESSED}
        store.put_inner([InnerMessage(topic="Topic", queue_id=0, **forged)])
        store.put("Topic", b"good", queue_id=0)
        message = store.get("Topic", 0, 1).messages[0]
        assert message.body == b"no such stream"
        with pytest.raises(CorruptMessageError, match=r"offset 1 of topic Topic, queue 0 .*incorrect header check"):
            _ = message.plain_body
    first, bad, last = lines_of("dump", path, "--topic", "Topic", "--bodies")
    assert (first["body"], last["body"], bad["body"]) == ("good", "good", None)
    assert "incorrect header check" in bad["_corrupt"]
    (found,) = lines_of("query", path, "--topic", "Topic", "--key", "bad", "--json")
    assert found == bad
    _, of_java, _ = lines_of("dump", path, "--topic", "Topic", "--bodies", "--java")
    assert of_java["body"] is None
    assert "offset 1 of topic Topic, queue 0" in of_java["error"]
    refused = CliRunner().invoke(app, ["produce", str(tmp_path / "copy"), "--json"], input=json.dumps(bad))
    assert "line 1, column _corrupt: its body is not to be had" in refused.output
    assert "1 message(s)" in run("query", path, "--topic", "Topic", "--key", "bad")
