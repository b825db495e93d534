"""The notebook runs from top to bottom, as a reader would run it."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(path.parents[1]))
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=600, resources=resources).execute()
    kinds = {output.output_type for cell in notebook.cells for output in cell.get("outputs", [])}
    assert "display_data" in kinds, "the plot is missing"
    assert "error" not in kinds


def test_there_is_a_notebook() -> None:
    assert [path.name for path in NOTEBOOKS] == ["01_convert.ipynb"]
