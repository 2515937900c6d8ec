"""The notebooks run as they stand, and what is stored in them fits a repository."""

from __future__ import annotations

import json
import re
from pathlib import Path

import nbformat
import pytest

from notebooks.execute import LIVE, NOTEBOOKS, execute
from spark_mq.client import Admin, ClientSettings
from tests.support.java_broker import needed_oracle, wait_until
from tests.support.shares import one_in

PLACES = re.compile(r"(?<![\w.:/])/(?:tmp|home|root|work|usr|var|private|Users|opt)/")
KIB = 1024


@pytest.mark.notebook
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    one_in(4, [path for path in NOTEBOOKS if path not in LIVE], others=pytest.mark.long),
    ids=lambda path: path.stem,
)
def test_a_notebook_runs_from_top_to_bottom(path: Path, tmp_path: Path) -> None:
    shows_plots(execute(path, tmp_path))


@pytest.mark.notebook
@pytest.mark.spark
@pytest.mark.interop
@pytest.mark.long
@pytest.mark.parametrize("path", LIVE, ids=lambda path: path.stem)
def test_a_notebook_runs_with_the_real_broker(path: Path, tmp_path: Path) -> None:
    oracle = needed_oracle(tmp_path / "oracle")
    with oracle.namesrv() as name_server, oracle.broker(tmp_path / "store", name_server):
        with Admin(ClientSettings((name_server,))) as admin:
            wait_until(lambda: bool(admin.cluster_info().broker_address_table), "the broker is registered")
        executed = execute(path, tmp_path, name_server)
    shows_plots(executed)
    shown = json.dumps([cell.get("outputs", ()) for cell in executed.cells])
    assert "5000|  5000|  5000|" in shown  # each message once, over a restart


def shows_plots(executed: nbformat.NotebookNode) -> None:
    """At least three of them."""
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
