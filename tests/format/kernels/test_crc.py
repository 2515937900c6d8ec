"""The sum of kernels is zlib's, by wide multiplications where the processor has them, and without."""

from __future__ import annotations

import importlib
import importlib.util
import zlib
from collections.abc import Callable
from types import ModuleType
from unittest import mock

import numpy as np
import pytest

from storage.format.kernels.compiled import sealed

numba = pytest.importorskip("numba")

SIZES = (*range(150), *range(250, 330), *range(505, 520), *range(765, 840), 1_023, 1_024, 1_025, 1_279, 1_280, 4_000)
NARROW, WIDE = ("pclmul",), ("pclmul", "vpclmulqdq", "avx512f")


def module_for(*features: str) -> ModuleType:
    """The module as a processor gets it that has these features alone; the test is skipped where this one has not."""
    binding = importlib.import_module("llvmlite.binding")
    found = binding.get_host_cpu_features()
    if not all(found.get(name) for name in features):
        pytest.skip(f"this processor has not all of {', '.join(features)}")
    spec = importlib.util.find_spec("storage.format.kernels.crc")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    found.update({name: name in features for name in WIDE})
    with mock.patch.object(binding, "get_host_cpu_features", return_value=found):
        spec.loader.exec_module(module)
    return module


def compare(module: ModuleType) -> None:
    """At each size around a block's, and at each place of a word."""
    crc32: Callable[[np.ndarray, int, int], int] = numba.njit(lambda data, start, size: inner(data, start, size))
    inner = module.crc32
    data = np.random.default_rng(7).integers(0, 256, 4_100, np.uint8)
    for size in SIZES:
        for start in range(9):
            assert crc32(sealed(data), start, size) == zlib.crc32(data[start : start + size]), (size, start)


def test_sums_by_multiplications_of_16_bytes_are_zlib_s() -> None:
    module = module_for(*NARROW)
    assert module.IS_FAST
    assert not module.IS_WIDE
    compare(module)


def test_sums_by_multiplications_of_64_bytes_are_zlib_s() -> None:
    module = module_for(*WIDE)
    assert module.IS_WIDE
    compare(module)


def test_a_wrong_constant_of_wide_multiplications_is_noticed() -> None:
    module = module_for(*WIDE)
    low, high = module._BY_256_BYTES
    module._BY_256_BYTES = low, high ^ 2
    with pytest.raises(AssertionError):
        compare(module)
