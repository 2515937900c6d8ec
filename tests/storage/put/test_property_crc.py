"""A store whose records end in a sum over themselves: every way in writes it, recovery and readers ask for it.

What is right is judged as CommitLog.checkMessageAndReturnSize does with forceVerifyPropCRC: tests/format/test_property_crc.py holds
that judge to a broker's records, tests/interop/test_property_crc.py holds what is written to Apache's classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from jobs.verify_store import verify_store
from spark_mq.broker.put_plan import PutRules, plan_inner
from storage import MessageStore, StoreConfig, open_store
from storage.batch.commit import commit_batch
from storage.batch.ledger import Batch
from storage.batch.staged_segment import SegmentWriter, StagedBatch, StagedSegment, sink_digest
from storage.delay.schedule import deliver_due
from storage.delay.timer_store import deliver_timed
from storage.errors import (
    CorruptRecordError,
    MessageIllegalError,
    PutRefusedError,
    RowIllegalError,
    StoreDamagedError,
    StoreNotWritableError,
)
from storage.files.local_file_system import LocalFileSystem
from storage.format.properties import decode_properties
from storage.format.record_batch import Records
from storage.pending import PutStatus
from storage.put.settings import PutOptions, message_rules
from storage.queues.scan import scan_queue
from storage.recovery.verify import Kind
from storage.rules.half_messages import TransactionState
from storage.rules.inner_messages import InnerMessage, encode_properties
from storage.rules.message_rows import MessageRows
from storage.rules.row_rules import DEFAULT_QUEUE_COUNT
from storage.settings.load import load_config
from tests.support.dying import killed_at
from tests.support.held_check import check_half_messages

SUM = "__CRC32#"
PROPERTIES_LIMIT = 32_767
TAIL = 20
DAY_MS = 86_400_000
BOTH = ("enabledAppendPropCRC", "forceVerifyPropCRC")


def conf_in(directory: Path, *names: str, **settings: str) -> Path:
    """A broker.conf beside the store, with these settings true."""
    lines = {
        "mappedFileSizeCommitLog": 8_192,
        "mappedFileSizeConsumeQueue": 400,
        "maxHashSlotNum": 20,
        "maxIndexNum": 60,
    }
    path = directory / "broker.conf"
    path.write_text("".join(f"{k}={v}\n" for k, v in {**lines, **dict.fromkeys(names, "true"), **settings}.items()))
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Of a store that is not there yet, with both settings."""
    conf_in(tmp_path, *BOTH, brokerIP1="127.0.0.1")
    return tmp_path / "store"


def writing(root: Path, **options: object) -> MessageStore:
    return open_store(root, read_only=False, create=True, **options)  # type: ignore[arg-type]


def all_records(root: Path) -> Iterator[tuple[np.ndarray, Records]]:
    """Whatever the log holds, sums or not."""
    with open_store(root, config=replace(load_config(str(root), read_bytes=LocalFileSystem().read_file))) as store:
        yield from store.log.walk(store.log.minimum, check_crc=False)


def property_strings(root: Path) -> list[bytes]:
    return [raw for _, records in all_records(root) for raw in records.raw_properties().to_pylist()]


def assert_every_record_ends_in_its_sum(root: Path, at_least: int) -> None:
    count = 0
    for _, records in all_records(root):
        assert records.property_crc_agrees(required=True).all()
        count += len(records)
    assert count >= at_least
    for raw in property_strings(root):
        assert raw.count(SUM.encode()) == 1
        assert raw[-TAIL:].startswith(SUM.encode())


def table(bodies: list[bytes], **columns: object) -> pa.Table:
    return pa.table({"topic": ["T"] * len(bodies), "body": bodies, **columns})


def staged(store: MessageStore, batch: Batch, bodies: list[bytes], name: str, **columns: object) -> StagedSegment:
    settings = store.writer.settings
    rows = MessageRows(message_rules(settings, PutOptions()), bytes([batch.batch_id]) * 10)
    prepared = rows.prepare(table(bodies, **columns).combine_chunks().to_batches()[0], 1)
    writer = SegmentWriter(LocalFileSystem(), store.root, sink_digest(*batch[:2]).hex(), name)
    writer.append(settings.encode_parts(prepared.messages))
    segment = writer.finish()
    assert segment is not None
    return segment


