"""Which name somebody meant who wrote one that is not known."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str], likeness: float = 0.5) -> str | None:
    """The known name most like `name`, whatever its case; None if none is as like as that (1 = equal)."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    found = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=likeness)
    return by_lower[found[0]] if found else None


def advice(name: str, known: Iterable[str]) -> str:
    """What to put behind a sentence that refuses `name`; empty if no known name is like it."""
    like = nearest(name, known)
    return "" if like is None else f"; did you mean {like}?"
