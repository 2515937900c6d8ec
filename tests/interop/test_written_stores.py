"""Stores that we made from nothing are Apache's: its own classes list every message and find every key, a broker goes on from them.

What is expected is what was put; what is found is what Apache's classes say.
"""

from __future__ import annotations

import hashlib
import random
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from storage import MessageStore, open_store
from storage.format.arrays import string_hash
from tests.support.java_broker import Oracle, free_ports
from tests.support.shares import one_in

pytestmark = pytest.mark.interop

Line = dict[str, Any]
Place = tuple[str, int, int]  # topic, queue id, queue offset

LONG_MAX = 2**63 - 1
TOPICS = {"Orders": 4, "%single_queue%": 1, "a-b_c|d%e": 8}
SIZES = {"mappedFileSizeCommitLog": 65_536, "mappedFileSizeConsumeQueue": 400, "maxHashSlotNum": 50, "maxIndexNum": 300}
IDENTITY = {"brokerName": "broker-lab", "brokerClusterName": "LabCluster"}


class Row(NamedTuple):
    """A message as it is put."""

    topic: str
    body: bytes
    tags: str | None
    keys: list[str] | None
    properties: list[tuple[str, str]]
    flag: int
    born_timestamp: int
    queue_id: int | None
    sharding_key: str | None


SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("body", pa.binary()),
        ("tags", pa.string()),
        ("keys", pa.list_(pa.string())),
        ("properties", pa.map_(pa.string(), pa.string())),
        ("flag", pa.int32()),
        ("born_timestamp", pa.timestamp("ms", "UTC")),
        ("queue_id", pa.int32()),
        ("sharding_key", pa.string()),
    ]
)


def make_rows(count: int, seed: int) -> list[Row]:
    """Few enough keys for each topic that a dump asks for all of them."""
    chosen = random.Random(seed)
    names = list(TOPICS)
    return [
        Row(
            chosen.choice(names),
            chosen.choice([b"", b"x", chosen.randbytes(chosen.randrange(2_000)), b"compressible " * 300]),
            chosen.choice([None, "TagA", "TagB", "Étiquette", "Aa", "BB"]),  # the last two have one hash
            chosen.choice([None, [f"k{chosen.randrange(60)}"], [f"k{chosen.randrange(60)}", "schlüssel", "all"]]),
            chosen.choice([[], [("name", "wert"), ("größe", "🚀 x=1")]]),
            chosen.choice([0, 1, -(2**31), 2**31 - 1]),
            1_600_000_000_000 + number,
            chosen.choice([None, 0]),
            chosen.choice([None, None, "Schlüssel", "s"]),
        )
        for number in range(count)
    ]


def put(store: MessageStore, rows: list[Row]) -> dict[Place, tuple[Row, Line]]:
    """Append rows in two tables and a few by themselves; returns each with what the put said, by its place."""
    results: list[Line] = []
    for start, end in [(0, 150), (150, 151), (151, 153), (153, len(rows))]:
        columns = {field.name: [getattr(row, field.name) for row in rows[start:end]] for field in SCHEMA}
        table = pa.Table.from_pydict(columns, SCHEMA)
        results += store.put_batch(table, compress_body_over=1_000, queue_count=8).to_pylist()
    return {
        (line["topic"], line["queue_id"], line["queue_offset"]): (row, line)
        for row, line in zip(rows, results, strict=True)
    }


def make_topics(store: MessageStore) -> None:
    store.writer.topic_entries.ensure(TOPICS)


def configuration(tmp_path: Path, **settings: str | int) -> Path:
    path = tmp_path / "broker.conf"
    path.write_text("".join(f"{name}={value}\n" for name, value in (IDENTITY | SIZES | settings).items()), "utf-8")
    return path


# Made from nothing


