"""What a power loss can leave of queue files: some lost whole, later ones kept. No stale entry is continued, no record missed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from storage import MessageStore, StoreConfig, open_store
from storage.format.consume_queue import ENTRY_SIZE
from storage.inner_messages import InnerMessage

COUNT, LEFT = 45, 25
"""Messages put, over three files of the queue; and how many of them the log still has."""


def opened(root: Path) -> MessageStore:
    return open_store(root, config=StoreConfig.tiny(), read_only=False, create=True)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store that nobody closed, whose log lost its end."""
    store = opened(tmp_path / "store")
    messages = [
        InnerMessage(topic="T", queue_id=0, body=b"%2d" % number, properties={"UNIQ_KEY": f"u{number}"})
        for number in range(COUNT)
    ]
    places = store.put_inner(messages).column("commitlog_offset").to_pylist()
    store.release()
    for path in (tmp_path / "store/commitlog").iterdir():
        start = max(0, places[LEFT] - int(path.name))
        content = path.read_bytes()
        path.write_bytes(content[:start] + bytes(len(content) - start))
    (tmp_path / "store/spark_mq/hint.json").unlink()
    return tmp_path / "store"


def queue_file(root: Path, number: int) -> Path:
    return root / "consumequeue/T/0" / f"{number * 400:020d}"


def bodies(store: MessageStore) -> list[bytes]:
    found: list[bytes] = []
    while messages := store.get("T", 0, len(found)).messages:
        found += [message.body for message in messages]
    return found


def test_a_queue_that_lost_its_first_file_and_kept_stale_entries_is_built_again(root: Path) -> None:
    queue_file(root, 0).unlink()
    keep = queue_file(root, 1).read_bytes()
    queue_file(root, 1).write_bytes(bytes(5 * ENTRY_SIZE) + keep[5 * ENTRY_SIZE :])
    with opened(root) as store:
        assert bodies(store) == [b"%2d" % number for number in range(LEFT)]
        assert (
            store.put_inner([InnerMessage(topic="T", queue_id=0, body=b"", properties={})]).to_pylist()[0][
                "queue_offset"
            ]
            == LEFT
        )


@pytest.mark.parametrize("lost", [range(LEFT, 40), range(LEFT - 3, 40), range(LEFT, LEFT + 1)])
def test_stale_entries_behind_lost_ones_do_not_stay(root: Path, lost: range) -> None:
    path = queue_file(root, 1)
    entries = np.frombuffer(path.read_bytes(), np.uint8).reshape(-1, ENTRY_SIZE).copy()
    entries[lost.start - 20 : lost.stop - 20] = 0
    path.write_bytes(entries.tobytes())
    with opened(root) as store:
        assert bodies(store) == [b"%2d" % number for number in range(LEFT)]
    assert not queue_file(root, 2).exists()
    assert not any(path.read_bytes()[(LEFT - 20) * ENTRY_SIZE :])
