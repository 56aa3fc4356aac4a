"""What a long download needs: room, and a word now and then."""

import contextlib
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from training.errors import UserError

_PROGRESS_EVERY_S = 30.0


def check_room(folder: Path, num_bytes: int) -> None:
    """Check that a volume has room for what is still to come.

    Args:
        folder: Where it goes; what is there already counts.
        num_bytes: Of all weights.

    Raises:
        UserError: It has not.
    """
    there = _size(folder)
    free = shutil.disk_usage(folder).free
    if num_bytes - there > free:
        raise UserError(
            f"the model's weights are {num_bytes / 1e9:.1f} GB, but the volume of the store has "
            f"{free / 1e9:.1f} GB free: free some space or choose another store"
        )


@contextlib.contextmanager
def progress(folder: Path, num_bytes: int, note: Callable[[str], None]) -> Iterator[None]:
    """Say now and then how far a download is; the hub's own bars are made for terminals."""
    done = threading.Event()
    started = time.monotonic()

    def report() -> None:
        while not done.wait(_PROGRESS_EVERY_S):
            with contextlib.suppress(FileNotFoundError):  # a file was renamed while it was counted
                there, seconds = _size(folder), time.monotonic() - started
                note(f"{there / 1e9:.1f} of {num_bytes / 1e9:.1f} GB after {seconds:.0f} s")

    thread = threading.Thread(target=report, daemon=True)
    note(f"downloading {num_bytes / 1e9:.2f} GB of weights")
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
