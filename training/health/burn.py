"""Matrix products of which every rank must get the same bits."""

import platform
import time
from collections.abc import Callable

import torch

_PRODUCTS = 4
"""Different ones, so that a fault which some numbers do not show is shown by others."""

_SIZE = {"accelerator": 8192, "cpu": 384}
"""Rows and columns; a product then takes a few milliseconds."""

_SEED = 20260101


class Products:
    """The products of one rank.

    Args:
        device: Where they are computed: in bf16 on an accelerator, in fp32 on a CPU, where bf16 may be emulated.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        is_cpu = device.type == "cpu"
        self.size = _SIZE["cpu" if is_cpu else "accelerator"]
        self.dtype = torch.float32 if is_cpu else torch.bfloat16
        # Drawn on the CPU, so that the numbers are the same whatever the device; one by one, to take less memory.
        generator = torch.Generator().manual_seed(_SEED)
        shape = (self.size, self.size)
        self._matrices = [
            torch.randn(shape, generator=generator).to(device, self.dtype) for _ in range(_PRODUCTS + 1)
        ]
        self._weights = torch.arange(1, self.size + 1, device=device, dtype=torch.int64)

    def digests(self) -> torch.Tensor:
        """Compute all products once; a number for the bits of each.

        Returns:
            int64 of shape (number of products,), on the device.
        """
        first, *others = self._matrices
        return torch.stack([self._digest(first @ other) for other in others])

    def _digest(self, product: torch.Tensor) -> torch.Tensor:
        bits = product.view(torch.int32 if self.dtype == torch.float32 else torch.int16)
        # Wraps around where it is too great, which any order of adding does alike.
        return (bits.sum(dim=1, dtype=torch.int64) * self._weights).sum()

    @property
    def flops(self) -> float:
        """Operations of one call of `digests`: 2n³ a product."""
        return 2.0 * self.size**3 * _PRODUCTS

    def burn(self, rounds: int, on_round: Callable[[], None]) -> tuple[tuple[tuple[int, ...], ...], float]:
        """Compute all products again and again.

        Args:
            rounds: How often.
            on_round: Called after each, for signs of life.

        Returns:
            Every digest that came out, by product, and the seconds that it took.
        """
        seen: list[set[int]] = [set() for _ in range(_PRODUCTS)]
        started = time.perf_counter()
        for _ in range(rounds):
            for digests, value in zip(seen, self.digests().tolist(), strict=True):
                digests.add(value)
            on_round()
        seconds = time.perf_counter() - started
        return tuple(tuple(sorted(digests)) for digests in seen), seconds


def rounding_kind(device: torch.device) -> str:
    """What decides how a device rounds: its model, and of a CPU also the instructions and threads in use."""
    if device.type == "cpu":
        capability = torch.backends.cpu.get_cpu_capability()
        return f"cpu {platform.processor() or platform.machine()} {capability} {torch.get_num_threads()} threads"
    return str(torch.get_device_module(device).get_device_name(device))
