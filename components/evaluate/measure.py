"""Measure one model: load it, take its held-out loss, let it answer."""

import gc
import math
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from components.evaluate.generate import generate_answers, pick_prompts
from components.evaluate.heldout import heldout_loss
from components.evaluate.results import Generation, ModelName, ModelResult
from components.evaluate.settings import Settings
from components.evaluate.start import build_start
from training import attention
from training.adapter_folder import is_adapter
from training.data import PackedDataset
from training.errors import UserError
from training.isolation import check_isolation

_PROGRESS_EVERY_S = 30.0


def measure(
    name: ModelName,
    model_folder: Path,
    dataset: Path,
    settings: Settings,
    made_from: str,
    say: Callable[[str], None],
    base_folder: Path | None = None,
) -> ModelResult:
    """Measure one model on the held-out rows of a data set.

    Args:
        name: Which of the two it is.
        model_folder: Weights, config and tokenizer in Hugging Face format; or an adapter with them.
        dataset: The published data set.
        settings: How to measure.
        made_from: Fingerprint to stamp on the result.
        say: Receives lines of progress for people.
        base_folder: The model that an adapter belongs to.

    Raises:
        UserError: The loss is not finite, or there is nothing to measure on.
    """
    started = time.monotonic()
    samples = PackedDataset(dataset / "heldout.arrow")
    if name == "base" and not settings.base_is_as_published:
        model = build_start(model_folder, dataset, settings)
    else:
        model = load_model(model_folder, settings, base_folder)
    check_isolation(model, settings.device)
    progress = _Progress(f"held-out loss of the {name} model", len(samples), say)
    loss, num_supervised = heldout_loss(model, samples, settings.device, progress)
    _check_finite(name, loss, settings)
    if model.config._attn_implementation == attention.NAME:
        # Answers are generated with a mask and a cache, which attention by documents does not take.
        model.set_attn_implementation("sdpa")
    prompts = pick_prompts(dataset, settings.num_generations)
    answers = generate_answers(
        model,
        AutoTokenizer.from_pretrained(model_folder),
        [prompt.prompt for prompt in prompts],
        settings.max_new_tokens,
        settings.device,
    )
    del model
    _release_memory(settings.device)
    return ModelResult(
        name=name,
        loss=loss,
        num_supervised=num_supervised,
        seconds=round(time.monotonic() - started, 3),
        generations=tuple(
            Generation(prompt.question, prompt.reference, answer)
            for prompt, answer in zip(prompts, answers, strict=True)
        ),
        made_from=made_from,
    )


def load_model(folder: Path, settings: Settings, base_folder: Path | None = None) -> Any:
    """Load a causal language model for inference.

    Args:
        folder: A whole model, or an adapter.
        settings: How to measure.
        base_folder: The model that an adapter belongs to. The name that stands in the adapter's folder is for
            other machines.
    """
    whole = base_folder if base_folder is not None and is_adapter(folder) else folder
    config = AutoConfig.from_pretrained(whole)
    model = AutoModelForCausalLM.from_pretrained(
        whole,
        dtype=settings.dtype,
        # As in training: some architectures keep packed documents apart with some attentions only.
        attn_implementation=attention.choose_attention(settings.attention, config),
    )
    if whole != folder:
        model = _with_adapter(model, folder)
    return model.to(settings.device).eval()


def _with_adapter(model: Any, folder: Path) -> Any:
    # Here, because it takes seconds, and a whole model does without.
    from peft import PeftModel

    with warnings.catch_warnings():
        # peft asks transformers for something by its former name.
        warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing", category=FutureWarning)
        # transformers' own model, with the adapter inside, which the steps after this know how to use.
        return PeftModel.from_pretrained(model, str(folder)).get_base_model()


class _Progress:
    """A line now and then while a long measurement runs; silence during a short one."""

    def __init__(self, what: str, num_samples: int, say: Callable[[str], None]) -> None:
        self.what = what
        self.num_samples = num_samples
        self.say = say
        self.last_s = time.monotonic()

    def __call__(self, num_done: int) -> None:
        if time.monotonic() - self.last_s >= _PROGRESS_EVERY_S:
            self.last_s = time.monotonic()
            self.say(f"{self.what}: {num_done:,} of {self.num_samples:,} samples")


def _check_finite(name: ModelName, loss: float, settings: Settings) -> None:
    if math.isfinite(loss):
        return
    if name == "base":
        raise UserError(
            f"the held-out loss of the base model is {loss} in {settings.precision}: set training.precision to "
            "fp32, or choose another model"
        )
    raise UserError(
        f"the held-out loss of the tuned model is {loss}: training has diverged. Lower "
        "training.learning_rate, and train again under another run name"
    )


def _release_memory(device: torch.device) -> None:
    # The next model should find the memory free.
    gc.collect()
    if device.type != "cpu":
        torch.accelerator.empty_cache()
