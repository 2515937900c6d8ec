"""Errors reach a Spark user as named conditions, with the option that helps."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator
from string import Formatter

import pytest

from spark_mq.client.errors import ResponseError, TlsError
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
    as_condition,
)
from storage import errors
from storage.errors import ErrorWithValues


def subclasses(base: type[Exception]) -> Iterator[type[Exception]]:
    for child in base.__subclasses__():
        yield child
        yield from subclasses(child)


def declared(base: type[Exception]) -> list[type[Exception]]:
    return [kind for kind in subclasses(base) if not kind.__module__.startswith("tests")]


@pytest.mark.parametrize(
    ("error", "condition", "words"),
    [
        (errors.StoreNotFoundError("/s"), "SPARK_MQ_STORE_NOT_FOUND", "option path"),
        (errors.StoreNotSharedError("h1", "/s", "/s/commitlog is empty"), "SPARK_MQ_STORE_NOT_FOUND", "machine h1"),
        (errors.StoreRefusedError("/s", "it is RocksDB"), "SPARK_MQ_STORE_REFUSED", "it is RocksDB"),
        (errors.IndexElsewhereError("/s"), "SPARK_MQ_INDEX_ELSEWHERE", "option key"),
        (errors.IndexGeometryUnknownError("/s", 9), "SPARK_MQ_INDEX_GEOMETRY_UNKNOWN", "option conf"),
        (errors.ConfigurationError("b.conf", 3, "k", "bad"), "SPARK_MQ_STORE_CONFIGURATION", "line 3"),
        (errors.CorruptRecordError("magic", 7, 1, 2, "f"), "SPARK_MQ_CORRUPT_RECORD", "in f at byte 7"),
        (errors.StoreLockedError("/s"), "SPARK_MQ_STORE_LOCKED", "commitOffsets"),
        (errors.OffsetOutOfRangeError("T", 1, 5, 9, 2), "SPARK_MQ_DATA_LOSS", "failOnDataLoss"),
        (errors.StorageError("what"), "SPARK_MQ_STORE_ERROR", "what"),
    ],
)
def test_a_storage_error_becomes_a_condition(error: errors.StorageError, condition: str, words: str) -> None:
    text = str(as_condition(error))
    assert text.startswith(f"[{condition}] ")
    assert words in text


def test_every_storage_error_has_a_condition_of_its_own_or_its_bases() -> None:
    kinds = [kind for kind in subclasses(errors.StorageError) if kind.__module__ == errors.__name__]
    assert len(kinds) > 30
    for kind in kinds:
        assert kind.condition != errors.StorageError.condition, "a new error must get a condition"
        others = [other for other in kinds if other.condition == kind.condition]
        assert all(issubclass(kind, other) or issubclass(other, kind) for other in others), "one name, one kind"


@pytest.mark.parametrize("kind", declared(ErrorWithValues), ids=str)
def test_a_template_names_attributes_and_is_the_text(kind: type[ErrorWithValues]) -> None:
    bases = kind.__mro__
    parts = [name for _, name, _, _ in Formatter().parse(kind.template) if name is not None]
    known = {*vars(ErrorWithValues), *kind._fields, *(name for base in bases for name in vars(base))}
    own_init = next(base for base in bases if "__init__" in vars(base)).__init__
    known |= set(own_init.__code__.co_names)
    assert {name.partition(".")[0] for name in parts} <= known
    if kind.template:
        ways = [base for base in bases if {"template", "describe"} & vars(base).keys()]
        assert "template" in vars(ways[0]), "a base's describe() hides the template"


def test_a_constructor_takes_what_the_annotations_say() -> None:
    error = errors.StoreLockedError("/s", holder="process 7")
    assert (error.path, error.waited_ms, error.holder) == ("/s", 0, "process 7")
    assert error.args == ("/s", 0, "process 7")
    for values, named in [((), {}), (("/s", 1, "x", 2), {}), (("/s",), {"held": "x"})]:
        with pytest.raises(TypeError, match="StoreLockedError takes path, waited_ms, holder"):
            errors.StoreLockedError(*values, **named)
    assert errors.StoreNotFoundError("/s", hint=None).hint == errors.StoreNotFoundError.hint


def test_an_optional_part_of_a_template_needs_its_value() -> None:
    assert errors.RowIllegalError(1, "body", "it is null").describe() == "row 1, column body: it is null"
    text = errors.RowIllegalError(1, "body", "[{more}]", 2).describe()
    assert text == "row 1, column body: [{more}]; 2 more rows are refused"


def test_a_kind_of_error_that_is_not_listed_takes_the_condition_of_its_base() -> None:
    class NewRefusal(errors.StoreRefusedError):
        pass

    converted = as_condition(NewRefusal("/s", "why"))
    assert isinstance(converted, ConvertedError)
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
        as_condition(errors.StoreNotFoundError("/s")),
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
    text = str(as_condition(TlsError("a:9876", "it may not speak TLS")))
    assert len(text.splitlines()) == 1
    assert "tlsCaFile" in text
    assert "tlsVerify=false" in text
    assert "ca_file" not in text
    text = str(as_condition(ResponseError(3, None, "a:10911", "GET_BROKER_CLUSTER_INFO (106)")))
    assert "is a name server there?" in text
    text = str(as_condition(ResponseError(1, None, "a:10911", "CHECK_CLIENT_CONFIG (46)")))
    assert "enablePropertyFilter=true" in text
