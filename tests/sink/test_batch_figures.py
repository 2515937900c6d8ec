"""`spark-mq sink-status` tells rows, bytes and times of a sink's last batches by topic, as the log has them."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from spark_mq.cli import app
from storage.tables import sink_notes
from tests.sink.test_sink_tasks import commit, options_by_row, stage, stored


@pytest.fixture
def root(tmp_path: Path) -> str:
    return str(tmp_path / "broker-a")


def sink_status(root: str, *arguments: str) -> str:
    result = CliRunner().invoke(app, ["sink-status", root, *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def batches(root: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(sink_status(root, "--json"))["batches"]
    return found


def rows(*topics: str) -> list[dict[str, Any]]:
    return [{"topic": topic, "body": topic.encode() * 9} for topic in topics]


def size_of(root: str, topic: str) -> int:
    return sum(message.size_bytes for message in stored(root, topic))


def test_each_batch_is_told_with_its_rows_and_bytes_by_topic(root: str) -> None:
    options = options_by_row(root)
    commit(options, stage(options, rows("A", "A", "B")), stage(options, rows("B"), partition=1))
    sizes = {topic: size_of(root, topic) for topic in "AB"}
    commit(options, stage(options, rows("C"), batch_id=1), batch_id=1)
    first, second = batches(root)
    assert (first["sink_id"], first["query_id"], first["batch"], first["rows"]) == ("sink", "query", 0, 4)
    assert first["topics"] == {topic: {"messages": 2, "bytes": sizes[topic]} for topic in "AB"}
    assert (second["batch"], second["topics"]) == (1, {"C": {"messages": 1, "bytes": size_of(root, "C")}})
    assert first["waited_ms"] >= 0
    assert first["took_ms"] >= 0
    shown = sink_status(root)
    assert "last batches" in shown
    assert all(topic in shown for topic in "ABC")


def test_a_batch_that_is_committed_again_is_told_as_it_was(root: str) -> None:
    options = options_by_row(root)
    staged = stage(options, rows("A"))
    commit(options, staged)
    before = batches(root)
    commit(options, staged)
    assert batches(root) == before


def test_a_note_that_cannot_be_written_fails_no_batch(
    root: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sink_notes, "save_loose", full)
    options = options_by_row(root)
    with caplog.at_level(logging.WARNING, "spark_mq.sink"):
        commit(options, stage(options, rows("A")))
    assert len(stored(root, "A")) == 1
    assert "batch 0 of sink sink is stored; the note of it is not" in caplog.text
    assert batches(root) == []


def test_a_store_without_notes_has_none(root: str) -> None:
    """As an earlier version leaves it, or a power loss."""
    options = options_by_row(root)
    commit(options, stage(options, rows("A")))
    Path(root, "spark_mq", "batches.json").unlink()
    assert batches(root) == []
    assert "last batches" not in sink_status(root)
