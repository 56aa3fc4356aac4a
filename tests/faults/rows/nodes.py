"""Faults of whole nodes and of the network between them."""

import signal
import time

from tests.faults.judge import Outcome, judge
from tests.faults.link import slow_down
from tests.faults.rows import Row
from tests.faults.suite import Suite, inject
from tests.faults.trial import Trial
from tests.faults.world import DEADLINE_S

_LOOKS_S = 40.0
"""Two looks of a node at its links, and what a slow one adds to each."""

_TORCHRUN = {"nodes": 2, "ranks": 1, "nnodes": "1:2", "group_timeout_s": 15}
"""It goes on with the half that is left; with torch's own timeout of the group it would not react."""

_SOON = {"hang_timeout_s": DEADLINE_S, "node_timeout_s": DEADLINE_S}


def lose_node_with_spare(suite: Suite) -> Outcome:
    quiet = suite.quiet(2, 1)
    with suite.trial("lose-node", nodes=2, ranks=1, resilience=_SOON) as trial:
        at = inject(trial, trial.hosts["b"].lose)
        trial.end()
    outcome = judge(trial, quiet, at, what="node_lost")
    _expect_hosts(outcome, trial, ["a", "c"])
    suite.torchrun(
        outcome,
        lambda job, hosts: hosts["b"].lose(),
        nodes=3,
        ranks=1,
        nnodes="2",
        hosts=("a", "b", "c"),
    )
    return outcome


def lose_node_without_spare(suite: Suite) -> Outcome:
    quiet = suite.quiet(2, 1)
    with suite.trial("shrink", nodes=2, ranks=1, hosts=("a", "b"), resilience={**_SOON, "min_nodes": 1}) as trial:
        at = inject(trial, trial.hosts["b"].lose)
        trial.end()
    waits_s = trial.folder.config().resilience.replacement_timeout_s
    limit_s = DEADLINE_S + waits_s + 1.5 * quiet.cold_s
    outcome = judge(trial, quiet, at, what="node_lost", limit_s=limit_s, same_world=False)
    _expect_hosts(outcome, trial, ["a"])
    suite.torchrun(outcome, lambda job, hosts: hosts["b"].lose(), nodes=2, ranks=1, nnodes="1:2")
    return outcome


def stop_node(suite: Suite) -> Outcome:
    quiet = suite.quiet(2, 1)
    with suite.trial("stop-node", nodes=2, ranks=1, resilience=_SOON) as trial:
        at = inject(trial, lambda: trial.hosts["b"].signal(signal.SIGSTOP))
        trial.end()
        # What wakes up later must not touch what others have made since.
        trial.hosts["b"].signal(signal.SIGCONT)
        time.sleep(1)
    outcome = judge(trial, quiet, at, what="node_lost")
    _expect_hosts(outcome, trial, ["a", "c"])
    _expect_excluded(outcome, trial, ("b",))
    suite.torchrun(outcome, lambda job, hosts: hosts["b"].signal(signal.SIGSTOP), **_TORCHRUN)
    return outcome


def cut_off_node(suite: Suite) -> Outcome:
    quiet = suite.quiet(2, 1)
    with suite.trial("cut-off", nodes=2, ranks=1, resilience=_SOON) as trial:
        at = inject(trial, trial.hosts["b"].cut_off)
        trial.end()
    # Its nodes notice a hang first, and then that they do not reach each other.
    outcome = judge(trial, quiet, at, what="network", limit_s=2 * DEADLINE_S + 10 + 1.5 * quiet.cold_s)
    _expect_hosts(outcome, trial, ["a", "c"])
    late = [
        event.name
        for event in trial.events("span")
        if event.attempt == 1 and event.name == "checkpoint_write" and event.time > at + 1
    ]
    outcome.expect(not late, "a half that was cut off has committed a checkpoint")
    suite.torchrun(outcome, lambda job, hosts: hosts["b"].cut_off(), **_TORCHRUN)
    return outcome


def slow_link(suite: Suite) -> Outcome:
    quiet = suite.quiet(2, 1)
    with suite.trial("slow-link", nodes=2, ranks=1, resilience={"hang_timeout_s": 120}) as trial:
        link = []
        at = inject(trial, lambda: link.append(slow_down(trial.hosts["b"])))
        try:
            trial.end(300)
        finally:
            if link[0] is not None:
                link[0].kill()
                link[0].wait()
    outcome = judge(trial, quiet, at, what="network", limit_s=_LOOKS_S + 1.5 * quiet.cold_s)
    alerts = [event for event in trial.events("alert") if event.what == "slow_link"]
    outcome.expect(len(alerts) >= 2, f"{len(alerts)} alerts before the node was replaced")
    outcome.expect("b" in {alert.host for alert in alerts}, "the link is not named")
    incidents = trial.events("incident")
    outcome.expect(incidents and incidents[0].host == "b", "the wrong host is blamed")
    _expect_hosts(outcome, trial, ["a", "c"])
    return outcome


def _expect_hosts(outcome: Outcome, trial: Trial, hosts: list[str]) -> None:
    found = sorted(trial.placed(max(trial.folder.attempts())).values())
    outcome.expect(found == hosts, f"the last attempt ran on {found}, not on {hosts}")


def _expect_excluded(outcome: Outcome, trial: Trial, hosts: tuple[str, ...]) -> None:
    found = {host for event in trial.events("decided") for host in event.excluded}
    outcome.expect(found == set(hosts), f"excluded are {sorted(found)}, not {sorted(hosts)}")


ROWS = (
    Row("3", "lose a node, a spare is there", "the spare is used", lose_node_with_spare),
    Row("4", "lose a node, no spare", "shrinks and reshards, loss within 2 %", lose_node_without_spare),
    Row("6", "SIGSTOP a node", "the node is excluded", stop_node),
    Row(
        "7",
        "iptables DROP of a node",
        "the minority commits no checkpoint",
        cut_off_node,
        ("namespaces", "firewall"),
    ),
    Row("8", "a link of 200 ms with 5 % loss", "named, replaced only at the second alert", slow_link),
)
