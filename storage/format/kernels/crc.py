"""CRC-32 as zlib's, inside of kernels: carry-less multiplication of 256 or 64 bytes a step, a table for what is left.

The constants are x^(8·n ± 32) modulo the polynomial, bits reversed (Gopal and others, "Fast CRC Computation for Generic Polynomials
Using PCLMULQDQ Instruction", 2009). Only for processors that multiply so: `IS_FAST`; elsewhere isal is as good. Steps of 256 bytes
are for those that multiply 64 bytes at once: `IS_WIDE`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.extending import intrinsic

from storage.format.kernels.ground import I8, I32, I64, _pointer, inline, le_i64, u8

_FEATURES = binding.get_host_cpu_features()
IS_FAST = bool(_FEATURES.get("pclmul"))
IS_WIDE = IS_FAST and all(_FEATURES.get(name) for name in ("vpclmulqdq", "avx512f"))
"""Whether four such multiplications are one instruction."""
_POLYNOMIAL = 0xEDB88320
_BY_256_BYTES = 0x11542778A, 0x1322D1430
_BY_64_BYTES = 0x154442BD4, 0x1C6E41596
_BY_16_BYTES = 0x1751997D0, 0x0CCAA009E
_LANES = 4


def _tables() -> np.ndarray:
    """Row k: the register after a byte and k zero bytes."""
    table = np.zeros((8, 256), np.int64)
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
        table[0, byte] = value
    for row in range(1, 8):
        table[row] = (table[row - 1] >> 8) ^ table[0, table[row - 1] & 0xFF]
    return table


_TABLE = _tables()


def _either(b: Any, one: tuple[Any, list[Any]], other: tuple[Any, list[Any]]) -> list[Any]:
    """The values that belong to the block from which this one is reached."""
    values = []
    for pair in zip(one[1], other[1], strict=True):
        values.append(b.phi(pair[0].type))
        for value, (block, _) in zip(pair, (one, other), strict=True):
            values[-1].add_incoming(value, block)
    return values


class _Folding:
    """Instructions that fold registers of `parts` times 16 bytes over bytes that follow."""

    def __init__(self, b: Any, parts: int) -> None:
        self._b = b
        self._parts = parts
        self.type = ir.VectorType(I64, 2 * parts)
        name = "llvm.x86.pclmulqdq" + (f".{128 * parts}" if parts > 1 else "")
        kind = ir.FunctionType(self.type, [self.type, self.type, I8])
        self._multiply = b.module.globals.get(name) or ir.Function(b.module, kind, name)

    def read(self, base: Any, offset: Any) -> list[Any]:
        """The next four registers."""
        sizes = [ir.Constant(I64, 16 * self._parts * number) for number in range(_LANES)]
        places = [self._b.gep(base, [self._b.add(offset, size)]) for size in sizes]
        return [self._b.load(self._b.bitcast(place, self.type.as_pointer()), align=1) for place in places]

    def begin(self, base: Any, crc: Any) -> list[Any]:
        """The first four registers."""
        first, *others = self.read(base, ir.Constant(I64, 0))
        before = self._b.insert_element(ir.Constant(self.type, [0] * 2 * self._parts), crc, ir.Constant(I32, 0))
        return [self._b.xor(first, before), *others]

    def over(self, value: Any, following: Any, constants: tuple[int, int]) -> Any:
        """A register whose bytes lie as far before others as the constants say, and those others, in one."""
        b, factors = self._b, ir.Constant(self.type, list(constants) * self._parts)
        low, high = (b.call(self._multiply, [value, factors, ir.Constant(I8, half)]) for half in (0x00, 0x11))
        return b.xor(b.xor(low, high), following)

    def loop(
        self, base: Any, lanes: list[Any], offset: Any, end: Any, constants: tuple[int, int]
    ) -> tuple[list[Any], Any]:
        """Four registers folded over whole steps until `end`, and where that is."""
        b, width = self._b, ir.Constant(I64, 16 * self._parts * _LANES)
        before, body, behind = b.block, b.append_basic_block("fold"), b.append_basic_block("folded")
        b.cbranch(b.icmp_signed("<=", b.add(offset, width), end), body, behind)
        b.position_at_end(body)
        at, values = b.phi(I64), [b.phi(self.type) for _ in lanes]
        folded = [
            self.over(value, following, constants) for value, following in zip(values, self.read(base, at), strict=True)
        ]
        after = b.add(at, width)
        for phi, start, following in zip([at, *values], [offset, *lanes], [after, *folded], strict=True):
            phi.add_incoming(start, before)
            phi.add_incoming(following, body)
        b.cbranch(b.icmp_signed("<=", b.add(after, width), end), body, behind)
        b.position_at_end(behind)
        *ends, stop = _either(b, (before, [*lanes, offset]), (body, [*folded, after]))
        return ends, stop


@intrinsic
def _fold(typingctx, array, position, count, crc):
    """The register `crc` and `count` bytes (a multiple of 64, at least 64) as 16 bytes with the same remainder, in two words."""

    def codegen(context, b, signature, args):
        base = _pointer(context, b, signature, args, 0, args[1], args[2])
        narrow = _Folding(b, 1)
        lanes, offset = narrow.begin(base, args[3]), ir.Constant(I64, 64)
        if IS_WIDE:
            lanes, offset = _begin_wide(b, base, args[2], args[3], (lanes, offset))
        lanes, _ = narrow.loop(base, lanes, offset, args[2], _BY_64_BYTES)
        value = lanes[0]
        for following in lanes[1:]:
            value = narrow.over(value, following, _BY_16_BYTES)
        words = [b.extract_element(value, ir.Constant(I32, number)) for number in range(2)]
        return context.make_tuple(b, signature.return_type, words)

    words = types.UniTuple(types.int64, 2)
    return words(array, types.int64, types.int64, types.int64), codegen


def _begin_wide(b: Any, base: Any, count: Any, crc: Any, short: tuple[list[Any], Any]) -> tuple[list[Any], Any]:
    """Four registers of 16 bytes and where they end: `short`, but of a long stretch what four of 64 bytes fold it to."""
    step = ir.Constant(I64, 64 * _LANES)
    before, long, behind = b.block, b.append_basic_block("wide"), b.append_basic_block("begun")
    b.cbranch(b.icmp_signed(">=", count, step), long, behind)
    b.position_at_end(long)
    wide = _Folding(b, _LANES)
    registers, offset = wide.loop(base, wide.begin(base, crc), step, count, _BY_256_BYTES)
    value = registers[0]
    for following in registers[1:]:
        value = wide.over(value, following, _BY_64_BYTES)
    undefined = ir.Constant(wide.type, ir.Undefined)
    pairs = [ir.Constant(ir.VectorType(I32, 2), [2 * number, 2 * number + 1]) for number in range(_LANES)]
    lanes = [b.shuffle_vector(value, undefined, pair) for pair in pairs]
    folded = b.block
    b.branch(behind)
    b.position_at_end(behind)
    *ends, end = _either(b, (before, [*short[0], short[1]]), (folded, [*lanes, offset]))
    return ends, end


@inline
def _of_word(word):
    """The register after a word, which holds the register before in its lowest bits."""
    return (
        _TABLE[7, word & 255]
        ^ _TABLE[6, (word >> 8) & 255]
        ^ _TABLE[5, (word >> 16) & 255]
        ^ _TABLE[4, (word >> 24) & 255]
        ^ _TABLE[3, (word >> 32) & 255]
        ^ _TABLE[2, (word >> 40) & 255]
        ^ _TABLE[1, (word >> 48) & 255]
        ^ _TABLE[0, (word >> 56) & 255]
    )


@inline
def crc32(array, position, count):
    """`zlib.crc32` of bytes [position, position + count)."""
    crc = np.int64(0xFFFFFFFF)
    done = np.int64(0)
    if IS_FAST and count >= 64:  # elsewhere the branch is not even compiled
        done = count & ~np.int64(63)
        low, high = _fold(array, position, done, crc)
        crc = _of_word(_of_word(low) ^ high)
    while count - done >= 8:
        crc = _of_word(le_i64(array, position + done) ^ crc)
        done += 8
    while done < count:
        crc = _TABLE[0, (crc ^ u8(array, position + done)) & 255] ^ (crc >> 8)
        done += 1
    return crc ^ np.int64(0xFFFFFFFF)
