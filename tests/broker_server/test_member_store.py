"""The store of a DLedger group's member, with a group that does what a test says."""

from __future__ import annotations

from pathlib import Path

from storage.store import MessageStore
from tests.support.group_logs import FILE_BYTES, FakeGroupLog, served


def bodies(store: MessageStore, topic: str = "T", queue_id: int = 0) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < store.max_offset(topic, queue_id):
        found += [each.body for each in store.get(topic, queue_id, len(found)).messages]
    return found


def test_a_log_file_that_was_cut_and_made_anew_is_read_anew(tmp_path: Path) -> None:
    log = FakeGroupLog(tmp_path / "n0", leads=False)
    while log.end < FILE_BYTES - 300:
        log.receive("T", log.end_index + 1)
    log.commit()
    kept = log.end_index
    while log.end < FILE_BYTES + 1_000:
        log.receive("T", log.end_index + 1, body=b"dead" * 25)
    (tmp_path / "n0" / "abort").write_text("1 killed boot")
    with served(log, starts_duties=False) as service:
        log.cut(kept)
        while log.end < FILE_BYTES + 1_000:
            log.receive("T", log.end_index + 1, body=b"live" * 25)
        log.commit()
        service.confirm_turn()
        assert bodies(service.store) == [b"x" * 100] * (kept + 1) + [b"live" * 25] * (log.end_index - kept)
