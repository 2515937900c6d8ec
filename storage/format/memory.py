"""Memory that is used again and again."""

from __future__ import annotations

import numpy as np


class Memory:
    """Memory that one reader uses again and again for what is gathered before it is copied into arrays of its size."""

    def __init__(self) -> None:
        self._kept: dict[str, np.ndarray] = {}

    def take(self, name: str, size_bytes: int) -> np.ndarray:
        """So many bytes, holding anything, of those that were taken by this name before."""
        kept = self._kept.get(name)
        if kept is None or len(kept) < size_bytes:
            kept = self._kept[name] = np.empty(size_bytes + size_bytes // 4, np.uint8)
        return kept[:size_bytes]

    def longs(self, name: str, count: int) -> np.ndarray:
        """The same as int64."""
        return self.take(name, 8 * count).view(np.int64)

    def ints(self, name: str, *shape: int) -> np.ndarray:
        """The same as int32."""
        return self.take(name, 4 * int(np.prod(shape))).view(np.int32).reshape(shape)
