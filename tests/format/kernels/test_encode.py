"""Kernels that make records give the bytes of the functions that they stand in for, of whatever rows."""

from __future__ import annotations

import zlib
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.format import keys as keys_module
from storage.format import properties as property_strings
from storage.format import record_parts
from storage.format.java_hash import string_hash, string_hashes
from storage.format.kernels.compiled import ENCODE, sealed, strings_of
from storage.format.keys import NO_KEY, UniqueKeys, message_keys
from storage.format.properties import encode_columns
from storage.format.record_block import OutgoingMessages, RecordBlock, encode_block, encode_parts
from storage.rules.half_messages import TransactionRules
from storage.rules.message_rows import MessageRows, Prepared
from storage.rules.row_rules import MessageRules
from storage.tables.topics import TopicConfig
from tests.support.kernels import ON, both, kernels, need_kernels
from tests.support.message_builder import HOST_V4, HOST_V6

EXAMPLES = 60 if ON == "check" else 20
TOPICS = ("T", "orders", "long" * 31 + "er", "V2" * 70)
assert sorted(map(len, TOPICS))[-2] < 127 < len(TOPICS[-1])


@pytest.fixture(scope="module", autouse=True)
def _kernels() -> None:
    need_kernels()


@st.composite
def arrays(
    draw: st.DrawFn, values: st.SearchStrategy[Any], kinds: tuple[pa.DataType, ...], *, count: int, nulls: bool = False
) -> pa.Array:
    """`count` values as an array of one of the types, whole or cut out of a longer one."""
    before, behind = draw(st.integers(0, 9)), draw(st.integers(0, 2))
    element = st.none() | values if nulls else values
    rows = draw(st.lists(element, min_size=before + count + behind, max_size=before + count + behind))
    raw = [row.encode(errors="surrogatepass") if isinstance(row, str) else row for row in rows]
    kind = draw(st.sampled_from(kinds))
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pa.array(raw, kind)[before : before + count]
    wide = pa.array(raw, pa.large_binary()).view(pa.large_string())  # whether or not it is UTF-8
    return wide[before : before + count]


BYTES = (pa.binary(), pa.large_binary())
TEXTS = (pa.large_string(),)
SIZES = st.integers(0, 3) | st.sampled_from([7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 300])


@st.composite
def blobs(draw: st.DrawFn) -> bytes:
    size = draw(SIZES)
    return draw(st.binary(min_size=size, max_size=size) | st.just(b"\xff" * size) | st.just(bytes(size)))


ASCII = st.text(st.characters(codec="ascii"), max_size=40)
WORDS = st.text(st.characters(codec="utf-8"), max_size=40) | st.text("ab 1\x01\x02", max_size=40)
DIRTY = WORDS | blobs()


@st.composite
def outgoing(draw: st.DrawFn) -> tuple[OutgoingMessages, bytes]:
    """Messages, and the host where they are stored."""
    count = draw(st.integers(0, 12))
    queues = draw(st.lists(st.tuples(st.sampled_from(TOPICS), st.integers(0, 9)), min_size=1, max_size=4, unique=True))

    def numbers(dtype: str) -> np.ndarray:
        limits = np.iinfo(dtype)
        drawn = draw(st.lists(st.integers(int(limits.min), int(limits.max)), min_size=count, max_size=count))
        return np.array(drawn, dtype)

    codes = draw(st.lists(st.integers(0, len(queues) - 1), min_size=count, max_size=count))
    born_host = draw(st.sampled_from([None, HOST_V4, HOST_V6]))
    messages = OutgoingMessages(
        queues=tuple(queues),
        queue_codes=np.array(codes, np.int32),
        bodies=draw(arrays(blobs(), BYTES, count=count)),
        properties=draw(arrays(blobs(), BYTES, count=count)),
        flags=numbers("int32"),
        sys_flags=numbers("int32") & 0xFF,
        born_times_ms=numbers("int64"),
        tags_codes=numbers("int64"),
        key_counts=np.zeros(count, np.int32),
        key_hashes=np.zeros(0, np.int32),
        born_hosts=None if born_host is None else np.frombuffer(born_host * count, f"V{len(born_host)}"),
        reconsume_times=draw(st.sampled_from([0, 3])),
        prepared_transaction_offsets=numbers("int64") if draw(st.booleans()) else 0,
    )
    if draw(st.booleans()):
        messages = messages.with_crc_room()
    return messages, draw(st.sampled_from([HOST_V4, HOST_V6]))


def shown(block: RecordBlock) -> tuple[bytes, dict[str, Any]]:
    return block.data.tobytes(), plain(block.columns._asdict())


def plain(columns: dict[str, Any]) -> dict[str, Any]:
    """Values that can be compared, types of arrays included."""
    return {
        name: (str(value.dtype), value.tolist())
        if isinstance(value, np.ndarray)
        else (str(value.type), value.cast(pa.large_binary()).to_pylist())
        if isinstance(value, pa.Array)
        else value
        for name, value in columns.items()
    }


@pytest.mark.slow
@settings(max_examples=EXAMPLES)
@given(outgoing())
def test_records_are_the_same(case: tuple[OutgoingMessages, bytes]) -> None:
    exact, made = both(lambda: shown(encode_block(*case)))
    assert made == exact


