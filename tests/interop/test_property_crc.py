"""Records that end in a sum over themselves (`enabledAppendPropCRC`, `forceVerifyPropCRC`), both ways.

With both settings Apache's recovery cuts the log at the first record without the sum, or with a wrong one: so what its classes list
whole was written right, by whichever way in. What a broker wrote so is recovered here by the same rule, and gone on from.
Java: CommitLog.checkMessageAndReturnSize, recoverNormally, recoverAbnormally.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from storage import MessageStore, open_store
from storage.delay.schedule import deliver_due
from storage.errors import StoreDamagedError
from storage.rules.inner_messages import InnerMessage
from tests.support.fixture_stores import Fixture, copy_store
from tests.support.java_broker import Oracle, free_ports
from tests.support.left_stores import AHEAD_MS, DELAY_LEVELS, leave_a_store

pytestmark = [pytest.mark.interop, pytest.mark.slow]

Line = dict[str, Any]

SETTINGS: dict[str, Any] = {
    "commitlog_file_size_bytes": 64 << 10,
    "consume_queue_file_size_bytes": 2_000,
    "enabledAppendPropCRC": "true",
    "forceVerifyPropCRC": "true",
    "messageDelayLevel": DELAY_LEVELS,
    "transactionTimeOut": 1_000,
}
LONG_RETRY_TOPIC = f"%RETRY%Group_{'L' * 140}"
"""Its records are V2."""
V4, V6 = bytes([127, 0, 0, 1]), bytes(15) + b"\1"
SUM = "__CRC32#"


class Left(NamedTuple):
    """A store that we wrote."""

    store: Path
    conf: Path
    log_end: int


def put_all_kinds(store: MessageStore) -> None:
    """One by one, as a table, and as a broker puts its own: V1 and V2, born at IPv4 and IPv6 hosts, empty bodies, over file ends."""
    store.put("Sums", b"first", tags="TagA", keys=["k"])
    store.put("Sums", b"", queue_id=1)
    bodies = [b"", b"x", bytes(range(256)) * 20, *(b"body %d" % n * 40 for n in range(200))]
    table = pa.table({"topic": ["Sums"] * len(bodies), "body": bodies, "keys": [f"k{n}" for n in range(len(bodies))]})
    store.put_batch(table, compress_body_over=4_096)
    stale = {"UNIQ_KEY": "0" * 32, SUM: "1234567890", "TAGS": "TagB"}
    store.put_inner(
        [
            InnerMessage(
                topic=topic, queue_id=0, body=b"inner", properties=stale, born_host=host + (9).to_bytes(4, "big")
            )
            for topic in ("Sums", LONG_RETRY_TOPIC)
            for host in (V4, V6, V4)
        ]
    )
    store.put_batch(pa.table({"topic": ["Sums"], "body": [b"later"], "delay_level": pa.array([1], pa.int32())}))
    deliver_due(store, time.time_ns() // 1_000_000 + AHEAD_MS)


@pytest.fixture(scope="module")
def left(oracle: Oracle, tmp_path_factory: pytest.TempPathFactory) -> Left:
    """Written by the sink's tasks and driver (delayed, sent back, transactions), by our duties, and by all kinds of puts."""
    directory = tmp_path_factory.mktemp("sums-")
    store, conf = directory / "store", directory / "broker.conf"
    conf.write_text(oracle.broker_conf(store, "127.0.0.1:1", 10_911, **SETTINGS), "utf-8")
    leave_a_store(store, conf, "rows")
    with open_store(store, config=str(conf), read_only=False) as opened:
        put_all_kinds(opened)
        return Left(store, conf, opened.log_end)


def copy(left: Left, directory: Path) -> Left:
    store, conf = directory / "store", directory / "broker.conf"
    copy_store(left.store, store)
    conf.write_text(left.conf.read_text("utf-8").replace(str(left.store), str(store)), "utf-8")
    return Left(store, conf, left.log_end)


def summary_of(oracle: Oracle, left: Left, **settings: str) -> Line:
    """What recovery by Apache's classes found. Records without queue entry, halves, keep the strict dump from passing."""
    (summary,) = (
        line for line in oracle.dump(left.store, left.conf, strict=False, **settings) if line["type"] == "summary"
    )
    return summary


# Ours, in Apache's hands


def test_nothing_of_a_store_that_we_closed_is_cut(oracle: Oracle, left: Left) -> None:
    lines = oracle.dump(left.store, left.conf, strict=False)
    (summary,) = (line for line in lines if line["type"] == "summary")
    assert (summary["abortFile"], summary["afterLoadMaxPhy"], summary["truncatedBytes"]) == (False, left.log_end, 0)
    messages = [line for line in lines if line["type"] == "message"]
    assert not any("error" in line for line in messages)
    assert all(len(line["properties"][SUM]) == 10 for line in messages)
    with open_store(left.store, config=str(left.conf)) as store:
        ours = {
            (topic, queue_id): store.max_offset(topic, queue_id)
            for topic in store.topics()
            for queue_id in store.queue_ids(topic)
        }
    theirs = {(line["topic"], line["queueId"]): line["maxOffset"] for line in lines if line["type"] == "queue"}
    assert theirs.items() >= {name: end for name, end in ours.items() if end}.items()
    magics = {line["magic"] for line in messages if line["topic"] in ("Sums", LONG_RETRY_TOPIC)}
    assert magics == {"daa320a7", "daa320ab"}


