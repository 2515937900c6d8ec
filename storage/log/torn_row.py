"""A row of a batch that stands half in the log, because the power failed while it was written."""

from __future__ import annotations

from typing import NamedTuple


class TornRow(NamedTuple):
    """Where it stands. What queue and index should know of it its record tells when it is whole again."""

    commitlog_offset: int
    size_bytes: int
