"""Brings one run home: attempt after attempt, until it is trained or must stop."""

import contextlib
import fcntl
import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from components.step import Step, StepFailed
from components.train.job import TrainingJob
from components.train.launchers import JobState, Launcher, local
from components.train.launchers.local import LocalLauncher
from components.train.policy import decide
from training.config import RunConfig
from training.device import processes_per_node
from training.errors import EXIT_INTERRUPTED, EXIT_INVALID, UserError
from training.events import Evaluation, EventReader, Incident, Span, TrainStep, read_events
from training.run_folder import RunFolder
from training.store import MANIFEST, about, write_atomically
from training.vocabulary import embedding_rows

_POLL_S = 0.3


def supervise(step: Step) -> tuple[Path, dict[str, Any]]:
    """Train the run.

    Returns:
        The tuned model's folder, and facts about it for the artifact.

    Raises:
        UserError: The run's configuration or data is wrong, in a rank's own words.
        StepFailed: The attempts are used up; the message holds the first failing rank's last words.
    """
    folder = step.folder
    _check_vocabulary(folder)
    if (folder.model / MANIFEST).is_file():
        _check_origin(folder)
        step.detail = "trained before; nothing to do"
        step.note(f"the run '{folder.run}' is trained already: {folder.model}")
        return folder.model, _facts(folder)
    with _lock(folder) as mine:
        if not mine:
            raise UserError(
                f"the run '{folder.run}' is being trained by another process: wait for it, or give this run "
                "another name"
            )
        _attempt_until_done(step, folder.config())
    facts = _facts(folder)
    if "loss" in facts:
        step.detail = f"{facts['steps']} steps, loss {facts['loss']:.3f}"
    return folder.model, facts


def _check_vocabulary(folder: RunFolder) -> None:
    """Refuse tokens that the model will have no embedding for, before any rank starts."""
    inputs = folder.inputs()
    embedding_rows(about(inputs.model), about(inputs.dataset), folder.config().model.resize_vocabulary)


def _check_origin(folder: RunFolder) -> None:
    """Refuse a finished run whose model or data has changed since: it was not trained from these."""
    sealed, inputs = about(folder.model), folder.inputs()
    now = {"base_model": inputs.model.name, "dataset": inputs.dataset.name}
    for key, name in now.items():
        before = sealed.get(key, name)
        if before != name:
            what = key.replace("_", " ")
            raise UserError(
                f"the run '{folder.run}' was trained with the {what} {before}, but its {what} is now {name}: give "
                "this run another name"
            )


def stop_leftovers(folder: RunFolder) -> int:
    """Stop jobs that dead supervisors of this run left behind; returns how many there were.

    A run that a live supervisor trains is left alone.
    """
    if not folder.attempts():
        return 0
    with _lock(folder) as mine:
        return local.stop_leftovers(folder.path) if mine else 0


def _attempt_until_done(step: Step, config: RunConfig) -> None:
    folder = step.folder
    made = 0
    while True:
        made += 1
        # Ranks outlive a node that was killed, and could still save beside those of the next attempt.
        local.stop_leftovers(folder.path)
        incident = _attempt(step, config, number=max(folder.attempts(), default=0) + 1)
        if incident is None:
            return
        decision = decide(incident, made, config.resilience.max_attempts)
        step.note(f"attempt ended: {incident.what} ({decision.reason})")
        if decision.retry:
            continue
        if incident.what == "invalid":
            raise UserError(incident.evidence)
        who = "the job" if incident.rank is None else f"rank {incident.rank}"
        raise StepFailed(
            f"training failed: {who} ended with exit code {incident.exit_code} ({decision.reason}); logs are in "
            f"{folder.attempt(incident.attempt)}\n{incident.evidence}"
        )


def _attempt(step: Step, config: RunConfig, number: int) -> Incident | None:
    """One attempt from submit to end; None if it succeeded."""
    folder = step.folder
    job = TrainingJob(
        name=f"{folder.run}-{number}",
        run_folder=folder.path,
        attempt=number,
        num_nodes=config.parallel.num_nodes,
        procs_per_node=config.parallel.procs_per_node or processes_per_node(),
    )
    launcher: Launcher = LocalLauncher()
    record: dict[str, Any] = {"number": number, "launcher": launcher.name, "started": time.time()}
    ranks = job.num_nodes * job.procs_per_node
    step.note(f"attempt {number}: {ranks} ranks on {job.num_nodes} node(s), launcher {launcher.name}")
    try:
        # From before the submit, so that an interruption right after it still finds what to stop.
        record.update(launcher.submit(job))
        _write_record(folder, record)
        _follow(step, launcher)
    except BaseException:
        launcher.stop()
        _write_record(folder, {**record, "ended": time.time(), "outcome": "interrupted"})
        raise
    succeeded = launcher.poll() is JobState.SUCCEEDED and (folder.model / MANIFEST).is_file()
    incident = None if succeeded else _incident(folder, number, launcher.exit_code())
    outcome = "succeeded" if incident is None else incident.what
    _write_record(folder, {**record, "ended": time.time(), "outcome": outcome, "exit_code": launcher.exit_code()})
    if incident is not None:
        step.write(incident)
    return incident


