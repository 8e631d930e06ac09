"""Execute the notebooks and keep what they show: `python docs/notebooks/execute.py [NAME ...]`.

Figures to look into are kept as Plotly's data, which notebooks draw, not as a library in every cell.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent


def executed(path: Path, folder: str) -> Any:
    """The notebook with its outputs, run in a folder of its own."""
    os.environ["PLOTLY_RENDERER"] = "plotly_mimetype"
    os.environ["PYTHONPATH"] = str(HERE.parents[1] / "src")  # for the kernel, which is a process
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": folder}}).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # times of day, which change at every run
    return notebook


if __name__ == "__main__":
    names = sys.argv[1:] or [path.stem for path in sorted(HERE.glob("*.ipynb"))]
    for name in names:
        with TemporaryDirectory() as folder:
            done = executed(HERE / f"{name}.ipynb", folder)
        nbformat.write(done, HERE / f"{name}.ipynb")
