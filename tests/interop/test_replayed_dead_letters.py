"""Dead letters of a running cluster of Apache's go back: each once, and to whom they are meant for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from jobs.replay_dead_letters import main
from spark_mq.cluster_replay import ClusterLetters
from spark_mq.options import ClusterOptions
from storage.failpoints import ENVIRONMENT
from tests.support.java_broker import Oracle, RunningBroker
from tests.support.places import PROJECT

pytestmark = [pytest.mark.interop, pytest.mark.slow]

GROUP, TOPIC, COUNT = "Failing", "Work", 4
AUDITED, AUDITED_TOPIC = "Audited", "Audits"
RETRIED, RETRIED_TOPIC = "Retried", "Retries"


@pytest.fixture(scope="module")
def broker(oracle: Oracle, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """A Java consumer of the group gave up each message of the topic."""
    directory = tmp_path_factory.mktemp("dead-")
    with oracle.namesrv() as name_server, oracle.broker(directory / "store", name_server) as running:
        with ExitStack() as stack:
            consumers = []
            for group, topic in ((GROUP, TOPIC), (AUDITED, AUDITED_TOPIC), (RETRIED, RETRIED_TOPIC)):
                oracle.send(directory / f"{topic}.jsonl", running, topic, queues=2, count=COUNT)
                failing = oracle.client("FailingConsumer", directory / group, running, group=group, topics=topic, max=0)
                consumers.append(stack.enter_context(failing))
            for consumer in consumers:
                consumer.until(lambda lines: bool(lines) and lines[-1]["count"] >= COUNT, "dead")
        yield running


def ran(
    broker: RunningBroker, capsys: pytest.CaptureFixture[str], *words: str, group: str = GROUP
) -> tuple[int, dict[str, Any]]:
    code = main(["-n", broker.name_server, "--group", group, "--json", *words])
    return code, json.loads(capsys.readouterr().out)


def copies_of(directory: Path, broker: RunningBroker, topic: str) -> Counter[str]:
    lines = Oracle(directory).consume_all(directory / "seen.jsonl", broker, [topic], lookUps=0)
    return Counter(line["uniqKey"] for line in lines if line["type"] == "message")


def test_each_letter_is_replayed_once_also_by_a_run_that_is_killed_between(
    broker: RunningBroker, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, told = ran(broker, capsys, "--dry-run")
    assert (code, told["would_replay"], told["name_server"]) == (0, {TOPIC: COUNT}, broker.name_server)
    killed = in_a_process(broker, "--group", GROUP, **{ENVIRONMENT: "replay-amid-copies:2"})
    assert killed.returncode not in (0, 1, 2, 75), killed.stderr
    assert ran(broker, capsys)[1]["results"] == {"replayed": COUNT - 2}
    assert ran(broker, capsys)[1]["results"] == ran(broker, capsys, "--to", "retry")[1]["results"] == {}
    assert set(copies_of(tmp_path, broker, TOPIC).values()) == {2}, "each message, and one copy of each"
    another = ClusterOptions(name_server=(broker.name_server,), request_timeout=4_000)  # so a client of its own
    with closing(ClusterLetters(another, GROUP)) as letters, letters.locked():
        code, told = ran(broker, capsys, "--again")
    assert code == 75
    assert "replays dead letters of Failing" in told["nothing_done"]


def test_a_copy_in_the_retry_topic_comes_to_the_failing_group_alone(
    broker: RunningBroker, oracle: Oracle, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plain = {"topics": RETRIED_TOPIC, "succeedAt": 0}
    code, told = ran(broker, capsys, "--to", "retry", group=RETRIED)
    assert (code, told["results"]) == (0, {"replayed": COUNT})
    with closing(ClusterLetters(ClusterOptions(name_server=(broker.name_server,)), RETRIED)) as letters:
        ids = {letter.msg_id for letter in letters.listed()}
    with (
        oracle.client("FailingConsumer", tmp_path / "own", broker, group=RETRIED, **plain) as own,
        oracle.client("FailingConsumer", tmp_path / "other", broker, group="Others", **plain) as other,
    ):
        lines = own.until(lambda lines: len(again(lines)) >= COUNT, "consumed")
        other.until(lambda lines: len(lines) >= COUNT, "consumed")
    found = again(lines)
    assert {line["properties"]["REPLAYED_FROM"] for line in found} == ids
    assert {(line["topic"], line["reconsumeTimes"]) for line in found} == {(RETRIED_TOPIC, 0)}, "as a first try"
    assert not again(other.lines("consumed"))


@pytest.mark.spark
@pytest.mark.long
def test_the_audit_says_what_became_of_the_letters_of_a_run_that_was_killed(
    broker: RunningBroker, tmp_path: Path
) -> None:
    words = ["--group", AUDITED, "--audit", str(tmp_path / "audit"), "--master", "local[1]", "--json"]
    killed = in_a_process(broker, *words, **{ENVIRONMENT: "replay-amid-copies:2"})
    assert killed.returncode not in (0, 1, 2, 75), killed.stderr
    where = ["--where", f"origin_topic = '{AUDITED_TOPIC}'"]
    followed = in_a_process(broker, *words, *where)
    assert followed.returncode == 0, followed.stderr
    assert json.loads(followed.stdout)["results"] == {"replayed": COUNT - 2}
    assert set(copies_of(tmp_path, broker, AUDITED_TOPIC).values()) == {2}
    dry = in_a_process(broker, *words, "--dry-run")
    assert json.loads(dry.stdout)["would_replay"] == {}


def in_a_process(broker: RunningBroker, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "jobs.replay_dead_letters", "-n", broker.name_server, *words]
    variables = {**os.environ, **environment}
    return subprocess.run(command, cwd=PROJECT, env=variables, capture_output=True, text=True, check=False)


def again(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [line for line in lines if line["properties"].get("RETRY_TOPIC") == RETRIED_TOPIC]
