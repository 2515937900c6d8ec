"""The job deletes what has expired of a store that the Apache broker wrote, and says so; the rest stays as the broker listed it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jobs.delete_expired_files import delete_expired_files, main
from jobs.verify_store import verify_store
from spark_mq.cli.message_lines import dump_queue
from storage import open_store
from tests.support.fixture_stores import Fixture, golden_lines

FixtureStore = Callable[[str], Fixture]
HOUR_S = 3_600
OLD_S = 1_000_000_000  # in 2001
YOUNG_S = 4_000_000_000  # in 2096, so that it is young for any clock
NOW_S = YOUNG_S + HOUR_S
OLD_FILES = 3


@pytest.fixture
def fixture(fixture_store: FixtureStore) -> Fixture:
    """Seven log files, of which the first three were last changed long ago and the others one hour ago."""
    found = fixture_store("roll")
    for number, path in enumerate(log_files(found.root)):
        os.utime(path, (0, OLD_S if number < OLD_FILES else YOUNG_S))
    with found.conf.open("a", encoding="utf-8") as conf:
        conf.write(
            "\ndeleteWhen=03\ndiskMaxUsedSpaceRatio=75\ndeleteCommitLogFilesInterval=0\ndeleteConsumeQueueFilesInterval=0\n"
        )
    return found


def log_files(root: Path) -> list[Path]:
    return sorted((root / "commitlog").iterdir())


def everything(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


def run(fixture: Fixture, **options: Any) -> tuple[Any, int]:
    options = {"used_percent": lambda path: 10, "clock": lambda: NOW_S * 1_000, **options}
    return delete_expired_files(str(fixture.root), sleep=lambda seconds: None, **options)


def messages(root: Path) -> Iterator[dict[str, Any]]:
    with open_store(root) as store:
        for queue in store.queues:
            yield from dump_queue(store, queue.topic, queue.queue_id)


def test_what_stays_is_what_the_broker_listed(fixture: Fixture) -> None:
    files = log_files(fixture.root)
    minimum = int(files[OLD_FILES].name)
    listed = list(golden_lines(fixture.golden, "message"))
    plan, renewed = run(fixture, now=True)
    assert (plan.minimum, renewed) == (minimum, 0)
    assert log_files(fixture.root) == files[OLD_FILES:]
    assert list(messages(fixture.root)) == [line for line in listed if line["physicalOffset"] >= minimum]
    gone = Counter(line["cqTopic"] for line in listed if line["physicalOffset"] < minimum)
    assert plan.messages_of_topics == dict(sorted(gone.items()))
    assert verify_store(str(fixture.root)).findings == ()
    assert not (fixture.root / "abort").exists(), "it was closed cleanly, and is again"


def test_nothing_goes_at_another_hour(fixture: Fixture) -> None:
    before = log_files(fixture.root)
    hours = []
    for hour in range(24):
        seconds = NOW_S + hour * HOUR_S
        plan, _ = run(fixture, clock=lambda seconds=seconds: seconds * 1_000, dry_run=True)
        hours.append(len(plan.log_files))
    assert sorted(hours) == [0] * 23 + [OLD_FILES]
    assert log_files(fixture.root) == before


def test_a_full_disk_takes_younger_files_too(fixture: Fixture) -> None:
    files = log_files(fixture.root)
    plan, _ = run(fixture, used_percent=lambda path: 80)
    assert not plan.occasion.is_full
    assert log_files(fixture.root) == files[OLD_FILES:]
    plan, _ = run(fixture, used_percent=lambda path: 95)
    assert plan.occasion.is_full, "a broker would take no message now"
    assert log_files(fixture.root) == files[-1:]
    assert verify_store(str(fixture.root)).findings == ()


def test_a_dry_run_changes_nothing_and_needs_no_lock(fixture: Fixture, capsys: pytest.CaptureFixture[str]) -> None:
    with open_store(fixture.root, read_only=False) as store:
        before = everything(fixture.root)
        assert main([str(fixture.root), "--now", "--dry-run"]) == 0
        assert everything(fixture.root) == before
        assert store.log_end > 0
    said = capsys.readouterr().out
    assert (
        f"would delete {OLD_FILES} log files, {OLD_FILES * 65_536} bytes; the log begins at {OLD_FILES * 65_536}"
        in said
    )


def test_it_says_what_went(fixture: Fixture, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(fixture.root), "--now"]) == 0
    said = capsys.readouterr().out
    gone = Counter(
        line["cqTopic"]
        for line in golden_lines(fixture.golden, "message")
        if line["physicalOffset"] < OLD_FILES * 65_536
    )
    assert len(gone) > 1
    assert [line for line in said.splitlines() if line.startswith("topic ")] == [
        f"topic {topic}: {count} messages" for topic, count in sorted(gone.items())
    ]


def test_a_store_that_sinks_keep_open_stays_so(fixture: Fixture) -> None:
    store = open_store(fixture.root, read_only=False)
    store.put("Later", b"body")
    store.release()
    run(fixture, now=True)
    assert (fixture.root / "abort").exists()
    store = open_store(fixture.root, read_only=False)
    assert store.recovery is None, "the next commit opens it without a recovery"
    store.close()
