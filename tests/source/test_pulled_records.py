"""Records of pull answers against the same records read from the broker's files."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import pytest

from spark_mq.source.pulled_records import PulledPart, PulledRecordError, slice_of
from storage import open_store
from storage.format.record import INNER_BATCH, encode_record
from storage.queues.scan import scan_queue
from tests.support.fixture_stores import Fixture
from tests.support.log_records import log_records
from tests.support.message_builder import make_message

FixtureStore = Callable[[str], Fixture]


def cut(raws: list[bytes], seed: int) -> list[PulledPart]:
    """The records from offset 0 on as answers of some records each."""
    order, parts, start = random.Random(seed), [], 0
    while start < len(raws):
        end = min(start + order.randint(1, 33), len(raws))
        parts.append(PulledPart(start, end, b"".join(raws[start:end])))
        start = end
    return parts


@pytest.mark.parametrize("name", ["clean", "ipv6"])
def test_pulled_records_are_those_of_the_files(fixture_store: FixtureStore, name: str) -> None:
    fixture = fixture_store(name)
    queues = defaultdict(list)
    for record in log_records(fixture.root):
        queues[record.message.topic, record.message.queue_id].append(record)
    compared = 0
    with open_store(fixture.root) as store:
        for (topic, queue_id), records in queues.items():
            if [one.message.queue_offset for one in records] != list(range(len(records))):
                continue
            queue = store.queues.get(topic, queue_id)
            assert queue is not None
            parts = list(scan_queue(queue, store.log, store.log_end, 0, len(records)))
            pulled = slice_of(cut([one.raw for one in records], seed=queue_id), topic.encode(), queue_id)
            assert pulled.queue_offsets.tolist() == np.concatenate([part.queue_offsets for part in parts]).tolist()
            for field in ("commitlog_offset", "size_bytes", "store_time_ms", "born_time_ms", "sys_flag", "body_crc"):
                filed = np.concatenate([part.records.column(field) for part in parts])
                assert pulled.records.column(field).tolist() == filed.tolist(), field
            bodies = [body for part in parts for body in part.records.bodies().to_pylist()]
            assert pulled.records.bodies().to_pylist() == bodies
            compared += len(records)
    assert compared > 50


def raw(offset: int, body: bytes = b"body", topic: str = "TopicA", queue_id: int = 0) -> bytes:
    return encode_record(make_message(topic, queue_id, offset, 1_000 * offset, body=body))


def test_records_behind_a_part_are_anothers() -> None:
    parts = [PulledPart(3, 5, raw(3) + raw(4) + raw(5)), PulledPart(5, 7, raw(5) + raw(6))]
    assert slice_of(parts, b"TopicA", 0).queue_offsets.tolist() == [3, 4, 5, 6]


def test_gaps_are_no_error() -> None:
    assert slice_of([PulledPart(3, 90, raw(4) + raw(80))], b"TopicA", 0).queue_offsets.tolist() == [4, 80]


def test_records_of_other_queues_are_passed_over_as_in_files() -> None:
    body = raw(0) + raw(1, queue_id=1) + raw(2, topic="TopicB") + raw(3)
    assert slice_of([PulledPart(0, 4, body)], b"TopicA", 0).queue_offsets.tolist() == [0, 3]


def test_no_record_is_no_row() -> None:
    assert len(slice_of([PulledPart(0, 4, b"")], b"TopicA", 0).queue_offsets) == 0


def test_batches_are_refused_and_not_taken_for_messages() -> None:
    body = encode_record(make_message("TopicA", 0, 0, sys_flag=INNER_BATCH))
    with pytest.raises(PulledRecordError, match="BatchCQ"):
        slice_of([PulledPart(0, 3, body)], b"TopicA", 0)


WHOLE = raw(0, b"x" * 100) + raw(1, b"y" * 50)


def test_an_answer_cut_anywhere_but_between_records_is_refused() -> None:
    taken = []
    for size in range(len(WHOLE)):
        with suppress(PulledRecordError):
            slice_of([PulledPart(0, 2, WHOLE[:size])], b"TopicA", 0)
            taken.append(size)
    assert taken == [0, len(raw(0, b"x" * 100))]


@pytest.mark.parametrize("size", [0, -1, 1, 90, 1 << 30, -(1 << 31)])
def test_a_size_that_lies_is_refused(size: int) -> None:
    body = size.to_bytes(4, "big", signed=True) + WHOLE[4:]
    with pytest.raises(PulledRecordError):
        slice_of([PulledPart(0, 2, body)], b"TopicA", 0)


@pytest.mark.parametrize(
    "part", [PulledPart(1, 4, raw(0)), PulledPart(0, 4, raw(2) + raw(1)), PulledPart(0, 4, raw(1) + raw(1))]
)
def test_offsets_that_were_not_asked_for_are_refused(part: PulledPart) -> None:
    with pytest.raises(PulledRecordError, match="requested offsets"):
        slice_of([part], b"TopicA", 0)


def test_any_damage_is_a_refusal_or_an_answer() -> None:
    for seed in range(200):
        print(f"seed {seed}")
        order = random.Random(seed)
        body = bytearray(WHOLE)
        for _ in range(order.randint(1, 8)):
            body[order.randrange(len(body))] = order.randrange(256)
        with suppress(PulledRecordError):
            found = slice_of([PulledPart(0, 2, bytes(body))], b"TopicA", 0)
            found.records.bodies()
            found.records.raw_properties()
