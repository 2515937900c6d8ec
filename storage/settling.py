"""What is under way says until when it is to be waited for, to whoever has no thread to wait with."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Settling: TypeAlias = Callable[[Callable[[], None]], float | None]
"""Does what is to be done now, and then says for how many seconds, at most, something is to be waited for: None = for nothing.

Else the call that it is given is made once that is over, perhaps at once, by a thread that may hold locks: it must be quick.
Then it is asked again: something else may be left.
"""
