"""What torch's distributed checkpoints raise, as errors that everybody catches."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch.distributed.checkpoint.api import CheckpointException

from training.patience import StorageError, is_of_disk


@contextmanager
def plain_errors() -> Iterator[None]:
    """Around a save or a load, of which torch tells what went wrong by a BaseException, past `except Exception`.

    Raises:
        StorageError: A disk does not do its work now, on one rank at least.
        RuntimeError: Anything else, with the words of each rank that failed.
    """
    try:
        yield
    except CheckpointException as error:
        failures = {rank: failure[0] for rank, failure in sorted(error.failures.items())}
        words = "; ".join(f"rank {rank}: {type(cause).__name__}: {cause}" for rank, cause in failures.items())
        kind = StorageError if is_of_disk(error) else RuntimeError
        raise kind(words) from next(iter(failures.values()), error)
