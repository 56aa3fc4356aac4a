"""Measures the network from this node to its peers while training goes on.

Every node answers on a port of its own. A link is slow when the round trip takes long in itself, and many times
what it took when the attempt was young.
"""

import contextlib
import socket
import socketserver
import statistics
import threading
import time
from collections.abc import Callable, Mapping

from training.guard.place import Place

_EVERY_S = 15.0

_MAX_PEERS = 8
"""The next ones in a ring, so that all links together stay few where nodes are many."""

_TRIPS = 5

_TIMEOUT_S = 5.0

_SLOW_S = 0.05
"""Round trips within a cluster take less than a millisecond, and a busy host some more."""

_TIMES = 5.0
"""Of a link's own usual round trip."""


class Responder:
    """Answers peers who measure."""

    def __init__(self) -> None:
        self._server = _Server(("", 0), _Echo)
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name="link-responder", daemon=True)

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def stop(self) -> None:
        """End."""
        self._server.shutdown()
        self._server.server_close()


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True


class _Echo(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        self.request.settimeout(_TIMEOUT_S)
        with contextlib.suppress(OSError):
            while data := self.request.recv(1):
                self.request.sendall(data)


class LinkJudge:
    """Tells a slow link from its round trips."""

    def __init__(self) -> None:
        self._usual: dict[int, float] = {}

    def __call__(self, node: int, seconds: float | None, timeout_s: float = _TIMEOUT_S) -> str | None:
        """What is wrong with the link to a node, if anything.

        Args:
            node: The far end.
            seconds: The round trip; None: there was no answer.
            timeout_s: Within so many seconds.
        """
        if seconds is None:
            return f"no answer in {timeout_s:g} s"
        usual = self._usual.get(node)
        if seconds > _SLOW_S and (usual is None or seconds > _TIMES * usual):
            before = "" if usual is None else f", usually {usual * 1000:.1f} ms"
            return f"a round trip takes {seconds * 1000:.0f} ms{before}"
        self._usual[node] = seconds if usual is None else min(usual, seconds)
        return None


class LinkWatch:
    """Measures in the background.

    Args:
        node: This node's number.
        places: Gives the places of all nodes that are known.
        on_slow: Called with the far end and what is wrong, at every look that finds it so.
        every_s: Seconds between two looks.
    """

    def __init__(
        self,
        node: int,
        places: Callable[[], Mapping[int, Place]],
        on_slow: Callable[[Place, str], None],
        every_s: float = _EVERY_S,
    ) -> None:
        self._node = node
        self._places = places
        self._on_slow = on_slow
        self._every_s = every_s
        self._judge = LinkJudge()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="link-watch", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End; does not wait for a measurement that is under way."""
        self._stop.set()

    def look(self, timeout_s: float = _TIMEOUT_S) -> None:
        """Measure now.

        Args:
            timeout_s: Seconds after which a peer counts as one that does not answer.
        """
        for place in peers(self._node, self._places()):
            problem = self._judge(place.node, round_trip(place, timeout_s), timeout_s)
            if problem is not None and not self._stop.is_set():
                self._on_slow(place, problem)

    def _run(self) -> None:
        while not self._stop.wait(self._every_s):
            self.look()


def peers(node: int, places: Mapping[int, Place]) -> list[Place]:
    """The nodes that a node measures: the next ones in the ring of all."""
    others = sorted(number for number in places if number != node)
    after = [number for number in others if number > node] + [number for number in others if number < node]
    return [places[number] for number in after[:_MAX_PEERS] if places[number].port]


def round_trip(place: Place, timeout_s: float = _TIMEOUT_S) -> float | None:
    """Median round trip of a byte over a connection that stands, in seconds; None: no answer in time."""
    try:
        with socket.create_connection((place.address, place.port), timeout=timeout_s) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            times = []
            for _ in range(_TRIPS):
                started = time.monotonic()
                connection.sendall(b".")
                if not connection.recv(1):
                    return None
                times.append(time.monotonic() - started)
            return statistics.median(times)
    except OSError:
        return None
