"""Python's search for garbage in cycles, where it costs more than it finds.

A plan over many queues is hundreds of thousands of new objects, none of them in a cycle. Each so many of them Python looks at all the
others again, which takes longer than the plan itself.

A worker of Spark has Python look at everything after each task. Of a worker with Arrow and Numba that is 50 ms for objects of modules,
which stay anyway.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark import TaskContext

_seen_modules = 0


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


def leave_modules_alone() -> None:
    """For a task's beginning: what is there by now is searched no more, if modules were loaded since this was last said.

    Objects are freed as before when nothing names them; only a cycle that a frozen object is in stays until the worker ends. In a
    worker that runs a user's functions too, those are also cycles of theirs that are there at that moment: few, because Spark
    searches after each task. Outside of a worker it does nothing: there other people's objects are many.
    """
    global _seen_modules
    if TaskContext.get() is not None and len(sys.modules) > _seen_modules:
        _seen_modules = len(sys.modules)
        gc.freeze()
