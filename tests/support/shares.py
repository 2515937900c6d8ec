"""Parametrized tests of which one run takes a share and a later one the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def one_in(
    count: int,
    values: Iterable[Any],
    *,
    always: Sequence[Any] = (),
    others: pytest.MarkDecorator = pytest.mark.slow,
) -> list[Any]:
    """The values for `pytest.mark.parametrize`: each n-th and those of `always` as they are, the others marked.

    Those that are slow are for `make test-rest`, those that are long for a run by hand. A plain tuple is several arguments.
    """
    return [
        value
        if place % count == 0 or value in always
        else pytest.param(*(value if type(value) is tuple else (value,)), marks=others)
        for place, value in enumerate(values)
    ]
