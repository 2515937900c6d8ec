"""The command on a running cluster: beside what mqadmin says, and beside what the command says of the broker's own store."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from spark_mq.cli import app
from storage.epoch_times import current_time_ms
from tests.support.java_broker import Oracle, RunningBroker
from tests.support.places import COMMAND, PROJECT

pytestmark = [pytest.mark.interop, pytest.mark.slow]

TOPIC = "Command"
COUNT = 100
MQADMIN = "org.apache.rocketmq.tools.command.MQAdminStartup"
AGE = re.compile(r"\([0-9]+ [a-z]+ ago\) *")
"""It grows from one command to the next."""


@pytest.fixture(scope="module")
def sent(live_broker: RunningBroker, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What a Java producer sent to the topic of this module, and was answered."""
    directory = tmp_path_factory.mktemp("sent-")
    return Oracle(directory).send(directory / "sent.jsonl", live_broker, TOPIC, queues=3, count=COUNT)


@pytest.fixture
def live(live_broker: RunningBroker, sent: list[dict[str, Any]]) -> Live:
    return Live(live_broker)


class Live:
    """The command with the name server of a running broker."""

    def __init__(self, broker: RunningBroker) -> None:
        self.broker = broker

    def run(self, *words: str, stdin: str = "", exit_code: int = 0) -> str:
        command = [words[0], "--name-server", self.broker.name_server, *words[1:]]
        result = CliRunner().invoke(app, command, input=stdin)
        assert result.exit_code == exit_code, result.output
        return result.stdout if exit_code == 0 else result.stderr

    def json(self, *words: str) -> Any:
        return json.loads(self.run(*words, "--json"))

    def of_store(self, *words: str) -> str:
        """What the same command says of the broker's files."""
        conf = ["--conf", str(self.broker.conf)]  # says the size of the index files
        result = CliRunner().invoke(app, [words[0], str(self.broker.store), *words[1:], *conf])
        assert result.exit_code == 0, result.output
        return result.stdout

    def lines(self, *words: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.run(*words).splitlines()]

    def mqadmin(self, directory: Path, *words: str) -> list[list[str]]:
        """The words of each line that mqadmin prints."""
        output = Oracle(directory).java(MQADMIN, words[0], "-n", self.broker.name_server, *words[1:])
        return [line.split() for line in output.splitlines() if line.strip()]

    def topic_status(self, directory: Path, topic: str) -> list[list[str]]:
        """Of mqadmin's table broker, queue, minimum and maximum."""
        lines = self.mqadmin(directory, "topicStatus", "-t", topic)
        return sorted(line for line in lines if line[0] == "broker-lab")


def by_queue(entries: list[dict[str, Any]], *names: str) -> dict[int, tuple[Any, ...]]:
    return {entry["queue_id"]: tuple(entry[name] for name in names) for entry in entries}


# Reading: the same words as for the store behind it.


@pytest.mark.parametrize(
    "words",
    [
        ("dump", "--topic", TOPIC),
        ("dump", "--topic", TOPIC, "--bodies", "--from", "10", "--to", "20"),
        ("dump", "--topic", TOPIC, "--queue-id", "1", "--limit", "7"),
        ("query", "--topic", TOPIC, "--key", "key7", "--json"),
        ("query", "--topic", TOPIC, "--key", "key7"),
        ("offset-by-time", "--topic", TOPIC, "--time", "2020-01-01", "--json"),
        ("offset-by-time", "--topic", TOPIC, "--time", "2020-01-01", "--json", "--upper"),
    ],
)
def test_a_cluster_is_told_as_its_store_is(live: Live, words: tuple[str, ...]) -> None:
    told = live.run(*words)
    assert told
    assert AGE.sub("", told) == AGE.sub("", live.of_store(*words))


def test_a_dump_is_what_the_java_producer_sent(live: Live, sent: list[dict[str, Any]]) -> None:
    told = live.lines("dump", "--topic", TOPIC)
    assert [(line["queue_id"], line["queue_offset"]) for line in told] == sorted(
        (line["queueId"], line["queueOffset"]) for line in sent
    )
    assert {line["unique_key"] for line in told} == {line["msgId"] for line in sent}


