"""A store that is new each round but for its staged files, which the next round finds in its pool.

So do the batches of a query that has been running for a while; new pages of the page cache would cost more than all else.
"""

from __future__ import annotations

import shutil
from pathlib import Path


class RecycledStore:
    """DIRECTORY/store, written and removed round by round; DIRECTORY/used between rounds. A context manager that removes all."""

    def __init__(self, directory: Path) -> None:
        self.path = directory.resolve() / "store"
        self._staged = self.path / "spark_mq" / "staged"
        self._used = directory.resolve() / "used"

    def __enter__(self) -> RecycledStore:
        self._remove()  # what a killed run has left
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    def prepare(self) -> None:
        """Nothing but the pool is there."""
        self._staged.mkdir(parents=True)
        if self._used.exists():
            self._used.rename(self._staged / "pool")

    def clear(self) -> None:
        """Keep the staged files, remove the rest."""
        self._used.mkdir()
        for path in self._staged.glob("*/*"):
            path.rename(self._used / path.name)
        shutil.rmtree(self.path)

    def _remove(self) -> None:
        shutil.rmtree(self.path.parent, ignore_errors=True)
