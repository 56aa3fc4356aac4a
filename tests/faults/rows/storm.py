"""The long run: a thousand steps under a seeded storm of random faults."""

import random
import time
from collections.abc import Callable

from tests.faults.judge import Outcome
from tests.faults.rows import Row
from tests.faults.rows.saves import flip
from tests.faults.suite import Suite
from tests.faults.trial import Trial
from tests.faults.world import DEADLINE_S, Result, result_of
from training.checkpoint.folders import checkpoints
from training.ledger import Ledger, goodput_line

_SEED = 7

_STEPS = 1000

_EVERY = 25

_NUM_FAULTS = 16

_SECTIONS = {
    "training": {"max_steps": _STEPS, "global_batch_size": 4},
    "checkpoint": {"every_steps": _EVERY},
    # A storm strikes more often than attempts can save.
    "resilience": {"max_attempts": 6, "exclude_for_s": 0, "hang_timeout_s": DEADLINE_S},
}


def storm(suite: Suite) -> Outcome:
    with suite.trial("storm-quiet", **_SECTIONS) as trial:
        assert trial.end(600) == 0, trial.words()
    quiet = result_of(trial.folder)
    dice = random.Random(_SEED)
    at_steps = sorted(dice.sample(range(_EVERY + 1, _STEPS - 1), _NUM_FAULTS))
    plan = [(step, dice.choice(list(FAULTS))) for step in at_steps]
    with suite.trial("storm", **_SECTIONS) as trial:
        done = [fault for step, fault in plan if _strike(trial, step, FAULTS[fault])]
        trial.end(600)
    outcome = _judge(trial, quiet)
    incidents = trial.events("incident")
    outcome.what = f"{len(done)} faults, {len(incidents)} incidents"
    print(f"storm of seed {_SEED}: {', '.join(f'{fault} at {step}' for step, fault in plan)}")
    totals = Ledger.of(trial.folder).totals
    assert totals is not None
    print(goodput_line(totals))
    return outcome


def _judge(trial: Trial, quiet: Result) -> Outcome:
    outcome, result = Outcome(), result_of(trial.folder)
    outcome.lost = max(result.lost, default=0)
    outcome.bitwise = bool(result.weights) and result.weights == quiet.weights
    outcome.expect(outcome.bitwise, f"the final weights differ from the quiet run's\n{trial.words()}")
    outcome.expect(sorted(result.steps) == list(range(1, _STEPS + 1)), "not every step counts once")
    differ = [n for n, step in result.steps.items() if n in quiet.steps and step.loss != quiet.steps[n].loss]
    outcome.expect(not differ, f"steps {differ[:3]} saw other samples")
    # The newest checkpoint may be the one that was damaged, and the one before it be unsealed yet.
    outcome.expect(outcome.lost <= 3 * _EVERY, f"{outcome.lost} steps were lost")
    return outcome


def _strike(trial: Trial, step: int, fault: Callable[[Trial], None]) -> bool:
    """Wait for a step and inject a fault; False if the run has ended before."""
    while not any(event.step >= step for event in trial.steps()):
        if trial.driver.poll() is not None:
            return False
        time.sleep(0.05)
    # A fault before has to be over: of a rank that is not there yet none can be killed.
    while not (_is_stepping(trial)):
        if trial.driver.poll() is not None:
            return False
        time.sleep(0.05)
    fault(trial)
    return True


def _is_stepping(trial: Trial) -> bool:
    newest = max(trial.folder.attempts())
    return any(event.attempt == newest for event in trial.steps())


def _kill_rank(trial: Trial) -> None:
    trial.rank(_victim(trial)).kill()


def _stop_rank(trial: Trial) -> None:
    trial.rank(_victim(trial)).suspend()


def _kill_node(trial: Trial) -> None:
    trial.node(0).kill()


def _terminate_node(trial: Trial) -> None:
    trial.node(0).terminate()


def _flip_newest(trial: Trial) -> None:
    newest = checkpoints(trial.folder.checkpoints)[-1]
    flip(sorted(newest.glob("*.distcp"))[-1])
    trial.rank(0).kill()


def _kill_supervisor(trial: Trial) -> None:
    trial.driver.kill()
    trial.driver.wait()
    trial.drive()


def _victim(trial: Trial) -> int:
    return len(trial.steps()) % 2


FAULTS: dict[str, Callable[[Trial], None]] = {
    "kill a rank": _kill_rank,
    "stop a rank": _stop_rank,
    "kill the node's process": _kill_node,
    "terminate the node": _terminate_node,
    "flip a bit of the newest checkpoint": _flip_newest,
    "kill the supervisor": _kill_supervisor,
}

ROWS = (Row("storm", "a thousand steps under random faults", "final weights of the quiet run", storm, ()),)
