"""Tasks of lm-eval, on a model that is in memory, shared out to all ranks."""

import contextlib
import difflib
import hashlib
import importlib.util
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from training.config import EvaluationConfig
from training.errors import UserError
from training.measure.measured import TaskScore

_BATCH_SIZE = 8

_SEED = 1234
"""Of the examples that stand before a question; lm-eval's own default."""

_YAML = (".yaml", ".yml")


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
    names = [task for task in tasks if not _is_file(task)]
    for task in tasks:
        if _is_file(task):
            _check_file(Path(task))
    if not names:
        return
    from lm_eval.tasks import TaskManager

    with _quiet():
        known = TaskManager().all_tasks
    if unknown := [name for name in names if name not in known]:
        raise UserError(
            f"evaluation.tasks names {', '.join(unknown)}, which lm-eval does not have{_like(unknown[0], known)}: "
            "see `lm_eval ls tasks`, or give the path of a YAML file"
        )


def identity_of(task: str) -> str:
    """What a task's result depends on: its name, or the content of its file."""
    if not _is_file(task):
        return task
    return f"{Path(task).name} {hashlib.sha256(Path(task).read_bytes()).hexdigest()}"


def score_tasks(
    model: Any, tokenizer: Any, config: EvaluationConfig, *, is_sharded: bool, on_pass: Callable[[], None]
) -> dict[str, TaskScore]:
    """Score a model on tasks. Collective.

    Of a whole model every rank takes its share of the examples; of a sharded one all ranks take the same
    examples at the same time, since a forward pass is collective.

    Args:
        model: A transformers causal language model.
        tokenizer: Its tokenizer.
        config: `tasks`, `task_limit`, `num_fewshot`.
        is_sharded: Whether the model is.
        on_pass: Called after each forward pass or generated batch of this rank.

    Returns:
        By `task/measure`, of rank 0; empty on other ranks, and without tasks.
    """
    if not config.tasks:
        return {}
    import torch.distributed as dist
    from lm_eval.evaluator import evaluate
    from lm_eval.tasks import TaskManager

    with _quiet():
        needs_all = not all(map(_is_file, config.tasks))
        loaded = TaskManager(include_defaults=needs_all).load(list(config.tasks))
        for name, task in loaded["tasks"].items():
            if getattr(task, "UNSAFE_CODE", False):
                raise UserError(
                    f"evaluation.tasks has {name}, which runs code that the model writes: take it out, and "
                    "measure it where nothing can be harmed"
                )
            _set_fewshot(task, config.num_fewshot)
        found = evaluate(
            lm=_language_model(model, tokenizer, on_pass, is_sharded=is_sharded),
            task_dict=loaded,
            limit=config.task_limit,
            log_samples=False,
        )
    return _scores(found) if dist.get_rank() == 0 and found is not None else {}


def _language_model(model: Any, tokenizer: Any, on_pass: Callable[[], None], *, is_sharded: bool) -> Any:
    """lm-eval's view of a model in memory."""
    import torch
    import torch.distributed as dist
    from lm_eval.models.huggingface import HFLM

    class RankModel(HFLM):
        """Takes the place of accelerate, which knows nothing of this process group."""

        @property
        def rank(self) -> int:
            return 0 if is_sharded else dist.get_rank()

        @property
        def world_size(self) -> int:
            return 1 if is_sharded else dist.get_world_size()

        def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
            parts = [torch.zeros_like(tensor) for _ in range(self.world_size)]
            dist.all_gather(parts, tensor)
            return torch.stack(parts)

        def barrier(self) -> None:
            if self.world_size > 1:
                dist.barrier()

        def _model_call(self, *args: Any, **kwargs: Any) -> Any:
            logits = super()._model_call(*args, **kwargs)
            on_pass()
            return logits

        def _model_generate(self, *args: Any, **kwargs: Any) -> Any:
            tokens = super()._model_generate(*args, **kwargs)
            on_pass()
            return tokens

    return RankModel(pretrained=model, tokenizer=tokenizer, batch_size=_BATCH_SIZE)


def _set_fewshot(task: Any, given: int | None) -> None:
    """As lm-eval's own command does: a task that asks for none gets none."""
    own = task.get_config("num_fewshot")
    if own is None or (given is not None and own != 0):
        task.set_config(key="num_fewshot", value=given or 0)
    task.set_fewshot_seed(seed=_SEED)


def _scores(found: Any) -> dict[str, TaskScore]:
    scores = {}
    for task, measures in found["results"].items():
        count = int(found.get("n-samples", {}).get(task, {}).get("effective", 0))
        for name, value in measures.items():
            measure, _, variant = name.partition(",")
            if not variant or measure.endswith("_stderr") or not isinstance(value, int | float):
                continue
            stderr = measures.get(f"{measure}_stderr,{variant}")
            # Most tasks look at an answer in one way, which has this name.
            shown = measure if variant == "none" else f"{measure}@{variant}"
            known = isinstance(stderr, int | float)
            scores[f"{task}/{shown}"] = TaskScore(float(value), float(stderr) if known else None, count)
    return scores


def _is_file(task: str) -> bool:
    return task.endswith(_YAML)


def _check_file(path: Path) -> None:
    import yaml
    from lm_eval.tasks._yaml_loader import load_yaml

    try:
        content = load_yaml(path, resolve_func=False)
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


def _like(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=3)
    return f" (did you mean {', '.join(near)}?)" if near else ""


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hold back what lm-eval says of each task that it knows."""
    logger = logging.getLogger("lm_eval")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
