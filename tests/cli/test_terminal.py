"""What people meet at a terminal: the first call, narrow windows, long work, Ctrl-C."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
from rich.console import Console
from typer.testing import CliRunner

from spark_mq.cli import app
from spark_mq.terminal import busy, duration_in_words, progress_bar, time_in_words
from storage import open_store
from tests.support.commands import run
from tests.support.fixture_stores import Fixture
from tests.support.places import PROJECT
from tests.support.shares import one_in
from tests.support.waiting import wait_until

FixtureStore = Callable[[str], Fixture]


# The first call


def test_without_arguments_a_newcomer_is_told_what_to_do_next() -> None:
    out = run()
    for step in (
        "spark-mq demo",
        "spark-mq doctor",
        "spark-mq topics PATH",
        "spark-mq produce PATH",
        "spark-mq --help",
    ):
        assert step in out
    assert max(map(len, out.splitlines())) < 100


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_a_completion(shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # What typer finds out from its parent process, which is no shell that it knows on every machine.
    monkeypatch.setattr("shellingham.detect_shell", lambda: (shell, f"/bin/{shell}"))
    completion = run("--show-completion")
    assert "_SPARK_MQ_COMPLETE" in completion
    asked = {"_SPARK_MQ_COMPLETE": "complete_bash", "COMP_WORDS": "spark-mq sink", "COMP_CWORD": "1"}
    result = CliRunner(env=asked).invoke(app, [], prog_name="spark-mq")
    assert result.stdout.split() == ["sink-status"]


# Clusters


def stores_in(root: Path, *names: str) -> None:
    for name in names:
        open_store(root / name, read_only=False, create=True).close()


def test_a_directory_that_is_read_as_a_cluster_is_named(tmp_path: Path) -> None:
    stores_in(tmp_path, "a", "b/store")
    result = CliRunner().invoke(app, ["topics", str(tmp_path), "--json"])
    assert result.exit_code == 0, result.output
    assert result.stderr == f"{tmp_path} is read as a cluster of 2 stores: a, b/store\n"
    assert CliRunner().invoke(app, ["topics", str(tmp_path / "a")]).stderr == ""


def test_a_folder_of_other_things_is_no_cluster_of_strangers_stores(tmp_path: Path) -> None:
    stores_in(tmp_path, "alice/store", "bob/store")
    (tmp_path / "photos").mkdir()
    result = CliRunner().invoke(app, ["topics", str(tmp_path)])
    assert result.exit_code == 1
    assert "is no store, and no cluster: beside stores it holds photos; name the store that is meant" in result.stderr
    assert f"{tmp_path}/alice/store" in result.stderr
    (tmp_path / "photos").rename(tmp_path / ".photos")
    assert "cluster of 2 stores" in CliRunner().invoke(app, ["topics", str(tmp_path)]).stderr


def test_stores_deeper_down_are_not_found(tmp_path: Path) -> None:
    stores_in(tmp_path, "projects/alice/store")
    assert "no RocketMQ store" in CliRunner().invoke(app, ["topics", str(tmp_path)]).output


def test_the_only_store_in_a_directory_is_named_before_it_is_written(tmp_path: Path) -> None:
    stores_in(tmp_path, "a")
    result = CliRunner().invoke(app, ["produce", str(tmp_path), "--topic", "T"], input="x\n")
    assert result.exit_code == 0
    assert f"the store at {tmp_path} is {tmp_path}/a" in result.stderr


# Topics and groups that are not a user's


def test_topics_and_groups_of_rocketmq_itself_are_shown_only_when_asked_for(pristine_store: FixtureStore) -> None:
    root = pristine_store("clean").root
    shown, everything = run("topics", root), run("topics", root, "--all")
    assert "TopicA" in shown
    assert "%DLQ%GroupR" in shown
    assert "SCHEDULE_TOPIC_XXXX" not in shown
    assert "SCHEDULE_TOPIC_XXXX" in everything
    assert "--all shows them" in shown
    assert "--all shows them" not in everything
    groups = {line["group"] for line in json.loads(run("lag", root, "--json"))}
    every_group = {line["group"] for line in json.loads(run("lag", root, "--json", "--all"))}
    assert "GroupA" in groups
    assert {group for group in every_group - groups if not group.startswith("CID_RMQ_SYS_")} == set()
    assert every_group - groups


# Narrow windows


@pytest.mark.parametrize("columns", [50, 80, 120])
@pytest.mark.parametrize("command", ["topics", "lag", "offset-by-time", "query", "sink-status"])
def test_tables_stay_whole_in_a_narrow_window(pristine_store: FixtureStore, command: str, columns: int) -> None:
    root = pristine_store("clean").root
    options = {
        "offset-by-time": ["--topic", "TopicA", "--time", "1767225600000"],
        "query": ["--topic", "TopicA", "--key", "keyA-1"],
    }.get(command, [])
    out = run(command, root, *options, COLUMNS=str(columns), TERM="xterm")
    assert max(map(len, out.splitlines()), default=0) <= columns
    assert "…" not in out.replace("…\n", "")
    if command == "topics":
        assert "TopicOrder" in out, "no name is cut"
        assert "broker-lab" in out


def test_where_columns_do_not_fit_each_row_stands_by_itself(pristine_store: FixtureStore) -> None:
    root = pristine_store("clean").root
    lines = [line.split() for line in run("lag", root, "--group", "GroupA", COLUMNS="50").splitlines() if line]
    first = dict(line for line in lines[:9] if len(line) == 2)
    assert first["group"] == "GroupA"
    assert set(first) >= {"topics", "queues", "unread"}


# Times


@pytest.mark.parametrize(
    ("duration_ms", "words"),
    [(0, "0 ms"), (999, "999 ms"), (1_000, "1 second"), (179_000, "2 minutes"), (7_200_000, "2 hours"), (86_400_000, "1 day"),
     (10**14, "1,157,407 days")],
)  # fmt: skip
def test_a_duration_is_told_in_its_greatest_unit(duration_ms: int, words: str) -> None:
    assert duration_in_words(duration_ms) == words


def test_a_time_is_told_with_its_zone_and_how_long_ago() -> None:
    assert time_in_words(1_767_225_600_123, 1_767_225_780_123) == "2026-01-01T00:00:00.123Z (3 minutes ago)"
    assert time_in_words(1_767_225_600_000, 1_767_225_599_000) == "2026-01-01T00:00:00.000Z (in 1 second)"
    assert time_in_words(None, 0) is None


# Long work


def terminal() -> tuple[Console, io.StringIO]:
    text = io.StringIO()
    return Console(file=text, force_terminal=True, width=80), text


def test_a_bar_appears_only_where_work_lasts_for_a_while() -> None:
    shown, text = terminal()
    with progress_bar("comparing", terminal=shown, patience_s=3_600) as tell:
        tell(1, 10)
    assert text.getvalue() == ""


@pytest.mark.parametrize(
    ("unit", "shows"),
    [
        ("bytes", (r"50%", r"5\.0/10\.0 MB", r"MB/s", r"0:00:\d\d")),
        ("messages", (r"50%", r"5,000,000/10,000,000 [\d,]+/s", r"0:00:\d\d")),
    ],
)
def test_a_bar_shows_how_much_is_done_the_rate_and_the_time_left(
    unit: Literal["bytes", "messages"], shows: tuple[str, ...]
) -> None:
    shown, text = terminal()
    with progress_bar("comparing", unit, terminal=shown, patience_s=0) as tell:
        wait_until(text.getvalue, "the bar is there", pause_seconds=0.01)
        tell(1_000_000, 10_000_000)
        time.sleep(0.2)
        tell(5_000_000, 10_000_000)
        wait_until(lambda: all(re.search(each, text.getvalue()) for each in shows), "it shows them", pause_seconds=0.01)


def test_a_sign_of_life_appears_only_after_a_while() -> None:
    shown, text = terminal()
    with busy("recovering", terminal=shown, patience_s=3_600):
        pass
    assert text.getvalue() == ""


@pytest.mark.parametrize("sign", [progress_bar, busy])
def test_lines_for_a_file_do_not_go_to_the_terminal(sign: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown, text = terminal()
    with (tmp_path / "lines").open("w+", encoding="utf-8") as file:
        monkeypatch.setattr(sys, "stdout", file)
        with sign("reading", terminal=shown, patience_s=0):
            wait_until(text.getvalue, "the sign is there", pause_seconds=0.01)
            print("a line")
        monkeypatch.undo()
        file.seek(0)
        assert file.read() == "a line\n"
    assert "a line" not in text.getvalue()


def test_where_stderr_is_no_terminal_nothing_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("messages") as tell, busy("recovering", patience_s=0):
        tell(1, 2)
    assert capsys.readouterr() == ("", "")


# Ctrl-C


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_is_one_line_and_exit_code_130(pristine_store: FixtureStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_mq.cli.stores._topics_of", lambda *_: interrupt())
    result = CliRunner().invoke(app, ["topics", str(pristine_store("clean").root)])
    assert (result.exit_code, result.output) == (130, "interrupted\n")


def test_lag_is_watched_until_ctrl_c(pristine_store: FixtureStore, monkeypatch: pytest.MonkeyPatch) -> None:
    sleeps: list[float] = []
    really_sleep = time.sleep

    def sleep(seconds: float) -> None:
        if threading.current_thread() is not threading.main_thread():  # it is everybody's function
            really_sleep(seconds)
            return
        sleeps.append(seconds)
        if len(sleeps) == 3:
            interrupt()

    monkeypatch.setattr("spark_mq.cli.lag.time.sleep", sleep)
    result = CliRunner().invoke(app, ["lag", str(pristine_store("clean").root), "--watch", "7", "--json"])
    assert result.exit_code == 0, result.output
    looks = [[{**group, "oldest_unread_ms": None} for group in json.loads(line)] for line in result.stdout.splitlines()]
    assert len(looks) == 3
    assert looks[0] == looks[1] == looks[2] != []
    assert sleeps == [7, 7, 7]


@pytest.mark.parametrize("number", one_in(2, [signal.SIGINT, signal.SIGTERM]))
def test_following_ends_by_a_signal_that_its_parent_ignores(
    pristine_store: FixtureStore, number: signal.Signals
) -> None:
    code = "import signal; signal.signal(signal.{0}, signal.SIG_IGN); from spark_mq.cli import main; main()"
    command = [
        sys.executable,
        "-c",
        code.format(number.name),
        "dump",
        str(pristine_store("clean").root),
        "--topic",
        "TopicA",
    ]
    with subprocess.Popen(
        [*command, "--follow"], cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            for _ in range(600):
                process.stdout.readline()
            process.send_signal(number)
            assert process.wait(timeout=60) == 0
            assert process.stderr is not None
            assert process.stderr.read() == b""
        finally:
            process.kill()
