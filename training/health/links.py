"""Times all-reduces between two nodes, in a process group of their own: a broken link must not break the rest."""

import math
import threading
import time
from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist

_WARM_UP = 2
_TIMED = 5


def time_all_reduce(
    store: dist.Store, ranks: Sequence[int], rank: int, device: torch.device, num_bytes: int, timeout_s: float
) -> float:
    """Seconds of one all-reduce over some ranks, all of which call this; the median of several.

    Args:
        store: Of these ranks alone, for this measurement alone.
        ranks: Of both nodes, the same order for all.
        rank: This one.
        device: Where the tensor is; one without NCCL sends it through the host's network.
        num_bytes: Of the tensor.
        timeout_s: Of the whole measurement.

    Returns:
        Seconds; infinite, if it failed or took too long.
    """
    taken: list[float] = []

    def measure() -> None:
        try:
            taken.append(_measure(store, ranks.index(rank), len(ranks), device, num_bytes, timeout_s))
        except RuntimeError as error:
            print(f"the all-reduce over ranks {list(ranks)} failed: {error}", flush=True)

    # A communicator that cannot connect may never come back; the thread is left behind then.
    thread = threading.Thread(target=measure, name="all-reduce", daemon=True)
    thread.start()
    thread.join(timeout_s + 5)
    return taken[0] if taken else math.inf


def _measure(
    store: dist.Store, position: int, size: int, device: torch.device, num_bytes: int, timeout_s: float
) -> float:
    timeout = timedelta(seconds=timeout_s)
    uses_nccl = device.type != "cpu" and dist.get_default_backend_for_device(device.type) == "nccl"
    if uses_nccl:
        torch.accelerator.set_device_index(device.index)
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timeout
        group = dist.ProcessGroupNCCL(store, position, size, options)
    else:
        group = dist.ProcessGroupGloo(store, position, size, timeout)
    tensor = torch.ones(max(1, num_bytes // 4), device=device if uses_nccl else None)
    seconds = []
    for _ in range(_WARM_UP + _TIMED):
        started = time.perf_counter()
        group.allreduce([tensor]).wait(timeout)
        if uses_nccl:
            torch.accelerator.synchronize()
        seconds.append(time.perf_counter() - started)
        tensor.fill_(1)
    return sorted(seconds[_WARM_UP:])[_TIMED // 2]
