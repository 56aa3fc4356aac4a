"""One rank's way through an evaluation: each model is loaded, measured, and gone before the next."""

import gc
import math
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import transformers
from transformers import AutoTokenizer, PreTrainedModel

from training import attention
from training.background_events import BackgroundEventWriter
from training.data import PackedDataset, check_lengths
from training.device import collective_backend, use_device
from training.errors import UserError
from training.events import Note
from training.guard.beat import BeatWriter
from training.isolation import check_isolation
from training.measure.fit import is_to_shard
from training.measure.generate import generate_answers, pick_prompts
from training.measure.heldout import document_losses
from training.measure.load import build_bare, load_model, num_bytes
from training.measure.measured import Answer, Measured, load_measured, save_measured
from training.measure.request import Subject, measured_folder, read_request
from training.measure.settings import Settings
from training.measure.sources import heldout_sources
from training.measure.tasks import load_tasks, score_tasks
from training.model_files import VOCABULARIES
from training.run_folder import RunFolder
from training.store import about

_COLLECTIVE_TIMEOUT = timedelta(hours=2)
"""Ranks meet rarely where each has a whole model."""

_PROGRESS_EVERY_S = 30.0


class MeasuringRank:
    """One rank of an evaluation's attempt.

    Args:
        folder: The run.
        events: This rank's.
    """

    def __init__(self, folder: RunFolder, events: BackgroundEventWriter) -> None:
        self.folder = folder
        self.events = events
        self.config = folder.config()
        self.inputs = folder.inputs()
        self.dataset = self.inputs.dataset
        self.settings = Settings.of(self.config)
        self._beat = BeatWriter.of_this_rank()

    def run(self) -> bool:
        """Measure what is asked for and not measured yet; True, since there is nothing to save half-way.

        Raises:
            UserError: Something that the user can mend.
        """
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        use_device(self.settings.device)
        self._beat("load", 0)
        dist.init_process_group(collective_backend(self.settings.device), timeout=_COLLECTIVE_TIMEOUT)
        missing = self._missing()
        tasks = load_tasks(self.config.evaluation) if missing else None
        for subject in missing:
            measured = self._measure(subject, tasks)
            if dist.get_rank() == 0:
                save_measured(measured, measured_folder(self.folder, subject.name))
        self._beat("wait", 0)
        # Nobody leaves before all are done: a launcher may take the first to leave as the end of the job.
        dist.barrier()
        dist.destroy_process_group()
        return True

    def _missing(self) -> list[Subject]:
        """The models to measure; those at hand in another precision too, which could not be compared."""
        missing: list[Any] = [None]
        if dist.get_rank() == 0:
            missing = [
                [
                    subject
                    for subject in read_request(self.folder)
                    if (found := load_measured(measured_folder(self.folder, subject.name), subject.key)) is None
                    or found.precision != self.settings.precision
                ]
            ]
        dist.broadcast_object_list(missing)
        subjects: list[Subject] = missing[0]
        return subjects

    def _measure(self, subject: Subject, tasks: Any) -> Measured:
        started = time.monotonic()
        self._beat("load", 0)
        settings, evaluation = self.settings, self.config.evaluation
        samples = PackedDataset(self.dataset / "heldout.arrow")
        sources = heldout_sources(about(self.dataset), len(samples))
        bare = build_bare(subject, self.dataset, settings)
        check_lengths(samples, bare.config, self.config.model.max_context)
        is_sharded = is_to_shard(evaluation.sharding, num_bytes(bare), settings.device)
        sharding = "full" if is_sharded else "none"
        model = load_model(bare, subject, settings, is_sharded=is_sharded)
        check_isolation(model, settings.device)
        self._say(
            f"measuring the {subject.name} model on {dist.get_world_size()} {settings.device.type} ranks, "
            f"{'sharded over all of them' if is_sharded else 'whole on each'}, in {settings.precision}"
        )
        told = self._progress(f"held-out samples of the {subject.name} model", len(samples))
        documents = document_losses(model, samples, sources, settings.device, told)
        _check_finite(subject, float(documents.nats.sum()), settings)
        if model.config._attn_implementation == attention.NAME:
            # Answers are generated with a mask and a cache, which attention by documents does not take.
            model.set_attn_implementation("sdpa")
        tokenizer = AutoTokenizer.from_pretrained(self._tokenizer_folder(subject))
        answers = self._answers(subject, model, tokenizer, is_sharded)
        passes = self._progress(f"tasks of the {subject.name} model")
        scores = score_tasks(
            model, tokenizer, tasks, evaluation.task_limit, is_sharded=is_sharded, on_pass=passes.count
        )
        del model, bare
        _release_memory(settings.device)
        return Measured(
            name=subject.name,
            key=subject.key,
            precision=settings.precision,
            device=settings.device.type,
            sharding=sharding,
            num_ranks=dist.get_world_size(),
            seconds=round(time.monotonic() - started, 3),
            sources=tuple(source.name for source in sources),
            documents=documents,
            answers=answers,
            tasks=scores,
        )

    def _tokenizer_folder(self, subject: Subject) -> Path:
        """Of the base model for a model without a tokenizer of its own, as some adapters are."""
        has_own = any((subject.folder / name).is_file() for name in VOCABULARIES)
        return subject.folder if has_own else self.inputs.model

    def _answers(
        self, subject: Subject, model: PreTrainedModel, tokenizer: Any, is_sharded: bool
    ) -> tuple[Answer, ...]:
        evaluation = self.config.evaluation
        picked = pick_prompts(self.dataset, evaluation.num_generations, evaluation.num_scored)
        answers = generate_answers(
            model,
            tokenizer,
            [one.prompt.prompt for one in picked],
            evaluation.max_new_tokens,
            self.settings.device,
            is_sharded=is_sharded,
            on_batch=self._progress(f"answers of the {subject.name} model", len(picked)),
        )
        return tuple(
            Answer(
                question=one.prompt.question,
                reference=one.prompt.reference,
                answer=answer,
                source=one.prompt.source,
                is_shown=one.is_shown,
                is_scored=one.is_scored,
            )
            for one, answer in zip(picked, answers, strict=True)
        )

    def _progress(self, what: str, total: int | None = None) -> "_Progress":
        return _Progress(self._say, self._beat, what, total)

    def _say(self, text: str) -> None:
        if dist.get_rank() == 0:
            print(text, flush=True)
            self.events.write(Note(text=text))


