"""Compressed bodies: those that the Java client compressed, and bytes that are none."""

from __future__ import annotations

import hashlib
import tracemalloc
import zlib
from collections.abc import Callable
from contextlib import suppress
from random import Random

import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import CorruptRecordError
from storage.format.record import PLAIN_BODY_LIMIT_BYTES, Message, compress, decode_record, decompress
from tests.support.fixture_stores import Fixture, golden_lines

COMPRESSORS: dict[int, Callable[[bytes], bytes]] = {
    0x000: zlib.compress,
    0x100: lz4.frame.compress,
    0x200: zstandard.ZstdCompressor().compress,
    0x300: zlib.compress,
}


def test_bodies_of_the_java_client_come_out_as_they_were_sent(pristine_store: Callable[[str], Fixture]) -> None:
    fixture = pristine_store("clean")
    logs = {int(file.name): file.read_bytes() for file in (fixture.root / "commitlog").iterdir()}
    kinds = set()
    for line in golden_lines(fixture.golden, "message"):
        if "compressType" in line:
            start = max(start for start in logs if start <= line["physicalOffset"])
            message = decode_record(logs[start], line["physicalOffset"] - start)
            assert isinstance(message, Message)
            plain = decompress(message.body, message.sys_flag)
            assert (len(plain), hashlib.sha256(plain).hexdigest()) == (line["plainBodyLen"], line["plainBodySha256"])
            kinds.add(line["compressType"])
    assert kinds == {"ZLIB", "LZ4", "ZSTD"}


@pytest.mark.parametrize("kind", COMPRESSORS)
@given(st.binary(max_size=300))
def test_every_type_comes_out_again(kind: int, plain: bytes) -> None:
    assert decompress(COMPRESSORS[kind](plain), kind | 1) == plain


@pytest.mark.parametrize("kind", COMPRESSORS)
def test_a_body_cut_anywhere_is_corrupt(kind: int) -> None:
    body = COMPRESSORS[kind](bytes(range(256)) * 2)
    for length in range(len(body)):
        with pytest.raises(CorruptRecordError):
            decompress(body[:length], kind | 1)


@pytest.mark.parametrize("kind", COMPRESSORS)
@given(st.binary(max_size=60))
def test_other_bytes_are_corrupt_or_happen_to_be_of_the_type(kind: int, body: bytes) -> None:
    with suppress(CorruptRecordError):
        assert isinstance(decompress(body, kind | 1), bytes)


@pytest.mark.parametrize("kind", [0x400, 0x500, 0x600, 0x700])
def test_an_unknown_type_is_corrupt(kind: int) -> None:
    with pytest.raises(CorruptRecordError):
        decompress(b"body", kind | 1)


@pytest.mark.parametrize("kind", COMPRESSORS)
def test_a_body_that_grows_beyond_the_limit_is_corrupt_before_it_has_grown(kind: int) -> None:
    bomb = COMPRESSORS[kind](bytes(4 * PLAIN_BODY_LIMIT_BYTES))
    assert len(bomb) < 4 << 20, "a broker takes it"
    tracemalloc.start()
    try:
        with pytest.raises(CorruptRecordError, match="at most 67108864 bytes"):
            decompress(bomb, kind | 1)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 * PLAIN_BODY_LIMIT_BYTES


@pytest.mark.parametrize("kind", COMPRESSORS)
def test_a_body_of_many_steps_comes_out_whole_and_what_stands_behind_it_is_passed_over(kind: int) -> None:
    plain = Random(5).randbytes(40_000)
    assert decompress(COMPRESSORS[kind](plain) + b"behind", kind | 1) == plain


@pytest.mark.parametrize("compression", [0x100, 0x200, 0x300])
def test_what_a_client_compresses_is_read_again(compression: int) -> None:
    body = b"a body that is long enough " * 200
    compressed = compress(body, compression)
    assert len(compressed) < len(body)
    assert decompress(compressed, 1 | compression) == body


def test_there_are_three_ways_to_compress() -> None:
    with pytest.raises(ValueError, match="0x400 is no compression type"):
        compress(b"body", 0x400)
