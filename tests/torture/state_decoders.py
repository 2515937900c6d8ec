"""Decoders of files: a broker's state and settings, what this package keeps beside, and the JSON of a query's position."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import pyarrow as pa

from spark_mq import lag, offsets
from spark_mq.conditions import OffsetJsonError
from storage import StoreConfig, config, hint, index_trust, intent, java_properties, staged_segment
from storage.consumer_offsets import ConsumerOffsets
from storage.delay import delivery_mark
from storage.delay.delay_offsets import DelayOffsets
from storage.delay.timer_metrics import TimerMetrics
from storage.errors import ConfigurationError, StateFileError, StorageError
from storage.files import atomic_file
from storage.files.file_system import LocalFileSystem
from storage.format import delay_level, fastjson
from storage.format.record_block import OutgoingMessages, encode_block
from storage.staged_segment import StagedSegment
from storage.subscription_groups import SubscriptionGroupConfig, SubscriptionGroupTable
from storage.topic_queue_mappings import MappingItem, TopicQueueMapping, TopicQueueMappingTable
from storage.topics import TopicConfig, TopicTable
from storage.transaction.progress import TransactionCounts
from tests.support.message_builder import HOST_V4
from tests.torture.decoders import JSON_BOMBS, Decoder
from tests.torture.log_decoders import write_over
from tests.torture.mutations import JSON_WORDS, PROPERTIES_FILE_WORDS
from tests.torture.samples import Samples, as_json

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
        assert own <= {"dataVersion", "forbiddenTable", "offsetTable", "topicConfigTable", "subscriptionGroupTable", *_COUNTS}
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
        bombs=lambda: JSON_BOMBS,
    )


_MAPPING = {
    "dataVersion": {"counter": 1, "stateVersion": 0, "timestamp": 5},
    "topicQueueMappingInfoMap": {
        "Static": {"bname": "a", "epoch": 1, "totalQueues": 1, "hostedQueues": {"0": [{"bname": "a", "gen": 0, "queueId": 1}]}}
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


# Settings


def _read_conf(content: bytes, directory: Path) -> bool:
    parsed = config.parse_config(content, str(directory / "broker.conf"))
    config.refuse_for_writing(parsed)
    config.commit_log_directories(str(directory), parsed, is_directory=lambda path: False)
    assert all(delay > -1 for delay in parsed.delay.delays_ms)
    assert delay_level.deliver_time_ms(99, _NOW_MS, parsed.delay.delays_ms) < 2**63
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
    delays = delay_level.parse_delay_levels(content.decode("latin-1"))
    assert not delays or delay_level.deliver_time_ms(99, _NOW_MS, delays) < 2**63
    return bool(delays)


# What this package keeps


def _sealed(content: bytes) -> bytes:
    """Half of the inputs have the right checksum, so that what stands behind it is read."""
    line = content.partition(b"\n")[0]
    return line + b"\n" + f"{zlib.crc32(line):08x}\n".encode() if len(content) % 2 else content


def _read_intent(content: bytes, directory: Path) -> bool:
    folder = directory / "spark_mq" / "intents"
    folder.mkdir(parents=True, exist_ok=True)
    write_over(folder / f"{staged_segment.sink_digest('sink', 'query').hex()}-3.json", _sealed(content))
    (found,) = intent.load_intents(_FILES, str(directory))
    assert (found.sink_id, found.query_id, found.batch_id) == ("sink", "query", 3)
    assert found.row_count >= 0
    assert all(".." not in segment.path for segment in found.segments)
    assert intent._decode(_as_saved(found), intent.intent_path("", found)) == found
    return True


def _as_saved(found: intent.Intent) -> bytes:
    line = json.dumps(found._asdict()).encode()
    return line + f"\n{zlib.crc32(line):08x}\n".encode()


def _intents(samples: Samples) -> list[bytes]:
    segment = StagedSegment(f"{staged_segment.sink_digest('sink', 'query').hex()}/3-0-9.segment", 10, 1_000, 200, 1, 2, "A", "B")
    one = intent.Intent("sink", "query", 3, 4096, (segment,), (("/dead/.staged", "/dead/final"),), True, _NOW_MS)
    sealed = _as_saved(one)
    return [sealed, sealed + b" " * (1 + len(sealed) % 2)]


def _read_hint(content: bytes, directory: Path) -> bool:
    """A hint is one or none; with any checksum."""
    (directory / "spark_mq").mkdir(exist_ok=True)
    write_over(directory / "spark_mq" / "hint.json", b"%08x" % zlib.crc32(content[8:]) + content[8:] if len(content) % 2 else content)
    return hint.load_hint(_FILES, str(directory)) is not None


def _hints(samples: Samples) -> list[bytes]:
    document = {
        "abort": "1",
        "boot_id": "b",
        "log_end": 4096,
        "last_record": [4000, _NOW_MS, *([0] * (len(hint.RecordIdentity._fields) - 2))],
        "log_file": ["/s/commitlog/0", [1, 2, 3]],
        "index_file": ["20261121000000000", 5, 4000],
        "queue_directories": {"": [1, 2, 3], "TopicA": [1, 3, 4]},
        "queue_ends": {"TopicA": {"0": 7}},
        "unsynced": [],
        "checkpointed_ms": 5,
        "ledger": {"sink": {"query": 3}},
    }
    encoded = json.dumps(document).encode()
    return [b"%08x" % zlib.crc32(encoded) + encoded, b"%08x" % zlib.crc32(encoded + b" ") + encoded + b" "]


def _read_trust(content: bytes, directory: Path) -> bool:
    """Whatever the file says, no more is believed than the checkpoint says."""
    (directory / "spark_mq").mkdir(exist_ok=True)
    write_over(directory / "spark_mq" / "index_synced.json", content)
    trust = index_trust.load_index_trust(_FILES, str(directory), _NOW_MS)
    assert trust.synced_until_ms <= _NOW_MS
    return trust.synced_until_ms > 0


def _read_mark(content: bytes, directory: Path) -> bool:
    (directory / "spark_mq").mkdir(exist_ok=True)
    write_over(directory / "spark_mq" / "delivery.json", content)
    mark = delivery_mark.read_mark(_FILES, str(directory))
    assert mark is not None
    mark.is_current({3: 5})
    return True


def _read_segment(content: bytes, directory: Path) -> bool:
    """What a commit message or an intent says of a segment, and the file that it names."""
    line, _, data = content.partition(b"\n")
    try:
        segment = StagedSegment.from_json(json.loads(line))
    except RecursionError:
        return False  # the commit message came through Spark, the intent through its own reader
    if not (segment.path.startswith("0123456789abcdef/3-") and len(segment.path) < 100):
        return False
    path = directory / "spark_mq" / "staged" / segment.path
    path.parent.mkdir(parents=True, exist_ok=True)
    write_over(path, data)
    if len(content) % 3 == 0:  # with the right checksum of the columns
        columns = data[segment.data_size_bytes :][: segment.columns_size_bytes]
        segment = segment._replace(columns_crc=zlib.crc32(columns))
    with staged_segment.SegmentReader(_FILES, str(directory), segment) as reader:
        assert staged_segment.decode_columns(np.frombuffer(staged_segment.encode_columns(reader.columns), np.uint8)) is not None
        reader.verify_data()
    return True


def _segments(samples: Samples) -> list[bytes]:
    numbers = np.zeros(3, np.int32)
    bodies, strings = pa.array([b"a", b"b" * 40, b""], pa.binary()), pa.array([b"TAGS\x01a\x02"] * 3, pa.binary())
    times = np.full(3, _NOW_MS)
    block = encode_block(
        OutgoingMessages(
            (("TopicA", 0),), numbers, bodies, strings, numbers, numbers, times, times, numbers, np.empty(0, np.int32)
        ),
        HOST_V4,
    )
    data, columns = block.data.tobytes(), staged_segment.encode_columns(block.columns)
    made = []
    for padding in (b"", b" ", b"  "):  # so that one of them is given the right checksum
        crcs = zlib.crc32(data), zlib.crc32(columns)
        segment = StagedSegment("0123456789abcdef/3-0.segment", 3, len(data), len(columns), *crcs, "A", "B")
        made.append(as_json(list(segment)) + padding + b"\n" + data + columns)
    return made


# A query's position


def _read_positions(content: bytes, directory: Path) -> bool:
    """A position that is read is written and read the same; the users' spellings are read too."""
    text = content.decode("utf-8", "surrogateescape")
    found = 0
    for parse in (lambda: offsets.parse_positions(text, "startingOffsets", lowest=offsets.EARLIEST), lambda: _assigned(text)):
        try:
            found += bool(parse())
        except OffsetJsonError:
            pass
    lag._loads(text)
    position = offsets.QueueOffsets.from_json_dict(offsets.load_json(text, "offset"))
    again = json.dumps(position.to_json_dict())
    assert offsets.QueueOffsets.from_json_dict(json.loads(again)) == position
    assert json.dumps(offsets.QueueOffsets.from_json_dict(json.loads(again)).to_json_dict()) == again
    return bool(len(position))


