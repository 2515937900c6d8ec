"""What a `Broker` does by itself and between requests: offsets kept, silence noticed, topics told, restarts survived."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_mq.broker.broker import PROTECTION_MS, Broker
from spark_mq.broker.request_table import REQUEST_TABLE, Pool
from spark_mq.broker.requests import ClientConnection
from spark_mq.broker_server.duties import Duties
from spark_mq.broker_server.name_servers import registration
from spark_mq.remoting import (
    HeaderEncoding,
    MessageQueue,
    decode_frame,
    encode_frame,
    make_request,
    read_body,
    write_body,
)
from spark_mq.remoting.consumers import (
    ConsumerData,
    HeartbeatData,
    LockBody,
    LockedQueues,
    ProducerData,
    SubscriptionData,
)
from spark_mq.remoting.routes import RegisterBrokerBody
from storage import open_store
from storage.errors import StoreNotWritableError
from storage.format import fastjson
from storage.retention import ExpiryPlan, plan_run
from storage.rules.inner_messages import InnerMessage
from storage.service.put_service import PutService
from storage.settings.java_settings import FIXED_SETTINGS, JAVA_SETTINGS
from storage.settings.load import parse_config
from storage.settings.nouns import RetentionConfig
from storage.store import MessageStore
from storage.tables.consumer_groups import ConsumerOffsets
from storage.tables.document import OFFSETS_FILE
from storage.tables.masters import DELAYS_FILE, DelayOffsets
from storage.transaction.progress import TransactionProgress, save_progress
from tests.broker.peers import BrokerPeers, FakeClock
from tests.broker.static_topic import HERE_LED, MADE_MS, make_static_store
from tests.broker.static_topic import TOPIC as STATIC

CONF = (
    b"brokerName=b\nbrokerIP1=127.0.0.1\nmappedFileSizeCommitLog=1048576\nmappedFileSizeConsumeQueue=20000\n"
    b"maxHashSlotNum=100\nmaxIndexNum=400\n"
)
DAY_MS = 24 * 3_600_000
OFFSET = {"consumerGroup": "TOOLS_CONSUMER", "topic": "TBW102", "queueId": 0}


@contextmanager
def running(root: Path, clock: FakeClock, conf: bytes = CONF, steady: FakeClock | None = None) -> Iterator[Broker]:
    store = open_store(root, config=parse_config(conf), read_only=False, create=True, holder="broker", clock=clock)
    with (
        PutService(store, starts_duties=False) as service,
        Broker(service, clock=clock, steady=steady or clock) as broker,
    ):
        yield broker


def sent(topic: str, body: bytes = b"x") -> tuple[dict[str, object], bytes]:
    names = dict(zip("abcdefghijklm", ("p", topic, "TBW102", 1, 0, 0, 0, 0, "", 0, "false", 0, "false"), strict=True))
    return names, body


def test_offsets_are_on_the_disk_after_the_interval_and_after_a_restart(tmp_path: Path) -> None:
    clock = FakeClock()
    with open_store(tmp_path / "store", config=parse_config(CONF), read_only=False, create=True) as store:
        store.put_inner([InnerMessage(topic="TBW102", queue_id=0, body=b"read", properties={})] * 8)
    with running(tmp_path / "store", clock) as broker:
        peers = BrokerPeers(broker, clock)
        assert peers.ask("c", 15, OFFSET | {"commitOffset": 7}).code == 0
        peers.pause(1)
        path = tmp_path / "store" / "config" / OFFSETS_FILE
        assert not path.exists()
        peers.pause(5)
        assert ConsumerOffsets.load(path.read_text()).get("TBW102", "TOOLS_CONSUMER", 0) == 7
        peers.ask("c", 15, OFFSET | {"commitOffset": 8})
    with running(tmp_path / "store", clock) as broker:
        answer = BrokerPeers(broker, clock).ask("c", 14, OFFSET)
        assert (answer.code, answer.ext_fields) == (0, {"offset": "8"})


def test_offsets_that_could_not_be_written_are_written_by_the_next_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    with running(tmp_path / "store", clock) as broker:
        BrokerPeers(broker, clock).ask("c", 15, OFFSET | {"commitOffset": 7})

        def full(name: str, text: str) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(broker.parts.store.service.store, "save_state", full)
            with pytest.raises(OSError, match="No space"):
                broker.save_offsets()
        broker.save_offsets()
        found = ConsumerOffsets.load((tmp_path / "store" / "config" / OFFSETS_FILE).read_text())
        assert found.get("TBW102", "TOOLS_CONSUMER", 0) == 7


def test_offsets_are_on_the_disk_after_the_interval_also_when_the_clock_was_set_back(tmp_path: Path) -> None:
    """Java's turns go by a clock that nobody sets."""
    clock = FakeClock()
    with running(tmp_path / "store", clock) as broker:
        peers = BrokerPeers(broker, clock)
        peers.pause(10)
        clock.now_ms -= 3_600_000
        assert peers.ask("c", 15, OFFSET | {"commitOffset": 7}).code == 0
        for _ in range(6):
            peers.pause(1)
        found = ConsumerOffsets.load((tmp_path / "store" / "config" / OFFSETS_FILE).read_text())
        assert found.get("TBW102", "TOOLS_CONSUMER", 0) == 7


