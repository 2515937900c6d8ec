"""Kernels on and off within one process, and what a function gives either way.

With `SPARK_MQ_KERNELS=check` in the environment "on" means with bounds checks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Literal, TypeVar

import pytest

from storage.compiler import COMPILED, ENVIRONMENT

T = TypeVar("T")
ON: Literal["on", "check"] = "check" if os.environ.get(ENVIRONMENT) == "check" else "on"


@contextmanager
def kernels(mode: Literal["off", "on", "check"]) -> Iterator[None]:
    """Kernels off, or on from the first row."""
    before = COMPILED.mode
    COMPILED.use(mode)
    try:
        yield
    finally:
        COMPILED.use(before)


def loaded() -> ModuleType:
    """The kernels. The test is skipped where Numba is not installed; it fails where they do not work all the same."""
    pytest.importorskip("numba")
    with kernels(ON):
        found = COMPILED.for_rows()
    assert found is not None, COMPILED.refusal
    return found


def both(function: Callable[[], T]) -> tuple[T, T]:
    """What it gives without kernels, and with them."""
    with kernels("off"):
        exact = function()
    with kernels(ON):
        return exact, function()
