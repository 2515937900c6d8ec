"""Bit maps of filters: for which groups a message's filter expressions were true, in a few bits. Pure.

A group has a few positions in the maps of a topic, and a message's map has the positions of every group whose expression is true for
it. So where one of a group's positions is not set, the group does not want the message; where all are, it may.
Bit p of a map is 1 << p % 8 of its byte p // 8.

Java: BloomFilter, BloomFilterData, BitsArray, and Guava's murmur3_128.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

_LONG = (1 << 64) - 1
_INT_BITS = 32
_C1, _C2 = 0x87C37B91114253D5, 0x4CF5AD432745937F
_BLOCK = 16
MapsOf = Callable[[Sequence[bytes]], np.ndarray]
"""The maps of messages, a row of bytes each, by their encoded properties."""
MapRule = Callable[[str], MapsOf | None]
"""Makes the maps of a topic's messages; None if no group filters it by an expression."""


class BloomFilter(NamedTuple):
    """The shape of all maps of a broker: how many positions a group has, and among how many bits."""

    hash_count: int
    bit_count: int

    @classmethod
    def of(cls, error_percent: int, expected_count: int) -> BloomFilter:
        """The shape in which so many groups collide at that rate. Raises ValueError. Java: createByFn."""
        if not 1 <= error_percent < 100:
            raise ValueError(f"the error rate is 1 to 99 %, not {error_percent}")
        if expected_count < 1:
            raise ValueError(f"the expected number is greater than 0, not {expected_count}")
        rate = error_percent / 100.0
        hash_count = math.ceil(_log(0.5, rate))
        bits = math.ceil(expected_count * _log(2, 1 / rate) * _log(2, math.e))
        return cls(hash_count, -(-bits // 8) * 8)

    def positions(self, key: str) -> tuple[int, ...]:
        """The positions of a key, which may be equal ones. Java: calcBitPositions."""
        low, high = _signed_halves(murmur3_low(key.encode()))
        found = []
        for number in range(1, self.hash_count + 1):
            combined = _signed(low + number * high)
            found.append((~combined if combined < 0 else combined) % self.bit_count)
        return tuple(found)

    def map_of(self, positions: Iterable[int]) -> np.ndarray:
        """A map in which these positions are set, as bytes."""
        bits = np.zeros(self.bit_count, np.uint8)
        bits[list(positions)] = 1
        return np.packbits(bits, bitorder="little")

    def maps(self, sets: Iterable[tuple[Iterable[int], np.ndarray]], count: int) -> np.ndarray:
        """The maps of `count` messages, a row each: each set of positions is in the maps of those that its mask names."""
        found = np.zeros((count, self.bit_count // 8), np.uint8)
        for positions, mask in sets:
            found[mask] |= self.map_of(positions)
        return found

    def has(self, maps: np.ndarray, positions: Iterable[int]) -> np.ndarray:
        """Which of the maps, a row each, have all of the positions."""
        wanted = self.map_of(positions)
        return np.asarray(((maps & wanted) == wanted).all(axis=1))


class BitTest(NamedTuple):
    """A group's positions. They are valid for messages stored after a time (ms): when the group was known."""

    shape: BloomFilter
    positions: tuple[int, ...]
    born_ms: int


def bit_text(bit_map: bytes) -> str:
    """The bits of a map, the last one first, in lines. Java: BitsArray.toString."""
    numbered = reversed(list(enumerate(bit_map)))
    return "".join(f"{byte:08b}" + ("\n" if number % 8 == 0 else "") for number, byte in numbered)


def murmur3_low(data: bytes) -> int:
    """The first 64 bits of MurmurHash3's x64 variant of 128 bits, seed 0, unsigned."""
    first = second = 0
    whole = len(data) // _BLOCK * _BLOCK
    for at in range(0, whole, _BLOCK):
        first ^= _mixed(int.from_bytes(data[at : at + 8], "little"), _C1, 31, _C2)
        first = ((_turned(first, 27) + second) * 5 + 0x52DCE729) & _LONG
        second ^= _mixed(int.from_bytes(data[at + 8 : at + _BLOCK], "little"), _C2, 33, _C1)
        second = ((_turned(second, 31) + first) * 5 + 0x38495AB5) & _LONG
    first ^= _mixed(int.from_bytes(data[whole : whole + 8], "little"), _C1, 31, _C2) ^ len(data)
    second ^= _mixed(int.from_bytes(data[whole + 8 :], "little"), _C2, 33, _C1) ^ len(data)
    first = (first + second) & _LONG
    second = (first + second) & _LONG
    return (_final(first) + _final(second)) & _LONG


def _mixed(word: int, before: int, bits: int, after: int) -> int:
    return _turned(word * before & _LONG, bits) * after & _LONG


def _turned(word: int, bits: int) -> int:
    return (word << bits | word >> (64 - bits)) & _LONG


def _final(word: int) -> int:
    word = (word ^ word >> 33) * 0xFF51AFD7ED558CCD & _LONG
    word = (word ^ word >> 33) * 0xC4CEB9FE1A85EC53 & _LONG
    return word ^ word >> 33


def _signed_halves(word: int) -> tuple[int, int]:
    return _signed(word), _signed(word >> _INT_BITS)


def _signed(number: int) -> int:
    """The lower half, as Java's int."""
    half = number & 0xFFFFFFFF
    return half - (half >> 31 << _INT_BITS)


def _log(base: float, number: float) -> float:
    return math.log(number) / math.log(base)
