"""How much of a batch the log holds: rows as they were staged, one behind the other from their BEGIN on, over any number of files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from storage import MessageStore, StoreConfig, open_store
from storage.batch.intent import Progress, commit_places, first_missing
from storage.batch.ledger import (
    BEGIN,
    Batch,
    LedgerMessage,
    LedgerStatement,
    outgoing_ledger_message,
    parse_ledger_body,
)
from storage.batch.slices import runs_between, runs_from, stretches_of
from storage.format.record_block import OutgoingMessages, RecordBlock, RecordRun, encode_block
from storage.put.half_ends import CommitRun

TINY = StoreConfig.tiny()
BATCH = Batch("sink", "query", 0)
ROWS = 40
QUEUES = (("T", 0), ("T", 1), ("U", 0))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    """Its log's files have 4 KiB."""
    with open_store(tmp_path / "store", config=TINY, read_only=False, create=True) as opened:
        yield opened


def body_of(number: int) -> bytes:
    return b"%08d" % number * (1 + number % 30)


def rows(numbers: Sequence[int], bodies: dict[int, bytes] | None = None, tag: bytes = b"a") -> RecordBlock:
    """Rows of different lengths for several queues; `bodies` are others than usual."""
    count = len(numbers)
    texts = [(bodies or {}).get(number, body_of(number)) for number in numbers]
    messages = OutgoingMessages(
        QUEUES,
        np.array([number % 3 for number in numbers], np.int32),
        pa.array(texts, pa.binary()),
        pa.array([b"TAGS\x01%s\x02KEYS\x01k%d\x02" % (tag, number) for number in numbers], pa.binary()),
        np.zeros(count, np.int32),
        np.zeros(count, np.int32),
        np.zeros(count, np.int64),
        np.full(count, 97, np.int64),
        np.array([number % 2 for number in numbers], np.int32),
        np.array([number for number in numbers if number % 2], np.int32),
    )
    return encode_block(messages, bytes(8))


def staged(*parts: int) -> list[RecordBlock]:
    """All rows, in segments of so many."""
    assert sum(parts) == ROWS
    ends = np.cumsum(parts).tolist()
    return [rows(range(end - part, end)) for part, end in zip(parts, ends, strict=True)]


def begin(store: MessageStore, first_row: int = 0) -> LedgerMessage:
    message = outgoing_ledger_message(LedgerStatement(BEGIN, BATCH, ROWS, first_row=first_row), now_ms=0)
    block = encode_block(message, bytes(8))
    start = append(store, block)[0]
    parsed = parse_ledger_body(message.bodies[0].as_py(), start, start + len(block.data))
    assert parsed is not None
    return parsed


def append(store: MessageStore, block: RecordRun) -> list[int]:
    """Where the records begin."""
    return [place for placed in store.writer.append([block]) for place in placed.commitlog_offsets.tolist()]


def progress(
    store: MessageStore, begun: LedgerMessage, runs: Sequence[RecordBlock], log_end: int | None = None
) -> Progress:
    return first_missing(store.log, store.log_end if log_end is None else log_end, 4_096, [begun], runs)


SEGMENTS = pytest.mark.parametrize("parts", [(40,), (13, 27), (1, 0, 38, 1)], ids=str)


@SEGMENTS
def test_rows_that_end_before_the_logs_end_are_counted_whichever_file_that_is_in(
    store: MessageStore, parts: tuple[int, ...]
) -> None:
    begun = begin(store)
    block = rows(range(ROWS))
    places = append(store, block)
    ends = [place + size for place, size in zip(places, block.columns.sizes_bytes.tolist(), strict=True)]
    fillers = [end for end, place in zip(ends, places[1:], strict=False) if end != place]
    assert len(fillers) >= 2, "rows are in three files or more"
    runs = staged(*parts)
    assert progress(store, begun, runs, begun.end) == Progress(0, -1)
    for count in range(ROWS):
        there = Progress(count, places[count - 1] if count else -1)
        assert progress(store, begun, runs, places[count]) == there
        assert progress(store, begun, runs, ends[count] - 1) == there
        assert progress(store, begun, runs, ends[count]) == Progress(count + 1, places[count])
    assert progress(store, begun, runs) == Progress(ROWS, places[-1])


@SEGMENTS
@pytest.mark.parametrize("count", [0, 12, 13, 39])
def test_a_foreign_record_behind_them_is_none_of_the_rows(
    store: MessageStore, parts: tuple[int, ...], count: int
) -> None:
    """A broker was started between the crash and its repair; its record may be as long as the row that is missing."""
    begun = begin(store)
    places = append(store, rows(range(count)))
    append(store, rows([count], {count: b"x" * len(body_of(count))}))
    append(store, rows(range(count + 1, ROWS)))
    assert progress(store, begun, staged(*parts)) == Progress(count, places[-1] if places else -1)


