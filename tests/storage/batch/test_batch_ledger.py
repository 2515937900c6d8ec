"""The ledger says which batches the log holds, also if others write to its topic and most of it has expired."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from storage import MessageStore, StoreConfig, open_store
from storage.batch import ledger as batch_ledger
from storage.batch.ledger import (
    BEGIN,
    END,
    MARK,
    QUEUE_ID,
    SLICE,
    TOPIC,
    UNMARKED,
    Batch,
    BatchLedger,
    LedgerMessage,
    LedgerStatement,
    outgoing_ledger_message,
    own_record,
    parse_ledger_body,
)
from storage.format.record_batch import Records
from storage.format.record_block import OutgoingMessages, encode_block
from tests.support.fixture_stores import unpack_left

TINY = StoreConfig.tiny()
NOW_MS = 1_700_000_000_000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    with open_store(tmp_path / "store", config=TINY, read_only=False, create=True) as opened:
        yield opened


def append(store: MessageStore, message: OutgoingMessages) -> int:
    """Where its record begins."""
    (placement,) = store.writer.append([encode_block(message, store.writer.settings.host)])
    return int(placement.commitlog_offsets[0])


def begin(store: MessageStore, batch: Batch, rows: int, first_row: int = 0) -> int:
    return append(
        store, outgoing_ledger_message(LedgerStatement(BEGIN, batch, rows, first_row=first_row), now_ms=NOW_MS)
    )


def end(store: MessageStore, batch: Batch, rows: int, last: tuple[int, str] | None) -> int:
    return append(store, outgoing_ledger_message(LedgerStatement(END, batch, rows, last=last), now_ms=NOW_MS))


def row(store: MessageStore) -> tuple[int, str]:
    """A message of some batch: its place and unique key."""
    result = store.put("T", b"row", queue_id=0)
    return result.commitlog_offset, result.unique_key


def commit(store: MessageStore, sink: str, query: str, number: int) -> None:
    batch = Batch(sink, query, number)
    begin(store, batch, 1)
    end(store, batch, 1, row(store))


def ledger(store: MessageStore, unmarked_end: int = 0) -> BatchLedger:
    last = store.writer.ends.queue_ends.get((TOPIC, QUEUE_ID), 0)
    queue = store.queues.get(TOPIC, QUEUE_ID)
    return BatchLedger(store.log, queue, last, store.log_end, unmarked_end=unmarked_end)


def write_claim(store: MessageStore, document: Any, *, tags: str = END, keys: str = "s q") -> None:
    """What a stranger sends to the topic."""
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    message = outgoing_ledger_message(LedgerStatement(END, Batch("s", "q", 0), 0), now_ms=NOW_MS)
    properties = f"TAGS\x01{tags}\x02KEYS\x01{keys}\x02".encode()
    binary = pa.binary()
    append(store, message._replace(bodies=pa.array([body], binary), properties=pa.array([properties], binary)))


def test_a_store_without_ledger_holds_no_batch(store: MessageStore) -> None:
    assert ledger(store).newest_ends() == {}
    assert list(ledger(store).messages_from(0)) == []


def test_what_is_written_is_read_with_its_places(store: MessageStore) -> None:
    batch = Batch("Sänke 1", "q-ü", 7)
    first = begin(store, batch, 3, first_row=1)
    place, key = row(store)
    last = end(store, batch, 3, (place, key))
    read = list(ledger(store).messages_from(0))
    assert read == [
        LedgerMessage(BEGIN, batch, 3, 1, commitlog_offset=first, end=place),
        LedgerMessage(END, batch, 3, last=(place, key), commitlog_offset=last, end=store.log_end),
    ]
    assert list(ledger(store).messages_from(first + 1)) == read[1:]
    assert list(ledger(store).messages_from(store.log_end)) == []


def test_ledger_messages_are_ordinary_messages(store: MessageStore) -> None:
    commit(store, "sink", "query", 0)
    begun, ended = store.get(TOPIC, QUEUE_ID, 0).messages
    assert (begun.tags, ended.tags) == ("BEGIN", "END")
    assert begun.keys == ended.keys == ["sink", "query"]
    assert len(store.query(TOPIC, "sink")) == len(store.query(TOPIC, "query")) == 2
    assert len(store.get(TOPIC, QUEUE_ID, 0, tags="END").messages) == 1
    commit(store, "same", "same", 0)
    assert store.get(TOPIC, QUEUE_ID, 3).messages[0].keys == ["same"], "the default sink id is the query's"
    assert len(store.query(TOPIC, "same")) == 2


def test_the_newest_end_of_every_sink_and_query_counts(store: MessageStore) -> None:
    for sink, query, number in [
        ("a", "q1", 0),
        ("b", "q2", 4),
        ("a", "q1", 1),
        ("c", "q1", 0),
        ("a", "q3", 0),
        ("b", "q2", 5),
    ]:
        commit(store, sink, query, number)
    found = ledger(store).newest_ends()
    assert found == {"a": {"q1": 1, "q3": 0}, "b": {"q2": 5}, "c": {"q1": 0}}
    assert next(iter(found["a"])) == "q3", "the query that wrote last comes first"


@pytest.mark.parametrize("slice_entries", [1, 2, 3, 7])
def test_a_long_ledger_is_read_in_slices(
    slice_entries: int, store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_ledger, "_SLICE_ENTRIES", slice_entries)
    for number in range(8):
        commit(store, "a", "q", number)
        if number % 3 == 0:
            commit(store, "b", f"q{number}", number)
    found = ledger(store).newest_ends()
    assert found == {"a": {"q": 7}, "b": {"q6": 6, "q3": 3, "q0": 0}}
    assert list(found["b"]) == ["q6", "q3", "q0"]
    assert len(list(ledger(store).messages_from(0))) == 2 * 11


def test_a_batch_without_end_is_not_held(store: MessageStore) -> None:
    commit(store, "a", "q", 0)
    begin(store, Batch("a", "q", 1), 1)
    row(store)
    assert ledger(store).newest_ends() == {"a": {"q": 0}}


def test_an_end_without_rows_proves_nothing(store: MessageStore) -> None:
    end(store, Batch("a", "q", 3), 0, None)
    end(store, Batch("b", "q", 3), 1, None)
    assert ledger(store).newest_ends() == {}


def test_an_end_counts_only_if_its_last_row_stands_where_it_says(store: MessageStore) -> None:
    place, key = row(store)
    claims = [(place, "0" * 32), (place + 1, key), (store.log_end + 10**6, key), (place, "")]
    for number, claim in enumerate(claims):
        end(store, Batch("a", "q", 10 + number), 1, claim)
    end(store, Batch("a", "q", 20), 1, (store.log_end, key))  # itself
    assert ledger(store).newest_ends() == {}
    end(store, Batch("a", "q", 1), 1, (place, key))
    end(store, Batch("a", "q", 30), 1, (place, "0" * 32))
    assert ledger(store).newest_ends() == {"a": {"q": 1}}, "the newest one that is true"


def test_a_true_end_behind_which_a_lie_of_an_older_batch_stands_is_found(store: MessageStore) -> None:
    commit(store, "a", "q", 5)
    end(store, Batch("a", "q", 2), 1, (17, "nobody"))
    assert ledger(store).newest_ends() == {"a": {"q": 5}}


CLAIMS = [
    b"",
    b"\xff\xfe",
    b"no json",
    b"[" * 3_000,
    b'{"sink": "\\ud800", "query": "q", "batch": 1, "rows": 0, "last": null}',
    [],
    17,
    None,
    {},
    {"sink": "s", "query": "q", "batch": 1},
    {"sink": "s", "query": "q", "batch": "x", "rows": 0, "last": None},
    {"sink": "s", "query": "q", "batch": 1, "rows": 1, "last": 5},
    {"sink": "s", "query": "q", "batch": 1, "rows": 1, "last": []},
    {"sink": "s", "query": "q", "batch": 1, "rows": 1, "last": ["x", "y"]},
    {"sink": "s", "query": "q", "batch": 1, "rows": 1, "last": [-1, "y"]},
    {"sink": "s", "query": "q", "batch": 1, "rows": 1, "last": [10**30, "y"]},
    {"sink": "s", "query": "q", "batch": None, "rows": 0, "last": None},
    {"sink": "s", "query": "q", "batch": 1e400, "rows": 0, "last": None},
]


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: str(claim)[:100])
def test_what_strangers_send_to_the_topic_is_passed_over(claim: Any, store: MessageStore) -> None:
    commit(store, "s", "q", 0)
    write_claim(store, claim)
    write_claim(store, claim, tags=BEGIN)
    assert ledger(store).newest_ends() == {"s": {"q": 0}}
    assert [message.batch.batch_id for message in ledger(store).messages_from(0)][:2] == [0, 0]


def test_an_end_without_keys_is_nobodys(store: MessageStore) -> None:
    commit(store, "s", "q", 0)
    write_claim(store, {"sink": "s", "query": "q", "batch": 9, "rows": 0, "last": None}, keys="")
    assert ledger(store).newest_ends() == {"s": {"q": 0}}


def test_an_end_whose_rows_have_expired_counts(tmp_path: Path) -> None:
    """Retention deletes the log's oldest files; what a ledger that outlives its rows says cannot be looked up any more."""
    root = tmp_path / "store"
    with open_store(root, config=TINY, read_only=False, create=True) as store:
        batch = Batch("a", "q", 9)
        begin(store, batch, 1)
        last = row(store)
        for _ in range(30):
            store.put("T", bytes(100), queue_id=0)
        assert store.log_end > 4_096
        end(store, batch, 1, last)
    (root / "commitlog" / f"{0:020d}").unlink()
    with open_store(root, config=TINY, read_only=False) as store:
        assert store.log.minimum == 4_096 > last[0]
        assert ledger(store).newest_ends() == {"a": {"q": 9}}
        assert [message.kind for message in ledger(store).messages_from(0)] == [END]


