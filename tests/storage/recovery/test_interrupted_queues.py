"""A queue's entries end where one is wrong or lost, and others stand behind it: it is mended from the log, and a new message does not
get the queue offset of one that is there.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from storage import MessageStore, StoreConfig, open_store
from storage.format.consume_queue import ENTRY, ENTRY_SIZE
from storage.queues.consume_queue import ConsumeQueue
from storage.queues.writer import ConsumeQueueWriter
from storage.settings.nouns import CommitLogConfig, ConsumeQueueConfig
from tests.support.served import served
from tests.support.shares import one_in

pytestmark = pytest.mark.slow

MESSAGES = 600
WIDE, NARROW = 6_000, 300  # entries a file
NAME = ("T", 0)


def config(file_entries: int) -> StoreConfig:
    return replace(
        StoreConfig(),
        commit_log=CommitLogConfig(mapped_file_size_commit_log=1 << 20),
        consume_queue=ConsumeQueueConfig(mapped_file_size_consume_queue=file_entries * ENTRY_SIZE),
    )


def filled(root: Path, file_entries: int) -> None:
    """A store whose queue T/0 is not the last one that was written to."""
    with open_store(root, config=config(file_entries), read_only=False, create=True) as store:
        bodies = [b"%d" % number for number in range(MESSAGES)]
        queue_ids = np.zeros(MESSAGES, np.int32)
        rows = pa.record_batch({"topic": ["T"] * MESSAGES, "queue_id": queue_ids, "body": bodies})
        store.put_batch(rows, queue_count=1)
        store.put("U", b"later", queue_id=0)


def change(root: Path, file_entries: int, first: int, entries: np.ndarray) -> None:
    """Put entries in place of those at `first` and behind, of one file."""
    start = first // file_entries * file_entries
    with (root / "consumequeue/T/0" / f"{start * ENTRY_SIZE:020d}").open("r+b") as file:
        file.seek((first - start) * ENTRY_SIZE)
        file.write(entries.tobytes())


def entries_of(root: Path, file_entries: int, first: int, end: int) -> np.ndarray:
    with open_store(root, config=config(file_entries)) as store:
        queue = store.queues.get(*NAME)
        assert queue is not None
        return queue.entries(first, end).copy()


def bodies(store: MessageStore) -> list[bytes]:
    return [message.body for message in served(store, *NAME)]


@pytest.mark.parametrize("is_clean", [True, False], ids=["clean", "killed"])
@pytest.mark.parametrize(
    ("first", "end", "file_entries"),
    [
        pytest.param(62, 63, WIDE, id="in the first look"),
        pytest.param(63, 64, WIDE, id="last of the first 64"),
        pytest.param(204, 205, WIDE, id="last of the first look"),
        pytest.param(205, 206, WIDE, id="first of the second look"),
        pytest.param(319, 320, WIDE, id="last of the first 320"),
        pytest.param(10, 215, WIDE, id="a page"),
        pytest.param(100, 598, WIDE, id="nearly all"),
        pytest.param(299, 300, NARROW, id="last of a file"),
        pytest.param(290, 300, NARROW, id="the end of a file"),
        pytest.param(300, 590, NARROW, id="the beginning of the last file"),
        pytest.param(0, 300, NARROW, id="the first file"),
    ],
)
@pytest.mark.parametrize("how", one_in(2, ["a bit of each is wrong", "zeros"]))
def test_entries_amid_a_queue_are_made_again(
    tmp_path: Path, how: str, first: int, end: int, file_entries: int, *, is_clean: bool
) -> None:
    root = tmp_path / "store"
    filled(root, file_entries)
    wrong = entries_of(root, file_entries, first, end)
    if how == "zeros":
        wrong = np.zeros(end - first, ENTRY)
    else:
        wrong["commitlog_offset"] += -(2**63)
    change(root, file_entries, first, wrong)
    if not is_clean:
        (root / "abort").touch()
    with open_store(root, config=config(file_entries), read_only=False) as store:
        assert store.recovery is not None
        assert store.recovery.rebuilt_queues == [NAME]
        assert store.recovery.holes == []
        assert store.put("T", b"new", queue_id=0).queue_offset == MESSAGES
        assert bodies(store) == [*(b"%d" % number for number in range(MESSAGES)), b"new"]


def test_a_last_entry_that_is_wrong_is_made_again(tmp_path: Path) -> None:
    filled(tmp_path, WIDE)
    wrong = entries_of(tmp_path, WIDE, MESSAGES - 1, MESSAGES)
    wrong["commitlog_offset"] += -(2**63)
    change(tmp_path, WIDE, MESSAGES - 1, wrong)
    with open_store(tmp_path, config=config(WIDE), read_only=False) as store:
        assert store.put("T", b"new", queue_id=0).queue_offset == MESSAGES
    with open_store(tmp_path, config=config(WIDE), read_only=False) as store:
        assert store.recovery is not None
        assert store.recovery.rebuilt_queues == []


@pytest.mark.parametrize("is_clean", [True, False], ids=["clean", "killed"])
def test_what_is_cut_of_a_queue_is_read_a_little_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_clean: bool
) -> None:
    filled(tmp_path, 20_000)
    with open_store(tmp_path, config=config(20_000)) as store:
        log_end = store.log_end
    behind = np.array([(log_end, 100, 0)] * 15_000, ENTRY)
    change(tmp_path, 20_000, MESSAGES, behind)
    if not is_clean:
        (tmp_path / "abort").touch()
    read = []

    def counted(queue: ConsumeQueue, start: int, end: int) -> np.ndarray:
        read.append(end - start)
        return entries(queue, start, end)

    entries = ConsumeQueue.entries
    monkeypatch.setattr(ConsumeQueue, "entries", counted)
    monkeypatch.setattr(ConsumeQueueWriter, "truncate", lambda *_: 0)  # it reads what it cuts of a file at once
    open_store(tmp_path, config=config(20_000), read_only=False).close()
    assert 0 < max(read) <= 4_096


@pytest.mark.parametrize("is_clean", [True, False], ids=["clean", "killed"])
@pytest.mark.parametrize("what", ["of another queue", "of another place", "behind the log's end"])
@pytest.mark.parametrize("first", [MESSAGES + 3, MESSAGES + 300, 5_990])
def test_stale_entries_behind_a_queues_end_are_none_of_its_messages(
    tmp_path: Path, what: str, first: int, *, is_clean: bool
) -> None:
    filled(tmp_path, WIDE)
    with open_store(tmp_path, config=config(WIDE)) as store:
        (later,), log_end = store.get("U", 0, 0).messages, store.log_end
    stale = np.zeros(5, ENTRY)
    stale["size_bytes"] = later.size_bytes
    stale["commitlog_offset"] = {
        "of another queue": later.commitlog_offset,
        "of another place": later.commitlog_offset - 7,
        "behind the log's end": log_end,
    }[what]
    change(tmp_path, WIDE, first, stale)
    if not is_clean:
        (tmp_path / "abort").touch()
    with open_store(tmp_path, config=config(WIDE), read_only=False) as store:
        assert store.recovery is not None
        assert store.recovery.rebuilt_queues == []
        assert store.max_offset(*NAME) == MESSAGES
    assert entries_of(tmp_path, WIDE, first, first + 5)["size_bytes"].any() == is_clean
