"""Processes that die at a failpoint, inside the test's own: what stands for SIGKILL is an exception that nothing catches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from storage import failpoints

_REACH = failpoints.reach


class Killed(BaseException):
    """What ends the process; nothing is written after it."""


def on_reach(patch: pytest.MonkeyPatch, reach: Callable[[str], None]) -> None:
    """Each failpoint calls this with its name, in whichever module it stands."""
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get("reach") is _REACH:
            patch.setattr(module, "reach", reach)


def kill_at(patch: pytest.MonkeyPatch, point: str, time: int = 1) -> None:
    """The process dies when it comes to the failpoint for the n-th time."""
    left = time

    def reach(name: str) -> None:
        nonlocal left
        left -= name == point
        if left == 0 and name == point:
            raise Killed(name)

    on_reach(patch, reach)


@contextmanager
def killed_at(point: str, time: int = 1) -> Iterator[None]:
    """What is done within it dies there. Fails if it comes to its end."""
    with pytest.MonkeyPatch.context() as patch:
        kill_at(patch, point, time)
        with pytest.raises(Killed):
            yield
