"""AdamW whose moments take 2 bytes or 1 byte a value instead of 4.

Steps are computed in fp32; only what is kept between them is rounded. Rounding is stochastic: an exponential
average mostly moves by less than half a unit of the short format, and rounded to the nearest it would stand
still. 8-bit values are float8 (e4m3) with a scale for every 256 of them, so that an outlier costs only its block
its digits (block-wise quantisation: Dettmers et al., 2022, arXiv:2110.02861). Blocks never cross rows, and
parameters are sharded by rows, so a checkpoint loads at any world size exactly.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch.distributed.tensor import DTensor

from training.shards import local_part

_BLOCK = 256
_FLOAT8 = torch.float8_e4m3fn
_MANTISSA_BITS = {torch.bfloat16: 7, _FLOAT8: 3}
_SMALLEST_FLOAT8 = 2.0**-9
_MOMENTS = ("exp_avg", "exp_avg_sq")


class SmallAdamW(torch.optim.Optimizer):
    """AdamW with moments in `bf16` or `8bit`.

    Args:
        groups: Parameter groups, each with its `weight_decay`. Parameters are fp32, whole or sharded by rows. The
            moments of those with one dimension stay in fp32: they are few.
        kind: `bf16` or `8bit`.
        lr: Learning rate.
        betas: Decay of the moments.
        eps: Added to the root of the second moment.
        seed: Of the rounding; with the step and the parameter's number it gives the same bits in every run.
    """

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        kind: str,
        *,
        lr: float,
        betas: tuple[float, float],
        eps: float,
        seed: int,
    ) -> None:
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0})
        self._dtype = {"bf16": torch.bfloat16, "8bit": _FLOAT8}[kind]
        self._seed = seed

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """One step of every parameter that has a gradient."""
        assert closure is None
        parameters = [(group, parameter) for group in self.param_groups for parameter in group["params"]]
        for number, (group, parameter) in enumerate(parameters):
            if parameter.grad is not None:
                self._step(parameter, group, number)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state. torch casts it to fp32, which holds every short value, and it is cast back here."""
        super().load_state_dict(state_dict)
        for parameter, state in self.state.items():
            for name in _MOMENTS:
                state[name] = state[name].to(self._dtype_of(parameter))

    def _step(self, parameter: torch.Tensor, group: dict[str, Any], number: int) -> None:
        state = self.state[parameter]
        if not state:
            self._begin(parameter, state)
        state["step"] += 1
        steps = int(state["step"])
        beta1, beta2 = group["betas"]
        value, gradient = local_part(parameter), local_part(parameter.grad).float()
        first = _read(state, "exp_avg").lerp_(gradient, 1 - beta1)
        # The root of the second moment is kept: it spans half as many orders of magnitude.
        root = _read(state, "exp_avg_sq").square_().lerp_(gradient.square(), 1 - beta2).sqrt_()
        value.mul_(1 - group["lr"] * group["weight_decay"])
        denominator = (root / (1 - beta2**steps) ** 0.5).add_(group["eps"])
        value.addcdiv_(first, denominator, value=-group["lr"] / (1 - beta1**steps))
        seed = np.random.SeedSequence((self._seed, number, steps)).generate_state(1)[0]
        noise = torch.Generator(value.device).manual_seed(int(seed))
        _write(state, "exp_avg", first, noise)
        _write(state, "exp_avg_sq", root, noise)

    def _begin(self, parameter: torch.Tensor, state: dict[str, Any]) -> None:
        state["step"] = torch.tensor(0.0)
        dtype = self._dtype_of(parameter)
        for name in _MOMENTS:
            state[name] = torch.zeros_like(parameter, dtype=dtype)
            if dtype == _FLOAT8:
                state[f"{name}_scale"] = _zeros_by_row(parameter)

    def _dtype_of(self, parameter: torch.Tensor) -> torch.dtype:
        return self._dtype if parameter.ndim >= 2 else torch.float32


def _read(state: dict[str, Any], name: str) -> torch.Tensor:
    """A moment in fp32, in memory of its own."""
    kept = local_part(state[name])
    value = kept.to(torch.float32, copy=True)
    if kept.dtype != _FLOAT8:
        return value
    scale = local_part(state[f"{name}_scale"]).repeat_interleave(_BLOCK, dim=1)
    rows = value.flatten(1)
    return rows.mul_(scale[:, : rows.shape[1]]).view_as(kept)


def _write(state: dict[str, Any], name: str, value: torch.Tensor, noise: torch.Generator) -> None:
    kept = local_part(state[name])
    if kept.dtype == torch.float32 or not kept.numel():
        kept.copy_(value)
        return
    if kept.dtype != _FLOAT8:
        kept.copy_(_round(value, kept.dtype, noise))
        return
    rows = value.flatten(1)
    padding = -rows.shape[1] % _BLOCK
    blocks = torch.nn.functional.pad(rows, (0, padding)).unflatten(1, (-1, _BLOCK))
    largest = torch.finfo(_FLOAT8).max
    # Of a block of zeros every scale is right but 0.
    scale = (blocks.abs().amax(dim=2) / largest).clamp_(min=torch.finfo(torch.float32).tiny)
    scaled = _round(blocks / scale[..., None], _FLOAT8, noise).clamp_(-largest, largest)
    if name == "exp_avg_sq":
        # A second moment that rounds to 0 would divide by eps alone.
        scaled = scaled.clamp_(min=_SMALLEST_FLOAT8)
    kept.copy_(scaled.flatten(1)[:, : rows.shape[1]].view_as(kept).to(_FLOAT8))
    local_part(state[f"{name}_scale"]).copy_(scale)


def _round(value: torch.Tensor, dtype: torch.dtype, noise: torch.Generator) -> torch.Tensor:
    """Round fp32 values to what `dtype` holds, up or down by chance in proportion to the distance."""
    dropped = 23 - _MANTISSA_BITS[dtype]
    bits = torch.randint(0, 2**dropped, value.shape, dtype=torch.int32, device=value.device, generator=noise).add_(
        value.view(torch.int32)
    )
    return bits.bitwise_and_(-(2**dropped)).view(torch.float32)


def _zeros_by_row(parameter: torch.Tensor) -> torch.Tensor:
    """fp32 zeros [rows, blocks in a row], sharded as the parameter's rows are."""
    columns = -(-parameter.shape[1:].numel() // _BLOCK)
    if not isinstance(parameter, DTensor):
        return parameter.new_zeros(parameter.shape[0], columns)
    local = parameter.to_local()
    return DTensor.from_local(
        local.new_zeros(local.shape[0], columns),
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=torch.Size((parameter.shape[0], columns)),
        stride=(columns, 1),
    )
