"""From alerts of a running attempt to machines that have to be replaced, if any."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from training.events import Alert

_SETTLE_S = 1.0
"""What strikes several machines at once is judged at once."""

_TWICE_WITHIN_S = 300.0
"""A link is slow for a reason of its own when it is so twice within this time."""


@dataclass
class AlertWatch:
    """Gathers alerts.

    Attributes:
        why_kept: Why machines (with reasons) may not be replaced, empty if they may; asked before the training is
            ended for them.
        tell: Says a line to people.
    """

    why_kept: Callable[[Mapping[str, str]], str]
    tell: Callable[[str], None]
    _fatal: dict[str, str] = field(default_factory=dict)
    _since: float | None = None
    _links: list[tuple[float, Alert]] = field(default_factory=list)
    _told: set[str] = field(default_factory=set)

    def take(self, alert: Alert, now: float) -> None:
        """Take in an alert.

        Args:
            alert: The alert.
            now: Seconds of a clock that never goes back; likewise below.
        """
        self._tell_once(f"{alert.what}-{alert.host}-{alert.rank}", alert.text)
        if alert.is_fatal and alert.host:
            self._fatal.setdefault(alert.host, alert.text)
            self._since = now if self._since is None else self._since
        if alert.what == "slow_link" and alert.host:
            self._links.append((now, alert))

    def fatal(self, now: float) -> dict[str, str]:
        """Machines that the training cannot go on with → why."""
        if self._since is None or now - self._since < _SETTLE_S:
            return {}
        return self._if_permitted(self._fatal)

    def slow(self, now: float) -> dict[str, str]:
        """The machine at the end of links that were slow twice → what was measured; empty if there is none."""
        self._links = [(at, alert) for at, alert in self._links if now - at <= _TWICE_WITHIN_S]
        told = Counter((alert.source, alert.host) for _, alert in self._links)
        if not told or max(told.values()) < 2:
            return {}
        named = Counter(host for _, host in told)
        nodes = {alert.host: alert.node or 0 for _, alert in self._links}
        # Both ends of a link name the other. Of two, the one that the others do not meet at is replaced.
        worst = max(named, key=lambda host: (named[host], nodes[host]))
        text = next(alert.text for _, alert in reversed(self._links) if alert.host == worst)
        return self._if_permitted({worst: text})

    def _if_permitted(self, hosts: dict[str, str]) -> dict[str, str]:
        why = self.why_kept(hosts)
        if not why:
            return hosts
        names = ", ".join(sorted(hosts))
        self._tell_once(f"kept {names}", f"{names} stays in use: {why}")
        return {}

    def _tell_once(self, key: str, text: str) -> None:
        if key not in self._told:
            self._told.add(key)
            self.tell(text)
