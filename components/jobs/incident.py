"""From what an attempt left behind to its incident: what failed first, where, and its last words."""

import json
import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from components.jobs import fingerprint
from components.jobs.launchers import Ending
from components.jobs.seen import Seen
from training.errors import EXIT_INTERRUPTED, EXIT_INVALID, EXIT_NODE_SUSPECT
from training.events import Incident, RanksEnded
from training.run_folder import RunFolder

_NETWORK = re.compile(
    r"Dist(Network|Backend|Store)Error|nccl\w*Error|NCCL error|\bgloo\b|Connection (closed|reset|refused)|"
    r"Broken pipe|Rendezvous\w*Error|of the group (has died|did not come)|[Ss]ocket [Tt]imeout|"
    r"Timed out waiting \d+ ?ms for (recv|send)"
)
"""What ranks say of a peer that they do not reach: seldom its cause."""

_NOT_A_CAUSE = (-signal.SIGTERM, -signal.SIGABRT)
"""Ends by a signal that another rank's end brings about."""


@dataclass(frozen=True)
class Cause:
    """What ended an attempt.

    Attributes:
        what: Class of the incident.
        rank: The first rank that failed.
        exit_code: Of it, 128 + n for signal n.
        host: The machine.
        fingerprint: See `components.jobs.fingerprint`.
        words: For people.
        step: Of a loss that is not finite.
        suspects: Machines that are to be replaced → why.
    """

    what: str
    rank: int | None = None
    exit_code: int | None = None
    host: str = ""
    fingerprint: str = ""
    words: str = ""
    step: int | None = None
    suspects: Mapping[str, str] | None = None


def judge(
    folder: RunFolder, number: int, ending: Ending, seen: Seen | None = None
) -> tuple[Incident, dict[str, str]]:
    """What ended an attempt, and the machines that are to be replaced, with the reasons.

    Args:
        folder: The run's.
        number: The attempt's.
        ending: What its launcher saw.
        seen: What its nodes told.
    """
    seen = seen or Seen()
    cause = _by_limit(ending) or _by_machine(ending, seen) or _by_words(folder.attempt(number), ending, seen)
    # A configuration error is told in its own words alone.
    also = "" if cause.what == "invalid" else ending.evidence
    incident = Incident(
        attempt=number,
        what=cause.what,
        rank=cause.rank,
        exit_code=cause.exit_code,
        node=ending.node,
        host=cause.host,
        step=seen.step if cause.step is None else cause.step,
        fingerprint=cause.fingerprint or cause.what,
        evidence="\n".join(part for part in (cause.words, also) if part),
    )
    return incident, dict(cause.suspects or {})


def tail(path: Path, num_lines: int = 20) -> str:
    """The last lines of a log; empty where there is none."""
    if not path.is_file():
        return ""
    return "\n".join(path.read_text(errors="replace").splitlines()[-num_lines:])


def _by_limit(ending: Ending) -> Cause | None:
    # The ranks that are left after one lost its machine or its memory only tell that a peer is gone.
    if ending.what is None:
        return None
    return Cause(ending.what, exit_code=ending.exit_code, host=ending.host, words=ending.log)


def _by_machine(ending: Ending, seen: Seen) -> Cause | None:
    """What a machine or its guard tells for certain, and ranks could only guess."""
    told = list(seen.told.values())
    unfit = {ended.host: _line(ended.evidence) for ended in told if ended.what == "node_suspect"}
    if not unfit and ending.exit_code == EXIT_NODE_SUSPECT and ending.host:
        unfit = {ending.host: "its checks failed"}
    for what, hosts in (("node_suspect", unfit or dict(seen.fatal)), ("network", dict(seen.slow))):
        if hosts:
            words = "\n".join(f"{host}: {why}" for host, why in hosts.items())
            host = next(iter(hosts))
            return Cause(what, exit_code=ending.exit_code, host=host, words=words, suspects=hosts)
    if seen.lost:
        lost = {place.host: f"nothing is heard of node {node}" for node, place in seen.lost.items()}
        words = "\n".join(f"{why} on {host}" for host, why in lost.items())
        return Cause("node_lost", host=next(iter(lost)), words=words, suspects=lost)
    for what in ("oom", "hang", "preempted"):
        if (ended := _first([each for each in told if each.what == what])) is not None:
            mark = fingerprint.of_hang(ended.evidence) if what == "hang" else what
            code = None if what == "hang" else _code(ended.exit_code)
            return Cause(what, ended.rank, code, ended.host, mark, ended.evidence)
    return None


