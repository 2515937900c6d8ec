"""Records joined from their parts, piece after piece; commits made of the records of their halves, as a broker wrote them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock
from zlib import crc32

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage import open_store
from storage.format import record_block
from storage.format.record import (
    HEADER_STRUCTS,
    HOST_FLAGS,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_ROLLBACK,
    committed_flags,
)
from storage.format.record_batch import Records
from storage.format.record_block import (
    OutgoingMessages,
    columns_of,
    encode_block,
    encode_parts,
    stamp,
    stamp_halves,
    write_commits,
)
from storage.log.commit_log import CommitLog
from storage.put import half_ends
from storage.put.half_ends import CommitsOfHalves, with_states
from storage.rules.half_messages import HALF_TOPIC
from tests.support.fixture_stores import Fixture
from tests.support.kernels import both
from tests.support.message_builder import HOST_V4, HOST_V6

TOPICS = ("T", "orders", "long" * 31 + "er", "V2" * 70)
assert sorted(map(len, TOPICS))[-2] < 127 < len(TOPICS[-1])
STATES = 0, TRANSACTION_COMMIT, TRANSACTION_ROLLBACK


@st.composite
def arrays(
    draw: st.DrawFn, values: st.SearchStrategy[Any], kinds: tuple[pa.DataType, ...], *, count: int, nulls: bool = False
) -> pa.Array:
    """`count` values as an array of one of the types, whole or cut out of a longer one."""
    before, behind = draw(st.integers(0, 9)), draw(st.integers(0, 2))
    element = st.none() | values if nulls else values
    rows = draw(st.lists(element, min_size=before + count + behind, max_size=before + count + behind))
    raw = [row.encode(errors="surrogatepass") if isinstance(row, str) else row for row in rows]
    kind = draw(st.sampled_from(kinds))
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pa.array(raw, kind)[before : before + count]
    wide = pa.array(raw, pa.large_binary()).view(pa.large_string())  # whether or not it is UTF-8
    return wide[before : before + count]


BYTES = (pa.binary(), pa.large_binary())
SIZES = st.integers(0, 3) | st.sampled_from([7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 300])


@st.composite
def blobs(draw: st.DrawFn) -> bytes:
    size = draw(SIZES)
    return draw(st.binary(min_size=size, max_size=size) | st.just(b"\xff" * size) | st.just(bytes(size)))


@st.composite
def outgoing(draw: st.DrawFn) -> tuple[OutgoingMessages, bytes]:
    """Messages, and the host where they are stored."""
    count = draw(st.integers(0, 12))
    queues = draw(st.lists(st.tuples(st.sampled_from(TOPICS), st.integers(0, 9)), min_size=1, max_size=4, unique=True))

    def numbers(dtype: str) -> np.ndarray:
        limits = np.iinfo(dtype)
        drawn = draw(st.lists(st.integers(int(limits.min), int(limits.max)), min_size=count, max_size=count))
        return np.array(drawn, dtype)

    codes = draw(st.lists(st.integers(0, len(queues) - 1), min_size=count, max_size=count))
    born_host = draw(st.sampled_from([None, HOST_V4, HOST_V6]))
    messages = OutgoingMessages(
        queues=tuple(queues),
        queue_codes=np.array(codes, np.int32),
        bodies=draw(arrays(blobs(), BYTES, count=count)),
        properties=draw(arrays(blobs(), BYTES, count=count)),
        flags=numbers("int32"),
        sys_flags=numbers("int32") & 0xFF,
        born_times_ms=numbers("int64"),
        tags_codes=numbers("int64"),
        key_counts=np.zeros(count, np.int32),
        key_hashes=np.zeros(0, np.int32),
        born_hosts=None if born_host is None else np.frombuffer(born_host * count, f"V{len(born_host)}"),
        reconsume_times=draw(st.sampled_from([0, 3])),
        prepared_transaction_offsets=numbers("int64") if draw(st.booleans()) else 0,
    )
    if draw(st.booleans()):
        messages = messages.with_crc_room()
    return messages, draw(st.sampled_from([HOST_V4, HOST_V6]))


@given(outgoing(), st.sampled_from([1, 150, 200, 400, 1_000, 10_000]))
def test_pieces_are_the_records_in_whole_ones(case: tuple[OutgoingMessages, bytes], piece_bytes: int) -> None:
    columns, parts = encode_parts(*case)
    ends = np.cumsum(columns.sizes_bytes)
    whole, at = encode_block(*case).data.tobytes(), 0
    with mock.patch.object(record_block, "PIECE_BYTES", piece_bytes):
        made = [piece.tobytes() for piece in parts.pieces()]
    for number, piece in enumerate(made):
        assert whole[at : at + len(piece)] == piece
        assert at + len(piece) in ends
        assert len(piece) <= piece_bytes or len(piece) in columns.sizes_bytes.tolist()
        if number:
            first = int(columns.sizes_bytes[np.searchsorted(ends, at, side="right")])
            assert len(made[number - 1]) + first > piece_bytes, "the record had room in the piece before"
        at += len(piece)
    assert at == len(whole)


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


def test_a_commit_keeps_the_sum_of_its_half() -> None:
    """A body that was damaged after it was summed up is not made to look whole."""
    half = encode_block(*_plain_half()).data
    half[half.tobytes().index(b"body")] = ord("B")

    def written() -> bytes:
        out = np.empty(len(half) - len(HALF_TOPIC) + 1, np.uint8)
        write_commits(out, half, np.zeros(1, np.int64), [("T", 3)], np.zeros(1, int))
        return out.tobytes()

    for commit in both(written):
        (decoded,) = Records(np.frombuffer(commit, np.uint8), np.zeros(1, np.int64)).bodies().to_pylist()
        assert decoded == b"Body"
        assert HEADER_STRUCTS[0].unpack_from(commit)[2] == crc32(b"body") & 0x7FFFFFFF


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
