"""What stands beside messages: sinks and their batches, the archive, the audit of replayed dead letters."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from spark_mq.console.replays import AUDIT_ROWS, Replays, audit_rows
from spark_mq.source.archive_table import Place
from storage import open_store
from storage.batch.commit import commit_batch
from storage.batch.ledger import Batch
from storage.batch.staged_segment import StagedBatch
from storage.files.local_file_system import LocalFileSystem
from storage.settings.load import load_config
from storage.tables.put_statistics import TopicSum
from storage.tables.sink_notes import BatchNote, add_batch_note
from tests.console.small_store import OpenConsole
from tests.console.structure import Structure
from tests.support.stage_rows import BatchRows, stage

deltalake = pytest.importorskip("deltalake")


def commit(root: Path, batch_id: int) -> None:
    files = LocalFileSystem()
    rows = BatchRows(Batch("sink-a", "query-a", batch_id), (5, 5))
    segments = stage(files, str(root), load_config(str(root), None, read_bytes=files.read_file), rows)
    with open_store(root, read_only=False) as store:
        commit_batch(store.writer, StagedBatch(rows.batch, segments, {"orders": 4}))


def test_sinks_show_their_last_batches(root: Path, open_console: OpenConsole) -> None:
    commit(root, 7)
    note = BatchNote("query-a", 7, 1_700_000_000_000, 10, 3, 4, {"orders": TopicSum(10, 1_234)})
    add_batch_note(LocalFileSystem(), str(root), "sink-a", note)
    console = open_console(root)
    text = Structure(console.get("/sinks").text).text
    assert re.search(r"sink-a\s+query-a\s+7", text)
    assert re.search(r"sink-a\s+7\s+orders\s+10\s+1,234\s+3\s+4\s+2023-11-14 22:13:20", text)
    commit(root, 8)
    assert re.search(r"sink-a\s+query-a\s+8", Structure(console.get("/sinks").text).text)


def test_the_archive_shows_its_topics(root: Path, tmp_path: Path, open_console: OpenConsole) -> None:
    from tests.archive.archived import archived

    table = tmp_path / "archive"
    archived(table, path=str(root))
    client = open_console(root, archive=Place.of(str(table)))
    text = Structure(client.get("/archive").text).text
    assert re.search(r"Orders\s+2\s+120\s+\d+\s+0", text)
    assert 'href="/archive"' in client.get("/").text


def test_an_archive_that_is_not_there_is_said(root: Path, tmp_path: Path, open_console: OpenConsole) -> None:
    answer = open_console(root, archive=Place.of(str(tmp_path / "none"))).get("/archive")
    assert (answer.status_code, "there is no Delta table" in answer.text) == (502, True)


def write_audit(table: Path, count: int, ids: list[str] | None = None, results: list[str] | None = None) -> None:
    """As the job's Spark does."""
    rows = {
        "run": ["r"] * count,
        "time": pa.array([datetime.fromtimestamp(number, UTC) for number in range(count)], pa.timestamp("us", "UTC")),
        "consumer_group": ["billing" if number % 2 else "other" for number in range(count)],
        "dead_letter_queue": pa.array([0] * count, pa.int32()),
        "dead_letter_offset": list(range(count)),
        "dead_letter_msg_id": ids or [f"M{number}" for number in range(count)],
        "unique_key": ["<b>key</b>"] * count,
        "origin_topic": ["Orders"] * count,
        "result": results or ["replayed"] * count,
        "reason": pa.array([None] * count, pa.string()),
        "new_msg_id": [f"N{number}" for number in range(count)],
        "log_end": [0] * count,
    }
    deltalake.write_deltalake(str(table), pa.table(rows))


def test_the_audit_shows_the_groups_newest_rows(tmp_path: Path) -> None:
    assert audit_rows(Place.of(str(tmp_path / "none")), "billing") == []
    write_audit(tmp_path / "audit", 2 * AUDIT_ROWS + 10)
    found = audit_rows(Place.of(str(tmp_path / "audit")), "billing")
    assert [row["dead_letter_offset"] for row in found][:3] == [409, 407, 405]
    assert len(found) == AUDIT_ROWS
    assert found[0]["time_ms"] == 409_000


def test_a_preview_with_an_audit_leaves_out_what_it_calls_settled_and_starts_no_spark(
    root: Path, tmp_path: Path, open_console: OpenConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_session(*_: object, **__: object) -> None:
        raise AssertionError("a preview has started Spark")

    monkeypatch.setattr("spark_mq.session.build_session", no_session)
    table = tmp_path / "audit"
    with open_store(root) as store:
        ids = [message.msg_id for message in store.get("%DLQ%billing", 0, 0, 3).messages]
    write_audit(
        table, 6, [ids[0], ids[0], "x", ids[1], "x", "x"], ["failed", "replayed", "x", "planned", "x", "unknown"]
    )
    client = open_console(root, audit=str(table))
    form = client.app._app.state.console.access.form  # type: ignore[attr-defined]
    for again, count in (("", 2), ("1", 3)):
        answer = client.post("/dead-letters/preview", data={"form": form, "group": "billing", "again": again})
        assert f"would replay {count} to Orders" in Structure(answer.text).text


def test_the_audit_is_on_the_page_of_the_group(root: Path, tmp_path: Path, open_console: OpenConsole) -> None:
    write_audit(tmp_path / "audit", 4)
    page = open_console(root, audit=str(tmp_path / "audit")).get("/dead-letters?group=billing")
    text = Structure(page.text).text
    assert re.search(r"1970-01-01 00:00:03.000\s+replayed\s+0:3 <b>key</b>\s+Orders\s+N3", text)


def test_an_audit_that_cannot_be_read_hides_neither_preview_nor_replay(
    root: Path, tmp_path: Path, open_console: OpenConsole
) -> None:
    """Also one in an object store, by the options of its place."""
    (tmp_path / "audit" / "_delta_log").mkdir(parents=True)
    (tmp_path / "audit" / "_delta_log" / f"{0:020d}.json").write_text("no JSON", "utf-8")
    answer = open_console(root, audit=str(tmp_path / "audit"), allows_changes=True).get("/dead-letters?group=billing")
    assert answer.status_code == 200
    assert "SPARK_MQ_ARCHIVE" in Structure(answer.text).text
    assert 'action="/dead-letters/replay"' in answer.text


def test_options_of_the_place_are_for_the_audit_too() -> None:
    assert Replays("/store", audit="s3://bucket/audit", storage=["region=eu"]).audit == Place(
        "s3://bucket/audit", (("region", "eu"),)
    )