def commit(store: MessageStore, batch_id: int, bodies: list[bytes]) -> None:
    batch = Batch("sink", "query", batch_id)
    half = len(bodies) // 2
    segments = [
        staged(store, batch, part, f"{batch_id}-{n}-0") for n, part in enumerate((bodies[:half], bodies[half:]))
    ]
    commit_batch(store.writer, StagedBatch(batch, segments, {"T": DEFAULT_QUEUE_COUNT}))


BODIES = [b"", b"x", *(b"body %d " % n * (1 + n % 30) for n in range(60))]


# Written


def test_every_put_ends_in_its_sum(root: Path) -> None:
    with writing(root) as store:
        store.put("T", b"one", tags="a", keys=["k"], properties={"name": "wert"})
        store.put("T", b"")
        store.put_batch(table(BODIES), compress_body_over=100)
        store.put_inner([InnerMessage(topic="T", queue_id=0, body=b"", properties={})])
    assert_every_record_ends_in_its_sum(root, 65)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_every_row_of_a_sink_ends_in_its_sum_and_so_does_the_ledger(tmp_path: Path, address: str) -> None:
    conf_in(tmp_path, *BOTH, brokerIP1=address)
    root = tmp_path / "store"
    with writing(root) as store:
        commit(store, 0, BODIES)
        commit(store, 1, BODIES[:4])
    assert_every_record_ends_in_its_sum(root, len(BODIES) + 4 + 4)


def test_transactions_end_in_their_sums(root: Path) -> None:
    """Halves, commits that are stamped with their halves' places, op messages, copies that a check puts back."""
    with writing(root) as store:
        states = ["commit", "rollback", "unknown", "commit"]
        store.put_batch(table(BODIES[2:6], transaction_state=states), transactional=True, producer_group="G")
        report = check_half_messages(store, lambda half: TransactionState.UNKNOWN, store.writer.clock() + DAY_MS)
        assert report.put_back == 1
        check_half_messages(store, lambda half: TransactionState.COMMIT, store.writer.clock() + 2 * DAY_MS)
    assert_every_record_ends_in_its_sum(root, 4 + 2 + 1 + 1 + 1 + 1)


def test_a_delivered_message_has_a_sum_of_its_own(root: Path) -> None:
    with writing(root) as store:
        store.put_batch(table(BODIES[1:21], delay_level=pa.array([1] * 20, pa.int32())))
        assert deliver_due(store, store.writer.clock() + DAY_MS).delivered_count == 20
    assert_every_record_ends_in_its_sum(root, 40)


def test_a_timed_message_has_a_sum_of_its_own(tmp_path: Path) -> None:
    conf_in(tmp_path, *BOTH, brokerIP1="127.0.0.1", timerWheelEnable="true", mappedFileSizeTimerLog="1024")
    root = tmp_path / "store"
    now_ms = 1_700_000_000_000
    with writing(root, clock=lambda: now_ms) as store:
        times = pa.array([now_ms + 3_000] * 5, pa.timestamp("ms", "UTC"))
        store.put_batch(table(BODIES[1:6], deliver_at=times))
        deliver_timed(store, now_ms)
        assert deliver_timed(store, now_ms + 10_000).delivered == 5
    assert_every_record_ends_in_its_sum(root, 10)


def test_another_records_sum_does_not_go_on_with_its_message(root: Path) -> None:
    """Java: CommitLog.asyncPutMessage deletes the property first."""
    stale = {"a": "b", SUM: "1234567890", "TAGS": "t"}
    with writing(root) as store:
        store.put_inner([InnerMessage(topic="T", queue_id=0, body=b"body", properties=stale)])
        (message,) = store.get("T", 0, 0, 1).messages
    assert_every_record_ends_in_its_sum(root, 1)
    assert decode_properties(message.raw_properties[:-TAIL]) == {"a": "b", "TAGS": "t"}


def test_without_the_settings_properties_stay_as_they_are(tmp_path: Path) -> None:
    stale = {"a": "b", SUM: "1234567890"}
    with writing(tmp_path / "store", config=StoreConfig.tiny()) as store:
        store.put_inner([InnerMessage(topic="T", queue_id=0, body=b"body", properties=stale)])
        (message,) = store.get("T", 0, 0, 1).messages
    assert message.raw_properties == encode_properties(stale)


