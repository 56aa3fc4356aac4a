"""The KFP shell, run by kfp.local."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from training.run_folder import RunFolder


def test_shell_under_kfp_local(
    ready_run: Callable[..., RunFolder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kfp import local

    from components.register_model.component import register_model

    monkeypatch.chdir(tmp_path)
    repository = Path(__file__).resolve().parents[3]
    monkeypatch.setenv("PYTHONPATH", f"{repository}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    local.init(local.SubprocessRunner(use_venv=False), pipeline_root=str(tmp_path / "outputs"))
    folder = ready_run()
    task = register_model(store=str(folder.root), run=folder.run)

    registered = task.outputs["registered"]
    assert registered.uri == "models:/shardline-model/1"
    assert registered.metadata == {
        "name": "shardline-model",
        "version": "1",
        "alias_moved": True,
        "tracking_uri": f"sqlite:///{folder.root}/mlflow.db",
    }
    assert Path(task.outputs["summary"].path).read_text().startswith("**shardline-model version 1, champion**")
    assert json.loads((folder.path / "registration.json").read_text())["version"] == "1"
