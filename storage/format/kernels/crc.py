"""CRC-32 as zlib's, inside of kernels: carry-less multiplication of 64 bytes a step, a table for what is left.

The constants are x^(8·n ± 32) modulo the polynomial, bits reversed (Gopal and others, "Fast CRC Computation for Generic Polynomials
Using PCLMULQDQ Instruction", 2009). Only for processors that multiply so: `IS_FAST`; elsewhere isal is as good.
"""

from __future__ import annotations

import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.extending import intrinsic

from storage.format.kernels.ground import I8, I32, I64, _pointer, inline, le_i64, u8

IS_FAST = bool(binding.get_host_cpu_features().get("pclmul"))
_POLYNOMIAL = 0xEDB88320
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


@intrinsic
def _fold(typingctx, array, position, count, crc):
    """The register `crc` and `count` bytes (a multiple of 64, at least 64) as 16 bytes with the same remainder, in two words."""

    def codegen(context, b, signature, args):
        pair = ir.VectorType(I64, 2)
        base = _pointer(context, b, signature, args, 0, args[1], args[2])
        name = "llvm.x86.pclmulqdq"
        multiply = b.module.globals.get(name) or ir.Function(b.module, ir.FunctionType(pair, [pair, pair, I8]), name)

        def step(value, constants):
            low = b.call(multiply, [value, constants, ir.Constant(I8, 0x00)])
            return b.xor(low, b.call(multiply, [value, constants, ir.Constant(I8, 0x11)]))

        def lane(offset, number):
            place = b.gep(base, [b.add(offset, ir.Constant(I64, 16 * number))])
            return b.load(b.bitcast(place, pair.as_pointer()), align=1)

        by_64, by_16 = ir.Constant(pair, list(_BY_64_BYTES)), ir.Constant(pair, list(_BY_16_BYTES))
        first = [lane(ir.Constant(I64, 0), number) for number in range(_LANES)]
        first[0] = b.xor(first[0], b.insert_element(ir.Constant(pair, [0, 0]), args[3], ir.Constant(I32, 0)))
        before, loop, behind = b.block, b.append_basic_block("fold"), b.append_basic_block("folded")
        b.cbranch(b.icmp_signed(">", args[2], ir.Constant(I64, 64)), loop, behind)
        b.position_at_end(loop)
        offset, lanes = b.phi(I64), [b.phi(pair) for _ in range(_LANES)]
        folded = [b.xor(step(value, by_64), lane(offset, number)) for number, value in enumerate(lanes)]
        after = b.add(offset, ir.Constant(I64, 64))
        offset.add_incoming(ir.Constant(I64, 64), before)
        offset.add_incoming(after, loop)
        for value, start, next_value in zip(lanes, first, folded, strict=True):
            value.add_incoming(start, before)
            value.add_incoming(next_value, loop)
        b.cbranch(b.icmp_signed("<", after, args[2]), loop, behind)
        b.position_at_end(behind)
        ends = [b.phi(pair) for _ in range(_LANES)]
        for end, start, next_value in zip(ends, first, folded, strict=True):
            end.add_incoming(start, before)
            end.add_incoming(next_value, loop)
        value = ends[0]
        for end in ends[1:]:
            value = b.xor(step(value, by_16), end)
        words = [b.extract_element(value, ir.Constant(I32, number)) for number in range(2)]
        return context.make_tuple(b, signature.return_type, words)

    words = types.UniTuple(types.int64, 2)
    return words(array, types.int64, types.int64, types.int64), codegen


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
    if count >= 64:
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
