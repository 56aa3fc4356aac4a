"""The folder of one run in the store, and the names of what is in it.

<root>/runs/<run>/
config.yaml         the resolved RunConfig
inputs/             pointers to the published model and data set
events/<source>.jsonl
attempts/<n>/       attempt.json, logs of every rank and pod, report.md of a failure
heartbeats/         what tells a job's nodes that its launcher lives
id                  tells runs of the same name in different stores apart
checkpoints/step-<n>/
evaluation/         what was measured, as <name>.json; below it attempts/ and heartbeats/ of the evaluation's job
health/             what the deep checks found; below it attempts/ and heartbeats/ of their job
model/              the exported model
timeline.html       where the time of all attempts went, and what failed
"""

import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from training.config import RunConfig
from training.errors import UserError
from training.resolve import read_recipe, resolve, to_yaml
from training.store import disk_errors, is_whole, write_atomically

_TRAINED_FROM = ("model", "data", "training", "lora", "parallel")
"""Sections that decide what is trained, so that they stay as they are for the life of a run."""

_WORLD = ("parallel.num_nodes", "parallel.procs_per_node")
"""Fields of them that may change: a run goes on at any world size."""


JobPurpose = Literal["training", "evaluation", "health"]
"""`health`: the deep checks of the nodes, before the training."""


@dataclass(frozen=True)
class RunInputs:
    """The published folders that a run trains from."""

    model: Path
    dataset: Path


class RunFolder:
    """One run's folder, seen from one of its jobs: their attempts are apart, all else is the same.

    Args:
        root: The store's root.
        run: The run's name; see `check_run_name`.
        purpose: Of the job.

    Attributes:
        job_path: The job's own folder, with which its nodes are started.
    """

    def __init__(self, root: str | Path, run: str, purpose: JobPurpose = "training") -> None:
        check_run_name(run)
        self.run = run
        self.purpose = purpose
        self.root = Path(root).expanduser().absolute()
        self.path = self.root / "runs" / run
        self.events = self.path / "events"
        self.checkpoints = self.path / "checkpoints"
        self.model = self.path / "model"
        self.evaluation = self.path / "evaluation"
        self.health = self.path / "health"
        self.timeline = self.path / "timeline.html"
        self.config_file = self.path / "config.yaml"
        self.stop_request = self.path / "stop"
        self.job_path = self.path if purpose == "training" else self.path / purpose
        self.launcher_heartbeat = self.job_path / "heartbeats" / "launcher"

    @classmethod
    def at(cls, path: str | Path) -> "RunFolder":
        """The run whose job's folder is `path`: `<root>/runs/<run>`, or `evaluation` or `health` below it."""
        folder = Path(path).absolute()
        if folder.parent.parent.name == "runs":
            for purpose in ("evaluation", "health"):
                if folder.name == purpose:
                    return cls(folder.parents[2], folder.parent.name, purpose)
        return cls(folder.parent.parent, folder.name)

    def seen_from(self, purpose: JobPurpose) -> "RunFolder":
        """The same run, from the job of this purpose."""
        return RunFolder(self.root, self.run, purpose)

    @property
    def rank_prefix(self) -> str:
        """What the sources of events begin with that the job's ranks write; the rank's number follows."""
        return "rank-" if self.purpose == "training" else f"{self.purpose}-rank-"

    @property
    def node_prefix(self) -> str:
        """Likewise of the job's nodes."""
        return "node-" if self.purpose == "training" else f"{self.purpose}-node-"

    def create(self, config: RunConfig) -> None:
        """Make the folder and save the config.

        A run that exists takes over what does not change its training: the world size, and how it is evaluated,
        registered and kept going.

        Raises:
            UserError: The run exists with another training, so its checkpoints would not fit.
        """
        with disk_errors(self.root):
            self.events.mkdir(parents=True, exist_ok=True)
            if self.config_file.is_file():
                saved = self.config()
                if changed := _changed(saved, config):
                    raise UserError(
                        f"the run '{self.run}' exists with another configuration ({', '.join(changed)}; see "
                        f"{self.config_file}): give this run another name, or go back to that configuration to "
                        "resume it"
                    )
                if saved == config:
                    return
            write_atomically(self.config_file, to_yaml(config))

    def config(self) -> RunConfig:
        """The run's resolved config.

        Raises:
            UserError: There is none, or it was edited, or written by another version of Shardline.
        """
        if not self.config_file.is_file():
            raise UserError(
                f"the run '{self.run}' is not in the store {self.root}: run the step preflight first, or give "
                "the name and the store of a run that exists"
            )
        try:
            return resolve(read_recipe(self.config_file))
        except UserError as error:
            raise UserError(
                f"{self.config_file} does not fit this version of Shardline; begin a new run under another "
                f"name:\n{error}"
            ) from None

    def identity(self) -> str:
        """A random mark of this folder, made once: runs in other stores may have the same name."""
        path = self.path / "id"
        if not path.is_file():
            mark = secrets.token_hex(8)
            own = self.path / f".id-{mark}"
            own.write_text(mark)
            # Whole or not there, and the first of two processes wins.
            try:
                os.link(own, path)
            except FileExistsError:
                pass
            except OSError:
                if not path.is_file():
                    own.replace(path)  # a disk without hard links
            own.unlink(missing_ok=True)
        return path.read_text()

    def save_input(self, name: Literal["model", "dataset"], folder: Path) -> None:
        """Record which published folder the run takes as its model or data set."""
        write_atomically(self.path / "inputs" / name, str(folder))

    def inputs(self) -> RunInputs:
        """Which model and data set the run trains from.

        Raises:
            UserError: A step before has not run, or its folder is gone from the store or damaged.
        """
        return RunInputs(self._input("model", "download_model"), self._input("dataset", "tokenize_dataset"))

    def _input(self, name: str, step: str) -> Path:
        pointer = self.path / "inputs" / name
        if not pointer.is_file():
            raise UserError(f"the run '{self.run}' has no {name} yet: run the step {step} first")
        # A pointer that is damaged is empty, or names nothing that there is.
        folder = pointer.read_text(encoding="utf-8", errors="replace")
        if not folder or not is_whole(Path(folder)):
            raise UserError(
                f"the run's {name} {folder or f'of {pointer}'} is gone from the store, or damaged: run the step "
                f"{step} again"
            )
        return Path(folder)

    def attempt(self, number: int) -> Path:
        """The folder of an attempt of the job, counted from 1."""
        return self.job_path / "attempts" / str(number)

    def attempts(self) -> list[int]:
        """Numbers of the job's attempts so far, ascending."""
        attempts = self.job_path / "attempts"
        folders = attempts.glob("*") if attempts.is_dir() else []
        return sorted(int(folder.name) for folder in folders if folder.name.isdigit())


