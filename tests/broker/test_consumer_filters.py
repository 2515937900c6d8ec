"""Groups' SQL92 expressions: what heartbeats change, what stands in consumerFilter.json, and what bit maps of messages say of them."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from spark_mq.broker.broker import FILTERS_SAVED_MS, Broker
from spark_mq.broker.consumer_filters import ConsumerFilters
from spark_mq.remoting import read_body, write_body
from spark_mq.remoting.administration import ConsumeQueueEntries
from spark_mq.remoting.consumers import ConsumerData, HeartbeatData, SubscriptionData
from storage import open_store
from storage.errors import ConfigurationError, StateFileError
from storage.format.bloom_filter import BloomFilter
from storage.format.consume_queue import EXT_UNIT, ext_position, is_ext_address
from storage.format.record import Message, decode_record
from storage.queues.ext import ExtUnit
from storage.rules.response_codes import ResponseCode
from storage.service.put_service import PutService
from storage.settings.load import parse_config
from storage.tables.consumer_groups import ConsumerFilter, ConsumerFilterTable
from tests.broker.peers import BrokerPeers, FakeClock
from tests.support.fixture_stores import Fixture, golden_lines
from tests.support.places import VECTORS

JAVAS = (VECTORS / "config" / "consumerFilter.json").read_text("utf-8")
SHAPE = BloomFilter.of(20, 32)
CONF = (
    "brokerName=b\nbrokerIP1=127.0.0.1\nmappedFileSizeCommitLog=1048576\nmappedFileSizeConsumeQueue=20000\nmaxHashSlotNum=100\n"
    "maxIndexNum=400\nenablePropertyFilter=true\nenableConsumeQueueExt=true\nmappedFileSizeConsumeQueueExt=400\n"
)
CALCULATES = "enableCalcFilterBitMap=true\n"
DAY_MS = 24 * 3_600_000
GROUP = "sqlers"


# The file


def test_javas_file_is_read_and_written_to_the_byte() -> None:
    table = ConsumerFilterTable.load(JAVAS)
    assert table.topics["TopicA"]["GroupSql2"].expression == "p0 = 'v5' OR TAGS = 'TagB'"
    assert table.to_text() == JAVAS
    assert ConsumerFilterTable.load(ConsumerFilterTable().to_text()) == ConsumerFilterTable()


def test_an_expression_may_look_like_the_files_own_text() -> None:
    bits = {"bitNum": 8, "bitPos": [1, 2]}
    looks = ConsumerFilter("g", "T", "a = '\"bitPos\":[ 1 ]'", "SQL92", bloom_document=bits)
    text = ConsumerFilterTable({"T": {"g": looks}}).to_text()
    assert ConsumerFilterTable.load(text).topics["T"]["g"] == looks


@pytest.mark.parametrize("entry", ["7", '{"groupFilterData":{"g":7}}', '{"groupFilterData":{"g":{"bornTime":"x"}}}'])
def test_what_is_no_table_is_refused(entry: str) -> None:
    with pytest.raises(StateFileError):
        ConsumerFilterTable.load(f'{{"filterDataByTopic":{{"T":{entry}}}}}')


def test_bit_maps_are_those_that_an_apache_broker_gave_the_same_messages(
    pristine_store: Callable[[str], Fixture],
) -> None:
    fixture, table = pristine_store("ext"), ConsumerFilterTable.load(JAVAS)
    maps_of = ConsumerFilters(SHAPE, table, clock=lambda: 0).maps_of("TopicA")
    assert maps_of is not None
    known_ms = max(each.born_ms for each in table)
    lines = [
        line
        for line in golden_lines(fixture.golden, "message")
        if line["cqTopic"] == "TopicA" and line["ext"]["msgStoreTime"] > known_ms
    ]
    lines.sort(key=lambda line: int(line["cqPhysicalOffset"]))
    places, sizes = (np.array([line[name] for line in lines], np.int64) for name in ("cqPhysicalOffset", "cqSize"))
    properties: list[bytes] = []
    with open_store(fixture.root) as store:
        for _, records in store.log.records(places, sizes):
            properties += records.raw_properties().to_pylist()
    theirs = [line["ext"]["bitMap"] for line in lines]
    assert [row.tobytes().hex() for row in maps_of(properties)] == theirs
    assert len(set(theirs)) == 4  # none, either, both


# Changes


def told(expression: str | None, version: int, *, topic: str = "T", kind: str = "SQL92") -> SubscriptionData:
    return SubscriptionData(topic=topic, sub_string=expression, sub_version=version, expression_type=kind)


def test_newer_expressions_count_and_those_left_out_die_and_come_back() -> None:
    clock = FakeClock(1_000)
    filters = ConsumerFilters(SHAPE, clock=clock)

    def known(topic: str = "T") -> tuple[object, ...] | None:
        found = filters.find(topic, "g")
        return found and (
            found.filter.expression,
            found.filter.born_ms,
            found.filter.dead_ms,
            found.filter.client_version,
        )

    filters.register("g", [told("a = 1", 10), told("*", 10, topic="U", kind="TAG"), told("", 10, topic="V")])
    assert (known(), known("U"), known("V")) == (("a = 1", 1_000, 0, 10), None, None)
    clock.now_ms = 2_000
    filters.register("g", [told("a = 2", 10), told("b = 1", 3, topic="U")])
    assert (known(), known("U")) == (("a = 1", 1_000, 0, 10), ("b = 1", 2_000, 0, 3))
    filters.register("g", [told("a = 1", 11)])
    assert (known(), known("U")) == (("a = 1", 1_000, 0, 11), ("b = 1", 2_000, 2_000, 3))
    clock.now_ms = 3_000
    filters.register("g", [told("*", 12, kind="TAG"), told("b = 1", 3, topic="U")])
    assert (known(), known("U")) == (
        ("a = 1", 1_000, 0, 11),
        ("b = 1", 2_000, 0, 3),
    )  # as Java: the topic is still named
    filters.unregister("g")
    assert (known(), known("U")) == (("a = 1", 1_000, 3_000, 11), ("b = 1", 2_000, 3_000, 3))
    filters.register("g", [told("a = 2", 12), told("b = 1", 4, topic="U")])
    assert (known(), known("U")) == (("a = 2", 3_000, 0, 12), ("b = 1", 2_000, 0, 4))
    filters.register("g", [told("a =", 13), told("b = 1", 4, topic="U")])
    assert known() is None


def test_the_dead_go_after_a_day_and_whoever_is_loaded_is_dead() -> None:
    clock = FakeClock(DAY_MS)
    filters = ConsumerFilters(SHAPE, clock=clock)
    filters.register("g", [told("a = 1", 10)])
    table = filters.take_change()
    assert table is not None
    assert filters.take_change() is None
    clock.now_ms += 20_000
    loaded = ConsumerFilters(SHAPE, table, clock=clock)
    found = loaded.find("T", "g")
    assert found is not None
    assert found.filter.dead_ms == DAY_MS  # it was born later than half a minute ago
    clock.now_ms = 2 * DAY_MS - 1
    assert loaded.take_change() is None
    clock.now_ms += 1
    assert loaded.take_change() == ConsumerFilterTable()
    assert loaded.find("T", "g") is None
    late = ConsumerFilters(SHAPE, table, clock=clock).find("T", "g")
    assert late is not None
    assert late.filter.dead_ms == 2 * DAY_MS - 30_000


def test_a_file_with_other_bits_is_dropped() -> None:
    table = ConsumerFilterTable.load(JAVAS)
    assert ConsumerFilters(SHAPE, table, clock=lambda: 0).find("TopicA", "GroupSql") is not None
    assert ConsumerFilters(BloomFilter.of(20, 64), table, clock=lambda: 0).find("TopicA", "GroupSql") is None


def test_a_filter_is_born_when_whoever_dispatches_knows_it() -> None:
    filters = ConsumerFilters(SHAPE, clock=lambda: 7 if filters.maps_of("T") is None else 8)
    filters.register("g", [told("a = 1", 10)])
    found = filters.find("T", "g")
    assert found is not None
    assert found.filter.born_ms == 8


@pytest.mark.parametrize("line", ["maxErrorRateOfBloomFilter=100", "expectConsumerNumUseFilter=0"])
def test_bits_that_cannot_be_are_refused(line: str) -> None:
    with pytest.raises(ConfigurationError):
        parse_config(line.encode())


# A broker


class Group:
    """One client of one group at a broker."""

    def __init__(self, broker: Broker, clock: FakeClock, name: str = GROUP) -> None:
        self._broker, self._clock, self._name = broker, clock, name
        self.peers = BrokerPeers(broker, clock)

    def beat(self, *subscriptions: SubscriptionData) -> None:
        data = ConsumerData(group_name=self._name, consume_type="CONSUME_PASSIVELY", subscriptions=subscriptions)
        beat = HeartbeatData(client_id="c", consumers=(data,))
        assert self.peers.ask("c", 34, {}, write_body(beat)).code == 0

    def pull(self, version: int = 0, topic: str = "T") -> tuple[int, list[str]]:
        """The answer's code, and which bodies came."""
        fields = {
            "consumerGroup": GROUP,
            "topic": topic,
            "queueId": 0,
            "queueOffset": 0,
            "maxMsgNums": 32,
            "sysFlag": 0,
        }
        fields |= {"commitOffset": 0, "suspendTimeoutMillis": 0, "subVersion": version}
        answer = self.peers.ask("c", 11, fields)
        return answer.code, bodies(bytes(answer.body))

    def pull_all(self, topic: str) -> set[int]:
        """The queue offsets of what comes of its queue 0."""
        found: set[int] = set()
        fields = {"consumerGroup": self._name, "topic": topic, "queueId": 0, "maxMsgNums": 32, "sysFlag": 0}
        fields |= {"commitOffset": 0, "suspendTimeoutMillis": 0, "subVersion": 0}
        offset, code = 0, 0
        while code in (0, ResponseCode.PULL_RETRY_IMMEDIATELY):
            answer = self.peers.ask("c", 11, fields | {"queueOffset": offset})
            code, offset = answer.code, int((answer.ext_fields or {})["nextBeginOffset"])
            found |= {record.queue_offset for record in records_of(bytes(answer.body))}
        assert code == ResponseCode.PULL_NOT_FOUND
        return found

    def put(self, *numbers: int, topic: str = "T") -> None:
        self._clock.now_ms += 1_000
        with self._broker.parts.store.service.exclusive() as store:
            for number in numbers:
                store.put(topic, b"%d" % number, properties={"n": str(number)}, queue_id=0)

    def send(self, *numbers: int, topic: str = "T") -> None:
        """As a client does, which waits for no disk."""
        for number in numbers:
            properties = f"n\x01{number}\x02RETRY_TOPIC\x01T\x02WAIT\x01false"
            values = ("g", topic, "TBW102", 1, 0, 0, 0, 0, properties, 0, "false", 16, "false")
            fields = dict(zip("abcdefghijklm", values, strict=True))
            assert self.peers.ask("p", 310, fields, b"%d" % number).code == 0

    def flush(self) -> None:
        self._broker.parts.store.service.flush()

    def units(self) -> list[ExtUnit]:
        with open_store(self._broker.parts.store.service.root, config=self._broker.parts.store.service.config) as store:
            queue = store.queues.get("T", 0)
            assert queue is not None
            codes = queue.entries(0, store.max_offset("T", 0))["tags_code"]
            assert is_ext_address(codes).all()
            return [store.queues.ext("T", 0).unit(int(code)) or pytest.fail("no unit") for code in codes]


