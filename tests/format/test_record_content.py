"""What a row says without its place: known again when it is staged a second time, and different when anything of it is."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from storage.format.record_block import (
    OutgoingMessages,
    RecordBlock,
    content_sum,
    copy_origins,
    encode_block,
    stamp,
    stamp_halves,
)

V4, V6 = b"\x7f\0\0\x01\0\0\x2a\x9f", bytes(15) + b"\x01\0\0\x2a\x9f"
OTHERS = {V4: b"\x0a\0\0\x09\0\0\x11\x22", V6: bytes(range(16)) + b"\0\0\x11\x22"}
HOSTS = pytest.mark.parametrize("host", [V4, V6], ids=["IPv4", "IPv6"])


def block(
    host: bytes, *, born_ms: int = 1_000, commits: bool = False, body: bytes = b"body", tag: bytes = b"a"
) -> RecordBlock:
    """Five rows of different lengths."""
    count = 5
    messages = OutgoingMessages(
        (("T", 0), ("U", 3)),
        np.array([0, 1, 0, 1, 0], np.int32),
        pa.array([body * number for number in range(count)], pa.binary()),
        pa.array([b"TAGS\x01%s\x02" % tag] * count, pa.binary()),
        np.zeros(count, np.int32),
        np.full(count, 8 if commits else 0, np.int32),
        np.arange(count, dtype=np.int64) + born_ms,
        np.full(count, 97, np.int64),
        np.zeros(count, np.int32),
        np.empty(0, np.int32),
    )
    encoded = encode_block(messages, host)
    return encoded._replace(data=encoded.data.copy())


def positions(run: RecordBlock) -> np.ndarray:
    return np.asarray(np.cumsum(run.columns.sizes_bytes) - run.columns.sizes_bytes)


def summed(run: RecordBlock) -> int:
    before = run.data.tobytes()
    found = content_sum(run.data, positions(run))
    assert run.data.tobytes() == before, "the buffer is as it was"
    return found


@HOSTS
def test_when_and_at_which_host_a_row_was_staged_does_not_count(host: bytes) -> None:
    assert summed(block(host)) == summed(block(host, born_ms=2_000)) == summed(block(OTHERS[host]))


@HOSTS
def test_where_the_half_of_a_commit_lies_does_not_count(host: bytes) -> None:
    commits = block(host, commits=True)
    stamped = block(host, commits=True)
    stamp_halves(stamped.data, positions(stamped), np.arange(5) * 1_000 + 77)
    assert summed(commits) == summed(stamped)
    assert summed(commits) != summed(block(host)), "a commit is no ordinary row"


@HOSTS
def test_everything_else_counts(host: bytes) -> None:
    run = block(host)
    expected = summed(run)
    longer = 24 if host == V6 else 0
    free = {*range(40, 72 + longer)}
    flags = {*range(36, 40)}  # they say how the record is read
    size = int(run.columns.sizes_bytes[0])
    for at in {*range(size)} - free - flags:
        run.data[at] ^= 1
        assert content_sum(run.data, positions(run)) != expected, f"byte {at}"
        run.data[at] ^= 1
    assert summed(block(host, body=b"bodY")) != expected
    assert summed(block(host, tag=b"b")) != expected


@HOSTS
def test_the_sum_over_parts_is_that_over_the_whole(host: bytes) -> None:
    run = block(host)
    starts = positions(run)
    cut = int(starts[2])
    first = content_sum(run.data[:cut].copy(), starts[:2])
    assert content_sum(run.data[cut:].copy(), starts[2:] - cut, first) == summed(run)
    assert content_sum(np.empty(0, np.uint8), np.empty(0, np.int64), 7) == 7


@HOSTS
def test_rows_that_are_staged_anew_take_over_what_the_log_says_of_their_origin(host: bytes) -> None:
    logged, anew = block(host), block(OTHERS[host], born_ms=9_000)
    for run in (logged, anew):
        stamp(run.data, positions(run), np.arange(5), np.arange(5) * 100, 5_555, len(host))
    assert logged.data.tobytes() != anew.data.tobytes()
    copy_origins(logged.data, anew.data, positions(anew))
    assert logged.data.tobytes() == anew.data.tobytes()
