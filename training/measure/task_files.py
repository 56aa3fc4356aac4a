"""Tasks of lm-eval by name and in files: whether they can be found, and what their results depend on."""

import difflib
import importlib.util
from collections.abc import Iterator, Sequence
from glob import glob
from pathlib import Path
from typing import Any

from training.errors import UserError
from training.measure.quiet import quiet_lm_eval
from training.store import checksum, fingerprint

_YAML = (".yaml", ".yml")

_DATA = ("dataset_path", "dataset_kwargs")
"""Keys under which a task names its examples."""


def check_tasks(tasks: Sequence[str]) -> None:
    """Make sure that tasks can be found, before a job starts that is to measure them.

    Args:
        tasks: `evaluation.tasks`.

    Raises:
        UserError: lm-eval is not installed, or has no such task, or a YAML file cannot be read.
    """
    if not tasks:
        return
    if importlib.util.find_spec("lm_eval") is None:
        raise UserError(
            f"evaluation.tasks names {', '.join(tasks)}, but the package lm-eval is not installed: install "
            "shardline[eval], or use an image that has it; or leave evaluation.tasks empty"
        )
    names = [task for task in tasks if not is_file(task)]
    for task in tasks:
        if is_file(task):
            _check_file(Path(task))
    if not names:
        return
    from lm_eval.tasks import TaskManager

    with quiet_lm_eval():
        known = TaskManager().all_tasks
    if unknown := [name for name in names if name not in known]:
        raise UserError(
            f"evaluation.tasks names {', '.join(unknown)}, which lm-eval does not have{_like(unknown[0], known)}: "
            "see `lm_eval ls tasks`, or give the path of a YAML file"
        )


def identity_of(task: str) -> str:
    """What a task's result depends on: its name; or what its file, and the local files that it names, hold."""
    if not is_file(task):
        return task
    content = _load(Path(task))
    files = sorted({file for text, is_data in _texts(content) for file in _local_files(text, is_data=is_data)})
    return f"{Path(task).name} {fingerprint(task=repr(content), files=[checksum(Path(file)) for file in files])}"


def is_file(task: str) -> bool:
    """Whether a task is given as a file, not by its name."""
    return task.endswith(_YAML)


def _load(file: Path) -> dict[str, Any]:
    """A task's settings with those of the files that it includes; functions stay names of theirs, never run."""
    from lm_eval.tasks._yaml_loader import load_yaml

    content: dict[str, Any] = load_yaml(file, resolve_func=False)
    return content


def _check_file(path: Path) -> None:
    import yaml

    try:
        content = _load(path)
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UserError(
            f"evaluation.tasks names {path}, which cannot be read as a task of lm-eval: {reason}"
        ) from None
    if not {"task", "group"} & content.keys():
        raise UserError(
            f"evaluation.tasks names {path}, but that file names no task: it needs the keys `task`, "
            "`dataset_path` and the others that lm-eval's guide to new tasks explains"
        )


def _texts(content: Any, *, is_data: bool = False) -> Iterator[tuple[str, bool]]:
    """All texts of a task's settings, with whether they say where its examples are."""
    if isinstance(content, dict):
        for key, value in content.items():
            yield from _texts(value, is_data=is_data or key in _DATA)
    elif isinstance(content, list):
        for value in content:
            yield from _texts(value, is_data=is_data)
    elif isinstance(content, str):
        yield content, is_data


def _local_files(text: str, *, is_data: bool) -> Iterator[str]:
    """Files of this machine that a text stands for: examples, or the module of `!function module.name`."""
    if not is_data:
        module = f"{text.rpartition('.')[0]}.py"
        if text.startswith("/") and Path(module).is_file():
            yield module
        return
    for found in glob(text):  # noqa: PTH207  # of a pattern that may be absolute, which Path refuses
        below = Path(found).rglob("*") if Path(found).is_dir() else [Path(found)]
        yield from (str(file) for file in below if file.is_file())


def _like(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=3)
    return f" (did you mean {', '.join(near)}?)" if near else ""
