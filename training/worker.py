"""Entry point of a rank: `torchrun -m training.worker <run folder>`."""

import json
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from pathlib import Path
from types import FrameType

import torch
import torch.distributed as dist
import transformers
from transformers import PreTrainedModel

from training import checkpoint
from training.activation import checkpoint_activations
from training.attention import check_isolation
from training.config import RunConfig, check_world_size
from training.data import PackedDataset
from training.device import collective_backend, default_device
from training.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_INVALID, UserError
from training.events import EventWriter, Note, Span, TrainStep
from training.model import (
    build_on_meta,
    copy_companions,
    export_weights,
    load_weights,
    materialize,
    num_parameters,
    source_dtype,
)
from training.optim import make_optimizer
from training.precision import master_dtype, resolve_precision
from training.processes import die_with_parent
from training.run_folder import RunFolder
from training.sharding import make_mesh, shard_model
from training.store import disk_errors, remove, rename_into_place, seal
from training.trainer import Trainer

_COLLECTIVE_TIMEOUT = timedelta(minutes=10)


def main(run_folder: str) -> int:
    """Train one rank's part of the run; returns the exit code."""
    die_with_parent(int(os.environ.get("SHARDLINE_NODE_PID", "0")) or None)
    stop = _StopFlag()
    rank = int(os.environ["RANK"])
    attempt = int(os.environ.get("SHARDLINE_ATTEMPT", "1"))
    folder = RunFolder.at(run_folder)
    try:
        with disk_errors(folder.root):
            events = EventWriter(folder.events, f"rank-{rank}", attempt)
            finished = _Rank(folder, events, attempt, stop).run()
    except BaseException as error:
        return _report(error, folder.attempt(attempt), rank)
    return 0 if finished else EXIT_INTERRUPTED


class _Rank:
    """One rank's way through an attempt."""

    def __init__(self, folder: RunFolder, events: EventWriter, attempt: int, stop: "_StopFlag") -> None:
        self.folder = folder
        self.events = events
        self.attempt = attempt
        self.stop = stop
        self.config = folder.config()
        self.device = default_device()
        self.is_leader = int(os.environ["RANK"]) == 0

    def run(self) -> bool:
        """Everything from the process group to the exported model; whether the plan was finished."""
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        torch.manual_seed(self.config.training.seed)
        if self.device.type != "cpu":
            torch.accelerator.set_device_index(self.device.index)
        dist.init_process_group(collective_backend(self.device), timeout=_COLLECTIVE_TIMEOUT)
        with self._span("load"):
            trainer, identity = self._prepare()
        self.stop.arm()
        finished = self._train(trainer, identity)
        if finished:
            with self._span("export"):
                self._export(trainer.model)
        # Nobody leaves before all are done: a launcher may take the first to leave as the end of the job.
        dist.barrier()
        # Not after a failure: it could wait for ranks that are gone.
        dist.destroy_process_group()
        return finished

    def _prepare(self) -> tuple[Trainer, dict[str, str]]:
        config, inputs = self.config, self.folder.inputs()
        world_size = dist.get_world_size()
        try:
            check_world_size(config, world_size)
        except ValueError as error:
            raise UserError(str(error)) from None
        dataset = PackedDataset(inputs.dataset / "train.arrow")
        compute = resolve_precision(config.training.precision, self.device)
        model = self._build_model(config, inputs.model, compute, world_size)
        optimizer = make_optimizer(model, config.training)
        trainer = Trainer(config, model, optimizer, dataset, self.device)
        identity = {"model": inputs.model.name, "dataset": inputs.dataset.name}
        saved, damaged = checkpoint.choose(self.folder.checkpoints)
        for name in damaged:
            self._note(f"{name} is damaged and was moved to damaged-{name}")
        if saved:
            trainer.step = checkpoint.load(saved, model, optimizer, identity)
            self._note(f"resumed from {saved.name}: step {trainer.step} of {trainer.plan.num_steps}")
        else:
            load_weights(model, inputs.model)
        check_isolation(model, self.device)
        self._note(
            f"{num_parameters(model):,} parameters, {config.parallel.strategy} over {world_size} "
            f"{self.device.type} ranks, {str(compute).removeprefix('torch.')}; {len(dataset)} samples, "
            f"{trainer.plan.num_steps} steps"
        )
        return trainer, identity

    def _build_model(
        self, config: RunConfig, source: Path, compute: torch.dtype, world_size: int
    ) -> PreTrainedModel:
        model = build_on_meta(source, config.model.attention, master_dtype(compute), self.device)
        checkpoint_activations(model, config.training.activation_checkpointing)
        local_size = int(os.environ["LOCAL_WORLD_SIZE"])
        mesh = make_mesh(config.parallel, self.device, world_size, local_size)
        shard_model(model, mesh, config.parallel.strategy, compute)
        materialize(model, self.device)
        return model

    def _train(self, trainer: Trainer, identity: dict[str, str]) -> bool:
        def save(step: int) -> None:
            with self._span("checkpoint"):
                checkpoint.save(
                    self.folder.checkpoints,
                    trainer.model,
                    trainer.optimizer,
                    step,
                    identity,
                    self.config.checkpoint.keep,
                    self.attempt,
                )

        return trainer.run(on_step=self._on_step, save=save, stop_asked=lambda: self.stop.asked)

    def _on_step(self, metrics: TrainStep) -> None:
        if not self.is_leader:
            return
        self.events.write(metrics)
        print(
            f"step {metrics.step}/{metrics.num_steps}  loss {metrics.loss:.4f}  "
            f"grad norm {metrics.grad_norm:.3f}  lr {metrics.learning_rate:.2e}  "
            f"{metrics.tokens_per_s:,.0f} tokens/s  {metrics.memory_gib:.2f} GiB",
            flush=True,
        )

    def _export(self, model: PreTrainedModel) -> None:
        inputs = self.folder.inputs()
        source = inputs.model
        choice = self.config.training.export_dtype
        dtype = source_dtype(source) if choice == "source" else resolve_precision(choice, self.device)
        staging = self.folder.path / ".staging-model"
        if self.is_leader:
            shutil.rmtree(staging, ignore_errors=True)
            staging.mkdir()
        checkpoint.check_space(self.folder.path, dict(model.state_dict()), "the exported model")
        export_weights(model, staging, dtype)
        if self.is_leader:
            copy_companions(source, staging, dtype)
            origin = {"base_model": source.name, "dataset": inputs.dataset.name}
            seal(staging, {"run": self.folder.run, **origin})
            remove(self.folder.model)
            rename_into_place(staging, self.folder.model)
            if not self.config.checkpoint.keep_after_finish:
                checkpoint.remove_all(self.folder.checkpoints)

    def _note(self, text: str) -> None:
        if self.is_leader:
            print(text, flush=True)
            self.events.write(Note(text=text))

    def _span(self, name: str) -> AbstractContextManager[None]:
        return _span(self.events, name)


