"""Where a tuned model comes from: its base, its data, its configuration, its code."""

import os
import platform
import subprocess
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from components.register_model.results import Results
from training.store import about, fingerprint

_PACKAGES = ("shardline", "torch", "transformers", "peft", "kfp", "mlflow")

_GIT_TIMEOUT_S = 10


@dataclass(frozen=True)
class Commit:
    """The commit of the working copy that the code runs from.

    Attributes:
        sha: The commit.
        dirty: Whether tracked files differ from it; None if it came from the environment, which cannot know.
    """

    sha: str
    dirty: bool | None


@dataclass(frozen=True)
class Source:
    """A model or a data set that the run trained from.

    Attributes:
        name: As given in the config: a hub id, a file.
        revision: The pinned commit, if it has one.
        fingerprint: Name of its folder in the store.
        license: As the model's card names it, if it does.
    """

    name: str
    revision: str | None
    fingerprint: str
    license: str | None = None


@dataclass(frozen=True)
class Lineage:
    """Everything that made the tuned model.

    Attributes:
        model: The base model.
        dataset: What it was trained on.
        config_fingerprint: Of the run's config.
        run_id: Mark of the run's folder, see `RunFolder.identity`.
        is_adapter: Whether the tuned model is an adapter, for use with that base model.
        commit: The code that trained it.
        versions: Of the packages that matter, and of Python.
    """

    model: Source
    dataset: Source
    config_fingerprint: str
    run_id: str = ""
    is_adapter: bool = False
    commit: Commit | None = None
    versions: dict[str, str] = field(default_factory=dict)

    def tags(self) -> dict[str, str]:
        """The lineage as tags; what is unknown has no tag."""
        tags = {
            "shardline.model": self.model.name,
            "shardline.model_revision": self.model.revision,
            "shardline.model_fingerprint": self.model.fingerprint,
            "shardline.dataset": self.dataset.name,
            "shardline.dataset_revision": self.dataset.revision,
            "shardline.dataset_fingerprint": self.dataset.fingerprint,
            "shardline.config_fingerprint": self.config_fingerprint,
            "shardline.run_id": self.run_id,
            "shardline.model_license": self.model.license,
            "shardline.form": "adapter" if self.is_adapter else "whole model",
            **{f"shardline.versions.{name}": version for name, version in self.versions.items()},
        }
        if self.commit is not None:
            tags["shardline.git_commit"] = self.commit.sha
            # MLflow shows this one as the run's source version.
            tags["mlflow.source.git.commit"] = self.commit.sha
            if self.commit.dirty is not None:
                tags["shardline.git_dirty"] = str(self.commit.dirty).lower()
        return {key: value for key, value in tags.items() if value}


def trace(results: Results, run_id: str) -> Lineage:
    """Gather the lineage of a run, of which `run_id` is the folder's mark."""
    config = results.config
    return Lineage(
        model=_source(results.inputs.model, config.model.name),
        dataset=_source(results.inputs.dataset, config.data.train_name),
        config_fingerprint=fingerprint(**config.model_dump(mode="json")),
        run_id=run_id,
        is_adapter=results.is_adapter,
        commit=find_commit(Path(__file__)),
        versions=_versions(),
    )


def find_commit(file: Path) -> Commit | None:
    """The commit that `file` is at, from `SHARDLINE_GIT_COMMIT` or from the working copy it is tracked in.

    A container image has no git and sets the variable; an installed package has neither.
    """
    if sha := os.environ.get("SHARDLINE_GIT_COMMIT"):
        return Commit(sha, dirty=None)
    # An environment often lies inside the working copy of another project, which does not track this file.
    if _git(file.parent, "ls-files", "--error-unmatch", file.name) is None:
        return None
    sha = _git(file.parent, "rev-parse", "HEAD")
    changes = _git(file.parent, "status", "--porcelain", "--untracked-files=no")
    return Commit(sha, dirty=bool(changes)) if sha else None


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            timeout=_GIT_TIMEOUT_S,
        )
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _source(folder: Path, given: str) -> Source:
    # The name comes from the config: the manifest may hold a resolved path of one machine.
    facts = about(folder)
    revision, licence = facts.get("revision"), facts.get("license")
    return Source(given, str(revision) if revision else None, folder.name, str(licence) if licence else None)


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue  # a working copy that was never installed has no version; its commit says more
    return versions
