"""What the Java consumer's own pure classes answered: the lines of tests/vectors/client/consumer.jsonl."""

from __future__ import annotations

import json
from typing import Any

from tests.support.places import VECTORS

_VECTORS = VECTORS / "client" / "consumer.jsonl"


def java_says(type_: str) -> list[dict[str, Any]]:
    """The lines of one type."""
    lines = map(json.loads, _VECTORS.read_text("utf-8").splitlines())
    return [line for line in lines if line["type"] == type_]
