"""What a task that stages rows for running brokers says of rows that it refuses."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from spark_mq.conditions import InvalidRowError, WriteFailedError
from spark_mq.remoting import MessageQueue
from spark_mq.sink import live_sink
from spark_mq.sink.columns import InputColumns
from spark_mq.sink.journal import Done, Intent, Journal, QueueSpan
from spark_mq.sink.live_sink import StagedForBrokers, abort_staged, commit_to_brokers, stage_for_brokers
from spark_mq.sink.options import LiveSinkOptions
from spark_mq.sink.staged_rows import StagedWriter
from storage.batch.ledger import Batch
from storage.errors import StateFileError
from storage.files.local_file_system import LocalFileSystem
from tests.support.fake_broker import FakeBroker, RoutesTo


def options_at(directory: Path, **given: str) -> LiveSinkOptions:
    named = {"nameServer": "unused:1", "guarantee": "exactlyOnce", "stagingPath": str(directory), "writeId": "w"}
    return LiveSinkOptions.parse({**named, "topic": "T", **given}, "batch")


def test_a_refused_row_leaves_nothing_and_is_not_told_of_dead_letters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_sink, "live_routes", lambda options: nullcontext(RoutesTo(FakeBroker([]))))
    options = options_at(tmp_path)
    frame = pa.record_batch({"body": pa.array([b"a", None], pa.binary())})
    with pytest.raises(InvalidRowError, match="row 1, column body") as refused:
        stage_for_brokers(options, InputColumns(("body",)), Batch("sink", "query", 0), 0, 0, iter([frame]))
    assert "Nothing of the batch was sent" in str(refused.value)
    assert "deadLetterPath" not in str(refused.value)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_rows_that_a_full_disk_did_not_take_leave_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a file system gives blocks away late, a write succeeds and the sync says that there is no room."""
    monkeypatch.setattr(live_sink, "live_routes", lambda options: nullcontext(RoutesTo(FakeBroker([]))))
    monkeypatch.setattr(os, "fdatasync", _full)
    monkeypatch.setattr(os, "fsync", _full)
    options = options_at(tmp_path)
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
    options = options_at(tmp_path)
    messages = [StagedForBrokers(batch, file, "host") for file in (*decided, given_up, None)]
    abort_staged(options, [*messages, None])
    assert sorted(path.name for path in Path(journal.directory).glob("*.rows")) == [file.name for file in decided]
    journal.drop_intent()
    abort_staged(options, messages)
    assert not list(Path(journal.directory).glob("*.rows"))


def test_a_task_that_fails_behind_its_first_batches_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_sink, "live_routes", lambda options: nullcontext(RoutesTo(FakeBroker([]))))
    seen: list[int] = []

    def frames() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"body": pa.array([b"x" * 900] * 40, pa.binary())})
        seen.append(len(list(tmp_path.rglob("*.rows"))))
        raise RuntimeError("the query was stopped")

    columns, batch = InputColumns(("body",)), Batch("sink", "query", 0)
    with pytest.raises(RuntimeError, match="was stopped"):
        stage_for_brokers(options_at(tmp_path, batchBytes="2k"), columns, batch, 0, 0, frames())
    assert seen == [1], "its first batches were staged"
    assert not list(tmp_path.rglob("*.rows"))


class Noting(LocalFileSystem):
    """Notes what is done to names, and when a directory or file is synced."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def sync(self, path: str) -> None:
        super().sync(path)
        self.done.append(f"sync {os.path.basename(path)}")

    def unlink(self, path: str) -> None:
        super().unlink(path)
        self.done.append(f"unlink {os.path.basename(path)}")


def test_what_is_staged_or_dropped_is_so_after_a_power_loss_too(tmp_path: Path) -> None:
    files = Noting()
    journal = Journal(files, str(tmp_path), "sink")
    directory = os.path.basename(journal.directory)
    queue = MessageQueue("T", "b", 0)
    writer = StagedWriter(files, journal.directory, "3-0-00000000-x.rows")
    writer.append(queue, b"body", 0, np.arange(1))
    staged = writer.finish()
    assert staged is not None
    assert files.done[-1] == f"sync {directory}", "the file's name"
    journal.save_intent(Intent(Batch("sink", "query", 3), (staged,), (QueueSpan(queue, 0, 0),), ("group",), 1))
    files.done.clear()
    journal.drop_intent()
    assert files.done == ["unlink intent.json", f"sync {directory}"]


def test_staged_files_go_with_their_batch_and_later_ones_stay(tmp_path: Path) -> None:
    journal = Journal(LocalFileSystem(), str(tmp_path), "sink")
    directory = Path(journal.directory)
    directory.mkdir(parents=True)
    names = [f"{batch_id}-0-00000000-x.rows" for batch_id in (2, 3, 10)]
    for name in (*names, "x-0-0.rows", "3-notes.txt"):
        (directory / name).touch()
    journal.drop_rows(3)
    assert sorted(path.name for path in directory.iterdir()) == [names[2], "3-notes.txt", "x-0-0.rows"]


def test_a_journal_that_was_changed_is_not_believed(tmp_path: Path) -> None:
    journal = Journal(LocalFileSystem(), str(tmp_path), "sink")
    with journal.locked(0):
        journal.save_done(Done(Batch("sink", "query", 3), (), 41))
    path = Path(journal.directory) / "done.json"
    content = path.read_bytes()
    for changed in (content.replace(b"41", b"14"), content[:-1], content.splitlines()[0] + b"\n"):
        path.write_bytes(changed)
        with pytest.raises(StateFileError, match="checksum"):
            journal.load()
    path.write_bytes(content)
    assert journal.load().done == Done(Batch("sink", "query", 3), (), 41)


def test_tasks_of_two_batches_or_one_that_hands_in_nothing_are_no_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(options: LiveSinkOptions) -> None:
        raise AssertionError("brokers are asked")

    monkeypatch.setattr(live_sink, "live_routes", asked)
    own, other = (StagedForBrokers(Batch("sink", "query", batch_id), None, "host") for batch_id in (3, 4))
    for messages, batch_id in (([own, other], 3), ([own], 4), ([own, None], 3), ([], 3)):
        with pytest.raises(WriteFailedError):
            commit_to_brokers(options_at(tmp_path), messages, batch_id)


def _full(descriptor: int) -> None:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        return
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