@pytest.mark.parametrize(
    ("address", "flush", "let_go"),
    one_in(
        3,
        [
            ("127.0.0.1", "SYNC_FLUSH", MessageStore.release),
            ("127.0.0.1", "ASYNC_FLUSH", MessageStore.close),
            ("::1", "SYNC_FLUSH", MessageStore.close),
        ],
    ),
    ids=["released", "closed", "IPv6"],
)
def test_apache_lists_every_message_and_finds_every_key(
    address: str, flush: str, let_go: Any, oracle: Oracle, tmp_path: Path
) -> None:
    conf = configuration(tmp_path, brokerIP1=address, listenPort=10_911, flushDiskType=flush)
    expected: dict[Place, tuple[Row, Line]] = {}
    for seed in (1, 2):
        store = open_store(tmp_path / "store", config=str(conf), read_only=False, create=True)
        make_topics(store)
        expected |= put(store, make_rows(250, seed))
        let_go(store)
    assert len(expected) == 500
    lines = oracle.dump(tmp_path / "store", conf)
    assert_lists(lines, expected, {"127.0.0.1": "127.0.0.1:10911", "::1": "0:0:0:0:0:0:0:1:10911"}[address])
    assert_finds_all(lines, expected)
    before, after = of_type(lines, "indexBefore"), of_type(lines, "indexAfter")
    assert len(before) > 3
    assert [line["file"] for line in after] == [line["file"] for line in before], "no index file was dropped"
    (summary,) = of_type(lines, "summary")
    assert summary["truncatedBytes"] == 0
    assert summary["abortFile"] == (let_go is MessageStore.release)


# Gone on with


@pytest.mark.slow
@pytest.mark.parametrize("end", [pytest.param("stopped", marks=pytest.mark.long), "killed"])
def test_a_broker_goes_on_from_our_store_and_we_from_its(end: str, oracle: Oracle, tmp_path: Path) -> None:
    store, port = tmp_path / "store", free_ports()
    sizes = {
        "commitlog_file_size_bytes": SIZES["mappedFileSizeCommitLog"],
        "consume_queue_file_size_bytes": SIZES["mappedFileSizeConsumeQueue"],
        "maxHashSlotNum": SIZES["maxHashSlotNum"],
        "maxIndexNum": SIZES["maxIndexNum"],
    }
    conf = tmp_path / "broker.conf"
    with oracle.namesrv() as name_server:
        conf.write_text(oracle.broker_conf(store, name_server, port, **sizes), "utf-8")
        ours = open_store(store, config=str(conf), read_only=False, create=True)
        make_topics(ours)
        expected = put(ours, make_rows(250, 3))
        ours.release()
        assert hint_holds(store, conf)
        with oracle.broker(store, name_server, port=port, **sizes) as broker:
            sent = oracle.send(tmp_path / "sent.jsonl", broker, "Orders", count=100)
            if end == "killed":
                broker.kill()
    assert len(sent) == 100
    assert_broker_went_on(sent, expected)
    ours = open_store(
        store, config=str(conf), read_only=False, lock_timeout_ms=30_000
    )  # a killed process may take a moment
    assert ours.recovery is not None, "what we left said where things ended then"
    for line in sent:
        (message,) = ours.get(line["topic"], line["queueId"], line["queueOffset"], 1).messages
        assert message.msg_id == line["offsetMsgId"]
        assert message.unique_key == line["msgId"]
        assert hashlib.sha256(message.body).hexdigest() == line["bodySha256"]
    expected |= put(ours, make_rows(250, 4))
    ours.close()
    lines = oracle.dump(store, conf)
    assert_lists(lines, expected, f"127.0.0.1:{port}")
    found = by_place(of_type(lines, "message"))
    for line in sent:
        message = found[line["topic"], line["queueId"], line["queueOffset"]]
        assert (message["msgId"], message["bodySha256"]) == (line["offsetMsgId"], line["bodySha256"])
    assert_finds_all(lines, expected, sent)


def hint_holds(store: Path, conf: Path) -> bool:
    """Whether opening it now needs no recovery; leaves it as it was."""
    opened = open_store(store, config=str(conf), read_only=False)
    opened.release()
    return opened.recovery is None


def assert_broker_went_on(sent: list[Line], expected: dict[Place, tuple[Row, Line]]) -> None:
    """Its messages follow ours, queue by queue."""
    ends: dict[int, int] = defaultdict(int)
    for topic, queue_id, queue_offset in expected:
        if topic == "Orders":
            ends[queue_id] = max(ends[queue_id], queue_offset + 1)
    for line in sent:
        assert line["queueOffset"] == ends[line["queueId"]]
        ends[line["queueId"]] += 1
    assert set(ends) == set(range(TOPICS["Orders"]))


