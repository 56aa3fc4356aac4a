"""What to do after an attempt that failed: a pure function of what happened and what happened before."""

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from components.jobs.history import Past, last_counted, without_progress
from training.config import ResilienceConfig
from training.events import Action, Incident

BREAKER_S = 300.0
"""Within which at most half of the machines are excluded."""


@dataclass(frozen=True)
class Situation:
    """What a decision depends on beside the incidents.

    Attributes:
        saved_from: Step of the newest checkpoint when the attempt began.
        saved: Likewise now.
        num_nodes: Of the attempt.
        usual_nodes: As the configuration says.
        is_alive: Whether all its nodes wait for an order.
        suspects: Machines that are to be replaced → why.
        num_hosts: Machines that there are; None: not known.
        excluded: Machines that were excluded in the last `BREAKER_S` seconds.
        needed: Machines that no replacement came for, and that are not excluded again.
    """

    saved_from: int = 0
    saved: int = 0
    num_nodes: int = 1
    usual_nodes: int = 1
    is_alive: bool = True
    suspects: Mapping[str, str] = field(default_factory=dict)
    num_hosts: int | None = None
    excluded: frozenset[str] = frozenset()
    needed: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Decision:
    """What to do.

    Attributes:
        action: Restart in place or elsewhere, with fewer nodes, or stop.
        reason: In one line.
        exclude: Machines that are not used for a while → why.
        num_nodes: Of the next attempt; None: there is none.
        counts: Whether the attempt uses up one of those that may pass without progress.
        skip: The step that is left out from now on.
        is_final: Whether trying again would need a change of the program.
        pause_s: Seconds to wait before the next attempt.
    """

    action: Action
    reason: str
    exclude: Mapping[str, str] = field(default_factory=dict)
    num_nodes: int | None = None
    counts: bool = True
    skip: int | None = None
    is_final: bool = False
    pause_s: float = 0.0

    @property
    def retry(self) -> bool:
        """Whether there is another attempt."""
        return self.action != "stop"


_FINAL = {
    "invalid": "trying again cannot mend a configuration or data error",
    "interrupted": "it was asked to stop",
    "queue_timeout": "another attempt would wait in the same queue",
    "start_timeout": "another attempt would wait for the same",
    "run_timeout": "its time is up",
}
"""Why another attempt would be of no use, by class of incident."""

_BLAMES_ITS_HOST = ("signal", "hang", "node_lost", "node_suspect")
"""Classes of incidents for which the machine may be the cause. A disk is mostly one that all share; where it is
not, the machine does not pass its checks."""

_PAUSES_S = (15.0, 45.0)
"""After the first and each further failure of a disk in a row; nodes wait a minute for an order."""

_MISTAKE = re.compile(
    r"^(\w+\.)*((ModuleNotFound|Import|Attribute|Name|Type|Key|Index|Value|Syntax|Indentation|NotImplemented|"
    r"Assertion|UnboundLocal|ZeroDivision)Error\b|RuntimeError@.*(size|shape|dimension|must match))"
)
"""Fingerprints of errors that the program makes again: of configuration, imports and shapes."""


def decide(
    incident: Incident, history: Sequence[Past], limits: ResilienceConfig, situation: Situation
) -> Decision:
    """Judge an incident.

    Args:
        incident: How the last attempt ended.
        history: The failed attempts before it, oldest first.
        limits: From the configuration.
        situation: What else matters.
    """
    stop = _why_stop(incident, history, limits, situation)
    if stop is not None:
        return replace(stop, exclude=_permitted(situation.suspects, limits, situation)[0])
    if incident.what == "preempted":
        return _go_on(situation, "a preemption uses up no attempt", counts=False, elsewhere=True)
    if incident.what == "nonfinite" and _seen(incident, history, situation):
        assert incident.step is not None
        reason = f"the loss of step {incident.step} was not finite again, so that step is left out"
        return replace(_go_on(situation, reason), skip=incident.step)
    suspects = dict(situation.suspects) or _blamed_twice(incident, history)
    if suspects and situation.num_hosts != 1:
        exclude, why = _permitted(suspects, limits, situation)
        pause_s = 0.0 if exclude else _pause_s(incident, history)
        return replace(_go_on(situation, why, elsewhere=bool(exclude)), exclude=exclude, pause_s=pause_s)
    return replace(_go_on(situation, _count(history, limits, situation)), pause_s=_pause_s(incident, history))


def why_kept(hosts: Mapping[str, str], limits: ResilienceConfig, situation: Situation) -> str:
    """Why none of these machines would be excluded, were they to be replaced now; empty where some would be."""
    if situation.num_hosts == 1:
        return "there is no other machine"
    return "" if _permitted(hosts, limits, situation)[0] else "it may not be excluded now"


