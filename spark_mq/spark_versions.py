"""What each release of Spark can do for a Python data source. The rest of the package asks here; nothing else compares versions.

A release that cannot do what an option or a query needs refuses it by name, at planning. `spark_api.py` has PySpark's classes as the
installed release brings them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

OLDEST = (4, 0)
"""The tests run with this release, and with later ones up to 4.3 (`make test-spark SPARK=…`)."""
INSTALL = "pip install 'spark_mq[spark]'"

Release = tuple[int, int]


class SparkNotFoundError(ImportError):
    """PySpark is not there, or is older than any that this package can work with."""


class Ability(NamedTuple):
    """What Spark can do from the release `since` on; `before` says what an older one lacks."""

    since: Release
    before: str

    def is_in(self, release: Release) -> bool:
        return release >= self.since

    @property
    def is_here(self) -> bool:
        """Whether the PySpark of this process can do it."""
        return self.is_in(spark_release())

    def require(self, what: str, release: Release | None = None) -> None:
        """Raises SparkTooOldError that names `what`, where Spark cannot do it. `release` None = this process's."""
        found = spark_release() if release is None else release
        if not self.is_in(found):
            from spark_mq.conditions import (
                SparkTooOldError,  # `import spark_mq` loads this module, and not the store's errors
            )

            raise SparkTooOldError(what, _text(self.since), self.before, _text(found))


FILTERS = Ability((4, 1), "before, Spark hands no filters to a Python source")
ARROW_STREAM_WRITER = Ability(
    (4, 1), "before, Spark has no class for a streaming sink that takes Arrow batches (SPARK-53030)"
)
ADMISSION_CONTROL = Ability((4, 2), "before, Spark does not tell a Python source where a batch begins (SPARK-55304)")
"""Limits of a micro-batch, the ends of Trigger.AvailableNow as the source fixes them, and latest offsets in a query's progress."""

LIMITS = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxBytesPerTrigger")
"""Options of a stream that need ADMISSION_CONTROL."""


def refuse_options(given: Iterable[str], mode: str | None, release: Release | None = None) -> None:
    """Raises SparkTooOldError for an option that this Spark cannot honour. `given` are names of options in lower case,
    without a `pushDown` that is false.
    """
    names = set(given)
    if mode == "streaming":
        for name in LIMITS:
            if name.lower() in names:
                ADMISSION_CONTROL.require(name, release)
    elif "pushdown" in names:
        FILTERS.require("pushDown", release)


def spark_release() -> Release:
    """Major and minor of the PySpark that is imported here. Raises SparkNotFoundError."""
    try:
        from pyspark import __version__
    except ImportError as error:
        raise SparkNotFoundError(not_installed(error)) from error
    return release_of(__version__)


def release_of(version: str) -> Release:
    """(4, 1) of 4.1.4, of 4.1.0.dev0, and of a platform's 4.1.0-amzn-1."""
    major, minor, *_ = version.split(".")
    return int(major), int("".join(character for character in minor if character.isdigit()) or 0)


def not_installed(error: ImportError) -> str:
    """What to say where Spark's Python package cannot be imported."""
    if (error.name or "").partition(".")[0] == "pyspark" and error.name != "pyspark":
        return f'format("spark_mq") needs PySpark {_text(OLDEST)} or newer, which brought {error.name}; {INSTALL}'
    home = os.environ.get("SPARK_HOME")
    there = f"; SPARK_HOME is {home}, so its python and python/lib/py4j-*.zip may belong on PYTHONPATH" if home else ""
    return f'format("spark_mq") needs PySpark, and it cannot be imported here ({error}): {INSTALL}{there}'


DELTA_RELEASES = {(4, 0): "4.4.0", (4, 1): "4.4.0", (4, 2): "4.4.0"}
"""By Spark's release the Delta Lake whose JVM artifact is published for it. Delta's artifact is named after Spark's release."""


def delta_artifact(release: Release) -> str:
    """The Maven coordinate of Delta Lake for this Spark. Raises ValueError, with the reason, where none is published."""
    version = DELTA_RELEASES.get(release)
    if version is None:
        known = ", ".join(_text(one) for one in DELTA_RELEASES)
        raise ValueError(
            f"Delta Lake has published no artifact io.delta:delta-spark_{_text(release)}_2.13 for Spark {_text(release)}; "
            f"there is one for Spark {known}"
        )
    return f"io.delta:delta-spark_{_text(release)}_2.13:{version}"


def _text(release: Release) -> str:
    return ".".join(map(str, release))