def _by_words(attempt: Path, ending: Ending, seen: Seen) -> Cause:
    """What the ranks say, or the way in which they ended."""
    errors = [error for path in sorted((attempt / "errors").glob("*.json")) if (error := _read(path))]
    own_words = sorted((e for e in errors if "message" in e), key=_order)
    # A rank that was killed leaves no words, and the words of the others tell only that a peer is gone.
    # SIGTERM during the start-up is a stop, as it is later on.
    ends = sorted((e for e in errors if "message" not in e), key=_time)
    killed = [e for e in ends if e["exit_code"] < 0 and e["exit_code"] not in _NOT_A_CAUSE]
    hosts = {rank: place.host for place in seen.places.values() for rank in place.ranks}
    if killed:
        return _killed(attempt, killed[0], hosts)
    if all(map(_is_of_peer, own_words)) and (lost := _dead_node(ending, seen)) is not None:
        return lost
    if own_words:
        return _said(own_words[0], hosts)
    if aborted := [e for e in ends if e["exit_code"] == -signal.SIGABRT]:
        return _killed(attempt, aborted[0], hosts)
    return _silent(ending, seen)


def _killed(attempt: Path, error: dict[str, Any], hosts: Mapping[int, str]) -> Cause:
    number, rank = -error["exit_code"], error.get("rank")
    words = f"killed by signal {number}\n{tail(attempt / 'logs' / f'rank-{rank}.err')}".rstrip()
    host = hosts.get(rank, "") if isinstance(rank, int) else ""
    return Cause("signal", rank, 128 + number, host, f"signal {number}", words)


def _said(error: dict[str, Any], hosts: Mapping[int, str]) -> Cause:
    rank, code, message = error.get("rank"), error.get("exit_code"), str(error["message"])
    host = hosts.get(rank, "") if isinstance(rank, int) else ""
    if code == EXIT_INVALID:
        return Cause("invalid", rank, code, host, "invalid", message)
    words = str(error.get("traceback") or message)
    step = error.get("step") if isinstance(error.get("step"), int) else None
    what = error.get("what") or ("network" if _is_of_peer(error) else "exception")
    mark = f"nonfinite:step-{step}" if what == "nonfinite" else fingerprint.of_error(message, words)
    return Cause(str(what), rank, code, host, mark, words, step)


def _dead_node(ending: Ending, seen: Seen) -> Cause | None:
    """A node of several that was killed, and its ranks with it."""
    code, host = ending.exit_code, ending.host
    if not _is_kill(code) or not host or host in {ended.host for ended in seen.told.values()}:
        return None
    if {place.host for place in seen.places.values()} <= {host}:
        return None  # of its only node, a job cannot be told apart
    why = f"its node ended with exit code {code}"
    return Cause(
        "node_lost", None, code, host, "node_lost", f"{host}: {why}\n{ending.log}".strip(), None, {host: why}
    )


def _is_kill(code: int | None) -> bool:
    return code is not None and 128 < code < EXIT_NODE_SUSPECT and code != EXIT_INTERRUPTED


def _silent(ending: Ending, seen: Seen) -> Cause:
    told = next(iter(seen.told.values()), None)
    code = ending.exit_code if told is None else _code(told.exit_code)
    host = ending.host if told is None else told.host
    words = "\n".join(part for part in (told.evidence if told else "", ending.log) if part)
    if code == EXIT_INTERRUPTED:
        return Cause("interrupted" if told is None else "preempted", None, code, host, "", words)
    if code is not None and _is_kill(code):
        # A node that was killed took its ranks with it.
        return Cause("signal", None, code, host, f"signal {code - 128}", words)
    return Cause("exception", None, code, host, f"exit code {code}", words)


def _first(told: list[RanksEnded]) -> RanksEnded | None:
    """Of several nodes that tell of the same, the one with the cause: in a hang, the one that is behind."""
    return min(told, key=lambda ended: (0 if ended.beat is None else ended.beat, ended.node), default=None)


def _is_of_peer(error: dict[str, Any]) -> bool:
    if error.get("what") or error.get("exit_code") == EXIT_INVALID:
        return False
    return _NETWORK.search(f"{error['message']}\n{error.get('traceback', '')}") is not None


def _order(error: dict[str, Any]) -> tuple[bool, float]:
    return (_is_of_peer(error), _time(error))


def _time(error: dict[str, Any]) -> float:
    time = error.get("time")
    return float(time) if isinstance(time, int | float) else 0.0


def _code(code: int | None) -> int | None:
    return 128 - code if code is not None and code < 0 else code


def _line(words: str) -> str:
    return words.strip().partition("\n")[0]


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}  # half written by a rank that was killed
    if not isinstance(content, dict) or not isinstance(content.get("exit_code"), int):
        return {}
    return content if isinstance(content.get("rank"), int | None) else {}
