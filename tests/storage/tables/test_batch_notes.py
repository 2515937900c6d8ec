"""Notes of batches are for people: bounded, lost without harm, and free of any wait for the disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from storage.files.local_file_system import LocalFileSystem
from storage.tables import sink_notes
from storage.tables.put_statistics import PutStatistics, TopicSum
from storage.tables.sink_notes import BatchNote, add_batch_note, load_batch_notes
from tests.support.crash_file_system import CrashFileSystem

FILES = LocalFileSystem()


@pytest.fixture
def root(tmp_path: Path) -> str:
    (tmp_path / "spark_mq").mkdir()
    return str(tmp_path)


def note(batch_id: int, **topics: tuple[int, int]) -> BatchNote:
    return BatchNote(
        "query", batch_id, 1_700_000_000_000 + batch_id, 3, 4, 5, {k: TopicSum(*v) for k, v in topics.items()}
    )


def test_what_was_noted_is_read_again(root: str) -> None:
    add_batch_note(FILES, root, "sink", note(0, A=(3, 300)))
    add_batch_note(FILES, root, "other", note(7))
    add_batch_note(FILES, root, "sink", note(1, A=(1, 100), B=(2, 50)))
    found = load_batch_notes(FILES, root)
    assert found == {"other": (note(7),), "sink": (note(0, A=(3, 300)), note(1, A=(1, 100), B=(2, 50)))}
    assert [*found] == ["other", "sink"], "the sink that wrote last comes last"


def test_a_batch_that_is_noted_again_is_there_once(root: str) -> None:
    for size in (1, 2):
        add_batch_note(FILES, root, "sink", note(0, A=(size, size)))
    assert load_batch_notes(FILES, root) == {"sink": (note(0, A=(2, 2)),)}


def test_only_the_last_batches_sinks_and_the_largest_topics_are_kept(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit, value in (("BATCHES", 2), ("SINKS", 2), ("TOPICS", 1)):
        monkeypatch.setattr(sink_notes, limit, value)
    for sink in ("a", "b", "c"):
        for batch_id in range(3):
            add_batch_note(FILES, root, sink, note(batch_id, X=(1, 10), Y=(9, 20), Z=(2, 5)))
    kept = {"Y": TopicSum(9, 20), "": TopicSum(3, 15)}
    found = load_batch_notes(FILES, root)
    assert {sink: [one.batch_id for one in batches] for sink, batches in found.items()} == {"b": [1, 2], "c": [1, 2]}
    assert found["c"][-1].topics == kept


@pytest.mark.parametrize("content", [b"", b"{", b"00000000{}", b"a3830348[]", b"\0" * 64])
def test_a_file_that_is_torn_or_strange_is_none_and_is_replaced(root: str, content: bytes) -> None:
    Path(root, "spark_mq", "batches.json").write_bytes(content)
    assert load_batch_notes(FILES, root) == {}
    add_batch_note(FILES, root, "sink", note(0))
    assert load_batch_notes(FILES, root) == {"sink": (note(0),)}


def test_a_note_waits_for_no_disk(root: str) -> None:
    files = CrashFileSystem(root)
    add_batch_note(files, root, "sink", note(0))
    add_batch_note(files, root, "sink", note(1))
    assert {operation.kind for operation in files.operations} & {"sync", "sync directory"} == set()
    assert len(files.operations) > 0


def test_statistics_of_columns_are_those_of_their_rows() -> None:
    queues = (("A", 0), ("B", 1), ("A", 1), ("C", 0))
    codes, sizes = np.array([0, 2, 1, 0], np.int32), np.array([10, 20, 40, 80], np.int32)
    by_columns, by_rows = PutStatistics(), PutStatistics()
    by_columns.put_columns(queues, codes, sizes)
    for code, size in zip(codes.tolist(), sizes.tolist(), strict=True):
        by_rows.put(*queues[code], 1, size)
    assert by_columns.topics == by_rows.topics == {"A": TopicSum(3, 110), "B": TopicSum(1, 40)}
    assert by_columns.broker_put_nums == 4
    assert by_columns.line() == "put 4 messages of 150 bytes: A 3, B 1"
    assert PutStatistics().line() == ""