@contextmanager
def _span(events: EventWriter, name: str) -> Iterator[None]:
    started = time.monotonic()
    events.write(Span(name=name, phase="start"))
    ok = False
    try:
        yield
        ok = True
    finally:
        events.write(Span(name=name, phase="end", ok=ok, seconds=time.monotonic() - started))


class _StopFlag:
    """Remembers SIGTERM and Ctrl-C, so that the loop can save between two steps.

    Until it is armed there is nothing to save, and a stop ends the process at once: by the system's default
    action, since Python runs no handler while it waits in C++ for ranks that may never come.

    Attributes:
        asked: A stop was asked for.
    """

    def __init__(self) -> None:
        self.asked = False
        self._handle(signal.SIG_DFL)

    def arm(self) -> None:
        """From here on, the loop looks at `asked`."""
        self._handle(self._ask)

    def _handle(self, handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, handler)

    def _ask(self, signum: int, frame: FrameType | None) -> None:
        self.asked = True


def _report(error: BaseException, attempt: Path, rank: int) -> int:
    """Write down why this rank failed, for the launcher to read; returns the exit code."""
    code = EXIT_INVALID if isinstance(error, UserError) else EXIT_FAILED
    text = str(error) if code == EXIT_INVALID else f"{type(error).__name__}: {error}"
    record = {
        "time": time.time(),
        "rank": rank,
        "exit_code": code,
        "message": text,
        "traceback": "" if code == EXIT_INVALID else traceback.format_exc(),
    }
    print(text if code == EXIT_INVALID else record["traceback"], file=sys.stderr, flush=True)
    errors = attempt / "errors"
    try:
        errors.mkdir(parents=True, exist_ok=True)
        (errors / f"rank-{rank}.json").write_text(json.dumps(record))
    except OSError:
        pass  # a full disk: the log has it
    # An orderly interpreter shutdown could wait for ranks that are gone.
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
