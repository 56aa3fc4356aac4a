"""Faults of checkpoints: disks that fill up, kills in mid-save, damage."""

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.faults.disks import small_disk
from tests.faults.judge import Outcome, judge
from tests.faults.rows import Row
from tests.faults.suite import Suite
from tests.faults.trial import Trial
from tests.faults.world import EVERY, STEPS
from training.checkpoint.folders import checkpoints, name_of, quarantined
from training.run_folder import RunFolder

_LEFT_INODES = 2
"""For the folder of a save and one of its shards, so that it fails half-way."""


def fill_disk(suite: Suite) -> Outcome:
    quiet = suite.quiet()
    with small_disk(64) as disk:

        def move(folder: RunFolder) -> None:
            (disk / "checkpoints").mkdir()
            folder.checkpoints.symlink_to(disk / "checkpoints")

        with suite.trial("full", prepare=move) as trial:
            trial.wait_for_checkpoint(EVERY)
            filler = disk / "filler"
            filler.mkdir()
            _use_inodes(filler)
            staged = trial.until(lambda: list((disk / "checkpoints").glob(".staging-*/*")), "no save was begun")
            time.sleep(0.3)
            intact = [path.name for path in checkpoints(trial.folder.checkpoints)]
            for path in filler.iterdir():
                path.unlink()
            trial.end()
        outcome = judge(trial, quiet, None, what="")
        left = list((disk / "checkpoints").glob(".staging-*"))
    outcome.expect(name_of(EVERY) in intact, f"of the checkpoints, {intact} were left")
    told = [event.text for event in trial.events("note") if "could not be written" in event.text]
    outcome.expect(told and staged, "no save failed half-way")
    outcome.expect(not left, f"left are {[path.name for path in left]}")
    return outcome


def _use_inodes(folder: Path) -> None:
    """Leave room for bytes, but for next to no files."""
    number = 0
    with contextlib.suppress(OSError):
        while True:
            (folder / str(number)).touch()
            number += 1
    for spare in range(_LEFT_INODES):
        (folder / str(number - 1 - spare)).unlink()


def kill_in_each_phase(suite: Suite) -> Outcome:
    outcome = Outcome()
    test = ["tests/training/test_checkpoint_faults.py", "-k", "kill_in_any_phase"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *test], capture_output=True, text=True
    )
    outcome.expect("1 passed" in done.stdout, "the test of it did not run")
    outcome.expect(done.returncode == 0, done.stdout[-500:])
    outcome.what = "-"
    return outcome


def cut_shard(suite: Suite) -> Outcome:
    return _resume_past(suite, "cut", [STEPS], lambda shard: shard.write_bytes(shard.read_bytes()[:-1]))


def flip_bit(suite: Suite) -> Outcome:
    return _resume_past(suite, "flip", [STEPS], flip)


def corrupt_several(suite: Suite) -> Outcome:
    outcome = _resume_past(suite, "two-corrupt", [STEPS - EVERY, STEPS], flip)
    folder = suite.copy_of_quiet("all-corrupt")
    for checkpoint in checkpoints(folder.checkpoints):
        flip(_shard(checkpoint))
    with suite.trial("all-corrupt") as trial:
        code = trial.end()
    outcome.expect(code == 64, f"all corrupt: the step ended with {code}")
    outcome.expect("are damaged" in trial.log.read_text(), "all corrupt: it does not say so")
    outcome.expect(not any(e.attempt > 1 for e in trial.steps()), "all corrupt: it trained from the start")
    return outcome


def _resume_past(suite: Suite, name: str, steps: Sequence[int], damage: Callable[[Path], object]) -> Outcome:
    """Damage the checkpoints of these steps, and let a run that has lost its model go on."""
    quiet, folder = suite.quiet(), suite.copy_of_quiet(name)
    for step in steps:
        damage(_shard(folder.checkpoints / name_of(step)))
    with suite.trial(name) as trial:
        code = trial.end()
    outcome = judge(trial, quiet, None, what="", max_lost=len(steps) * EVERY)
    outcome.expect(code == 0, f"the step ended with {code}")
    expected = [f"damaged-{name_of(step)}" for step in steps]
    found = quarantined(folder.checkpoints)
    outcome.expect(found == expected, f"in quarantine are {found}")
    outcome.expect(_begun_at(trial) == min(steps) - EVERY + 1, f"it went on with step {_begun_at(trial)}")
    return outcome


def flip(path: Path) -> None:
    """Turn over a bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _shard(checkpoint: Path) -> Path:
    return sorted(checkpoint.glob("*.distcp"))[-1]


def _begun_at(trial: Trial) -> int:
    return min((event.step for event in trial.steps() if event.attempt > 1), default=0)


ROWS = (
    Row(
        "12",
        "a disk that is full in mid-save",
        "the one before is intact, the partial one goes",
        fill_disk,
        ("mounts",),
    ),
    Row("13", "kill -9 in each phase of a save", "a whole one loads every time", kill_in_each_phase, ()),
    Row("14", "the newest shard cut short", "falls back one, quarantines", cut_shard, ()),
    Row("15", "a bit of the newest shard flipped", "caught, never loaded", flip_bit, ()),
    Row("16", "the newest two corrupt, then all", "falls back two; all: refuses", corrupt_several, ()),
)
