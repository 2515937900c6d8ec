"""The dialect of config/*.json: vectors by the broker's own fastjson, then what else it reads."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import StateFileError
from storage.format import fastjson
from tests.support.places import VECTORS

CONFIG = VECTORS / "config"


def test_what_the_brokers_fastjson_wrote_is_read_as_it_was_meant() -> None:
    """The map that was given to RemotingSerializable.toJson; Java's integer keys are strings here."""
    parsed = fastjson.parse((CONFIG / "fastjson.json").read_text(encoding="utf-8"))
    assert parsed == {
        "integerKeys": {"0": 12, "-1": 5, "2147483648": 7},
        "strings": {
            "{0:": "a{0:1,1:2}b",
            "q\"uo'te\\": "c:\\d\"e'f",
            "control": "\t\n\r\b\f\x01\x1f\x7f/",
            "unicode": "\u00fc\u6d88\u606f \u2028 \U0001f600",
            "": "",
        },
        "numbers": {
            "long": -(2**63),
            "double": 1.5e300,
            "decimal": 12345678901234567890.5,
            "true": True,
        },
        "empty": {},
        "list": [1, "two", {}, []],
        "shared1": {"+message.type": "NORMAL"},
        "shared2": {"$ref": "$.shared1"},
    }


def test_a_brokers_consumer_offsets_have_bare_keys_and_are_read() -> None:
    text = (CONFIG / "consumerOffset.json").read_text(encoding="utf-8")
    with pytest.raises(json.JSONDecodeError):
        json.loads(text)
    assert fastjson.parse(text)["offsetTable"]["TopicA@GroupA"] == {"0": 150, "1": 150, "2": 150, "3": 150}


def test_a_brokers_delay_offsets_have_bare_keys_and_are_read() -> None:
    text = (CONFIG / "delayOffset.json").read_text(encoding="utf-8")
    assert fastjson.parse(text)["offsetTable"] == {"1": 5, "2": 5, "3": 21, "4": 9, "18": 0}


@pytest.mark.parametrize("name", ["topics.json", "subscriptionGroup.json", "consumerFilter.json"])
def test_files_without_integer_keys_are_read_as_the_standard_parser_reads_them(name: str) -> None:
    text = (CONFIG / name).read_text(encoding="utf-8")
    assert fastjson.parse(text) == json.loads(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{0:12,1:13}", {"0": 12, "1": 13}),
        ("{ 0 : {1 :2} }", {"0": {"1": 2}}),
        ("{-3:0}", {"-3": 0}),
        ("{name:'it''s'}".replace("''", "\\'"), {"name": "it's"}),
        ("{'a':'say \"x\"'}", {"a": 'say "x"'}),
        ("{true:1,null:2,$ref:'$.a'}", {"true": 1, "null": 2, "$ref": "$.a"}),
        ('{"a{0:1,":"}{1:2"}', {"a{0:1,": "}{1:2"}),
        ('{"a\\"{0:1":1}', {'a\\"{0:1'.replace("\\", ""): 1}),
        ('{"ends with backslash\\\\":{0:1}}', {"ends with backslash\\": {"0": 1}}),
        ('{"raw":"tab\there"}', {"raw": "tab\there"}),
        ('{"a":1,"a":2}', {"a": 2}),
        ("\ufeff{0:1}", {"0": 1}),
        ("[1,-2.5e3,true,false,null]", [1, -2500.0, True, False, None]),
        ("{}", {}),
    ],
)
def test_the_dialect(text: str, value: object) -> None:
    assert fastjson.parse(text) == value


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ("", 1, 1),
        ("{", 1, 2),
        ('{"a":1', 1, 7),
        ('{\n\t"a":1,\n\t"b" 2\n}', 3, 6),
        ("{\n\t0:1,\n\t1:NaN\n}", 3, 4),
        ('{"a":Infinity}', 1, 6),
        ("{0:1,1:2}}", 1, 10),
        ("{0:1,\n", 2, 1),
        ('{"a":"never ends}', 1, 6),
        ("{'a:1}", 1, 2),
        ("{1.5:1}", 1, 2),
        ('{"a":01}', 1, 6),
        ('{0:12,1:13,\n\t\tlonger_than_it_seems:1,"x":tru}', 2, 30),
        ("{0:1,1:2 3:4}", 1, 10),
        ('{"a":"\\q"}', 1, 6),
        ("\x00", 1, 1),
        ('{"a":\n1' + "0" * 4_300 + "}", 2, 1),
        ('{"a":1e999}', 1, 6),
        ('{"a":' + "1" * 400 + ".5}", 1, 6),
        ("[" * 100_000, 1, 513),
        ('{"a":' * 100_000, 1, 5 * 512 + 1),
    ],
)
def test_an_error_names_line_and_column_of_the_text_as_it_stands_in_the_file(text: str, line: int, column: int) -> None:
    with pytest.raises(StateFileError) as caught:
        fastjson.parse(text, "topics.json")
    assert (caught.value.file, caught.value.line, caught.value.column) == ("topics.json", line, column)
    assert f"topics.json, line {line}, column {column}" in str(caught.value)


@pytest.mark.parametrize("name", ["consumerOffset.json", "topics.json", "subscriptionGroup.json"])
def test_every_cut_of_a_brokers_file_is_an_error_and_nothing_else(name: str) -> None:
    text = (CONFIG / name).read_text(encoding="utf-8")
    for length in range(0, len(text) - 1, 37):
        with pytest.raises(StateFileError):
            fastjson.parse(text[:length])


def test_what_is_written_has_the_brokers_layout() -> None:
    """A file without integer keys and lists is written byte for byte as the broker wrote it."""
    text = (CONFIG / "topics.json").read_text(encoding="utf-8")
    assert fastjson.to_text(fastjson.parse(text)) == text


def test_keys_are_quoted_and_half_a_surrogate_pair_can_be_encoded() -> None:
    written = fastjson.to_text({"0": "\ud800 \u6d88"})
    assert written == '{\n\t"0":"\\ud800 \u6d88"\n}'
    assert fastjson.parse(written.encode("utf-8").decode("utf-8")) == {"0": "\ud800 \u6d88"}


_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.slow
@given(_VALUES)
def test_plain_json_means_the_same_in_the_dialect(value: Any) -> None:
    assert fastjson.parse(json.dumps(value)) == value
    assert fastjson.parse(fastjson.to_text(value)) == value


@given(st.dictionaries(st.integers(), st.text(alphabet="{}[]:,\"'\\01\t\n", max_size=8), max_size=4))
def test_bare_keys_beside_strings_that_look_like_json(value: dict[int, str]) -> None:
    text = "{" + ",".join(f"{key}:{json.dumps(item)}" for key, item in value.items()) + "}"
    assert fastjson.parse(text) == {str(key): item for key, item in value.items()}


def test_what_is_nested_as_deep_as_javas_parser_goes_is_read_and_written() -> None:
    """Java: DefaultJSONParser.parseArray, "array level > 512"."""
    for opening, closing in (("[", "]"), ('{"a":', "}")):
        text = opening * 511 + "[]" + closing * 511
        value = fastjson.parse(text)
        assert fastjson.parse(fastjson.to_text(value)) == value
