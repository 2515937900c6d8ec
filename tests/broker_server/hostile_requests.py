"""Requests that nobody means well with, made from honest ones: every field with every bad value, bodies of every bad kind."""

from __future__ import annotations

import gzip
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from random import Random

from spark_mq.broker.request_table import REQUEST_TABLE
from spark_mq.remoting import REQUEST_BODIES, HeaderEncoding, RemotingCommand
from tests.torture.decoders import JSON_BOMBS
from tests.torture.mutations import JSON_WORDS, PROPERTY_WORDS, Mutator

ESCAPED = "escaped-from-the-store"
"""What a way out of the store would make, or part of its name."""
NAMES = (
    "",
    " ",
    ".",
    "..",
    "/",
    f"../../{ESCAPED}",
    f"../{ESCAPED}",
    f"%RETRY%../../../{ESCAPED}",
    f"%DLQ%/../../../{ESCAPED}",
    f"a/../../../{ESCAPED}",
    f"..\\..\\{ESCAPED}",
    f"a\x00{ESCAPED}",
    "\x00",
    "\n",
    "x" * 300,
    "%RETRY%" + "y" * 250,
    "é" * 100,
    "\ud800",
    "%s%n%x",
    "${java:version}",
    "|",
    "%",
)
NUMBERS = (
    "-1",
    "-2147483648",
    "2147483647",
    "2147483648",
    "9223372036854775807",
    "-9223372036854775808",
    "99999999999999999999",
    "1e999",
    "0x10",
    "NaN",
    "١",
    "9" * 5_000,
    "1_000",
    "+7",
    "true",
)
_BODIES = (
    b"",
    b"{}",
    b"[]",
    b"null",
    b"{",
    b"\xff" * 100,
    bytes(100),
    b"[" * 10_000,
    gzip.compress(bytes(1 << 24), 9),
    zlib.compress(bytes(1 << 24), 9),
)
_COMPRESSED = {"sysFlag": "1", "f": "1"}


def by_code(commands: Iterable[RemotingCommand]) -> dict[int, list[RemotingCommand]]:
    """Those of the table's codes."""
    found: defaultdict[int, list[RemotingCommand]] = defaultdict(list)
    for command in commands:
        if command.code in REQUEST_TABLE:
            found[command.code].append(command)
    return dict(found)


def bad_fields(honest: Sequence[RemotingCommand], *more_names: str) -> Iterator[RemotingCommand]:
    """A command of a code for each of its fields and each bad value, and for each field left out, in both encodings by turns."""
    fullest = max(honest, key=lambda command: len(command.ext_fields or {}))
    fields = dict(fullest.ext_fields or {})
    for number, name in enumerate(fields):
        for turn, value in enumerate((None, *NAMES, *more_names, *NUMBERS)):
            changed = {key: text for key, text in fields.items() if key != name}
            if value is not None:
                changed[name] = value
            yield _encoded(fullest._replace(ext_fields=changed), number + turn)


def bad_bodies(honest: Sequence[RemotingCommand], random: Random, count: int) -> Iterator[RemotingCommand]:
    """Commands of a code with bodies that are none, that say they are compressed, that never end, and nearly right ones."""
    command = max(honest, key=lambda one: len(one.body))
    for number, body in enumerate((*_BODIES, *(JSON_BOMBS if command.code in REQUEST_BODIES else ()))):
        yield _encoded(command._replace(body=body), number)
        fields = {
            **(command.ext_fields or {}),
            **{n: t for n, t in _COMPRESSED.items() if n in (command.ext_fields or {})},
        }
        yield _encoded(command._replace(body=body, ext_fields=fields), number)
    bodies = [bytes(one.body) for one in honest if one.body]
    if bodies:
        mutator = Mutator(random, bodies, (*JSON_WORDS, *PROPERTY_WORDS), max_bytes=1 << 16)
        for number in range(count):
            yield _encoded(random.choice(honest)._replace(body=mutator.next()), number)


def bad_mixtures(
    honest: Mapping[int, Sequence[RemotingCommand]], random: Random, count: int
) -> Iterator[RemotingCommand]:
    """Commands of all codes with several things wrong at once: values, fields of others, code, flags, version."""
    commands = [command for each in honest.values() for command in each]
    values = NAMES + NUMBERS
    for number in range(count):
        command = random.choice(commands)
        fields = dict(command.ext_fields or {})
        for name in random.sample(sorted(fields), min(len(fields), random.randint(0, 3))):
            fields[name] = random.choice(values)
        if random.random() < 0.2:
            fields |= random.choice(commands).ext_fields or {}
        if random.random() < 0.1:
            fields[random.choice(values)] = random.choice(values)
        changed = command._replace(ext_fields=fields, version=random.choice((command.version, 0, -1, 32_767)))
        if random.random() < 0.1:
            changed = changed._replace(code=random.choice(sorted(honest)))
        if random.random() < 0.05:
            changed = changed._replace(flag=random.choice((1, 2, 3, -1, 2**31 - 1)))
        yield _encoded(changed, number)


def _encoded(command: RemotingCommand, number: int) -> RemotingCommand:
    return command._replace(encoding=list(HeaderEncoding)[number % 2])
