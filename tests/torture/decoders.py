"""A decoder as the fuzzing sees it: what it is given, what may come of it, and what must not.

What a decoder may raise is part of its promise, so each names it. Anything else that gets out, an AssertionError of a comparison
among it, is a finding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.torture.mutations import JSON_WORDS
from tests.torture.samples import Samples


@dataclass(frozen=True, slots=True)
class Decoder:
    """One way from bytes that anybody may have written to values."""

    name: str
    samples: Callable[[Samples], Sequence[bytes]]
    """Valid inputs, to be made worse."""
    read: Callable[[bytes, Path], bool]
    """Decodes one input and compares what there is to compare; whether it was taken for valid. The directory is its own."""
    declared: tuple[type[Exception], ...] = ()
    """What may be raised."""
    words: Sequence[bytes] = ()
    inputs: int = 1_000
    """How many of a round's inputs go to it."""
    max_bytes: int = 1 << 16
    memory_bytes: int = 64 << 20
    """What any input may take, besides twenty times its own size."""
    bombs: Callable[[], Sequence[bytes]] = tuple
    """Great or deep inputs, each given once a round: brackets without end, a body that grows, a megabyte of separators."""


def nested(*pairs: tuple[bytes, bytes], depth: int = 100_000) -> tuple[bytes, ...]:
    """Brackets in brackets, closed and left open."""
    return tuple(part for opening, closing in pairs for part in (opening * depth, opening * depth + closing * depth))


JSON_TOWERS = (
    *nested((b"[", b"]"), (b'{"a":', b"}"), (b"{0:[", b"]}")),
    *nested((b"[", b"]"), (b'{"a":', b"}"), depth=400),
    b'{"a":' + b"9" * 1_000_000 + b"}",
    b'"' + b"\\" * 1_000_001,
    b"'" + b'"' * 1_000_000 + b"'",
    b" " * 1_000_000 + b"{}",
)
JSON_BOMBS = (
    *JSON_TOWERS,
    b"{" + b",".join(b'"%d":%d' % (number % 50_000, number) for number in range(100_000)) + b"}",
)


def of_json(
    name: str,
    samples: Callable[[Samples], Sequence[bytes]],
    read: Callable[[bytes, Path], bool],
    declared: tuple[type[Exception], ...] = (),
    *,
    inputs: int = 400,
    bombs: Sequence[bytes] = JSON_BOMBS,
    memory_bytes: int = 64 << 20,
) -> Decoder:
    """A decoder of a JSON text."""
    return Decoder(name, samples, read, declared, JSON_WORDS, inputs, memory_bytes=memory_bytes, bombs=lambda: bombs)
