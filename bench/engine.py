"""The storage engine alone, without Spark: what one core does with a store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table


@dataclass(frozen=True, slots=True)
class EngineRow:
    what: str
    figure: str
    """With its unit."""


def engine_rows(store: Path, opening_store: Path | None) -> list[EngineRow]:
    """The engine's figures over `store`; the opening time is `opening_store`'s (10 GiB of log), if made."""
    return []


def table(rows: Sequence[EngineRow]) -> Table:
    shown = Table("engine alone, one core", "figure", title="Storage engine")
    for row in rows:
        shown.add_row(row.what, row.figure)
    return shown
