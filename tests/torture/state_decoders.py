"""Decoders of files: a broker's state and settings, what this package keeps beside, and the JSON of a query's position."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, Self

from spark_mq.broker.consumer_filters import ConsumerFilters
from storage import StoreConfig
from storage.delay.timer_store import TimerMetrics
from storage.errors import ConfigurationError, StateFileError
from storage.files import atomic_file
from storage.files.local_file_system import LocalFileSystem
from storage.format import delay, fastjson
from storage.format.bloom_filter import BloomFilter
from storage.settings import java_properties
from storage.settings import load as config
from storage.tables.consumer_groups import (
    ConsumerFilterTable,
    ConsumerOffsets,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
)
from storage.tables.delay_progress import DelayOffsets, FollowedTimer
from storage.tables.topics import MappingItem, TopicConfig, TopicQueueMapping, TopicQueueMappingTable, TopicTable
from storage.transaction.progress import TransactionCounts
from tests.torture.decoders import JSON_BOMBS, JSON_TOWERS, Decoder
from tests.torture.mutations import JSON_WORDS, PROPERTIES_FILE_WORDS
from tests.torture.samples import Samples, as_json, write_over

_FILES = LocalFileSystem()
_NOW_MS = 1_700_000_000_000


# A broker's state


class _Table(Protocol):
    @property
    def document(self) -> Any: ...

    @classmethod
    def load(cls, text: str, file: str | None = None) -> Self: ...

    def to_text(self) -> str: ...


def _state_reader(kind: type[_Table], change: Callable[[Any], _Table]) -> Callable[[bytes, Path], bool]:
    """Loads a table, as found and once more from its own text; then a change of it, which keeps what nobody knows."""

    def read(content: bytes, directory: Path) -> bool:
        table = kind.load(content.decode(errors="replace"), "state.json")
        assert kind.load(_written(table)) == table, "a table is another one when written and read"
        changed = change(table)
        again = kind.load(_written(changed))
        assert again == changed, "a changed table is another one when written and read"
        own = set(changed.document) - set(table.document)
        assert set(table.document) - set(changed.document) <= {"groupTopicMap"}, "a field got lost"
        assert own <= {
            "dataVersion",
            "forbiddenTable",
            "offsetTable",
            "topicConfigTable",
            "subscriptionGroupTable",
            *_COUNTS,
        }
        return True

    return read


_COUNTS = ("timingCount", "transactionCount", "topicQueueMappingInfoMap")


def _written(table: _Table) -> str:
    return table.to_text().encode().decode()


def _state(name: str, kind: type[_Table], sample: object, change: Callable[[Any], _Table]) -> Decoder:
    return Decoder(
        name,
        lambda samples: [*samples.state(name), as_json(sample)],
        _state_reader(kind, change),
        (StateFileError,),
        words=JSON_WORDS,
        inputs=250,
        bombs=lambda: JSON_TOWERS,
    )


_MAPPING = {
    "dataVersion": {"counter": 1, "stateVersion": 0, "timestamp": 5},
    "topicQueueMappingInfoMap": {
        "Static": {
            "bname": "a",
            "epoch": 1,
            "totalQueues": 1,
            "hostedQueues": {"0": [{"bname": "a", "gen": 0, "queueId": 1}]},
        }
    },
}


def _read_dialect(content: bytes, directory: Path) -> bool:
    """What plain JSON is, the dialect reads as the standard parser does; what was read is written and read the same."""
    text = content.decode(errors="replace")
    value = fastjson.parse(text, "state.json")
    assert fastjson.parse(fastjson.to_text(value)) == value
    try:
        plain = json.loads(text, strict=False)
    except ValueError:
        return True
    assert _same(plain, value), "plain JSON, read otherwise"
    return True


def _same(one: object, other: object) -> bool:
    return json.dumps(one) == json.dumps(other)


def _read_backed_up(content: bytes, directory: Path) -> bool:
    """A file and its backup, of which one may be bad."""
    main, _, backup = content.partition(b"\n\n\n")
    write_over(directory / "topics.json", main)
    write_over(directory / "topics.json.bak", backup)
    loaded = atomic_file.read_with_backup(str(directory / "topics.json"), TopicTable.load)
    assert loaded.value is not None or loaded.path is None
    return loaded.value is not None


def _read_filters(content: bytes, directory: Path) -> bool:
    """What was read is written and read the same, and a broker that starts on it filters by it."""
    table = ConsumerFilterTable.load(content.decode(errors="replace"), "consumerFilter.json")
    assert ConsumerFilterTable.load(table.to_text().encode().decode()) == table
    filters = ConsumerFilters(BloomFilter.of(20, 32), table, clock=lambda: _NOW_MS)
    for topic in table.topics:
        if (maps_of := filters.maps_of(topic)) is not None:
            assert maps_of([b"num\x0131\x02", b""]).shape == (2, 14)
    return bool(table.topics)


def _read_followed_timer(content: bytes, directory: Path) -> bool:
    """What was read is written and read the same; a master's page gives it, whatever stands there."""
    assert FollowedTimer.of_answer(content).to_text()
    timer = FollowedTimer.load(content.decode(errors="replace"), "followed_timer.json")
    assert FollowedTimer.load(timer.to_text(), None) == timer
    return timer != (0, 0)


