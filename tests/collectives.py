"""Counting collectives, and the bytes that one rank hands to them."""

from collections import Counter

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_KINDS = {
    "_allgather_base_": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter",
    "allreduce_": "all_reduce",
}


class CountCollectives(TorchDispatchMode):
    """Counts of collectives by kind while it is entered; `num_bytes` counts what a rank sends of its own."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()
        self.num_bytes = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "c10d":
            kind = _KINDS.get(func._opname, func._opname)
            self.counts[kind] += 1
            # (output, input, ...) for the first two, ([tensors], ...) for an all-reduce.
            sent = args[0] if kind == "all_reduce" else [args[1]]
            self.num_bytes[kind] += sum(t.numel() * t.element_size() for t in sent if torch.is_tensor(t))
        return func(*args, **(kwargs or {}))
