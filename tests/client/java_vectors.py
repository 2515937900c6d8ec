"""What pure classes of Java's client answered: the lines of tests/vectors/client/consumer.jsonl and producer.jsonl."""

from __future__ import annotations

import json
from typing import Any

from tests.support.places import VECTORS


def java_says(type_: str) -> list[dict[str, Any]]:
    """The lines of one type."""
    texts = [(VECTORS / "client" / f"{name}.jsonl").read_text("utf-8") for name in ("consumer", "producer")]
    lines = [json.loads(line) for text in texts for line in text.splitlines()]
    return [line for line in lines if line["type"] == type_]
