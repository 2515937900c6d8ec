"""Commands over a cluster of two brokers, of which one does not answer: what the other one has, an error, exit code 1."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from spark_mq.cli import app
from spark_mq.client.message import MessageQueue
from spark_mq.client.pull_consumer import PullConsumer
from spark_mq.client.settings import PullSettings
from tests.broker_server.own_cluster import DEAD_LETTERS, OwnCluster, half_silent
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def halves(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[OwnCluster, OwnCluster]]:
    with half_silent(tmp_path_factory.mktemp("half")) as halves:
        with PullConsumer(halves[0].settings, "billing", PullSettings(auto_commit=False)) as consumer:
            consumer.assign([MessageQueue("Orders", "own", 0)])
            consumer.commit({MessageQueue("Orders", "own", 0): 0})
        yield halves


def run(halves: tuple[OwnCluster, OwnCluster], *words: str) -> Result:
    command = [*words, "-n", halves[0].name_server, "--request-timeout", "1s"]
    return CliRunner().invoke(app, command)


@pytest.mark.parametrize(
    "words",
    [
        ("topics",),
        ("topics", "--topic", "Orders"),
        ("query", "--topic", "Orders", "--key", "both"),
        pytest.param(("query", "--topic", "Orders", "--unique-key", "SAME"), marks=pytest.mark.long),
        pytest.param(("lag", "--queues"), marks=pytest.mark.long),
    ],
)
def test_what_the_others_have_is_shown_and_the_silent_broker_is_named(
    words: tuple[str, ...], halves: tuple[OwnCluster, OwnCluster]
) -> None:
    as_json, as_table = run(halves, *words, "--json"), run(halves, *words)
    shown = [json.loads(line) for line in as_json.stdout.splitlines()]
    found = shown[0] if isinstance(shown[0], list) else shown
    assert {each["broker_name"] for each in found if each["topic"] == "Orders"} == {"own"}
    assert "own" in as_table.stdout
    for result in as_json, as_table:
        assert [line for line in result.stderr.splitlines() if line.startswith("no answer: ")] == [
            result.stderr.splitlines()[-1]
        ], result.stderr
        assert f"no answer: {halves[1].address}: " in result.stderr
        assert result.exit_code == 1


def test_a_message_that_only_the_silent_broker_may_have_is_not_said_to_be_nowhere(
    halves: tuple[OwnCluster, OwnCluster],
) -> None:
    result = run(halves, "query", "--topic", DEAD_LETTERS, "--key", "other")
    assert result.exit_code == 1
    assert halves[1].address in result.stderr
    assert "0 message(s)" not in result.stdout


@pytest.mark.long
def test_a_broker_that_was_killed_is_missing_until_its_name_server_has_forgotten_it(tmp_path: Path) -> None:
    with half_silent(tmp_path) as halves:
        halves[1].kill()
        wait_until(lambda: run(halves, "topics").exit_code == 0, "the name server has forgotten the broker")
        result = run(halves, "query", "--topic", "Orders", "--key", "both")
    assert result.exit_code == 0
    assert "at own" in result.stdout
