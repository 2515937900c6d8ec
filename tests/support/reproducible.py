"""Chance taken out of the engine, so that the same seed makes the same bytes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from types import SimpleNamespace
from unittest import mock
from uuid import UUID

import storage.put.put
import storage.recovery.opening
import tests.support.stage_rows


@contextmanager
def reproducible(random: Random) -> Iterator[None]:
    """What the engine and the staging of rows draw by chance is drawn from this generator: unique keys, names of staged files."""
    chance = SimpleNamespace(
        token_bytes=random.randbytes,
        token_hex=lambda count: random.randbytes(count).hex(),
        randbelow=random.randrange,
    )
    with ExitStack() as patches:
        patches.enter_context(mock.patch.object(storage.put.put, "secrets", chance))
        patches.enter_context(mock.patch.object(storage.recovery.opening, "secrets", chance))
        patches.enter_context(mock.patch.object(os, "getpid", return_value=4_711))
        names = iter(lambda: UUID(int=random.getrandbits(128)), None)
        patches.enter_context(mock.patch.object(tests.support.stage_rows, "uuid4", names.__next__))
        yield