def records_of(body: bytes) -> list[Message]:
    found: list[Message] = []
    at = 0
    while at < len(body):
        record = decode_record(body, at)
        assert isinstance(record, Message)
        found.append(record)
        at += record.size_bytes
    return found


def bodies(body: bytes) -> list[str]:
    return [record.body.decode() for record in records_of(body)]


@contextmanager
def running(root: Path, clock: FakeClock, more: str = CALCULATES) -> Iterator[Group]:
    config = parse_config((CONF + more).encode())
    store = open_store(root, config=config, read_only=False, create=True, clock=clock)
    with PutService(store, starts_duties=False) as service, Broker(service, clock=clock, steady=clock) as broker:
        yield Group(broker, clock)


def test_expressions_outlive_heartbeats_and_restarts(tmp_path: Path) -> None:
    clock, file = FakeClock(), tmp_path / "store" / "config" / "consumerFilter.json"
    with running(tmp_path / "store", clock) as group:
        group.put(1, 2, 3)
        group.beat(told("n > 1", 10))
        assert group.pull(10) == (0, ["2", "3"])
        assert not file.exists()
        group.peers.pause(FILTERS_SAVED_MS / 1_000)
        assert '"expression":"n > 1"' in file.read_text()
        group.peers.hang_up("c")
        group.beat(told("n > 2", 9))  # older than what is known of the group that was gone
        assert group.pull(9) == (0, ["2", "3"])
        assert group.pull(10)[0] == 25
    assert '"dead":true' in file.read_text()
    with running(tmp_path / "store", clock) as group:
        group.beat(told("n > 2", 10))  # of the version that is known
        assert group.pull(10) == (0, ["2", "3"])
        group.beat(told("n > 2", 11))
        assert group.pull(11) == (0, ["3"])
        group.beat(told("n >", 12))
        assert group.pull(12)[0] == 27


