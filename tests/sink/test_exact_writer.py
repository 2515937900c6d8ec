"""What a task that stages rows for running brokers says of rows that it refuses."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from spark_mq.conditions import InvalidRowError
from spark_mq.remoting import MessageQueue
from spark_mq.sink import exact_writer
from spark_mq.sink.columns import InputColumns
from spark_mq.sink.exact_writer import StagedForBrokers, abort_staged, stage_for_brokers
from spark_mq.sink.journal import Journal
from spark_mq.sink.live_options import LiveSinkOptions
from spark_mq.sink.sent_batch import Intent, QueueSpan
from spark_mq.sink.staged_rows import StagedWriter
from storage.batch.ledger import Batch
from storage.files.local_file_system import LocalFileSystem
from tests.support.fake_broker import FakeBroker
from tests.support.taking_broker import RoutesTo


def test_a_refused_row_leaves_nothing_and_is_not_told_of_dead_letters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exact_writer, "live_routes", lambda options: nullcontext(RoutesTo(FakeBroker([]))))
    named = {"nameServer": "unused:1", "guarantee": "exactlyOnce", "stagingPath": str(tmp_path), "writeId": "w"}
    options = LiveSinkOptions.parse({**named, "topic": "T"}, "batch")
    frame = pa.record_batch({"body": pa.array([b"a", None], pa.binary())})
    with pytest.raises(InvalidRowError, match="row 1, column body") as refused:
        stage_for_brokers(options, InputColumns(("body",)), Batch("sink", "query", 0), 0, 0, iter([frame]))
    assert "Nothing of the batch was sent" in str(refused.value)
    assert "deadLetterPath" not in str(refused.value)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_rows_that_a_full_disk_did_not_take_leave_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a file system gives blocks away late, a write succeeds and the sync says that there is no room."""
    monkeypatch.setattr(exact_writer, "live_routes", lambda options: nullcontext(RoutesTo(FakeBroker([]))))
    monkeypatch.setattr(os, "fdatasync", _full)
    monkeypatch.setattr(os, "fsync", _full)
    named = {"nameServer": "unused:1", "guarantee": "exactlyOnce", "stagingPath": str(tmp_path), "writeId": "w"}
    options = LiveSinkOptions.parse({**named, "topic": "T"}, "batch")
    frame = pa.record_batch({"body": pa.array([b"a"], pa.binary())})
    with pytest.raises(OSError, match="No space left"):
        stage_for_brokers(options, InputColumns(("body",)), Batch("sink", "query", 0), 0, 0, iter([frame]))
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_an_abort_leaves_the_files_that_an_intent_names(tmp_path: Path) -> None:
    """The batch is decided: a later commit sends it, from these files."""
    files, batch = LocalFileSystem(), Batch("sink", "query", 3)
    journal = Journal(files, str(tmp_path), "sink")
    queue, staged = MessageQueue("T", "b", 0), []
    for partition in range(3):
        writer = StagedWriter(files, journal.directory, f"3-{partition}-0000000{partition}-x.rows")
        writer.append(queue, b"body", 0, np.arange(1))
        staged.append(writer.finish())
    decided, given_up = [file for file in staged[:2] if file is not None], staged[2]
    journal.save_intent(Intent(batch, tuple(decided), (QueueSpan(queue, 0, 0),), ("group",), 1))
    named = {"nameServer": "unused:1", "guarantee": "exactlyOnce", "stagingPath": str(tmp_path), "writeId": "w"}
    options = LiveSinkOptions.parse({**named, "topic": "T"}, "batch")
    messages = [StagedForBrokers(batch, file, "host") for file in (*decided, given_up, None)]
    abort_staged(options, [*messages, None])
    assert sorted(path.name for path in Path(journal.directory).glob("*.rows")) == [file.name for file in decided]
    journal.drop_intent()
    abort_staged(options, messages)
    assert not list(Path(journal.directory).glob("*.rows"))


def _full(descriptor: int) -> None:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        return
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
