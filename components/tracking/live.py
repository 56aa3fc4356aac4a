"""Shows a training in MLflow while it runs."""

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Any

from components.step import Interrupted
from components.tracking.connection import connect, quiet_mlflow
from components.tracking.mirror import Mirror
from training.config import RunConfig
from training.events import Decided, EventReader, Incident, TrainStep
from training.ledger import Account, Ledger
from training.run_folder import RunFolder

_FIRST_AFTER_S = 15.0
"""How long a training has to take steps before MLflow is opened: the register step logs the shorter ones, which
would wait for this one otherwise."""

_EVERY_S = 5.0

_AGAIN_AFTER_S = 60.0

_GOODPUT_EVERY_S = 30.0
_GOODPUT_SHARE = 0.01
"""Of the run's time so far, so that a run of a month has some hundreds of points."""

_FLUSH_S = 10.0
_FLUSH_ON_STOP_S = 3.0


class LiveLog:
    """Logs a run's steps to MLflow as they come, from a thread of its own, for as long as the block lasts.

    The training never waits for it, and nothing that goes wrong here reaches it: an MLflow that cannot be reached
    is told once, and tried again now and then. The register step logs whatever is missing in the end.

    Args:
        folder: The run's folder.
        config: The run's config.
        note: Takes a line for people.
        first_after_s: See `_FIRST_AFTER_S`.
        every_s: Seconds between two looks at the event stream.
    """

    def __init__(
        self,
        folder: RunFolder,
        config: RunConfig,
        note: Callable[[str], None],
        *,
        first_after_s: float = _FIRST_AFTER_S,
        every_s: float = _EVERY_S,
    ) -> None:
        self._folder = folder
        self._config = config
        self._note = note
        self._first_after_s = first_after_s
        self._every_s = every_s
        self._news = EventReader(folder.events)
        self._stop = threading.Event()
        self._status: str | None = None
        self._has_warned = False
        self._environment = ExitStack()
        self._thread = threading.Thread(target=self._run, name="mlflow", daemon=True)

    def __enter__(self) -> "LiveLog":
        """Begin."""
        # Here, since another thread must not change the environment under one that starts processes.
        self._environment.enter_context(quiet_mlflow())
        list(self._news.poll())  # of an earlier start
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End: log what is left, for some seconds at most."""
        is_stopped = isinstance(error, Interrupted | KeyboardInterrupt)
        if error is not None:
            self._status = "KILLED" if is_stopped else "FAILED"
        self._stop.set()
        self._thread.join(_FLUSH_ON_STOP_S if is_stopped else _FLUSH_S)
        self._environment.close()

    def _run(self) -> None:
        if not self._wait_for_steps():
            return
        while not self._stop.is_set():
            try:
                self._follow()
            except Exception as error:  # whatever it is, the training is worth more
                self._warn(error)
                self._stop.wait(_AGAIN_AFTER_S)

    def _wait_for_steps(self) -> bool:
        """Whether the training has gone on for long enough; False if it ended before."""
        first_at = None
        while not self._stop.is_set():
            if first_at is None and any(isinstance(event, TrainStep) for event in self._news.poll()):
                first_at = time.monotonic()
            if first_at is not None and time.monotonic() - first_at >= self._first_after_s:
                return True
            self._stop.wait(min(1.0, self._every_s))
        return False

    def _follow(self) -> None:
        reader = EventReader(self._folder.events)
        events = list(reader.poll())
        with connect(self._config.registry.tracking_uri, self._folder.root, self._note) as connection:
            mirror = Mirror(connection, self._folder, self._config, events[0].time if events else None)
            mirror.resume()
            mirror.settings(self._config)
            account, told_s = Account(self._folder), 0.0
            while True:
                # Looked at before the events: what was written until the stop is logged.
                is_last = self._stop.is_set()
                mirror.write(events)
                mirror.attempts(events)
                account.take(events, time.time())
                if is_last or self._is_due(account, events, told_s):
                    ledger = Ledger.from_account(self._folder.run, account, time.time())
                    mirror.goodput(ledger)
                    told_s = 0.0 if ledger.totals is None else ledger.totals.wall_s
                if is_last:
                    if self._status is not None:
                        mirror.log.end(self._status)
                    return
                self._stop.wait(self._every_s)
                events = list(reader.poll())

    def _is_due(self, account: Account, events: list[Any], told_s: float) -> bool:
        """Whether the account is worth telling: after an incident, and as often as a curve of a month can use."""
        if any(isinstance(event, Incident | Decided) for event in events):
            return True
        totals = account.totals(time.time())
        return totals is not None and totals.wall_s > told_s + max(_GOODPUT_EVERY_S, _GOODPUT_SHARE * told_s)

    def _warn(self, error: Exception) -> None:
        if not self._has_warned and not self._stop.is_set():
            self._has_warned = True
            self._note(
                f"the training is not shown in MLflow while it runs, and goes on without; the register step will "
                f"log it: {error}"
            )
