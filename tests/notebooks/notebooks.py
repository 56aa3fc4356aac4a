"""Reads the notebooks, and runs them in a kernel as Jupyter does."""

import asyncio
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def read(name: str):
    return nbformat.read(FOLDER / name, as_version=4)


def execute(folder: Path, **notebooks: dict) -> list:
    """Run notebooks beside each other, with other values in their first cells; an error in a cell is raised.

    Args:
        folder: Where the kernels work.
        notebooks: Parameters, by the beginning of the notebook's name after its number.
    """
    folder.mkdir(parents=True, exist_ok=True)
    filled = [_with_parameters(name, parameters) for name, parameters in notebooks.items()]
    resources = {"metadata": {"path": str(folder)}}

    async def run_all() -> list:
        clients = [NotebookClient(notebook, timeout=240, resources=resources) for notebook in filled]
        return await asyncio.gather(*(client.async_execute() for client in clients))

    return asyncio.run(run_all())


def parameter_cell(notebook):
    (cell,) = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    return cell


def _with_parameters(name: str, parameters: dict):
    (path,) = FOLDER.glob(f"*-{name}-*.ipynb")
    notebook = read(path.name)
    cell = parameter_cell(notebook)
    defaults: dict = {}
    exec(cell.source, defaults)
    assert parameters.keys() <= defaults.keys(), (
        f"{path.name} has no parameters {parameters.keys() - defaults.keys()}"
    )
    cell.source += "".join(f"\n{key} = {value!r}" for key, value in parameters.items())
    return notebook


def cell_with(notebook, text: str):
    (cell,) = [cell for cell in notebook.cells if cell.cell_type == "code" and text in cell.source]
    return cell


def printed(cell) -> str:
    return "".join(output.text for output in cell.outputs if output.output_type == "stream")


def shown(cell, kind: str) -> list[str]:
    """What a cell displays in this MIME type."""
    displays = [output for output in cell.outputs if output.output_type in ("display_data", "execute_result")]
    return [output.data[kind] for output in displays if kind in output.data]