def _assigned(text: str) -> object:
    named = offsets.parse_assignment(text, "assign")
    return offsets.with_brokers(list(named), ["broker-a"], "assign")


def _positions(samples: Samples) -> list[bytes]:
    leaf = {"next": 12, "before": [4096, _NOW_MS]}
    return [
        as_json({"TopicA": {"broker-a": {"0": leaf, "10": {"next": 0, "before": None}}}, "B": {"broker-b": {"2": leaf}}}),
        as_json({"TopicA": {"broker-a": {"0": -2, "1": -1}}, "B": {"0": 5}}),
        as_json({"TopicA": {"broker-a": [0, 1]}, "B": [2]}),
    ]


_JSON = {"words": JSON_WORDS, "bombs": lambda: JSON_BOMBS}
_DELAYS = StoreConfig().delay.message_delay_level.encode()

STATE_DECODERS: Sequence[Decoder] = (
    Decoder("fastjson's dialect", lambda samples: samples.state("topics.json"), _read_dialect, (StateFileError,), inputs=400, **_JSON),
    _state("topics.json", TopicTable, {"topicConfigTable": {"T": {"perm": 6}}}, lambda t: t.with_topic(TopicConfig("T"), now_ms=1)),
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
    _state("delayOffset.json", DelayOffsets, {"offsetTable": {"3": 5}}, lambda table: table.with_offsets({3: 9}, now_ms=1)),
    _state(
        "topicQueueMapping.json",
        TopicQueueMappingTable,
        _MAPPING,
        lambda table: table.with_mapping(TopicQueueMapping("T", hosted_queues={0: (MappingItem("a"),)}), now_ms=1),
    ),
    _state("timermetrics", TimerMetrics, {"timingCount": {"T": {"count": 3}}}, lambda t: t.with_changes({"T": 1}, now_ms=1)),
    _state("transactionMetrics", TransactionCounts, {"transactionCount": {}}, lambda t: t.with_changes({"T": 1}, now_ms=1)),
    Decoder(
        "a state file and its backup",
        lambda samples: [b"\n\n\n".join(samples.state("topics.json")[:1] * 2), b"{\n\n\n{}", b"{}\n\n\n"],
        _read_backed_up,
        (StateFileError,),
        words=JSON_WORDS,
        inputs=150,
    ),
    Decoder("broker.conf", Samples.broker_conf, _read_conf, (ConfigurationError,), words=PROPERTIES_FILE_WORDS, inputs=200),
    Decoder(
        "java.util.Properties",
        Samples.broker_conf,
        _read_properties_file,
        (ConfigurationError,),
        words=PROPERTIES_FILE_WORDS,
        inputs=400,
        bombs=lambda: (b"a\\\n" * 100_000, b"\\\n" * 100_000, b"\\" * 100_001, b"\n" * 100_000, b"a=" + b"\\u0041" * 50_000),
    ),
    Decoder("delay levels", lambda samples: [_DELAYS, b"1s"], _read_levels, (ValueError,), words=PROPERTIES_FILE_WORDS),
    Decoder("intents", _intents, _read_intent, (StorageError,), inputs=400, **_JSON),
    Decoder("hint", _hints, _read_hint, inputs=400, **_JSON),
    Decoder("what is synced of the index", lambda samples: [as_json({"bootId": "b", "indexSyncedTime": 5})], _read_trust, inputs=400, **_JSON),
    Decoder(
        "delivery mark",
        lambda samples: [as_json({"log_end": 7, "ranges": [[3, 5, 9], [4, 0, 1]], "put_rows": 2})],
        _read_mark,
        (StateFileError,),
        inputs=400,
        **_JSON,
    ),
    Decoder("staged segments", _segments, _read_segment, (StorageError, ValueError), words=JSON_WORDS, inputs=600),
    Decoder("positions of a query", _positions, _read_positions, (OffsetJsonError,), inputs=600, **_JSON),
)
