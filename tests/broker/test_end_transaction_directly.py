"""END_TRANSACTION reads no more when more lies behind its half, and many threads may end transactions at once."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from spark_mq.broker.end_transaction import TransactionEnder, request_for
from storage import Message, MessageStore, StoreConfig, open_store
from storage.format.record import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from storage.format.record_batch import Records
from storage.log import commit_log
from storage.pending import Pending
from storage.rules.half_messages import OP_TOPIC, half_message
from storage.rules.inner_messages import InnerMessage
from storage.rules.response_codes import ResponseCode
from storage.service.put_group import PutMessageResult, Rows
from storage.service.put_service import PutService
from storage.transaction.known_ends import OffsetRanges
from tests.broker.test_handler_threads import together

NOW_MS = 1_700_000_000_000
TINY = StoreConfig.tiny()


def message_of(number: int, topic: str = "TopicTx") -> InnerMessage:
    properties = {"UNIQ_KEY": f"K{number:06d}"}
    return InnerMessage(topic=topic, queue_id=1, body=b"%d" % number, properties=properties, born_time_ms=NOW_MS)


def prepare(store: MessageStore | PutService, numbers: list[int]) -> list[Message]:
    halves = [half_message(message_of(number), "P") for number in numbers]
    receipt = store.put_inner(halves)
    places = receipt.places if not isinstance(store, MessageStore) else receipt  # type: ignore[union-attr]
    return [store.message_by_commitlog_offset(place) for place in places.column("commitlog_offset").to_pylist()]


def open_writing(root: Path, **settings: Any) -> MessageStore:
    return open_store(root, config=TINY, read_only=False, create=True, clock=lambda: NOW_MS, **settings)


def commits_of(root: str) -> list[bytes]:
    with open_store(root, config=TINY) as store:
        found, offset = [], 0
        while messages := store.get("TopicTx", 1, offset, 500, max_bytes=1 << 20).messages:
            found += [message.body for message in messages]
            offset = messages[-1].queue_offset + 1
        return found


class Counted:
    """How many records were decoded, one by one or in blocks."""

    count = 0


@contextmanager
def counting() -> Iterator[Counted]:
    counted, decode, make = Counted(), commit_log.decode_record, Records.__init__

    def decode_counted(*args: Any, **options: Any) -> Any:
        counted.count += 1
        return decode(*args, **options)

    def make_counted(records: Records, buffer: Any, positions: Any) -> None:
        counted.count += len(positions)
        make(records, buffer, positions)

    with (
        mock.patch.object(commit_log, "decode_record", decode_counted),
        mock.patch.object(Records, "__init__", make_counted),
    ):
        yield counted


def records_read_with(store: MessageStore, behind: int, state: int, number: int) -> int:
    """How many records the end of a transaction reads that has as many halves, ends, commits and other messages behind it."""
    ender = TransactionEnder.of(store, NOW_MS)
    (half,) = prepare(store, [number])
    others = prepare(store, list(range(number + 1, number + 1 + behind)))
    store.put_inner([message_of(other, "Other") for other in range(behind)])
    for other in others:
        ender.end(request_for(other, TRANSACTION_COMMIT), NOW_MS)
    ender.close(NOW_MS)
    with counting() as counted:
        response = ender.end(request_for(half, state), NOW_MS)
    assert response is not None
    assert response.code == ResponseCode.SUCCESS
    return counted.count


@pytest.mark.parametrize("state", [TRANSACTION_COMMIT, TRANSACTION_ROLLBACK], ids=["commit", "rollback"])
def test_what_an_end_reads_does_not_grow_with_what_lies_behind_its_half(tmp_path: Path, state: int) -> None:
    with open_writing(tmp_path / "store") as store:
        few = records_read_with(store, 2, state, 0)
        many = records_read_with(store, 60, state, 1_000)
    assert few == many
    assert 0 < few < 10


def test_an_end_after_the_store_was_let_go_of_and_opened_again_reads_no_more(tmp_path: Path) -> None:
    """`spark_mq.transaction` opens the store for each step; the hint says from where on the index is whole."""
    reads = []
    for behind in (2, 200):
        root = tmp_path / f"store{behind}"
        store = open_writing(root)
        (half,) = prepare(store, [0])
        store.put_inner([message_of(number, "Other") for number in range(1, behind)])
        prepare(store, list(range(1_000, 1_000 + behind)))
        store.release()
        with open_writing(root) as again:
            ender = TransactionEnder.of(again, NOW_MS)
            with counting() as counted:
                ender.end(request_for(half, TRANSACTION_COMMIT), NOW_MS)
            reads.append(counted.count)
            ender.close(NOW_MS)
    assert reads[0] == reads[1]


def test_a_transaction_of_before_the_index_was_known_to_be_whole_is_looked_for_in_the_log(tmp_path: Path) -> None:
    """A broker that crashed may have left gaps in the index; a recovery begins to trust it from its own end on."""
    with open_writing(tmp_path / "store") as store:
        (half,) = prepare(store, [0])
        ender = TransactionEnder.of(store, NOW_MS)
        ender.end(request_for(half, TRANSACTION_COMMIT), NOW_MS)
        ender.close(NOW_MS)
    for path in (tmp_path / "store" / "index").iterdir():  # as if the broker had lost all keys
        path.unlink()
    with open_writing(tmp_path / "store") as store:
        assert store.writer.ends.indexed_from == store.log_end
        again = TransactionEnder.of(store, NOW_MS)
        response = again.end(request_for(half, TRANSACTION_COMMIT), NOW_MS)
        again.close(NOW_MS)
    assert response is not None
    assert response.code == ResponseCode.SUCCESS
    assert commits_of(str(tmp_path / "store")) == [b"0"]


def test_what_another_ender_has_written_is_heeded(tmp_path: Path) -> None:
    with open_writing(tmp_path / "store") as store:
        first, second = TransactionEnder.of(store, NOW_MS), TransactionEnder.of(store, NOW_MS)
        halves = prepare(store, [0, 1])
        assert second.end(request_for(halves[1], TRANSACTION_COMMIT), NOW_MS) is not None
        first.end(request_for(halves[0], TRANSACTION_ROLLBACK), NOW_MS)
        refused = second.end(request_for(halves[0], TRANSACTION_COMMIT), NOW_MS)
        assert refused is not None
        assert refused.code == ResponseCode.ILLEGAL_OPERATION
        first.close(NOW_MS)
        second.close(NOW_MS)
    assert commits_of(str(tmp_path / "store")) == [b"1"]


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_ends_by_many_threads_write_each_commit_once_and_name_each_half_once(tmp_path: Path, flush: str) -> None:
    """Every transaction is ended by two threads at once, in any order; some are rolled back."""
    numbers = list(range(40))
    with PutService(open_writing(tmp_path / "store", flush_disk_type=flush)) as service:
        halves = prepare(service, numbers)
        ender = TransactionEnder(service, NOW_MS)

        def end_some(thread: int) -> None:
            own = [half for number, half in enumerate(halves) if number % 4 == thread // 2]
            random.Random(thread).shuffle(own)
            for half in own:
                state = TRANSACTION_ROLLBACK if half.queue_offset % 5 == 0 else TRANSACTION_COMMIT
                response = ender.end(request_for(half, state), NOW_MS)
                assert response is not None
                assert response.code == ResponseCode.SUCCESS

        together(end_some)
        ender.close(NOW_MS)
        root = service.root
    assert sorted(commits_of(root)) == sorted(b"%d" % number for number in numbers if number % 5)
    with open_store(root, config=TINY) as store:
        ops = store.get(OP_TOPIC, 0, 0, 500).messages
    named = [int(text) for op in ops for text in op.body.decode().split(",") if text]
    assert sorted(named) == numbers


def test_a_commit_whose_sync_is_late_is_not_written_again(tmp_path: Path) -> None:
    """FLUSH_DISK_TIMEOUT: the record stands, and its key is in the index only when it is synced."""
    with Unwaited(open_writing(tmp_path / "store", flush_disk_type="SYNC_FLUSH"), starts_duties=False) as service:
        with ThreadPoolExecutor(1) as other:
            preparing = other.submit(service.put_inner, [half_message(message_of(0), "P")], waits=False)
            place = preparing.result().places.column("commitlog_offset")[0].as_py()
        service.sync_turn()
        half = service.message_by_commitlog_offset(place)
        ender = TransactionEnder(service, NOW_MS)
        for _ in range(2):
            response = ender.end(request_for(half, TRANSACTION_COMMIT), NOW_MS)
            assert response is not None
            assert response.code == ResponseCode.SUCCESS
        ender.close(NOW_MS)
        root = service.root
    assert commits_of(root) == [b"0"]


class Unwaited(PutService):
    """Its puts wait for no disk."""

    def put_later(self, messages: Rows, **options: Any) -> Pending[PutMessageResult]:
        return super().put_later(messages, **{**options, "waits": False})


@pytest.mark.parametrize("seed", range(5))
def test_ranges_of_offsets_hold_what_a_set_holds(seed: int) -> None:
    chooses, ranges, offsets = random.Random(seed), OffsetRanges(), set[int]()
    for _ in range(200):
        start = chooses.randrange(100)
        end = start + chooses.randrange(1, 4)
        ranges.add_range(start, end)
        offsets.update(range(start, end))
        assert [offset for offset in range(-2, 110) if offset in ranges] == sorted(offsets)
    assert len(ranges._bounds) == 2 * sum(offset - 1 not in offsets for offset in offsets)
