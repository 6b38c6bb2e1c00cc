"""The notebook runs as it is, in a kernel of its own. Half a minute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[2] / "docs" / "tutorial" / "first-run.ipynb"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the kernel's own libraries
def test_every_cell_runs(tmp_path: Path) -> None:
    nbformat: Any = pytest.importorskip("nbformat", reason="cos2p[notebook] is not installed")
    nbclient: Any = pytest.importorskip("nbclient", reason="cos2p[notebook] is not installed")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.outputs for cell in cells)
    assert "cos2p." not in "".join(cell.source for cell in cells).replace("cos2p.run(", "")
    assert "config.json" in str(cells[-1].outputs)


def test_it_is_stored_without_outputs() -> None:
    nbformat: Any = pytest.importorskip("nbformat", reason="cos2p[notebook] is not installed")
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    assert not [cell for cell in cells if cell.cell_type == "code" and cell.outputs]
