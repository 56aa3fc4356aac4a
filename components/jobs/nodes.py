"""Tells which nodes of an attempt live: those whose heartbeat in the run's folder goes on."""

import time
from collections.abc import Collection, Mapping

from training.guard.place import Place, read_places
from training.heartbeat import Watch
from training.run_folder import RunFolder

_BEAT_S = 2.0
"""Between two beats of a node."""


class NodeWatch:
    """Watches the heartbeats of one attempt's nodes, by this process's own clock.

    Args:
        folder: The run's.
        number: The attempt's.
        num_nodes: Of the attempt.
        known: Nodes that ran an attempt before in the same place; the others count once they have begun.
    """

    def __init__(self, folder: RunFolder, number: int, num_nodes: int, known: Mapping[int, Place]) -> None:
        self.places = dict(known)
        self._folder = folder
        self._attempt = folder.attempt(number)
        self._here: set[int] = set()
        self._watches = {
            node: Watch(folder.launcher_heartbeat.with_name(f"node-{node}")) for node in range(num_nodes)
        }
        self._silent: dict[int, float] = {}
        self._own = Watch(folder.launcher_heartbeat)
        self._blind = 0.0
        self._looked = time.monotonic()
        self._since = dict.fromkeys(known, time.monotonic())

    def look(self) -> bool:
        """Look at all heartbeats; whether one has changed since the last look."""
        if len(self._here) < len(self._watches):
            for node, place in read_places(self._attempt).items():
                if node not in self._here:
                    self._here.add(node)
                    self.places[node] = place
                    self._since.setdefault(node, time.monotonic())
        now, is_first = time.monotonic(), not self._silent
        passed, self._looked = now - self._looked, now
        own_silent = self._own.silent_s()
        self._blind = max(passed, own_silent if self._own.has_begun() else 0.0)
        self._silent = {node: watch.silent_s() for node, watch in self._watches.items()}
        return not is_first and min(self._silent.values()) < passed / 2

    def lost(self, timeout_s: float, ended: Collection[int] = ()) -> dict[int, Place]:
        """Nodes of which nothing was heard for so long, and with them those that fell silent at the same time.

        Where this process's own heartbeat does not get through either, or it did not look, the store or this
        machine stood still: that says nothing of nodes, whose time begins anew.

        Args:
            timeout_s: Seconds.
            ended: Nodes that have told of the end of their ranks; after it they are silent.
        """
        if self._blind > max(1.5 * _BEAT_S, timeout_s / 2):
            self._since = dict.fromkeys(self._since, time.monotonic())
        silent = {node: self._silence(node) for node in self.places.keys() & self._watches.keys() - set(ended)}
        if max(silent.values(), default=0.0) < timeout_s:
            return {}
        together = max(timeout_s - 1.5 * _BEAT_S, timeout_s / 2)
        return {node: self.places[node] for node, seconds in silent.items() if seconds >= together}

    def lives(self, node: int, since: float) -> bool:
        """Whether a node was heard of after a time of the monotonic clock."""
        return time.monotonic() - self._silent.get(node, 0.0) > since

    def _silence(self, node: int) -> float:
        return min(self._silent.get(node, 0.0), time.monotonic() - self._since[node])
