"""A loss that is not finite, once or always at the same sample."""

from pathlib import Path

from tests.faults.judge import Outcome, judge
from tests.faults.rows import Row
from tests.faults.suite import Suite
from tests.faults.world import EVERY, make_run
from training.data import GlobalOrder, PackedDataset
from training.run_folder import RunFolder

_STEP = EVERY + 3
"""Whose first sample is poisoned."""

_TOKENS = 8
"""That tell the sample."""


def poison(suite: Suite) -> Outcome:
    quiet = suite.quiet()
    folder = make_run(suite.folder / "store", "quiet-1x2", nodes=1, ranks=2)
    variables = {
        "PYTHONPATH": str(Path(__file__).parents[1] / "poison"),
        "FAULTS_POISON": ",".join(map(str, _first_tokens(folder))),
    }
    once = {**variables, "FAULTS_ONCE": str(suite.folder / "poisoned")}
    with suite.trial("poison-once", variables=once) as trial:
        code = trial.end()
    outcome = judge(trial, quiet, None, what="nonfinite")
    outcome.expect(code == 0, f"once: the step ended with {code}")
    with suite.trial("poison-always", variables=variables) as trial:
        code = trial.end()
    incidents = [(incident.what, incident.step) for incident in trial.events("incident")]
    outcome.expect(len(incidents) <= 3, f"always: {len(incidents)} attempts")
    outcome.expect(set(incidents) == {("nonfinite", _STEP)}, f"always: incidents are {incidents}")
    outcome.expect(code == 93, f"always: the step ended with {code}")
    return outcome


def _first_tokens(folder: RunFolder) -> list[int]:
    config = folder.config()
    dataset = PackedDataset(folder.inputs().dataset / "train.arrow")
    order = GlobalOrder(len(dataset), config.training.seed)
    sample = dataset[order[(_STEP - 1) * config.training.global_batch_size]]
    return [int(token) for token in sample.input_ids[:_TOKENS]]


ROWS = (Row("18", "NaN once, and always at one sample", "once: rolls back; always: stops within 3", poison, ()),)
