"""A slice of the fuzzing with fixed seeds, and faults that it must notice. A whole round: `python -m tests.torture fuzz --seed N`."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import pytest

from spark_mq.broker.client_tables import QueueLocks
from spark_mq.remoting import messages as batch_body
from storage.format import fastjson, record, record_batch
from storage.format.record import Message
from tests.support.shares import one_in
from tests.torture import fuzz
from tests.torture.decoders import Decoder
from tests.torture.mutations import Mutator, smallest

BY_NAME = {decoder.name: decoder for decoder in fuzz.DECODERS}
FEW = one_in(3, [(name, 0.02) for name in BY_NAME])
MANY = one_in(3, [(name, 0.1) for name in BY_NAME], others=pytest.mark.long)


@pytest.mark.parametrize(
    ("name", "share"),
    [*FEW, *(pytest.param(*each, marks=pytest.mark.slow) if type(each) is tuple else each for each in MANY)],
)
def test_a_decoder_gives_a_value_or_a_declared_error(name: str, share: float, tmp_path: Path) -> None:
    seed = 20_261_121
    print(f"seed {seed}")
    outcome = fuzz.play(Random(seed), tmp_path, share=share, decoders=[BY_NAME[name]])
    assert outcome.failures == []
    assert outcome.trials >= share * BY_NAME[name].inputs


def _noticed(name: str, tmp_path: Path) -> str:
    return "\n".join(fuzz.play(Random(1), tmp_path, share=0.2, decoders=[BY_NAME[name]]).failures)


@pytest.mark.slow
def test_a_decoder_that_lets_struct_error_out_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(body: bytes) -> list[batch_body.BatchedMessage]:
        messages, position = [], 0
        while position < len(body):
            (size,) = struct.unpack_from(">16xi", body, position)
            messages.append(batch_body.BatchedMessage(body[position + 20 : position + 20 + size], b""))
            position += 22 + max(size, 0)
        return messages

    monkeypatch.setattr(batch_body, "decode_batch", careless)
    assert "client batches let error out" in _noticed("client batches", tmp_path)


@pytest.mark.slow
def test_a_decoder_that_lets_index_error_out_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sound = record.decode_record

    def careless(buffer: bytes | memoryview, position: int = 0, *, check_crc: bool = True) -> object:
        outcome = sound(buffer, position, check_crc=check_crc)
        return outcome if not isinstance(outcome, Message) or outcome.body[0] >= 0 else None

    monkeypatch.setattr(record, "decode_record", careless)
    assert "let IndexError out" in _noticed("one record and many", tmp_path)


@pytest.mark.slow
def test_two_decoders_that_differ_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = vars(record_batch.Records)["is_whole"]

    def lenient(records: record_batch.Records) -> np.ndarray:
        return np.asarray(whole.__get__(records) | (records.column("size_bytes") > 300))

    monkeypatch.setattr(record_batch.Records, "is_whole", property(lenient))
    assert "one decoder sees a record, the other none" in _noticed("one record and many", tmp_path)


def test_brackets_without_end_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fastjson, "_LEVELS", 1 << 30)
    assert "let RecursionError out" in _noticed("delayOffset.json", tmp_path)


def _reading(read: Callable[[bytes], object]) -> Decoder:
    return Decoder(
        "a decoder", lambda samples: [b"sample"], lambda content, directory: bool(read(content)) or True, inputs=50
    )


@pytest.mark.slow
def test_an_input_that_takes_memory_is_noticed(tmp_path: Path) -> None:
    outcome = fuzz.play(
        Random(1), tmp_path, share=1, decoders=[_reading(lambda content: content == b"sample" and b"\1" * (200 << 20))]
    )
    assert "grew by" in outcome.failures[0]


@pytest.mark.slow
def test_an_input_that_takes_for_ever_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(content: bytes) -> None:
        while content == b"sample":
            pass

    monkeypatch.setattr(fuzz, "_HANG_CPU_SECONDS", 0.1)
    outcome = fuzz.play(Random(1), tmp_path, share=1, decoders=[_reading(endless)])
    assert "processor time" in outcome.failures[0]


def test_inputs_follow_from_the_seed_and_keep_to_the_size() -> None:
    samples = [bytes(range(200)), b"{}"]
    first, second = (Mutator(Random(7), samples, (b"word",), max_bytes=300) for _ in range(2))
    inputs = [first.next() for _ in range(500)]
    assert inputs == [second.next() for _ in range(500)]
    assert len(set(inputs)) > 400
    assert max(map(len, inputs)) == 300
    assert sorted(map(len, Mutator(Random(7), [b"abc"], max_bytes=9).cuts(10))) == [0, 1, 2]


def test_the_smallest_input_that_fails_is_found() -> None:
    content = bytes(100) + b"bad" + bytes(1_000)
    assert smallest(content, lambda other: b"bad" in other) == b"bad"


@pytest.mark.slow
def test_a_broker_that_fails_over_a_request_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its client is answered SYSTEM_ERROR, as Java's would be."""

    def careless(locks: QueueLocks, group: str, *_: object) -> None:
        raise KeyError(group)

    monkeypatch.setattr(QueueLocks, "lock", careless)
    assert "requests to a broker let KeyError out" in _noticed("requests to a broker", tmp_path)
