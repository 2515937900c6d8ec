"""DLedger's bodies, against those that its own classes write."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_mq.dledger import messages
from spark_mq.dledger.messages import (
    CONVERSATIONS,
    DLedgerMessage,
    PushEntryRequest,
    PushType,
    make_entry,
    push_request,
)
from spark_mq.remoting import BodyError, read_body, write_body
from storage.format.dledger import Vote, decode_vote, encode_checkpoint, encode_vote, place_of_next
from storage.format.dledger import committed_index as committed_index_of
from tests.support.places import PROJECT

BODIES: Path = PROJECT / "tests" / "vectors" / "dledger" / "bodies.tsv"
ROWS = [row.split("\t", 1) for row in BODIES.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize(("name", "text"), ROWS, ids=[name for name, _ in ROWS])
def test_a_body_is_read_and_written_as_javas_classes_write_it(name: str, text: str) -> None:
    kind: type[DLedgerMessage] = getattr(messages, name.split()[0])
    found = read_body(kind, text.encode())
    assert type(found) is kind
    assert write_body(found).decode() == text


def test_each_body_of_each_code_has_been_compared() -> None:
    compared = {name.split()[0] for name, _ in ROWS}
    assert {kind.__name__ for found in CONVERSATIONS.values() for kind in found} == compared


@pytest.mark.parametrize(("case", "in_batch"), [("batch", True), ("empty", False), ("commit", False)])
def test_a_push_is_made_as_java_makes_it(case: str, in_batch: bool) -> None:
    text = dict(ROWS)[f"PushEntryRequest {case}"]
    base = {"group": "group", "local_id": "n0", "remote_id": "n1", "leader_id": "n0", "term": 7}
    bodies = {"batch": (b"hello", b"world"), "empty": (b"",), "commit": ()}[case]
    entries = [make_entry(5 + at, 6, 4101 + at, body) for at, body in enumerate(bodies)]
    kind = PushType.COMMIT if case == "commit" else PushType.APPEND
    assert write_body(push_request(kind, base, entries, 11, in_batch=in_batch)).decode() == text


def test_a_body_that_is_no_base64_is_refused_with_its_place() -> None:
    with pytest.raises(BodyError, match=r"entry\.body"):
        read_body(PushEntryRequest, b'{"entry":{"body":"a*b"}}')


def test_a_vote_is_written_as_java_reads_it() -> None:
    assert encode_vote(Vote(7, "n1")) == b"currTerm=7\nvoteLeader=n1\n"
    for vote in (Vote(7, "n1"), Vote(0, None)):
        assert decode_vote(encode_vote(vote)) == vote
    assert decode_vote(b"voteLeader=n1\n") is None
    assert decode_vote(b"") is None
    assert committed_index_of(encode_checkpoint(12, 9)) == 9


@pytest.mark.parametrize(
    ("end", "size_bytes", "place"),
    [(0, 92, 0), (0, 93, 100), (100, 92, 100), (150, 42, 150), (150, 43, 200), (195, 1, 200)],
)
def test_an_entry_goes_to_the_next_file_where_no_filler_would_fit_behind_it(
    end: int, size_bytes: int, place: int
) -> None:
    assert place_of_next(end, size_bytes, 100) == place
