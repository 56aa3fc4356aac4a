"""Reads the kernel's log: /dev/kmsg, or a file of such lines."""

import contextlib
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LOG_VARIABLE = "SHARDLINE_KERNEL_LOG"
"""A file that holds the kernel's log, for hosts that mount it elsewhere."""

_RECORD = re.compile(r"\d+,\d+,(?P<microseconds>\d+),[^;]*;(?P<text>.*)")
"""A record of /dev/kmsg: priority, number, microseconds since boot, flags (Documentation/ABI/testing/dev-kmsg)."""

_PRINTED = re.compile(r"(?:<\d+>)?\[\s*(?P<seconds>\d+\.\d+)\]\s?(?P<text>.*)")
"""A line as dmesg prints it."""

_RECORD_BYTES = 8192
"""A read of /dev/kmsg gives one record, and fails where it does not fit."""


@dataclass(frozen=True)
class Line:
    """A line of the log.

    Attributes:
        text: Without its head.
        uptime_s: Seconds from the boot of the machine to it; None where the line has no time.
    """

    text: str
    uptime_s: float | None


class KernelLog:
    """Follows a kernel log without ever waiting for it.

    Args:
        path: /dev/kmsg or a file; see `log_path`. It need not exist, and may come later.
        from_end: Begin with what comes from now on.
    """

    def __init__(self, path: Path, *, from_end: bool = False) -> None:
        self.path = path
        self._from_end = from_end
        self._descriptor: int | None = None
        self._rest = b""
        self._open()

    def lines(self) -> Iterator[Line]:
        """Lines since the last call."""
        self._reopen_if_replaced()
        if self._descriptor is None and not self._open():
            return
        assert self._descriptor is not None
        while True:
            try:
                part = os.read(self._descriptor, _RECORD_BYTES)
            except BrokenPipeError:
                continue  # records were overwritten before they were read: it goes on with the oldest
            except OSError:  # nothing new, or the log may not be read any more
                return
            if not part:
                return
            *whole, self._rest = (self._rest + part).split(b"\n")
            yield from (parse_line(line.decode(errors="replace")) for line in whole)

    def close(self) -> None:
        """End."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    @property
    def is_readable(self) -> bool:
        """Whether there is a log, and this process may read it."""
        return self._descriptor is not None

    def _open(self) -> bool:
        if self.path.is_dir():
            return False
        try:
            self._descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            # One that appears later is new from its first line on.
            self._from_end = False
            return False
        if self._from_end:
            with contextlib.suppress(OSError):  # a pipe has no end
                os.lseek(self._descriptor, 0, os.SEEK_END)
        return True

    def _reopen_if_replaced(self) -> None:
        """A log that was rotated or emptied is read from its beginning."""
        if self._descriptor is None:
            return
        here = os.fstat(self._descriptor)
        try:
            there = self.path.stat()
        except OSError:
            return
        was_emptied = self.path.is_file() and there.st_size < os.lseek(self._descriptor, 0, os.SEEK_CUR)
        if here.st_ino != there.st_ino or was_emptied:
            self.close()
            self._from_end, self._rest = False, b""


def log_path() -> Path:
    """Where this machine's kernel log is."""
    return Path(os.environ.get(LOG_VARIABLE, "/dev/kmsg"))


def parse_line(line: str) -> Line:
    """A line in the form of /dev/kmsg, of dmesg, or without a time."""
    if match := _RECORD.fullmatch(line):
        return Line(match["text"], int(match["microseconds"]) / 1e6)
    if match := _PRINTED.fullmatch(line):
        return Line(match["text"], float(match["seconds"]))
    return Line(line, None)


def recent(path: Path, window_s: float) -> list[Line] | None:
    """Lines of the last seconds, and those that have no time; None where the log cannot be read."""
    log = KernelLog(path)
    try:
        if not log.is_readable:
            return None
        now = time.monotonic()
        return [line for line in log.lines() if line.uptime_s is None or line.uptime_s >= now - window_s]
    finally:
        log.close()