@pytest.mark.parametrize("name", BOTH)
def test_either_setting_makes_us_write_it(tmp_path: Path, name: str) -> None:
    """Departure: with forceVerifyPropCRC alone a broker writes records that its next recovery cuts."""
    conf_in(tmp_path, name, brokerIP1="127.0.0.1")
    with writing(tmp_path / "store") as store:
        store.put("T", b"body")
    assert_every_record_ends_in_its_sum(tmp_path / "store", 1)


# Limits: MessageExtEncoder.encode counts the room


def test_properties_have_20_bytes_less_room(root: Path) -> None:
    own = len(encode_properties({"n": ""}))
    with writing(root) as store:

        def inner(size: int) -> InnerMessage:
            return InnerMessage(topic="T", queue_id=0, body=b"", properties={"n": "v" * (size - own), SUM: "1" * 10})

        with pytest.raises(MessageIllegalError) as raised:
            store.put_inner([inner(PROPERTIES_LIMIT - TAIL + 1)])
        assert (raised.value.limit, raised.value.actual) == (PROPERTIES_LIMIT, PROPERTIES_LIMIT + 1)
        rules = PutRules(config=store.config, host=store.writer.settings.host, now_ms=0)
        assert plan_inner(inner(PROPERTIES_LIMIT - TAIL), rules).size_bytes > PROPERTIES_LIMIT
        with pytest.raises(PutRefusedError) as refused:
            plan_inner(inner(PROPERTIES_LIMIT - TAIL + 1), rules)
        assert refused.value.status is PutStatus.PROPERTIES_SIZE_EXCEEDED


def test_rows_have_20_bytes_less_room(tmp_path: Path) -> None:
    """The greatest value that is taken is shorter by the room, and by nothing more."""

    def greatest(directory: Path, *names: str) -> int:
        directory.mkdir()
        conf_in(directory, *names, brokerIP1="127.0.0.1", mappedFileSizeCommitLog="131072")
        with writing(directory / "store") as store:
            low, high = 30_000, 33_000
            while high - low > 1:
                middle = (low + high) // 2
                try:
                    store.put("T", b"", properties={"n": "v" * middle})
                    low = middle
                except RowIllegalError:
                    high = middle
        return low

    assert greatest(tmp_path / "without") - greatest(tmp_path / "with", *BOTH) == TAIL


# Recovered


def crash(root: Path) -> None:
    (root / "abort").write_text("4711")
    (root / "checkpoint").unlink(missing_ok=True)


def flip(root: Path, place: int) -> None:
    path = root / "commitlog" / f"{place // 8_192 * 8_192:020d}"
    content = bytearray(path.read_bytes())
    content[place % 8_192] ^= 0x10
    path.write_bytes(content)


def places_of(root: Path) -> list[int]:
    return [place for offsets, _ in all_records(root) for place in offsets.tolist()]


@pytest.mark.parametrize("let_go", [MessageStore.close, MessageStore.release])
def test_nothing_of_a_whole_store_is_cut(root: Path, let_go: Callable[[MessageStore], None]) -> None:
    store = writing(root)
    store.put_batch(table(BODIES))
    commit(store, 0, BODIES)
    end = store.log_end
    let_go(store)
    crash(root)
    with writing(root) as again:
        assert again.recovery is not None
        assert (again.log_end, again.recovery.cut_bytes) == (end, 0)


@pytest.mark.parametrize("behind", [16, 20, 28, 40, 56, 72])
def test_a_wrong_header_ends_the_log_where_no_checkpoint_vouches_for_more(root: Path, behind: int) -> None:
    """Flag, queue offset, place, born time, store time, retries: no other checksum covers them."""
    with writing(root) as store:
        store.put_batch(table(BODIES))
    places = places_of(root)
    crash(root)
    flip(root, places[-3] + behind)
    with open_store(root) as reader:
        assert reader.log_end == places[-3]
    with writing(root) as again:
        assert again.log_end == places[-3]


def test_a_wrong_header_in_front_of_what_the_checkpoint_vouches_for_is_damage(root: Path) -> None:
    with writing(root) as store:
        store.put_batch(table(BODIES))
    places = places_of(root)
    flip(root, places[-3] + 20)
    with pytest.raises(StoreDamagedError) as raised:
        writing(root)
    assert (raised.value.commitlog_offset, raised.value.field, raised.value.intact_records_behind) == (
        places[-3],
        "property CRC",
        2,
    )


