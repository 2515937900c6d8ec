"""What kernels stand on: how they are compiled, and loads and stores at any byte of a `uint8` array.

    @kernel("int64(uint8[::1], int64)")     explicit signature: compiled, or taken from the cache, where the module is imported
    @inline                                 a part of kernels

A load or store of a kernel looks at no bounds, as NumPy arrays in kernels do: a kernel makes sure that rows lie in their buffers before
it touches them. With `SPARK_MQ_KERNELS=check` each one looks, and raises IndexError. Nothing is read or written behind the end of a
stretch, not even for a moment, so no buffer needs slack.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, TypeVar

from isal import isal_zlib
from llvmlite import binding, ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from storage.compiler import COMPILED, check_cache, is_caching

F = TypeVar("F", bound=Callable[..., Any])
IS_CHECKED = COMPILED.mode == "check"
_OPTIONS = {"error_model": "numpy", "boundscheck": IS_CHECKED, "_nrt": False}
"""Without Numba's counts of references, which cost more than most loops do: a kernel makes no arrays, it is given them."""
READ = types.Array(types.uint8, 1, "C", readonly=True)
"""A `uint8` array that a kernel only reads. A writable one fits too (`compiled.sealed` makes it so)."""
READ_INT64 = types.Array(types.int64, 1, "C", readonly=True)
BYTES, BYTE_ROWS = (types.Array(types.uint8, dimensions, "C") for dimensions in (1, 2))
INTS, INT_ROWS = (types.Array(types.int32, dimensions, "C") for dimensions in (1, 2))
LONGS, LONG_ROWS = (types.Array(types.int64, dimensions, "C") for dimensions in (1, 2))
LONG = types.int64

_intrinsic: Callable[[Callable[..., Any]], Callable[..., Any]] = intrinsic
I1, I8, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
BLOCK = 64
"""Bytes that a mask is made of."""
_VECTOR = ir.VectorType(I8, 16)


def kernel(*signatures: Any) -> Callable[[F], F]:
    """Compile a function for these signatures; it runs without the GIL. Raises Unusable where Numba would keep it in another place."""

    def compiled(function: F) -> F:
        dispatcher = njit(nogil=True, cache=is_caching(), **_OPTIONS)(function)
        if is_caching():
            check_cache(dispatcher.stats.cache_path)
        for signature in signatures:
            dispatcher.compile(signature)
        dispatcher.disable_compile()
        return dispatcher

    return compiled


def inline(function: F) -> F:
    """A part of kernels, compiled into each of them."""
    return njit(nogil=True, forceinline=True, **_OPTIONS)(function)


def _pointer(context: Any, builder: Any, signature: Any, args: Any, number: int, position: Any, size: Any) -> Any:
    """The address of byte `position` of an array, for an access of `size` bytes."""
    array = context.make_array(signature.args[number])(context, builder, args[number])
    if IS_CHECKED:
        zero = ir.Constant(I64, 0)
        count = cgutils.unpack_tuple(builder, array.shape)[0]
        wrong = builder.or_(
            builder.or_(builder.icmp_signed("<", position, zero), builder.icmp_signed("<", size, zero)),
            builder.icmp_signed(">", position, builder.sub(count, size)),
        )
        with cgutils.if_unlikely(builder, wrong):
            context.call_conv.return_user_exc(builder, IndexError, (f"argument {number} is left",))
    return builder.gep(builder.bitcast(array.data, I8.as_pointer()), [position])


