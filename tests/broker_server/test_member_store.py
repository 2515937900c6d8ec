"""The store of a DLedger group's member, with a group that does what a test says."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from jobs.verify_store import verify_store
from spark_mq.broker.broker import Broker
from spark_mq.broker_server.duties import Duties
from storage.delay.schedule import deliver_due
from storage.epoch_times import current_time_ms
from storage.errors import MessageIllegalError, StoreNotWritableError
from storage.format.consume_queue import ENTRY
from storage.format.delay import SCHEDULE_TOPIC
from storage.format.dledger import ENTRY_HEAD_SIZE
from storage.pending import PutStatus
from storage.recovery.verify import Finding, Kind
from storage.retention import Occasion, plan_expiry
from storage.rules.inner_messages import InnerMessage
from storage.service.put_service import PutService
from storage.store import MessageStore
from tests.support.group_logs import FILE_BYTES, FakeGroupLog, member_store, record_at, served
from tests.support.served import bodies_of

_DAY_MS = 86_400_000


def message(body: bytes) -> InnerMessage:
    return InnerMessage(topic="T", queue_id=0, body=body, properties={})


def parked_message(body: bytes) -> InnerMessage:
    properties = {"DELAY": "1", "REAL_TOPIC": "D", "REAL_QID": "0"}
    return InnerMessage(topic=SCHEDULE_TOPIC, queue_id=0, body=body, properties=properties)


def bodies(store: MessageStore, topic: str = "T", queue_id: int = 0) -> list[bytes]:
    return bodies_of(store, topic, queue_id)


def test_a_log_file_that_was_cut_and_made_anew_is_read_anew(tmp_path: Path) -> None:
    log = FakeGroupLog(tmp_path / "n0", leads=False)
    while log.end < FILE_BYTES - 300:
        log.receive("T", log.end_index + 1)
    log.commit()
    kept = log.end_index
    while log.end < FILE_BYTES + 1_000:
        log.receive("T", log.end_index + 1, body=b"dead" * 25)
    (tmp_path / "n0" / "abort").write_text("1 killed boot")
    with served(log, starts_duties=False) as service:
        log.cut(kept)
        while log.end < FILE_BYTES + 1_000:
            log.receive("T", log.end_index + 1, body=b"live" * 25)
        log.commit()
        service.confirm_turn()
        assert bodies(service.store) == [b"x" * 100] * (kept + 1) + [b"live" * 25] * (log.end_index - kept)


def test_an_inner_put_without_a_majority_lets_the_put_lock_go_and_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage.service.put_service._MAJORITY_MS", 100)
    log = FakeGroupLog(tmp_path / "n0")
    with served(log) as service:
        assert service.put_inner([message(b"first")]).status is PutStatus.PUT_OK
        log.commits = False
        with pytest.raises(StoreNotWritableError, match="no majority"), service.exclusive() as store:
            store.put_inner([message(b"inner")])
        end = log.end
        with pytest.raises(StoreNotWritableError, match="no majority"), service.exclusive() as store:
            store.put_inner([message(b"inner")])
        assert log.end == end, "it would be put twice"
        assert service.put_inner([message(b"sent")]).status is PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH
        assert service.failure is None
        service.refuse_puts()
        assert bodies(service.store) == [b"first"]
        log.commits = True
        log.commit()
        with service.exclusive() as store:
            assert bodies(store) == [b"first", b"inner", b"sent"]
            store.put_inner([message(b"last")])
            assert bodies(store) == [b"first", b"inner", b"sent", b"last"]


def test_a_delivery_without_a_majority_is_found_and_not_made_twice(tmp_path: Path) -> None:
    log, clock = FakeGroupLog(tmp_path / "n0"), current_time_ms() + 60_000
    with served(log) as service:
        parked = parked_message(b"later")
        assert service.put_inner([parked]).status is PutStatus.PUT_OK
        log.commits = False
        for _ in range(3):
            with pytest.raises(StoreNotWritableError, match="no majority"), service.exclusive() as store:
                deliver_due(store, clock)
        log.commits = True
        log.commit()
        with service.exclusive() as store:
            report = deliver_due(store, clock)
            assert report.found_delivered == 1
            assert bodies(store, "D") == [b"later"]
            assert deliver_due(store, clock).delivered == {}


def test_a_put_into_a_full_group_is_refused_before_it_is_appended(tmp_path: Path) -> None:
    log = FakeGroupLog(tmp_path / "n0")
    with served(log) as service:
        log.is_full = True
        assert service.put_inner([message(b"first")]).status is PutStatus.OS_PAGE_CACHE_BUSY
        log.is_full, log.refusal = False, "it hands over"
        with pytest.raises(StoreNotWritableError, match="hands over"):
            service.put_inner([message(b"second")])
        assert service.failure is None
        assert log.end == 0
        log.refusal = None
        assert service.put_inner([message(b"third")]).status is PutStatus.PUT_OK
        assert bodies(service.store) == [b"third"]


def test_a_record_that_no_entry_can_hold_is_refused_and_the_store_goes_on(tmp_path: Path) -> None:
    log = FakeGroupLog(tmp_path / "n0")
    with served(log) as service:
        largest = FILE_BYTES - len(record_at("T", 0, 0, body=b"")) - 8
        with pytest.raises(MessageIllegalError):
            service.put_inner([message(b"x" * (largest - ENTRY_HEAD_SIZE + 1))])
        assert service.failure is None
        body = b"x" * (largest - ENTRY_HEAD_SIZE)
        assert service.put_inner([message(body)]).status is PutStatus.PUT_OK
        assert bodies(service.store) == [body]


def test_a_follower_enters_a_backlog_a_part_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage.put.store_writer._COMMITTED_BYTES", 1_000)
    log = FakeGroupLog(tmp_path / "n0", leads=False)
    with served(log, starts_duties=False) as service:
        for number in range(40):
            log.receive("T", number)
        log.commit()
        ends: list[int] = []
        service.log_grew = lambda: noted(service, ends)
        service.confirm_turn()
        assert len(ends) > 5
        assert ends[-1] == log.end
        assert len(bodies(service.store)) == 40


def noted(service: PutService, ends: list[int]) -> None:
    assert service._lock.acquire(blocking=False), "puts have their turn"
    service._lock.release()
    ends.append(service.dispatched_end)


@pytest.mark.parametrize("leads", [True, False])
def test_a_store_whose_checkpoint_is_behind_its_queues_is_closed_without_a_wait(tmp_path: Path, leads: bool) -> None:
    log = FakeGroupLog(tmp_path / "n0")
    service = PutService(member_store(log))
    for number in range(3):
        service.put_inner([message(b"m%d" % number)])
    service.close()
    log.leads, log.committed_end = leads, 0
    with served(log, starts_duties=False) as again:
        assert bodies(again.store) == [b"m0", b"m1", b"m2"]
        if not leads:
            again.close()
            assert not (tmp_path / "n0" / "abort").exists()


@pytest.mark.parametrize("abort", [None, "4711", "1 name boot"])
@pytest.mark.parametrize("count", [5, 30])
def test_queues_that_apaches_broker_has_filled_end_where_the_log_is_committed(
    tmp_path: Path, abort: str | None, count: int
) -> None:
    log = FakeGroupLog(tmp_path / "n0")
    service = PutService(member_store(log))
    for number in range(3):
        service.put_inner([message(b"m%d" % number)])
    committed = log.end
    for number in range(3, count):  # of a leader of Apache's, which entered them after a kill
        service.put_inner([message(b"dead%d" % number + b"." * 200)])
    service.close()
    if abort is not None:
        (tmp_path / "n0" / "abort").write_text(abort)
    log.leads, log.committed_end = False, committed
    log.has_own_queues = abort == "4711"  # the process id alone is Apache's
    with served(log, starts_duties=False) as again:
        assert bodies(again.store) == [b"m0", b"m1", b"m2"]
        log.cut(2)
        for number in range(3, count):
            log.receive("T", number, body=b"live%d" % number)
        log.commit()
        again.confirm_turn()
        assert bodies(again.store)[3:] == [b"live%d" % number for number in range(3, count)]


def test_queues_of_this_packages_broker_keep_what_its_checkpoint_does_not_count_yet(tmp_path: Path) -> None:
    log = FakeGroupLog(tmp_path / "n0")
    service = PutService(member_store(log))
    service.put_inner([message(b"m")])
    service.close()
    log.leads, log.committed_end = False, 0
    with served(log, starts_duties=False) as again:
        assert bodies(again.store) == [b"m"]


def test_entries_that_queues_lack_below_the_checkpoint_are_named_by_verify_and_made_again_with_the_queues(
    tmp_path: Path,
) -> None:
    """An opening trusts them, as Apache's does: an earlier version's checkpoint counted them, and then Apache's broker went on."""
    log, root = FakeGroupLog(tmp_path / "n0"), tmp_path / "n0"
    sent = [b"m%d" % number + b"." * 200 for number in range(40)]
    service = PutService(member_store(log))
    for body in sent:
        service.put_inner([message(body)])
    service.close()
    log.files.save_checkpoint(log.end_index)
    log.files.close()
    assert not findings(root)
    path = root / "consumequeue" / "T" / "0" / f"{0:020d}"
    entries, lacks = path.read_bytes(), slice(10 * ENTRY.itemsize, 14 * ENTRY.itemsize)
    left = entries[: lacks.start] + entries[lacks.stop :]
    path.write_bytes(left.ljust(len(entries), b"\0"))
    log = FakeGroupLog(root, leads=False)
    log.committed_end = log.end
    with served(log, starts_duties=False) as again:
        assert not set(sent[10:14]) & set(all_bodies(again.store))
        again.close()
    assert {each.kind for each in findings(root)} & {Kind.MISSING_ENTRY, Kind.WRONG_ENTRY}
    for name in ("consumequeue", "index"):
        shutil.rmtree(root / name)
    log = FakeGroupLog(root, leads=False)
    log.committed_end = log.end
    with served(log, starts_duties=False) as again:
        assert bodies(again.store) == sent
        again.close()
    assert not findings(root)


