"""A pytest plugin (`-p tests.torture.planting`): plants the mutant that SPARK_MQ_MUTANT names, for the whole run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.torture.mutants import planted_by_environment


@pytest.fixture(autouse=True, scope="session")
def _mutant() -> Iterator[None]:
    with planted_by_environment():
        yield
