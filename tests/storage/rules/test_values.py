"""What a message's texts may hold, one by one and in columns: the same rules in the same words."""

from __future__ import annotations

import pyarrow as pa
import pytest

from storage.format.arrays import CONTROL_CHARACTERS, SEPARATORS
from storage.rules.row_columns import read_properties
from storage.rules.values import WORD_SEPARATORS, Rejections, property_fault, text_fault


@pytest.mark.parametrize(
    ("text", "unwanted", "fault"),
    [
        ("plain täxt", CONTROL_CHARACTERS, None),
        ("a b", WORD_SEPARATORS, "it holds a control character or a blank"),
        ("a\x7fb", CONTROL_CHARACTERS, "it holds a control character"),
        ("a\nb", SEPARATORS, None),
        ("a\x02", SEPARATORS, "it holds 0x01 or 0x02, which separate properties"),
        ("\ud800", SEPARATORS, "it is not UTF-8"),
    ],
)
def test_a_text_is_held_to_its_rule(text: str, unwanted: bytes, fault: str | None) -> None:
    assert text_fault(text, unwanted) == fault


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("a", "b"),
        ("a", "x\x01"),
        ("a\x02", "b"),
        ("", "b"),
        ("a", ""),
        ("TRAN_MSG", "true"),
        ("__RMQ.TRANSIENT.x", "y"),
    ],
)
def test_a_property_breaks_the_same_rule_alone_and_in_a_column(name: str, value: str) -> None:
    rejections = Rejections()
    read_properties(pa.array([[(name, value)]], pa.map_(pa.string(), pa.string())), {}, True, rejections)
    told = rejections[0].rule if rejections else None
    assert property_fault(name, value) == told


def test_a_value_that_is_no_text_is_no_property() -> None:
    assert property_fault("count", 3) == "property 'count': its value is int, not text"