def test_a_cut_of_the_log_takes_the_end_with_the_rows(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with open_store(root, config=TINY, read_only=False, create=True) as store:
        commit(store, "a", "q", 0)
        commit(store, "a", "q", 1)
        last = [message for message in ledger(store).messages_from(0) if message.kind == END][-1]
    log = root / "commitlog" / f"{0:020d}"
    assert last.last is not None
    content = log.read_bytes()
    log.write_bytes(content[: last.last[0]] + bytes(4_096 - last.last[0]))
    (root / "abort").touch()
    with open_store(root, config=TINY, read_only=False, truncate_damage=True) as store:
        assert ledger(store).newest_ends() == {"a": {"q": 0}}


def slice_of(store: MessageStore, batch: Batch, first_row: int, rows: int) -> int:
    of_rows = {"first_row": first_row, "size_bytes": 100 * rows, "checksum": 2**32 - 1 - first_row}
    return append(store, outgoing_ledger_message(LedgerStatement(SLICE, batch, rows, **of_rows), now_ms=NOW_MS))


def test_a_slice_says_which_rows_follow_it_and_what_they_are(store: MessageStore) -> None:
    place = slice_of(store, Batch("s", "q", 7), 30, 12)
    said = (SLICE, Batch("s", "q", 7), 12, 30, None, 1_200, 2**32 - 31)
    found = LedgerMessage(*said, commitlog_offset=place, end=store.log_end)
    assert list(ledger(store).messages_from(0)) == [found]
    assert found.end_row == 42
    (stored,) = store.get(TOPIC, QUEUE_ID, 0).messages
    assert stored.body == b'{"sink":"s","query":"q","batch":7,"rows":12,"from":30,"bytes":1200,"sum":4294967265}'
    assert (stored.tags, stored.keys) == ("SLICE", ["s", "q"])


def test_a_slice_without_a_mark_is_nobodys(store: MessageStore) -> None:
    """There was a mark before there were slices."""
    append(store, outgoing_ledger_message(LedgerStatement(SLICE, Batch("s", "q", 0), 1), now_ms=NOW_MS, mark=UNMARKED))
    assert list(ledger(store, unmarked_end=store.log_end).messages_from(0)) == []


def test_messages_of_one_kind_are_looked_for_by_their_tags_codes(store: MessageStore) -> None:
    batch = Batch("s", "q", 0)
    slice_of(store, batch, 0, 1)
    commit(store, "s", "q", 0)
    for kind in (SLICE, BEGIN, END):
        assert [message.kind for message in ledger(store).messages_from(0, (kind,))] == [kind]


def test_open_batches_are_those_behind_the_newest_end_of_their_query(store: MessageStore) -> None:
    slice_of(store, Batch("s", "q", 0), 0, 1)
    commit(store, "s", "q", 0)
    commit(store, "s", "other", 0)
    assert ledger(store).open_batches() == {}
    first = slice_of(store, Batch("s", "q", 1), 0, 1)
    slice_of(store, Batch("s", "q", 1), 1, 1)
    new = slice_of(store, Batch("t", "t", 0), 0, 1)
    write_claim(store, {"sink": "x", "query": "x", "batch": 0, "rows": 1, "from": 0, "bytes": 9, "sum": 9}, tags=SLICE)
    slice_of(store, Batch("|once", "|once", 0), 0, 1)
    assert ledger(store).open_batches() == {"s": {"q": first}, "t": {"t": new}}


def test_a_begin_counts_as_an_open_batch_too(store: MessageStore) -> None:
    """Of a version before slices, which wrote all rows behind one message."""
    begin(store, Batch("s", "q", 0), 2)
    commit(store, "s", "q", 0)
    place = begin(store, Batch("s", "q", 1), 2)
    assert ledger(store).open_batches() == {"s": {"q": place}}


def test_who_looks_for_ends_reads_no_slices(store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger has a SLICE for each 4 MiB, so most of it is SLICEs. Tags codes in the queue tell, without a look into the log."""
    for number in range(9):
        slice_of(store, Batch("s", "q", 0), number, 1)
    commit(store, "s", "q", 0)
    found = ledger(store)
    read = []
    places = found._places
    monkeypatch.setattr(found, "_places", lambda *asked: read.append(len(places(*asked))) or places(*asked))
    assert found.newest_ends() == {"s": {"q": 0}}
    assert sum(read) == 1


def test_a_begin_that_names_a_last_row_has_none() -> None:
    """Only an END does; found by fuzzing."""
    body = b'{"sink":"s","query":"q","batch":7,"rows":2,"last":"0c","from":0}'
    assert parse_ledger_body(body, 0, 9) == LedgerMessage(BEGIN, Batch("s", "q", 7), 2, commitlog_offset=0, end=9)


# Whose a message is


def true_claim(store: MessageStore, number: int, *, mark: int = MARK) -> OutgoingMessages:
    """An END of batch `number` whose last row is there."""
    return outgoing_ledger_message(
        LedgerStatement(END, Batch("s", "q", number), 1, last=row(store)), now_ms=NOW_MS, mark=mark
    )


def with_property(message: OutgoingMessages, text: bytes) -> OutgoingMessages:
    return message._replace(properties=pa.array([message.properties[0].as_py() + text], pa.binary()))


def sent_by(message: OutgoingMessages, address: bytes) -> OutgoingMessages:
    return message._replace(born_hosts=np.array([np.frombuffer(address, f"V{len(address)}")[0]]))


FORGERIES: dict[str, Callable[[OutgoingMessages], OutgoingMessages]] = {
    "no mark": lambda end: end._replace(prepared_transaction_offsets=0),
    "another place": lambda end: end._replace(prepared_transaction_offsets=17),
    "a commit of a transaction": lambda end: end._replace(sys_flags=np.array([8], np.int32)),
    "compressed, it says": lambda end: end._replace(sys_flags=np.array([1], np.int32)),
    "a flag": lambda end: end._replace(flags=np.array([1], np.int32)),
    "tried again": lambda end: end._replace(reconsume_times=1),
    "what a broker adds": lambda end: with_property(end, b"CLUSTER\x01DefaultCluster\x02"),
    "a client's address": lambda end: sent_by(end, b"\x7f\0\0\x01\0\0\x92\x48"),
    "a client's IPv6 address": lambda end: sent_by(end, bytes(15) + b"\x01\0\0\x92\x48"),
    "blanks in the JSON": lambda end: end._replace(
        bodies=pa.array([end.bodies[0].as_py().replace(b",", b", ")], pa.binary())
    ),
}


@pytest.mark.parametrize("name", FORGERIES)
@pytest.mark.parametrize("kind", [SLICE, BEGIN, END])
def test_a_message_that_is_not_ours_in_every_byte_is_nobodys(store: MessageStore, name: str, kind: str) -> None:
    commit(store, "s", "q", 0)
    batch, last = Batch("s", "q", 1), row(store)
    message = outgoing_ledger_message(
        LedgerStatement(kind, batch, 1, last=last if kind == END else None), now_ms=NOW_MS
    )
    append(store, FORGERIES[name](message))
    assert ledger(store).newest_ends() == {"s": {"q": 0}}
    assert [message.batch.batch_id for message in ledger(store).messages_from(0)] == [0, 0]
    append(store, message)
    assert len(list(ledger(store).messages_from(0))) == 3, "the same without the forgery counts"


@pytest.mark.parametrize("name", [name for name in FORGERIES if name != "no mark"])
def test_nor_is_one_that_a_version_before_the_mark_could_not_have_written(store: MessageStore, name: str) -> None:
    append(store, FORGERIES[name](true_claim(store, 7, mark=UNMARKED)))
    assert ledger(store, unmarked_end=store.log_end).newest_ends() == {}


CLIENT, NOBODY = b"\x7f\0\0\x01\0\0\x92\x48", bytes(8)


@pytest.mark.parametrize(("flag", "client"), [(0x10, CLIENT), (0x20, CLIENT), (0x30, CLIENT), (0x30, NOBODY)])
def test_address_bits_that_are_wrong_shift_a_mark_into_a_record_and_it_counts_for_nothing(
    store: MessageStore, flag: int, client: bytes
) -> None:
    """As a 5.3.3 broker stores what a client on IPv4 sends with such bits: its body begins where the reader expects later fields."""
    genuine = encode_block(true_claim(store, 7), store.writer.settings.host).data.tobytes()
    host, rest = genuine[64:72], MARK.to_bytes(8, "big") + genuine[84:]
    luck = b"luck"  # the client has met the millisecond
    body = (luck + host[:4] + bytes(4) if flag == 0x30 else b"") + rest
    store_time = len(body).to_bytes(4, "big") + luck
    head = genuine[4:36] + flag.to_bytes(4, "big") + genuine[40:48] + client + store_time + host + bytes(4) + bytes(8)
    record = (8 + len(head) + len(body)).to_bytes(4, "big") + head + len(body).to_bytes(4, "big") + body
    data = np.frombuffer(record, np.uint8)
    seen = Records(data, np.zeros(1, np.int64))
    assert seen.column("prepared_transaction_offset").tolist() == [MARK]
    assert seen.bodies().to_pylist() == [genuine[88 : 88 + int.from_bytes(genuine[84:88], "big")]]
    assert own_record(data, 0, 0, unmarked=True) is None
    hosts_are_equal = seen.column("born_host")[0] == seen.column("store_host")[0]
    assert hosts_are_equal == (client == NOBODY)


@pytest.mark.parametrize("address", ["2001:db8::7", "::1"])
def test_an_ipv6_store_writes_and_knows_its_own(tmp_path: Path, address: str) -> None:
    config = replace(TINY, identity=replace(TINY.identity, broker_ip1=address))
    with open_store(tmp_path / "6", config=config, read_only=False, create=True) as store:
        commit(store, "s", "q", 3)
        assert ledger(store).newest_ends() == {"s": {"q": 3}}


def test_what_a_version_before_the_mark_wrote_counts_up_to_a_place(store: MessageStore) -> None:
    first = append(store, true_claim(store, 0, mark=UNMARKED))
    second = append(store, true_claim(store, 1, mark=UNMARKED))
    marked = append(store, true_claim(store, 2))
    assert ledger(store).newest_ends() == {"s": {"q": 2}}
    assert [m.commitlog_offset for m in ledger(store).messages_from(0)] == [marked]
    assert [m.commitlog_offset for m in ledger(store, second).messages_from(0)] == [first, marked]
    assert [m.commitlog_offset for m in ledger(store, second + 1).messages_from(0)] == [first, second, marked]


def test_the_mark_is_no_place_in_a_log_and_no_other_field_changes(store: MessageStore) -> None:
    """Golden: the last END of a store that the version before the mark has left."""
    root = unpack_left("unmarked_ledgers", "released", Path(store.root).parent)
    with open_store(root) as left:
        golden = left.get(TOPIC, QUEUE_ID, left.max_offset(TOPIC, QUEUE_ID) - 1).messages[0]
        bytes_before = left.log.bytes_at(golden.commitlog_offset, golden.size_bytes)
    data = np.frombuffer(bytes_before, np.uint8)
    own = own_record(data, 0, golden.commitlog_offset, unmarked=True)
    assert own is not None
    assert own.whole.tobytes() == bytes_before
    assert own.message.batch == Batch("sink", "query", 2)
    assert own_record(data, 0, golden.commitlog_offset, unmarked=False) is None
    assert (golden.prepared_transaction_offset, MARK > 1 << 62) == (0, True)
