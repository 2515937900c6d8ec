"""A batch and its answer cross the socket whole, and what is neither is refused."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest

from spark_mq.hand_over.messages import (
    WAITING,
    WORKING,
    HandOver,
    StagedCommit,
    commit_staged,
    error_document,
    outcome_document,
    read_answer,
    read_request,
    request_document,
    started_at,
    taken_document,
)
from storage import open_store
from storage.batch.commit import CommitOutcome
from storage.batch.intent import DeadLetterFile
from storage.batch.ledger import Batch
from storage.batch.staged_segment import StagedBatch, StagedSegment, sink_digest
from storage.errors import NameIllegalError, PutRefusedError, StorageError
from storage.rules.topics import RowWish
from storage.settings.load import parse_config
from tests.storage.test_errors import EXAMPLES

BATCH = Batch("sink", "query", 7)
DIGEST = sink_digest("sink", "query").hex()
SEGMENT = StagedSegment(f"{DIGEST}/7-0-1-abc.segment", 3, 300, 30, 4_000_000_000, 5, "K1", "K2")
REQUEST = HandOver(
    StagedCommit(
        StagedBatch(
            BATCH,
            (SEGMENT,),
            {"T": 8},
            {"U": 9},
            {("T", 3)},
            [DeadLetterFile.of("/dead", DIGEST, 7, 0, "1-abc")],
            refused=4,
            is_write=True,
        ),
        RowWish(True, None),
        takeover=True,
        mirrored=False,
        unresolved={"T": 2},
        started_at=4_096,
    ),
    (5, 6),
    60_000,
    is_sync=True,
)


def crossed(document: Any) -> Any:
    return json.loads(json.dumps(document))


def test_a_request_is_the_same_on_the_other_side() -> None:
    assert read_request(crossed(request_document(REQUEST))) == REQUEST


def test_so_is_one_with_nothing_optional() -> None:
    bare = HandOver(StagedCommit(StagedBatch(BATCH, ()), None), (1, 2), 0)
    found = read_request(crossed(request_document(bare)))
    assert found.commit.wish is None
    assert found.commit.started_at is None
    assert request_document(found) == request_document(bare)


@pytest.mark.parametrize("name", sorted(request_document(REQUEST)))
@pytest.mark.parametrize("value", [[], [[]], {}, {"a": "b"}, "x", 1.5, [1, 2, 3, 4]], ids=repr)
def test_a_request_with_another_kind_of_value_is_refused(name: str, value: object) -> None:
    document = crossed(request_document(REQUEST))
    if isinstance(document[name], type(value)) and value in ([], {}):
        return  # no segments, no topics
    with pytest.raises(ValueError, match=r"."):
        read_request({**document, name: value})


@pytest.mark.parametrize("name", sorted(request_document(REQUEST)))
def test_a_request_without_a_value_is_refused(name: str) -> None:
    document = crossed(request_document(REQUEST))
    del document[name]
    with pytest.raises(ValueError, match=name):
        read_request(document)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("version", 2),
        ("batch", ["sink", "query", -1]),
        ("segments", [["../../etc/passwd", *SEGMENT[1:]]]),
        ("segments", [[f"{DIGEST}/../x.segment", *SEGMENT[1:]]]),
        ("segments", [[SEGMENT.path, -1, *SEGMENT[2:]]]),
        ("deadLetters", [["/etc/passwd", "/tmp/x"]]),
        ("deadLetters", [list(DeadLetterFile.of("/dead", DIGEST, 8, 0, "1-abc"))]),
        ("begunAt", -1),
        ("takeover", 1),
    ],
)
def test_a_request_that_would_lead_elsewhere_is_refused(name: str, value: object) -> None:
    document = crossed(request_document(REQUEST))
    with pytest.raises(ValueError, match=r"."):
        read_request({**document, name: value})


@pytest.mark.parametrize("error", [error for error, _, _ in EXAMPLES], ids=range(len(EXAMPLES)))
def test_an_error_arrives_by_its_class_with_its_text(error: StorageError) -> None:
    found = read_answer(crossed(error_document(error)))
    assert str(found) == str(error)
    assert type(found) is (StorageError if isinstance(error, PutRefusedError) else type(error))


def test_an_error_of_the_system_stays_one() -> None:
    found = read_answer(crossed(error_document(OSError(errno.ENOSPC, "No space left on device", "/s/commitlog/0"))))
    assert isinstance(found, OSError)
    assert (found.errno, found.strerror, found.filename) == (errno.ENOSPC, "No space left on device", "/s/commitlog/0")


@pytest.mark.parametrize("error", [ZeroDivisionError("by 0"), PermissionError("not yours"), MemoryError()])
def test_any_other_error_is_told_by_name(error: BaseException) -> None:
    found = read_answer(crossed(error_document(error)))
    assert type(found) is StorageError
    assert str(found) == f"{type(error).__name__}: {error}"


@pytest.mark.parametrize(
    "said",
    [
        {"kind": "StoreNotFoundError", "values": [[]], "text": "made up"},
        {"kind": "annotations", "values": [], "text": "made up"},
        {"kind": "DescribedError", "values": 7, "text": "made up"},
        {"text": "made up"},
    ],
)
def test_an_error_that_cannot_be_made_again_is_its_text(said: dict[str, Any]) -> None:
    found = read_answer({"error": said})
    assert (type(found), str(found)) == (StorageError, "made up")


def test_outcomes_and_what_comes_before_them() -> None:
    assert read_answer(crossed(outcome_document(CommitOutcome(False, 12)))) == CommitOutcome(False, 12)
    for document in (WAITING, WORKING, taken_document(0)):
        assert read_answer(crossed(dict(document))) is None
    assert started_at(crossed(taken_document(0))) == 0
    assert started_at(WAITING) is started_at({"state": "working", "logEnd": 3}) is None


@pytest.mark.parametrize("document", [{}, {"done": [0, 1]}, {"done": True}, {"error": "text"}])
def test_what_is_no_answer_is_refused(document: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_answer(document)


@pytest.mark.parametrize("prefix", ["%RETRY%", "%DLQ%"])
def test_a_batch_for_a_new_group_that_is_too_long_for_the_release_writes_nothing(tmp_path: Path, prefix: str) -> None:
    """Its rows were held to another broker.conf than that of the broker that commits them."""
    config = parse_config(b"rocketmqVersion=5.5.0\n", None)
    with open_store(tmp_path / "store", config=config, read_only=False, create=True) as store:
        for length in (121, 120):
            topics = {prefix + "G" * length: 1}
            commit = StagedCommit(StagedBatch(BATCH, (), topics), None)
            if length == 121:
                with pytest.raises(NameIllegalError, match="120"):
                    commit_staged(store, commit)
                assert not store.groups
                assert prefix + "G" * length not in store.settings.topics.topics
            else:
                commit_staged(store, commit)
                assert list(store.groups) == ["G" * 120]
