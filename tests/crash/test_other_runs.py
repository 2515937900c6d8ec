"""Runs of a query that should not be there, each story with both sinks (`other_runs.py`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.other_runs import SINKS, STORIES, play_story
from tests.support.loop_disk import LoopDisk

pytestmark = [pytest.mark.crash, pytest.mark.spark, pytest.mark.long]


@pytest.mark.parametrize("kind", SINKS)
@pytest.mark.parametrize("story", STORIES)
def test_each_row_is_there_once(story: str, kind: str, tmp_path: Path) -> None:
    if story == "full_disk" and (reason := LoopDisk.missing()) is not None:
        pytest.skip(reason)
    print(play_story(story, kind, tmp_path / "scene"))
