"""Groups of all ranks for what disks may hold up, and how ranks agree on what went wrong."""

from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

from training.errors import UserError
from training.patience import StorageError, is_of_disk

_TIMEOUT = timedelta(days=7)
"""A gloo group is of no use after its own timeout, and a disk that hangs may come back: what takes too long is
told by clocks of this package, and a rank that is dead by its connections."""


def disk_group() -> dist.ProcessGroup:
    """A group of all ranks whose collectives may take as long as a disk does. Collective."""
    return dist.new_group(backend="gloo", timeout=_TIMEOUT)


def any_rank(group: dist.ProcessGroup | None, *flags: bool) -> list[bool]:
    """For each flag, whether it is set on any rank. Collective."""
    found = torch.tensor([int(flag) for flag in flags])
    dist.all_reduce(found, op=dist.ReduceOp.MAX, group=group)
    return [bool(value) for value in found.tolist()]


def together(action: Callable[[], None], group: dist.ProcessGroup | None) -> None:
    """Do something on every rank, and raise on all of them what went wrong on one. Collective.

    Raises:
        UserError: This, or another rank, raised one.
        StorageError: Another rank's disk does not do its work now.
        RuntimeError: Another rank failed; with its words.
        Exception: What this rank raised.
    """
    error = None
    try:
        action()
    except Exception as caught:
        error = caught
    share_error(error, group)


def share_error(error: BaseException | None, group: dist.ProcessGroup | None) -> None:
    """Raise this rank's error, or one that says what another rank's is. Collective; see `together`."""
    if not any_rank(group, error is not None)[0]:
        return
    words: list[tuple[type[Exception], str] | None] = [None] * dist.get_world_size()
    dist.all_gather_object(words, None if error is None else _for_others(error), group=group)
    if error is not None:
        raise error
    for rank, word in enumerate(words):
        if word is not None:
            kind, text = word
            raise kind(text if kind is UserError else f"rank {rank}: {text}")


def _for_others(error: BaseException) -> tuple[type[Exception], str]:
    """What other ranks raise: its class, as far as that decides what becomes of the run, and its words."""
    if isinstance(error, UserError):
        return UserError, str(error)
    words = f"{type(error).__name__}: {error}"
    return (StorageError if isinstance(error, StorageError) or is_of_disk(error) else RuntimeError), words
