"""The notebooks as they are committed: readable, short, and without outputs."""

from itertools import pairwise

import nbformat
import pytest

from tests.notebooks.notebooks import FOLDER, NOTEBOOKS, parameter_cell, read

_LINES, _COLUMNS = 8, 115


def test_all_notebooks_are_in_the_list_for_people():
    text = (FOLDER / "README.md").read_text()
    assert len(NOTEBOOKS) == 3
    assert all(f"({path.name})" in text for path in NOTEBOOKS)


@pytest.mark.parametrize("name", [path.name for path in NOTEBOOKS])
def test_a_notebook_is_cleared_short_and_explained(name):
    notebook = read(name)
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == "python3"
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code[0] is parameter_cell(notebook)
    for cell in code:
        assert cell.outputs == [] and cell.execution_count is None
        lines = [line for line in cell.source.splitlines() if line.strip()]
        assert len(lines) <= _LINES, cell.source
        assert all(len(line) <= _COLUMNS for line in lines), cell.source
        assert not any(line.startswith(("def ", "class ", "try:", "if ", "while ")) for line in lines)
    kinds = [cell.cell_type for cell in notebook.cells]
    assert all(before == "markdown" for before, kind in pairwise(kinds) if kind == "code")
