"""Where a rank computes, without naming a vendor."""

import os
import resource
import sys

import torch


def default_device() -> torch.device:
    """The accelerator of this rank (by LOCAL_RANK), or the CPU."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None:
        return torch.device("cpu")
    return torch.device(accelerator.type, int(os.environ.get("LOCAL_RANK", "0")))


def use_device(device: torch.device) -> None:
    """Compute on `device` in this thread; a new thread would begin on the first accelerator of the host."""
    if device.type != "cpu":
        torch.accelerator.set_device_index(device.index)


def collective_backend(device: torch.device) -> str:
    """The process group's back end: the device's own, with gloo beside it for CPU tensors (checkpoints)."""
    if device.type == "cpu":
        return "gloo"
    return f"cpu:gloo,{device.type}:{torch.distributed.get_default_backend_for_device(device.type)}"


def peak_memory_bytes(device: torch.device) -> int:
    """Highest memory of this process so far: of the device's allocator, or resident set on a CPU."""
    if device.type != "cpu":
        return int(torch.accelerator.max_memory_allocated(device))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def processes_per_node() -> int:
    """Ranks that a node runs by default: one per accelerator; on a CPU two, or one where it has one core."""
    if torch.accelerator.is_available():
        return torch.accelerator.device_count()
    return min(2, num_cores())


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def exact_dtype(device: torch.device) -> torch.dtype:
    """The widest floating-point type that sums can be taken in: fp64 where the device has it."""
    return torch.float64 if device.type in ("cpu", "cuda", "xpu") else torch.float32


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy a tensor from the host without waiting for what the device is doing."""
    if device.type == "cpu":
        return tensor
    # Only from pinned memory can it be copied in the background.
    return tensor.pin_memory().to(device, non_blocking=True)
