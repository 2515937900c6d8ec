"""Decoders of queries: positions, pulled records, what a live sink stages and remembers, marks of its rows, a broadcast's offsets."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa

from spark_mq.client.errors import ClientError
from spark_mq.client.message import decode_records
from spark_mq.client.offset_stores import LocalOffsetFile, offsets_text
from spark_mq.client.pulls import Pull, PullStatus, pull_result, subscription
from spark_mq.conditions import OffsetJsonError, SentRowsLostError
from spark_mq.remoting import MessageQueue, make_request, make_response
from spark_mq.sink import journal, send_plan
from spark_mq.sink.staged_rows import StagedReader, StagedWriter
from spark_mq.source import lag, offsets
from spark_mq.source.offsets import QueueId
from spark_mq.source.pulled_records import PulledPart, PulledRecordError, first_hole, slice_of
from spark_mq.source.pulls import Found, Lost, Nothing, PullWindow, outcome_of, pull_answer
from storage.batch.ledger import Batch
from storage.errors import CorruptRecordError, StateFileError, StorageError
from storage.files.local_file_system import LocalFileSystem
from storage.format.batch_items import item_ends
from storage.format.record import encode_record
from tests.support.message_builder import make_message
from tests.torture.answer_decoders import SEPARATOR, answer_parts
from tests.torture.decoders import Decoder, of_json
from tests.torture.mutations import JSON_WORDS, PROPERTY_WORDS
from tests.torture.samples import Samples, as_json, both_parities, sealed, write_over

_FILES = LocalFileSystem()
_QUEUE = QueueId("TopicA", "b", 0)
_SINK = Batch("sink", "query", 3)


# Pulled records


def _read_pull(content: bytes, directory: Path) -> bool:
    """One answer to a pull, by the client's way and by a query's: the same records, or both find fault with them."""
    _, answers = answer_parts(content)
    ((code, fields, body),) = answers.values() if len(answers) == 1 else [(0, {}, b"")]
    command = make_response(make_request(11), code, fields.get("remark"), fields, body)
    queue = MessageQueue(*_QUEUE)
    result = pull_result(command, Pull(queue, 0, subscription("TopicA", "*", 0)), "G", "b:1")
    answer = pull_answer(command, "b:1", _QUEUE, "G")
    assert (result.next_offset, result.min_offset, result.max_offset) == answer[2:5]
    outcome = outcome_of(0, answer)
    if not isinstance(outcome, Found | Nothing | Lost):
        return False
    window: PullWindow[bytes] = PullWindow(0, 100, 1)
    (ask,) = window.asks()
    window.answer(ask, outcome.next_offset, b"")
    (part,) = window.take()
    assert 0 < part.end <= ask.end
    assert isinstance(outcome, Found) == (result.status is PullStatus.FOUND)
    return isinstance(outcome, Found) and _read_records(bytes(result.records), part.end)


def _read_records(body: bytes, end: int) -> bool:
    parts = [PulledPart(0, end, body)]
    try:
        pulled = slice_of(parts, b"TopicA", 0)
    except PulledRecordError:
        return False
    hole = first_hole(pulled.queue_offsets, 0, end)
    assert (hole is None) == (len(pulled.queue_offsets) == end)
    try:
        records = decode_records(body)
    except CorruptRecordError:  # it looks at magic and properties, too
        return False
    ours = [one for one in records if (one.topic, one.queue_id) == ("TopicA", 0) and one.queue_offset < end]
    assert pulled.queue_offsets.tolist() == [one.queue_offset for one in ours]
    assert pulled.records.raw_properties().to_pylist() == [one.raw_properties for one in ours]
    return bool(ours)


def _pulls(samples: Samples) -> list[bytes]:
    records = [encode_record(make_message(queue_offset=at, body=b"%d" % at)) for at in range(5)]
    found = b"11 0 nextBeginOffset=5 minOffset=0 maxOffset=9 suggestWhichBrokerId=0 remark=FOUND\n"
    moved = b"11 21 nextBeginOffset=9223372036854775807 minOffset=3 maxOffset=9 suggestWhichBrokerId=1 remark=X\n"
    other = encode_record(make_message("TopicB", queue_offset=1))
    bodies = b"".join(records), records[0], records[1] + other + records[3], b""
    return [*(SEPARATOR.join((b"", found + body)) for body in bodies), SEPARATOR.join((b"", moved))]


# What a live sink stages and remembers


def _read_journal(content: bytes, directory: Path) -> bool:
    """Both files at once, so that each reads the other's kind; what was read is saved and read the same."""
    kept = journal.Journal(_FILES, str(directory), "sink")
    folder = Path(kept.directory)
    folder.mkdir(exist_ok=True)
    found = []
    for name in ("intent.json", "done.json"):
        for other in ("intent.json", "done.json"):
            (folder / other).unlink(missing_ok=True)
        (folder / name).write_bytes(sealed(content))
        with suppress(StateFileError):
            found.append(kept.load())
    for one in found:
        if one.intent is not None:
            assert journal.decode_intent(journal.encode(one.intent)) == one.intent
            assert all("/" not in staged.name for staged in one.intent.files)
        if one.done is not None:
            assert journal.decode_done(journal.encode(one.done)) == one.done
    return bool(found)


def _kept(samples: Samples) -> list[bytes]:
    queue = MessageQueue("T", "b", 0)
    staged = journal.StagedFile("3-0-0123abcd-n.rows", 2, 100, 60, 1, 2)
    spans = (journal.QueueSpan(queue, 5, 5),)
    intent = journal.encode(journal.Intent(_SINK, (staged,), spans, ("SPARK_MQ_x_3_1_n",), 1))
    done = journal.encode(journal.Done(_SINK, spans, 2))
    return [*both_parities(intent), *both_parities(done)]