def test_records_of_before_the_setting_are_damage_and_not_a_tail(root: Path) -> None:
    """Else to set forceVerifyPropCRC on a store full of messages would cut them all, as a broker does."""
    conf_in(root.parent, brokerIP1="127.0.0.1")
    with writing(root) as store:
        store.put_batch(table(BODIES[:8]))
        end = store.log_end
    conf_in(root.parent, *BOTH, brokerIP1="127.0.0.1")
    with pytest.raises(StoreDamagedError) as raised:
        writing(root)
    assert (raised.value.commitlog_offset, raised.value.field) == (0, "property CRC")
    conf_in(root.parent, "enabledAppendPropCRC", brokerIP1="127.0.0.1")
    with writing(root) as store:
        assert store.log_end == end
        store.put("T", b"with a sum")


def test_a_torn_end_is_cut_and_written_over(root: Path) -> None:
    """The last record's properties on a page that a crash took: lengths and body are right."""
    with writing(root) as store:
        store.put_batch(table(BODIES))
    places = places_of(root)
    crash(root)
    end = places[-1]
    path = root / "commitlog" / f"{end // 8_192 * 8_192:020d}"
    content = bytearray(path.read_bytes())
    size = int.from_bytes(content[end % 8_192 : end % 8_192 + 4], "big")
    stop = end % 8_192 + size
    content[stop - 60 : stop] = bytes(60)
    path.write_bytes(content)
    with writing(root) as again:
        assert again.log_end == end
        again.put("T", b"anew")
    assert_every_record_ends_in_its_sum(root, len(BODIES))