def test_what_the_brokers_own_groups_have_in_the_file_stays(tmp_path: Path) -> None:
    clock = FakeClock()
    with running(tmp_path / "store", clock) as broker:
        store = broker.parts.store.service.store
        own = ConsumerOffsets().with_offsets("CID_RMQ_SYS_TRANS", {("HALF", 0): 5}, now_ms=1)
        store.save_state(OFFSETS_FILE, own.to_text())
        BrokerPeers(broker, clock).ask("c", 15, OFFSET | {"commitOffset": 7})
        broker.save_offsets()
        found = ConsumerOffsets.load((tmp_path / "store" / "config" / OFFSETS_FILE).read_text())
        assert found.get("HALF", "CID_RMQ_SYS_TRANS", 0) == 5
        assert found.get("TBW102", "TOOLS_CONSUMER", 0) == 7


def test_what_the_brokers_own_groups_have_in_the_file_is_told_to_slaves(tmp_path: Path) -> None:
    clock = FakeClock()
    with running(tmp_path / "store", clock) as broker:
        peers, store = BrokerPeers(broker, clock), broker.parts.store.service.store
        assert peers.ask("c", 15, OFFSET | {"commitOffset": 7}).code == 0
        own = ConsumerOffsets().with_offsets("CID_RMQ_SYS_TRANS", {("HALF", 0): 5}, now_ms=1)
        store.save_state(OFFSETS_FILE, own.to_text())
        told = ConsumerOffsets.load(bytes(peers.ask("slave", 43).body).decode())
        assert told.get("HALF", "CID_RMQ_SYS_TRANS", 0) == 5
        assert told.get("TBW102", "TOOLS_CONSUMER", 0) == 7


def test_a_check_of_transactions_leaves_the_offsets_that_are_saved_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, with_offsets = FakeClock(), ConsumerOffsets.with_offsets
    with running(tmp_path / "store", clock) as broker:
        BrokerPeers(broker, clock).ask("c", 15, OFFSET | {"commitOffset": 7})
        saving = threading.Thread(target=broker.save_offsets)

        def while_others_save(table: ConsumerOffsets, *given: Any, **more: Any) -> ConsumerOffsets:
            saving.start()
            saving.join(0.5)  # it waits for the check, or is done
            return with_offsets(table, *given, **more)

        monkeypatch.setattr(ConsumerOffsets, "with_offsets", while_others_save)
        with broker.parts.store.service.exclusive() as store:
            save_progress(store, TransactionProgress(5, 6), now_ms=clock())
        saving.join()
        found = ConsumerOffsets.load((tmp_path / "store" / "config" / OFFSETS_FILE).read_text())
        assert found.get("TBW102", "TOOLS_CONSUMER", 0) == 7
        assert found.get("RMQ_SYS_TRANS_HALF_TOPIC", "CID_RMQ_SYS_TRANS", 0) == 5


