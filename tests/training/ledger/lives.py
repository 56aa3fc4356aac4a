"""Lives of runs that nobody trained: their events and records, by a clock of their own."""

import json

from training.events import (
    Alert,
    Decided,
    Evaluation,
    EventWriter,
    Incident,
    RanksEnded,
    Span,
    TrainStep,
)
from training.run_folder import RunFolder

START = 1_700_000_000.0


def new_folder(root, run="a-run"):
    folder = RunFolder(root, run)
    folder.events.mkdir(parents=True)
    return folder


class Life:
    """Writes what the parts of a run would write, and moves its clock on."""

    def __init__(self, folder, num_steps=100):
        self.folder = folder
        self.now = START
        self.num_steps = num_steps
        self.attempt = 0
        self._records = {}

    def wait(self, seconds):
        self.now += seconds

    def write(self, source, event, ahead=0.0):
        writer = EventWriter(self.folder.events, source, self.attempt if source != "train" else 0)
        writer.write(event.model_copy(update={"time": self.now + ahead}))
        writer.close()

    def supervise(self, phase="start"):
        self.write("train", Span(name="train", phase=phase))

    def begin(self, queue_s=0.0, **facts):
        self.attempt += 1
        phases = {"queued": self.now} if queue_s else {}
        self._records[self.attempt] = {"number": self.attempt, "started": self.now, "phases": phases, **facts}
        self.wait(queue_s)
        phases["starting"] = self.now
        self._save()

    def span(self, name, seconds, source="rank-0", ok=True):
        self.write(source, Span(name=name, phase="start"))
        self.wait(seconds)
        self.write(source, Span(name=name, phase="end", ok=ok, seconds=seconds))

    def load(self, start_s=2.0, checks_s=1.0, rendezvous_s=1.0, init_s=3.0, restore_s=0.0):
        """From the start of the pods to the first step."""
        self.wait(start_s)
        self.span("checks", checks_s, "node-0")
        self.span("rendezvous", rendezvous_s, "node-0")
        self.write("rank-0", Span(name="load", phase="start"))
        self.wait(init_s)
        if restore_s:
            self.span("restore", restore_s)
        self.write("rank-0", Span(name="load", phase="end"))

    def steps(self, first, last, seconds=1.0, passed_s=0.0, **parts):
        """Steps of that length each; `passed_s` of it has passed, with what came after the step before."""
        for step in range(first, last + 1):
            self.wait(seconds - passed_s)
            self.write("rank-0", train_step(step, self.num_steps, seconds, **parts))

    def saved(self, step):
        """A whole checkpoint is there."""
        place = self.folder.checkpoints / f"step-{step:08d}"
        place.mkdir(parents=True, exist_ok=True)
        (place / "manifest.json").write_text("{}")

    def fail(self, what="signal", after_s=0.5, decide_s=0.1, action="restart_in_place", **facts):
        """The ranks end, are judged, and it is decided what to do."""
        self.wait(after_s)
        self.write("node-0", RanksEnded(node=0, host="host-0", what=what))
        self.wait(decide_s)
        self.write("train", Incident(attempt=self.attempt, what=what, **facts))
        self.write("train", Decided(attempt=self.attempt, action=action, reason="it may pass"))
        self.end(what)

    def end(self, outcome="succeeded"):
        self._records[self.attempt] |= {"ended": self.now, "outcome": outcome}
        self._save()

    def evaluate(self, seconds, step):
        self.wait(seconds)
        self.write("rank-0", Evaluation(name="step", step=step, loss=2.0, num_supervised=9))

    def alert(self, what="straggler", **facts):
        self.write("node-0", Alert(what=what, text=f"a {what}", **facts))

    def _save(self):
        folder = self.folder.attempt(self.attempt)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "attempt.json").write_text(json.dumps(self._records[self.attempt]))


def train_step(step, num_steps, seconds=1.0, **parts):
    return TrainStep(
        step=step,
        num_steps=num_steps,
        loss=2.0,
        grad_norm=1.0,
        learning_rate=1e-4,
        num_tokens=1000,
        num_supervised=400,
        seconds=seconds,
        memory_gib=1.0,
        **parts,
    )
