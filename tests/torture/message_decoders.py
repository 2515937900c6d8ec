"""Decoders of what a message says: properties, batches, send requests, and the messages that a broker's duties live on."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa

from spark_mq.broker import put_plan, send
from spark_mq.broker.put_plan import PutRules
from spark_mq.broker.sql92 import EvaluationError, read_double
from spark_mq.remoting import HeaderError, read_header, write_header
from spark_mq.remoting import messages as batch_body
from spark_mq.remoting.messages import SendMessageRequest
from storage import StoreConfig
from storage.batch import ledger as batch_ledger
from storage.delay import schedule, timer_records
from storage.errors import MessageIllegalError, NameIllegalError, PutRefusedError
from storage.format import batch_items, properties, record, record_batch, record_block
from storage.format.record_batch import Records
from storage.names import validate_broker_name, validate_group, validate_path_element, validate_topic
from storage.rules import half_messages, inner_messages, topics
from storage.rules.inner_messages import Limits, columns_of, few_block
from storage.rules.response_codes import RequestRefusedError
from storage.tables.topics import TopicConfig
from storage.transaction import half_queue, outcomes
from tests.support.broker_handlers import Send
from tests.support.message_builder import HOST_V4, make_message
from tests.torture.decoders import Decoder, of_json
from tests.torture.mutations import EXTREMES, PROPERTY_WORDS
from tests.torture.samples import Samples, as_json

_NOW_MS = 1_700_000_000_000
_DELAYS_MS = StoreConfig().delay.delays_ms
_ASKED = ("TAGS", "KEYS", "UNIQ_KEY", "REAL_TOPIC", "a")


# Properties


def _read_properties(content: bytes, directory: Path) -> bool:
    """A few property strings one by one and as columns; what was read is read again from what it is written as."""
    rows = content.split(b"\n")[:20]
    expected = [properties.decode_properties(row) for row in rows]
    maps = properties.decode_property_maps(pa.array(rows, pa.binary()))
    whole = getattr(maps, "maps", maps)
    assert [dict(found) for found in whole.map_array().to_pylist()] == expected
    for name in _ASKED:
        assert maps.values_of(name).to_pylist() == [found.get(name) for found in expected], name
        assert whole.values_of(name).to_pylist() == [found.get(name) for found in expected], name
    for found in expected:
        again = properties.decode_properties(inner_messages.encode_properties(found))
        assert again == found
    return any(expected)


def _property_rows(samples: Samples) -> list[bytes]:
    strings = samples.property_strings
    return [
        *strings,
        b"\n".join(strings[:8]),
        b"\n".join(strings[8:16]),
        b"TAGS\x01a\x02KEYS\x01b\x02TAGS\x01c",
        b"\n\n",
    ]


# What a broker's duties read out of properties


def _hostile_records(content: bytes) -> Records:
    """Rows of the input as the property strings of whole records."""
    rows = [row[: properties.PROPERTIES_LIMIT_BYTES] for row in content.split(b"\n")[:10]]
    encoded = [record.encode_record(make_message(body=b"12,7,", properties=row)) for row in rows]
    positions = np.cumsum([0, *map(len, encoded)])[:-1]
    return record_batch.Records(np.frombuffer(b"".join(encoded), np.uint8), positions)


def _read_timed(content: bytes, directory: Path) -> bool:
    records = _hostile_records(content)
    timed = timer_records.read_timer_records(records, 4 << 20)
    nothing = np.zeros(len(records), np.int64)
    for is_rolled in (nothing.astype(bool), ~nothing.astype(bool)):
        messages, fits = timer_records.due_messages(timed, is_rolled, nothing, _NOW_MS)
        _put(messages.take(fits & timed.is_sound & ~timed.is_deletion))
        timer_records.cancelled_rows(timed.keys, timed.deleted_keys, nothing, is_rolled)
    return bool(timed.is_sound.any())


def _read_delayed(content: bytes, directory: Path) -> bool:
    due = schedule.due_messages(_hostile_records(content))
    _put(due.messages)
    return len(due.rows) > 0


def _read_halves(content: bytes, directory: Path) -> bool:
    records = _hostile_records(content)
    halves = half_queue.halves_of(np.arange(len(records)), records)
    halves.name_codes()
    assert halves.row_count == len(records)
    return bool(halves.keys.null_count < len(records))


def _put(messages: inner_messages.InnerMessages) -> None:
    """What is to be put becomes records, and they say the same."""
    if not messages.row_count:
        return
    try:
        runs = list(inner_messages.outgoing_messages(messages, HOST_V4, _DELAYS_MS, Limits()))
    except MessageIllegalError:
        return
    found = [message for run in runs for message in _messages(record_block.encode_block(run, HOST_V4).data.tobytes())]
    assert [message.topic for message in found] == messages.topics.to_pylist()
    assert [message.raw_properties for message in found] == messages.properties.to_pylist()
    assert [message.body for message in found] == messages.bodies.to_pylist()


def _messages(data: bytes) -> Iterator[record.Message]:
    at = 0
    while at < len(data):
        message = record.decode_record(data, at)
        assert isinstance(message, record.Message)
        yield message
        at += message.size_bytes


def _duty_rows(samples: Samples) -> list[bytes]:
    strings = samples.property_strings
    parked = b"REAL_TOPIC\x01TopicA\x02REAL_QID\x012\x02UNIQ_KEY\x017F0001\x02TIMER_OUT_MS\x011700000001000\x02"
    deleting = parked + b"TIMER_DEL_UNIQKEY\x017F0001\x02TIMER_ROLL_TIMES\x013\x02"
    half = (
        b"REAL_TOPIC\x01TopicA\x02REAL_QID\x010\x02TRANSACTION_CHECK_TIMES\x012\x02CHECK_IMMUNITY_TIME_IN_SECONDS\x0160"
    )
    return [b"\n".join((parked, deleting, half)), parked, half, b"\n".join(strings[:6]), b"\n".join(strings[6:12])]


# Op messages, ledger messages


def _read_ops(content: bytes, directory: Path) -> bool:
    """The queue offsets that an op message names, beside a reading of its own; what is written is read."""
    message = make_message("RMQ_SYS_TRANS_OP_HALF_TOPIC", body=content, properties={"TAGS": "d"})
    records = record_batch.Records(np.frombuffer(record.encode_record(message), np.uint8), np.zeros(1, np.int64))
    ended = outcomes.ended_halves(np.array([7]), records)
    expected = [int(part) for part in content.split(b",") if re.fullmatch(rb"[0-9]{1,18}", part)]
    assert ended.half_offsets.tolist() == expected
    assert ended.op_offsets.tolist() == [7] * len(expected)
    ended.done_before(8, 3)
    bodies = half_messages.op_bodies(ended.half_offsets, 40)
    assert b"".join(bodies) == b"".join(b"%d," % number for number in expected)
    return bool(expected)


def _read_ledger(content: bytes, directory: Path) -> bool:
    """A message of the ledger, to which anybody may send."""
    found = batch_ledger.parse_ledger_body(content, 0, len(content))
    if found is None:
        return False
    outgoing = batch_ledger.outgoing_ledger_message(found, now_ms=_NOW_MS)
    again = batch_ledger.parse_ledger_body(outgoing.bodies[0].as_py(), 0, len(content))
    assert again == found
    return True


def _ledger_bodies(samples: Samples) -> list[bytes]:
    batch = {"sink": "sink", "query": "0b1c", "batch": 7, "rows": 12}
    kinds = {"from": 24, "bytes": 4096, "sum": 4294967295}, {"last": [4096, "7F00"]}, {"last": None}, {"from": 0}
    return [as_json({**batch, **kind}) for kind in kinds]


# Requests


def _read_batch(content: bytes, directory: Path) -> bool:
    with suppress(ValueError):  # by its own sizes, over which Java reads
        assert batch_items.item_ends(content)[-1:] in ([], [len(content)])
    messages = batch_body.decode_batch(content)
    assert batch_body.decode_batch(batch_body.encode_batch(messages)) == messages
    return bool(messages)


def _batches(samples: Samples) -> list[bytes]:
    rows = [batch_body.BatchedMessage(message.body, message.raw_properties) for message in samples.messages[:12]]
    return [batch_body.encode_batch(rows[start : start + 4]) for start in (0, 4, 8)] + [
        batch_body.encode_batch(rows[:1])
    ]


def _read_request(content: bytes, directory: Path) -> bool:
    """A send request made of the input: numbers, topic, properties, body. What passes every rule becomes records."""
    random = Random(content)
    head, _, body = content.partition(b"\n\n")
    numbers: dict[str, Any] = {name: random.choice((0, 0, 0, *EXTREMES)) for name in _NUMBERS}
    request = Send(
        topic=random.choice(("TopicA", "TopicA", "%RETRY%g", head[:20].decode(errors="replace"))),
        body=random.choice((body, body, b"")),
        properties=properties.decode_properties(head),
        born_host=random.choice((None, HOST_V4, bytes(20))),
        is_batch=random.random() < 0.3,
        **numbers,
    ).request
    sent = request.command._replace(ext_fields=write_header(request.header, request.command.code))
    header = read_header(SendMessageRequest, sent)
    rules = PutRules(config=StoreConfig(), host=HOST_V4, now_ms=_NOW_MS)
    topic = topics.check_topic(
        header.topic, send.topic_wish(header), {"TopicA": TopicConfig("TopicA")}, rules.config.send, rules.address
    ).config
    message = put_plan.requested_message(request, 0, send.properties_of(header))
    keys = (f"{number:032X}" for number in count())
    if header.is_batch:
        plan = put_plan.plan_batch(message, topic, rules)
    else:
        plan = put_plan.plan_message(message, topic, rules, lambda: next(keys))
    columns = columns_of(plan.messages)
    assert columns.properties.to_pylist()
    _put(columns)
    if (block := few_block(plan.messages, HOST_V4, Limits())) is not None:
        (run,) = inner_messages.outgoing_messages(columns, HOST_V4, _DELAYS_MS, Limits())
        assert block.data.tobytes() == record_block.encode_block(run, HOST_V4).data.tobytes()
    return True


_NUMBERS = ("queue_id", "flag", "sys_flag", "born_time_ms", "reconsume_times", "default_topic_queue_count")


def _requests(samples: Samples) -> list[bytes]:
    body = _batches(samples)[0]
    heads = [
        b"DELAY\x013\x02",
        b"TIMER_DELIVER_MS\x011700000005000\x02",
        b"TRAN_MSG\x01true\x02PGROUP\x01g\x02",
        b"TAGS\x01a\x02",
    ]
    return [head + string[:200] + b"\n\n" + body for head in heads for string in samples.property_strings[:4]]


# Names


def _read_message_id(content: bytes, directory: Path) -> bool:
    text = content.decode("latin-1")
    assert record.encode_offset_message_id(*record.decode_offset_message_id(text)) == text.upper()
    return True


def _read_name(content: bytes, directory: Path) -> bool:
    """A name that is legal is a directory's, and stays below the one it is made in."""
    name = content.decode(errors="replace")
    legal = [_is_legal(validate, name) for validate in (validate_topic, validate_group, validate_broker_name)]
    legal.append(_is_legal(lambda text: validate_path_element("topic", text), name))
    if any(legal):
        assert "/" not in name
        assert "\0" not in name
        assert name not in ("", ".", "..")
    return any(legal)


