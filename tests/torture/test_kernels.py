"""A round of the kind `kernels`, and what it must notice."""

from __future__ import annotations

from pathlib import Path
from random import Random
from unittest import mock

import pytest

from tests.support.kernels import loaded
from tests.torture import kernels

pytestmark = pytest.mark.slow  # they are compiled first, where they are not in the user's cache


@pytest.fixture(autouse=True)
def _kernels() -> None:
    pytest.importorskip("numba")


def test_a_round_finds_nothing(tmp_path: Path) -> None:
    outcome = kernels.play(Random(1), tmp_path, seeds=1, examples=5)
    assert outcome.failures == []
    assert outcome.trials == 200 + 5 * len(kernels.COMPARISONS)
    assert outcome.figures["windows decoded"] > 20


def test_a_kernel_that_finds_too_little_is_noticed() -> None:
    module = loaded()
    walk = module.walk
    fewer = mock.patch.object(module, "walk", lambda *given: max(0, walk(*given) - 1))
    with fewer, pytest.raises(AssertionError):
        kernels._compare(kernels.COMPARISONS[0], 1, 50, {"compiled": module})