@settings(max_examples=EXAMPLES)
@given(outgoing(), st.sampled_from([1, 150, 200, 400, 1_000, 10_000]))
def test_pieces_are_the_records_in_whole_ones(case: tuple[OutgoingMessages, bytes], piece_bytes: int) -> None:
    columns, parts = encode_parts(*case)
    ends = {0, *np.cumsum(columns.sizes_bytes).tolist()}

    def pieces() -> list[bytes]:
        with mock.patch.object(record_parts, "PIECE_BYTES", piece_bytes):
            return [piece.tobytes() for piece in parts.pieces()]

    whole, at = encode_block(*case).data.tobytes(), 0
    with kernels("off"):
        assert pieces() == ([whole] if whole else [])
    with kernels(ON):
        made = pieces()
    for number, piece in enumerate(made):
        assert whole[at : at + len(piece)] == piece
        assert at + len(piece) in ends
        assert len(piece) <= piece_bytes or len(piece) in columns.sizes_bytes.tolist()
        if number:
            first = int(columns.sizes_bytes[np.searchsorted(np.cumsum(columns.sizes_bytes), at, side="right")])
            assert len(made[number - 1]) + first > piece_bytes, "the record had room in the piece before"
        at += len(piece)
    assert at == len(whole)


@settings(max_examples=EXAMPLES)
@given(st.data())
def test_property_strings_are_the_same(data: st.DataObject) -> None:
    count = data.draw(st.integers(0, 10))
    names = data.draw(
        st.lists(st.sampled_from(["UNIQ_KEY", "TAGS", "KEYS", "Ünï"]), min_size=1, max_size=4, unique=True)
    )
    columns: dict[str, pa.Array | None] = {names[0]: data.draw(arrays(DIRTY, TEXTS, count=count))}
    for name in names[1:]:
        columns[name] = data.draw(st.none() | arrays(DIRTY, TEXTS, count=count, nulls=True))
    maps = data.draw(st.none() | arrays(DIRTY, TEXTS, count=count))
    leading = data.draw(st.dictionaries(st.sampled_from(["A", "MSG_REGION", "ß"]), WORDS, max_size=3))
    exact, made = both(lambda: plain({"": encode_columns(leading, columns, maps)}))
    assert made == exact


@settings(max_examples=EXAMPLES)
@given(st.data())
def test_hashes_of_texts_are_the_same(data: st.DataObject) -> None:
    words = data.draw(st.sampled_from([ASCII, ASCII, WORDS]))  # one text that is not ASCII, and the kernel does none
    texts = data.draw(arrays(words, TEXTS, count=data.draw(st.integers(0, 12)), nulls=True))
    exact, made = both(lambda: plain({"": string_hashes(texts)}))
    assert made == exact


@settings(max_examples=2 * EXAMPLES)
@given(st.data())
def test_keys_are_the_same(data: st.DataObject) -> None:
    """The unique key, then each word once; a word whose hash the row has already counts as there."""
    count = data.draw(st.integers(1, 12))
    words = st.lists(st.sampled_from(["a", "b", "AaAa", "BBBB", "", "key-17", "x" * 40]), max_size=6).map(" ".join)
    foreign, crowded = words.map(lambda text: f"{text} é"), st.just(" ".join(map(str, range(90))))
    kinds = data.draw(st.sampled_from([words, words, words, words | foreign, words | crowded]))
    keys = data.draw(st.none() | arrays(kinds, TEXTS, count=count, nulls=True))
    prefix = string_hash("T#") & 0xFFFFFFFF
    prefixes = np.full(data.draw(st.sampled_from([1, count])), prefix, np.uint32)
    known = [NO_KEY, 0, 5, *(abs(string_hash(f"T#{key}")) for key in ("a", "AaAa", "key-17"))]
    unique = np.array(data.draw(st.lists(st.sampled_from(known), min_size=count, max_size=count)), np.int32)
    exact, made = both(lambda: [plain({"": part}) for part in message_keys(prefixes, unique, keys)])
    assert made == exact


@settings(max_examples=EXAMPLES)
@given(
    st.binary(min_size=10, max_size=10),
    st.integers(0, 50) | st.integers(0, (1 << 48) - 40),
    st.integers(0, 30),
    st.lists(st.integers(0, (1 << 32) - 1), min_size=30, max_size=30),
)
def test_unique_keys_are_the_same(prefix: bytes, first: int, count: int, before: list[int]) -> None:
    def made() -> list[Any]:
        keys = UniqueKeys(prefix, first, count)
        hashes = [keys.hashes_behind(np.array(before[:end], np.uint32)) for end in (1, count)]
        return [plain({"": part}) for part in (keys.texts(), keys.marked("m-"), *hashes)]

    exact, by_kernels = both(made)
    assert by_kernels == exact


