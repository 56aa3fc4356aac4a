"""Compile the graphs to the YAML that Kubeflow takes."""

import tempfile
import warnings
from pathlib import Path

from kfp import compiler

from components.image import IMAGE
from pipelines.finetune import finetune
from training.credentials import shown
from training.errors import UserError
from training.kubernetes_rules import is_image

COMPILED = Path(__file__).parent / "compiled"

_GRAPHS = {"finetune.yaml": finetune}


def compile_all(folder: Path) -> list[Path]:
    """Write every graph into `folder`; returns the files.

    Raises:
        UserError: The folder cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"the folder {folder} cannot be made ({error.strerror}): name another") from None
    written = []
    for name, graph in _GRAPHS.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            compiler.Compiler().compile(graph, str(folder / name))
        written.append(folder / name)
    return written


def with_image(graph: str, image: str) -> str:
    """A graph's YAML with another image for its steps.

    Args:
        graph: The YAML.
        image: As REPOSITORY:TAG; steps without a GPU take REPOSITORY:TAG-steps. Empty: as it is.

    Raises:
        UserError: The image has no tag, or a digest, which cannot name two images.
    """
    if not image:
        return graph
    if "@" in image or ":" not in image.rpartition("/")[2] or not is_image(image):
        raise UserError(
            f"the image is {shown(image)}: give it as REPOSITORY:TAG; steps that need no GPU take "
            "REPOSITORY:TAG-steps"
        )
    return graph.replace(f"image: {IMAGE}", f"image: {image}")


def drifted() -> list[str]:
    """Names of committed graphs that differ from what their Python source compiles to."""
    with tempfile.TemporaryDirectory() as folder:
        return [
            fresh.name
            for fresh in compile_all(Path(folder))
            if not (COMPILED / fresh.name).is_file() or (COMPILED / fresh.name).read_text() != fresh.read_text()
        ]
