"""The storage engine alone, writing: encode on one core, commit of staged segments."""

from __future__ import annotations

from pathlib import Path

from bench.engine import EngineRow


def engine_rows(home: Path) -> list[EngineRow]:
    return []
