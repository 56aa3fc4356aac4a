"""How the pages that people read are rendered: one HTML file without scripts or requests."""

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined


def page_environment(folder: Path) -> Environment:
    """Templates of a folder, and those that pages share; whatever they are given is escaped.

    Args:
        folder: Of the page's own template.
    """
    return Environment(
        loader=FileSystemLoader([folder, Path(__file__).parent]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
