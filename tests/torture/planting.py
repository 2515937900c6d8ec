"""A pytest plugin (`-p tests.torture.planting`): plants the fault that SPARK_MQ_MUTANT names for the whole run, and counts how often it
was met.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.torture.mutants import planted_by_environment
from tests.torture.step_faults import MET

_met: list[int] = []


@pytest.fixture(autouse=True, scope="session")
def _mutant() -> Iterator[None]:
    with planted_by_environment() as met:
        yield
    _met.append(getattr(met, "count", 0))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(f"{MET}{sum(_met)} times")
