"""Write the pages that are made from code: `python -m tools.generate_docs [--check]`.

They are docs/configuration.md and a README in every component's folder. With `--check` nothing is written and
the exit code is 1 if one is out of date.
"""

import importlib
import sys
from pathlib import Path
from typing import Any

import yaml

from pipelines.reference import reference_page

ROOT = Path(__file__).parent.parent

STEPS = (
    "preflight",
    "check_nodes",
    "download_model",
    "tokenize_dataset",
    "train",
    "evaluate",
    "register_model",
    "stop_training",
)


def pages() -> dict[Path, str]:
    """Path → content of every generated page."""
    result = {ROOT / "docs" / "configuration.md": reference_page()}
    for step in STEPS:
        result[ROOT / "components" / step / "README.md"] = component_readme(step)
    return result


def component_readme(step: str) -> str:
    """The README of a component: what it does, its inputs and outputs, its modules, its metadata."""
    folder = ROOT / "components" / step
    component = getattr(importlib.import_module(f"components.{step}.component"), step)
    metadata = yaml.safe_load((folder / "metadata.yaml").read_text())
    spec = component.component_spec
    doc = component.python_func.__doc__.split("Args:")[0]
    described = _argument_docs(component.python_func.__doc__)
    lines = ["<!-- Made by `make docs` from component.py and metadata.yaml. -->", "", f"# {step}", ""]
    lines += [*(line.strip() for line in doc.strip().splitlines()), ""]
    lines += _table("Inputs", spec.inputs or {}, described)
    lines += _table("Outputs", spec.outputs or {}, described)
    lines += ["## Modules", ""]
    for path in sorted(folder.rglob("*.py")):
        if path.name != "__init__.py":
            lines.append(f"- `{path.relative_to(folder)}`: {_first_sentence(path)}")
    lines += ["", "## Metadata", "", f"- stability: {metadata['stability']}"]
    dependencies = [
        f"{item['name']} {item.get('version', '')}".strip()
        for items in (metadata.get("dependencies") or {}).values()
        for item in items or []
    ]
    lines += [f"- works with: {', '.join(dependencies)}"] if dependencies else []
    lines += [f"- tags: {', '.join(metadata['tags'])}", ""]
    return "\n".join(lines)


def _table(title: str, ports: dict[str, Any], described: dict[str, str]) -> list[str]:
    if not ports:
        return []
    rows = [
        f"| `{name}` | {port.type.removeprefix('system.').partition('@')[0]} | {described.get(name, '')} |"
        for name, port in ports.items()
    ]
    return [f"## {title}", "", "| name | type | meaning |", "|---|---|---|", *rows, ""]


def _argument_docs(doc: str) -> dict[str, str]:
    """The Args and Returns of a Google-style docstring; the return value is kfp's output `Output`."""
    result: dict[str, str] = {}
    name = ""
    section = ""
    for line in doc.splitlines():
        text = line.strip()
        if text in ("Args:", "Returns:"):
            section, name = text, "Output" if text == "Returns:" else ""
        elif section == "Args:" and ":" in text and not line.startswith(" " * 12):
            name, _, rest = text.partition(":")
            result[name] = rest.strip()
        elif section and name and text:
            result[name] = f"{result.get(name, '')} {text}".strip()
    return result


def _first_sentence(path: Path) -> str:
    doc = path.read_text().split('"""')[1]
    return " ".join(doc.split("\n\n")[0].split())


def main(check: bool) -> int:
    """Write or compare all pages; returns the exit code."""
    stale = 0
    for path, content in pages().items():
        if path.is_file() and path.read_text() == content:
            continue
        stale += 1
        if check:
            print(f"{path.relative_to(ROOT)} is out of date: run `make docs`", file=sys.stderr)
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_text(content)
            print(path.relative_to(ROOT))
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
