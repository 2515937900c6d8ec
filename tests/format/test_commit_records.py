"""Commits made of the records of their halves are those that a broker wrote, and those that encoding them gives."""

from __future__ import annotations

from collections.abc import Callable
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage import open_store
from storage.format.record import (
    HOST_FLAGS,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_ROLLBACK,
    committed_flags,
)
from storage.format.record_block import OutgoingMessages, columns_of, encode_block, stamp, stamp_halves
from storage.format.record_parts import write_commits
from storage.log.commit_log import CommitLog
from storage.put import half_ends
from storage.put.half_ends import CommitsOfHalves, with_states
from storage.rules.half_messages import HALF_TOPIC
from tests.format.kernels.test_encode import outgoing
from tests.support.fixture_stores import Fixture

STATES = 0, TRANSACTION_COMMIT, TRANSACTION_ROLLBACK


def commits_of(log: CommitLog, end: int) -> list[tuple[bytes, bytes, tuple[str, int]]]:
    """Half and commit as a broker wrote them, and the commit's queue."""
    found = []
    for offsets, records in log.walk(log.minimum):
        rows = np.flatnonzero(records.column("sys_flag") & TRANSACTION_MASK == TRANSACTION_COMMIT)
        for row in rows.tolist():
            commit = log.message_at(int(offsets[row]), end)
            half = log.message_at(commit.prepared_transaction_offset, end)
            assert half.topic == HALF_TOPIC
            raw = [log.bytes_at(message.commitlog_offset, message.size_bytes) for message in (half, commit)]
            found.append((*raw, (commit.topic, commit.queue_id)))
    return found


def test_a_broker_s_commits_are_made_of_its_halves(pristine_store: Callable[[str], Fixture]) -> None:
    with open_store(pristine_store("clean").root) as store:
        pairs = commits_of(store.log, store.log_end)
    assert pairs, "the fixtures have transactions"
    halves = np.frombuffer(b"".join(half for half, _, _ in pairs), np.uint8)
    sizes = np.array([len(half) for half, _, _ in pairs])
    expected = np.frombuffer(b"".join(commit for _, commit, _ in pairs), np.uint8).copy()
    commit_sizes = np.array([len(commit) for _, commit, _ in pairs])
    queues = [queue for _, _, queue in pairs]

    out = np.empty(len(expected), np.uint8)
    write_commits(out, halves, np.cumsum(sizes) - sizes, queues, np.arange(len(queues)))
    assert unplaced(out, commit_sizes) == unplaced(expected, commit_sizes)


def unplaced(commits: np.ndarray, sizes: np.ndarray) -> bytes:
    """Without what their places make known, and where their halves lie. Hosts are IPv4."""
    positions, nothing = np.cumsum(sizes) - sizes, np.zeros(len(sizes), np.int64)
    stamp(commits, positions, nothing, nothing, 0, 8)
    stamp_halves(commits, positions, nothing)
    return commits.tobytes()


@st.composite
def transactions(draw: st.DrawFn) -> tuple[OutgoingMessages, OutgoingMessages, np.ndarray, bytes]:
    """Halves; all of them as commits; how each ends; the host."""
    commits, host = draw(outgoing())
    commits = commits._replace(sys_flags=commits.sys_flags & ~HOST_FLAGS)
    count = len(commits.queue_codes)
    half_queue, codes = ((HALF_TOPIC, 0),), np.zeros(count, np.int32)
    halves = commits._replace(queues=half_queue, queue_codes=codes)  # with any flags
    commits = commits._replace(sys_flags=committed_flags(commits.sys_flags))
    ends = st.just(TRANSACTION_COMMIT) | st.sampled_from(STATES)
    states = draw(st.lists(ends, min_size=count, max_size=count))
    return halves, commits, np.array(states, np.int8), host


@given(transactions(), st.sampled_from([1, 300, 1 << 20]), st.data())
def test_they_are_those_that_are_encoded(
    case: tuple[OutgoingMessages, OutgoingMessages, np.ndarray, bytes], window_bytes: int, data: st.DataObject
) -> None:
    halves, every_commit, states, host = case
    rows = np.flatnonzero(states == TRANSACTION_COMMIT)
    commits = every_commit._replace(
        queue_codes=every_commit.queue_codes[rows],
        bodies=every_commit.bodies.take(rows),
        properties=every_commit.properties.take(rows),
        **{
            name: column[rows]
            for name, column in every_commit._asdict().items()
            if name in ("flags", "sys_flags", "born_times_ms", "tags_codes", "key_counts", "born_hosts")
            and column is not None
        },
        prepared_transaction_offsets=_of(every_commit.prepared_transaction_offsets, rows),
        reconsume_times=_of(every_commit.reconsume_times, rows),
    )
    expected = encode_block(commits, host)
    edges = np.concatenate([[0], np.cumsum(expected.columns.sizes_bytes, dtype=np.int64)])
    first = data.draw(st.just(0) | st.integers(0, len(rows)))
    last = data.draw(st.just(len(rows)) | st.integers(first, len(rows)))

    run = CommitsOfHalves(with_states(encode_block(halves, host), states), columns_of(commits, host))
    into = np.empty(int(edges[last] - edges[first]), np.uint8)
    with mock.patch.object(half_ends, "_WINDOW_BYTES", window_bytes):
        run.read(int(edges[first]), int(edges[last]), into)
    assert into.tobytes() == expected.data[edges[first] : edges[last]].tobytes()


def _of(column: np.ndarray | int, rows: np.ndarray) -> np.ndarray | int:
    return column if isinstance(column, int) else column[rows]


@pytest.mark.parametrize("more", [-1, 1])
def test_commits_of_another_size_are_refused(more: int) -> None:
    halves = encode_block(*_plain_half())
    size = len(halves.data) - len(HALF_TOPIC) + 1

    out, codes = np.empty(size + more, np.uint8), np.zeros(1, int)
    with pytest.raises(ValueError, match=f"the commits of 1 halves take {size} bytes, not {size + more}"):
        write_commits(out, halves.data, np.zeros(1, np.int64), [("T", 3)], codes)


def _plain_half() -> tuple[OutgoingMessages, bytes]:
    nothing, one = np.zeros(0, np.int32), np.zeros(1, np.int32)
    messages = OutgoingMessages(
        ((HALF_TOPIC, 0),),
        one,
        pa.array([b"body"]),
        pa.array([b"K\x01v\x02"]),
        one,
        one,
        np.zeros(1, np.int64),
        np.zeros(1, np.int64),
        one,
        nothing,
    )
    return messages, bytes([127, 0, 0, 1, 0, 0, 1, 2])
