"""The notebooks run, and show what they are for: tables, pictures, fronts to look into."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = Path(__file__).parents[1] / "docs" / "notebooks"


def shown(notebook: Any) -> dict[str, int]:
    """How many outputs there are of each kind."""
    counts: dict[str, int] = {}
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            for kind in output.get("data", {}):
                counts[kind] = counts.get(kind, 0) + 1
    return counts


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb")))
def test_a_notebook_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("nbclient", reason="notebooks are executed with nbclient")
    for name_of_variable in ("PLOTLY_RENDERER", "PYTHONPATH"):  # executing sets them
        monkeypatch.setenv(name_of_variable, "")
    specification = importlib.util.spec_from_file_location("execute", NOTEBOOKS / "execute.py")
    assert specification is not None
    assert specification.loader is not None
    execute = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(execute)
    counts = shown(execute.executed(NOTEBOOKS / f"{name}.ipynb", str(tmp_path)))
    assert counts["text/html"] >= 3
    assert counts["image/png"] >= 1
    assert counts["application/vnd.plotly.v1+json"] >= 1


def test_notebooks_are_kept_with_what_they_showed() -> None:
    nbformat = pytest.importorskip("nbformat")
    found = [nbformat.read(path, as_version=4) for path in sorted(NOTEBOOKS.glob("*.ipynb"))]
    assert len(found) == 3
    for notebook in found:
        assert shown(notebook)["image/png"] >= 1
        code = [cell for cell in notebook.cells if cell.cell_type == "code"]
        assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