@st.composite
def batches(draw: st.DrawFn) -> pa.RecordBatch:
    """Rows of all sorts, as a table may hold them."""
    count = draw(st.integers(1, 10))
    texts = (*BYTES, pa.large_string())
    plain_words = st.sampled_from(["k1", "k2", "k3", "k1"])
    words = st.lists(plain_words | draw(st.sampled_from([plain_words, st.just("é")])), max_size=4).map(" ".join)
    dirty = DIRTY if draw(st.booleans()) else ASCII
    columns = {"body": draw(arrays(blobs(), BYTES, count=count, nulls=True))}
    for name, values in {
        "topic": st.sampled_from(["T", "U", "absent/"]),
        "tags": st.sampled_from(["tag", "t" * 70, "", "tag"])
        | draw(st.sampled_from([ASCII, st.sampled_from(["ü", "a\x7f", b"\xff"])])),
        "keys": words | dirty,
        "sharding_key": dirty,
        "unique_key": st.sampled_from(["0" * 32, "own", "é"]),
    }.items():
        if draw(st.booleans()):
            columns[name] = draw(arrays(values, texts, count=count, nulls=True))
    if draw(st.booleans()):
        columns["queue_id"] = pa.array(
            draw(st.lists(st.none() | st.integers(-1, 5), min_size=count, max_size=count)), pa.int32()
        )
    if draw(st.booleans()):
        levels = draw(st.lists(st.none() | st.integers(0, 3), min_size=count, max_size=count))
        columns["delay_level"] = pa.array(levels, pa.int32())
    if draw(st.booleans()):
        maps = st.lists(st.tuples(st.sampled_from(["a", "b", "TAGS", "ö"]), st.none() | WORDS), max_size=3)
        rows = draw(st.lists(st.none() | maps, min_size=count, max_size=count))
        columns["properties"] = pa.array(rows, pa.map_(pa.string(), pa.string()))
    return pa.RecordBatch.from_pydict(columns)


@settings(max_examples=2 * EXAMPLES)
@given(st.lists(batches(), min_size=1, max_size=2), st.booleans(), st.booleans())
def test_rows_become_the_same_records(rows: list[pa.RecordBatch], keep: bool, are_transactions: bool) -> None:
    def made() -> list[Any]:
        topics = {name: TopicConfig(name, 4, 4) for name in ("T", "U")}
        transaction = TransactionRules("group") if are_transactions else None
        rules = MessageRules(topic="T", topics=topics, keep_unique_key=keep, transaction=transaction)
        messages = MessageRows(rules, bytes(range(10)))
        return [of_prepared(messages.prepare(batch, 77)) for batch in rows]

    def of_prepared(prepared: Prepared) -> list[Any]:
        parts = [prepared.messages, *(() if prepared.commits is None else (prepared.commits.messages,))]
        blocks = [shown(encode_block(part, HOST_V4)) for part in parts]
        return [blocks, prepared.rejected, prepared.destinations, prepared.topics]

    exact, by_kernels = both(made)
    assert by_kernels == exact


def test_ordinary_rows_take_the_kernels() -> None:
    """Else all of the above would compare the exact path with itself."""
    texts = pa.array(["order-1", "order-2 k"], pa.large_string())
    with kernels(ON):
        module = ENCODE.for_rows()
        assert module is not None
        with (
            mock.patch.object(record_parts, "joined", side_effect=AssertionError),
            mock.patch.object(property_strings.pc, "binary_join_element_wise", side_effect=AssertionError),
            mock.patch.object(keys_module, "_single_keys", side_effect=AssertionError),
        ):
            properties = encode_columns({"A": "b"}, {"UNIQ_KEY": texts, "KEYS": texts}, None)
            counts, hashes = message_keys(np.array([1], np.uint32), np.array([5, 5], np.int32), texts)
            number = np.zeros(2, np.int32)
            messages = OutgoingMessages(
                (("T", 0),),
                number,
                pa.array([b"x", b"y" * 99]),
                properties,
                number,
                number,
                number,
                number,
                counts,
                hashes,
            )
            assert len(encode_block(messages, HOST_V4).data) == 2 * (88 + 2 + 2) + 100 + sum(
                map(len, properties.to_pylist())
            )


def test_every_processor_that_multiplies_without_carry_makes_zlib_s_sum() -> None:
    """At each size around a block's, and at each place of a word."""
    with kernels(ON):
        module = ENCODE.for_rows()
    assert module is not None
    if not module.HAS_CRC:
        pytest.skip("this processor has no carry-less multiplication; isal makes the sums")
    source = np.random.default_rng(7).integers(0, 256, 1_000, np.uint8)
    for size in (*range(150), 191, 192, 193, 255, 256, 257, 900):
        for start in range(9):
            body = pa.array([source[start : start + size].tobytes()], pa.large_binary())
            out = np.empty(8 + size + 12, np.uint8)
            bodies, _ = strings_of(module, body)
            nothing, _ = strings_of(module, pa.array([b""], pa.large_binary()))
            header = sealed(np.zeros(12, np.uint8))
            last, written = module.join_records(out, 0, header, bodies, nothing, sealed(np.zeros(1, np.int32)), nothing)
            assert (last, written) == (1, 12 + size + 2)
            assert int.from_bytes(out[8:12].tobytes(), "big") == zlib.crc32(body[0].as_py()) & 0x7FFFFFFF
