"""Print what a pyproject.toml depends on: `python requirements.py pyproject.toml EXTRA…`.

So that the packages are a layer of their own, below the project, which changes more often. Standard library only.
"""

import sys
import tomllib
from pathlib import Path


def requirements(pyproject: Path, extras: list[str]) -> list[str]:
    """The requirements of a project with some of its extras, as pip takes them."""
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    optional = project["optional-dependencies"]
    return [*project["dependencies"], *(line for extra in extras for line in optional[extra])]


if __name__ == "__main__":
    print("\n".join(requirements(Path(sys.argv[1]), sys.argv[2:])))