def _is_legal(validate: object, name: str) -> bool:
    assert callable(validate)
    try:
        validate(name)
    except NameIllegalError:
        return False
    return True


_REFUSALS = (ValueError, HeaderError, RequestRefusedError, PutRefusedError)
_MEGABYTE = (b"\x01" * 1_000_000, b"\x02" * 1_000_000, b"a\x01b\x02" * 250_000, b"a" * 1_000_000, b"\n" * 1_000_000)


def _read_double(content: bytes, directory: Path) -> bool:
    found = read_double(content.decode("utf-8", "replace"))
    assert found != found or read_double(repr(found).replace("inf", "Infinity")) == found
    return True


DECODERS: Sequence[Decoder] = (
    Decoder(
        "property strings",
        _property_rows,
        _read_properties,
        words=PROPERTY_WORDS,
        inputs=1_000,
        bombs=lambda: _MEGABYTE,
    ),
    Decoder("records of the timer", _duty_rows, _read_timed, words=PROPERTY_WORDS, inputs=200),
    Decoder("delayed records", _duty_rows, _read_delayed, words=PROPERTY_WORDS, inputs=250),
    Decoder("half messages", _duty_rows, _read_halves, words=PROPERTY_WORDS, inputs=250),
    Decoder(
        "op messages",
        lambda samples: [b"0,1,2,17,", b"5,"],
        _read_ops,
        words=(b",", b",,", b"1" * 19, b"\xff"),
        inputs=400,
    ),
    of_json("ledger messages", _ledger_bodies, _read_ledger, inputs=1_500),
    Decoder("client batches", _batches, _read_batch, (ValueError,), inputs=1_500),
    Decoder("send requests", _requests, _read_request, _REFUSALS, words=PROPERTY_WORDS, inputs=500),
    Decoder(
        "message ids", lambda samples: [b"7F00000100002A9F0000000000000400", b"0" * 56], _read_message_id, (ValueError,)
    ),
    Decoder(
        "doubles of SQL92",
        lambda samples: [b"-1.5e3d", b"0x1.8p3", b" NaN\t", b"0X.8P-1f"],
        _read_double,
        (EvaluationError,),
        words=(b"p", b"0x", b"e", b"Infinity", b"9" * 400, b"_", "٣".encode()),
        inputs=400,
    ),
    Decoder("names", lambda samples: [b"TopicA", b"%RETRY%group", b"broker-a.b"], _read_name, words=PROPERTY_WORDS),
)
