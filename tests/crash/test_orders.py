"""Each operation tells the disk what storage/README.md says, in that order: a step that is missing, or comes too early, is seen.

`disk_orders.txt` has the order of each story of `stories/`, a word a line. Where an operation changes on purpose, compare the
new order with storage/README.md first; `python -m tests.crash.test_orders` writes the file.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pytest

from tests.crash.stories import STORIES
from tests.support.places import PROJECT

pytestmark = pytest.mark.crash

ORDERS = PROJECT / "tests/crash/disk_orders.txt"


def expected_orders() -> dict[str, list[str]]:
    sections = (section.splitlines() for section in ORDERS.read_text("utf-8").split("== ")[1:])
    return {name: [line.strip() for line in lines if line.strip()] for name, *lines in sections}


def test_every_story_has_its_order() -> None:
    assert list(expected_orders()) == list(STORIES)


@pytest.mark.parametrize("story", STORIES)
def test_the_disk_is_told_the_order(tmp_path: Path, story: str) -> None:
    assert STORIES[story](tmp_path) == expected_orders()[story]


if __name__ == "__main__":
    texts = []
    for name, play in STORIES.items():
        with tempfile.TemporaryDirectory() as directory:
            texts.append("\n    ".join([f"== {name}", *play(Path(directory))]))
    sys.exit(None if ORDERS.write_text("\n\n".join(texts) + "\n", "utf-8") else 1)