@pytest.mark.parametrize("point", ["amid-slice", "amid-records", "after-records", "before-end"])
def test_a_batch_that_was_decided_is_finished_with_its_sums(
    root: Path, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with writing(root) as store:
        commit(store, 0, BODIES[:6])
        with killed_at(point):
            commit(store, 1, BODIES)
    with writing(root) as again:
        assert again.finished_batches == 1
        bodies = [m.body for queue_id in again.queue_ids("T") for m in again.get("T", queue_id, 0, 1_000).messages]
    assert sorted(bodies) == sorted(BODIES + BODIES[:6])
    assert_every_record_ends_in_its_sum(root, len(bodies))


def test_a_delivery_that_was_killed_finds_what_it_has_put(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with writing(root) as store:
        store.put_batch(table(BODIES[1:21], delay_level=pa.array([1] * 20, pa.int32())))
        with killed_at("after-delivery-sync"):
            deliver_due(store, store.writer.clock() + DAY_MS)
    with writing(root) as again:
        report = deliver_due(again, again.writer.clock() + DAY_MS)
        assert (report.found_delivered, report.delivered_count) == (20, 0)
    assert_every_record_ends_in_its_sum(root, 40)


def test_rows_that_were_staged_without_sums_are_not_committed(root: Path) -> None:
    batch = Batch("sink", "query", 0)
    conf_in(root.parent, brokerIP1="127.0.0.1")
    with writing(root) as store:
        segment = staged(store, batch, BODIES, "0-0-0")
    conf_in(root.parent, *BOTH, brokerIP1="127.0.0.1")
    with writing(root) as store:
        end = store.log_end
        with pytest.raises(StoreNotWritableError, match=SUM):
            commit_batch(store.writer, StagedBatch(batch, [segment], {"T": DEFAULT_QUEUE_COUNT}))
        assert store.log_end == end
    assert not list((root / "spark_mq").glob("intents/*"))


def decide_and_stop(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with writing(root) as store:
        segment = staged(store, Batch("sink", "query", 0), BODIES, "0-0-0")
        with killed_at("after-intent"):
            commit_batch(store.writer, StagedBatch(Batch("sink", "query", 0), [segment], {"T": DEFAULT_QUEUE_COUNT}))


def served(root: Path) -> list[bytes]:
    with writing(root) as store:
        return [m.body for queue_id in store.queue_ids("T") for m in store.get("T", queue_id, 0, 1_000).messages]


def test_a_batch_that_was_decided_without_sums_is_not_finished_where_they_are_asked_for(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its records would be none to any reader, and would end the log."""
    conf_in(root.parent, brokerIP1="127.0.0.1")
    decide_and_stop(root, monkeypatch)
    conf_in(root.parent, *BOTH, brokerIP1="127.0.0.1")
    with pytest.raises(StoreNotWritableError, match="forceVerifyPropCRC=false"):
        writing(root)
    conf_in(root.parent, brokerIP1="127.0.0.1")
    assert sorted(served(root)) == sorted(BODIES)


@pytest.mark.parametrize("is_decided", [False, True])
def test_rows_that_were_staged_with_sums_keep_them_where_none_are_asked_for(
    root: Path, monkeypatch: pytest.MonkeyPatch, is_decided: bool
) -> None:
    """Nobody reads them in another way: without forceVerifyPropCRC the property is one like any other."""
    if is_decided:
        decide_and_stop(root, monkeypatch)
        conf_in(root.parent, brokerIP1="127.0.0.1")
    else:
        with writing(root) as store:
            segment = staged(store, Batch("sink", "query", 0), BODIES, "0-0-0")
        conf_in(root.parent, brokerIP1="127.0.0.1")
        with writing(root) as store:
            commit_batch(store.writer, StagedBatch(Batch("sink", "query", 0), [segment], {"T": DEFAULT_QUEUE_COUNT}))
    assert sorted(served(root)) == sorted(BODIES)
    for _, records in all_records(root):
        assert records.property_crc_agrees(required=False).all()
    assert sum(SUM.encode() in raw for raw in property_strings(root)) == len(BODIES)


# Read


def read_with_check(store: MessageStore) -> int:
    queue = store.queues.get("T", 0)
    assert queue is not None
    end = store.max_offset("T", 0)
    return sum(len(part.queue_offsets) for part in scan_queue(queue, store.log, store.log_end, 0, end, verify_crc=True))


def test_a_reader_that_verifies_notices_a_wrong_header(tmp_path: Path) -> None:
    """Also where recovery does not ask for the sum."""
    conf_in(tmp_path, "enabledAppendPropCRC", brokerIP1="127.0.0.1")
    root = tmp_path / "store"
    with writing(root) as store:
        store.put_batch(table(BODIES), queue_count=1)
    with open_store(root) as store:
        assert read_with_check(store) == len(BODIES)
    place = places_of(root)[7]
    flip(root, place + 40)
    with open_store(root) as store, pytest.raises(CorruptRecordError) as raised:
        read_with_check(store)
    assert (raised.value.field, raised.value.position) == ("property CRC", place)


@pytest.mark.parametrize("is_forced", [True, False])
def test_a_record_whose_sum_has_lost_its_name_is_read_with_a_check_unless_the_sum_is_asked_for(
    tmp_path: Path, is_forced: bool
) -> None:
    """forceVerifyPropCRC in CommitLog.checkMessageAndReturnSize: a record without the property is none."""
    root = tmp_path / "store"
    conf_in(tmp_path, *BOTH[: 2 if is_forced else 1], brokerIP1="127.0.0.1")
    with writing(root) as store:
        store.put_batch(table(BODIES * 6), queue_count=1)  # several files: opening does not look into the first one
    places = places_of(root)
    flip(root, places[8] - TAIL + SUM.index("C"))
    with open_store(root) as store:
        if not is_forced:
            assert read_with_check(store) == 6 * len(BODIES)
            return
        with pytest.raises(CorruptRecordError) as raised:
            read_with_check(store)
    assert (raised.value.field, raised.value.position) == ("property CRC", places[7])


def test_verify_reports_a_record_with_another_sum(tmp_path: Path) -> None:
    conf_in(tmp_path, "enabledAppendPropCRC", brokerIP1="127.0.0.1")
    root = tmp_path / "store"
    with writing(root) as store:
        store.put_batch(table(BODIES), queue_count=1)
    assert verify_store(str(root)).findings == ()
    places = places_of(root)
    flip(root, places[7] + 40)
    flip(root, places[9] + 72)
    (finding,) = verify_store(str(root)).findings
    assert (finding.kind, finding.count) == (Kind.BAD_RECORD, 2)
    assert str(places[7]) in finding.example
