"""A thread that brings the cluster to where it should be, again after every change."""

import sys
import threading
import time
import traceback

IDLE = 1.0


class Controller:
    """Calls `step` after each change of the store, and at the times that it asks for.

    Args:
        step: Returns the seconds after which it wants to be called again, whatever happens, or `None`.
    """

    def __init__(self, store, name, step, lag=0.0):
        self._store = store
        self._step = step
        self._lag = lag
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def stop(self):
        with self._store.changed:
            self._stopped = True
            self._store.changed.notify_all()
        self._thread.join()

    def _run(self):
        while not self._stopped:
            seen = self._store.version
            again = IDLE
            try:
                again = min(IDLE, self._step() or IDLE)
            except Exception:
                traceback.print_exc(file=sys.stderr)
            with self._store.changed:
                if not self._stopped and self._store.version == seen:
                    self._store.changed.wait(again)
            if self._lag:
                time.sleep(self._lag)