def test_messages_are_found_by_both_of_their_ids(live: Live, sent: list[dict[str, Any]]) -> None:
    one = sent[COUNT // 2]
    (by_unique_key,) = live.lines("query", "--json", "--topic", TOPIC, "--unique-key", one["msgId"])
    assert live.lines("query", "--json", "--msg-id", one["offsetMsgId"]) == [by_unique_key]
    assert (by_unique_key["queue_id"], by_unique_key["queue_offset"]) == (one["queueId"], one["queueOffset"])
    elsewhere = one["offsetMsgId"][:-16] + f"{int(one['offsetMsgId'][-16:], 16) + 1:016X}"
    assert live.lines("query", "--json", "--msg-id", elsewhere) == []


def test_topics_are_those_of_mqadmin_with_their_offsets(live: Live, tmp_path: Path) -> None:
    told = live.json("topics", "--all")
    assert {(line[0],) for line in live.mqadmin(tmp_path, "topicList")} <= {(entry["topic"],) for entry in told}
    (entry,) = [entry for entry in told if entry["topic"] == TOPIC]
    status = {int(line[1]): (int(line[2]), int(line[3])) for line in live.topic_status(tmp_path, TOPIC)}
    assert by_queue(entry["queues"], "min_offset", "max_offset") == status
    (stored,) = [entry for entry in json.loads(live.of_store("topics", "--json")) if entry["topic"] == TOPIC]
    assert entry == stored


def test_brokers_are_those_of_mqadmin(live: Live, tmp_path: Path) -> None:
    (told,) = live.json("brokers")
    (line,) = [words for words in live.mqadmin(tmp_path, "clusterList") if words[0] == "LabCluster"]
    assert [told["cluster"], told["broker_name"], str(told["broker_id"]), told["address"], told["version"]] == line[:5]


# A group.


def test_a_group_consumes_what_is_sent_and_lag_agrees_with_mqadmin(live: Live, tmp_path: Path) -> None:
    group = "CommandGroup"
    first = live.lines("consume", "--topic", TOPIC, "--group", group, "--limit", "40", "--bodies")
    assert len(first) == 40
    lag = [line for line in live.json("lag", "--queues", "--group", group) if line["topic"] == TOPIC]
    progress = [words for words in live.mqadmin(tmp_path, "consumerProgress", "-g", group) if words[0] == TOPIC]
    assert by_queue(lag, "broker_offset", "group_offset", "lag") == {
        int(words[2]): (int(words[3]), int(words[4]), int(words[5])) for words in progress
    }
    assert sum(line["lag"] for line in lag) == COUNT - 40
    assert_ages_are_those_of_the_first_unread_messages(live, group)
    left = str(COUNT - 40)
    rest = live.lines("consume", "--topic", TOPIC, "--group", group, "--limit", left, "--wait", "60s", "--bodies")
    places = [(line["queue_id"], line["queue_offset"]) for line in first + rest]
    assert len(places) == len(set(places)) == COUNT
    assert [
        (line["lag"], line["oldest_unread_ms"])
        for line in live.json("lag", "--queues", "--group", group)
        if line["topic"] == TOPIC
    ] == [(0, 0)] * 3
    (entry,) = live.json("groups", "--group", group)
    assert (entry["lag"], entry["clients"], TOPIC in entry["topics"]) == (0, [], True)


def assert_ages_are_those_of_the_first_unread_messages(live: Live, group: str) -> None:
    """Asked for the group (208, 14, 303) and for all groups (317, 43, 303) alike."""
    stored_ms = {
        (line["queue_id"], line["queue_offset"]): line["store_timestamp"]
        for line in live.lines("dump", "--topic", TOPIC)
    }
    for words in (("--group", group), ()):
        before_ms = current_time_ms()
        lines = live.json("lag", "--queues", "--topic", TOPIC, *words)
        after_ms = current_time_ms()
        own = [line for line in lines if line["group"] == group]
        assert sum(line["lag"] for line in own) == COUNT - 40
        for line in own:
            if line["lag"]:
                since_ms = stored_ms[line["queue_id"], line["group_offset"]]
                assert before_ms - since_ms <= line["oldest_unread_ms"] <= after_ms - since_ms
            else:
                assert line["oldest_unread_ms"] == 0


def test_a_group_is_set_back_as_a_dry_run_says(live: Live) -> None:
    group = "ResetGroup"
    words = ("reset-offset", "--group", group, "--topic", TOPIC, "--to")
    text = live.run(*words, "earliest", exit_code=1)
    assert text.startswith(f"error: there is no group {group}")
    assert len(live.lines("consume", "--topic", TOPIC, "--group", group, "--limit", str(COUNT))) == COUNT
    ends = by_queue(live.json("lag", "--queues", "--group", group), "group_offset")
    planned = live.json(*words, "earliest", "--dry-run")
    assert by_queue(planned, "before", "after", "done") == {queue: (end, 0, False) for queue, (end,) in ends.items()}
    assert by_queue(live.json("lag", "--queues", "--group", group), "group_offset") == ends
    assert [step | {"done": False} for step in live.json(*words, "earliest")] == planned
    assert {
        offset for (offset,) in by_queue(live.json("lag", "--queues", "--group", group), "group_offset").values()
    } == {0}
    live.run(*words, "latest")
    assert by_queue(live.json("lag", "--queues", "--group", group), "group_offset") == ends


# Writing.


def test_a_topic_is_changed_and_deleted_as_mqadmin_sees_it(live: Live, tmp_path: Path) -> None:
    live.run("create-topic", "Altered", "--queues", "2")
    (done,) = live.json("alter-topic", "Altered", "--queues", "3")
    assert (done["changed"], done["before"]["read_queue_nums"], done["read_queue_nums"], done["perm"]) == (
        True,
        2,
        3,
        6,
    )
    assert [line[1] for line in live.topic_status(tmp_path, "Altered")] == ["0", "1", "2"]
    (again,) = live.json("alter-topic", "Altered", "--queues", "3")
    assert not again["changed"]
    page = live.run("report")
    assert TOPIC in page
    assert "Altered" in page
    assert live.json("delete-topic", "Altered", "--yes")["messages"] == 0
    assert ["Altered"] not in [line[:1] for line in live.mqadmin(tmp_path, "topicList")]
    assert "there is no topic Altered" in live.run("alter-topic", "Altered", "--perm", "4", exit_code=1)
    for topic in ("TBW102", "broker-lab", "LabCluster"):
        assert "RocketMQ's own" in live.run("delete-topic", topic, "--yes", exit_code=1)


def test_a_topic_is_made_once_and_what_is_sent_to_it_is_there(live: Live, tmp_path: Path) -> None:
    words = ("create-topic", "Made", "--queues", "2")
    assert live.json(*words)["created"]
    assert not live.json(*words)["created"]
    assert "is there already" in live.run("create-topic", "Made", "--queues", "3", exit_code=1)
    assert [line[:3] for line in live.topic_status(tmp_path, "Made")] == [
        ["broker-lab", "0", "0"],
        ["broker-lab", "1", "0"],
    ]
    live.run("produce", "--topic", "Made", stdin="".join(f"{number}\n" for number in range(50)))
    told = live.lines("dump", "--topic", "Made", "--bodies")
    assert sorted(int(line["body"]) for line in told) == list(range(50))
    assert len({line["unique_key"] for line in told}) == 50
    assert {line["queue_id"] for line in told} == {0, 1}


def test_lines_of_a_dump_are_messages_again_in_their_order(live: Live) -> None:
    dumped = live.lines("dump", "--topic", TOPIC, "--bodies")
    lines = "".join(json.dumps(line | {"topic": "Copied"}) + "\n" for line in dumped)
    live.run("produce", "--json", "--create-topic", "--queue-num", "3", stdin=lines)
    copied = live.lines("dump", "--topic", "Copied", "--bodies")

    def kept(lines: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
        names = "queue_id", "queue_offset", "tags", "keys", "body", "body_base64", "flag"
        return [(*map(line.get, names), line["properties"].get("n")) for line in lines]

    assert kept(copied) == kept(dumped)


def test_a_bad_line_says_what_was_sent(live: Live) -> None:
    text = live.run("produce", "--topic", TOPIC, "--json", stdin='{"body":"x","queue_id":77}\n', exit_code=1)
    assert text.splitlines() == [
        f"error: line 1, column queue_id: topic {TOPIC} has no queue 77, its queues are 0 to 2",
        "hint: nothing was sent",
    ]
    text = live.run("produce", "--topic", "Nowhere", "--no-create-topic", stdin="x\n", exit_code=1)
    assert text.splitlines()[0] == "error: there is no topic Nowhere"


# Until a signal.


def following(live: Live, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, words[0], "--name-server", live.broker.name_server, *words[1:], "--follow", "--bodies"],
        cwd=PROJECT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )


@pytest.mark.parametrize(
    ("words", "number"),
    [
        (("dump", "--topic", "Followed"), signal.SIGINT),
        (("consume", "--topic", "Followed", "--group", "Following"), signal.SIGTERM),
        (("consume", "--topic", "Followed", "--group", "Pushed", "--push"), signal.SIGINT),
    ],
    ids=["dump", "consume", "push"],
)
def test_following_prints_what_is_sent_and_ends_with_a_signal(
    live: Live, words: tuple[str, ...], number: signal.Signals
) -> None:
    live.run("create-topic", "Followed", "--queues", "1")
    live.run("produce", "--topic", "Followed", stdin="a\n")
    before = len(live.lines("dump", "--topic", "Followed"))
    with following(live, *words) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            lines = [process.stdout.readline() for _ in range(before)]
            live.run("produce", "--topic", "Followed", stdin="b\n")
            lines.append(process.stdout.readline())
            assert [json.loads(line)["queue_offset"] for line in lines] == list(range(before + 1))
            assert json.loads(lines[-1])["body"] == "b"
            process.send_signal(number)
            assert process.wait(timeout=60) == 0
            assert (process.stdout.read(), process.stderr.read()) == ("", "")
        finally:
            process.kill()
    if "--group" in words:
        (line,) = [line for line in live.json("lag", "--queues", "--group", words[4]) if line["topic"] == "Followed"]
        assert (line["group_offset"], line["lag"]) == (before + 1, 0)
