"""Puts that arrive together become one append, and each is told what became of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from storage import open_store
from storage.errors import MessageIllegalError, StoreNotWritableError
from storage.pending import PutStatus
from storage.rules.inner_messages import InnerMessage, InnerMessages
from storage.service import put_service
from storage.service.put_group import GROUP_MESSAGES, JoinedPut, PutGroup, PutMessageResult, append_together
from storage.service.put_service import PutService
from storage.settings.load import parse_config
from storage.tables.topics import MappingItem, TopicConfig, TopicQueueMapping

V4, V6 = bytes([127, 0, 0, 1, 0, 0, 40, 1]), bytes(range(16)) + bytes([0, 0, 40, 1])


@pytest.fixture(params=["SYNC_FLUSH", "ASYNC_FLUSH"])
def service(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[PutService]:
    config = parse_config(f"brokerName=b\nbrokerIP1=127.0.0.1\nflushDiskType={request.param}\n".encode())
    with PutService(open_store(tmp_path / "store", config=config, read_only=False, create=True)) as service:
        yield service


def message(number: int, *, topic: str = "T", host: bytes | None = V4) -> InnerMessage:
    return InnerMessage(
        topic=topic,
        queue_id=number % 3,
        body=b"%d" % number,
        properties={"KEYS": f"k{number}", "UNIQ_KEY": f"U{number}"},
        flag=number,
        born_time_ms=1_700_000_000_000 + number,
        born_host=host,
        reconsume_times=number % 2,
    )


def held_together(
    service: PutService, puts: list[Callable[[], PutMessageResult]]
) -> list[PutMessageResult | BaseException]:
    """What each put comes to, when all have been judged before one is appended."""

    def put(each: Callable[[], PutMessageResult]) -> PutMessageResult | BaseException:
        try:
            with service.at_work():
                return each()
        except Exception as error:
            return error

    group = service._joining
    with pytest.MonkeyPatch.context() as patched, ThreadPoolExecutor(len(puts)) as pool:
        patched.setattr(put_service, "PATIENCE_SECONDS", 60)
        group.come()  # the others wait for this one
        futures = []
        for number, each in enumerate(puts, start=1):
            futures.append(pool.submit(put, each))
            while len(group._waiting) < number:
                time.sleep(0.001)
        group.leave()
        service._append_joined()
        return [future.result(60) for future in futures]


@pytest.mark.parametrize("hosts", [(V4, V4), (V6, V6), (V4, V6), (None, None)])
def test_columns_put_together_are_those_of_all_messages(hosts: tuple[bytes | None, bytes | None]) -> None:
    some = [message(number, host=hosts[0]) for number in range(3)]
    more = [message(number, host=hosts[1]) for number in range(3, 5)]
    together = InnerMessages.concat([InnerMessages.of(some), InnerMessages.of(more)])
    assert [together.message(row) for row in range(5)] == [*some, *more]


def test_each_gets_its_own_place(service: PutService) -> None:
    got = held_together(service, [lambda number=number: service.put_inner([message(number)]) for number in range(12)])
    places = [each.places.to_pylist()[0] for each in got if isinstance(each, PutMessageResult)]
    assert [place["unique_key"] for place in places] == [f"U{number}" for number in range(12)]
    with service.exclusive() as store:
        for number, place in enumerate(places):
            (found,) = store.get("T", place["queue_id"], place["queue_offset"], 1).messages
            assert (found.body, found.commitlog_offset) == (b"%d" % number, place["commitlog_offset"])


def test_one_that_no_record_can_hold_is_refused_alone(service: PutService) -> None:
    puts = [lambda number=number: service.put_inner([message(number)]) for number in range(4)]
    puts.insert(2, lambda: service.put_inner([message(9, topic="T" * 300)]))
    got = held_together(service, puts)
    assert isinstance(got.pop(2), MessageIllegalError)
    assert [each.status for each in got if isinstance(each, PutMessageResult)] == [PutStatus.PUT_OK] * 4
    with service.exclusive() as store:
        assert sum(store.max_offset("T", queue_id) for queue_id in range(3)) == 4


@pytest.mark.parametrize("service", ["ASYNC_FLUSH"], indirect=True)
def test_what_is_stored_and_cannot_be_made_readable_is_no_refusal(
    service: PutService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A producer that is told of a refusal sends again."""

    def fails() -> None:
        raise StoreNotWritableError("store", "a queue has no file")

    monkeypatch.setattr(service._writer, "dispatch", fails)
    with pytest.raises(OSError, match="stored, and no consumer finds it yet"):
        service.put_inner([message(1)])
    with pytest.raises(MessageIllegalError):  # it is not stored
        service.put_inner([message(2, topic="T" * 300)])
    monkeypatch.undo()
    with service.exclusive() as store:
        store.writer.dispatch()
        assert sum(store.max_offset("T", queue_id) for queue_id in range(3)) == 1


def test_where_nobody_knows_what_stands_nobody_is_told_that_it_does() -> None:
    taken = [JoinedPut(InnerMessages.of([message(number)]), True, 0) for number in range(3)]

    def fails(messages: InnerMessages) -> pa.RecordBatch:
        raise OSError(5, "the disk is gone")

    append_together(taken, fails)
    for put in taken:
        assert not put.is_stored
        with pytest.raises(OSError, match="the disk is gone"):
            put.places()


def test_a_group_has_a_limit_and_keeps_the_order() -> None:
    group = PutGroup()
    joined = [group.join(InnerMessages.of([message(number)]), True, 0) for number in range(GROUP_MESSAGES + 3)]
    first = group.take()
    assert first == joined[:GROUP_MESSAGES]
    assert group.take() == joined[GROUP_MESSAGES:]
    assert group.take() == []


def test_puts_that_wait_are_readable_when_a_static_topic_has_changed(service: PutService) -> None:
    """Else the end of a queue that has moved could rise behind consumers that have gone on at the other broker."""
    service._joining.come()  # another one is on its way: the put waits for it
    waiting = service.put_later(InnerMessages.of([message(0)]))
    mapping = TopicQueueMapping("T", "b", 1, 1, hosted_queues={0: (MappingItem("b"),)})
    service.save_static_topic(TopicConfig("T", 3, 3), lambda before: mapping)
    assert service.store.max_offset("T", 0) == 1
    service._joining.leave()
    assert waiting().status is PutStatus.PUT_OK
    assert service.settings.mappings.mappings == {"T": mapping}


def test_a_static_topic_that_is_refused_is_as_it_was_and_one_that_stays_is_of_a_later_version(
    service: PutService,
) -> None:
    """Name servers take a mapping only with topics of another version."""
    mapping = TopicQueueMapping("T", "b", 1, 1, hosted_queues={0: (MappingItem("b"),)})
    service.save_static_topic(TopicConfig("T", 1, 1), lambda before: mapping)
    first = service.settings

    def refuse(before: TopicQueueMapping | None) -> TopicQueueMapping:
        assert before == mapping
        raise ValueError("older")

    with pytest.raises(ValueError, match="older"):
        service.save_static_topic(TopicConfig("T", 9, 9), refuse)
    assert service.settings is first
    service.save_static_topic(TopicConfig("T", 1, 1), lambda before: mapping)
    assert service.settings.topics.version.counter == first.topics.version.counter + 1
    service.delete_topic("T")
    assert not service.settings.mappings.mappings
