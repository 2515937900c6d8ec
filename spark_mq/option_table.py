"""Options as fields of a dataclass: declared once, parsed strictly, listed for the documentation.

A field's name is the option's in snake_case. Its annotation carries an `Option`: the parser, the mode that it is valid in, and the line
of meaning that the documentation shows. Names are matched whatever their case (Spark lower-cases them). Unknown ones are refused with
the nearest known one: Spark hands a Python source its own options and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, Literal, NamedTuple, get_type_hints

from spark_mq.conditions import OptionError, UnknownOptionError
from storage.nearest_name import nearest

Mode = Literal["batch", "streaming"]


class Option(NamedTuple):
    """What a field's annotation says of its option.

    `parse(text, option name)` raises OptionError or OffsetJsonError; `shown` is the default as the documentation
    spells it.
    """

    parse: Callable[[str, str], Any]
    meaning: str
    mode: Mode | None = None
    shown: str = "-"


class OptionRow(NamedTuple):
    """One line of an option table in docs/reading.md or docs/writing.md; `mode` is "batch", "streaming" or "both"."""

    name: str
    default: str
    mode: str
    meaning: str


def given_options(options: Mapping[str, str]) -> dict[str, str]:
    """Lower-case name → text. Raises OptionError where a name is given twice, or where Spark has dropped all options."""
    given: dict[str, str] = {}
    for name, text in options.items():
        if name.lower() in given:
            raise OptionError(name, "is given twice")
        given[name.lower()] = text
    if not given or {"provider", "owner"} <= given.keys():  # a table is read, written, or made
        rule = "Spark keeps a table's options from the source, for reading and writing alike: use CREATE TEMPORARY VIEW, or .option(…)"
        raise OptionError("path", rule)
    return given


class OptionTable:
    """The options that a dataclass declares; `not_yet` names those that are to come, as users write them, with a word on each."""

    def __init__(self, declaring: type, not_yet: Mapping[str, str]) -> None:
        self._not_yet = {name.lower(): (name, rule) for name, rule in not_yet.items()}
        self._declared: dict[str, tuple[str, OptionRow, Option]] = {}
        hints = get_type_hints(declaring, include_extras=True)
        for field in fields(declaring):
            option: Option = hints[field.name].__metadata__[0]
            first, *rest = field.name.split("_")
            name = first + "".join(word.capitalize() for word in rest)
            row = OptionRow(name, option.shown, option.mode or "both", option.meaning)
            self._declared[name.lower()] = (field.name, row, option)

    def rows(self) -> list[OptionRow]:
        """The documentation's table, in the order of declaration."""
        return [row for _, row, _ in self._declared.values()]

    def parse(self, given: Mapping[str, str], mode: Mode | None) -> dict[str, Any]:
        """Field → value of what is given, by lower-case name; with a `mode` also refuses what has no meaning in it."""
        parsed: dict[str, Any] = {}
        for name, text in given.items():
            if name in self._not_yet:
                raise OptionError(*self._not_yet[name])
            if name not in self._declared:
                raise UnknownOptionError(name, nearest(name, [row.name for row in self.rows()]))
            field, row, option = self._declared[name]
            if mode is not None and option.mode not in (None, mode):
                raise OptionError(row.name, f"is for {option.mode} queries only, this is a {mode} query")
            parsed[field] = option.parse(text, row.name)
        return parsed
