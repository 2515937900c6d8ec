"""What a `Broker` does by itself and between requests: offsets kept, silence noticed, topics told, restarts survived."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spark_mq.broker.broker import Broker
from spark_mq.broker.request_table import REQUEST_TABLE, Pool
from spark_mq.remoting import HeaderEncoding, decode_frame, encode_frame, make_request, write_body
from spark_mq.remoting.client_bodies import ConsumerData, HeartbeatData, SubscriptionData
from storage import open_store
from storage.service.put_service import PutService
from storage.settings.load import parse_config
from storage.tables.consumer_offsets import FILE_NAME, ConsumerOffsets
from tests.broker.peers import BrokerPeers, FakeClock

CONF = (
    b"brokerName=b\nbrokerIP1=127.0.0.1\nmappedFileSizeCommitLog=1048576\nmappedFileSizeConsumeQueue=20000\n"
    b"maxHashSlotNum=100\nmaxIndexNum=400\n"
)
OFFSET = {"consumerGroup": "TOOLS_CONSUMER", "topic": "TBW102", "queueId": 0}


@contextmanager
def running(root: Path, clock: FakeClock, conf: bytes = CONF) -> Iterator[Broker]:
    store = open_store(root, config=parse_config(conf), read_only=False, create=True, clock=clock)
    with PutService(store, starts_duties=False) as service, Broker(service, clock=clock) as broker:
        yield broker


def sent(topic: str, body: bytes = b"x") -> tuple[dict[str, object], bytes]:
    names = dict(zip("abcdefghijklm", ("p", topic, "TBW102", 1, 0, 0, 0, 0, "", 0, "false", 0, "false"), strict=True))
    return names, body


def test_offsets_are_on_the_disk_after_the_interval_and_after_a_restart(tmp_path: Path) -> None:
    clock = FakeClock()
    with running(tmp_path / "store", clock) as broker:
        peers = BrokerPeers(broker, clock)
        assert peers.ask("c", 15, OFFSET | {"commitOffset": 7}).code == 0
        peers.pause(1)
        path = tmp_path / "store" / "config" / FILE_NAME
        assert not path.exists()
        peers.pause(5)
        assert ConsumerOffsets.load(path.read_text()).get("TBW102", "TOOLS_CONSUMER", 0) == 7
        peers.ask("c", 15, OFFSET | {"commitOffset": 8})
    with running(tmp_path / "store", clock) as broker:
        answer = BrokerPeers(broker, clock).ask("c", 14, OFFSET)
        assert (answer.code, answer.ext_fields) == (0, {"offset": "8"})


def test_what_the_brokers_own_groups_have_in_the_file_stays(tmp_path: Path) -> None:
    clock = FakeClock()
    with running(tmp_path / "store", clock) as broker:
        store = broker.parts.service.store
        own = ConsumerOffsets().with_offsets("CID_RMQ_SYS_TRANS", {("HALF", 0): 5}, now_ms=1)
        store.save_state(FILE_NAME, own.to_text())
        BrokerPeers(broker, clock).ask("c", 15, OFFSET | {"commitOffset": 7})
        broker.save_offsets()
        found = ConsumerOffsets.load((tmp_path / "store" / "config" / FILE_NAME).read_text())
        assert found.get("HALF", "CID_RMQ_SYS_TRANS", 0) == 5
        assert found.get("TBW102", "TOOLS_CONSUMER", 0) == 7


def test_silent_clients_are_closed_and_nobody_is_told(tmp_path: Path) -> None:
    clock = FakeClock()
    with running(tmp_path / "store", clock) as broker:
        peers = BrokerPeers(broker, clock)
        data = ConsumerData(group_name="g", message_model="CLUSTERING", subscriptions=(SubscriptionData(topic="T"),))
        for name in ("ann", "bob"):
            beat = HeartbeatData(client_id=name, consumers=(data,))
            peers.ask(name, 34, {}, write_body(beat))
        told = len(peers.notices["bob"])
        peers.pause(60)
        peers.ask("bob", 34, {}, write_body(HeartbeatData(client_id="bob", consumers=(data,))))
        peers.pause(61)
        assert peers.closed == ["ann"]
        assert len(peers.notices["bob"]) == told


def test_name_servers_hear_of_new_topics_and_of_changed_permissions(tmp_path: Path) -> None:
    clock = FakeClock()
    with running(tmp_path / "store", clock) as broker:
        peers = BrokerPeers(broker, clock)
        peers.ask("p", 310, *sent("Fresh"))
        peers.ask("p", 310, *sent("Fresh"))
        peers.ask("admin", 25, {}, b"brokerPermission=4\n")
        assert peers.registered == [("Fresh",), ()]
        pull = {"consumerGroup": "g", "topic": "Fresh", "queueId": 0, "queueOffset": 0, "maxMsgNums": 1, "sysFlag": 4}
        rest = {"commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0}
        assert peers.ask("c", 11, pull | rest).code == 0
        peers.ask("admin", 25, {}, b"brokerPermission=2\n")
        assert peers.ask("c", 11, pull | rest).code == 16


def test_events_wake_whoever_takes_them_once(tmp_path: Path) -> None:
    clock, woken = FakeClock(), []
    store = open_store(tmp_path / "store", config=parse_config(CONF), read_only=False, create=True, clock=clock)
    with (
        PutService(store, starts_duties=False) as service,
        Broker(service, clock=clock, wake=lambda: woken.append(1)) as broker,
    ):
        peers = BrokerPeers(broker, clock)
        peers.ask("p", 310, *sent("T"))
        assert woken
        assert broker.take_events() == []


def test_both_encodings_are_answered_alike_and_unknown_codes_are_refused(tmp_path: Path) -> None:
    clock = FakeClock()
    with running(tmp_path / "store", clock) as broker:
        connection = BrokerPeers(broker, clock).connection("c")
        fields = {name: str(value) for name, value in OFFSET.items()}
        for encoding in HeaderEncoding:
            request = make_request(14, fields, encoding=encoding)
            answer = broker.answer(connection, request, clock())
            assert answer.code == 22
            assert answer.encoding is encoding
            received = decode_frame(b"".join(encode_frame(answer)))
            assert (received.code, received.remark) == (answer.code, answer.remark)
        assert broker.answer(connection, make_request(200_050), clock()).code == 3
        assert broker.answer(connection, make_request(14, {"topic": "T"}), clock()).code == 1
        assert broker.answer(connection, make_request(34, {}, b"{nonsense"), clock()).code == 1


def test_every_row_of_the_table_has_a_handler_and_a_pool(tmp_path: Path) -> None:
    clock = FakeClock()
    with running(tmp_path / "store", clock) as broker:
        assert set(REQUEST_TABLE) == {int(code) for code in broker._handlers}
    assert all(row.needs and isinstance(row.pool, Pool) for row in REQUEST_TABLE.values())
    assert {code for code, row in REQUEST_TABLE.items() if not row.is_on_fast_port} == {11, 361}


def test_offsets_are_saved_without_one_lock_within_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A heartbeat that makes its group's entry takes the tables' lock within the broker's own: the other way round both would stand."""
    clock = FakeClock()
    with running(tmp_path / "store", clock) as broker:
        tables, offsets, found = broker.parts.service.store.tables_lock, broker.parts.offsets, []
        take_change = offsets.take_change

        def look() -> bool:
            def try_lock() -> None:
                found.append(tables.acquire(blocking=False))
                tables.release()

            other = threading.Thread(target=try_lock)
            other.start()
            other.join()
            return take_change()

        monkeypatch.setattr(offsets, "take_change", look)
        BrokerPeers(broker, clock).ask("c", 15, OFFSET | {"commitOffset": 7})
        broker.save_offsets()
        assert found == [True]
