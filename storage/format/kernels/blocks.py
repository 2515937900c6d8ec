"""More words for kernels: signed lengths, 64 bytes at once as bit masks, hexadecimal digits. Bounds as in `ground.py`."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from storage.format.kernels.ground import I1, I8, I16, I64, _loader, _pointer, inline

BLOCK = 64
"""Bytes that a mask is made of."""
i8 = _loader(I8, signed=True)
be_i16 = _loader(I16, swap=True, signed=True)


def _mask(build: Any) -> Any:
    @intrinsic
    def mask(typingctx, array, position):
        def codegen(context, builder, signature, args):
            kind = ir.VectorType(I8, BLOCK)
            address = _pointer(context, builder, signature, args, 0, args[1], ir.Constant(I64, BLOCK))
            value = builder.load(builder.bitcast(address, kind.as_pointer()), align=1)
            return builder.bitcast(build(builder, value, kind), I64)

        return types.uint64(array, types.int64), codegen

    return mask


def _all(kind: Any, value: int) -> Any:
    return ir.Constant(kind, [value] * BLOCK)


separators = _mask(
    lambda builder, value, kind: builder.icmp_unsigned("<", builder.sub(value, _all(kind, 1)), _all(kind, 2))
)
"""Which of 64 bytes are 1 or 2; the first one is the lowest bit."""
high_bytes = _mask(lambda builder, value, kind: builder.icmp_signed("<", value, _all(kind, 0)))
"""Which of 64 bytes are 128 or more."""


@intrinsic
def lowest_bit(typingctx, mask):
    """The number of the lowest bit that is set."""

    def codegen(context, builder, signature, args):
        return builder.cttz(args[0], ir.Constant(I1, 0))

    return types.int64(types.uint64), codegen


@intrinsic
def low_bits(typingctx, count):
    """A mask of the lowest `count` bits, 1 to 64."""

    def codegen(context, builder, signature, args):
        return builder.lshr(ir.Constant(I64, -1), builder.sub(ir.Constant(I64, 64), args[0]))

    return types.uint64(types.int64), codegen


@intrinsic
def without_low_bits(typingctx, mask, count):
    """A mask moved down by `count` bits, 0 to 63."""

    def codegen(context, builder, signature, args):
        return builder.lshr(args[0], args[1])

    return types.uint64(types.uint64, types.int64), codegen


@inline
def hex8(word):
    """Eight upper-case hexadecimal digits, in memory order, of four bytes that `le_u32` loaded."""
    spread = (word | (word << 16)) & 0x0000FFFF0000FFFF
    spread = (spread | (spread << 8)) & 0x00FF00FF00FF00FF
    digits = ((spread >> 4) & 0x000F000F000F000F) | ((spread & 0x000F000F000F000F) << 8)
    return digits + 0x3030303030303030 + (((digits + 0x0606060606060606) >> 4) & 0x0101010101010101) * 7