def findings(root: Path) -> Sequence[Finding]:
    return verify_store(str(root), conf=str(root.parent / "member.conf")).findings


def all_bodies(store: MessageStore) -> list[bytes]:
    """What it serves of the queue, whatever it lacks."""
    offset, found = 0, list[bytes]()
    while offset < store.max_offset("T", 0):
        answer = store.get("T", 0, offset)
        found += [each.body for each in answer.messages]
        assert answer.next_begin_offset > offset
        offset = answer.next_begin_offset
    return found


class _ExpiringLog(FakeGroupLog):
    """Its member is busy at first. Then it deletes files, while a put comes that must not wait for that."""

    is_busy = True
    put: Callable[[], object] = staticmethod(lambda: None)

    def trim(self, minimum: int) -> None:
        if self.is_busy:
            raise StoreNotWritableError(str(self.root), "the member has had no time")
        self.put()
        super().trim(minimum)


def test_a_member_deletes_files_of_its_log_while_puts_go_on_and_nothing_is_said_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A plan that a busy member has not followed was logged each turn as if it were."""
    caplog.set_level(logging.INFO)
    log = _ExpiringLog(tmp_path / "n0")
    monkeypatch.setattr(
        "spark_mq.broker_server.duties.plan_run",
        lambda store, files, at_ms, config, **_: plan_expiry(
            store, files, config, Occasion(("of a test",), whatever_age=True), now_ms=at_ms
        ),
    )
    with served(log) as service, Broker(service) as broker:
        for _ in range(60):
            service.put_inner([message(b"x" * 100)])
        before = len(list((tmp_path / "n0" / "dledger-n0" / "data").iterdir()))
        duties = Duties(service, broker, check_interval_ms=_DAY_MS, clean_interval_ms=_DAY_MS)
        with pytest.raises(StoreNotWritableError, match="no time"):
            duties._expire()
        assert not [record for record in caplog.records if "delet" in record.getMessage()]
        log.is_busy = False
        duties._expire()
        assert not [record for record in caplog.records if "delet" in record.getMessage()], "nothing is durable yet"
        log.files.sync()
        with ThreadPoolExecutor(1) as pool:
            log.put = lambda: pool.submit(service.put_inner, [message(b"meanwhile")]).result(10)
            duties._expire()
        assert len(list((tmp_path / "n0" / "dledger-n0" / "data").iterdir())) < before
        said = [
            record.getMessage() for record in caplog.records if "files of the log are deleted" in record.getMessage()
        ]
        assert len(said) == 1
        store = service.store
        assert said[0].endswith(f"because of a test; it begins at {store.log.minimum} now")
        assert store.log.minimum > 0
        last = store.get("T", 0, store.max_offset("T", 0) - 1).messages
        assert [each.body for each in last] == [b"meanwhile"]
