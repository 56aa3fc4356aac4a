"""Patience with a disk that stumbles: network disks give errors that pass by themselves."""

import errno
import time
from collections.abc import Callable
from typing import TypeVar

_PASSING = frozenset(
    {
        errno.EAGAIN,
        errno.EINTR,
        errno.EIO,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ECONNRESET,
        errno.ESTALE,
        errno.ETIMEDOUT,
    }
)

_PATIENCE_S = 60.0

_PAUSE_S = 0.5

T = TypeVar("T")


def may_pass(error: OSError) -> bool:
    """Whether an error of a disk may be gone at the next try; a full disk or a missing permission is not."""
    return error.errno in _PASSING


def patiently(call: Callable[[], T], patience_s: float = _PATIENCE_S) -> T:
    """Call again as long as it fails of what may pass.

    Args:
        call: Has to bear being called again after it was cut short.
        patience_s: Seconds until the last try.

    Raises:
        OSError: That of the last try, or one that does not pass.
    """
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return call()
        except OSError as error:
            if not may_pass(error) or time.monotonic() >= deadline:
                raise
        time.sleep(_PAUSE_S)
