"""New weights, for training that starts from none.

Each architecture's own rules in transformers say how a weight is drawn. Only where the numbers come from is
changed: a weight is drawn in blocks, each from a generator that is seeded with the run's seed, the weight's name
and the block's number. So a rank draws no more than what it holds, and the values are the same at any number of
ranks, under any strategy, on any device.
"""

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

from training.errors import UserError
from training.shards import local_rows

_BLOCK = 2**20
"""Numbers that are drawn at once."""

_aten = torch.ops.aten
_DRAWS = (_aten.normal_.default, _aten.uniform_.default)


def init_weights(model: PreTrainedModel, seed: int) -> None:
    """Give a materialised model new weights, in place.

    Args:
        model: Sharded or not.
        seed: `training.seed`.

    Raises:
        UserError: transformers has no rule for some of the weights, or one that cannot be drawn in parts.
    """
    tied = set(model.all_tied_weights_keys)
    state = {name: value for name, value in model.state_dict(keep_vars=True).items() if name not in tied}
    drawing = _DrawInBlocks(type(model).__name__, state, seed)
    with torch.no_grad(), _without_padding(model), drawing:
        _apply_rules(model, model)
    missing = [name for name, value in state.items() if id(value) not in drawing.written]
    if missing:
        raise _unsupported(type(model).__name__, f"sets no first value for {missing[0]}")


class _DrawInBlocks(TorchDispatchMode):
    """Draws random numbers for a model's tensors in blocks; other operations stay as they are.

    Attributes:
        written: Ids of the tensors that were written to.
    """

    def __init__(self, model: str, state: dict[str, torch.Tensor], seed: int) -> None:
        super().__init__()
        self._model = model
        self._names = {id(value): name for name, value in state.items()}
        self._seed = seed
        self.written: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See one operation."""
        target = id(args[0]) if args else None
        if target in self._names and func._schema.is_mutable:
            self.written.add(target)
            if func in _DRAWS:
                key = f"{self._seed} {self._names[target]}"
                draw_blocks(args[0], key, lambda block, generator: func(block, *args[1:], generator=generator))
                return args[0]
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise _unsupported(self._model, f"draws by {func}")
        return func(*args, **(kwargs or {}))


def draw_blocks(tensor: torch.Tensor, key: str, draw: Callable[[torch.Tensor, torch.Generator], Any]) -> None:
    """Fill this rank's part of a tensor with random numbers.

    Args:
        tensor: Sharded by its first dimension, or whole; contiguous.
        key: With a number's place, what it depends on.
        draw: Fills a flat fp32 tensor in host memory, in place, from a generator.
    """
    rows, first_row = local_rows(tensor)
    part = rows.view(-1)
    begin = first_row * (tensor.numel() // max(1, tensor.shape[0]))
    end = begin + part.numel()
    for number in range(begin // _BLOCK, -(-end // _BLOCK)):
        at = number * _BLOCK
        block = torch.empty(min(_BLOCK, tensor.numel() - at))
        digest = hashlib.sha256(f"{key} {number}".encode()).digest()
        draw(block, torch.Generator().manual_seed(int.from_bytes(digest[:7], "big")))
        first, last = max(begin, at), min(end, at + len(block))
        part[first - begin : last - begin].copy_(block[first - at : last - at])


def _apply_rules(module: nn.Module, owner: PreTrainedModel) -> None:
    """Apply transformers' rules to a module, after those inside it, as transformers does."""
    for child in module.children():
        _apply_rules(child, child if isinstance(child, PreTrainedModel) else owner)
    owner._init_weights(module)


@contextlib.contextmanager
def _without_padding(model: PreTrainedModel) -> Iterator[None]:
    """Set the embedding of the padding token to zero at the end; the rule would gather all rows to find it."""
    padded = [m for m in model.modules() if isinstance(m, nn.Embedding) and m.padding_idx is not None]
    indices = [module.padding_idx for module in padded]
    for module in padded:
        module.padding_idx = None
    try:
        yield
    finally:
        for module, index in zip(padded, indices, strict=True):
            module.padding_idx = index
    for module in padded:
        rows, first = local_rows(module.weight)
        rows[max(0, module.padding_idx - first) : max(0, module.padding_idx - first + 1)] = 0


def _unsupported(model: str, why: str) -> UserError:
    return UserError(
        f"model.init is random, but transformers' rule for {model} {why}, which is not supported: set model.init "
        "to pretrained"
    )
