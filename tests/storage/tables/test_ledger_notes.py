"""The notes beside the log are read as they were written, or refused."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import pytest

from storage.errors import StateFileError
from storage.files.local_file_system import LocalFileSystem
from storage.tables.sink_notes import LedgerNotes, SinkNote, load_ledger_notes, save_ledger_notes, unmarked_end_of

FILES = LocalFileSystem()
NOTES = LedgerNotes(4_711, {"sink ä": SinkNote("query", 7, 4_000), "other": SinkNote("q", -1, -1)})


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    root = str(tmp_path)
    assert load_ledger_notes(FILES, root) is None
    for notes in (LedgerNotes(0), NOTES):
        save_ledger_notes(FILES, root, notes)
        assert load_ledger_notes(FILES, root) == notes


def test_without_notes_everything_up_to_the_logs_end_may_be_unmarked() -> None:
    assert unmarked_end_of(None, 99) == 99
    assert unmarked_end_of(LedgerNotes(7), 99) == 7


def test_a_note_decides_only_when_its_end_has_expired() -> None:
    assert NOTES.expired("sink ä", 4_000) is None
    assert NOTES.expired("sink ä", 4_001) == SinkNote("query", 7, 4_000)
    assert NOTES.expired("other", 0) == SinkNote("q", -1, -1), "a person's word has no END"
    assert NOTES.expired("unknown", 9_999) is None


def test_a_note_that_says_the_same_changes_nothing() -> None:
    assert NOTES.with_sink("other", SinkNote("q", -1, -1)) is NOTES
    assert NOTES.with_sink("other", SinkNote("q", 0, 5)).sinks["other"] == SinkNote("q", 0, 5)
    assert NOTES.sinks["other"].batch_id == -1


@pytest.mark.parametrize("flipped", [0, 5, -3])
def test_a_changed_file_is_refused(tmp_path: Path, flipped: int) -> None:
    save_ledger_notes(FILES, str(tmp_path), NOTES)
    path = tmp_path / "spark_mq/ledger.json"
    content = bytearray(path.read_bytes())
    content[flipped] ^= 1
    path.write_bytes(content)
    with pytest.raises(StateFileError, match=r"ledger\.json.*checksum"):
        load_ledger_notes(FILES, str(tmp_path))


@pytest.mark.parametrize(
    "document",
    [[], {}, {"unmarkedEnd": "1", "sinks": {}}, {"unmarkedEnd": 1, "sinks": {"s": ["q", 1]}}]
    + [{"unmarkedEnd": 1, "sinks": {"s": note}} for note in (["q", "1", 2], [None, 1, 2], ["q", 1, 2.5], 7)],
    ids=str,
)
def test_what_are_no_notes_is_refused(tmp_path: Path, document: object) -> None:
    line = json.dumps(document).encode()
    (tmp_path / "spark_mq").mkdir()
    (tmp_path / "spark_mq/ledger.json").write_bytes(line + b"\n%08x\n" % zlib.crc32(line))
    with pytest.raises(StateFileError, match="no notes of this version"):
        load_ledger_notes(FILES, str(tmp_path))
