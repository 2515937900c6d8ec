"""Kernels that decode records, held against the exact path: the same arrays, or none."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from storage.format.record import BORN_HOST_V6, COMPRESSED, MAGIC_V1, MAGIC_V2, STORE_HOST_V6, encode_record
from storage.format.window_decoder import MOST_BYTES, Wanted
from tests.support.decoded_rows import EVERYTHING, NAMES, Window, assert_as_exact, decode, is_regular
from tests.support.kernels import loaded
from tests.support.message_builder import make_message
from tests.support.places import PROJECT

pytestmark = pytest.mark.slow  # they are compiled first, where they are not in the user's cache

HOSTS = bytes(range(1, 5)), b"\xff\0\0\xff", b"\x7f\0\0\1"
PORTS = b"\0\0\x2a\x9f", b"\xff\xff\xff\xff"

names = st.sampled_from([*sorted(NAMES), "WAIT", "b", "x" * 15, "x" * 16, "x" * 17, "y" * 17, "\0", "😀"])
values = st.one_of(
    st.sampled_from(["v", "true", "order-1", "é", "\0\0", "w" * 16, "w" * 33]), st.text(min_size=1, max_size=40)
)
clean_values = values.map(lambda text: text.replace("\1", "-").replace("\2", "-"))
regular = st.lists(st.tuples(names, clean_values), max_size=9).map(
    lambda pairs: "".join(f"{name}\1{value}\2" for name, value in pairs).encode(errors="replace")
)
open_ended = regular.map(lambda raw: raw.removesuffix(b"\2"))
many = st.integers(60, 70).map(lambda count: b"".join(b"%d\1v\2" % number for number in range(count)))
pieces = st.sampled_from(
    [
        b"\1",
        b"\2",
        b"\0",
        b"a",
        b"TAGS",
        b"true",
        b"\xc3\xa9",
        b"\xc3",
        b"\xed\xa0\x80",
        b"\xf0\x9f\x98\x80",
        b"\xf4\x90\x80\x80",
    ]
)
irregular = st.lists(pieces, max_size=12).map(b"".join)
property_strings = st.one_of(regular, regular, regular, open_ended, many, irregular, st.binary(max_size=90))
bodies = st.one_of(st.binary(max_size=20), st.integers(0, 300).map(lambda size: b"b" * size))


@st.composite
def records(
    draw: st.DrawFn, properties: st.SearchStrategy[bytes] = property_strings, flags: tuple[int, ...] = (0,)
) -> bytes:
    message = make_message(
        draw(st.sampled_from(["TopicA"] * 9 + ["TopicB", "", "T" * 127])),
        draw(st.sampled_from([0] * 9 + [1])),
        draw(st.integers(0, 2**63 - 1)),
        draw(st.integers(0, 2**62)),
        body=draw(bodies),
        properties=draw(properties),
        store_time_ms=draw(st.integers(-(2**40), 2**40)),
        sys_flag=draw(st.sampled_from(flags)),
        magic=draw(st.sampled_from([MAGIC_V1, MAGIC_V2])),
    )
    message = replace(
        message,
        reconsume_times=draw(st.integers(-(2**31), 2**31 - 1)),
        flag=draw(st.integers(-(2**31), 2**31 - 1)),
        prepared_transaction_offset=draw(st.integers(-(2**63), 2**63 - 1)),
    )
    if len(message.store_host) == 8:
        message = replace(message, store_host=draw(st.sampled_from(HOSTS)) + draw(st.sampled_from(PORTS)))
    return encode_record(message)


def laid_out(rows: list[bytes], gaps: list[bytes]) -> Window:
    """Records with something between them, and entries that tell the truth about them."""
    content, positions = b"", []
    for number, row in enumerate(rows):
        content += gaps[number % len(gaps)] if gaps else b""
        positions.append(len(content))
        content += row
    places = [int.from_bytes(row[28:36], "big", signed=True) for row in rows]
    return Window(content, positions, places, [len(row) for row in rows])


sound = st.builds(
    laid_out,
    st.lists(records(st.one_of(regular, open_ended)), max_size=12),
    st.lists(st.binary(max_size=9), max_size=2),
)
some_irregular = st.builds(
    laid_out,
    st.lists(records(flags=(0, 0, 0, COMPRESSED, BORN_HOST_V6, STORE_HOST_V6)), max_size=6),
    st.lists(st.binary(max_size=9), max_size=2),
)
projections = st.one_of(
    st.just(EVERYTHING),
    st.builds(
        Wanted,
        fields=st.frozensets(st.sampled_from(sorted(EVERYTHING.fields))),
        bodies=st.booleans(),
        properties=st.frozensets(st.sampled_from(sorted(NAMES))),
        all_properties=st.booleans(),
        message_ids=st.booleans(),
    ),
)
bounds = st.lists(st.integers(1, 12), max_size=4)


@pytest.fixture(scope="module")
def kernels() -> ModuleType:
    return loaded()


def check(kernels: ModuleType, window: Window, wanted: Wanted, ends: list[int]) -> None:
    assert_as_exact(window, wanted, decode(kernels, window, wanted, ends))


@given(window=sound, wanted=projections, ends=bounds)
@settings(max_examples=150)
def test_sound_records_in_windows_of_any_size(
    kernels: ModuleType, window: Window, wanted: Wanted, ends: list[int]
) -> None:
    check(kernels, window, wanted, ends)


@given(window=some_irregular, wanted=projections, ends=bounds)
@settings(max_examples=150)
def test_regular_records_are_decoded_and_others_left(
    kernels: ModuleType, window: Window, wanted: Wanted, ends: list[int]
) -> None:
    check(kernels, window, wanted, ends)


@given(raw=property_strings)
@settings(max_examples=250)
@example(raw=b"a\1b\2" * 64)
@example(raw=b"a\1b\2" * 65)
@example(raw=(b"a\1b\2" * 65)[:-1])
@example(raw=b"a\1b\2a\1c\2TAGS\1x\2a\1d")
@example(raw=b"a\1b\2\0\0")
@example(raw=b"a\1")
@example(raw=b"a\1\2")
@example(raw=b"\1\2")
@example(raw=b"\2")
@example(raw=b"a\1b\1c\2")
@example(raw=b"a\2b\1")
@example(raw=b"x" * 16 + b"\1v\2" + b"x" * 17 + b"\1v\2")
@example(raw=b"a\1" + b"v" * 32_000 + b"\2")
@example(raw=b"n" * 32_000 + b"\1v\2")
def test_one_property_string_before_and_behind_others(kernels: ModuleType, raw: bytes) -> None:
    def row(properties: bytes) -> bytes:
        return encode_record(make_message(properties=properties))

    usual = row(b"WAIT\1true\2TAGS\1t\2KEYS\1k\2")
    for rows in ([row(raw)], [usual, row(raw)], [row(raw), usual], [row(raw), row(raw)]):
        check(kernels, laid_out(rows, []), EVERYTHING, [])


@given(window=sound.filter(lambda window: bool(window.positions)), data=st.data())
@settings(max_examples=250)
def test_damaged_bytes_and_entries(kernels: ModuleType, window: Window, data: st.DataObject) -> None:
    content = bytearray(window.content)
    for _ in range(data.draw(st.integers(0, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    row = data.draw(st.integers(0, len(window.positions) - 1))
    columns = {name: list(getattr(window, name)) for name in ("positions", "places", "sizes")}
    wrong = data.draw(st.sampled_from([None, None, "positions", "places", "sizes"]))
    if wrong is not None:
        columns[wrong][row] = max(0, columns[wrong][row] + data.draw(st.sampled_from([-100, -1, 1, 2, 100])))
    cut = data.draw(st.sampled_from([0, 0, 0, 1, 2, 63, 64, 65]))
    damaged = Window(bytes(content[: len(content) - cut]), **columns)
    found = decode(kernels, damaged, EVERYTHING)
    if damaged.is_for_the_exact_path:
        assert_as_exact(damaged, EVERYTHING, found)
    else:
        assert found is None


@given(
    content=st.binary(max_size=400),
    rows=st.lists(st.tuples(st.integers(-9, 420), st.integers(0, 400), st.integers(-1, 1)), max_size=5),
)
@settings(max_examples=150)
def test_random_bytes_are_no_records(kernels: ModuleType, content: bytes, rows: list[tuple[int, int, int]]) -> None:
    positions, sizes, places = (list(column) for column in zip(*rows, strict=True)) if rows else ([], [], [])
    assert (decode(kernels, Window(content, positions, places, sizes), EVERYTHING) is None) == bool(rows)


def test_a_window_cut_at_every_length(kernels: ModuleType) -> None:
    whole = laid_out([encode_record(make_message(properties=b"TAGS\1a\2" * count)) for count in (0, 1, 12)], [])
    for length in range(len(whole.content)):
        assert decode(kernels, replace(whole, content=whole.content[:length]), EVERYTHING) is None
    check(kernels, whole, EVERYTHING, [])


@pytest.mark.parametrize("magic", [MAGIC_V1, MAGIC_V2])
@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 127, 128, 200, 255])
def test_topics_of_any_length(kernels: ModuleType, magic: int, size: int) -> None:
    topic = ("T" * size)[:size]
    row = encode_record(make_message(topic, magic=magic, properties={"TAGS": "a"}))
    window = replace(laid_out([row], []), topic=topic.encode())
    check(kernels, window, EVERYTHING, [])
    assert is_regular(window) == (size < 128 or magic == MAGIC_V2), "a byte of length is signed"
    for other in (topic.encode() + b"x", topic.encode()[:-1], b"X" + topic.encode()[1:]):
        check(kernels, replace(window, topic=other), EVERYTHING, [])


def test_places_are_not_asked_where_nobody_claims_them(kernels: ModuleType) -> None:
    rows = [encode_record(make_message(commitlog_offset=place)) for place in (5, 700)]
    window = replace(laid_out(rows, []), places=[])
    assert decode(kernels, window, EVERYTHING) is not None
    assert decode(kernels, replace(window, places=[5, 701]), EVERYTHING) is None


def test_rows_that_are_not_given_are_not_decoded(kernels: ModuleType) -> None:
    window = laid_out([encode_record(make_message())] * 3, [])
    positions = np.array(window.positions, np.int64)
    buffer = np.frombuffer(window.content, np.uint8)
    from storage.format.arrays import Memory
    from storage.format.window_decoder import Claims, Decoding

    for parts in ([slice(0, 2)], [slice(1, 3)], [slice(0, 1), slice(2, 3)], []):
        decoding = Decoding(kernels, Claims(window.topic, 0), EVERYTHING, Memory())
        decoder = decoding.decoder(np.array(window.places), np.array(window.sizes))
        assert decoder is not None
        for part in parts:
            decoder.add(buffer, positions, part)
        assert decoder.finish() is None


def test_what_says_to_be_huge_is_left_to_the_exact_path(kernels: ModuleType) -> None:
    window = laid_out([encode_record(make_message())], [])
    assert decode(kernels, replace(window, sizes=[MOST_BYTES + 1]), EVERYTHING) is None


def test_memory_that_is_used_again_changes_no_batch_before(kernels: ModuleType) -> None:
    from storage.format.arrays import Memory

    memory = Memory()
    first = laid_out([encode_record(make_message(body=b"1", properties={"TAGS": "first", "a": "1"}))] * 5, [])
    second = laid_out([encode_record(make_message(body=b"2", properties={"TAGS": "other", "b": "2"}))] * 9, [])
    decoded = decode(kernels, first, EVERYTHING, memory=memory)
    decode(kernels, second, EVERYTHING, memory=memory)
    assert_as_exact(first, EVERYTHING, decoded)


def test_no_rows_are_no_rows(kernels: ModuleType) -> None:
    check(kernels, Window(bytes(100), [], [], []), EVERYTHING, [])


def test_every_access_lies_in_its_array() -> None:
    """This file again, in a process whose kernels hold every access against its bounds."""
    if os.environ.get("SPARK_MQ_KERNELS") == "check":
        pytest.skip("this is that process")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", __file__]
    environment = os.environ | {"SPARK_MQ_KERNELS": "check", "PYTHONFAULTHANDLER": "1"}
    ran = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-4000:]
