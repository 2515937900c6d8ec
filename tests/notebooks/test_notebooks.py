"""The notebooks run as they stand, and what is stored in them fits a repository."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from notebooks.execute import NOTEBOOKS, execute

PLACES = re.compile(r"(?<![\w.:/])/(?:tmp|home|root|work|usr|var|private|Users|opt)/")
KIB = 1024


@pytest.mark.notebook
@pytest.mark.spark
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom(path: Path, tmp_path: Path) -> None:
    executed = execute(path, tmp_path)
    plots = [
        output for cell in executed.cells for output in cell.get("outputs", ()) if "image/png" in output.get("data", {})
    ]
    assert len(plots) >= 3


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_stored_outputs_are_small_and_name_no_machine(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    cells = json.loads(text)["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", ())]
    assert outputs, "the notebook is stored without outputs"
    assert len(text) < 200 * KIB
    assert [output for output in outputs if output.get("name") == "stderr"] == []
    for output in outputs:
        shown = {kind: value for kind, value in output.get("data", {}).items() if kind.startswith("text/")}
        assert not PLACES.search(json.dumps([shown, output.get("text")])), output
