"""Kernels for tests: compiled where none are there yet, with bounds checked if SPARK_MQ_KERNELS=check says so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Literal

import pytest

from storage.compiler import COMPILER
from storage.format.kernels.compiled import KernelModule


def loaded(module: KernelModule) -> ModuleType:
    """A module of kernels, ready to run; the test is skipped where kernels are switched off or Numba is not installed."""
    if COMPILER.mode == "off":
        pytest.skip("SPARK_MQ_KERNELS=off")
    pytest.importorskip("numba")
    before = COMPILER.mode
    if before == "auto":
        COMPILER.use("on")
    try:
        kernels = module.for_rows(1)
    finally:
        COMPILER.use(before)
        if before == "auto":
            module.forget()
    assert kernels is not None, COMPILER.refusal
    return kernels


@contextmanager
def kernels_are(mode: Literal["off", "on"], *modules: KernelModule) -> Iterator[None]:
    """Kernels are not used at all, or from the first row on, whatever this process has handled before."""
    before = COMPILER.mode
    if before != "check" or mode == "off":
        COMPILER.use(mode)
    for module in modules:
        module.forget()
    try:
        yield
    finally:
        COMPILER.use(before)
        for module in modules:
            module.forget()
