"""Which commit, which versions, which folders."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from components.register_model.lineage import Commit, find_commit, trace
from components.register_model.results import read_results
from training.run_folder import RunFolder


@pytest.fixture
def tracked_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("SHARDLINE_GIT_COMMIT", raising=False)
    file = tmp_path / "code.py"
    file.write_text("a = 1\n")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "code.py")
    git(tmp_path, "-c", "user.name=n", "-c", "user.email=e", "commit", "--quiet", "-m", "m")
    return file


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(folder), *arguments], check=True, capture_output=True, text=True
    ).stdout.strip()


def test_commit_of_a_clean_and_a_changed_working_copy(tracked_file: Path) -> None:
    head = git(tracked_file.parent, "rev-parse", "HEAD")
    assert find_commit(tracked_file) == Commit(head, dirty=False)
    tracked_file.write_text("a = 2\n")
    assert find_commit(tracked_file) == Commit(head, dirty=True)


def test_a_package_inside_another_projects_working_copy_has_no_commit(tracked_file: Path) -> None:
    installed = tracked_file.with_name("installed.py")
    installed.write_text("")
    assert find_commit(installed) is None


def test_no_git(tracked_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tracked_file.parent))
    assert find_commit(tracked_file) is None
    monkeypatch.setenv("SHARDLINE_GIT_COMMIT", "f" * 40)
    assert find_commit(tracked_file) == Commit("f" * 40, dirty=None)


def test_tags(ready_run: Callable[..., RunFolder], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDLINE_GIT_COMMIT", "f" * 40)
    tags = trace(read_results(ready_run()), "mark").tags()
    assert tags["shardline.model"] == "org/base"
    assert tags["shardline.model_revision"] == "abc123"
    assert tags["shardline.model_fingerprint"] == "m" * 16
    assert tags["shardline.dataset"] == "org/data"
    assert tags["shardline.dataset_fingerprint"] == "d" * 16
    assert len(tags["shardline.config_fingerprint"]) == 16
    assert tags["shardline.run_id"] == "mark"
    assert tags["shardline.model_license"] == "apache-2.0"
    assert tags["shardline.git_commit"] == tags["mlflow.source.git.commit"] == "f" * 40
    assert "shardline.git_dirty" not in tags
    assert {f"shardline.versions.{name}" for name in ("python", "torch", "transformers", "kfp", "mlflow")} <= set(
        tags
    )
