"""Parametrized tests of which `make test` takes a share and `make test-rest` the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def one_in(count: int, values: Iterable[Any], *, always: Sequence[Any] = ()) -> list[Any]:
    """The values for `pytest.mark.parametrize`: each n-th and those of `always` as they are, the others marked slow."""
    return [
        value if place % count == 0 or value in always else pytest.param(value, marks=pytest.mark.slow)
        for place, value in enumerate(values)
    ]
