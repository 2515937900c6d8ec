"""Executes the notebooks beside this file and stores their outputs: `python notebooks/execute.py`, after `make setup`.

What is written to stderr (Spark's start-up lines) is not stored: it names the machine and differs from run to run.
"""

from __future__ import annotations

import os
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parent
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def execute(path: Path, working_directory: Path) -> nbformat.NotebookNode:
    """The notebook with the outputs of a new run by this interpreter. Raises CellExecutionError where a cell fails."""
    notebook = nbformat.read(path, as_version=4)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(FOLDER.parent), os.environ.get("PYTHONPATH", "")])}
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
    for notebook_path in NOTEBOOKS:
        nbformat.write(execute(notebook_path, FOLDER), notebook_path)
