"""Decoders of files: a broker's state and settings, and what this package keeps beside them."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import pyarrow as pa

from spark_mq.broker.consumer_filters import ConsumerFilters
from storage import StoreConfig
from storage.batch import intent, staged_segment
from storage.batch.intent import DeadLetterFile
from storage.batch.staged_segment import StagedSegment
from storage.delay import schedule
from storage.delay.timer_store import TimerMetrics
from storage.dispatch import writer as dispatch_writer
from storage.errors import ConfigurationError, StateFileError, StorageError
from storage.files import local_file_system, syncs
from storage.files.local_file_system import LocalFileSystem
from storage.format import delay, fastjson
from storage.format.bloom_filter import BloomFilter
from storage.format.record_block import OutgoingMessages, encode_block
from storage.format.typed_json import SubscriptionGroupConfig
from storage.index import store as index_store
from storage.log.commit_log import RecordIdentity
from storage.recovery import quarantine
from storage.settings import java_properties
from storage.settings import load as config
from storage.tables import sink_notes
from storage.tables.consumer_groups import ConsumerFilterTable, ConsumerOffsets, SubscriptionGroupTable
from storage.tables.masters import DelayOffsets, FollowedTimer
from storage.tables.topics import MappingItem, TopicConfig, TopicQueueMapping, TopicQueueMappingTable, TopicTable
from storage.transaction.progress import TransactionCounts
from tests.support.message_builder import HOST_V4
from tests.torture.decoders import JSON_TOWERS, Decoder, of_json
from tests.torture.mutations import JSON_WORDS, PROPERTIES_FILE_WORDS
from tests.torture.samples import Samples, as_json, both_parities, sealed, with_checksum, write_over

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
    samples = lambda samples: [*samples.state(name), as_json(sample)]  # noqa: E731
    return of_json(name, samples, _state_reader(kind, change), (StateFileError,), inputs=250, bombs=JSON_TOWERS)


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
    loaded = local_file_system.read_with_backup(str(directory / "topics.json"), TopicTable.load)
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


# What this package keeps


def _kept(
    name: str, load: Callable[[str], bool], seal: Callable[[bytes], bytes] = lambda content: content
) -> Callable[[bytes, Path], bool]:
    """Reads a store in which a file of ROOT/spark_mq holds the input."""

    def read(content: bytes, root: Path) -> bool:
        path = root / "spark_mq" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_over(path, seal(content))
        return load(str(root))

    return read


_SINK = staged_segment.sink_digest("sink", "query").hex()


def _load_intent(root: str) -> bool:
    (found,) = intent.load_intents(_FILES, root)
    assert (found.sink_id, found.query_id, found.batch_id) == ("sink", "query", 3)
    assert found.row_count >= 0
    assert all(".." not in segment.path for segment in found.segments)
    assert intent._decode(_as_saved(found), intent.intent_path("", found)) == found
    return True


def _as_saved(found: intent.Intent) -> bytes:
    return with_checksum(json.dumps(found._asdict()).encode())


def _intents(samples: Samples) -> list[bytes]:
    segment = StagedSegment(f"{_SINK}/3-0-9.segment", 10, 1_000, 200, 1, 2, "A", "B")
    letters = DeadLetterFile.of("/dead", _SINK, 3, 0, "9")
    return both_parities(_as_saved(intent.Intent("sink", "query", 3, 4096, (segment,), (letters,), True, _NOW_MS)))


def _hints(samples: Samples) -> list[bytes]:
    document = {
        "abort": "1",
        "boot_id": "b",
        "log_end": 4096,
        "last_record": [4000, _NOW_MS, *([0] * (len(RecordIdentity._fields) - 2))],
        "log_file": ["/s/commitlog/0", [1, 2, 3]],
        "index_file": ["20261121000000000", 5, 4000],
        "queue_directories": {"": [1, 2, 3], "TopicA": [1, 3, 4]},
        "queue_ends": {"TopicA": {"0": 7}},
        "unsynced": [],
        "checkpointed_ms": 5,
        "marked_ends": {"sink": {"query": 3}},
    }
    return [_with_sum_ahead(b"." * 8 + text) for text in both_parities(as_json(document))]


def _with_sum_ahead(content: bytes) -> bytes:
    return b"%08x" % zlib.crc32(content[8:]) + content[8:]


def _load_failed_syncs(root: str) -> bool:
    """Whatever it says, each is a path that can be looked at."""
    noted = syncs._noted(_FILES, f"{root}/spark_mq/failed_sync.json")
    for path in noted:
        _FILES.exists(path)
    return bool(noted)


def _failed_syncs(samples: Samples) -> list[bytes]:
    paths = ["/s/commitlog/00000000000000000000", "/s/consumequeue/TopicA/0", "/s/checkpoint"]
    return [as_json({"boot_id": _FILES.boot_id(), "paths": paths})]


def _load_ledger_notes(root: str) -> bool:
    """What is read is saved as it was."""
    notes = sink_notes.load_ledger_notes(_FILES, root)
    assert notes is not None
    sink_notes.save_ledger_notes(_FILES, root, notes)
    return sink_notes.load_ledger_notes(_FILES, root) == notes


def _ledger_notes(samples: Samples) -> list[bytes]:
    return both_parities(as_json({"unmarkedEnd": 4096, "sinks": {"sink": ["query", 3, 4000], "other": ["q", -1, -1]}}))


def _load_trust(root: str) -> bool:
    """Whatever the file says, no more is believed than the checkpoint says."""
    trust = index_store.load_index_trust(_FILES, root, _NOW_MS)
    assert trust.synced_until_ms <= _NOW_MS
    return trust.synced_until_ms > 0


def _load_mark(root: str) -> bool:
    mark = schedule.read_mark(_FILES, root)
    assert mark is not None
    mark.is_current({3: 5})
    return True


def _read_manifest(content: bytes, directory: Path) -> bool:
    write_over(directory / "manifest.json", content)
    found = quarantine.load_quarantine(_FILES, str(directory))
    return found is not None and quarantine._from_document(quarantine._document(found), str(directory)) == found


def _manifests(samples: Samples) -> list[bytes]:
    part = quarantine.QuarantinedPart("commitlog/0", "/s/commitlog/0", 4096, 10, "00" * 32, 4096)
    one = quarantine.Quarantine("/q", _NOW_MS, 4096, "it was told to", 3, (part, replace(part, commitlog_offset=None)))
    return [as_json(quarantine._document(one))]


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
        assert (
            staged_segment.decode_columns(np.frombuffer(staged_segment.encode_columns(reader.columns), np.uint8))
            is not None
        )
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
    crcs = zlib.crc32(data), zlib.crc32(columns)
    segment = StagedSegment("0123456789abcdef/3-0.segment", 3, len(data), len(columns), *crcs, "A", "B")
    made = []
    for padding in (b"", b" ", b"  "):  # so that one of them is given the right checksum
        made.append(as_json(list(segment)) + padding + b"\n" + data + columns)
    return made


_DELAYS = StoreConfig().delay.message_delay_level.encode()

DECODERS: Sequence[Decoder] = (
    of_json(
        "fastjson's dialect",
        lambda samples: samples.state("topics.json"),
        _read_dialect,
        (StateFileError,),
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
    of_json(
        "followed_timer.json",
        lambda samples: [as_json({"readTimeMs": 1_795_251_500_000, "queueOffset": 7})],
        _read_followed_timer,
        (StateFileError,),
        inputs=150,
        bombs=JSON_TOWERS,
    ),
    of_json(
        "consumerFilter.json",
        lambda samples: samples.state("consumerFilter.json"),
        _read_filters,
        (StateFileError,),
        inputs=150,
        bombs=JSON_TOWERS,
    ),
    of_json(
        "a state file and its backup",
        lambda samples: [b"\n\n\n".join(samples.state("topics.json")[:1] * 2), b"{\n\n\n{}", b"{}\n\n\n"],
        _read_backed_up,
        (StateFileError,),
        inputs=150,
        bombs=(),
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
    of_json("intents", _intents, _kept(f"intents/{_SINK}-3.json", _load_intent, sealed), (StorageError,)),
    of_json(
        "hint",
        _hints,
        _kept(
            "hint.json",
            lambda root: dispatch_writer.load_hint(_FILES, root) is not None,
            lambda content: _with_sum_ahead(content) if len(content) % 2 else content,
        ),
    ),
    of_json("what to sync again", _failed_syncs, _kept("failed_sync.json", _load_failed_syncs), (OSError,)),
    of_json("notes of the ledger", _ledger_notes, _kept("ledger.json", _load_ledger_notes, sealed), (StateFileError,)),
    of_json(
        "rows that were torn",
        lambda samples: [as_json([[4096, 300], [4396, 120]])],
        _kept("torn_rows.json", lambda root: bool(intent.load_torn_rows(_FILES, root))),
        (StateFileError,),
    ),
    of_json("manifest of a quarantine", _manifests, _read_manifest, (StateFileError,)),
    of_json(
        "what is synced of the index",
        lambda samples: [as_json({"bootId": "b", "indexSyncedTime": 5})],
        _kept("index_synced.json", _load_trust),
    ),
    of_json(
        "delivery mark",
        lambda samples: [as_json({"log_end": 7, "ranges": [[3, 5, 9], [4, 0, 1]]})],
        _kept("delivery.json", _load_mark),
        (StateFileError,),
    ),
    Decoder("staged segments", _segments, _read_segment, (StorageError, ValueError), words=JSON_WORDS, inputs=600),
)
