"""A record whose queue offset is wrong hides no other one, and is found."""

from __future__ import annotations

import shutil
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from jobs.verify_store import verify_store
from storage import MessageStore, StoreConfig, open_store
from storage.format.consume_queue import ENTRY
from storage.log.dispatch import QueueEntries
from storage.queues.get import GetStatus
from storage.queues.writer import put_in_order
from storage.recovery.verify import Kind
from storage.settings.nouns import CommitLogConfig, ConsumeQueueConfig
from tests.spark.in_process import next_batch, open_stream
from tests.support.served import bodies_of

NAME = ("T", 0)
MESSAGES = 100
QUEUE_OFFSET_POSITION = 20
LOG_FILE = 1 << 20
CONFIG = replace(
    StoreConfig(),
    commit_log=CommitLogConfig(mapped_file_size_commit_log=LOG_FILE),
    consume_queue=ConsumeQueueConfig(mapped_file_size_consume_queue=60_000 * 20),
)


def put(store: MessageStore, count: int, first: int = 0, body_size: int = 0) -> None:
    bodies = [(b"%d" % (first + number)).ljust(body_size) for number in range(count)]
    columns = {"topic": ["T"] * count, "queue_id": np.zeros(count, np.int32), "body": bodies}
    store.put_batch(pa.record_batch(columns), queue_count=1)


def flip(root: Path, queue_offset: int, bit: int) -> None:
    """Flip one bit of what a record says of its queue offset."""
    with open_store(root, config=CONFIG) as store:
        position = store.position(*NAME, queue_offset)
    assert position is not None
    start = position.commitlog_offset // LOG_FILE * LOG_FILE
    with (root / "commitlog" / f"{start:020d}").open("r+b") as file:
        file.seek(position.commitlog_offset - start + QUEUE_OFFSET_POSITION)
        (stated,) = struct.unpack(">q", file.read(8))
        assert stated == queue_offset
        file.seek(-8, 1)
        file.write(struct.pack(">q", stated ^ (1 << bit)))


def opened_with_a_warning(root: Path) -> MessageStore:
    with pytest.warns(RuntimeWarning, match="T queue 0"):
        return open_store(root, config=CONFIG, read_only=False)


def streamed(root: Path) -> list[bytes]:
    reader = open_stream(root, topic="T", startingOffsets="earliest")
    _, rows = next_batch(reader, reader.initialOffset())
    reader.stop()
    return [row["body"].strip() for row in rows]


@pytest.mark.parametrize("is_clean", [True, False], ids=["clean", "killed"])
@pytest.mark.parametrize(
    ("queue_offset", "bit"), [(0, 14), (50, 14), (50, 40), (50, 0), (50, 2), (50, 5), (98, 13), (MESSAGES - 1, 14)]
)
def test_one_flipped_bit_hides_no_message(tmp_path: Path, queue_offset: int, bit: int, *, is_clean: bool) -> None:
    root = tmp_path / "store"
    with open_store(root, config=CONFIG, read_only=False, create=True) as store:
        put(store, MESSAGES)
    flip(root, queue_offset, bit)
    shutil.rmtree(root / "consumequeue")
    if not is_clean:
        (root / "abort").touch()
    wanted = [b"%d" % number for number in range(MESSAGES)]
    with opened_with_a_warning(root) as store:
        assert store.recovery is not None
        if queue_offset == MESSAGES - 1:  # nothing shows what it was
            assert store.recovery.holes == [(*NAME, queue_offset, queue_offset ^ (1 << bit))]
        else:
            (found,) = store.recovery.misnumbered
            assert (found.queue_offset, found.stated) == (queue_offset, queue_offset ^ (1 << bit))
            assert store.recovery.holes == []
        assert bodies_of(store, *NAME) == wanted
    with open_store(root, config=CONFIG) as store:
        got = store.get(*NAME, 0)
        assert (got.status, got.min_offset) == (GetStatus.FOUND, 0)
    assert streamed(root) == wanted
    (finding,) = verify_store(str(root)).findings
    assert (finding.kind, finding.where) == (
        (Kind.HOLE if queue_offset == MESSAGES - 1 else Kind.WRONG_OFFSET),
        "T queue 0",
    )


def test_a_hole_behind_expired_messages_hides_none_of_those_before_it(tmp_path: Path) -> None:
    """The queue is rebuilt from a log without its first file, so it begins with pre-blank entries and has a hole."""
    with open_store(tmp_path, config=CONFIG, read_only=False, create=True) as store:
        put(store, 1_000, body_size=5_000)
    first = min((tmp_path / "commitlog").iterdir())
    first.unlink()
    shutil.rmtree(tmp_path / "consumequeue")
    with open_store(tmp_path, config=CONFIG, read_only=False) as store:
        minimum = store.min_offset(*NAME)
        assert minimum > 0
    flip(tmp_path, 999, 15)
    shutil.rmtree(tmp_path / "consumequeue")
    with opened_with_a_warning(tmp_path) as store:
        assert store.min_offset(*NAME) == minimum
        assert store.max_offset(*NAME) == (999 ^ 1 << 15) + 1
        assert bodies_of(store, *NAME) == [b"%d" % number for number in range(minimum, 1_000)]


def rows(*offsets: int) -> QueueEntries:
    entries = np.zeros(len(offsets), ENTRY)
    entries["commitlog_offset"] = 1_000 * np.arange(len(offsets))
    return QueueEntries("T", 0, np.array(offsets, np.int64), entries, np.zeros(len(offsets), np.int64))


@pytest.mark.parametrize(
    ("previous", "stated", "offsets", "held"),
    [
        (4, [5, 6, 7], [5, 6, 7], []),
        (4, [5, 70, 7], [5, 6, 7], []),
        (4, [70, 6], [5, 6], []),
        (-1, [70, 1], [0, 1], []),
        (4, [5, 1, 7, 8], [5, 6, 7, 8], []),
        (4, [5, 6, 6, 8, 9], [5, 6, 7, 8, 9], []),
        pytest.param(4, [5, 70, 7, 72, 9], [5, 6, 7, 8, 9], [], id="two of them"),
        pytest.param(4, [5, 0, 1, 2], [5, 0, 1, 2], [], id="the topic was made again"),
        pytest.param(0, [0, 1], [0, 1], [], id="made again after one message"),
        pytest.param(4, [5, 90, 91], [5, 90, 91], [], id="messages are missing"),
        pytest.param(None, [90, 91], [90, 91], [], id="from the middle on"),
        pytest.param(None, [90], [90], [], id="one from the middle"),
        pytest.param(4, [5, 70], [5], [70], id="the next one tells"),
        pytest.param(4, [70], [], [70], id="the next one tells of the first"),
        (4, [], [], []),
    ],
)
def test_a_number_that_its_neighbours_contradict_is_put_right(
    previous: int | None, stated: list[int], offsets: list[int], held: list[int]
) -> None:
    found = put_in_order(rows(*stated), previous)
    assert found.rows.queue_offsets.tolist() == offsets
    assert ([] if found.held is None else found.held.queue_offsets.tolist()) == held
    changed = [(after, before) for after, before in zip(offsets, stated, strict=False) if after != before]
    assert [(wrong.queue_offset, wrong.stated) for wrong in found.misnumbered] == changed


def test_without_a_next_one_a_number_is_taken_as_it_is() -> None:
    found = put_in_order(rows(5, 70), 4, is_all=True)
    assert (found.rows.queue_offsets.tolist(), found.held, found.misnumbered) == ([5, 70], None, ())
