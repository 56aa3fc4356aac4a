"""What reports are made from, of a training that nobody did."""

from dataclasses import replace

from components.evaluate.decision import Decision
from components.evaluate.report import ReportData
from tests.components.evaluate.results import compared, result
from training.config import RunConfig
from training.events import Evaluation, Incident, TrainStep
from training.history import Attempt, History

HOSTILE = '<script src="http://evil.example/x.js">alert(1)</script><img src=x onerror=alert(2)>"\'&{{ 7*7 }}'


def history(count, resumed_at=None):
    """A training of so many steps, perhaps in two attempts."""
    steps = tuple(
        TrainStep(
            time=1.8e9 + number,
            attempt=1,
            step=number,
            num_steps=count,
            loss=3.0 - number / count,
            grad_norm=1.0,
            learning_rate=1e-4 * number / count,
            num_tokens=1000,
            num_supervised=300,
            seconds=0.5,
            memory_gib=7.5,
        )
        for number in range(1, count + 1)
    )
    attempts = [Attempt(1, 1, resumed_at or count, ())]
    if resumed_at:
        incident = Incident(attempt=1, what="signal", rank=3, exit_code=-9, evidence=HOSTILE)
        attempts = [Attempt(1, 1, resumed_at, (incident,)), Attempt(2, resumed_at, count, ())]
    return History(steps, tuple(attempts), num_repeated=1 if resumed_at else 0)


def measured_more(found, every=10):
    """The same training, by a trainer that measures more."""
    more = {
        "num_positions": 1250,
        "num_devices": 4,
        "data_s": 0.0625,
        "compute_s": 0.25,
        "optimizer_s": 0.125,
        "flops": 2e14,
        "peak_tflops": 400.0,
    }
    return replace(
        found,
        steps=tuple(step.model_copy(update=more) for step in found.steps),
        heldout={
            step.step: Evaluation(name="step", step=step.step, loss=3.5 - step.step / 100, num_supervised=1234)
            for step in found.steps
            if step.step % every == 0
        },
    )


def report_data():
    """Of a run of 60 steps, without a champion."""
    config = RunConfig.model_validate({"model": {"name": "org/tiny"}, "data": {"train": "qa.jsonl"}})
    return ReportData(
        run="a-run",
        date="30 November 2026, 12:00 UTC",
        config=config,
        results=compared(result("base", 3.21), result("tuned", 2.21)),
        decision=Decision(True, "champion", ((True, "The held-out loss fell."),), None),
        history=history(60),
        dataset={"num_train_rows": 460, "num_train_tokens": 2000, "num_train_supervised": 500, "fill": 0.987},
        lineage={"Base model": "org/tiny", "torch": "2.13.0"},
    )
