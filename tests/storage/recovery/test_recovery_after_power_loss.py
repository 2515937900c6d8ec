"""What a power loss can leave of queue files: some lost whole, later ones kept. No stale entry is continued, no record missed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from storage import MessageStore, StoreConfig, open_store
from storage.files.local_file_system import LocalFileSystem
from storage.format.arrays import string_hash
from storage.format.consume_queue import ENTRY_SIZE
from storage.rules.inner_messages import InnerMessage
from tests.support.served import served

COUNT, LEFT = 45, 25
"""Messages put, over three files of the queue; and how many of them the log still has."""


def opened(root: Path) -> MessageStore:
    return open_store(root, config=StoreConfig.tiny(), read_only=False, create=True)


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """A store that nobody closed."""
    store = opened(tmp_path / "store")
    messages = [
        InnerMessage(topic="T", queue_id=0, body=b"%2d" % number, properties={"UNIQ_KEY": f"u{number}"})
        for number in range(COUNT)
    ]
    store.put_inner(messages)
    store.release()
    (tmp_path / "store/spark_mq/hint.json").unlink()
    return tmp_path / "store"


@pytest.fixture
def root(whole: Path) -> Path:
    """The same, and the log lost its end."""
    with open_store(whole) as reading:
        position = reading.position("T", 0, LEFT)
    assert position is not None
    for path in (whole / "commitlog").iterdir():
        start = max(0, position.commitlog_offset - int(path.name))
        content = path.read_bytes()
        path.write_bytes(content[:start] + bytes(len(content) - start))
    return whole


def queue_file(root: Path, number: int) -> Path:
    return root / "consumequeue/T/0" / f"{number * 400:020d}"


def bodies(store: MessageStore) -> list[bytes]:
    return [message.body for message in served(store, "T", 0)]


def test_a_queue_that_lost_its_first_file_is_built_again(whole: Path) -> None:
    queue_file(whole, 0).unlink()
    with opened(whole) as store:
        assert bodies(store) == [b"%2d" % number for number in range(COUNT)]


def test_a_queue_file_is_durable_before_the_next_is_made(tmp_path: Path) -> None:
    made: list[str] = []

    class Watched(LocalFileSystem):
        def create_file(self, path: str, size_bytes: int) -> None:
            made.append(f"make {path[-4:]}")
            super().create_file(path, size_bytes)

        def sync(self, path: str) -> None:
            if "/consumequeue/T/0" in path:
                made.append(f"sync {path[-4:]}")
            super().sync(path)

    config = StoreConfig.tiny()
    with open_store(tmp_path / "store", config=config, read_only=False, create=True, file_system=Watched()) as store:
        made.clear()
        store.put_inner([InnerMessage(topic="T", queue_id=0, body=b"", properties={}) for _ in range(COUNT)])
        in_queue = [step for step in made if step[-4:] in ("0000", "0400", "0800", "/T/0")]
    assert in_queue[-6:] == ["sync 0000", "sync /T/0", "make 0400", "sync 0400", "sync /T/0", "make 0800"]


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


@pytest.mark.parametrize("tags", ["a", "polygenelubricants-"], ids=["code above 0", "code below 0"])
@pytest.mark.parametrize("left", [12, 16], ids=["no byte of the code", "four bytes of the code"])
def test_a_last_entry_that_lost_its_tags_code_is_whole_again(tmp_path: Path, left: int, tags: str) -> None:
    """Its page ended in it. A broker would filter the message out: it looks at the code before it looks at the record."""
    root = tmp_path / "store"
    store = opened(root)
    for number in range(3):
        store.put("T", b"%d" % number, tags=tags, queue_id=0)
    store.release()
    (root / "spark_mq/hint.json").unlink()
    content = queue_file(root, 0).read_bytes()
    assert int.from_bytes(content[52:60], "big", signed=True) == string_hash(tags)
    queue_file(root, 0).write_bytes(content[: 40 + left] + bytes(len(content) - 40 - left))
    opened(root).close()
    assert queue_file(root, 0).read_bytes() == content
