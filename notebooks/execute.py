"""Executes the notebooks beside this file and stores their outputs: `python notebooks/execute.py`, after `make setup`.

Those that need a running cluster are executed where the variable NAME_SERVER names one.

What is written to stderr (Spark's start-up lines) is not stored: it names the machine and differs from run to run.
"""

from __future__ import annotations

import os
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parent
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
LIVE = [path for path in NOTEBOOKS if "live_cluster" in path.stem]
"""Those that need a running cluster."""
NAME_SERVER = "NAME_SERVER"


def execute(path: Path, working_directory: Path, name_server: str | None = None) -> nbformat.NotebookNode:
    """The notebook with the outputs of a new run by this interpreter. Raises CellExecutionError where a cell fails."""
    notebook = nbformat.read(path, as_version=4)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(FOLDER.parent), os.environ.get("PYTHONPATH", "")])}
    if name_server is not None:
        environment[NAME_SERVER] = name_server
    client = NotebookClient(
        notebook,
        timeout=600,
        kernel_name="python3",
        resources={"metadata": {"path": str(working_directory)}},
        record_timing=False,
    )
    client.execute(env=environment)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    return notebook


if __name__ == "__main__":
    for notebook_path in NOTEBOOKS if NAME_SERVER in os.environ else [path for path in NOTEBOOKS if path not in LIVE]:
        nbformat.write(execute(notebook_path, FOLDER), notebook_path)
