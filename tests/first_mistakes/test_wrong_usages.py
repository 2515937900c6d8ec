"""Each wrong usage is answered by a first line that names the cause and the cure."""

from __future__ import annotations

import pytest

from tests.first_mistakes import clients, commands, reading, writing
from tests.first_mistakes.usages import Places, Wrong, first_line

TABLES = {"read": reading.USAGES, "write": writing.USAGES, "client": clients.USAGES, "command": commands.USAGES}
USAGES = [pytest.param(wrong, id=f"{table}: {wrong.what}") for table, usages in TABLES.items() for wrong in usages]


@pytest.mark.parametrize("wrong", USAGES)
def test_the_first_line_names_the_cause_and_the_cure(wrong: Wrong, places: Places) -> None:
    line = first_line(wrong.do, places)
    assert wrong.cause in line
    assert wrong.cure in line


def test_no_usage_stands_twice_in_a_table() -> None:
    for usages in TABLES.values():
        assert len({wrong.what for wrong in usages}) == len(usages)
