"""What a task that stages rows for running brokers says of rows that it refuses."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import nullcontext
from pathlib import Path

import pyarrow as pa
import pytest

from spark_mq.conditions import InvalidRowError
from spark_mq.sink import exact_writer
from spark_mq.sink.columns import InputColumns
from spark_mq.sink.exact_writer import stage_for_brokers
from spark_mq.sink.live_options import LiveSinkOptions
from storage.batch.ledger import Batch
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


def _full(descriptor: int) -> None:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        return
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
