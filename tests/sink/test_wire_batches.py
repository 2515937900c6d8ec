"""Rows of a task cut into send batches: nothing is lost or doubled, and each queue keeps its order."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pyarrow as pa
import pytest

from spark_mq.remoting.messages import decode_batch
from spark_mq.sink.wire_batches import BatchCutter, WireBatch
from storage.format.record import COMPRESSED, COMPRESSION_ZLIB, MULTI_TAGS
from storage.format.record_block import OutgoingMessages

ZLIB = COMPRESSED | COMPRESSION_ZLIB


def messages(bodies: list[bytes], queues: list[int], sys_flags: list[int] | None = None) -> OutgoingMessages:
    count, nothing = len(bodies), np.zeros(len(bodies), np.int32)
    return OutgoingMessages(
        queues=tuple(("T", place) for place in range(4)),
        queue_codes=np.array(queues, np.int32),
        bodies=pa.array(bodies, pa.large_binary()),
        properties=pa.array([b"WAIT\x01true\x02"] * count, pa.large_binary()),
        flags=np.arange(count, dtype=np.int32),
        sys_flags=nothing if sys_flags is None else np.array(sys_flags, np.int32),
        born_times_ms=nothing,
        tags_codes=nothing,
        key_counts=nothing,
        key_hashes=nothing,
    )


def cut(frames: list[OutgoingMessages], limit_bytes: int = 200, limit_rows: int = 1000) -> list[WireBatch]:
    cutter = BatchCutter(limit_bytes, limit_rows)
    return [batch for frame in frames for batch in cutter.add(frame)] + list(cutter.finish())


def bodies_by_queue(batches: list[WireBatch]) -> dict[int, list[bytes]]:
    found: dict[int, list[bytes]] = defaultdict(list)
    for batch in batches:
        found[batch.queue[1]] += [message.body for message in decode_batch(batch.body)]
    return dict(found)


@pytest.mark.parametrize("seed", range(40))
def test_every_row_is_in_one_batch_and_queues_keep_their_order(seed: int) -> None:
    random = np.random.default_rng(seed)
    frames, expected, ranks, count = [], defaultdict(list), defaultdict(list), 0
    for _ in range(int(random.integers(1, 5))):
        size = int(random.integers(0, 60))
        queues = random.integers(0, 4, size).tolist()
        flags = random.choice([0, ZLIB], size, p=[0.8, 0.2]).tolist()
        bodies = [f"{count + i}:".encode() + bytes(int(random.integers(0, 120))) for i in range(size)]
        for i, (queue, body) in enumerate(zip(queues, bodies, strict=True)):
            expected[queue].append(body)
            ranks[queue].append(count + i)
        count += size
        frames.append(messages(bodies, queues, flags))
    limit_bytes, limit_rows = int(random.integers(40, 600)), int(random.integers(1, 9))
    batches = cut(frames, limit_bytes, limit_rows)
    assert bodies_by_queue(batches) == dict(expected)
    by_queue: dict[int, list[int]] = defaultdict(list)
    for batch in batches:
        by_queue[batch.queue[1]] += batch.ranks.tolist()
        assert batch.row_count == len(decode_batch(batch.body)) <= limit_rows
        assert len(batch.body) <= limit_bytes or batch.row_count == 1
    assert by_queue == dict(ranks)


def test_batches_grow_over_frames_up_to_their_limit() -> None:
    frame = messages([b"x" * 16] * 2, [0, 1])  # an item has 22 + 16 + 10 bytes
    batches = cut([frame] * 4, limit_bytes=3 * 48)
    assert [(batch.queue[1], batch.row_count) for batch in batches] == [(0, 3), (1, 3), (0, 1), (1, 1)]


def test_a_batch_ends_where_compression_begins_and_again_where_it_ends() -> None:
    batches = cut([messages([b"a", b"b", b"c", b"d"], [0] * 4, [0, ZLIB, ZLIB, 0])])
    assert [(batch.sys_flag, batch.ranks.tolist()) for batch in batches] == [(0, [0]), (ZLIB, [1, 2]), (0, [3])]


def test_a_row_that_fits_no_batch_goes_alone_in_its_place() -> None:
    batches = cut([messages([b"a", b"L" * 900, b"b", b"c"], [0] * 4)])
    assert [batch.ranks.tolist() for batch in batches] == [[0], [1], [2, 3]]


def test_what_the_broker_finds_out_itself_is_not_said() -> None:
    assert [batch.sys_flag for batch in cut([messages([b"a"], [0], [MULTI_TAGS | ZLIB])])] == [ZLIB]


def test_rows_that_ask_for_a_delay_go_alone_in_their_place() -> None:
    given = messages([b"a", b"b", b"c", b"d", b"e"], [0, 0, 0, 0, 1])
    properties = [b"k\x01DELAY\x02", b"x\x011\x02DELAY\x013\x02", b"TIMER_DELIVER_MS\x019\x02", b"", b"DELAY\x011\x02"]
    given = given._replace(properties=pa.array(properties, pa.large_binary()))
    cutter = BatchCutter(1_000, 100)
    batches = [
        *cutter.add(given, may_wait=True),
        *cutter.add(messages([b"f", b"g"], [0, 1]), may_wait=True),
        *cutter.finish(),
    ]
    assert bodies_by_queue(batches) == {0: [b"a", b"b", b"c", b"d", b"f"], 1: [b"e", b"g"]}
    assert sorted(batch.ranks.tolist() for batch in batches) == [[0], [1], [2], [3, 5], [4], [6]]
    assert {batch.sys_flag for batch in batches} == {0}
