"""A broker's duties."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from spark_mq.broker.end_transaction import request_for
from storage import StoreConfig
from storage.delay.schedule import deliver_due
from storage.format.record import TRANSACTION_COMMIT
from storage.rules.half_messages import HALF_TOPIC, half_message
from storage.rules.inner_messages import InnerMessage
from storage.rules.response_codes import ResponseCode
from storage.settings.nouns import DelayConfig, TransactionConfig
from storage.tables.masters import DELAYS_FILE, DelayOffsets
from storage.tables.topics import TopicConfig
from storage.transaction.check import check_half_messages
from tests.crash.disk_order import ToldDisk
from tests.crash.stories.life import START_MS, Life, bodies
from tests.support.broker_handlers import Returner, back_request, end_transaction
from tests.support.dying import killed_at
from tests.support.timed_store import NOW, TimedStore


def delivering(directory: Path, *, was_killed: bool = False) -> list[str]:
    """One message is due; or was put by a delivery that was killed before it said so."""
    life = Life(directory, config=replace(StoreConfig.tiny(), delay=DelayConfig("1s 5s 10s")))
    with life.open() as store:
        parked = {"UNIQ_KEY": "K", "DELAY": "1", "REAL_TOPIC": "A", "REAL_QID": "0"}
        message = InnerMessage(
            topic="SCHEDULE_TOPIC_XXXX", queue_id=0, body=b"late", properties=parked, born_time_ms=START_MS
        )
        store.put_inner([message])
        store.save_state(DELAYS_FILE, DelayOffsets().with_offsets({1: 0}, now_ms=START_MS).to_text())
        life.wait_until(START_MS + 10_000)
        life.disk.begin()
        if was_killed:
            with killed_at("after-delivery"):
                deliver_due(store, START_MS + 10_000)
            life.disk.begin()
        report = deliver_due(store, START_MS + 10_000)
        told = life.disk.told()
        assert report.found_delivered == was_killed
        assert bodies(store) == [b"late"]
        assert deliver_due(store, START_MS + 10_000).delivered == {}
    return told


def timing(directory: Path) -> list[str]:
    """Two messages are entered, and one of them is delivered."""
    root = directory / "store"
    disk = ToldDisk(root)
    timed = TimedStore(root, files=disk)
    timed.park("first", NOW + 1_000)
    timed.deliver(NOW)
    timed.park("soon", NOW + 5_000)
    timed.park("later", NOW + 20_000)
    disk.begin()
    timed.deliver(NOW + 10_000)
    told = disk.told()
    assert timed.delivered == ["first", "soon"]
    timed.store.close()
    return told


def timing_alone(directory: Path) -> list[str]:
    """A message is due, and none is to be entered: the seal of the timer before still holds."""
    root = directory / "store"
    disk = ToldDisk(root)
    timed = TimedStore(root, files=disk)
    timed.park("first", NOW + 5_000)
    timed.deliver(NOW)
    disk.begin()
    timed.deliver(NOW + 10_000)
    told = disk.told()
    assert timed.delivered == ["first"]
    timed.store.close()
    return told


def checking(directory: Path) -> list[str]:
    """One half committed, one rolled back, one put back, one given up."""
    life = Life(directory, config=replace(StoreConfig.tiny(), transaction=TransactionConfig(transaction_check_max=1)))
    with life.open() as store:
        store.put_inner([_half("unknown")])
        check_half_messages(lambda: nullcontext(store), lambda half: half.body.decode(), START_MS + 100_000)
        store.put_inner([_half(answer) for answer in ("commit", "rollback", "unknown2")])
        life.disk.begin()
        report = check_half_messages(
            lambda: nullcontext(store), lambda half: half.body.decode().rstrip("2"), START_MS + 200_000
        )
        told = life.disk.told()
        assert (report.committed, report.rolled_back, report.put_back, report.discarded) == (1, 1, 1, 1)
        assert bodies(store) == [b"commit"]
    return told


def _half(answer: str) -> InnerMessage:
    """One whose body is the answer for it."""
    properties = {"UNIQ_KEY": answer}
    message = InnerMessage(topic="A", queue_id=0, body=answer.encode(), properties=properties, born_time_ms=START_MS)
    return half_message(message, "P")


def ending_a_transaction(directory: Path) -> list[str]:
    life = Life(directory)
    with life.open() as store:
        properties = {"UNIQ_KEY": "K"}
        message = InnerMessage(topic="A", queue_id=0, body=b"x", properties=properties, born_time_ms=START_MS)
        store.save_topic(TopicConfig("A", 1, 1))
        store.put_inner([half_message(message, "P")])
        half = store.get(HALF_TOPIC, 0, 0).messages[0]
        life.disk.begin()
        response = end_transaction(store, request_for(half, TRANSACTION_COMMIT), START_MS + 1_000)
        assert response is not None
        assert response.code is ResponseCode.SUCCESS
        told = life.disk.told()
        assert bodies(store) == [b"x"]
    return told


def sending_back(directory: Path) -> list[str]:
    """The first message that a group gives back."""
    life = Life(directory)
    with life.open() as store:
        place = store.put("A", b"x", queue_count=1)
        life.disk.begin()
        request = back_request(commitlog_offset=place.commitlog_offset, group="G", delay_level=-1)
        assert Returner(store).send_back(request).code is ResponseCode.SUCCESS
        told = life.disk.told()
    return told
