"""Tasks of lm-eval, on a model that is in memory, shared out to all ranks."""

from collections.abc import Callable
from typing import Any

from training.config import EvaluationConfig
from training.errors import UserError
from training.measure.measured import TaskScore
from training.measure.quiet import quiet_lm_eval
from training.measure.task_files import is_file

_BATCH_SIZE = 8

_SEED = 1234
"""Of the examples that stand before a question; lm-eval's own default."""


def load_tasks(config: EvaluationConfig) -> Any:
    """Have tasks at hand with their examples, before anything is measured.

    Args:
        config: `tasks`, `num_fewshot`.

    Returns:
        As `score_tasks` takes them; None without tasks.

    Raises:
        UserError: A task is wrong, or its examples are.
    """
    if not config.tasks:
        return None
    from lm_eval.tasks import TaskManager

    given = ", ".join(config.tasks)
    with quiet_lm_eval():
        try:
            loaded = TaskManager(include_defaults=not all(map(is_file, config.tasks))).load(list(config.tasks))
        except ConnectionError:
            raise  # another attempt may reach the hub
        except Exception as error:  # lm-eval and datasets have no classes for what may be wrong with a task
            reason = f"{type(error).__name__}: {error}"
            raise UserError(f"evaluation.tasks names {given}, which cannot be loaded: {reason}") from error
    for name, task in loaded["tasks"].items():
        if getattr(task, "UNSAFE_CODE", False):
            raise UserError(
                f"evaluation.tasks has {name}, which runs code that the model writes: take it out, and measure "
                "it where nothing can be harmed"
            )
        _set_fewshot(task, config.num_fewshot)
    return loaded


def score_tasks(
    model: Any, tokenizer: Any, tasks: Any, limit: int | None, *, is_sharded: bool, on_pass: Callable[[], None]
) -> dict[str, TaskScore]:
    """Score a model on tasks. Collective.

    Of a whole model every rank takes its share of the examples; of a sharded one all ranks take the same
    examples at the same time, since a forward pass is collective.

    Args:
        model: A transformers causal language model.
        tokenizer: Its tokenizer.
        tasks: From `load_tasks`.
        limit: Most examples of each; None: all.
        is_sharded: Whether the model is.
        on_pass: Called after each forward pass or generated batch of this rank.

    Returns:
        By `task/measure`, of rank 0; empty on other ranks, and without tasks.
    """
    if tasks is None:
        return {}
    import torch.distributed as dist
    from lm_eval.evaluator import evaluate

    for task in tasks["tasks"].values():
        # The same examples before a question, whichever models were measured before this one.
        task.set_fewshot_seed(seed=_SEED)
    with quiet_lm_eval():
        found = evaluate(
            lm=_language_model(model, tokenizer, on_pass, is_sharded=is_sharded),
            task_dict=tasks,
            limit=limit,
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


def _scores(found: Any) -> dict[str, TaskScore]:
    scores = {}
    for task, measures in found["results"].items():
        count = int(found.get("n-samples", {}).get(task, {}).get("effective", 0))
        is_higher_better = found.get("higher_is_better", {}).get(task, {})
        for name, value in measures.items():
            measure, _, variant = name.partition(",")
            if not variant or measure.endswith("_stderr") or not isinstance(value, int | float):
                continue
            stderr = measures.get(f"{measure}_stderr,{variant}")
            # Most tasks look at an answer in one way, which has this name.
            shown = measure if variant == "none" else f"{measure}@{variant}"
            known = isinstance(stderr, int | float)
            scores[f"{task}/{shown}"] = TaskScore(
                float(value), float(stderr) if known else None, count, is_higher_better.get(measure) is False
            )
    return scores