def _changed(saved: RunConfig, given: RunConfig) -> list[str]:
    """Dotted names of the fields that differ and may not."""
    before, after = _trained_from(saved), _trained_from(given)
    return [field for field in after if before[field] != after[field]]


def _trained_from(config: RunConfig) -> dict[str, Any]:
    sections = config.model_dump(include=set(_TRAINED_FROM))
    fields = {f"{section}.{key}": value for section in sections for key, value in sections[section].items()}
    return {field: value for field, value in fields.items() if field not in _WORLD}


def check_run_name(run: str) -> None:
    """Check that a run's name can be a folder, a Kubernetes name and an MLflow tag.

    Raises:
        UserError: Says what is allowed.
    """
    if not re.fullmatch(r"[a-z]([a-z0-9-]{0,46}[a-z0-9])?", run):
        raise UserError(
            f"the run name {run!r} is not valid: use at most 48 lower-case letters, digits and '-', starting "
            "with a letter and ending with a letter or digit"
        )


def run_name_from_job(job_name: str) -> str:
    """A valid run name for a pipeline job's name; the same job always gives the same name.

    Keeps the end of a long name, where job names differ from each other.
    """
    name = re.sub(r"[^a-z0-9]+", "-", job_name.lower()).strip("-")
    if not name or not name[0].isalpha():
        name = f"run-{name}".rstrip("-")
    if len(name) > 48:
        name = f"r-{name[-46:].lstrip('-')}"
    return name
