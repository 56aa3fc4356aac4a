"""Faults of what a rank lives on: processor time, memory, disks."""

import os
import subprocess
import sys
import time
from pathlib import Path

from components.jobs.history import Past
from components.jobs.policy import Situation, decide
from tests.faults.disks import freeze, loop_disk, thaw
from tests.faults.judge import Outcome, judge
from tests.faults.rows import Row
from tests.faults.suite import Suite, inject
from tests.faults.trial import Trial
from tests.faults.world import DEADLINE_S, EVERY
from training.config import ResilienceConfig
from training.events import Incident
from training.run_folder import RunFolder

_WINDOW_S = 40.0
"""Most that a report takes here: twenty measurements of four milliseconds or a little more, 0.3 % of the time."""

_CLEAN_S = 2 * _WINDOW_S

_NAMED_S = 3 * _WINDOW_S
"""Two reports, and what is left of the one that it begins in."""


def throttle_rank(suite: Suite) -> Outcome:
    outcome = Outcome()
    with suite.trial("throttle", training={"max_steps": 100_000}, resilience={"hang_timeout_s": 60}) as trial:
        trial.wait_for_step(1)
        time.sleep(_CLEAN_S)
        outcome.expect(not _stragglers(trial), "a false alarm on a clean run")
        group = trial.hosts["a"].cgroup("rank")
        group.limit_cpu(0.2)
        group.add(trial.rank(1).pid)
        at = time.time()
        trial.until(lambda: _stragglers(trial), "nobody was named", _NAMED_S)
        named = _stragglers(trial)
        outcome.expect({alert.rank for alert in named} == {1}, f"named are {[alert.rank for alert in named]}")
        outcome.recovery_s = named[0].time - at
        group.limit_cpu(None)
    outcome.what = "straggler"
    outcome.expect(not trial.events("incident"), "there are incidents")
    return outcome


def _stragglers(trial: Trial) -> list:
    return [event for event in trial.events("alert") if event.what == "straggler"]


def run_out_of_memory(suite: Suite) -> Outcome:
    quiet = suite.quiet()
    with suite.trial("oom") as trial:
        grown: list[subprocess.Popen[bytes]] = []
        at = inject(trial, lambda: grown.append(_take_memory(trial)))
        try:
            trial.until(lambda: trial.events("ranks_ended"), "nothing was killed")
        finally:
            grown[0].kill()
            grown[0].wait()
            trial.hosts["a"].cgroup().limit_memory(None)
        trial.end()
    outcome = judge(trial, quiet, at, what="oom")
    before = [Past(1, "oom", "oom")]
    again = decide(Incident(what="oom", fingerprint="oom"), before, ResilienceConfig(), Situation())
    outcome.expect(again.action == "stop", "a second time would be retried")
    return outcome


_GROW = """
import time
kept = []
while True:
    kept.append(b"x" * 2**22)
    time.sleep(0.02)
"""


def _take_memory(trial: Trial) -> subprocess.Popen[bytes]:
    """A neighbour grows until the kernel has to kill somebody, which can be none but a rank."""
    group = trial.hosts["a"].cgroup()
    for number in (0, 1):
        # To offer a process takes no privilege, and to protect the others does.
        Path(f"/proc/{trial.rank(number).pid}/oom_score_adj").write_text("1000")
    group.limit_memory(group.memory_bytes())
    return subprocess.Popen([sys.executable, "-S", "-c", _GROW], preexec_fn=lambda: group.add(os.getpid()))


def freeze_disk(suite: Suite) -> Outcome:
    quiet = suite.quiet()
    with loop_disk(256) as disk:

        def move(folder: RunFolder) -> None:
            # With the attempts' folders, in which the ranks' logs are.
            for path in (folder.checkpoints, folder.attempt(1).parent):
                (disk / path.name).mkdir()
                path.symlink_to(disk / path.name)

        with suite.trial("frozen", prepare=move, checkpoint={"timeout_s": 2}) as trial:
            at = inject(trial, lambda: freeze(disk), step=EVERY + 1)
            try:
                trial.until(lambda: _hung(trial), "the save did not time out")
            finally:
                thaw(disk)
            trial.end()
        outcome = judge(trial, quiet, None, what="")
    stall = max(event.seconds for event in trial.steps() if event.time > at)
    outcome.recovery_s = stall
    outcome.expect(stall <= DEADLINE_S, f"a step took {stall:.1f} s")
    return outcome


def _hung(trial: Trial) -> list:
    return [event for event in trial.events("alert") if event.what == "storage"]


ROWS = (
    Row("9", "20 % of a core for one rank", "named within 2 reports, no false alarm", throttle_rank, ("cgroups",)),
    Row("10", "a rank that the kernel kills for its memory", "at most 1 retry", run_out_of_memory, ("cgroups",)),
    Row("17", "a mount that freezes", "the save times out, a step stalls ≤ D", freeze_disk, ("mounts",)),
)
