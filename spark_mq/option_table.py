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
from storage.names import nearest

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
    if not given:  # also where a table is read or written
        raise OptionError(
            "path", f"no option is given: {_PLACE_AND_TOPIC}; a table of CREATE TABLE loses its options: {_NO_TABLE}"
        )
    if {"provider", "owner"} <= given.keys():  # a table is made
        raise OptionError(
            "path", f"Spark keeps a table's options from the source, for reading and writing alike: {_NO_TABLE}"
        )
    return given


_PLACE_AND_TOPIC = "give path (a store) or nameServer (a running cluster), and topic"
_NO_TABLE = "use CREATE TEMPORARY VIEW, or .option(…)"

NAMES_ELSEWHERE: Mapping[str, str] = {
    name: ours
    for ours, theirs in {
        "nameServer": "bootstrap.servers kafka.bootstrap.servers brokers namesrv namesrvAddr nameServers nameServerAddress "
        "rocketmq.namesrv.addr rocketmq.nameserver.address",
        "topic": "kafka.topic topicName",
        "subscribePattern": "topicsPattern topicPattern pattern",
        "consumerGroup": "group.id kafka.group.id groupId group groupIdPrefix",
        "startingOffsets": "auto.offset.reset kafka.auto.offset.reset",
        "commitOffsets": "enable.auto.commit kafka.enable.auto.commit",
        "maxOffsetsPerTrigger": "max.poll.records kafka.max.poll.records maxRowsPerTrigger maxFilesPerTrigger",
        "pullTimeout": "kafkaConsumer.pollTimeoutMs fetchOffset.numRetries fetchOffset.retryIntervalMs",
        "acks": "kafka.acks",
        "tls": "kafka.security.protocol security.protocol",
        "accessKey": "kafka.sasl.jaas.config sasl.jaas.config kafka.sasl.mechanism sasl.mechanism",
        "batchBytes": "kafka.batch.size batch.size",
    }.items()
    for name in theirs.lower().split()
}
"""By the name that Spark's Kafka connector or a client of RocketMQ or Kafka has for it, our option."""

_NO_OPTION_HERE: Mapping[str, tuple[str, str]] = {
    "checkpointlocation": ("checkpointLocation", "it belongs to the query: .writeStream.option(…)"),
    "includeheaders": ("includeHeaders", "it is for reading; headers are written where rows have a column headers"),
}
"""Options that exist, and not here."""


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

    def _unknown(self, name: str) -> OptionError | UnknownOptionError:
        if name in _NO_OPTION_HERE:
            return OptionError(*_NO_OPTION_HERE[name])
        return UnknownOptionError(name, NAMES_ELSEWHERE.get(name) or nearest(name, [row.name for row in self.rows()]))

    def parse(self, given: Mapping[str, str], mode: Mode | None) -> dict[str, Any]:
        """Field → value of what is given, by lower-case name; with a `mode` also refuses what has no meaning in it."""
        parsed: dict[str, Any] = {}
        for name, text in given.items():
            if name in self._not_yet:
                raise OptionError(*self._not_yet[name])
            if name not in self._declared:
                raise self._unknown(name)
            field, row, option = self._declared[name]
            if mode is not None and option.mode not in (None, mode):
                raise OptionError(row.name, f"is for {option.mode} queries only, this is a {mode} query")
            parsed[field] = option.parse(text, row.name)
        return parsed