def test_a_broker_goes_on_with_the_filters_and_maps_that_an_apache_broker_has_left(
    fixture_store: Callable[[str], Fixture],
) -> None:
    fixture, known = fixture_store("ext"), ConsumerFilterTable.load(JAVAS).topics["TopicA"]["GroupSql2"]
    lines = fixture.conf.read_text("utf-8").splitlines()
    conf = "\n".join([*(line for line in lines if "storePathCommitLog" not in line), "enablePropertyFilter=true", ""])
    clock = FakeClock(known.dead_ms + 60_000)
    bits = SHAPE.positions("GroupSql2#TopicA")
    maps = {
        line["cqOffset"]: bytes.fromhex(line["ext"]["bitMap"] or "")
        for line in golden_lines(fixture.golden, "message")
        if (line["cqTopic"], line["cqQueueId"]) == ("TopicA", 0) and line["ext"]["msgStoreTime"] > known.born_ms
    }
    wanted = {offset for offset, each in maps.items() if all(each[bit // 8] >> bit % 8 & 1 for bit in bits)}
    assert wanted
    assert wanted != maps.keys()

    def pulled() -> set[int]:
        store = open_store(fixture.root, config=parse_config(conf.encode()), read_only=False, clock=clock)
        with PutService(store, starts_duties=False) as service, Broker(service, clock=clock, steady=clock) as broker:
            group = Group(broker, clock, "GroupSql2")
            group.beat(told(known.expression, known.client_version, topic="TopicA"))  # of the version that is known
            found = broker.parts.clients.filters.find("TopicA", "GroupSql2")
            assert found is not None
            assert (found.filter.born_ms, found.filter.dead_ms) == (known.born_ms, 0)
            return group.pull_all("TopicA") & maps.keys()

    assert pulled() == wanted
    spoilt = min(wanted)
    with open_store(fixture.root) as store:
        queue = store.queues.get("TopicA", 0)
        assert queue is not None
        position = ext_position(int(queue.entries(spoilt, spoilt + 1)["tags_code"][0]))
    files = sorted((Path(fixture.root) / "consumequeue_ext" / "TopicA" / "0").iterdir())
    path = max((path for path in files if int(path.name) <= position), key=lambda path: int(path.name))
    content, at = bytearray(path.read_bytes()), position - int(path.name) + EXT_UNIT.itemsize
    assert content[at : at + 14] == maps[spoilt]
    content[at : at + 14] = bytes(14)
    path.write_bytes(content)
    assert pulled() == wanted - {spoilt}


def test_the_file_is_there_also_without_an_expression(tmp_path: Path) -> None:
    """ConfigManager.persist, each 10 seconds."""
    file, empty = tmp_path / "store" / "config" / "consumerFilter.json", '{\n\t"filterDataByTopic":{}\n}'
    with running(tmp_path / "store", FakeClock()) as group:
        group.peers.pause(FILTERS_SAVED_MS / 1_000)
        assert file.read_text() == empty
    written = file.stat().st_mtime_ns
    with running(tmp_path / "store", FakeClock()) as group:
        group.peers.pause(FILTERS_SAVED_MS / 1_000)
    assert file.stat().st_mtime_ns == written
    file.unlink()
    with running(tmp_path / "store", FakeClock()):
        pass
    assert file.read_text() == empty


def test_what_could_not_be_saved_is_saved_the_next_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "store" / "config" / "consumerFilter.json"
    with running(tmp_path / "store", FakeClock()) as group:
        group.beat(told("n > 1", 10))
        with monkeypatch.context() as broken:
            broken.setattr(ConsumerFilterTable, "to_text", failing)
            with pytest.raises(OSError, match="no room"):
                group.peers.pause(FILTERS_SAVED_MS / 1_000)
        assert not file.exists()
        group.peers.pause(FILTERS_SAVED_MS / 1_000)
        assert '"expression":"n > 1"' in file.read_text()


def failing(table: ConsumerFilterTable) -> str:
    raise OSError("no room")


def test_units_get_the_bits_of_the_groups_that_want_the_message(tmp_path: Path) -> None:
    """And a pull believes them for messages that came later than its group."""
    with running(tmp_path / "store", FakeClock()) as group:
        group.put(1, 5)
        group.beat(told("n > 3", 10))
        group.put(2, 6, 7)
        wanted, other = SHAPE.map_of(SHAPE.positions(f"{GROUP}#T")).tobytes(), bytes(14)
        assert [unit.bit_map for unit in group.units()] == [b"", b"", other, wanted, wanted]
        assert group.pull(10) == (0, ["5", "6", "7"])
        for path in (tmp_path / "store" / "consumequeue_ext" / "T" / "0").iterdir():
            path.write_bytes(path.read_bytes().replace(wanted, other))
        assert group.pull(10) == (0, ["5"])


@pytest.mark.parametrize(
    "policy", ["flushDiskType=ASYNC_FLUSH", "flushDiskType=SYNC_FLUSH", "transientStorePoolEnable=true"]
)
def test_units_have_bits_under_every_flush_policy(tmp_path: Path, policy: str) -> None:
    with running(tmp_path / "store", FakeClock(), f"{CALCULATES}{policy}\n") as group:
        group.beat(told("n > 3", 10))
        group.send(2, 6)
        group.flush()
        assert [any(unit.bit_map) for unit in group.units()] == [False, True]
        assert {len(unit.bit_map) for unit in group.units()} == {14}


def test_operators_are_shown_units_bits_and_what_a_group_wants(tmp_path: Path) -> None:
    with running(tmp_path / "store", FakeClock()) as group:
        group.put(5)
        group.beat(told("n > 3", 10))
        group.put(2, 6)
        fields = {"topic": "T", "queueId": 0, "index": 0, "count": 9}
        found = read_body(ConsumeQueueEntries, group.peers.ask("c", 321, fields | {"consumerGroup": GROUP}).body)
        assert found.filter_data is not None
        shown = ConsumerFilterTable.load(
            f'{{"filterDataByTopic":{{"T":{{"groupFilterData":{{"g":{found.filter_data}}}}}}}}}'
        )
        assert next(iter(shown)).expression == "n > 3"
        units, entries = group.units(), found.entries or ()
        assert [entry.passes for entry in entries] == [True, False, True]
        assert [json.loads(entry.extension or "") for entry in entries[1:]] == [
            {
                "filterBitMap": b64encode(unit.bit_map).decode(),
                "msgStoreTime": unit.store_time_ms,
                "size": 34,
                "tagsCode": 0,
            }
            for unit in units[1:]
        ]
        assert entries[0].bit_map is None
        text = entries[2].bit_map or ""
        assert [len(line) for line in text.split("\n")] == [48, 64, 0]
        bits = text.replace("\n", "")[::-1]
        assert {place for place, bit in enumerate(bits) if bit == "1"} == set(SHAPE.positions(f"{GROUP}#T"))
        alone = read_body(ConsumeQueueEntries, group.peers.ask("c", 321, fields).body)
        assert [entry.passes for entry in alone.entries or ()] == [False] * 3


def test_nothing_is_calculated_where_it_is_off(tmp_path: Path) -> None:
    with running(tmp_path / "store", FakeClock(), "") as group:
        group.beat(told("n > 3", 10))
        group.put(2, 6)
        assert [unit.bit_map for unit in group.units()] == [b"", b""]
        assert group.pull(10) == (0, ["6"])


def test_a_retry_topic_is_filtered_by_the_topic_that_its_messages_come_from(tmp_path: Path) -> None:
    topic = f"%RETRY%{GROUP}"
    retries = told("n > 0", 10, topic=topic)
    for setting, expected in (("", ["2", "6"]), ("filterSupportRetry=true\n", ["6"])):
        with running(tmp_path / f"store{len(setting)}", FakeClock(), setting) as group:
            group.beat(told("n > 3", 10), retries)
            group.send(2, 6, topic=topic)
            assert group.pull(10, topic) == (0, expected)
