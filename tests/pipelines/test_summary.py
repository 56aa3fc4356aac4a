import io
import json
import sys
from pathlib import Path

import pytest
from rich.console import Console

from pipelines.summary import print_summary
from tests.training.ledger.lives import Life
from training.errors import EXIT_FAILED, EXIT_INTERRUPTED
from training.events import Evaluation, EventWriter, TrainStep
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
    gate = {"passed": False, "reasons": ["rougeL is [low].", "The loss fell."]}
    (folder.evaluation / "gate.json").write_text(json.dumps(gate))
    folder.model.mkdir()
    seal(folder.model, {})
    data = folder.root / "datasets" / "d"
    data.mkdir(parents=True)
    (data / "statistics.html").touch()
    seal(data, {})
    for name, place in (("model", folder.model), ("dataset", data)):
        folder.save_input(name, place)
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
        "Gate        not passed: rougeL is [low]. The loss fell.",
        f"Data        {data / 'statistics.html'}",
        f"Report      {folder.evaluation / 'report.html'}",
        f"Model       {folder.model}",
        "Registered  my-model version 3",
        f"Browse      {Path(sys.executable).with_name('mlflow')} ui --backend-store-uri 'sqlite:///{folder.root}/mlflow.db'",
    ]


def test_a_run_without_figures_is_told_without_them(folder):
    assert summary(folder).splitlines() == ["", f"Report      {folder.evaluation / 'report.html'}"]


def write_training(folder, heldout, **fields):
    writer = EventWriter(folder.events, "rank-0", attempt=1)
    for step in (1, 2, 3):
        writer.write(
            TrainStep(
                time=1.7e9 + 2 * step,
                step=step,
                num_steps=3,
                loss=4.0 - step,
                grad_norm=1.0,
                learning_rate=1e-4,
                num_tokens=8000,
                num_supervised=100,
                seconds=2.0,
                memory_gib=1.25,
                **fields,
            )
        )
    for step, loss in heldout.items():
        writer.write(Evaluation(time=1.7e9 + 2 * step, name="step", step=step, loss=loss, num_supervised=9))


def test_the_training_is_told_as_far_as_it_was_measured(folder):
    write_training(folder, heldout={})
    assert summary(folder).splitlines()[1:-1] == [
        "Training    loss 1.000 at step 3, 4,000 tokens/s, 1.2 GiB a rank",
        "Time        goodput 100 % over 1 attempt",
    ]


def test_the_training_is_told_with_all_that_was_measured(folder):
    measured = {
        "worst_rank_loss": 1.5,
        "num_positions": 10_000,
        "flops": 2e14,
        "peak_tflops": 400.0,
    }
    write_training(folder, heldout={1: 3.5, 2: 2.25, 3: 2.5}, **measured)
    facts = "4,000 tokens/s, 80 % filled, MFU 25 %, 1.2 GiB a rank"
    assert summary(folder).splitlines()[1:-1] == [
        f"Training    loss 1.000 at step 3 (worst rank 1.500), {facts}",
        "Time        goodput 100 % over 1 attempt",
        "Held-out    loss 3.500 at step 1 → 2.500 at step 3, lowest 2.250 at step 2",
    ]


@pytest.mark.parametrize(
    ("losses", "told"),
    [({2: 2.5}, "loss 2.500 at step 2"), ({1: 3.5, 3: 2.5}, "loss 3.500 at step 1 → 2.500 at step 3")],
)
def test_a_held_out_loss_that_only_fell_has_no_lowest(folder, losses, told):
    write_training(folder, heldout=losses)
    assert f"Held-out    {told}" in summary(folder).splitlines()


def test_a_run_that_failed_names_its_newest_log(folder):
    for started in ("20260101-000000", "20260102-000000"):
        (folder.path / "pipeline" / started).mkdir(parents=True)
        (folder.path / "pipeline" / started / "pipeline.log").touch()
    output = summary(folder, EXIT_FAILED)
    assert output.strip().endswith(str(folder.path / "pipeline" / "20260102-000000" / "pipeline.log"))


@pytest.mark.parametrize("code", [0, EXIT_FAILED])
def test_what_the_time_of_a_run_with_faults_went_into_is_told_however_it_ended(folder, code):
    life = Life(folder, num_steps=8)
    life.supervise()
    life.begin()
    life.load(start_s=0.0, checks_s=0.0, rendezvous_s=0.0, init_s=0.0)
    life.steps(1, 4)
    life.saved(3)
    life.fail("signal", after_s=0.0, decide_s=4.0)
    life.begin()
    life.steps(4, 8)
    life.end()
    life.supervise("end")
    folder.timeline.touch()
    lines = summary(folder, code).splitlines()
    assert "Time        goodput 62 % over 2 attempts (recovery 4.0 s, redone 1.0 s)" in lines
    assert (f"Timeline    {folder.timeline}" in lines) == (code == 0)


def test_a_run_that_was_stopped_says_how_it_goes_on(folder):
    assert summary(folder, EXIT_INTERRUPTED).strip() == "Stopped. The same command goes on from here."