def _loader(kind: Any, *, swap: bool = False, signed: bool = False) -> Any:
    @_intrinsic
    def load(typingctx: Any, array: Any, position: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            size = ir.Constant(I64, kind.width // 8)
            address = _pointer(context, builder, signature, args, 0, args[1], size)
            value = builder.load(builder.bitcast(address, kind.as_pointer()), align=1)
            if swap:
                value = builder.bswap(value)
            if kind is I64:
                return value
            return builder.sext(value, I64) if signed else builder.zext(value, I64)

        return types.int64(array, types.int64), codegen

    return load


u8 = _loader(I8)
i8 = _loader(I8, signed=True)
be_i16 = _loader(I16, swap=True, signed=True)
be_i32 = _loader(I32, swap=True, signed=True)
be_u32 = _loader(I32, swap=True)
be_i64 = _loader(I64, swap=True, signed=True)
le_u32 = _loader(I32)
le_i64 = _loader(I64, signed=True)


@_intrinsic
def put_le64(typingctx: Any, array: Any, position: Any, value: Any) -> Any:
    """Store a word."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address = _pointer(context, builder, signature, args, 0, args[1], ir.Constant(I64, 8))
        builder.store(args[2], builder.bitcast(address, I64.as_pointer()), align=1)
        return context.get_dummy_value()

    return types.void(array, types.int64, types.int64), codegen


@_intrinsic
def put_be32(typingctx: Any, array: Any, position: Any, value: Any) -> Any:
    """Store the lowest 32 bits of a word, the highest byte first."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address = _pointer(context, builder, signature, args, 0, args[1], ir.Constant(I64, 4))
        value = builder.bswap(builder.trunc(args[2], I32))
        builder.store(value, builder.bitcast(address, I32.as_pointer()), align=1)
        return context.get_dummy_value()

    return types.void(array, types.int64, types.int64), codegen


@_intrinsic
def copy16(typingctx: Any, target: Any, at: Any, source: Any, begin: Any) -> Any:
    """Copy 16 bytes: source[begin:] to target[at:]."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        length = ir.Constant(I64, 16)
        of = _pointer(context, builder, signature, args, 2, args[3], length)
        to = _pointer(context, builder, signature, args, 0, args[1], length)
        value = builder.load(builder.bitcast(of, _VECTOR.as_pointer()), align=1)
        builder.store(value, builder.bitcast(to, _VECTOR.as_pointer()), align=1)
        return context.get_dummy_value()

    return types.void(target, types.int64, source, types.int64), codegen


@_intrinsic
def memcpy(typingctx: Any, target: Any, at: Any, source: Any, begin: Any, count: Any) -> Any:
    """Copy `count` bytes, for long stretches: source[begin:] to target[at:]."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        to = _pointer(context, builder, signature, args, 0, args[1], args[4])
        of = _pointer(context, builder, signature, args, 2, args[3], args[4])
        function = builder.module.declare_intrinsic("llvm.memcpy", [I8.as_pointer(), I8.as_pointer(), I64])
        builder.call(function, [to, of, args[4], ir.Constant(I1, 0)])
        return context.get_dummy_value()

    return types.void(target, types.int64, source, types.int64, types.int64), codegen


def _mask(build: Any) -> Any:
    @_intrinsic
    def mask(typingctx: Any, array: Any, position: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
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


@_intrinsic
def lowest_bit(typingctx: Any, mask: Any) -> Any:
    """The number of the lowest bit that is set."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(I1, 0))

    return types.int64(types.uint64), codegen


@_intrinsic
def low_bits(typingctx: Any, count: Any) -> Any:
    """A mask of the lowest `count` bits, 1 to 64."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.lshr(ir.Constant(I64, -1), builder.sub(ir.Constant(I64, 64), args[0]))

    return types.uint64(types.int64), codegen


@_intrinsic
def without_low_bits(typingctx: Any, mask: Any, count: Any) -> Any:
    """A mask moved down by `count` bits, 0 to 63."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.lshr(args[0], args[1])

    return types.uint64(types.uint64, types.int64), codegen


@inline
def hex8(word: Any) -> Any:
    """Eight upper-case hexadecimal digits, in memory order, of four bytes that `le_u32` loaded."""
    spread = (word | (word << 16)) & 0x0000FFFF0000FFFF
    spread = (spread | (spread << 8)) & 0x00FF00FF00FF00FF
    digits = ((spread >> 4) & 0x000F000F000F000F) | ((spread & 0x000F000F000F000F) << 8)
    return digits + 0x3030303030303030 + (((digits + 0x0606060606060606) >> 4) & 0x0101010101010101) * 7


@inline
def same(one: Any, at: Any, other: Any, begin: Any, count: Any) -> Any:
    """Whether two stretches of `count` bytes are equal. Exactly those are read."""
    if count >= 8:
        done = 0
        while count - done >= 8:
            if le_i64(one, at + done) != le_i64(other, begin + done):
                return False
            done += 8
        return done == count or le_i64(one, at + count - 8) == le_i64(other, begin + count - 8)
    if count >= 4:
        return (le_u32(one, at) == le_u32(other, begin)) and (
            le_u32(one, at + count - 4) == le_u32(other, begin + count - 4)
        )
    for i in range(count):  # noqa: SIM110  Numba knows no generators in all()
        if u8(one, at + i) != u8(other, begin + i):
            return False
    return True


def _crc32() -> Any:
    """`crc32(init, address, size)` of the isal package, which makes all other sums; None where its library does not show it."""
    try:
        found = ctypes.CDLL(isal_zlib.__file__).crc32_gzip_refl
    except (OSError, AttributeError):
        return None
    binding.add_symbol("crc32_gzip_refl", ctypes.cast(found, ctypes.c_void_p).value)
    return types.ExternalFunction("crc32_gzip_refl", types.uint32(types.uint32, types.uintp, types.uint64))


crc32 = _crc32()
