"""Kernels on and off within one process, and what a function gives either way.

With `SPARK_MQ_KERNELS=check` in the environment "on" means with bounds checks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Literal, TypeVar

import numpy as np
import pytest

from storage.compiler import COMPILER, ENVIRONMENT
from storage.format import arrays as few
from storage.format.kernels.compiled import MODULES, KernelModule

T = TypeVar("T")
ON: Literal["on", "check"] = "check" if os.environ.get(ENVIRONMENT) == "check" else "on"


@contextmanager
def kernels(mode: Literal["off", "on", "check"], few_rows: int = 0) -> Iterator[None]:
    """All kernels off, or on from the first row. Up to `few_rows` rows go one by one."""
    before, few_before = COMPILER.mode, few.FEW_ROWS
    few.FEW_ROWS = few_rows
    COMPILER.use(mode)
    for module in MODULES:
        module.forget()
    try:
        yield
    finally:
        COMPILER.use(before)
        few.FEW_ROWS = few_before
        for module in MODULES:
            module.forget()


def need_kernels() -> None:
    """Skip a test where Numba is not installed; fail it where kernels do not work all the same."""
    pytest.importorskip("numba")
    with kernels(ON):
        assert None not in [module.for_rows() for module in MODULES], COMPILER.refusal


def loaded(module: KernelModule) -> ModuleType:
    """A module of kernels; the test is skipped where Numba is not installed."""
    pytest.importorskip("numba")
    with kernels(ON):
        found = module.for_rows()
    assert found is not None, COMPILER.refusal
    return found


def both(function: Callable[[], T]) -> tuple[T, T]:
    """What it gives without kernels, and with them. Few rows one by one give the first, too."""
    with kernels("off", few.FEW_ROWS):
        one_by_one = function()
    with kernels("off"):
        exact = function()
    np.testing.assert_equal(one_by_one, exact)
    with kernels(ON):
        return exact, function()