class _Progress:
    """A beat with every batch, and a line now and then while a long measurement runs."""

    def __init__(
        self, say: Callable[[str], None], beat: Callable[[str, int], None], what: str, total: int | None
    ) -> None:
        self._say = say
        self._beat = beat
        self._what = what
        self._total = total
        self._done = 0
        self._last_s = time.monotonic()
        beat("evaluation", 0)

    def __call__(self, num_done: int) -> None:
        self._done = num_done
        self._beat("evaluation", num_done)
        if time.monotonic() - self._last_s >= _PROGRESS_EVERY_S:
            self._last_s = time.monotonic()
            of = "batches" if self._total is None else f"of {self._total:,}"
            self._say(f"{self._what}: {num_done:,} {of}")

    def count(self) -> None:
        self(self._done + 1)


def _check_finite(subject: Subject, loss: float, settings: Settings) -> None:
    if math.isfinite(loss):
        return
    if subject.name == "tuned":
        raise UserError(
            f"the held-out loss of the tuned model is {loss}: training has diverged. Lower "
            "training.learning_rate, and train again under another run name"
        )
    if subject.name == "champion":
        raise UserError(
            f"the held-out loss of the champion in {subject.folder} is {loss} in {settings.precision}: give the "
            "alias to another version with `shardline rollback`, or set evaluation.champion to false"
        )
    raise UserError(
        f"the held-out loss of the base model is {loss} in {settings.precision}: set training.precision to fp32, "
        "or choose another model"
    )


def _release_memory(device: torch.device) -> None:
    # The next model should find the memory free.
    gc.collect()
    if device.type != "cpu":
        torch.accelerator.empty_cache()
