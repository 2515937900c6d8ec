"""A cluster of one broker, for the examples that need one and are given none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from spark_mq.testing import Cluster


@contextmanager
def cluster(address: str | None = None) -> Iterator[str]:
    """The address of a name server: the given one, or that of a cluster which lives as long as the context."""
    if address is not None:
        yield address
        return
    with Cluster() as own:
        yield own.name_server
