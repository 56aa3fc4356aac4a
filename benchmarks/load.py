"""How far a rank's memory rises above its shard while a model is loaded from safetensors.

Counted is memory that the rank owns: anonymous and shared pages. Pages of the file itself, which loading maps, are
the system's cache of the disk; it takes them back when memory is short. They are shown for scale.
"""

import gc
import json
import sys
import threading
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

_OWNED = ("RssAnon", "RssShmem")
_MAPPED = ("RssFile",)


def measure(options: Options) -> list[Figure]:
    """Load the quick start's model, each time in new processes: what was used once is seldom given back."""
    work = quickstart_work(options.store, 1)
    rounds = [
        on_ranks("benchmarks.load", work, options, lambda path: json.loads((path / _RESULT).read_text()))
        for _ in range(options.repetitions)
    ]
    return [
        Figure("load.shard_mib", [each["shard"] / 2**20 for each in rounds]),
        Figure("load.mapped_file_mib", [each["mapped"] / 2**20 for each in rounds]),
        Figure("load.beyond_shard_mib", [each["beyond"] / 2**20 for each in rounds], at_most=64),
    ]


def main(run_folder: str) -> None:
    """A rank's part."""
    folder = RunFolder.at(run_folder)
    config, inputs, device = folder.config(), folder.inputs(), default_device()
    dist.init_process_group(collective_backend(device))
    compute = resolve_precision(config.training.precision, device)
    gc.collect()
    before, mapped_before = _memory(_OWNED), _memory(_MAPPED)
    with _Peak() as peak:
        model = build_model(config, inputs.model, device, compute)
        load_weights(model, inputs.model)
    shard = sum(_local(p).numel() * p.element_size() for p in model.parameters())
    worst = torch.tensor([float(peak.owned - before - shard), float(peak.mapped - mapped_before), float(shard)])
    dist.all_reduce(worst, op=dist.ReduceOp.MAX)
    if dist.get_rank() == 0:
        result = dict(zip(("beyond", "mapped", "shard"), worst.tolist(), strict=True))
        (folder.path / _RESULT).write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


class _Peak:
    """The most memory of this process while the block ran, looked at every few milliseconds.

    Attributes:
        owned: Most bytes that were owned.
        mapped: Most bytes of mapped files that were resident.
    """

    def __init__(self) -> None:
        self.owned = 0
        self.mapped = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        while not self._done.wait(0.002):
            self._look()

    def _look(self) -> None:
        self.owned = max(self.owned, _memory(_OWNED))
        self.mapped = max(self.mapped, _memory(_MAPPED))

    def __enter__(self) -> "_Peak":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()
        self._look()


def _memory(fields: tuple[str, ...]) -> int:
    """The sum of fields of this process's status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.split(":")[0] in fields)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


if __name__ == "__main__":
    main(sys.argv[1])
