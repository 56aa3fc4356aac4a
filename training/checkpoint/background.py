"""A thread for what touches a disk: the disk may be slow, or hang, and no step waits for it."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue


class Background:
    """Does one thing after the other in a thread of its own.

    The thread does not keep the process from leaving.

    Args:
        name: The thread's.
        begin: Called in the thread first.
        timeout_s: After so many seconds, a thing counts as hung.
        on_hung: Called then, once, with what hangs.
        on_return: Called when it ends after all, with what it was and the seconds that it took.
    """

    def __init__(
        self,
        name: str,
        begin: Callable[[], None],
        timeout_s: float,
        on_hung: Callable[[str], None],
        on_return: Callable[[str, float], None],
    ) -> None:
        self._begin = begin
        self._timeout_s = timeout_s
        self._on_hung = on_hung
        self._on_return = on_return
        self._queue: SimpleQueue[tuple[str, Callable[[], None], Future[None]]] = SimpleQueue()
        self._num_open = 0
        self._failure: BaseException | None = None
        self._changed = threading.Condition()
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def submit(self, what: str, action: Callable[[], None]) -> Future[None]:
        """Do it after what was submitted before.

        Args:
            what: For messages.
            action: What it raises is kept for `take_failure`.
        """
        done: Future[None] = Future()
        with self._changed:
            self._num_open += 1
        self._queue.put((what, action, done))
        return done

    def wait(self, timeout_s: float) -> bool:
        """Wait until all is done, for so many seconds at most; whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: self._num_open == 0, timeout_s)

    @property
    def has_failed(self) -> bool:
        """Whether there is a failure to take."""
        return self._failure is not None

    def take_failure(self) -> BaseException | None:
        """The first thing that was raised since the last call."""
        failure, self._failure = self._failure, None
        return failure

    def _work(self) -> None:
        self._begin()
        while True:
            what, action, done = self._queue.get()
            failure = self._do(what, action)
            if failure is None:
                done.set_result(None)
            else:
                done.set_exception(failure)
            with self._changed:
                self._failure = self._failure or failure
                self._num_open -= 1
                self._changed.notify_all()

    def _do(self, what: str, action: Callable[[], None]) -> BaseException | None:
        started, hung = time.monotonic(), threading.Event()

        def tell() -> None:
            hung.set()
            self._on_hung(what)

        alarm = threading.Timer(self._timeout_s, tell)
        alarm.daemon = True
        alarm.start()
        try:
            action()
        except BaseException as error:  # or the thread would end, and all that is submitted wait for ever
            return error
        finally:
            alarm.cancel()
            if hung.is_set():
                with suppress(Exception):
                    self._on_return(what, time.monotonic() - started)
        return None