def _follow(step: Step, launcher: Launcher) -> None:
    """Print the ranks' progress until the job ends."""
    reader = EventReader(step.folder.events)
    list(reader.poll())  # what was before this attempt has been told
    while True:
        ended = launcher.poll() is not JobState.RUNNING
        for event in reader.poll():
            line = _progress_line(event)
            if line:
                print(line, flush=True)
        if ended:
            return
        time.sleep(_POLL_S)


def _progress_line(event: Any) -> str | None:
    if isinstance(event, TrainStep):
        return (
            f"step {event.step}/{event.num_steps}  loss {event.loss:.4f}  {event.tokens_per_s:,.0f} tokens/s  "
            f"{event.memory_gib:.2f} GiB a rank  about {event.seconds_left:.0f} s left"
        )
    if isinstance(event, Evaluation) and event.step is not None:
        return f"step {event.step}  held-out loss {event.loss:.4f}"
    if isinstance(event, Span) and event.source == "rank-0" and event.phase == "end" and event.ok:
        return f"{event.name.replace('_', ' ')} took {event.seconds:.1f} s"
    return None


def _incident(folder: RunFolder, number: int, exit_code: int | None) -> Incident:
    """What ended an attempt: the first failing rank, and its last words."""
    attempt = folder.attempt(number)
    errors = [json.loads(path.read_text()) for path in sorted((attempt / "errors").glob("*.json"))]
    own_words = sorted((e for e in errors if "message" in e), key=lambda e: e["time"])
    by_torchrun = sorted((e for e in errors if "message" not in e), key=lambda e: e["time"])
    # A rank that was killed leaves no words, and the words of the others tell only that a peer is gone.
    # SIGTERM during the start-up is a stop, as it is later on.
    killed = next((e for e in by_torchrun if e["exit_code"] < 0 and e["exit_code"] != -signal.SIGTERM), None)
    if killed is not None:
        log = attempt / "logs" / f"rank-{killed['rank']}.err"
        name = f"killed by signal {-killed['exit_code']}"
        return Incident(
            attempt=number,
            what="signal",
            rank=killed["rank"],
            exit_code=128 - killed["exit_code"],
            evidence=f"{name}\n{_tail(log)}".rstrip(),
        )
    if own_words:
        first = own_words[0]
        what = "invalid" if first["exit_code"] == EXIT_INVALID else "exception"
        evidence = first["message"] if what == "invalid" else first["traceback"] or first["message"]
        return Incident(
            attempt=number, what=what, rank=first["rank"], exit_code=first["exit_code"], evidence=evidence
        )
    what = "interrupted" if exit_code == EXIT_INTERRUPTED else "exception"
    return Incident(attempt=number, what=what, exit_code=exit_code, evidence=_tail(attempt / "node.log"))


def _tail(path: Path, num_lines: int = 20) -> str:
    if not path.is_file():
        return ""
    return "\n".join(path.read_text(errors="replace").splitlines()[-num_lines:])


def _facts(folder: RunFolder) -> dict[str, Any]:
    steps = [event for event in read_events(folder.events) if isinstance(event, TrainStep)]
    facts: dict[str, Any] = {"run": folder.run, "attempts": len(folder.attempts())}
    if steps:  # the events may have been removed after the training
        facts |= {"steps": steps[-1].num_steps, "loss": steps[-1].loss}
    return facts


def _write_record(folder: RunFolder, record: dict[str, Any]) -> None:
    write_atomically(folder.attempt(record["number"]) / "attempt.json", json.dumps(record, indent=1))


@contextlib.contextmanager
def _lock(folder: RunFolder) -> Iterator[bool]:
    """Hold the run's lock for the block; yields False, at once, if another process holds it."""
    with (folder.path / "train.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            mine = True
        except BlockingIOError:
            mine = False
        yield mine
