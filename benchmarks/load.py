"""How far a rank's memory rises above its shard while a model is loaded from safetensors."""

import gc
import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from benchmarks.engine import on_ranks
from benchmarks.figure import Figure
from benchmarks.options import Options
from benchmarks.workload import quickstart_work
from training.build import build_model
from training.device import collective_backend, default_device
from training.model import load_weights
from training.precision import resolve_precision
from training.run_folder import RunFolder

_RESULT = "load.json"


def measure(options: Options) -> list[Figure]:
    """Load the quick start's model, each time in new processes: what was used once is seldom given back."""
    work = quickstart_work(options.store, 1)
    rounds = [
        on_ranks("benchmarks.load", work, options, lambda path: json.loads((path / _RESULT).read_text()))
        for _ in range(options.repetitions)
    ]
    return [
        Figure("load.shard_mib", [each["shard"] / 2**20 for each in rounds]),
        Figure("load.beyond_shard_mib", [each["beyond"] / 2**20 for each in rounds], at_most=64),
    ]


def main(run_folder: str) -> None:
    """A rank's part."""
    folder = RunFolder.at(run_folder)
    config, inputs, device = folder.config(), folder.inputs(), default_device()
    dist.init_process_group(collective_backend(device))
    compute = resolve_precision(config.training.precision, device)
    gc.collect()
    before = _memory("VmRSS")
    _forget_peak()
    model = build_model(config, inputs.model, device, compute)
    load_weights(model, inputs.model)
    peak = _memory("VmHWM")
    shard = sum(_local(p).numel() * p.element_size() for p in model.parameters())
    worst = torch.tensor([float(peak - before - shard), float(shard)])
    dist.all_reduce(worst, op=dist.ReduceOp.MAX)
    if dist.get_rank() == 0:
        (folder.path / _RESULT).write_text(json.dumps({"beyond": worst[0].item(), "shard": worst[1].item()}))
    dist.barrier()
    dist.destroy_process_group()


def _memory(field: str) -> int:
    """A field of this process's status, in bytes: VmRSS is resident now, VmHWM was at most."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def _forget_peak() -> None:
    """Let VmHWM begin anew at what is resident now."""
    Path("/proc/self/clear_refs").write_text("5")


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


if __name__ == "__main__":
    main(sys.argv[1])
