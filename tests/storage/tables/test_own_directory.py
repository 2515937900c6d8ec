"""Nothing in ROOT/spark_mq is a link. A store with one is refused for writing and staging; what it leads to stays as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage import StoreConfig, open_store
from storage.batch.ledger import Batch
from storage.errors import StoreRefusedError
from storage.files.local_file_system import LocalFileSystem
from storage.tables.surroundings import refuse_links
from tests.support.stage_rows import BatchRows, stage

PLACES = ["spark_mq", "spark_mq/intents", "spark_mq/staged", "spark_mq/staged/pool", "spark_mq/quarantine"]
FILES = ["spark_mq/hint.json", "spark_mq/hint.json.tmp", "spark_mq/intents/x.json", "spark_mq/staged/pool/y.segment"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "store"
    with open_store(root, read_only=False, create=True) as store:
        store.put("Topic", b"one", queue_id=0)
    return root


def link(root: Path, place: str, target: Path) -> None:
    path = root / place
    if path.is_dir():
        path.rename(target)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


@pytest.mark.parametrize("place", [*PLACES, *FILES])
def test_a_store_with_a_link_in_it_is_refused_for_writing_and_read(root: Path, tmp_path: Path, place: str) -> None:
    target = tmp_path / "elsewhere"
    if place in FILES:
        (root / place).unlink(missing_ok=True)
        target.write_bytes(b"another's")
    link(root, place, target)
    before = target.read_bytes() if target.is_file() else None
    with pytest.raises(StoreRefusedError, match=f"{place} is a symbolic link"):
        open_store(root, read_only=False)
    with pytest.raises(StoreRefusedError, match="mount the other disk there"):
        refuse_links(LocalFileSystem(), str(root))
    with open_store(root) as store:
        assert store.max_offset("Topic", 0) == 1
    assert (target.read_bytes() if target.is_file() else None) == before


def test_rows_are_not_staged_through_a_link(root: Path, tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    target.mkdir()
    (root / "spark_mq" / "staged").symlink_to(target)
    rows = BatchRows(Batch("sink", "query", 0), (3,))
    with pytest.raises(StoreRefusedError, match="spark_mq/staged is a symbolic link"):
        stage(LocalFileSystem(), str(root), StoreConfig(), rows)
    assert list(target.iterdir()) == []


def test_a_store_without_links_or_without_the_directory_is_taken(root: Path, tmp_path: Path) -> None:
    refuse_links(LocalFileSystem(), str(root))
    refuse_links(LocalFileSystem(), str(tmp_path / "nothing"))
    (tmp_path / "linked").symlink_to(root)  # the way to the store may be one
    with open_store(tmp_path / "linked", read_only=False) as store:
        store.put("Topic", b"two")
