"""Errors reach a Spark user as named conditions, with the option that helps."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator

import pytest

from spark_mq import store_conditions
from spark_mq.client.errors import ResponseError, TlsError
from spark_mq.client_conditions import from_client_error
from spark_mq.conditions import (
    AvailableNowError,
    CheckpointOfAnotherQueryError,
    ConvertedError,
    DataLossError,
    InvalidRowError,
    OptionError,
    QueuesNotMatchedError,
    SparkMqError,
    UnknownOptionError,
)
from spark_mq.store_conditions import StoreConditionError, from_storage_error
from storage import errors


def subclasses(base: type[Exception]) -> Iterator[type[Exception]]:
    for child in base.__subclasses__():
        yield child
        yield from subclasses(child)


@pytest.mark.parametrize(
    ("error", "condition", "words"),
    [
        (errors.StoreNotFoundError("/s"), "SPARK_MQ_STORE_NOT_FOUND", "option path"),
        (errors.StoreNotSharedError("h1", "/s", "/s/commitlog is empty"), "SPARK_MQ_STORE_NOT_FOUND", "machine h1"),
        (errors.StoreRefusedError("/s", "it is RocksDB"), "SPARK_MQ_STORE_REFUSED", "it is RocksDB"),
        (errors.IndexGeometryUnknownError("/s", 9), "SPARK_MQ_INDEX_GEOMETRY_UNKNOWN", "option conf"),
        (errors.ConfigurationError("b.conf", 3, "k", "bad"), "SPARK_MQ_STORE_CONFIGURATION", "line 3"),
        (errors.CorruptRecordError("magic", 7, 1, 2, "f"), "SPARK_MQ_CORRUPT_RECORD", "in f at byte 7"),
        (errors.StoreLockedError("/s"), "SPARK_MQ_STORE_LOCKED", "commitOffsets"),
        (errors.OffsetOutOfRangeError("T", 1, 5, 9, 2), "SPARK_MQ_DATA_LOSS", "failOnDataLoss"),
        (errors.StorageError("what"), "SPARK_MQ_STORE_ERROR", "what"),
    ],
)
def test_a_storage_error_becomes_a_condition(error: errors.StorageError, condition: str, words: str) -> None:
    text = str(from_storage_error(error))
    assert text.startswith(f"[{condition}] ")
    assert words in text


def test_every_storage_error_has_a_condition_of_its_own() -> None:
    # The table is looked into: errors that are added to the tree must be thought about here.
    known = {*store_conditions._CONDITIONS, errors.OffsetOutOfRangeError}
    assert {child for child in subclasses(errors.StorageError) if child.__module__ == "storage.errors"} <= known
    named = {kind: condition for kind, (condition, _) in store_conditions._CONDITIONS.items()}
    for kind, condition in named.items():
        others = [other for other in named if other is not kind and named[other] == condition]
        assert all(issubclass(kind, other) or issubclass(other, kind) for other in others), "one name, one kind"


def test_a_kind_of_error_that_is_not_listed_takes_the_condition_of_its_base() -> None:
    class NewRefusal(errors.StoreRefusedError):
        pass

    converted = from_storage_error(NewRefusal("/s", "why"))
    assert isinstance(converted, StoreConditionError)
    assert converted.condition == "SPARK_MQ_STORE_REFUSED"


def test_conditions_are_distinct_and_spelled_as_sparks() -> None:
    named = [
        child.condition
        for child in subclasses(SparkMqError)
        if issubclass(child, SparkMqError) and not issubclass(child, ConvertedError)
    ]
    assert len(set(named)) == len(named) >= 9
    assert all(re.fullmatch(r"SPARK_MQ(_[A-Z]+)+", name) for name in named)


@pytest.mark.parametrize(
    "error",
    [
        OptionError("path", "is empty"),
        UnknownOptionError("topics", "topic"),
        QueuesNotMatchedError("startingOffsets", ["T/a/0"], ["T/a/1"]),
        DataLossError("one", "two\nits cure"),
        CheckpointOfAnotherQueryError("it holds offsets of T", "Give it its own"),
        AvailableNowError("rule", "T/a/0"),
        from_storage_error(errors.StoreNotFoundError("/s")),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_survives_the_way_from_a_worker(error: SparkMqError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)


def test_long_lists_of_queues_are_cut() -> None:
    text = str(QueuesNotMatchedError("assign", (), (f"T/a/{i}" for i in range(12))))
    assert "T/a/9 and 2 more" in text
    assert "T/a/10" not in text


def test_a_rule_that_several_rows_break_is_said_once() -> None:
    rows = [
        (0, "body", "it is null"),
        (1, "body", "it is null"),
        (2, "topic", "it is blank"),
        (5, "body", "it is null"),
        (7, "topic", "it is blank"),
    ]
    text = str(InvalidRowError(3, 9, *rows))
    assert text.splitlines()[:4] == [
        "[SPARK_MQ_INVALID_ROW] partition 3: row 0, column body: it is null; and 8 more; correct or filter such rows, "
        "or put them aside with onInvalidRow=deadLetter and a deadLetterPath",
        "rows 1, 5: the same",
        "rows 2, 7, column topic: it is blank",
        "and 4 more rows of the same Arrow batch",
    ]


def test_hints_of_a_cluster_name_sparks_options_and_the_likely_mistake() -> None:
    text = str(from_client_error(TlsError("a:9876", "it may not speak TLS")))
    assert len(text.splitlines()) == 1
    assert "tlsCaFile" in text
    assert "tlsVerify=false" in text
    assert "ca_file" not in text
    text = str(from_client_error(ResponseError(3, None, "a:10911", "GET_BROKER_CLUSTER_INFO (106)")))
    assert "is a name server there?" in text
    text = str(from_client_error(ResponseError(1, None, "a:10911", "CHECK_CLIENT_CONFIG (46)")))
    assert "enablePropertyFilter=true" in text
