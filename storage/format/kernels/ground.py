"""What kernels stand on: how they are compiled, and loads and stores at any byte of a `uint8` array.

    @kernel("int64(uint8[::1], int64)")     explicit signature: compiled, or taken from the cache, where the module is imported
    @inline                                 a part of kernels

A load or store of a kernel looks at no bounds, as NumPy arrays in kernels do: a kernel makes sure that rows lie in their buffers before
it touches them. With `SPARK_MQ_KERNELS=check` each one looks, and raises IndexError. Nothing is read or written behind the end of a
stretch, not even for a moment, so no buffer needs slack.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from storage.compiler import COMPILER, check_cache, is_caching

F = TypeVar("F", bound=Callable[..., Any])
IS_CHECKED = COMPILER.has_bounds_checks
_OPTIONS = {"error_model": "numpy", "boundscheck": IS_CHECKED, "_nrt": False}
"""Without Numba's counts of references, which cost more than most loops do: a kernel makes no arrays, it is given them."""
READ = types.Array(types.uint8, 1, "C", readonly=True)
"""A `uint8` array that a kernel only reads. A writable one fits too (`compiled.sealed` makes it so)."""
READ_INT64 = types.Array(types.int64, 1, "C", readonly=True)
READ_UINT32 = types.Array(types.uint32, 1, "C", readonly=True)
READ_INT32 = types.Array(types.int32, 1, "C", readonly=True)

I1, I8, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
_LINE = 64
_MOST_FETCHED = 2_048
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
    """The address of byte `position` of an array, of which `size` bytes are touched."""
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
    @intrinsic
    def load(typingctx, array, position):
        def codegen(context, builder, signature, args):
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
be_i32 = _loader(I32, swap=True, signed=True)
be_u32 = _loader(I32, swap=True)
be_i64 = _loader(I64, swap=True, signed=True)
le_u32 = _loader(I32)
le_i64 = _loader(I64, signed=True)


def _storer(kind: Any, *, swap: bool = False) -> Any:
    @intrinsic
    def store(typingctx, array, position, value):
        def codegen(context, builder, signature, args):
            number = args[2] if kind is I64 else builder.trunc(args[2], kind)
            if swap:
                number = builder.bswap(number)
            size = ir.Constant(I64, kind.width // 8)
            address = _pointer(context, builder, signature, args, 0, args[1], size)
            builder.store(number, builder.bitcast(address, kind.as_pointer()), align=1)
            return context.get_dummy_value()

        return types.void(array, types.int64, types.int64), codegen

    return store


put_u8 = _storer(I8)
put_le64 = _storer(I64)
put_be16 = _storer(I16, swap=True)
put_be32 = _storer(I32, swap=True)
put_be64 = _storer(I64, swap=True)


def _copier(kind: Any, size: int) -> Any:
    @intrinsic
    def copy(typingctx, target, at, source, begin):
        def codegen(context, builder, signature, args):
            length = ir.Constant(I64, size)
            of = _pointer(context, builder, signature, args, 2, args[3], length)
            to = _pointer(context, builder, signature, args, 0, args[1], length)
            value = builder.load(builder.bitcast(of, kind.as_pointer()), align=1)
            builder.store(value, builder.bitcast(to, kind.as_pointer()), align=1)
            return context.get_dummy_value()

        return types.void(target, types.int64, source, types.int64), codegen

    return copy


copy2, copy4, copy8, copy16 = (_copier(kind, size) for kind, size in ((I16, 2), (I32, 4), (I64, 8), (_VECTOR, 16)))


@intrinsic
def memcpy(typingctx, target, at, source, begin, count):
    """Copy `count` bytes, for long stretches: source[begin:] to target[at:]."""

    def codegen(context, builder, signature, args):
        to = _pointer(context, builder, signature, args, 0, args[1], args[4])
        of = _pointer(context, builder, signature, args, 2, args[3], args[4])
        function = builder.module.declare_intrinsic("llvm.memcpy", [I8.as_pointer(), I8.as_pointer(), I64])
        builder.call(function, [to, of, args[4], ir.Constant(I1, 0)])
        return context.get_dummy_value()

    return types.void(target, types.int64, source, types.int64, types.int64), codegen


@intrinsic
def _touch(typingctx, array, position):
    def codegen(context, builder, signature, args):
        of = _pointer(context, builder, signature, args, 0, args[1], ir.Constant(I64, 1))
        kind = ir.FunctionType(ir.VoidType(), [of.type, I32, I32, I32])
        function = builder.module.declare_intrinsic("llvm.prefetch", [of.type], kind)
        is_read, stays, is_data = (ir.Constant(I32, number) for number in (0, 3, 1))
        builder.call(function, [of, is_read, stays, is_data])
        return context.get_dummy_value()

    return types.void(array, types.int64), codegen


@inline
def fetch(source, begin, count):
    """Have the processor bring bytes that are read soon into its cache: some of those [begin, begin + count) that there are."""
    for line in range(begin, min(begin + min(count, _MOST_FETCHED), len(source)), _LINE):
        _touch(source, line)


@inline
def move(target, at, source, begin, count):
    """Copy a short stretch, in words of which the last two may overlap. Exactly `count` bytes are read and written."""
    if count >= 16:
        done = 0
        while count - done >= 16:
            copy16(target, at + done, source, begin + done)
            done += 16
        if done < count:
            copy16(target, at + count - 16, source, begin + count - 16)
    elif count >= 8:
        copy8(target, at, source, begin)
        copy8(target, at + count - 8, source, begin + count - 8)
    elif count >= 4:
        copy4(target, at, source, begin)
        copy4(target, at + count - 4, source, begin + count - 4)
    elif count >= 2:
        copy2(target, at, source, begin)
        copy2(target, at + count - 2, source, begin + count - 2)
    elif count == 1:
        put_u8(target, at, u8(source, begin))


@inline
def same(one, at, other, begin, count):
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
