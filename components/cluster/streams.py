"""Answers that last: read by one thread, and ended by another."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

_CHUNK = 2**16


class Stream:
    """The streamed answers that a thread reads one after the other, until somebody ends it.

    Attributes:
        ended: Set by `end`.
    """

    def __init__(self) -> None:
        self.ended = threading.Event()
        self._lock = threading.Lock()
        self._response: Any = None

    def chunks(self, response: Any) -> Iterator[bytes]:
        """What comes, as it comes; the connection is closed after it."""
        with self._lock:
            self._response = response
        try:
            # Asked with the answer in place: `end` either finds it, or was there before.
            if not self.ended.is_set():
                yield from response.stream(_CHUNK)
        finally:
            with self._lock:
                self._response = None
            # Not released: what has not been read would be taken for the answer to the next request.
            response.close()

    def end(self) -> None:
        """Wake up the thread, wherever it waits, and let it read no more."""
        self.ended.set()
        with self._lock:
            if self._response is not None:
                with contextlib.suppress(OSError, ValueError, RuntimeError):
                    self._response.shutdown()


class Splitter:
    """Cuts a stream into lines, and lines that are too long at their end.

    Args:
        longest: Bytes that are kept of a line; a log may have none that ends.

    Attributes:
        rest: What has come of the next line.
    """

    def __init__(self, longest: int) -> None:
        self.rest = b""
        self._longest = longest

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that end in this chunk, without their ends."""
        whole = []
        *ended, rest = chunk.split(b"\n")
        for piece in ended:
            self._add(piece)
            whole.append(self.rest)
            self.rest = b""
        self._add(rest)
        return whole

    def _add(self, piece: bytes) -> None:
        self.rest += piece[: max(0, self._longest - len(self.rest))]


def lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """The lines, without their ends, as they come; the last one may be cut."""
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        yield from whole
    if rest:
        yield rest
