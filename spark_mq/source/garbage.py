"""Python's search for garbage in cycles, put off while a plan is made.

A plan over many queues is hundreds of thousands of new objects, none of them in a cycle. Each so many of them Python looks at all the
others again, which takes longer than the plan itself.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collected_later() -> Iterator[None]:
    """No search as long as this lasts; also a decorator."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
