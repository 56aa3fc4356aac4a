"""The compiled graph on this machine, from the command line to the registry: a small random Llama with SmolLM2's
real tokenizer and chat template."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from training.events import TrainStep, read_events


def shardline(workplace, *arguments, **options):
    return subprocess.Popen(
        [sys.executable, "-m", "pipelines.cli", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "COLUMNS": "200", "SHARDLINE_STORE": str(workplace / "store")},
        **options,
    )


def run(workplace, *arguments, expect=0, timeout=200):
    process = shardline(workplace, "run", *arguments)
    output, _ = process.communicate(timeout=timeout)
    assert process.returncode == expect, output
    return output


def processes_naming(text):
    found = []
    for process in psutil.process_iter():
        try:
            if any(text in part for part in process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.mark.slow
def test_the_whole_graph_from_recipe_to_registered_model(workplace):
    output = run(workplace, workplace / "tiny.yaml", "--name", "first")
    folder = workplace / "store" / "runs" / "first"
    # What people see.
    for step in (
        "preflight",
        "download_model",
        "tokenize_dataset",
        "check_nodes",
        "train",
        "evaluate",
        "register_model",
        "stop_training",
    ):
        assert f"✓ {step}" in output
    assert "Held-out perplexity" in output and "report.html" in output
    # The model, as anyone loads it.
    model = AutoModelForCausalLM.from_pretrained(folder / "model")
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    assert model.dtype == torch.bfloat16
    source = AutoModelForCausalLM.from_pretrained(workplace / "model")
    assert not torch.equal(model.model.embed_tokens.weight, source.model.embed_tokens.weight)
    text = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert "<|im_start|>user\nhi<|im_end|>" in text
    # It learned, and the report and the registry say so.
    base, tuned = (json.loads((folder / "evaluation" / f"{n}.json").read_text()) for n in ("base", "tuned"))
    assert tuned["loss"] < base["loss"] - 0.5
    steps = [event for event in read_events(folder / "events") if isinstance(event, TrainStep)]
    assert [step.step for step in steps] == [1, 2, 3, 4, 5, 6]
    report = (folder / "evaluation" / "report.html").read_text()
    assert "first" in report and "<svg" in report
    registered = json.loads((folder / "registration.json").read_text())
    assert registered["version"] == "1" and registered["holder"] == "1"
    import mlflow

    client = mlflow.MlflowClient(registered["tracking_uri"], registered["tracking_uri"])
    version = client.get_model_version_by_alias("tiny", "champion")
    assert version.run_id == registered["mlflow_run_id"]
    assert client.get_run(version.run_id).data.params["training.learning_rate"] == "0.01"
    # Kubeflow's own view: artifacts are pointers into the store.
    (outputs,) = (folder / "pipeline").glob("*/pipeline.log")
    assert f"'{folder}/model'" in outputs.read_text() or f"{folder}/model" in outputs.read_text()
    assert not (folder / "checkpoints").exists()


@pytest.mark.slow
def test_a_second_run_reuses_model_data_and_base_evaluation(workplace):
    output = run(workplace, workplace / "tiny.yaml", "--new")
    assert output.count("already in the store") >= 2
    assert "measured before" in output
    assert "version 2" in output


@pytest.mark.slow
def test_ctrl_c_saves_and_the_next_run_goes_on(workplace):
    settings = ["--set", "training.max_steps=60", "--set", "registry.model_name=interrupted"]
    settings += ["--set", "registry.experiment=one; two"]
    process = shardline(workplace, "run", workplace / "tiny.yaml", *settings)
    assert process.stdout is not None
    name = re.search(r"the run (\S+) in", process.stdout.readline()).group(1)
    folder = workplace / "store" / "runs" / name
    deadline = time.monotonic() + 120
    while not any(isinstance(event, TrainStep) for event in read_events(folder / "events")):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=90)
    assert process.returncode == 143, output
    assert "Stopped." in output and "Traceback" not in output
    assert processes_naming(str(folder)) == []
    (saved,) = (folder / "checkpoints").glob("step-*/manifest.json")
    done = json.loads(saved.read_text())["about"]["step"]
    assert 0 < done < 60
    output = run(workplace, workplace / "tiny.yaml", *settings)
    assert f"Resuming the run {name}" in output
    assert f"resumed from step-{done:08d}" in output
    steps = [event.step for event in read_events(folder / "events") if isinstance(event, TrainStep)]
    assert steps == list(range(1, 61)), "every step was made once"


@pytest.mark.slow
def test_ctrl_c_before_training_stops_too(workplace):
    process = shardline(workplace, "run", workplace / "tiny.yaml", "--name", "early")
    folder = workplace / "store" / "runs" / "early"
    deadline = time.monotonic() + 60
    while not (folder / "events" / "preflight.jsonl").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 143, output
    assert processes_naming(str(folder)) == []
    assert not any(isinstance(event, TrainStep) for event in read_events(folder / "events"))


@pytest.mark.slow
@pytest.mark.parametrize("end", ["SIGHUP", "SIGKILL", "broken pipe"])
def test_the_end_of_the_command_is_a_stop_of_the_run(end, workplace):
    name = f"ends-{end.lower().replace(' ', '-')}"
    settings = ["--set", "training.max_steps=2000", "--name", name]
    process = shardline(workplace, "run", workplace / "tiny.yaml", *settings)
    assert process.stdout is not None
    folder = workplace / "store" / "runs" / name
    deadline = time.monotonic() + 120
    while not any(isinstance(event, TrainStep) for event in read_events(folder / "events")):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    output = run(workplace, workplace / "tiny.yaml", *settings, expect=64)
    assert output.startswith(f"error: the run '{name}' is going on") and len(output.splitlines()) == 1
    if end == "broken pipe":
        process.stdout.close()
    else:
        process.send_signal(signal.Signals[end])
    assert process.wait(timeout=60) == {"SIGHUP": 143, "SIGKILL": -signal.SIGKILL, "broken pipe": 1}[end]
    deadline = time.monotonic() + 60
    while processes_naming(str(folder)):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert list((folder / "checkpoints").glob("step-*/manifest.json"))
    assert not folder.joinpath("stop").exists(), "the exit handler ran"


@pytest.mark.slow
def test_neither_the_working_folder_nor_the_terminals_encoding_matters(workplace, tmp_path):
    (tmp_path / "random.py").write_text("raise SystemExit('shadowed')")
    process = subprocess.run(
        [
            Path(sys.executable).with_name("shardline"),
            "run",
            workplace / "tiny.yaml",
            "-s",
            "model.name=/nowhere/é",
        ],
        cwd=tmp_path,
        env={**os.environ, "SHARDLINE_STORE": str(workplace / "store"), "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
    )
    assert process.returncode == 1, process.stderr
    assert "/nowhere/?" in process.stdout and "? preflight" in process.stdout
    assert process.stdout.count("pipeline.log") == 1
    assert process.stderr == ""


BAD_INPUT = {
    "model that is missing": (["model.name=/nowhere/model"], "/nowhere/model"),
    "data that is missing": (["data.train=nowhere.jsonl"], "nowhere.jsonl"),
    "column that is unknown": (["data.format=chat", "data.columns={{messages: mesages}}"], "messages"),
    "rows without an answer": (["data.train={folder}/unanswered.jsonl"], "line 2"),
    "line that is broken": (["data.train={folder}/broken.jsonl"], "line 3"),
    "split that is empty": (["data.heldout={folder}/empty.jsonl"], "empty"),
    "sequence beyond the context": (["data.sequence_length=1024"], "512"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_gets_one_clear_message(case, workplace):
    rows = (workplace / "train.jsonl").read_text().splitlines(keepends=True)
    (workplace / "broken.jsonl").write_text(rows[0] + rows[1] + '{"messages": [\n' + rows[2])
    unanswered = json.dumps({"messages": [{"role": "user", "content": "Why?"}]}) + "\n"
    (workplace / "unanswered.jsonl").write_text(rows[0] + unanswered + rows[2])
    (workplace / "empty.jsonl").write_text("")
    settings, said = BAD_INPUT[case]
    arguments = [item for s in settings for item in ("--set", s.format(folder=workplace))]
    output = run(workplace, workplace / "tiny.yaml", "--new", *arguments, expect=1)
    assert said in output
    assert "Traceback" not in output
    (failed,) = [line for line in output.splitlines() if line.startswith("✗")]
    assert failed
    assert list((workplace / "store" / ".staging").iterdir()) == []


def test_a_mistake_in_the_settings_is_told_before_anything_starts(workplace):
    output = run(workplace, workplace / "tiny.yaml", "--set", "training.max_step=3", expect=64)
    assert output.startswith("error: 'training.max_step' is not a known key, did you mean 'max_steps'?")
    assert len(output.splitlines()) == 1


def test_help_of_every_command_is_enough_to_get_by(workplace):
    for command in ([], ["run"], ["compile"], ["config"]):
        process = shardline(workplace, *command, "--help")
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        assert "Usage" in output
    assert "--set" in output
