"""`shardline status` of runs through their folders in a store."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from components.jobs.attempts import close_record, write_record
from components.step import Step
from pipelines.cli import app
from pipelines.jobs.store import view_stored_run, watch_stored_run
from training.errors import UserError
from training.events import Decided, EventWriter, Incident, Span, TrainStep
from training.run_folder import RunFolder


@pytest.fixture
def folder(tmp_path):
    folder = RunFolder(tmp_path / "store", "tiny")
    folder.events.mkdir(parents=True)
    return folder


def begin(folder, number=1, launcher="local", **more):
    record = {"number": number, "launcher": launcher, "name": f"tiny-{number}", "started": time.time(), **more}
    write_record(folder, record)
    return record


def beat(folder, ago=0.0):
    folder.launcher_heartbeat.parent.mkdir(exist_ok=True)
    folder.launcher_heartbeat.write_text("1")
    os.utime(folder.launcher_heartbeat, (time.time() - ago, time.time() - ago))


def steps(folder, attempt, *numbers):
    writer = EventWriter(folder.events, "rank-0", attempt)
    for number in numbers:
        writer.write(
            TrainStep(
                step=number,
                num_steps=100,
                loss=3 - number / 50,
                grad_norm=1,
                learning_rate=1e-4,
                num_tokens=1000,
                num_supervised=500,
                seconds=0.5,
                memory_gib=1,
            )
        )
    writer.close()


def span(folder, step, phase, **fields):
    writer = EventWriter(folder.events, step)
    writer.write(Span(name=step, phase=phase, **fields))
    writer.close()


def status(*arguments, expect=0):
    result = CliRunner().invoke(app, ["status", *map(str, arguments)])
    assert result.exit_code == expect, (result.output, result.exception)
    return [line.split() for line in result.output.splitlines()]


def test_a_run_is_read_from_its_folder(folder):
    failed = begin(folder, 1, "pytorchjob", namespace="ml")
    steps(folder, 1, 1, 2)
    EventWriter(folder.events, "train").write(
        Incident(attempt=1, what="exception", exit_code=1, evidence="Traceback\n\nValueError: [red]no[/red]\n")
    )
    close_record(folder, failed, "exception")
    begin(folder, 2, "pytorchjob", namespace="ml")
    beat(folder)
    span(folder, "train", "start")
    steps(folder, 2, 2, 3)
    title, _, first, second, *reasons = status("tiny", "--store", folder.root)
    assert " ".join(title) == f"tiny in the store {folder.root}, at the step train"
    assert first[:3] == ["1", "failed", "-"] and first[5:8] == ["2/100", "2.960", "2,000"] and first[8] == "-"
    assert second[:3] == ["2", "running", "-"] and second[5:8] == ["3/100", "2.940", "2,000"]
    assert second[8:] in (["48", "s"], ["49", "s"], ["47", "s"])
    said = [" ".join(row) for row in reasons]
    assert said[0] == "attempt 1: exception (exit code 1)"
    assert "attempt 1: ValueError: [red]no[/red]" in said, "what others wrote is no markup"


def test_what_is_done_about_an_incident_is_told_in_one_line(folder):
    close_record(folder, begin(folder, 1), "hang")
    close_record(folder, begin(folder, 2), "no_replacement")
    begin(folder, 3)
    events = EventWriter(folder.events, "train")
    events.write(Incident(attempt=1, what="hang", host="gpu-7", evidence="rank 3 was silent"))
    events.write(Decided(attempt=1, action="restart_elsewhere", reason="gpu-7 is replaced"))
    events.write(Decided(attempt=2, action="shrink", reason="no machine came: it goes on with 3 node(s)"))
    first, second, _ = view_stored_run(folder).attempts
    assert first.reasons == ("hang on gpu-7", "restart elsewhere: gpu-7 is replaced", "rank 3 was silent")
    assert second.reasons == ("shrink: no machine came: it goes on with 3 node(s)",)


@pytest.mark.parametrize(
    ("outcome", "phase"),
    [
        *(("succeeded", "succeeded"), ("interrupted", "stopped"), ("oom", "failed"), ("lost", "lost")),
        *(("not_begun", "lost"), ("no_replacement", "stopped")),
    ],
)
def test_how_an_attempt_ended(folder, outcome, phase):
    close_record(folder, begin(folder), outcome)
    view = view_stored_run(folder)
    assert view.phase == phase and view.ended and view.succeeded is (phase == "succeeded")


def test_an_attempt_whose_launcher_is_silent_is_lost(folder):
    begin(folder)
    beat(folder, ago=100)
    assert view_stored_run(folder).phase == "running"
    beat(folder, ago=200)
    view = view_stored_run(folder)
    assert view.phase == "lost" and view.ended and not view.succeeded


def test_a_run_whose_later_step_failed_has_not_succeeded(folder):
    close_record(folder, begin(folder), "succeeded")
    span(folder, "evaluate", "start")
    span(folder, "evaluate", "end", ok=False)
    assert view_stored_run(folder).succeeded is False
    # A resumed run tells of the step again.
    span(folder, "evaluate", "start")
    span(folder, "evaluate", "end", ok=True)
    assert view_stored_run(folder).succeeded is True


def test_a_step_that_failed_before_training_is_shown_with_its_words(folder):
    span(folder, "preflight", "start")
    span(folder, "preflight", "end")
    span(folder, "tokenize_dataset", "start")
    span(folder, "tokenize_dataset", "end", ok=False, detail="no row has an answer: check data.format")
    span(folder, "stop_training", "start")
    span(folder, "stop_training", "end")
    title, *said = [" ".join(row) for row in status("tiny", "--store", folder.root)]
    assert title == f"tiny in the store {folder.root}, failed at the step tokenize_dataset"
    assert said == ["no row has an answer: check data.format"]
    followed = [row[1:] for row in status("tiny", "--follow", "--store", folder.root, expect=1)]
    assert [" ".join(row) for row in followed] == [
        "tiny: failed at the step tokenize_dataset",
        "tiny: no row has an answer: check data.format",
    ]
    _, listed = status("--store", folder.root)
    assert listed == ["tiny", "-", "failed", "at", "tokenize_dataset", *["-"] * 6]
    # A resumed run has not failed yet.
    span(folder, "preflight", "start")
    assert view_stored_run(folder).ended_at == ""


def test_the_step_that_failed_first_is_the_one_that_is_told(folder):
    for step, detail in (("download_model", "no such model"), ("tokenize_dataset", "interrupted; goes on")):
        span(folder, step, "end", ok=False, detail=detail)
    view = view_stored_run(folder)
    assert (view.ended_at, view.reasons, view.stopped) == ("download_model", ("no such model",), False)


def test_a_later_step_that_failed_is_listed_beside_the_attempt(folder):
    close_record(folder, begin(folder), "succeeded")
    span(folder, "evaluate", "end", ok=False, detail="no")
    _, attempt, failed = status("--store", folder.root)
    assert attempt[:3] == ["tiny", "1", "succeeded"] and failed[:5] == ["tiny", "-", "failed", "at", "evaluate"]


def test_a_step_that_was_stopped_has_not_failed(folder):
    with pytest.raises(SystemExit), Step("preflight", folder.root, folder.run):
        raise KeyboardInterrupt
    _, listed = status("--store", folder.root)
    assert listed[:5] == ["tiny", "-", "stopped", "at", "preflight"]


def test_a_watch_follows_a_run_on_this_machine_until_its_graph_has_ended(folder):
    graph = subprocess.Popen(
        [
            *(sys.executable, "-c", "import sys; sys.stdin.read()"),
            *("pipelines.local_graph", f"{folder.path}/pipeline/now/arguments.json", "1"),
        ],
        stdin=subprocess.PIPE,
    )
    try:
        seen = []
        record = None
        for view in watch_stored_run(folder, interval_s=0.05):
            seen.append((view.stage, view.phase, view.step))
            if len(seen) == 1:
                span(folder, "preflight", "start")
            elif view.stage == "preflight":
                record = begin(folder)
                span(folder, "train", "start")
            elif view.phase == "running" and view.step is None:
                steps(folder, 1, 1)
            elif view.step == 1 and view.phase == "running":
                close_record(folder, record, "succeeded")
                span(folder, "evaluate", "start")
            elif view.stage == "evaluate":
                assert not view.ended, "training is not the end of a run on this machine"
                span(folder, "evaluate", "end")
                threading.Timer(0.3, graph.communicate).start()
    finally:
        graph.kill()
    assert view.ended and view.succeeded
    assert [stage for stage, _, _ in seen] == ["", "preflight", "train", "train", "evaluate", "", ""]


def test_all_runs_of_a_store_are_listed(folder):
    close_record(folder, begin(folder), "succeeded")
    (folder.root / "runs" / "fresh" / "events").mkdir(parents=True)
    later = time.time() + 5
    os.utime(folder.root / "runs" / "fresh", (later, later))
    _, fresh, tiny = status("--store", folder.root)
    assert fresh == ["fresh", *["-"] * 8]
    assert tiny[:4] == ["tiny", "1", "succeeded", "1"]
    assert status("--store", folder.root / "none")[0][:4] == ["There", "are", "no", "runs"]


def test_the_store_of_the_environment_counts_if_it_has_the_run(folder, monkeypatch, tmp_path):
    close_record(folder, begin(folder), "succeeded")
    monkeypatch.setenv("SHARDLINE_STORE", str(folder.root))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    assert status("tiny")[2][1] == "succeeded"
    assert "succeeded" in status("tiny", "--follow")[0]
    for arguments, words in (
        (["other"], "there is no cluster to talk to"),
        (["tini", "--store", str(folder.root)], "did you mean 'tiny'? the runs there are tiny"),
    ):
        result = CliRunner().invoke(app, ["status", *arguments])
        assert isinstance(result.exception, UserError) and words in str(result.exception)


def test_looking_at_a_store_loads_no_client_of_a_cluster(folder):
    code = (
        "import sys; from pipelines.jobs.store import view_stored_run; from training.run_folder import RunFolder;"
        f"view_stored_run(RunFolder.at({str(folder.path)!r}));"
        "print([m for m in ('kubernetes', 'kfp', 'torch', 'transformers') if m in sys.modules])"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2]
    )
    assert json.loads(ended.stdout) == [], ended.stderr
