"""Inputs for a decoder, made from valid ones: cut, flipped, repeated, spliced, with lengths and words put in that nobody expects.

Everything follows from the `Random` given. A tenth of the inputs owes nothing to a sample.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from random import Random

EXTREMES = (
    0,
    1,
    -1,
    2,
    19,
    20,
    91,
    127,
    128,
    255,
    256,
    32_767,
    32_768,
    65_535,
    2**31 - 1,
    -(2**31),
    2**63 - 1,
    -(2**63),
)
"""What fields of a length are set to."""

JSON_WORDS = (
    *(b"{", b"}", b"[", b"]", b":", b",", b'"', b"'", b"\\", b"\\u0000", b"\\ud800", b'"\\udfff\\ud800"', b"null", b"true"),
    *(b"NaN", b"Infinity", b"-0", b"0", b"-1", b"1e999", b"-1e-999", b"1.5", b"2147483648", b"9223372036854775808", b"1_000"),
    *(b"9" * 5_000, b"-" + b"1" * 4_301, b"0" * 5_000, b'"' + b"7" * 5_000 + b'"', b"{}", b"[]", b'""', b"[[[[", b"{0:{0:{0:"),
    *(b"\x00", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\xc0\x80", b"\xff", b"@", b"%", b"//", b"/*", b"$ref", b"\xd9\xa3", b"\xc2\xb2"),
)  # fmt: skip
"""What breaks readers of JSON and of numbers."""

PROPERTY_WORDS = (
    *(b"\x01", b"\x02", b"\x01\x01", b"\x02\x02", b"\x00", b"\xff", b"\xed\xa0\x80", b"\xf0\x9f\x98\x80", b"\xf0\x9f", b" "),
    *(b"TAGS\x01", b"KEYS\x01", b"UNIQ_KEY\x01", b"DELAY\x01", b"REAL_TOPIC\x01", b"REAL_QID\x01", b"TIMER_OUT_MS\x01"),
    *(b"TIMER_DELIVER_MS\x01", b"TIMER_DELAY_SEC\x01", b"TIMER_DEL_UNIQKEY\x01", b"TIMER_ROLL_TIMES\x01", b"INNER_NUM\x01"),
    *(b"TRAN_MSG\x01true", b"TRAN_PREPARED_QUEUE_OFFSET\x01", b"TRANSACTION_CHECK_TIMES\x01", b"CHECK_IMMUNITY_TIME_IN_SECONDS\x01"),
    *(b"9" * 5_000, b"0" * 5_000 + b"1", b"-" + b"0" * 30, b"+7", b"-1", b"2147483648", b"9223372036854775808", b"\xd9\xa3"),
    *(b"../../etc", b"a/b", b".", b"..", b"%RETRY%", b"true", b"1e3", b"0x10"),
)  # fmt: skip
"""What breaks readers of properties."""

PROPERTIES_FILE_WORDS = (
    *(b"\n", b"\r", b"\r\n", b"\\\n", b"\\", b"\\u", b"\\u00zz", b"\\u0000", b"=", b":", b"#", b"!", b" ", b"\t", b"\x0c", b"\xff"),
    *(b"mappedFileSizeCommitLog=", b"maxMessageSize=-1\n", b"messageDelayLevel=", b"1s 2", b"9" * 5_000, b"-1", b"NaN", b"1e999"),
    *(b"storePathCommitLog=a,b,,\n", b"deleteWhen=", b"99;", b"flushDiskType=", b"brokerId=9223372036854775808\n", b"1d"),
    b"9" * 40 + b"d",
)  # fmt: skip
"""What breaks readers of java.util.Properties."""


class Mutator:
    """An endless row of inputs."""

    def __init__(
        self, random: Random, samples: Sequence[bytes], words: Sequence[bytes] = (), *, max_bytes: int
    ) -> None:
        """`words` are put in whole; no input has more than `max_bytes`."""
        assert samples, "an input is made from something"
        self._random = random
        self._samples = samples
        self._words = words
        self._max_bytes = max_bytes
        self._changes: tuple[Callable[[bytearray], None], ...] = (
            *(self._flip_bit, self._flip_bit, self._set_byte, self._insert, self._delete, self._truncate, self._splice),
            *(self._set_length, self._set_length, self._repeat, self._swap),
            *((self._put_word, self._put_word, self._put_word) if words else ()),
        )

    def next(self) -> bytes:
        """The next input."""
        if self._random.random() < 0.1:
            return self._random.randbytes(self._random.choice((0, 1, 7, 8, 20, 91, 300)))
        content = bytearray(self._random.choice(self._samples))
        for _ in range(self._random.choice((1, 1, 1, 2, 3, 5))):
            self._random.choice(self._changes)(content)
        return bytes(content[: self._max_bytes])

    def cuts(self, most: int) -> Iterator[bytes]:
        """A sample cut at every byte; of a long one at `most` of them."""
        sample = self._random.choice(self._samples)
        places = range(len(sample)) if len(sample) <= most else sorted(self._random.sample(range(len(sample)), most))
        for place in places:
            yield sample[:place]

    def _place(self, content: bytearray) -> int:
        return self._random.randrange(len(content) + 1)

    def _flip_bit(self, content: bytearray) -> None:
        if content:
            content[self._random.randrange(len(content))] ^= 1 << self._random.randrange(8)

    def _set_byte(self, content: bytearray) -> None:
        if content:
            content[self._random.randrange(len(content))] = self._random.choice((0, 1, 2, 0x22, 0x7F, 0x80, 0xFF))

    def _insert(self, content: bytearray) -> None:
        place = self._place(content)
        content[place:place] = self._random.randbytes(self._random.choice((1, 1, 2, 4, 8, 20)))

    def _delete(self, content: bytearray) -> None:
        place = self._place(content)
        del content[place : place + self._random.choice((1, 1, 2, 4, 8, 20, 100))]

    def _truncate(self, content: bytearray) -> None:
        del content[self._place(content) :]

    def _splice(self, content: bytearray) -> None:
        other = self._random.choice(self._samples)
        content[self._place(content) :] = other[self._random.randrange(len(other) + 1) :]

    def _set_length(self, content: bytearray) -> None:
        """A signed number, as the layouts have them, of one, two, four or eight bytes."""
        code, size = self._random.choice((("b", 1), ("h", 2), ("i", 4), ("i", 4), ("q", 8)))
        if len(content) >= size:
            bits = 8 * size
            value = self._random.choice(EXTREMES) + self._random.choice((0, 0, 0, -1, 1))
            value = (value + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)
            order = self._random.choice(">><")
            struct.pack_into(order + code, content, self._random.randrange(len(content) - size + 1), value)

    def _repeat(self, content: bytearray) -> None:
        place = self._place(content)
        piece = content[place : place + self._random.choice((1, 4, 20, 100, 1_000))]
        content[place:place] = piece * self._random.choice((1, 2, 10, 100))

    def _swap(self, content: bytearray) -> None:
        """Two pieces of equal length change places."""
        size = self._random.choice((1, 4, 8, 20))
        if len(content) >= size:
            one, two = (self._random.randrange(len(content) - size + 1) for _ in range(2))
            content[one : one + size], content[two : two + size] = content[two : two + size], content[one : one + size]

    def _put_word(self, content: bytearray) -> None:
        place = self._place(content)
        content[place : place + self._random.choice((0, 0, 1, 3, 8))] = self._random.choice(self._words)


def smallest(content: bytes, fails: Callable[[bytes], bool], tries: int = 400) -> bytes:
    """A shorter input that fails still: pieces are left out as long as it does, greater ones first."""
    size = max(1, len(content) // 2)
    start = 0
    while tries > 0 and content:
        if start >= len(content):
            if size == 1:
                break
            size, start = size // 2, 0
        shorter = content[:start] + content[start + size :]
        tries -= 1
        if fails(shorter):
            content = shorter
        else:
            start += size
    return content
