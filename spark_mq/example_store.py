"""A small store to try things on, shipped with this package: two thousand messages that an Apache RocketMQ 5.3.3 broker wrote.

`TopicA` (tags, keys, properties) is the one to begin with. Delays, transactions, retries and dead letters, batches, a namespace
and bodies compressed in every way are there too; the broker was stopped cleanly.
"""

from __future__ import annotations

import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path

_ARCHIVE = "example_store.tgz"  # store/, the broker's root directory, and its broker.conf beside it


def unpack_example_store(directory: str | Path) -> str:
    """Unpack the store into a directory, which is made if missing; returns the absolute path to give to option `path`."""
    with files("spark_mq").joinpath(_ARCHIVE).open("rb") as archive, tarfile.open(fileobj=archive) as members:
        members.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.0 to 3.11.3 have none
        members.extractall(directory)
    return str(Path(directory, "store").absolute())


@contextmanager
def example_store() -> Iterator[str]:
    """The path of the store, unpacked into a temporary directory that goes with the context."""
    with tempfile.TemporaryDirectory(prefix="spark_mq-") as directory:
        yield unpack_example_store(directory)
