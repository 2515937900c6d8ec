"""Texts of options → values. Each parser takes (text, option name) and raises OptionError or OffsetJsonError.

Durations and sizes are spelled as Spark's configuration spells them (JavaUtils.timeStringAs, byteStringAs).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Literal

from spark_mq.conditions import OptionError, names
from spark_mq.source.offsets import EARLIEST, MAX_OFFSET, NamedQueue, load_json, parse_positions
from spark_mq.source.starting_offsets import AtOffsets, Edge, NoMatch, TimePoint
from storage.epoch_times import other_unit_rule
from storage.files.remote import name_server, unexpanded_home

MAX_INT = 2**31 - 1

_NOT_IN_A_TAG = re.compile(r"""[\s,;|*'"]""")
_PLAIN_TAG = re.compile(r"[\w.%-]+")
_BETWEEN_TAGS = re.compile(r"""(?:[\s,;|'"]|\b(?:OR|AND|or|and)\b(?=\s))+""")

# In microseconds, the finest unit; a bare number is ms, as where Spark reads maxTriggerDelay.
_DURATION_UNITS = {
    "us": 1,
    "ms": 1_000,
    "": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "min": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
}
_SIZE_UNITS = {"": 1, "b": 1} | {
    unit + suffix: 1024**power for power, unit in enumerate("kmgtp", start=1) for suffix in ("", "b")
}


def parse_text(text: str, option: str) -> str:
    if not text.strip():
        raise OptionError(option, "is empty")
    return text.strip()


def parse_path(text: str, option: str) -> str:
    parse_text(text, option)
    if rule := unexpanded_home(text):
        raise OptionError(option, f"{text}: {rule}")
    return text  # a path may begin or end with a blank


def parse_store_path(text: str, option: str) -> str:
    """A path, and not the address of a name server."""
    if rule := name_server(text):
        raise OptionError(option, f"{text}: {rule}; a directory of that name is ./{text}")
    return parse_path(text, option)


def parse_paths(text: str, option: str) -> tuple[str, ...]:
    """A JSON list, as Spark hands on `load([a, b])`."""
    paths = load_json(text, option)
    if not isinstance(paths, list) or not paths or not all(isinstance(path, str) and path for path in paths):
        raise OptionError(option, f"expected a JSON list of paths, found {text!r}")
    return tuple(parse_store_path(path, option) for path in paths)


def parse_comma_list(text: str, option: str) -> tuple[str, ...]:
    parts = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not parts:
        raise OptionError(option, f"expected names separated by commas, found {text!r}")
    return parts


def parse_pattern(text: str, option: str) -> re.Pattern[str]:
    try:
        return re.compile(parse_text(text, option), re.ASCII)  # as in Java, \d and \w are ASCII
    except re.error as error:
        raise OptionError(option, f"{text!r} is not a regular expression: {error}; .* stands for any text") from error


def parse_boolean(text: str, option: str) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise OptionError(option, f"expected true or false, found {text!r}")
    return text.strip().lower() == "true"


def parse_positive_long(text: str, option: str, greatest: int = MAX_OFFSET) -> int:
    if not re.fullmatch(r"[0-9]{1,19}", text.strip()) or not 1 <= int(text) <= greatest:
        raise OptionError(option, f"expected a whole number from 1 to {greatest}, found {text!r}")
    return int(text)


def parse_positive_int(text: str, option: str) -> int:
    return parse_positive_long(text, option, MAX_INT)


def parse_queue_ids(text: str, option: str) -> tuple[int, ...]:
    parts = parse_comma_list(text, option)
    if not all(re.fullmatch(r"[0-9]{1,10}", part) and int(part) <= MAX_INT for part in parts):
        raise OptionError(option, f"expected queue ids separated by commas, found {text!r}")
    return tuple(sorted({int(part) for part in parts}))


def parse_duration_ms(text: str, option: str) -> int:
    """`15m`, `500ms`; a number alone is ms, what is finer than a ms is cut off."""
    return _quantity(text, option, _DURATION_UNITS, "15m") // 1000


def parse_size_bytes(text: str, option: str) -> int:
    """`64m`, `1gb`, in powers of 1024; a number alone is bytes."""
    size = _quantity(text, option, _SIZE_UNITS, "64m")
    if not 1 <= size <= MAX_OFFSET:
        raise OptionError(option, f"expected from 1 to {MAX_OFFSET} bytes, found {text!r}")
    return size


def parse_time(text: str, option: str) -> TimePoint:
    """ms since the epoch | `-10m`: so long before the query starts | ISO-8601, UTC unless it says otherwise.

    Digits alone are always ms, never ISO's basic form of a date.
    """
    text = parse_text(text, option)
    if re.fullmatch(r"[0-9]+", text):
        if len(text) > 19 or int(text) > MAX_OFFSET:
            raise OptionError(option, f"{text} is greater than {MAX_OFFSET}")
        if rule := other_unit_rule(int(text)):
            raise OptionError(option, rule)
        return TimePoint(int(text))
    if re.fullmatch(r"-[0-9]+[A-Za-z]+", text):
        return TimePoint(parse_duration_ms(text[1:], option), before_now=True)
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        rule = "expected ms since the epoch, an ISO-8601 time (2026-01-31T10:00:00Z) or a time ago (-10m)"
        raise OptionError(option, f"{rule}, found {text!r}") from error
    since_epoch = (time if time.tzinfo else time.replace(tzinfo=UTC)) - datetime.fromtimestamp(0, UTC)
    if since_epoch < timedelta(0):
        raise OptionError(option, f"{text!r} lies before 1970")
    return TimePoint(since_epoch // timedelta(milliseconds=1))


def parse_start(text: str, option: str) -> Edge | Literal["group"] | AtOffsets:
    match text.strip().lower():
        case "earliest":
            return Edge.EARLIEST
        case "latest":
            return Edge.LATEST
        case "group":
            return "group"
    if not text.strip().startswith("{"):
        raise OptionError(option, f"expected earliest, latest, group or JSON with offsets, found {text!r}")
    return AtOffsets(option, parse_positions(text, option, lowest=EARLIEST))


def parse_end(text: str, option: str) -> Edge | AtOffsets:
    match text.strip().lower():
        case "latest":
            return Edge.LATEST
        case "earliest":
            raise OptionError(option, "a batch query cannot end at the earliest offset")
    if not text.strip().startswith("{"):
        raise OptionError(option, f"expected latest or JSON with offsets, found {text!r}")
    return AtOffsets(option, parse_positions(text, option, lowest=EARLIEST))


def parse_times(text: str, option: str) -> dict[NamedQueue, int]:
    """ms since the epoch for each queue."""
    times_ms = parse_positions(text, option)
    for queue, time_ms in times_ms.items():
        if rule := other_unit_rule(time_ms):
            raise OptionError(option, f"queue {queue}: {rule}")
    return times_ms


def parse_no_match(text: str, option: str) -> NoMatch:
    try:
        return NoMatch(text.strip().lower())
    except ValueError as error:
        raise OptionError(option, f"expected error or latest, found {text!r}") from error


def parse_mode(text: str, option: str) -> Literal["FAILFAST", "PERMISSIVE"]:
    match text.strip().upper():
        case "FAILFAST":
            return "FAILFAST"
        case "PERMISSIVE":
            return "PERMISSIVE"
        case "DROPMALFORMED":
            raise OptionError(option, "no message is dropped unseen: use PERMISSIVE and filter on `_corrupt IS NULL`")
    raise OptionError(option, f"expected FAILFAST or PERMISSIVE, found {text!r}")


def parse_tags(text: str, option: str) -> tuple[str, ...] | None:
    """Names between `||`, blanks around them dropped; `*` or nothing is None = all (FilterAPI.buildSubscriptionData).

    Java takes anything between two `||` for a tag. Here a name is refused that is more likely a list in another language, or a
    pattern: nothing would match it. A message may have such a tag; Spark's `where` finds it.
    """
    if text.strip() in ("", "*"):
        return None
    tags = tuple(dict.fromkeys(tag.strip() for tag in text.split("||") if tag.strip()))
    if not tags:
        raise OptionError(option, f"expected tags separated by || or *, found {text!r}")
    for tag in tags:
        if found := _NOT_IN_A_TAG.search(tag):
            raise OptionError(option, _tags_rule(text, tag, found[0]))
    return tags


def _tags_rule(text: str, tag: str, character: str) -> str:
    where = f'for a tag that holds it write .where("tags = {tag!r}")'
    if character == "*":
        return f"{tag!r} is no pattern: * stands alone, for all tags, and RocketMQ has no other; {where}"
    names = [name for name in _BETWEEN_TAGS.split(text) if name]
    if not all(map(_PLAIN_TAG.fullmatch, names)):  # an expression, which no list of tags can say
        return f"it takes tags separated by ||, as 'TagA || TagB', and {tag!r} holds {character!r}; {where}"
    return f"tags are separated by ||, and {tag!r} holds {character!r}: write {' || '.join(names)!r}; {where}"


def _quantity(text: str, option: str, units: Mapping[str, int], example: str) -> int:
    found = re.fullmatch(r"([0-9]{1,19})([a-z]*)", text.strip().lower())
    if found is None or found[2] not in units:
        known = names(unit for unit in units if unit)
        raise OptionError(option, f"expected a number and a unit ({known}), such as {example}; found {text!r}")
    return int(found[1]) * units[found[2]]
