"""What we delete is what a broker deletes, and Apache's classes list what is left of a store as we do."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from jobs.delete_expired_files import delete_expired_files
from spark_mq.cli.message_lines import dump_queue
from storage import open_store
from tests.support.fixture_stores import Fixture
from tests.support.java_broker import Oracle

pytestmark = [pytest.mark.interop, pytest.mark.slow]

SIZES = {"mappedFileSizeCommitLog": 65_536, "mappedFileSizeConsumeQueue": 400, "maxHashSlotNum": 50, "maxIndexNum": 100}
LAST_FILES = 3


def of_type(lines: list[dict[str, Any]], type_: str) -> list[dict[str, Any]]:
    return [line for line in lines if line["type"] == type_]


def files_of(root: Path) -> list[str]:
    """All files of log, queues, extensions and index."""
    parts = (root / name for name in ("commitlog", "consumequeue", "consumequeue_ext", "index"))
    return sorted(str(path.relative_to(root)) for part in parts for path in part.rglob("*") if path.is_file())


@pytest.mark.parametrize("old_files", [3, 7])
def test_the_files_that_go_are_those_that_a_broker_deletes(
    old_files: int, oracle: Oracle, fixture_store: Callable[[str], Fixture]
) -> None:
    """DefaultMessageStore.cleanFilesPeriodically and cleanQueueFilesPeriodically, on a store that a broker wrote"""
    ours, theirs = fixture_store("roll"), fixture_store("roll")
    before = files_of(ours.root)
    for fixture in (ours, theirs):
        for path in sorted((fixture.root / "commitlog").iterdir())[:old_files]:
            os.utime(path, (0, 0))
    minimum = int(oracle.java("CleanStore", theirs.root, theirs.conf))
    plan, _ = delete_expired_files(str(ours.root), now=True, sleep=lambda seconds: None)
    assert plan.minimum == minimum > 0
    assert files_of(ours.root) == files_of(theirs.root)
    gone = set(before) - set(files_of(ours.root))
    assert {path.partition("/")[0] for path in gone} == {"commitlog", "consumequeue", "index"}


def test_apache_reads_on_where_we_have_deleted(oracle: Oracle, tmp_path: Path) -> None:
    """DefaultMessageStore.load, ConsumeQueue.correctMinOffset, IndexService.load on what CleanCommitLogService would have left"""
    store, conf = tmp_path / "store", tmp_path / "broker.conf"
    settings = SIZES | {"brokerName": "broker-lab", "brokerIP1": "127.0.0.1", "deleteCommitLogFilesInterval": 0}
    conf.write_text("".join(f"{name}={value}\n" for name, value in settings.items()), "utf-8")
    with open_store(store, read_only=False, create=True) as ours:
        ours.put_batch(pa.table({"topic": ["Gone"] * 90, "body": [bytes(100)] * 90}), queue_count=1)
        for number in range(10):
            rows = {"topic": ["Orders", "Stock"] * 50, "body": [b"%d" % n * 400 for n in range(100)]}
            keys = [f"k{number}-{n // 2}" for n in range(100)]
            ours.put_batch(pa.table({**rows, "keys": keys}), queue_count=2)
    files = sorted((store / "commitlog").iterdir())
    for path in files[:-LAST_FILES]:
        os.utime(path, (0, 0))
    index_count = len(list((store / "index").iterdir()))
    for _ in range(2):  # ten files at a time
        delete_expired_files(str(store), now=True, sleep=lambda seconds: None)
    assert sorted((store / "commitlog").iterdir()) == files[-LAST_FILES:]

    lines = oracle.dump(store, conf)
    (summary,) = of_type(lines, "summary")
    assert (summary["minPhyOffset"], summary["truncatedBytes"]) == (int(files[-LAST_FILES].name), 0)
    with open_store(store) as ours:
        for line in of_type(lines, "queue"):
            queue = line["topic"], line["queueId"]
            assert (ours.min_offset(*queue), ours.max_offset(*queue)) == (line["minOffset"], line["maxOffset"])
        read = [line for queue in ours.queues for line in dump_queue(ours, queue.topic, queue.queue_id)]
    assert of_type(lines, "message") == read
    assert len(read) > 100
    expected_ends = {("Gone", 0): 90, ("Orders", 0): 250, ("Orders", 1): 250, ("Stock", 0): 250, ("Stock", 1): 250}
    assert {(line["topic"], line["queueId"]): line["maxOffset"] for line in of_type(lines, "queue")} == expected_ends
    before, after = of_type(lines, "indexBefore"), of_type(lines, "indexAfter")
    assert 0 < len(before) < index_count
    assert [line["file"] for line in after] == [line["file"] for line in before]
    found = {place for line in of_type(lines, "query") for place in line["physicalOffsets"]}
    assert found == {line["physicalOffset"] for line in read}
