"""Modules of kernels, and when they are used: once a process has handled so many rows that loading them pays.

    kernels = DECODE.for_rows(count)        for_rows() where a part is done of what somebody counts
    if kernels is not None: ... the kernel, which says where it does not know a row
    ... else, and for rows that no kernel knows: the exact path, which is what tests hold kernels against

Who has few rows never waits for a compiler (`storage/compiler.py` says where compiled code comes from).
"""

from __future__ import annotations

from types import ModuleType

import numpy as np

from storage.compiler import COMPILER, KERNELS, ROWS_BETWEEN_LOOKS, ROWS_THAT_PAY, ROWS_WITHOUT_KERNELS


def as_int64(numbers: np.ndarray) -> np.ndarray:
    """Whole numbers as most kernels read them."""
    return sealed(numbers.astype(np.int64, copy=False))


def sealed(array: np.ndarray) -> np.ndarray:
    """The same array, read-only and end to end: the type that signatures of kernels name for what they only read."""
    if not (array.flags.c_contiguous and array.flags.aligned):
        array = array.copy()
    if array.flags.writeable:
        array = array.view()
        array.flags.writeable = False
    return array


class KernelModule:
    """One module of kernels, imported when it pays. May be asked by several threads."""

    def __init__(self, name: str) -> None:
        self.name = f"{KERNELS}.{name}"
        self._module: ModuleType | None = None
        self._is_off = False
        self._rows = 0
        self._next_look = ROWS_THAT_PAY

    def for_rows(self, count: int = 0) -> ModuleType | None:
        """The module, if kernels are to do so many more rows now. Who has few rows at once loads nothing, and counts for nothing."""
        if self._module is not None:
            return self._module
        if self._is_off or (count < ROWS_WITHOUT_KERNELS and COMPILER.mode == "auto"):
            return None
        self._rows += count
        if self._rows < self._next_look and COMPILER.mode == "auto":
            return None
        self._next_look = self._rows + ROWS_BETWEEN_LOOKS
        self._module = COMPILER.load(self.name)
        self._is_off = self._module is None and COMPILER.is_refused
        return self._module

    def forget(self) -> None:
        """As in a process that has handled no rows; for tests, which set another mode."""
        self._module, self._is_off, self._rows, self._next_look = None, False, 0, ROWS_THAT_PAY


DECODE = KernelModule("decode")
"""Records to rows."""
MODULES = (DECODE,)