# What is compared


def of_type(lines: Iterable[Line], type_: str) -> list[Line]:
    return [line for line in lines if line["type"] == type_]


def by_place(messages: Iterable[Line]) -> dict[Place, Line]:
    return {(line["cqTopic"], line["cqQueueId"], line["cqOffset"]): line for line in messages}


def assert_lists(lines: list[Line], expected: dict[Place, tuple[Row, Line]], host: str) -> None:
    """Every message as it was put, at the place that the put said."""
    found = by_place(of_type(lines, "message"))
    assert expected.keys() <= found.keys()
    for place, (row, result) in expected.items():
        line = found[place]
        assert (line["topic"], line["queueId"], line["queueOffset"]) == place
        assert line["physicalOffset"] == line["cqPhysicalOffset"] == result["commitlog_offset"]
        assert line["storeSize"] == line["cqSize"]
        assert (line["msgId"], line["storeTimestamp"]) == (result["msg_id"], result["store_time_ms"])
        assert line["storeHost"] == line["bornHost"] == host
        assert (line["flag"], line["bornTimestamp"]) == (row.flag, row.born_timestamp)
        assert (line["reconsumeTimes"], line["preparedTransactionOffset"], line["magic"]) == (0, 0, "daa320a7")
        assert line["tagsCode"] == string_hash(row.tags or "")
        assert line["properties"] == properties_of(row, result["unique_key"])
        assert line.get("plainBodySha256", line["bodySha256"]) == hashlib.sha256(row.body).hexdigest()
        assert ("plainBodySha256" in line) == (len(row.body) >= 1_000)
        if row.queue_id is not None:
            assert place[1] == row.queue_id
    assert {
        line["topic"]: line["maxOffset"] for line in of_type(lines, "queue") if line["topic"] in TOPICS
    }.keys() == set(TOPICS)
    (result_line,) = of_type(lines, "result")
    assert (result_line["unreadable"], result_line["rawMessagesNotInAnyQueue"]) == (0, 0)


def properties_of(row: Row, unique_key: str) -> dict[str, str]:
    """As a broker would have stored them."""
    made = {
        "CLUSTER": "LabCluster",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
        "WAIT": "true",
        "UNIQ_KEY": unique_key,
    }
    given = {"TAGS": row.tags, "KEYS": " ".join(row.keys or []) or None, "__SHARDINGKEY": row.sharding_key}
    return made | {name: value for name, value in given.items() if value is not None} | dict(row.properties)


def assert_finds_all(lines: list[Line], expected: dict[Place, tuple[Row, Line]], sent: Iterable[Line] = ()) -> None:
    """Each look-up by a key names the newest places of that key, oldest first; every key of a row was asked for.

    A broker that finds `abort` enters the record again at which the last index file ends, so that one place may come back twice.
    """
    holders: dict[tuple[str, str], list[int]] = defaultdict(list)
    messages = by_place(of_type(lines, "message"))
    for (topic, _, _), (row, result) in expected.items():
        for key in {*(row.keys or []), result["unique_key"]}:
            holders[topic, key].append(result["commitlog_offset"])
    for line in sent:
        for key in {line.get("keys"), line["msgId"]} - {None}:
            place = messages[line["topic"], line["queueId"], line["queueOffset"]]["physicalOffset"]
            holders[line["topic"], key].append(place)
    asked = {
        (line["topic"], line["key"]): line
        for line in of_type(lines, "query")
        if (line["begin"], line["end"], line["maxNum"]) == (0, LONG_MAX, 32)
    }
    for name, line in asked.items():
        places = sorted(set(line["physicalOffsets"]))
        doubles = len(line["physicalOffsets"]) - len(places)
        assert doubles <= 1
        assert places == sorted(holders[name])[doubles - 32 :], name
    wanted = {(topic, key) for (topic, _, _), (row, _) in expected.items() for key in row.keys or []}
    assert len(wanted) > 100
    assert wanted <= asked.keys()
    assert sum(line["uniq"] for line in asked.values()) >= 3 * 40
