"""What a broker's clients read beside the writer is what a reader of the store reads."""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from storage import MessageStore, open_store
from storage.format.record import Message, decode_record
from storage.ha.follower import FollowedLog
from storage.ha.sessions import Received
from storage.log.dispatch import QueueEntries
from storage.queues.get import GetStatus
from storage.queues.store import read_positions
from storage.service import served_store
from storage.service.put_service import PutService
from storage.service.served_store import MessageFilter, RawGet, ServedStore, TransferLimits
from storage.settings.load import StoreConfig, parse_config
from tests.support.java_broker import wait_until
from tests.support.shares import one_in

CONF = (
    b"brokerName=b\nbrokerIP1=127.0.0.1\nmappedFileSizeCommitLog=4096\nmappedFileSizeConsumeQueue=400\n"
    b"maxHashSlotNum=100\nmaxIndexNum=400\n"
)
LIMITS = TransferLimits(memory_bytes=1 << 30)
COUNT = 60


def config(more: bytes = b"") -> StoreConfig:
    return parse_config(CONF + more)


def put(store: MessageStore, first: int, count: int = COUNT) -> None:
    for number in range(first, first + count):
        store.put("T", b"%d" % number * 20, tags=("red", "blue")[number % 2], keys=f"k{number}", queue_id=0)