def test_a_row_with_other_properties_is_not_the_one_that_was_staged(store: MessageStore) -> None:
    begun = begin(store)
    places = append(store, rows(range(20)))
    append(store, rows(range(20, ROWS), tag=b"b"))
    assert progress(store, begun, staged(40)) == Progress(20, places[-1])


def test_rows_that_were_there_before_their_begin_count_and_are_not_looked_for(store: MessageStore) -> None:
    append(store, rows(range(25)))
    begun = begin(store, first_row=25)
    assert progress(store, begun, staged(13, 27)) == Progress(25, -1)
    places = append(store, rows(range(25, 33)))
    assert progress(store, begun, staged(13, 27)) == Progress(33, places[-1])
    append(store, rows(range(33, ROWS)))
    assert progress(store, begun, staged(13, 27)).row_count == ROWS


@SEGMENTS
@pytest.mark.parametrize("first_row", range(0, ROWS + 1, 3))
def test_what_is_left_of_runs_is_what_was_staged_behind_that_row(parts: tuple[int, ...], first_row: int) -> None:
    whole = rows(range(first_row, ROWS)) if first_row < ROWS else None
    rest = runs_from(staged(*parts), first_row)
    assert sum(run.columns.row_count for run in rest) == ROWS - first_row
    if whole is None:
        return
    read = [np.empty(int(run.columns.sizes_bytes.sum()), np.uint8) for run in rest]
    for run, into in zip(rest, read, strict=True):
        run.read(0, len(into), into)
    assert np.concatenate(read).tobytes() == whole.data.tobytes()
    for name in ("sizes_bytes", "tags_codes", "key_counts", "key_hashes"):
        columns = [getattr(run.columns, name) for run in rest]
        assert np.concatenate(columns).tolist() == getattr(whole.columns, name).tolist()
    queues = [run.columns.queues[code] for run in rest for code in run.columns.queue_codes.tolist()]
    assert queues == [QUEUES[number % 3] for number in range(first_row, ROWS)]


def committed(numbers: Sequence[int]) -> RecordBlock:
    """Rows that commit halves; where these lie is not known yet."""
    block = rows(numbers)
    data = block.data.copy()
    starts = np.cumsum(block.columns.sizes_bytes) - block.columns.sizes_bytes
    data[starts + 39] = 8  # the last byte of sysFlag: TRANSACTION_COMMIT_TYPE
    return block._replace(data=data)


def test_commits_are_the_staged_ones_wherever_their_halves_lie(store: MessageStore) -> None:
    """preparedTransactionOffset is made known by the half's place, as queue offset and place are by the row's own."""
    begun = begin(store)
    places = append(store, CommitRun(committed(range(ROWS)), np.arange(ROWS) * 1_000 + 7))
    found = store.message_by_commitlog_offset(places[5])
    assert (found.sys_flag, found.prepared_transaction_offset, found.body) == (8, 5_007, body_of(5))
    assert progress(store, begun, [committed(range(ROWS))]) == Progress(ROWS, places[-1])
    assert progress(store, begun, [rows(range(ROWS))]) == Progress(0, -1), "an ordinary row is no commit"


def test_commits_are_found_by_the_halves_that_they_name_whoever_wrote_them(store: MessageStore) -> None:
    begun = begin(store)
    halves = np.array([30, 10, 20, 40])
    first = append(store, CommitRun(committed(range(3)), np.array([20, 99, 10])))
    append(store, rows(range(5)))
    second = append(store, CommitRun(committed(range(1)), np.array([30])))
    found = commit_places(store.log, begun.commitlog_offset, store.log_end, halves)
    assert found.tolist() == [second[0], first[2], first[0], -1]
    assert commit_places(store.log, begun.commitlog_offset, second[0], halves).tolist() == [-1, first[2], first[0], -1]


def test_rows_that_are_wanted_are_stretches_of_their_runs() -> None:
    runs = staged(13, 27)
    wanted = np.zeros(ROWS, bool)
    wanted[[0, 1, 12, 13, 20, 39]] = True
    parts = [part for first, last in stretches_of(wanted) for part in runs_between(runs, first, last)]
    assert [part.columns.row_count for part in parts] == [2, 1, 1, 1, 1]
    data = []
    for part in parts:
        data.append(np.empty(int(part.columns.sizes_bytes.sum()), np.uint8))
        part.read(0, len(data[-1]), data[-1])
    expected = rows([0, 1, 12, 13, 20, 39])
    assert b"".join(part.tobytes() for part in data) == expected.data.tobytes()
    assert np.concatenate([part.columns.key_hashes for part in parts]).tolist() == expected.columns.key_hashes.tolist()
