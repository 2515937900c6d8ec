"""The sum of kernels is zlib's, by wide multiplications where the processor has them, and without."""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
import subprocess
import sys
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
    # Numba asks for the features once: it is to compile for this processor.
    numba.njit("int64(int64)")(lambda number: number)
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


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="no processor of this kind multiplies so")
def test_a_processor_without_such_multiplications_compiles_none() -> None:
    """Nor does it meet an instruction that it has not: that would end the process, and nobody could catch it."""
    code = (
        "import zlib, numpy\n"
        "from llvmlite import binding\n"
        "binding.get_host_cpu_features = dict\n"
        "from numba import types\n"
        "from storage.format.kernels import crc, ground\n"
        "@ground.kernel(types.int64(ground.READ))\n"
        "def summed(data): return crc.crc32(data, 0, len(data))\n"
        "data = numpy.arange(500).astype(numpy.uint8)\n"
        "data.flags.writeable = False\n"
        "print(crc.IS_FAST, summed(data) == zlib.crc32(data))\n"
    )
    plain = {"NUMBA_CPU_NAME": "x86-64", "NUMBA_CPU_FEATURES": ""}
    environment = os.environ | plain
    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout) == (0, "False True\n"), ended.stderr


def test_a_wrong_constant_of_wide_multiplications_is_noticed() -> None:
    module = module_for(*WIDE)
    low, high = module._BY_256_BYTES
    module._BY_256_BYTES = low, high ^ 2
    with pytest.raises(AssertionError):
        compare(module)
