"""Reads the notebooks, and runs them in a kernel as Jupyter does."""

from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def read(name: str):
    return nbformat.read(FOLDER / name, as_version=4)


def execute(name: str, folder: Path, **parameters):
    """Run a notebook in a folder of its own, with other values in its first cell; an error in a cell is raised."""
    notebook = read(name)
    cell = parameter_cell(notebook)
    defaults: dict = {}
    exec(cell.source, defaults)
    unknown = set(parameters) - set(defaults)
    assert not unknown, f"{name} has no parameters {unknown}"
    cell.source += "".join(f"\n{key} = {value!r}" for key, value in parameters.items())
    folder.mkdir(parents=True, exist_ok=True)
    NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(folder)}}).execute()
    return notebook


def parameter_cell(notebook):
    (cell,) = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    return cell


def cell_with(notebook, text: str):
    (cell,) = [cell for cell in notebook.cells if cell.cell_type == "code" and text in cell.source]
    return cell


def printed(cell) -> str:
    return "".join(output.text for output in cell.outputs if output.output_type == "stream")


def shown(cell, kind: str) -> list[str]:
    """What a cell displays in this MIME type."""
    displays = [output for output in cell.outputs if output.output_type in ("display_data", "execute_result")]
    return [output.data[kind] for output in displays if kind in output.data]
