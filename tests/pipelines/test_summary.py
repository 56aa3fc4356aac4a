import io
import json
import sys
from pathlib import Path

import pytest
from rich.console import Console

from pipelines.summary import print_summary
from training.errors import EXIT_FAILED, EXIT_INTERRUPTED
from training.run_folder import RunFolder
from training.store import seal


@pytest.fixture
def folder(tmp_path):
    # A place with a name that rich would take for markup.
    folder = RunFolder(tmp_path / "my [red]store[/] \\", "a-run")
    folder.evaluation.mkdir(parents=True)
    return folder


def summary(folder, code=0):
    console = Console(file=io.StringIO(), width=60)
    print_summary(console, folder.root, folder.run, code)
    return console.file.getvalue()


def write_result(folder, name, perplexity, answer):
    content = {"perplexity": perplexity, "generations": [{"question": "why\n[bold]?", "answer": answer}]}
    (folder.evaluation / f"{name}.json").write_text(json.dumps(content))


def test_a_finished_run_is_told_with_its_figures_an_example_and_where_things_are(folder):
    write_result(folder, "base", 25.04, "no [/idea]")
    write_result(folder, "tuned", 9.96, "because")
    folder.model.mkdir()
    seal(folder.model, {})
    (folder.path / "registration.json").write_text(
        json.dumps({"name": "my-model", "version": "3", "tracking_uri": f"sqlite:///{folder.root}/mlflow.db"})
    )
    assert summary(folder).splitlines() == [
        "",
        "Held-out perplexity 25.0 → 10.0",
        "Question    why [bold]?",
        "Before      no [/idea]",
        "After       because",
        "",
        f"Report      {folder.evaluation / 'report.html'}",
        f"Model       {folder.model}",
        "Registered  my-model version 3",
        f"Browse      {Path(sys.executable).with_name('mlflow')} ui --backend-store-uri 'sqlite:///{folder.root}/mlflow.db'",
    ]


def test_a_run_without_figures_is_told_without_them(folder):
    assert summary(folder).splitlines() == ["", f"Report      {folder.evaluation / 'report.html'}"]


def test_a_run_that_failed_names_its_newest_log(folder):
    for started in ("20260101-000000", "20260102-000000"):
        (folder.path / "pipeline" / started).mkdir(parents=True)
        (folder.path / "pipeline" / started / "pipeline.log").touch()
    output = summary(folder, EXIT_FAILED)
    assert output.strip().endswith(str(folder.path / "pipeline" / "20260102-000000" / "pipeline.log"))


def test_a_run_that_was_stopped_says_how_it_goes_on(folder):
    assert summary(folder, EXIT_INTERRUPTED).strip() == "Stopped. The same command goes on from here."
