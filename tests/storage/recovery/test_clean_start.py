"""Which bodies a clean start compares with their checksums: those from the log file on in which the queues end, as 5.3.2 and later do.

Java: CommitLog.recoverNormally. Up to 5.3.1 it began at the third file before the last. `interop/test_recovered_stores.py` asks Java.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs.verify_store import verify_store
from storage import open_store
from storage.errors import StoreDamagedError
from storage.settings.load import StoreConfig
from tests.oracle.damage import flip_body_in_file


def make_store(root: Path) -> int:
    """A closed store of four log files; returns how many messages it has."""
    with open_store(str(root), config=StoreConfig.tiny(), read_only=False, create=True) as store:
        count = 0
        while len(store.log.files) < 4 or count % 3:
            store.put("T", bytes(1_000), queue_id=0)
            count += 1
    return count


@pytest.mark.parametrize("file", [0, 1, 2])
def test_a_wrong_body_before_the_queues_last_file_stops_no_clean_start_and_is_found_by_verify(
    file: int, tmp_path: Path
) -> None:
    count = make_store(tmp_path)
    flip_body_in_file(tmp_path, file)
    with open_store(str(tmp_path), config=StoreConfig.tiny(), read_only=False) as store:
        assert store.max_offset("T", 0) == count
    (tmp_path / "broker.conf").write_text("maxHashSlotNum=10\nmaxIndexNum=20\n")
    assert verify_store(str(tmp_path)).findings != ()


def test_a_wrong_body_in_the_queues_last_file_is_damage(tmp_path: Path) -> None:
    make_store(tmp_path)
    flip_body_in_file(tmp_path, 3)
    with pytest.raises(StoreDamagedError):
        open_store(str(tmp_path), config=StoreConfig.tiny(), read_only=False)