def blamed(incident: Incident) -> str:
    """The machine that an incident speaks against; empty where it may as well be the program."""
    return incident.host if incident.what in _BLAMES_ITS_HOST else ""


def _why_stop(
    incident: Incident, history: Sequence[Past], limits: ResilienceConfig, situation: Situation
) -> Decision | None:
    what = incident.what
    if what in _FINAL:
        return Decision("stop", _FINAL[what], counts=what != "interrupted")
    if what == "preempted":
        return None
    before = last_counted(history)
    if what == "oom" and before is not None and before.what == "oom":
        return Decision("stop", "it ran out of memory twice running", is_final=True)
    if what == "exception" and not situation.saved and not incident.step and _MISTAKE.match(incident.fingerprint):
        return Decision("stop", "a mistake of the program before its first step", is_final=True)
    if what in ("exception", "nonfinite") and (past := _seen(incident, history, situation)) is not None:
        can_skip = what == "nonfinite" and limits.nonfinite == "skip" and incident.step is not None
        if not can_skip or any(each.skipped for each in history if each.fingerprint == incident.fingerprint):
            since = (
                f"without a checkpoint newer than that of step {past.saved}"
                if past.saved
                else "with nothing saved"
            )
            again = f"the same failure as in attempt {past.number}, {since}"
            return Decision("stop", again, is_final=True)
    if _fruitless(history, situation) >= limits.max_attempts:
        left = (
            f"left no checkpoint newer than that of step {situation.saved}" if situation.saved else "saved nothing"
        )
        reason = f"{limits.max_attempts} attempt(s) in a row {left}; resilience.max_attempts is "
        return Decision("stop", f"{reason}{limits.max_attempts}")
    return None


def _seen(incident: Incident, history: Sequence[Past], situation: Situation) -> Past | None:
    """The last failure of the same cause since which nothing newer was saved."""
    if incident.rank is None:
        return None  # without a rank's own words, it may be another
    is_poison = incident.what == "nonfinite"  # its fingerprint names the step, so it matters at any time
    if situation.saved > situation.saved_from and not is_poison:
        return None
    for past in reversed(history):
        if past.fingerprint and past.fingerprint == incident.fingerprint:
            return past
        if past.progressed and not is_poison:
            return None
    return None


def _fruitless(history: Sequence[Past], situation: Situation) -> int:
    """Attempts in a row without a newer checkpoint, the present one included."""
    return 0 if situation.saved > situation.saved_from else 1 + without_progress(history)


def _pause_s(incident: Incident, history: Sequence[Past]) -> float:
    """A disk that does not do its work now is given time, more each time."""
    if incident.what != "storage":
        return 0.0
    in_a_row = list(
        itertools.takewhile(lambda past: past.what == "storage" and not past.progressed, reversed(history))
    )
    return _PAUSES_S[min(len(in_a_row), len(_PAUSES_S) - 1)]


def _blamed_twice(incident: Incident, history: Sequence[Past]) -> dict[str, str]:
    host, before = blamed(incident), last_counted(history)
    if not host or before is None or before.host != host:
        return {}
    return {host: f"to blame for two incidents running ({before.what}, {incident.what})"}


def _permitted(
    suspects: Mapping[str, str], limits: ResilienceConfig, situation: Situation
) -> tuple[dict[str, str], str]:
    """Which of the suspects are excluded, and why, or why none is."""
    named = ", ".join(suspects)
    wanted = {host: why for host, why in suspects.items() if host not in situation.needed}
    if not wanted:
        return {}, f"{named} stays in use: there was no replacement"
    if not limits.exclude_for_s:
        return {}, f"{named} stays in use: resilience.exclude_for_s is 0"
    hosts = situation.num_hosts
    most = hosts // 2 if hosts is not None else max(1, situation.usual_nodes // 2)
    if len(situation.excluded | wanted.keys()) > most:
        return {}, (
            f"no machine is excluded, although {named} should be: more than half of them within "
            f"{BREAKER_S / 60:.0f} min points at the check, not at the machines"
        )
    return wanted, "; ".join(f"{host} is replaced: {why}" for host, why in wanted.items())


def _go_on(situation: Situation, reason: str, *, counts: bool = True, elsewhere: bool = False) -> Decision:
    if situation.is_alive and not elsewhere:
        return Decision("restart_in_place", reason, num_nodes=situation.num_nodes, counts=counts)
    return Decision("restart_elsewhere", reason, num_nodes=situation.usual_nodes, counts=counts)


def _count(history: Sequence[Past], limits: ResilienceConfig, situation: Situation) -> str:
    made = _fruitless(history, situation)
    goes_on = f"it goes on from the checkpoint of step {situation.saved}" if situation.saved else "it begins anew"
    if not made:
        return goes_on
    left = "left no newer one" if situation.saved else "saved nothing"
    return f"{goes_on}; {made} of {limits.max_attempts} attempts in a row have {left}"
