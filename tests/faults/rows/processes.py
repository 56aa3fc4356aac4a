"""Faults of processes: ranks and supervisors that are killed, stopped, or told to leave."""

import signal

from tests.faults.judge import Outcome, judge
from tests.faults.rows import Row
from tests.faults.suite import Suite, inject
from tests.faults.trial import Trial
from tests.faults.world import DEADLINE_S, result_of

_OF_TORCHRUN = 0.7
"""Most of torchrun's time that may pass until a run steps again after the kill of a rank."""

_CYCLES = 3


def kill_rank(suite: Suite) -> Outcome:
    quiet = suite.quiet()
    with suite.trial("kill-rank") as trial:
        at = inject(trial, lambda: trial.rank(1).kill())
        code = trial.end()
    outcome = judge(trial, quiet, at, what="signal", limit_s=2 * quiet.cold_s)
    outcome.expect(code == 0, f"the step ended with {code}")
    outcome.expect(trial.record(2).get("in_place"), "it was not restarted in place")
    suite.torchrun(outcome, lambda job, hosts: job.rank(1).kill())
    _expect_faster(outcome)
    return outcome


def kill_rank_0(suite: Suite) -> Outcome:
    quiet = suite.quiet(2, 1)
    with suite.trial("kill-rank-0", nodes=2, ranks=1) as trial:
        at = inject(trial, lambda: trial.rank(0).kill())
        trial.end()
    outcome = judge(trial, quiet, at, what="signal", limit_s=2 * quiet.cold_s)
    with suite.trial("kill-store-host", nodes=2, ranks=1) as trial:
        at = inject(trial, lambda: trial.node(0).kill())
        trial.end()
    of_host = judge(trial, quiet, at, what="node_lost")
    outcome.what += f"; of its node: {of_host.what}"
    outcome.problems += [f"kill of node 0: {problem}" for problem in of_host.problems]
    suite.torchrun(outcome, lambda job, hosts: job.rank(0).kill(), nodes=2, ranks=1, nnodes="2")
    _expect_faster(outcome)
    return outcome


def stop_rank(suite: Suite) -> Outcome:
    quiet = suite.quiet()
    with suite.trial("stop-rank", resilience={"hang_timeout_s": DEADLINE_S}) as trial:
        at = inject(trial, lambda: trial.rank(1).suspend())
        trial.end()
    outcome = judge(trial, quiet, at, what="hang", limit_s=DEADLINE_S + 2 * quiet.cold_s)
    (incident,) = trial.events("incident") or [None]
    outcome.expect(incident is not None and incident.rank == 1, "the wrong rank is named")
    stacks = sorted(path.name for path in (trial.folder.attempt(1) / "stacks").glob("rank-*.txt"))
    outcome.expect(stacks == ["rank-0.txt", "rank-1.txt"], f"stacks are there of {stacks}")
    # With torch's own timeout it does not react at all.
    suite.torchrun(outcome, lambda job, hosts: job.rank(1).suspend(), group_timeout_s=15, within_s=150)
    return outcome


def preempt(suite: Suite) -> Outcome:
    quiet = suite.quiet()
    with suite.trial("preempt") as trial:
        at = inject(trial, lambda: trial.node(0).terminate())
        trial.end()
    outcome = judge(trial, quiet, at, what="preempted")
    outcome.expect(outcome.lost == 0, f"{outcome.lost} steps were lost")
    outcome.expect(trial.record(1).get("past", {}).get("counts") is False, "the budget was used")
    return outcome


def user_exception(suite: Suite) -> Outcome:
    outcome = Outcome()

    def zero(folder) -> None:
        samples = folder.path / "samples"
        samples.mkdir()
        source = folder.inputs().dataset
        for path in source.iterdir():
            (samples / path.name).write_bytes(path.read_bytes())
        data = samples / "train.arrow"
        data.write_bytes(bytes(data.stat().st_size))
        folder.save_input("dataset", samples)

    with suite.trial("user-exception", prepare=zero) as trial:
        code = trial.end()
    incidents = [incident.what for incident in trial.events("incident")]
    outcome.what = ", ".join(sorted(set(incidents)))
    attempts = trial.folder.attempts()
    outcome.expect(set(incidents) == {"exception"}, f"incidents are {incidents}")
    outcome.expect(len(attempts) <= 2, f"it took {len(attempts)} attempts")
    outcome.expect(code == 93, f"the exit code is {code}, not 93")
    return outcome


def kill_supervisor(suite: Suite) -> Outcome:
    quiet = suite.quiet()
    with suite.trial("kill-supervisor") as trial:
        at = inject(trial, lambda: _kill_in_recovery(trial))
        trial.driver.wait()
        trial.drive()
        code = trial.end()
    outcome = judge(trial, quiet, at, what="signal")
    outcome.expect(code == 0, f"the step ended with {code}")
    made = (trial.hosts.folder / "made").read_text().splitlines()
    outcome.expect(len(made) == 1, f"{len(made)} jobs were made")
    outcome.expect(trial.folder.attempts() == [1, 2], f"attempts are {trial.folder.attempts()}")
    return outcome


def _kill_in_recovery(trial: Trial) -> None:
    trial.rank(1).kill()
    trial.until(lambda: (trial.folder.attempt(2) / "attempt.json").exists(), "there was no second attempt")
    trial.driver.kill()


def kill_again_and_again(suite: Suite) -> Outcome:
    outcome = Outcome()
    with suite.trial("kill-again") as trial:
        for attempt in range(1, _CYCLES + 1):
            trial.wait_for_step(1, attempt)
            trial.rank(1).kill()
        code = trial.end()
    attempts, incidents = trial.folder.attempts(), [incident.what for incident in trial.events("incident")]
    outcome.what = ", ".join(sorted(set(incidents)))
    outcome.lost = max(result_of(trial.folder).lost, default=0)
    outcome.expect(attempts == [1, 2, 3], f"attempts are {attempts}")
    outcome.expect(incidents == ["signal"] * _CYCLES, f"incidents are {incidents}")
    outcome.expect(code not in (0, -signal.SIGKILL), f"the step ended with {code}")
    return outcome


def _expect_faster(outcome: Outcome) -> None:
    ratio = outcome.ratio
    if ratio is not None:
        outcome.expect(ratio <= _OF_TORCHRUN, f"it takes {ratio:.2f} times as long as torchrun")


ROWS = (
    Row("1", "kill -9 a rank", "in place, ≤ 2C, ≤ 0.7× torchrun", kill_rank, ()),
    Row("2", "kill -9 rank 0, and the host of the store", "recovers, ≤ 0.7× torchrun", kill_rank_0),
    Row("5", "SIGSTOP a rank", "≤ D + 2C, stacks of all ranks", stop_rank, ()),
    Row("11", "SIGTERM to a node", "0 steps lost, budget intact", preempt, ()),
    Row("19", "an exception before the first step", "stops within 2 attempts, exit code 93", user_exception, ()),
    Row("22", "kill -9 the supervisor in mid-recovery", "resumes, launches nothing twice", kill_supervisor, ()),
    Row("23", "a fault every < K steps", "stops after 3 cycles", kill_again_and_again, ()),
)
