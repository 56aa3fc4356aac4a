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

_OF_DISKS = frozenset({errno.EIO, errno.ESTALE})
"""Those that no socket gives."""

_PATIENCE_S = 60.0

_PAUSE_S = 0.5

T = TypeVar("T")


def may_pass(error: OSError) -> bool:
    """Whether an error of a disk may be gone at the next try; a full disk or a missing permission is not."""
    return error.errno in _PASSING


def is_of_disk(error: BaseException) -> bool:
    """Whether an error, or what caused it, is one of a disk that may pass.

    Args:
        error: Any; torch's distributed checkpoints gather those of all ranks in one of their own.
    """
    if isinstance(error, OSError) and may_pass(error):
        # The others are also of connections between ranks, which have no file.
        return error.errno in _OF_DISKS or error.filename is not None
    wrapped = [failure[0] for failure in getattr(error, "failures", {}).values()]
    causes = [cause for cause in (error.__cause__, *wrapped) if cause is not None and cause is not error]
    return any(map(is_of_disk, causes))


class StorageError(Exception):
    """A disk does not do its work now, on this rank or another.

    Attributes:
        what: The class of the incident.
    """

    what = "storage"


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