# Settings


def _read_conf(content: bytes, directory: Path) -> bool:
    parsed = config.parse_config(content, str(directory / "broker.conf"))
    config.refuse_for_writing(parsed)
    config.configured_log_directories(parsed)
    assert all(delay > -1 for delay in parsed.delay.delays_ms)
    assert delay.deliver_time_ms(99, _NOW_MS, parsed.delay.delays_ms) < 2**63
    return bool(parsed.settings)


def _read_properties_file(content: bytes, directory: Path) -> bool:
    """Settings that are written with every character escaped are the same."""
    found = java_properties.parse_properties(content, "broker.conf")
    escaped = "\n".join(f"{_escaped(setting.key)}={_escaped(setting.value)}" for setting in found)
    again = java_properties.parse_properties(escaped.encode("latin-1"))
    assert [(setting.key, setting.value) for setting in again] == [(setting.key, setting.value) for setting in found]
    return bool(found)


def _escaped(text: str) -> str:
    return "".join(f"\\u{ord(character):04x}" for character in text)


def _read_levels(content: bytes, directory: Path) -> bool:
    delays = delay.parse_delay_levels(content.decode("latin-1"))
    assert not delays or delay.deliver_time_ms(99, _NOW_MS, delays) < 2**63
    return bool(delays)


_DELAYS = StoreConfig().delay.message_delay_level.encode()

STATE_DECODERS: Sequence[Decoder] = (
    Decoder(
        "fastjson's dialect",
        lambda samples: samples.state("topics.json"),
        _read_dialect,
        (StateFileError,),
        inputs=400,
        words=JSON_WORDS,
        bombs=lambda: JSON_BOMBS,
        memory_bytes=96 << 20,  # what is no plain JSON becomes a list of its tokens
    ),
    _state(
        "topics.json",
        TopicTable,
        {"topicConfigTable": {"T": {"perm": 6}}},
        lambda t: t.with_topic(TopicConfig("T"), now_ms=1),
    ),
    _state(
        "subscriptionGroup.json",
        SubscriptionGroupTable,
        {"subscriptionGroupTable": {"G": {"brokerId": "0"}}},
        lambda table: table.with_group(SubscriptionGroupConfig("G"), now_ms=1),
    ),
    _state(
        "consumerOffset.json",
        ConsumerOffsets,
        {"offsetTable": {"T@G": {"0": 5}}},
        lambda table: table.with_offsets("G", {("T", 0): 9}, now_ms=1),
    ),
    _state(
        "delayOffset.json", DelayOffsets, {"offsetTable": {"3": 5}}, lambda table: table.with_offsets({3: 9}, now_ms=1)
    ),
    _state(
        "topicQueueMapping.json",
        TopicQueueMappingTable,
        _MAPPING,
        lambda table: table.with_mapping(TopicQueueMapping("T", hosted_queues={0: (MappingItem("a"),)}), now_ms=1),
    ),
    _state(
        "timermetrics", TimerMetrics, {"timingCount": {"T": {"count": 3}}}, lambda t: t.with_changes({"T": 1}, now_ms=1)
    ),
    _state(
        "transactionMetrics", TransactionCounts, {"transactionCount": {}}, lambda t: t.with_changes({"T": 1}, now_ms=1)
    ),
    Decoder(
        "followed_timer.json",
        lambda samples: [as_json({"readTimeMs": 1_795_251_500_000, "queueOffset": 7})],
        _read_followed_timer,
        (StateFileError,),
        words=JSON_WORDS,
        inputs=150,
        bombs=lambda: JSON_TOWERS,
    ),
    Decoder(
        "consumerFilter.json",
        lambda samples: samples.state("consumerFilter.json"),
        _read_filters,
        (StateFileError,),
        words=JSON_WORDS,
        inputs=150,
        bombs=lambda: JSON_TOWERS,
    ),
    Decoder(
        "a state file and its backup",
        lambda samples: [b"\n\n\n".join(samples.state("topics.json")[:1] * 2), b"{\n\n\n{}", b"{}\n\n\n"],
        _read_backed_up,
        (StateFileError,),
        words=JSON_WORDS,
        inputs=150,
    ),
    Decoder(
        "broker.conf", Samples.broker_conf, _read_conf, (ConfigurationError,), words=PROPERTIES_FILE_WORDS, inputs=200
    ),
    Decoder(
        "java.util.Properties",
        Samples.broker_conf,
        _read_properties_file,
        (ConfigurationError,),
        words=PROPERTIES_FILE_WORDS,
        inputs=400,
        bombs=lambda: (
            b"a\\\n" * 100_000,
            b"\\\n" * 100_000,
            b"\\" * 100_001,
            b"\n" * 100_000,
            b"a=" + b"\\u0041" * 50_000,
        ),
    ),
    Decoder("delay levels", lambda samples: [_DELAYS, b"1s"], _read_levels, (ValueError,), words=PROPERTIES_FILE_WORDS),
)