def _read_told(content: bytes, directory: Path) -> bool:
    """A message of the sink's topic, to which anybody may send."""
    compressed = make_message(body=content, sys_flag=1 if len(content) % 5 == 0 else 0)
    return journal.announcement_of(compressed, "sink") is not None


def _read_staged(content: bytes, directory: Path) -> bool:
    """A staged file whose sums are right: the first byte says where its table begins."""
    table_start = min(content[0] if content else 0, len(content))
    name = "3-0-0123abcd-n.rows"
    write_over(directory / name, content)
    data, table = content[:table_start], content[table_start:]
    for rows in (2, 3):
        said = journal.StagedFile(name, rows, len(content), table_start, zlib.crc32(data), zlib.crc32(table))
        with suppress(CorruptRecordError):
            reader = StagedReader(_FILES, str(directory), said)
            break
    else:
        return False
    reader.check()
    assert sum(len(batch.ranks) for batch in reader.batches) == said.rows
    for batch in reader.batches:
        body = reader.read(batch.start, batch.size_bytes)
        assert len(body) == batch.size_bytes
        with suppress(ValueError):
            assert item_ends(body)[-1:] in ([], [len(body)])
    plans = send_plan.plan_queues([reader.batches])
    rows_found = sum(len(send_plan.expected_rows(plan)) for plan in plans.values())
    return rows_found == said.rows


def _staged(samples: Samples) -> list[bytes]:
    directory = samples.scratch("staged")
    made = []
    for number in range(2):
        writer = StagedWriter(_FILES, str(directory), f"3-{number}-0123abcd-n.rows")
        writer.append(MessageQueue("T", "b", 0), b"x" * 60, 0, np.arange(2))
        if number:
            writer.append(MessageQueue("T", "b", 1), b"y" * 40, 0, np.arange(2, 3), waits=True)
        done = writer.finish()
        assert done is not None
        content = (directory / done.name).read_bytes()
        made.append(bytes([done.table_start]) + content[1:])
    return made


def _read_marks(content: bytes, directory: Path) -> bool:
    """Property strings of a queue to which anybody may send: the marks of a batch's rows, and rows of nobody for the rest."""
    files = [journal.StagedFile("3-0-0123abcd-n.rows", 2, 100, 60, 1, 2)]
    lines = content.split(b"\n")[:50]
    prefix = journal.batch_prefix(_SINK)
    ours, marks = send_plan.marks_of(pa.array(lines, pa.binary()), prefix)
    assert ours.sum() == len(marks)
    rows = send_plan.found_rows(marks, prefix, files)
    assert len(rows) == len(marks)
    with suppress(StorageError, SentRowsLostError):
        send_plan.rows_stored(MessageQueue("T", "b", 0), rows, rows)
    return bool((rows["file"] == 0).any())


def _marks(samples: Samples) -> list[bytes]:
    prefix = journal.batch_prefix(_SINK)
    row = f"{prefix}0123abcd-0-".encode()
    marked = [b"SPARK_MQ_ROW\x01" + row + b"%012X\x02" % rank for rank in range(3)]
    return [b"\n".join(marked), b"TAGS\x01a\x02" + marked[0], marked[1] + b"KEYS\x01k"]


def _read_offsets(content: bytes, directory: Path) -> bool:
    """A file of a broadcast, by Java's or by anybody: what is not whole counts as not there, and what is changed is kept."""
    file = LocalOffsetFile(directory, "c@1", "G")
    file.path.parent.mkdir(parents=True, exist_ok=True)
    file.path.write_bytes(content)
    file.path.with_name("offsets.json.bak").unlink(missing_ok=True)
    found = file.read()
    file.path.write_text(offsets_text(found), "utf-8")
    assert file.read() == found
    return bool(found)


def _offsets(samples: Samples) -> list[bytes]:
    queues = [MessageQueue("T", "b", number) for number in range(3)]
    return [offsets_text(dict.fromkeys(queues, 7)).encode(), json.dumps({"offsetTable": {}}).encode()]


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
    leaf = {"next": 12, "before": [4096, 1_700_000_000_000]}
    return [
        as_json(
            {"TopicA": {"broker-a": {"0": leaf, "10": {"next": 0, "before": None}}}, "B": {"broker-b": {"2": leaf}}}
        ),
        as_json({"TopicA": {"broker-a": {"0": -2, "1": -1}}, "B": {"0": 5}}),
        as_json({"TopicA": {"broker-a": [0, 1]}, "B": [2]}),
    ]


_WORDS = (*JSON_WORDS, *(b"\x00", b"\xff" * 4, SEPARATOR, b"nextBeginOffset=", b"offset=-1", b"9223372036854775808"))

DECODERS: Sequence[Decoder] = (
    Decoder("answers to a pull", _pulls, _read_pull, (ClientError,), words=_WORDS, inputs=1_500),
    of_json("journal of a live sink", _kept, _read_journal),
    of_json("what a live sink is told", _kept, _read_told, inputs=600),
    Decoder("rows that a live sink staged", _staged, _read_staged, (StorageError,), words=_WORDS, inputs=600),
    Decoder("marks of a live sink's rows", _marks, _read_marks, words=PROPERTY_WORDS, inputs=600),
    of_json("offsets of a broadcast", _offsets, _read_offsets, inputs=300),
    of_json("positions of a query", _positions, _read_positions, (OffsetJsonError,), inputs=600),
)