@pytest.fixture(params=[b"", b"enableConsumeQueueExt=true\n"], ids=["plain", "ext"])
def service(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[PutService]:
    store = open_store(tmp_path / "store", config=config(request.param), read_only=False, create=True)
    put(store, 0)
    with PutService(store, starts_duties=False) as service:
        yield service


def messages(found: RawGet) -> list[Message]:
    records, at = [], 0
    while at < len(found.body):
        record = decode_record(found.body, at)
        assert isinstance(record, Message)
        records.append(record)
        at += record.size_bytes
    assert len(records) == found.message_count
    return records


def read_all(served: ServedStore, wanted: MessageFilter | None = None) -> list[Message]:
    found, offset = [], 0
    for _ in range(1_000):
        result = served.get("T", 0, offset, 7, LIMITS, *([] if wanted is None else [wanted]))
        if result.status is GetStatus.OFFSET_OVERFLOW_ONE:
            return found
        found += messages(result)
        assert result.next_begin_offset > offset
        offset = result.next_begin_offset
    raise AssertionError("it does not end")


def test_all_messages_come_in_order_over_files_of_log_and_queue_also_those_put_later(service: PutService) -> None:
    served = ServedStore(service.store)
    assert [message.queue_offset for message in read_all(served)] == list(range(COUNT))
    put(service.store, COUNT)
    found = read_all(served)
    assert [message.body for message in found] == [b"%d" % number * 20 for number in range(2 * COUNT)]
    assert found[-1].commitlog_offset + found[-1].size_bytes == service.dispatched_end


def test_a_filter_by_tags_or_by_properties_finds_what_it_wants(service: PutService) -> None:
    served = ServedStore(service.store)
    with open_store(service.root, config=service.config) as reader:
        red = reader.get("T", 0, 0, 1, tags="red").messages[0]
        code = int(
            reader.queues.ext("T", 0).tags_codes(reader.queues.get_or_make("T", 0).entries(0, 1)["tags_code"])[0]
        )
    assert red.tags == "red"
    by_hash = read_all(served, MessageFilter(frozenset({code})))
    by_text = read_all(served, MessageFilter(accepts=lambda raw: b"TAGS\x01red" in raw))
    assert [message.tags for message in by_hash] == ["red"] * (COUNT // 2)
    assert by_text == by_hash
    nothing = served.get("T", 0, 0, 7, LIMITS, MessageFilter(frozenset({1})))
    assert (nothing.status, nothing.body) == (GetStatus.NO_MATCHED_MESSAGE, b"")


@pytest.mark.parametrize("wanted", [None, MessageFilter(accepts=lambda raw: b"KEYS\x01" in raw)], ids=["all", "SQL"])
@pytest.mark.parametrize(
    ("place", "size_bytes"),
    one_in(3, [(0, 0), (0, 10), (0, 90), (200, -5), (0, 8_000), (4_000, 200), (77, 120), (-1, 120), (2**62, 120)]),
)
def test_an_entry_that_leads_to_no_record_of_its_own_is_passed_over(
    service: PutService, place: int, size_bytes: int, wanted: MessageFilter | None
) -> None:
    queue = Path(service.root) / "consumequeue" / "T" / "0"
    with (queue / f"{400:020d}").open("r+b") as file:  # as a damaged disk leaves it
        file.seek(5 * 20)
        file.write(struct.pack(">qi", place, size_bytes))
    served = ServedStore(service.store)
    found = [message.queue_offset for message in read_all(served, wanted)]
    assert found == [offset for offset in range(COUNT) if offset != 25]


@pytest.mark.parametrize("body_size", [-1, 10_000, 2**31 - 1])
def test_a_record_whose_lengths_do_not_add_up_has_no_properties_to_be_chosen_by(
    service: PutService, body_size: int
) -> None:
    place = service.store.get("T", 0, 25, 1).messages[0].commitlog_offset
    with (Path(service.root) / "commitlog" / f"{place // 4096 * 4096:020d}").open("r+b") as file:
        file.seek(place % 4096 + 84)
        file.write(struct.pack(">i", body_size))
    found = read_all(ServedStore(service.store), MessageFilter(accepts=lambda raw: b"KEYS\x01" in raw))
    assert [message.queue_offset for message in found] == [offset for offset in range(COUNT) if offset != 25]


def test_statuses_at_the_ends(service: PutService) -> None:
    served = ServedStore(service.store)
    for offset, status, following in (
        (-1, GetStatus.OFFSET_TOO_SMALL, 0),
        (COUNT, GetStatus.OFFSET_OVERFLOW_ONE, COUNT),
        (COUNT + 9, GetStatus.OFFSET_OVERFLOW_BADLY, COUNT),
    ):
        found = served.get("T", 0, offset, 7, LIMITS)
        assert (found.status, found.next_begin_offset, found.max_offset) == (status, following, COUNT)
    assert served.get("U", 0, 0, 7, LIMITS).status is GetStatus.NO_MESSAGE_IN_QUEUE


def test_what_expired_moves_the_minimum_when_files_are_listed_anew(service: PutService) -> None:
    served = ServedStore(service.store)
    assert served.minimum("T", 0) == 0
    first, second = service.store.log.files[:2]
    os.unlink(first.path)
    served.list_files()
    minimum = served.minimum("T", 0)
    assert minimum > 0
    assert served.get("T", 0, 0, 7, LIMITS).status is GetStatus.OFFSET_TOO_SMALL
    assert messages(served.get("T", 0, minimum, 7, LIMITS))[0].commitlog_offset == second.start
    assert served.record_at(0) is None


def test_times_keys_and_places_are_found(service: PutService) -> None:
    served = ServedStore(service.store)
    (message,) = messages(served.get("T", 0, 42, 1, LIMITS))
    assert served.store_time("T", 0, 42) == message.store_time_ms
    assert served.earliest_store_time("T", 0) == served.store_time("T", 0, 0)
    assert served.store_time("T", 0, COUNT) == -1
    record = served.record_at(message.commitlog_offset)
    assert record is not None
    assert decode_record(record) == message
    assert served.record_at(message.commitlog_offset + 1) is None
    assert served.records_by_key("T", "k42", 32, 0, 2**63 - 1) == [record]
    assert served.offset_by_time("T", 0, 0) == 0
    assert served.offset_by_time("T", 0, 2**62) == COUNT
    assert served.is_in_memory("T", 0, 0, 1 << 30)
    assert not served.is_in_memory("T", 0, 0, 1)
    assert not served.is_in_memory("T", 1, 0, 1 << 30)


def test_other_reads_have_their_turn_between_the_parts_of_a_look_at_many_store_times(
    service: PutService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served_store, "_PLACES_TOGETHER", 10)
    served = ServedStore(service.store)
    other = threading.Thread(target=lambda: served.record_at(0), daemon=True)
    parts: list[int] = []
    turns: list[int] = []
    see = served._log.see

    def note(end: int) -> None:
        if threading.current_thread() is other:
            turns.append(len(parts))
        see(end)

    def read(queues: Any, offsets: Any, *more: Any) -> Any:
        parts.append(len(offsets))
        if len(parts) == 1:
            other.start()
            wait_until(served._lock._next.locked, "the other read waits")
        return read_positions(queues, offsets, *more)

    monkeypatch.setattr(served._log, "see", note)
    monkeypatch.setattr(served_store, "read_positions", read)
    found = served.store_times({("T", 0, offset) for offset in range(COUNT)})
    assert min(found.values()) > 0
    assert parts == [10] * (COUNT // 10)
    assert turns == [1], "the other read comes after the part that it waited for"


def test_what_is_announced_can_be_read_at_once(service: PutService) -> None:
    """Who reads when a queue's new end is seen must find the message: else a pull would pass over it for good."""
    served = ServedStore(service.store)
    seen: list[tuple[GetStatus, int]] = []

    def look(entered: Sequence[QueueEntries]) -> None:
        for entries in entered:
            found = served.get("T", 0, int(entries.queue_offsets[0]), 32, LIMITS)
            seen.append((found.status, found.message_count))

    with service.listening(look), service.exclusive() as store:
        put(store, COUNT, 3)
    assert seen == [(GetStatus.FOUND, 1)] * 3


def test_a_replica_serves_a_topic_that_its_master_deleted_and_made_again_from_its_first_message(tmp_path: Path) -> None:
    """Also where it began amid the old one, whose first offsets it never had."""
    with open_store(tmp_path / "master", config=config(), read_only=False, create=True) as master:
        put(master, 0)
        start, middle = master.log.files[1].start, master.log_end
        master.writer.delete_topic("T")
        put(master, 100, count=COUNT + 5)
        log = {place: bytes(path.read_bytes()) for place, path in log_files(tmp_path / "master")}
        end = master.log_end
    with PutService(
        open_store(tmp_path / "replica", config=config(), read_only=False, create=True, holder="follower"),
        starts_duties=False,
    ) as service:
        followed, served = FollowedLog(service), ServedStore(service.store)
        followed.begin_at(start)

        def receive(begin: int, stop: int) -> None:
            for place, content in log.items():
                at, behind = max(begin, place), min(stop, place + len(content))
                if at < behind:
                    followed.take(Received(at, content[at - place : behind - place], None))
            followed.settle()

        receive(start, middle)
        assert served.minimum("T", 0) > 0
        receive(middle, end)
        assert served.minimum("T", 0) == 0
        assert [message.body for message in read_all(served)] == [b"%d" % number * 20 for number in range(100, 165)]


def log_files(root: Path) -> list[tuple[int, Path]]:
    """By their starts."""
    return [(int(path.name), path) for path in sorted((root / "commitlog").iterdir())]
