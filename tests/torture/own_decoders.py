"""Decoders of what this package keeps beside a broker's files, and of the JSON of a query's position."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from spark_mq.conditions import OffsetJsonError
from spark_mq.source import lag, offsets
from storage.batch import intent, redo, staged_segment
from storage.batch.intent import DeadLetterFile
from storage.batch.staged_segment import StagedSegment
from storage.delay import schedule
from storage.dispatch import store_ends
from storage.errors import StateFileError, StorageError
from storage.files import syncs
from storage.files.local_file_system import LocalFileSystem
from storage.format.record_block import OutgoingMessages, encode_block
from storage.index import store as index_store
from storage.log.commit_log import RecordIdentity
from storage.recovery import quarantine
from storage.tables import sink_notes
from tests.support.message_builder import HOST_V4
from tests.torture.decoders import JSON_BOMBS, Decoder
from tests.torture.mutations import JSON_WORDS
from tests.torture.samples import Samples, as_json, write_over

_FILES = LocalFileSystem()
_NOW_MS = 1_700_000_000_000


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
    segment = StagedSegment(
        f"{staged_segment.sink_digest('sink', 'query').hex()}/3-0-9.segment", 10, 1_000, 200, 1, 2, "A", "B"
    )
    letters = DeadLetterFile.of("/dead", staged_segment.sink_digest("sink", "query").hex(), 3, 0, "9")
    one = intent.Intent("sink", "query", 3, 4096, (segment,), (letters,), True, _NOW_MS)
    sealed = _as_saved(one)
    return [sealed, sealed + b" " * (1 + len(sealed) % 2)]


def _read_hint(content: bytes, directory: Path) -> bool:
    """A hint is one or none; with any checksum."""
    (directory / "spark_mq").mkdir(exist_ok=True)
    write_over(
        directory / "spark_mq" / "hint.json",
        b"%08x" % zlib.crc32(content[8:]) + content[8:] if len(content) % 2 else content,
    )
    return store_ends.load_hint(_FILES, str(directory)) is not None


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
    encoded = json.dumps(document).encode()
    return [b"%08x" % zlib.crc32(encoded) + encoded, b"%08x" % zlib.crc32(encoded + b" ") + encoded + b" "]


def _read_note(content: bytes, directory: Path) -> bool:
    """Whatever it says, each is a path that can be looked at."""
    (directory / "spark_mq").mkdir(exist_ok=True)
    note = directory / "spark_mq" / "failed_sync.json"
    write_over(note, content)
    noted = syncs._noted(_FILES, str(note))
    for path in noted:
        _FILES.exists(path)
    return bool(noted)


def _notes(samples: Samples) -> list[bytes]:
    paths = ["/s/commitlog/00000000000000000000", "/s/consumequeue/TopicA/0", "/s/checkpoint"]
    return [as_json({"boot_id": _FILES.boot_id(), "paths": paths})]


def _read_ledger_notes(content: bytes, directory: Path) -> bool:
    """With any checksum, and what is read is saved as it was."""
    line = content.partition(b"\n")[0]
    sealed = line + b"\n" + f"{zlib.crc32(line):08x}\n".encode()
    (directory / "spark_mq").mkdir(exist_ok=True)
    write_over(directory / "spark_mq" / "ledger.json", sealed if len(content) % 2 else content)
    notes = sink_notes.load_ledger_notes(_FILES, str(directory))
    assert notes is not None
    sink_notes.save_ledger_notes(_FILES, str(directory), notes)
    return sink_notes.load_ledger_notes(_FILES, str(directory)) == notes


def _ledger_notes(samples: Samples) -> list[bytes]:
    document = as_json({"unmarkedEnd": 4096, "sinks": {"sink": ["query", 3, 4000], "other": ["q", -1, -1]}})
    return [document, document + b" " * (1 + len(document) % 2)]


def _read_torn_rows(content: bytes, directory: Path) -> bool:
    (directory / "spark_mq").mkdir(exist_ok=True)
    write_over(directory / "spark_mq" / "torn_rows.json", content)
    return bool(redo.load_torn_rows(_FILES, str(directory)))


def _read_manifest(content: bytes, directory: Path) -> bool:
    write_over(directory / "manifest.json", content)
    found = quarantine.load_quarantine(_FILES, str(directory))
    return found is not None and quarantine._from_document(quarantine._document(found), str(directory)) == found


def _manifests(samples: Samples) -> list[bytes]:
    part = quarantine.QuarantinedPart("commitlog/0", "/s/commitlog/0", 4096, 10, "00" * 32, 4096)
    one = quarantine.Quarantine("/q", _NOW_MS, 4096, "it was told to", 3, (part, replace(part, commitlog_offset=None)))
    return [as_json(quarantine._document(one))]


def _read_trust(content: bytes, directory: Path) -> bool:
    """Whatever the file says, no more is believed than the checkpoint says."""
    (directory / "spark_mq").mkdir(exist_ok=True)
    write_over(directory / "spark_mq" / "index_synced.json", content)
    trust = index_store.load_index_trust(_FILES, str(directory), _NOW_MS)
    assert trust.synced_until_ms <= _NOW_MS
    return trust.synced_until_ms > 0


def _trusts(samples: Samples) -> list[bytes]:
    return [as_json({"bootId": "b", "indexSyncedTime": 5})]


def _read_mark(content: bytes, directory: Path) -> bool:
    (directory / "spark_mq").mkdir(exist_ok=True)
    write_over(directory / "spark_mq" / "delivery.json", content)
    mark = schedule.read_mark(_FILES, str(directory))
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
    with suppress(OffsetJsonError):
        offsets.parse_positions(text, "startingOffsets", lowest=offsets.EARLIEST)
    with suppress(OffsetJsonError):
        offsets.with_brokers(list(offsets.parse_assignment(text, "assign")), ["broker-a"], "assign")
    lag._loads(text)
    position = offsets.QueueOffsets.from_json_dict(offsets.load_json(text, "offset"))
    again = json.dumps(position.to_json_dict())
    assert offsets.QueueOffsets.from_json_dict(json.loads(again)) == position
    assert json.dumps(offsets.QueueOffsets.from_json_dict(json.loads(again)).to_json_dict()) == again
    return bool(len(position))


def _positions(samples: Samples) -> list[bytes]:
    leaf = {"next": 12, "before": [4096, _NOW_MS]}
    return [
        as_json(
            {"TopicA": {"broker-a": {"0": leaf, "10": {"next": 0, "before": None}}}, "B": {"broker-b": {"2": leaf}}}
        ),
        as_json({"TopicA": {"broker-a": {"0": -2, "1": -1}}, "B": {"0": 5}}),
        as_json({"TopicA": {"broker-a": [0, 1]}, "B": [2]}),
    ]


OWN_DECODERS: Sequence[Decoder] = (
    Decoder("intents", _intents, _read_intent, (StorageError,), inputs=400, words=JSON_WORDS, bombs=lambda: JSON_BOMBS),
    Decoder("hint", _hints, _read_hint, inputs=400, words=JSON_WORDS, bombs=lambda: JSON_BOMBS),
    Decoder(
        "what to sync again", _notes, _read_note, (OSError,), inputs=400, words=JSON_WORDS, bombs=lambda: JSON_BOMBS
    ),
    Decoder(
        "notes of the ledger",
        _ledger_notes,
        _read_ledger_notes,
        (StateFileError,),
        inputs=400,
        words=JSON_WORDS,
        bombs=lambda: JSON_BOMBS,
    ),
    Decoder(
        "rows that were torn",
        lambda samples: [as_json([[4096, 300], [4396, 120]])],
        _read_torn_rows,
        (StateFileError,),
        inputs=400,
        words=JSON_WORDS,
        bombs=lambda: JSON_BOMBS,
    ),
    Decoder(
        "manifest of a quarantine",
        _manifests,
        _read_manifest,
        (StateFileError,),
        inputs=400,
        words=JSON_WORDS,
        bombs=lambda: JSON_BOMBS,
    ),
    Decoder(
        "what is synced of the index", _trusts, _read_trust, inputs=400, words=JSON_WORDS, bombs=lambda: JSON_BOMBS
    ),
    Decoder(
        "delivery mark",
        lambda samples: [as_json({"log_end": 7, "ranges": [[3, 5, 9], [4, 0, 1]]})],
        _read_mark,
        (StateFileError,),
        inputs=400,
        words=JSON_WORDS,
        bombs=lambda: JSON_BOMBS,
    ),
    Decoder("staged segments", _segments, _read_segment, (StorageError, ValueError), words=JSON_WORDS, inputs=600),
    Decoder(
        "positions of a query",
        _positions,
        _read_positions,
        (OffsetJsonError,),
        inputs=600,
        words=JSON_WORDS,
        bombs=lambda: JSON_BOMBS,
    ),
)
