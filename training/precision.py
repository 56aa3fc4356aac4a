"""The precision of forward and backward passes."""

import torch

from training.errors import UserError

_BY_NAME = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp64": torch.float64}


def resolve_precision(precision: str, device: torch.device) -> torch.dtype:
    """The dtype to compute in.

    Args:
        precision: `training.precision` of the run.
        device: Where it computes. `auto` takes bf16 where the device has it natively, else fp32: emulated bf16
            is several times slower than fp32.

    Raises:
        UserError: The name is unknown.
    """
    if precision == "auto":
        return torch.bfloat16 if _has_native_bf16(device) else torch.float32
    if precision not in _BY_NAME:
        raise UserError(f"training.precision is {precision!r}: choose auto, {', '.join(_BY_NAME)}")
    return _BY_NAME[precision]


def master_dtype(compute: torch.dtype) -> torch.dtype:
    """The dtype of parameters, summed gradients and optimizer moments: never below fp32."""
    return torch.float64 if compute == torch.float64 else torch.float32


def _has_native_bf16(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type == "cpu":
        # No public query exists; oneDNN asks the same two flags.
        return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return True