def test_nothing_of_a_store_whose_writer_died_is_cut(oracle: Oracle, left: Left, tmp_path: Path) -> None:
    died = copy(left, tmp_path)
    (died.store / "abort").write_text("4711")
    (died.store / "checkpoint").unlink()  # recovery walks the whole log
    summary = summary_of(oracle, died)
    assert (summary["abortFile"], summary["afterLoadMaxPhy"], summary["truncatedBytes"]) == (True, left.log_end, 0)


@pytest.mark.parametrize(
    "behind", [20, pytest.param(60, marks=pytest.mark.long)], ids=["a queue offset", "a store time"]
)
def test_both_sides_find_the_same_end_where_a_header_is_damaged(
    oracle: Oracle, left: Left, tmp_path: Path, behind: int
) -> None:
    """A field that no other checksum covers. The checkpoint is gone, so that we take it for a tail as Java does."""
    damaged = copy(left, tmp_path)
    (damaged.store / "abort").write_text("4711")
    (damaged.store / "checkpoint").unlink()
    with open_store(left.store, config=str(left.conf)) as store:
        messages = store.get("Sums", 0, 0, 1_000).messages
        place = messages[len(messages) // 2].commitlog_offset
    _invert(damaged, place + behind)
    with open_store(damaged.store, config=str(damaged.conf)) as store:
        assert store.plan.failure is not None
        assert (store.log_end, store.plan.failure.field) == (place, "property CRC")
    assert summary_of(oracle, damaged)["afterLoadMaxPhy"] == place


def _invert(left: Left, place: int) -> None:
    path = left.store / "commitlog" / f"{place // 65_536 * 65_536:020d}"
    content = bytearray(path.read_bytes())
    content[place % 65_536] ^= 0xFF
    path.write_bytes(content)


@pytest.mark.long
def test_records_of_a_store_with_an_ipv6_address_end_in_their_sum(oracle: Oracle, tmp_path: Path) -> None:
    store, conf = tmp_path / "store", tmp_path / "broker.conf"
    conf.write_text(oracle.broker_conf(store, "127.0.0.1:1", 10_911, **SETTINGS, brokerIP1="::1"), "utf-8")
    with open_store(store, config=str(conf), read_only=False, create=True) as opened:
        put_all_kinds(opened)
        end = opened.log_end
    summary = summary_of(oracle, Left(store, conf, end))
    assert (summary["afterLoadMaxPhy"], summary["truncatedBytes"]) == (end, 0)


# Apache's, in our hands, and back


def test_a_store_that_a_broker_wrote_is_gone_on_from(oracle: Oracle, fixture_store: Callable[[str], Fixture]) -> None:
    fixture = fixture_store("propcrc")
    (fixture.root / "abort").write_text("4711")
    (fixture.root / "checkpoint").unlink()
    with open_store(fixture.root, config=str(fixture.conf), read_only=False) as store:
        assert store.recovery is not None
        assert (store.recovery.was_clean, store.recovery.cut_bytes) == (False, 0)
        put_all_kinds(store)
        deliver_due(store, time.time_ns() // 1_000_000 + 3 * 3_600_000)
        assert store.max_offset("TopicDelay", 0) == 6  # all that the client sent: level 1 by the broker, 18 by us
        end = store.log_end
    summary = summary_of(oracle, Left(fixture.root, fixture.conf, end))
    assert (summary["afterLoadMaxPhy"], summary["truncatedBytes"]) == (end, 0)


@pytest.mark.slow
def test_a_broker_serves_what_we_wrote_and_we_recover_what_it_adds(oracle: Oracle, left: Left, tmp_path: Path) -> None:
    """The broker recovers our store, serves it, takes plain, delayed and transactional messages, and is killed."""
    shared, port = copy(left, tmp_path), free_ports()
    with open_store(shared.store, config=str(shared.conf)) as store:
        ours = sorted(
            message.msg_id
            for queue_id in store.queue_ids("Sums")
            for message in store.get("Sums", queue_id, 0, 1_000).messages
        )
    with (
        oracle.namesrv() as name_server,
        oracle.broker(shared.store, name_server, port=port, **SETTINGS) as broker,
        oracle.client(
            "TransactionSide", tmp_path / "tx", broker, group="Tellers", topic="Told", plans="commit,rollback"
        ) as teller,
    ):
        seen = oracle.consume_all(tmp_path / "seen", broker, ["Sums"])
        oracle.send(tmp_path / "one", broker, "Sums", count=5, delayLevels="0,1")
        teller.until(lambda lines: len(lines) == 2, "sent")
        broker.kill()
    served = sorted(line["offsetMsgId"] for line in seen if line["type"] == "message")
    assert served == ours
    with open_store(shared.store, config=str(shared.conf), read_only=False) as store:
        assert store.recovery is not None
        assert (store.recovery.was_clean, store.recovery.cut_bytes) == (False, 0)
        assert store.log_end > left.log_end
        assert sum(store.max_offset("Told", queue_id) for queue_id in store.queue_ids("Told")) == 1
        put_all_kinds(store)
        shared = shared._replace(log_end=store.log_end)
    assert summary_of(oracle, shared)["afterLoadMaxPhy"] == shared.log_end


def test_damage_is_told_by_the_sum_alone(left: Left, tmp_path: Path) -> None:
    """A header's byte in the midst of a closed store: the checkpoint vouches for what stands behind it."""
    damaged = copy(left, tmp_path)
    with open_store(left.store, config=str(left.conf)) as store:
        place = store.get("Sums", 0, 0, 1_000).messages[-3].commitlog_offset
    _invert(damaged, place + 40)
    with pytest.raises(StoreDamagedError) as raised:
        open_store(damaged.store, config=str(damaged.conf), read_only=False)
    assert (raised.value.position, raised.value.field) == (place % 65_536, "property CRC")
