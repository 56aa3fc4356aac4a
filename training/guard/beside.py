"""What goes on beside the ranks on their node: figures, answers to peers, looks at links, devices and orders."""

import os
import signal
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from training.background_events import BackgroundEventWriter
from training.events import Alert
from training.exporter import serve_metrics
from training.guard.guard import kill
from training.guard.links import LinkWatch, Responder
from training.guard.notice import NoticeWatch, aws_notice
from training.guard.place import Place, host_name, read_places
from training.health.gpu import expected_gpus
from training.health.policy import policy_of
from training.health.watch import HealthWatch
from training.heartbeat import Heartbeat
from training.orders import Orders
from training.run_folder import RunFolder
from training.system_metrics import SystemMetrics

_BEAT_S = 2.0

_LOOK_S = 0.2

_CUT_LOOKS = 2
"""The network is not to blame for what is seen once."""

_CUT_TIMEOUT_S = 2.0
"""Of a peer, after a hang; the restart waits for it."""


class Beside:
    """Goes on from entering to leaving it as a context.

    Args:
        run: The run, seen from the job.
        number: Of the attempt.
        node: This node's number.
        events: Where alerts go.
        pids: Gives the ranks that run now, as global rank → pid.

    Attributes:
        port: At which peers are answered.
        notice: That this machine is about to be taken away; empty: there was none.
    """

    def __init__(
        self,
        run: RunFolder,
        number: int,
        node: int,
        events: BackgroundEventWriter,
        pids: Callable[[], Mapping[int, int]],
    ) -> None:
        self.notice = ""
        self._run = run
        self._number = number
        self._node = node
        self._events = events
        self._pids = pids
        self._host = host_name()
        self._config = run.config()
        self._responder = Responder()
        self.port = self._responder.port
        self._links = LinkWatch(node, lambda: read_places(run.attempt(number)), self._tell_of_slow_link)
        self._over = threading.Event()
        self._stack = ExitStack()

    def __enter__(self) -> "Beside":
        with ExitStack() as stack:
            self._begin(stack.enter_context, stack.callback)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _begin(self, enter: Callable[[Any], object], at_end: Callable[[Callable[[], None]], object]) -> None:
        run = self._run
        enter(Heartbeat(run.launcher_heartbeat.with_name(f"node-{self._node}"), _BEAT_S))
        # Of the training alone: an evaluation's node would show its last figures as if they were new.
        if run.purpose == "training" and self._node == 0:
            enter(serve_metrics(run, self._number))
        enter(SystemMetrics(run.events, f"{run.node_prefix}{self._node}", self._number, disk=run.root))
        at_end(self._responder.stop)
        self._responder.start()
        watches: list[LinkWatch | NoticeWatch] = [self._links]
        if self._config.resilience.preemption_notice == "aws":
            watches.append(NoticeWatch(aws_notice, self._leave))
        for watch in watches:
            at_end(watch.stop)
            watch.start()
        at_end(self._over.set)
        threading.Thread(target=self._obey, name="orders", daemon=True).start()
        if self._config.resilience.health_checks:
            gpus = expected_gpus(self._config.cluster)
            enter(HealthWatch(policy_of(run), self._events.write, num_gpus=gpus, node=self._node))

    def look_for_a_cut(self) -> None:
        """After a hang, tell of peers that do not answer: nobody could meet them in another attempt."""
        for _ in range(_CUT_LOOKS):
            self._links.look(_CUT_TIMEOUT_S)

    def _tell_of_slow_link(self, place: Place, problem: str) -> None:
        text = f"the link from {self._host} to {place.host} is slow: {problem}"
        self._events.write(Alert(what="slow_link", host=place.host, node=place.node, text=text))

    def _leave(self, notice: str) -> None:
        self.notice = notice
        os.kill(os.getpid(), signal.SIGTERM)
        self._events.write(Alert(what="preemption", host=self._host, node=self._node, text=notice))

    def _obey(self) -> None:
        """End the ranks once another attempt is ordered."""
        orders = Orders(self._run.job_path)
        while not self._over.wait(_LOOK_S):
            if orders.attempt() > self._number:
                kill(self._pids())
