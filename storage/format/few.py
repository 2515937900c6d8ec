"""From how many rows on arrays are worth their making: fewer go one by one, which costs them less."""

from __future__ import annotations

FEW_ROWS = 64


def is_few(count: int) -> bool:
    """Whether so many rows go one by one."""
    return count <= FEW_ROWS
