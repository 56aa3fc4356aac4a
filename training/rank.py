"""One rank's way through an attempt, from the process group to the exported model."""

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import torch
import torch.distributed as dist
import transformers
from transformers import PreTrainedModel

from training.adapter_folder import is_adapter
from training.background_events import BackgroundEventWriter
from training.background_lines import BackgroundLines
from training.build import build_model
from training.checkpoint.checkpointer import Checkpointer
from training.checkpoint.choose import choose_checkpoint
from training.checkpoint.folders import remove_all
from training.checkpoint.load import load_checkpoint
from training.checkpoint.space import check_space
from training.collective_timeout import collective_timeout
from training.config import check_world_size
from training.data import PackedDataset, check_lengths
from training.device import collective_backend, default_device, use_device
from training.errors import UserError
from training.events import Alert, Evaluation, Event, Note, Span, TrainStep
from training.guard.beat import BeatWriter
from training.initialize import init_weights
from training.isolation import check_isolation
from training.lora import init_adapters
from training.lora_export import export_adapter, export_merged
from training.model import (
    copy_companions,
    export_weights,
    load_weights,
    num_parameters,
    num_trainable,
    source_dtype,
    trainable_weights,
    weights,
)
from training.nonfinite import NonFinite
from training.optim import make_optimizer
from training.precision import resolve_precision
from training.run_folder import RunFolder
from training.skipped import skipped_steps
from training.step_line import format_step
from training.store import about, remove, rename_into_place, seal
from training.trainer import Trainer
from training.vocabulary import embedding_rows

_LINES_S = 5.0
"""How long the end waits for the last lines of the log."""


class StopRequest(Protocol):
    """How a rank learns that it should stop.

    Attributes:
        asked: A stop was asked for.
    """

    asked: bool

    def arm(self) -> None:
        """From here on, there is something to save."""


