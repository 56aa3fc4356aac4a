"""XIDs, by which NVIDIA's driver tells of errors in the kernel log, and what they ask for."""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from training.health.kernel_log import log_path, recent
from training.health.policy import HealthPolicy, XidAction
from training.health.result import CheckResult

FATAL: tuple[XidAction, ...] = ("isolate", "reboot", "reset")
"""Actions that somebody has to take before the machine is used again."""

ADVICE: dict[XidAction, str] = {
    "isolate": "take the machine out of use and have it repaired",
    "reboot": "reboot the machine",
    "reset": "reset the GPU, or reboot the machine",
    "restart": "nothing: a restart of the program is enough",
    "monitor": "watch whether it returns",
    "follow": "look for another XID beside it in the kernel log",
}

_XID = re.compile(r"NVRM: Xid \(PCI:(?P<gpu>[0-9a-fA-F:.]+)\): (?P<number>\d+)(?:, (?P<text>.*))?")

_NAMED = (
    (re.compile(r"reboot required", re.I), "reboot"),
    (re.compile(r"reset required|drain", re.I), "reset"),
)
"""How the text of a 154 names the action: `GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot
Required)`."""

_RECOVERY_CHANGED, _NVLINK5 = 154, range(144, 151)


@dataclass(frozen=True)
class Xid:
    """One line of the driver.

    Attributes:
        number: Of the XID.
        gpu: PCI address.
        text: What follows.
    """

    number: int
    gpu: str
    text: str


@dataclass(frozen=True)
class Verdict:
    """What an XID asks for.

    Attributes:
        xid: Itself.
        action: What is to be done.
        text: For people.
    """

    xid: Xid
    action: XidAction
    text: str

    @property
    def is_fatal(self) -> bool:
        """Whether the machine is not to be used any further."""
        return self.action in FATAL


def parse_xid(line: str) -> Xid | None:
    """The XID that a line of the kernel log tells of."""
    match = _XID.search(line)
    return Xid(int(match["number"]), match["gpu"], (match["text"] or "").strip()) if match else None


def judge_xid(xid: Xid, policy: HealthPolicy) -> Verdict:
    """What an XID asks for by the policy; one that the policy does not know is to be watched."""
    rule = policy.xids.get(xid.number)
    action: XidAction = rule.action if rule else "monitor"
    if action == "follow":
        action = _told_by_text(xid)
    meaning = rule.meaning if rule else "not in the policy"
    return Verdict(xid, action, f"XID {xid.number} of the GPU at {xid.gpu}: {meaning} → {action}")


def check_xids(policy: HealthPolicy, path: Path | None = None) -> CheckResult:
    """Look for XIDs in the kernel log of the last hour.

    Args:
        policy: By which they are judged.
        path: The log; by default `log_path()`.
    """
    path = path or log_path()
    lines = recent(path, policy.thresholds.kernel_log_window_s)
    if lines is None:
        return CheckResult("kernel_log", "not_present", f"the kernel log {path} cannot be read here")
    found = [xid for line in lines if (xid := parse_xid(line.text))]
    return judge_xids(found, policy)


def judge_xids(found: Iterable[Xid], policy: HealthPolicy) -> CheckResult:
    """Judge all XIDs of a time together."""
    verdicts = [judge_xid(xid, policy) for xid in found]
    numbers = dict(Counter(str(verdict.xid.number) for verdict in verdicts))
    if fatal := [verdict for verdict in verdicts if verdict.is_fatal]:
        texts = "; ".join(dict.fromkeys(verdict.text for verdict in fatal))
        return CheckResult("kernel_log", "failed", texts, numbers, ADVICE[fatal[-1].action])
    if many := repeated(verdicts, policy.thresholds.xid_repeats):
        return CheckResult("kernel_log", "warning", "; ".join(many), numbers, "run `shardline doctor --deep`")
    if verdicts:
        texts = "; ".join(dict.fromkeys(verdict.text for verdict in verdicts))
        return CheckResult("kernel_log", "warning", texts, numbers, ADVICE[verdicts[-1].action])
    return CheckResult("kernel_log", "ok", "no XID", numbers)


def repeated(verdicts: Iterable[Verdict], at_least: int) -> list[str]:
    """GPUs with the same XID again and again, where once asks for no more than a restart."""
    counts = Counter((v.xid.number, v.xid.gpu) for v in verdicts if v.action == "restart")
    return [
        f"XID {number} came {count} times from the GPU at {gpu}: it may be the GPU, not the program"
        for (number, gpu), count in counts.items()
        if count >= at_least
    ]


def _told_by_text(xid: Xid) -> XidAction:
    if xid.number == _RECOVERY_CHANGED:
        changed_to = xid.text.rpartition(" to ")[2]
        for pattern, action in _NAMED:
            if pattern.search(changed_to):
                return "reboot" if action == "reboot" else "reset"
        return "monitor"
    if xid.number in _NVLINK5:
        return "reset" if re.search(r"\bfatal\b", xid.text, re.I) else "monitor"
    return "follow"
