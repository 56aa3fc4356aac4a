"""Faults that a machine reports of itself: XIDs in the kernel's log."""

import time
from pathlib import Path

from components.jobs.describe import describe_job
from components.jobs.exclusions import excluded
from components.jobs.render.pytorchjob import render_pytorchjob
from tests.faults.judge import Outcome, judge
from tests.faults.rows import Row
from tests.faults.suite import FAULT_STEP, Suite, inject
from tests.faults.trial import Trial

_HEARD_S = 2.5
"""Longer than a node takes to read its kernel's log and the supervisor to act."""


def xid(suite: Suite) -> Outcome:
    quiet = suite.quiet(2, 1)
    with suite.trial("xid", nodes=2, ranks=1, resilience={"health_checks": True}) as trial:
        inject(trial, lambda: _report(trial, "b", 31), step=2)
        time.sleep(_HEARD_S)
        calm = not trial.events("incident")
        at = inject(trial, lambda: _report(trial, "b", 79), step=FAULT_STEP)
        trial.end()
    outcome = judge(trial, quiet, at, what="node_suspect")
    outcome.expect(calm, "XID 31 ended the attempt")
    outcome.expect(excluded(trial.folder) == ("b",), f"excluded are {excluded(trial.folder)}")
    values = _values_not_in(trial)
    outcome.expect(values == ["b"], f"the next job's spec keeps away from {values}")
    return outcome


def fatal_everywhere(suite: Suite) -> Outcome:
    quiet = suite.quiet(2, 1)
    with suite.trial(
        "breaker", nodes=2, ranks=1, hosts=("a", "b", "c"), resilience={"health_checks": True}
    ) as trial:

        def report() -> None:
            for host in ("a", "b"):
                _report(trial, host, 79)

        inject(trial, report)
        trial.end()
    outcome = judge(trial, quiet, None, what="")
    outcome.expect(excluded(trial.folder) == (), f"excluded are {excluded(trial.folder)}")
    outcome.expect("may not be excluded now" in trial.log.read_text(), "the breaker is not told of")
    return outcome


def _report(trial: Trial, host: str, number: int) -> None:
    """What the driver of a GPU writes."""
    line = f"NVRM: Xid (PCI:0000:3b:00): {number}, pid=1234, name=python, fault"
    with Path(trial.hosts[host].kernel_log).open("a") as log:
        log.write(f"[{time.clock_gettime(time.CLOCK_BOOTTIME):.6f}] {line}\n")


def _values_not_in(trial: Trial) -> list[str]:
    """Hosts that a cluster's job of the next attempt would not be placed on."""
    config = trial.folder.config()
    job = describe_job(config, trial.folder, 9, image="image", excluded_hosts=excluded(trial.folder))
    pod = render_pytorchjob(job, "demo")["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    required = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return [
        value
        for term in required["nodeSelectorTerms"]
        for expression in term["matchExpressions"]
        if expression["key"] == "kubernetes.io/hostname" and expression["operator"] == "NotIn"
        for value in expression["values"]
    ]


ROWS = (
    Row("20", "XID 79 against 31", "79 excludes the node in the next spec, 31 does not", xid),
    Row("21", "fatal events on over half the nodes", "the breaker trips, nothing is excluded", fatal_everywhere),
)
