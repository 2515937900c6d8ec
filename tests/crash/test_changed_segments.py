"""Staged rows that have changed since their batch was decided are neither appended nor written over rows of the log."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.batch.intent import load_intents
from storage.batch.staged_segment import staged_directory
from storage.errors import StagedRowsGoneError, StoreNotWritableError
from tests.crash.stories.life import ROOMY, Life, kill
from tests.crash.stories.of_batches import commit
from tests.support.dying import killed_at

pytestmark = pytest.mark.crash


def change_a_byte(life: Life, from_end: int) -> None:
    """Of the last row that was staged, so many bytes before its end."""
    [intent] = load_intents(life.disk, str(life.root))
    segment = intent.segments[-1]
    path = f"{staged_directory(str(life.root))}/{segment.path}"
    position = segment.data_size_bytes - from_end
    content = Path(path).read_bytes()
    life.disk.write(path, position, bytes([content[position] ^ 1]))


def test_what_is_left_of_a_batch_is_not_appended_from_a_changed_segment(tmp_path: Path) -> None:
    """Its rows are there but for the END. Compared with the changed segment the last one would be missing, and be put once more."""
    life = Life(tmp_path, config=ROOMY)
    store = life.open()
    with killed_at("before-end"):
        commit(life, store, 0)
    log_end = store.log_end
    kill(store)
    change_a_byte(life, 1)
    with pytest.raises(StoreNotWritableError, match="is decided, and its rows are not to be had"):
        life.open(create=False)
    assert Path(life.root, "commitlog", "0" * 20).read_bytes()[log_end:].strip(b"\0") == b""


def test_a_torn_row_is_not_mended_from_a_changed_segment(tmp_path: Path) -> None:
    life = Life(tmp_path, config=ROOMY)
    store = life.open()
    commit(life, store, 0)
    last = max(
        (store.get("orders", queue_id, 0).messages[0] for queue_id in range(4)), key=lambda row: row.commitlog_offset
    )
    kill(store)
    log = Path(life.root, "commitlog", "0" * 20)
    life.disk.write(str(log), last.commitlog_offset + last.size_bytes - 8, bytes(8))
    change_a_byte(life, 1)
    life.open(create=False).close()
    row = log.read_bytes()[last.commitlog_offset : last.commitlog_offset + last.size_bytes]
    assert row.endswith(bytes(8)), "it is as the power loss has left it"


def test_a_batch_whose_dead_letters_are_gone_is_refused_with_nothing_written(tmp_path: Path) -> None:
    life = Life(tmp_path, config=ROOMY)
    with life.open() as store:
        with pytest.raises(StagedRowsGoneError):
            commit(life, store, 0, dead_letters=True, letters_are_gone=True)
        assert store.log_end == 0
        assert load_intents(life.disk, str(life.root)) == []