class Rank:
    """One rank of an attempt.

    Args:
        folder: The run.
        events: This rank's.
        attempt: Counted from 1.
        stop: How it learns that it should stop.
    """

    def __init__(self, folder: RunFolder, events: BackgroundEventWriter, attempt: int, stop: StopRequest) -> None:
        self.folder = folder
        self.events = events
        self.attempt = attempt
        self.stop = stop
        self.config = folder.config()
        self.inputs = folder.inputs()
        self.device = default_device()
        self.compute = resolve_precision(self.config.training.precision, self.device)
        self.is_leader = int(os.environ["RANK"]) == 0
        self._lines = BackgroundLines()
        self._beat = BeatWriter.of_this_rank()

    def run(self) -> bool:
        """Train; whether the plan was finished.

        Raises:
            UserError: Something that the user can mend.
        """
        try:
            return self._run()
        finally:
            self._lines.flush(_LINES_S)

    def _run(self) -> bool:
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        torch.manual_seed(self.config.training.seed)
        use_device(self.device)
        self._beat("load", 0)
        dist.init_process_group(
            collective_backend(self.device), timeout=collective_timeout(self.config.resilience)
        )
        with self._span("load"):
            trainer, checkpointer = self._prepare()
        self.stop.arm()
        finished = self._train(trainer, checkpointer)
        checkpointer.close(finished=finished)
        if finished:
            self._beat("export", trainer.step)
            with self._span("export"):
                self._export(trainer.model)
        self._beat("wait", trainer.step)
        # Nobody leaves before all are done: a launcher may take the first to leave as the end of the job.
        checkpointer.barrier()
        # Not after a failure: it could wait for ranks that are gone.
        dist.destroy_process_group()
        return finished

    def _prepare(self) -> tuple[Trainer, Checkpointer]:
        config, inputs = self.config, self.inputs
        try:
            check_world_size(config, dist.get_world_size())
        except ValueError as error:
            raise UserError(str(error)) from None
        dataset = PackedDataset(inputs.dataset / "train.arrow")
        heldout = None
        if config.evaluation.every_steps is not None:
            heldout = PackedDataset(inputs.dataset / "heldout.arrow")
        model = build_model(config, inputs.model, self.device, self.compute, self._num_rows())
        for samples in (dataset, heldout):
            if samples is not None:
                check_lengths(samples, model.config, config.model.max_context)
        optimizer = make_optimizer(model, config.training)
        trainer = Trainer(
            config,
            model,
            optimizer,
            dataset,
            heldout,
            self.device,
            self.compute,
            skipped=skipped_steps(self.folder),
            beat=self._beat,
        )
        identity = {"model": inputs.model.name, "dataset": inputs.dataset.name}
        self._fill(trainer, identity)
        check_isolation(model, self.device)
        self._describe(trainer)
        return trainer, Checkpointer(
            self.folder.checkpoints,
            model,
            optimizer,
            identity,
            config.checkpoint,
            self.attempt,
            tell=self._tell,
            local=self._local_checkpoints(),
            events=self.folder.events,
        )

    def _num_rows(self) -> int:
        """Rows of the embedding, after a check that every token of the data has one."""
        facts = about(self.inputs.model), about(self.inputs.dataset)
        return embedding_rows(*facts, self.config.model.resize_vocabulary)

    def _fill(self, trainer: Trainer, identity: dict[str, str]) -> None:
        """Give the model its values: from the newest checkpoint, or those that training begins with."""
        model, config = trainer.model, self.config
        with self._span("restore"):
            saved, damaged = choose_checkpoint(
                self.folder.checkpoints, self._local_checkpoints(), self._go_on_reading
            )
        for name in damaged:
            self._note(f"{name} is damaged and was moved to damaged-{name}")
        uses_lora = config.training.method == "lora"
        # A checkpoint has what is trained, so beside adapters the base comes from the store.
        if saved is None or uses_lora:
            if config.model.init == "random":
                init_weights(model, config.training.seed)
            else:
                load_weights(model, self.inputs.model)
        self._beat("load", 0)
        if saved is not None:
            with self._span("restore"):
                trainer.step = load_checkpoint(saved, model, trainer.optimizer, identity)
            where = "" if saved.parent == self.folder.checkpoints else " on the nodes' own disks"
            self._note(f"resumed from {saved.name}{where}: step {trainer.step} of {trainer.plan.num_steps}")
        elif uses_lora:
            init_adapters(model, config.training.seed)

    def _go_on_reading(self, text: str) -> None:
        self._beat("load", 0)
        self._note(text)

    def _local_checkpoints(self) -> Path | None:
        """The run's folder on this node's own disk, where checkpoints are written first."""
        local = self.config.checkpoint.local_folder
        return None if local is None else Path(local) / self.folder.identity()

    def _describe(self, trainer: Trainer) -> None:
        config, model = self.config, trainer.model
        trained = f", {num_trainable(model):,} of them trained" if config.training.method == "lora" else ""
        self._note(
            f"{num_parameters(model):,} parameters{trained}, {config.parallel.strategy} over "
            f"{dist.get_world_size()} {self.device.type} ranks, {str(self.compute).removeprefix('torch.')}; "
            f"{len(trainer.dataset)} samples, {trainer.plan.num_steps} steps"
        )

    def _train(self, trainer: Trainer, checkpointer: Checkpointer) -> bool:
        def save(step: int, is_last: bool) -> None:
            with self._span("checkpoint"):
                checkpointer.save(step, block=is_last)

        try:
            return trainer.run(
                on_step=self._on_step,
                on_evaluation=self._on_evaluation,
                on_alert=self._on_alert,
                save=save,
                save_wanted=lambda: checkpointer.is_wanted,
                before_update=checkpointer.wait_for_copy,
                stop_asked=lambda: self.stop.asked,
            )
        except (UserError, NonFinite):
            # All ranks leave together, so what is being written can be finished. If it cannot, that is not why.
            self._beat("checkpoint", trainer.step)
            with contextlib.suppress(Exception):
                checkpointer.wait()
            raise

    def _on_step(self, metrics: TrainStep) -> None:
        if self.is_leader:
            self.events.write(metrics)
            self._lines.print(format_step(metrics))

    def _on_evaluation(self, evaluation: Evaluation) -> None:
        if self.is_leader:
            self.events.write(evaluation)
            self._lines.print(f"step {evaluation.step}  held-out loss {evaluation.loss:.4f}")

    def _on_alert(self, alert: Alert) -> None:
        if self.is_leader:
            self.events.write(alert)
            self._lines.print(alert.text)

    def _export(self, model: PreTrainedModel) -> None:
        staging = self.folder.path / ".staging-model"
        if self.is_leader:
            shutil.rmtree(staging, ignore_errors=True)
            staging.mkdir()
        only_adapters = self.config.training.method == "lora" and self.config.lora.export == "adapter"
        written = trainable_weights(model) if only_adapters else weights(model)
        check_space(self.folder.path, dict(written), "the exported model")
        self._write_model(model, staging)
        if self.is_leader:
            origin = {"base_model": self.inputs.model.name, "dataset": self.inputs.dataset.name}
            seal(staging, {"run": self.folder.run, **origin})
            remove(self.folder.model)
            rename_into_place(staging, self.folder.model)
            if not self.config.checkpoint.keep_after_finish:
                remove_all(self.folder.checkpoints)

    def _write_model(self, model: PreTrainedModel, staging: Path) -> None:
        config, source = self.config, self.inputs.model
        choice = config.training.export_dtype
        dtype = source_dtype(source) if choice == "source" else resolve_precision(choice, self.device)
        if config.training.method == "full":
            export_weights(model, staging, dtype)
        elif config.lora.export == "merged":
            export_merged(model, source, staging, dtype)
        else:
            export_adapter(model, staging, dtype, config.model)
        if self.is_leader:
            copy_companions(source, staging, dtype, self._num_rows())
            if is_adapter(staging):
                # With it, transformers would look for a whole model; without, it loads the base and the adapter.
                (staging / "config.json").unlink()

    def _tell(self, event: Event) -> None:
        """Of saves, from threads."""
        self.events.write(event)
        if isinstance(event, Note):
            self._lines.print(event.text)

    def _note(self, text: str) -> None:
        if self.is_leader:
            self._lines.print(text)
            self.events.write(Note(text=text))

    @contextlib.contextmanager
    def _span(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        self.events.write(Span(name=name, phase="start"))
        ok = False
        try:
            yield
            ok = True
        finally:
            self.events.write(Span(name=name, phase="end", ok=ok, seconds=time.monotonic() - started))