def test_operators_are_told_what_was_put_and_pulled_by_day(tmp_path: Path) -> None:
    clock = FakeClock()
    pull = {"consumerGroup": "g", "topic": "T", "queueId": 0, "queueOffset": 0, "maxMsgNums": 1, "sysFlag": 4}
    pull |= {"commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0}
    with running(tmp_path / "store", clock) as broker:
        peers = BrokerPeers(broker, clock)

        def totals(kind: str) -> list[int]:
            broker.tick(clock())
            body = fastjson.parse(bytes(peers.ask("c", 28).body).decode())["table"]
            return [int(body[f"msg{kind}Total{moment}"]) for moment in ("YesterdayMorning", "TodayMorning", "TodayNow")]

        assert totals("Put") == [0, 0, 0]
        for _ in range(2):
            assert peers.ask("p", 310, *sent("T")).code == 0
        assert peers.ask("c", 11, pull).code == 0
        assert peers.ask("p", 310, *sent("SELF_TEST_TOPIC_X")).code == 0
        assert (totals("Put"), totals("Get")) == ([0, 0, 3], [0, 0, 1])
        clock.now_ms += DAY_MS
        assert (totals("Put"), totals("Get")) == ([0, 3, 3], [0, 1, 1])
        assert peers.ask("p", 310, *sent("T")).code == 0
        clock.now_ms += DAY_MS
        assert (totals("Put"), totals("Get")) == ([3, 4, 4], [1, 1, 1])


def test_operators_are_told_rates_over_ten_seconds_a_minute_and_ten_as_far_as_there_are_samples(tmp_path: Path) -> None:
    clock = FakeClock()
    pull = {"consumerGroup": "g", "topic": "T", "queueId": 0, "queueOffset": 0, "maxMsgNums": 32, "sysFlag": 4}
    pull |= {"commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0}
    with running(tmp_path / "store", clock) as broker:
        peers = BrokerPeers(broker, clock)

        def rates() -> dict[str, str]:
            table = fastjson.parse(bytes(peers.ask("c", 28).body).decode())["table"]
            return {name: table[name] for name in ("putTps", "getFoundTps", "getMissTps", "getTransferredTps")}

        for _ in range(10):
            peers.pause(1)
        assert set(rates().values()) == {"  "}
        for _ in range(20):
            assert peers.ask("p", 310, *sent("T")).code == 0
        assert peers.ask("c", 11, pull).code == 0
        assert peers.ask("c", 11, pull | {"queueOffset": 20}).code == 19
        peers.pause(1)
        assert rates() == {
            "putTps": "2.0  ",
            "getFoundTps": "0.1  ",
            "getMissTps": "0.1  ",
            "getTransferredTps": "2.0  ",
        }
        for _ in range(49):
            peers.pause(1)
        assert rates()["putTps"] == "0.0  "
        peers.pause(1)
        assert rates()["putTps"] == f"0.0 {20 / 60} "


def test_operators_are_told_how_far_delayed_messages_are_and_how_full_each_directory_of_the_log(tmp_path: Path) -> None:
    clock, root = FakeClock(), tmp_path / "store"
    with running(root, clock) as broker:
        peers = BrokerPeers(broker, clock)
        names, body = sent("T")
        for _ in range(3):
            assert peers.ask("p", 310, names | {"i": "DELAY\x012\x02"}, body).code == 0
        store = broker.parts.store.service.store
        store.save_state(DELAYS_FILE, DelayOffsets().with_offsets({2: 1}, now_ms=1).to_text())
        told = fastjson.parse(bytes(peers.ask("c", 28).body).decode())["table"]
        for path in (root / "config").glob("delayOffset.json*"):
            path.write_text("{", "utf-8")
        assert peers.ask("c", 28).code == 0
    assert {name: told[name] for name in told if name.startswith("scheduleMessageOffset")} == {
        "scheduleMessageOffset_2": "1,3"
    }
    assert told[f"commitLogDiskRatio_{root}/commitlog"] == told["commitLogDiskRatio"]


def test_operators_are_told_of_requests_that_are_not_supported(tmp_path: Path) -> None:
    clock = FakeClock()
    with running(tmp_path / "store", clock) as broker:
        peers = BrokerPeers(broker, clock)
        assert "requestsNotSupported" not in bytes(peers.ask("c", 28).body).decode()
        broker.parts.server.unsupported = lambda: {400: 3, 9_999: 1, -1: 2}
        told = fastjson.parse(bytes(peers.ask("c", 28).body).decode())["table"]
    assert told["requestsNotSupported"] == "others: 2, QUERY_ASSIGNMENT (400): 3, request 9999: 1"


def test_expired_log_files_go_at_any_hour_for_twenty_turns_after_an_operator_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, asked_for = FakeClock(), []

    def noted(*args: object, is_requested: bool) -> ExpiryPlan:
        asked_for.append(is_requested)
        return plan_run(*args, is_requested=is_requested)  # type: ignore[arg-type]

    monkeypatch.setattr("spark_mq.broker_server.duties.plan_run", noted)
    with running(tmp_path / "store", clock) as broker:
        peers = BrokerPeers(broker, clock)
        duties = Duties(
            broker.parts.store.service,
            broker,
            check_interval_ms=DAY_MS,
            clean_interval_ms=1,
            clock=clock,
        )
        duties.start()
        try:
            assert wait_for(lambda: len(asked_for) > 2)
            assert not any(asked_for)
            assert peers.ask("c", 329).code == 0
            assert wait_for(lambda: len(asked_for) > 40 and not asked_for[-1])
        finally:
            duties.close()
    assert asked_for.count(True) == 20


def test_a_full_disk_takes_no_messages_also_where_nothing_can_be_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member of a group whose thread has no time to trim its log, because its disk is slow."""
    clock, tried = FakeClock(), threading.Event()

    def full(*args: object, is_requested: bool) -> ExpiryPlan:
        plan = plan_run(*args, is_requested=is_requested)  # type: ignore[arg-type]
        return replace(plan, occasion=plan.occasion._replace(is_full=True))

    def busy(*args: object, **kwargs: object) -> None:
        tried.set()
        raise StoreNotWritableError("root", "the member has had no time", "the next turn tries again")

    monkeypatch.setattr("spark_mq.broker_server.duties.plan_run", full)
    monkeypatch.setattr("spark_mq.broker_server.duties.apply_expiry", busy)
    with running(tmp_path / "store", clock) as broker:
        service = broker.parts.store.service
        duties = Duties(service, broker, check_interval_ms=DAY_MS, clean_interval_ms=1, clock=clock)
        duties.start()
        try:
            assert tried.wait(60)
        finally:
            duties.close()
        names, body = sent("TBW102")
        answer = BrokerPeers(broker, clock).ask("p", 310, names, body)
        assert (answer.code, "disk is full" in (answer.remark or "")) == (14, True)


def test_an_error_of_the_metrics_fails_no_delivery_and_no_store(tmp_path: Path) -> None:
    def failing(topic: str, sizes_bytes: object) -> None:
        raise ValueError(f"no figures of {topic}")

    def deliver(store: MessageStore, now_ms: int) -> None:
        store.put("Delivered", b"x", queue_id=0)

    clock = FakeClock()
    with running(tmp_path / "store", clock) as broker:
        service = broker.parts.store.service
        duties = Duties(service, broker, check_interval_ms=DAY_MS, clean_interval_ms=DAY_MS, clock=clock)
        with pytest.raises(ValueError, match="no figures of Delivered"):
            duties._deliver(deliver, failing)
        assert service.failure is None
        assert broker.parts.store.served.maximum("Delivered", 0) == 1


def test_delivered_messages_count_with_their_parts_of_the_time_also_if_the_turn_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, turns = FakeClock(), 0

    def deliver(store: MessageStore, now_ms: int) -> None:
        nonlocal turns
        turns += 1
        if turns == 1:
            store.put_inner([InnerMessage(topic="TBW102", queue_id=0, body=b"due", properties={})] * 4)
            clock.now_ms += 40
            raise RuntimeError("the turn fails behind what it has put")

    monkeypatch.setattr("spark_mq.broker_server.duties.deliver_due", deliver)
    monkeypatch.setattr("spark_mq.broker_server.duties.steady_time_ms", clock)
    with running(tmp_path / "store", clock) as broker:
        service = broker.parts.store.service
        exclusive = service.exclusive

        @contextmanager
        def waiting() -> Iterator[MessageStore]:
            clock.now_ms += 5_000 if threading.current_thread().name == "delay levels" else 0
            with exclusive() as store:
                yield store

        monkeypatch.setattr(service, "exclusive", waiting)  # the lock is free after five seconds
        duties = Duties(service, broker, check_interval_ms=DAY_MS, clean_interval_ms=DAY_MS, clock=clock)
        duties.start()
        try:
            assert wait_for(lambda: turns > 1)
        finally:
            duties.close()
        assert broker.parts.traffic.puts.topics["TBW102"].messages == 4
        assert service.times.texts()["putMessageEntireTimeMax"] == "10"


def test_settings_that_an_operator_changes_hold_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, reserved_hours = FakeClock(), []

    def noted(*args: object, is_requested: bool) -> ExpiryPlan:
        (config,) = (each for each in args if isinstance(each, RetentionConfig))
        reserved_hours.append(config.file_reserved_time)
        return plan_run(*args, is_requested=is_requested)  # type: ignore[arg-type]

    monkeypatch.setattr("spark_mq.broker_server.duties.plan_run", noted)
    with running(tmp_path / "store", clock) as broker:
        peers = BrokerPeers(broker, clock)
        duties = Duties(
            broker.parts.store.service,
            broker,
            check_interval_ms=DAY_MS,
            clean_interval_ms=1,
            clock=clock,
        )
        duties.start()
        try:
            assert peers.ask("p", 310, *sent("Fresh")).code == 0
            told = b"fileReservedTime=3\nautoCreateTopicEnable=false\nmessageDelayLevel=1s\n"
            assert peers.ask("admin", 25, {}, told).code == 0
            assert peers.ask("p", 310, *sent("Other")).code == 17
            assert wait_for(lambda: reserved_hours[-1:] == [3])
        finally:
            duties.close()
        assert broker.parts.store.config.delay == broker.parts.store.service.config.delay, (
            "what the open store goes by stays"
        )
        assert b"messageDelayLevel=1s\n" in bytes(peers.ask("admin", 26).body)
    assert set(reserved_hours) <= {72, 3}


def test_a_changed_setting_stands_in_its_place_and_what_only_a_start_reads_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    before = b"# ours\n" + CONF + b"fileReservedTime : 7 # h\n\n! of the operators\nbrokerPermission=6\n"
    path.write_bytes(before)
    store = open_store(
        tmp_path / "store", config=parse_config(before, str(path)), read_only=False, create=True, clock=FakeClock()
    )
    with PutService(store, starts_duties=False) as service, Broker(service) as broker:
        peers = BrokerPeers(broker, FakeClock())
        for name in sorted(FIXED_SETTINGS & JAVA_SETTINGS.keys()):
            answer = peers.ask("admin", 25, {}, f"fileReservedTime=9\n{name}=x\n".encode())
            assert answer.code == 16, name
            assert name in (answer.remark or "") or "black list" in (answer.remark or "")
        assert peers.ask("admin", 25, {}, b"tls.server.keyPath=/x\n").code == 16
        assert path.read_bytes() == before
        assert peers.ask("admin", 25, {}, b"fileReservedTime=9\nmaxTransferCountOnMessageInMemory=3\n").code == 0
    after = before.replace(b"fileReservedTime : 7 # h", b"fileReservedTime=9")
    assert path.read_bytes() == after + b"maxTransferCountOnMessageInMemory=3\n"


def test_limits_of_pulls_and_what_is_known_of_clients_follow_an_operator_at_once(tmp_path: Path) -> None:
    """Java's processors and managers ask BrokerConfig and MessageStoreConfig each time."""
    clock = FakeClock()
    with running(tmp_path / "store", clock) as broker:
        peers = BrokerPeers(broker, clock)
        for _ in range(9):
            assert peers.ask("p", 310, *sent("T")).code == 0

        def pulled() -> int:
            fields = {
                "consumerGroup": "TOOLS_CONSUMER",
                "topic": "T",
                "queueId": 0,
                "queueOffset": 0,
                "maxMsgNums": 32,
                "sysFlag": 4,
                "commitOffset": 0,
                "suspendTimeoutMillis": 0,
                "subscription": "*",
                "subVersion": 0,
            }
            return int((peers.ask("c", 11, fields).ext_fields or {})["nextBeginOffset"])

        def change(text: bytes) -> None:
            assert peers.ask("admin", 25, {}, text).code == 0

        assert pulled() == 9
        change(b"maxTransferCountOnMessageInMemory=3\n")
        assert pulled() == 3
        change(b"accessMessageInMemoryMaxRatio=0\nmaxTransferCountOnMessageInDisk=2\n")
        assert pulled() == 2

        reset = {**OFFSET, "topic": "T"}
        for offset in (7, 5):
            fields = {"group": "TOOLS_CONSUMER", "topic": "T", "queueId": 0, "offset": offset, "timestamp": -1}
            assert peers.ask("admin", 222, {**fields, "isForce": True}).code == 0
            assert (peers.ask("c", 14, reset).ext_fields or {})["offset"] == str(offset)
        change(b"useServerSideResetOffset=false\n")
        assert peers.ask("c", 15, {**reset, "commitOffset": 1}).code == 0
        assert (peers.ask("c", 14, reset).ext_fields or {})["offset"] == "1"

        beat = HeartbeatData(
            client_id="c", consumers=(ConsumerData(group_name="G", subscriptions=(SubscriptionData(topic="T"),)),)
        )
        assert peers.ask("c", 34, {}, write_body(beat)).code == 0
        change(b"channelExpiredTimeout=1000\n")
        clock.now_ms += 20_000
        broker.tick(clock.now_ms)
        assert broker.parts.clients.consumers.groups == {}


def test_a_half_that_was_given_up_is_asked_about_again_where_an_operator_says_so_and_once(tmp_path: Path) -> None:
    """323. Java: AdminBrokerProcessor.resumeCheckHalfMessage."""
    clock = FakeClock()
    with running(tmp_path / "store", clock, CONF + b"transactionCheckMax=1\n") as broker:
        peers = BrokerPeers(broker, clock)
        fields, body = sent("T", b"half")
        half = fields | {"f": 4, "i": "TRAN_MSG\x01true\x02PGROUP\x01p\x02UNIQ_KEY\x01K\x02", "g": clock.now_ms}
        answer = peers.ask("p", 310, half, body)
        assert answer.code == 0
        for _ in range(3):
            clock.now_ms += 100_000
            broker.check_transactions(clock.now_ms)
        service = broker.parts.store.service
        with service.exclusive() as store:
            (given_up,) = store.get("TRANS_CHECK_MAX_TIME_TOPIC", 0, 0).messages

        def resume(message_id: str) -> tuple[int, str | None]:
            found = peers.ask("admin", 323, {"topic": "T", "msgId": message_id})
            return found.code, found.remark

        failed = "Put message back to RMQ_SYS_TRANS_HALF_TOPIC failed."
        for wrong in ((answer.ext_fields or {})["msgId"], "no id", "7F000001" + "0" * 24):
            assert resume(wrong) == (1, f"{failed} {wrong} names no message of TRANS_CHECK_MAX_TIME_TOPIC")
        assert resume(given_up.msg_id) == (0, None)
        assert resume(given_up.msg_id) == (1, f"{failed} It was put back before")
        with service.exclusive() as store:
            first, *_, last = store.get("RMQ_SYS_TRANS_HALF_TOPIC", 0, 0).messages
        assert (last.body, last.properties["TRANSACTION_CHECK_TIMES"]) == (b"half", "0")
        assert last.properties.items() >= first.properties.items()


def test_what_messages_are_given_and_when_halves_are_given_up_follow_an_operator_at_once(tmp_path: Path) -> None:
    clock = FakeClock()
    with running(tmp_path / "store", clock) as broker:
        peers, service = BrokerPeers(broker, clock), broker.parts.store.service
        told = b"regionId=north\ntraceOn=false\ntransactionCheckMax=1\ntransactionOpBatchInterval=0\n"
        assert peers.ask("admin", 25, {}, told).code == 0
        fields, body = sent("T")
        half = fields | {"f": 4, "i": "TRAN_MSG\x01true\x02PGROUP\x01p\x02", "g": clock.now_ms}
        answers = [peers.ask("p", 310, half, body) for _ in range(4)]
        assert [(answer.ext_fields or {})["MSG_REGION"] for answer in answers] == ["north"] * 4
        with service.exclusive() as store:
            found = store.get("RMQ_SYS_TRANS_HALF_TOPIC", 0, 0).messages
            assert {(each.properties["MSG_REGION"], each.properties["TRACE_ON"]) for each in found} == {
                ("north", "false")
            }
        for each in found[:2]:
            place = {"tranStateTableOffset": each.queue_offset, "commitLogOffset": each.commitlog_offset}
            assert (
                peers.ask("p", 37, {"producerGroup": "p", "commitOrRollback": 8, "transactionId": "", **place}).code
                == 0
            )
        with service.exclusive() as store:
            assert store.max_offset("RMQ_SYS_TRANS_OP_HALF_TOPIC", 0) == 2, "no commit's op message waits for others"
        for _ in range(3):
            clock.now_ms += 7_000
            broker.check_transactions(clock.now_ms)
        with service.exclusive() as store:
            assert store.max_offset("TRANS_CHECK_MAX_TIME_TOPIC", 0) == 2


def wait_for(met: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 60
    while not met() and time.monotonic() < deadline:
        time.sleep(0.005)
    return met()


def test_settings_are_told_as_the_broker_goes_by_them(tmp_path: Path) -> None:
    clock = FakeClock()
    with running(tmp_path / "store", clock, CONF + b"listenPort=20000\n") as broker:
        lines = bytes(BrokerPeers(broker, clock).ask("c", 26).body).decode().splitlines()
    assert {"listenPort=20000", "haListenPort=20001", "bitMapLengthConsumeQueueExt=112"} <= set(lines)
    assert f"clientCallbackExecutorThreads={os.cpu_count()}" in lines


SLOW = CONF + b"disableConsumeIfConsumerReadSlowly=true\nconsumerFallbehindThreshold=1000\n"


@pytest.mark.parametrize(
    ("conf", "is_read_again", "is_enabled"),
    [
        (SLOW, False, False),
        (SLOW, True, True),
        (SLOW + b"consumerFallbehindThreshold=10000\n", False, True),
        (SLOW + b"diskFallRecorded=false\n", False, True),
        (SLOW + b"disableConsumeIfConsumerReadSlowly=false\n", False, True),
    ],
)
def test_groups_that_read_slowly_are_switched_off(
    tmp_path: Path, conf: bytes, is_read_again: bool, is_enabled: bool
) -> None:
    clock = FakeClock()
    pull = {"consumerGroup": "slow", "topic": "T", "queueId": 0, "queueOffset": 0, "maxMsgNums": 1, "sysFlag": 4}
    pull |= {"commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0}
    with running(tmp_path / "store", clock, conf) as broker:
        peers = BrokerPeers(broker, clock)
        for _ in range(10):
            assert peers.ask("p", 310, *sent("T", b"x" * 200)).code == 0
        assert peers.ask("c", 11, pull).code == 0
        if is_read_again:
            assert peers.ask("c", 11, pull | {"queueOffset": 10}).code == 19
        peers.pause(PROTECTION_MS / 1_000 - 1)
        assert peers.ask("c", 200, {}, b'{"groupName":"other"}').code == 0
        assert broker.parts.store.groups["slow"].consume_enable
        peers.pause(1)
        assert broker.parts.store.groups["slow"].consume_enable == is_enabled
        assert broker.parts.store.groups["other"].consume_enable
        answer = peers.ask("c", 11, pull)
        refused = (16, "subscription group no permission, slow")
        assert (answer.code, answer.remark) == ((0, "FOUND") if is_enabled else refused)
    with running(tmp_path / "store", clock, conf) as broker:
        assert broker.parts.store.groups["slow"].consume_enable == is_enabled


def test_a_group_that_was_deleted_or_whose_topic_was_is_not_slow(tmp_path: Path) -> None:
    clock = FakeClock()
    with running(tmp_path / "store", clock) as broker:
        traffic, peers = broker.parts.traffic, BrokerPeers(broker, clock)
        for group, topic in (("a", "T"), ("b", "T"), ("b", "U"), ("c", "U")):
            traffic.looked(group, topic, 0, 7)
        assert traffic.behind(6) == {"a": 7, "b": 7, "c": 7}
        assert traffic.behind(7) == {}
        assert peers.ask("c", 207, {"groupName": "c"}).code == 0
        assert peers.ask("c", 215, {"topic": "T"}).code == 0
        assert traffic.behind(6) == {"b": 7}


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


@pytest.mark.parametrize("jump_ms", [3 * DAY_MS, -3 * DAY_MS])
def test_a_clock_that_is_set_closes_no_connection_frees_no_lock_and_answers_no_pull(
    tmp_path: Path, jump_ms: int
) -> None:
    clock, steady = FakeClock(), FakeClock(7_000)
    with running(tmp_path / "store", clock, steady=steady) as broker:
        peers = BrokerPeers(broker, clock)
        data = ConsumerData(group_name="g", message_model="CLUSTERING", subscriptions=(SubscriptionData(topic="T"),))
        beat = HeartbeatData(client_id="ann", consumers=(data,), producers=(ProducerData(group_name="p"),))
        peers.ask("ann", 34, {}, write_body(beat))
        names, message = sent("T")
        peers.ask("p", 310, names | {"e": 0}, message)
        queue = MessageQueue("T", "b", 0)
        taken = write_body(LockBody(consumer_group="g", client_id="ann", queues=(queue,)))
        wanted = write_body(LockBody(consumer_group="g", client_id="bob", queues=(queue,)))
        assert read_body(LockedQueues, peers.ask("ann", 41, {}, taken).body).queues == (queue,)
        pull = {"consumerGroup": "g", "topic": "T", "queueId": 0, "queueOffset": 1, "maxMsgNums": 1, "sysFlag": 6}
        pull |= {"commitOffset": 0, "suspendTimeoutMillis": 100_000, "subscription": "*", "subVersion": 0}
        parked = peers.start("ann", 11, pull)

        for _ in range(2):  # with time enough that all that is done at intervals is looked at
            clock.now_ms += jump_ms
            peers.pause(0)
            steady.now_ms += 20_000
            peers.pause(0)
        assert not peers.closed
        assert not parked.done()
        assert read_body(LockedQueues, peers.ask("bob", 41, {}, wanted).body).queues == ()
        assert broker.parts.clients.consumers.find("g", "ann") is not None
        assert broker.parts.clients.consumers.subscription("g", "T") is not None

        steady.now_ms += 130_000
        peers.pause(0)
        assert peers.closed == ["ann"]
        assert read_body(LockedQueues, peers.ask("bob", 41, {}, wanted).body).queues == (queue,)


@pytest.mark.parametrize(("more", "code"), [(b"", 17), (b"traceTopicEnable=true\n", 0)])
def test_clients_may_trace_where_the_broker_has_the_topic(tmp_path: Path, more: bytes, code: int) -> None:
    with running(tmp_path / "store", FakeClock(), CONF + b"autoCreateTopicEnable=false\n" + more) as broker:
        peers = BrokerPeers(broker, FakeClock())
        assert peers.ask("p", 310, *sent("RMQ_SYS_TRACE_TOPIC")).code == code
        known = broker.parts.store.topics.get("RMQ_SYS_TRACE_TOPIC")
        assert (known and (known.read_queue_count, known.write_queue_count, known.perm)) == (
            None if code else (1, 1, 6)
        )


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


def test_where_a_broker_may_not_be_written_name_servers_hear_that_its_topics_may_not(tmp_path: Path) -> None:
    """Java: BrokerController.registerBrokerAll, AdminBrokerProcessor.updateBrokerConfig: an unchanged version is not looked at."""

    def told(broker: Broker) -> tuple[dict[str, int], int]:
        table = read_body(RegisterBrokerBody, registration(broker.parts).body).topic_config_table
        assert table.data_version is not None
        return {name: topic.perm for name, topic in table.topic_config_table.items()}, table.data_version.counter

    clock = FakeClock()
    with running(tmp_path / "store", clock) as broker:
        peers = BrokerPeers(broker, clock)
        peers.ask("p", 310, *sent("T"))
        perms, version = told(broker)
        assert (perms["T"], perms["TBW102"]) == (6, 7)
        peers.ask("admin", 25, {}, b"brokerPermission=4\n")
        changed, later = told(broker)
        assert (changed["T"], changed["TBW102"]) == (4, 4)
        assert later > version
        peers.ask("admin", 25, {}, b"brokerPermission=6\n")
        assert told(broker) == (perms, later + 1)


def test_name_servers_hear_which_logical_queues_a_broker_leads(tmp_path: Path) -> None:
    """Java: TopicQueueMappingDetail.cloneAsMappingInfo. Without it clients take a static topic for any other one."""
    root = tmp_path / "store"
    make_static_store(root)
    with running(root, FakeClock(), b"brokerName=broker-lab\nbrokerIP1=127.0.0.1\n") as broker:
        table = read_body(RegisterBrokerBody, registration(broker.parts).body).topic_config_table
    mapping = (table.topic_queue_mapping_info_map or {})[STATIC]
    assert (mapping.topic, mapping.total_queues, mapping.broker_name, mapping.epoch) == (
        STATIC,
        6,
        "broker-lab",
        MADE_MS,
    )
    assert (mapping.scope, mapping.is_dirty, dict(mapping.current_ids)) == ("__global__", False, HERE_LED)


def test_events_wake_whoever_takes_them_once(tmp_path: Path) -> None:
    clock, woken = FakeClock(), []
    store = open_store(tmp_path / "store", config=parse_config(CONF), read_only=False, create=True, clock=clock)
    with (
        PutService(store, starts_duties=False) as service,
        Broker(service, clock=clock, steady=clock, wake=lambda: woken.append(1)) as broker,
    ):
        peers = BrokerPeers(broker, clock)
        peers.ask("p", 310, *sent("T"))
        assert woken
        assert broker.take_events() == []


def test_a_refusal_that_its_client_never_hears_of_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Clients send 15 and 37 one-way."""
    fields = {"consumerGroup": "nobody", "topic": "TBW102", "queueId": "0", "commitOffset": "1"}
    client = ClientConnection(bytes([127, 0, 0, 1, 0, 0, 0, 9]), "127.0.0.1:9")
    with running(tmp_path / "store", FakeClock()) as broker, caplog.at_level("INFO", "spark_mq.broker"):
        for is_oneway in (True, False):
            broker.answer(client, make_request(15, fields, is_oneway=is_oneway), 1_000)
        broker.answer(client, make_request(15, fields | {"consumerGroup": "TOOLS_CONSUMER"}, is_oneway=True), 1_000)
    assert caplog.messages == ["one-way request 15 of 127.0.0.1:9 is refused: 26 Group nobody not exist!"]


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
        of_acl_1 = {50, 51, 52, 53}  # with aclEnable
        assert set(REQUEST_TABLE) - of_acl_1 == {int(code) for code in broker._handlers}
    assert all(row.needs and isinstance(row.pool, Pool) for row in REQUEST_TABLE.values())
    assert {code for code, row in REQUEST_TABLE.items() if not row.is_on_fast_port} == {11, 361}


def test_offsets_are_saved_without_one_lock_within_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A heartbeat that makes its group's entry takes the tables' lock within the broker's own: the other way round both would stand."""
    clock = FakeClock()
    with running(tmp_path / "store", clock) as broker:
        tables, offsets, found = broker.parts.store.service.store.tables_lock, broker.parts.offsets, []
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


def test_of_two_saves_of_offsets_at_once_the_later_one_stands_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slave saves by itself, and whenever it has taken over topics."""
    clock, path = FakeClock(), tmp_path / "store" / "config" / OFFSETS_FILE
    with running(tmp_path / "store", clock) as broker:
        offsets, store = broker.parts.offsets, broker.parts.store.service.store
        others: list[threading.Thread] = []

        def save_more() -> None:
            offsets.commit("TOOLS_CONSUMER", "TBW102", 0, 2, clock())
            broker.save_offsets()

        class Overtaken:
            """The lock of tables: before the first save has it, another one is begun."""

            def __init__(self, lock: Any) -> None:
                self._lock = lock

            def __enter__(self) -> None:
                if not others:
                    others.append(threading.Thread(target=save_more))
                    others[0].start()
                    others[0].join(0.5)
                self._lock.__enter__()

            def __exit__(self, *error: Any) -> None:
                self._lock.__exit__(*error)

        offsets.commit("TOOLS_CONSUMER", "TBW102", 0, 1, clock())
        monkeypatch.setattr(store, "tables_lock", Overtaken(store.tables_lock))
        broker.save_offsets()
        others[0].join()
        assert ConsumerOffsets.load(path.read_text()).get("TBW102", "TOOLS_CONSUMER", 0) == 2
