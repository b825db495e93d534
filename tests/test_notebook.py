"""The notebooks run from top to bottom, as a reader would run them, and are saved with outputs."""

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


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_saved(path: Path) -> None:
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == [*range(1, len(cells) + 1)]
    outputs = [output for cell in cells for output in cell.outputs]
    assert "display_data" in {output.output_type for output in outputs}
    assert not [output for output in outputs if output.get("name") == "stderr"]
    assert path.stat().st_size < 300_000


def test_there_are_notebooks() -> None:
    names = ["01_convert", "02_dynamic_detector", "03_precision", "04_deployment"]
    assert [path.stem for path in NOTEBOOKS] == names
