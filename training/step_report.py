"""What a step has to say of itself, gathered from all ranks and read when the device is done with it.

Reading a number from an accelerator holds up the host until the device has caught up, and the device then runs
dry. So a step's numbers are collected on the device and copied to the host in the background, and the loop reads
them a step later.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist

from training.clock import PhaseClock
from training.device import exact_dtype, to_device

_SUMMED = ("supervised", "tokens", "positions", "squared_lengths")
_FIELDS = ("loss", *_SUMMED, "memory_bytes", "probe_s", "wants_save", "wants_probe")


@dataclass(frozen=True)
class RankCounts:
    """What one rank brought into a step.

    Attributes:
        supervised: Tokens that the loss is taken over.
        tokens: Tokens, padding excluded.
        positions: Positions that were computed.
        squared_lengths: Sum of the squares of documents' lengths.
        memory_bytes: Highest memory of this rank so far.
        probe_s: Of the newest `DeviceProbe`; 0 if it is not new.
        wants_save: Whether this rank's clock wants a checkpoint.
        wants_probe: Whether this rank's clock wants a `DeviceProbe`.
    """

    supervised: int
    tokens: int
    positions: int
    squared_lengths: int
    memory_bytes: int
    probe_s: float = 0.0
    wants_save: bool = False
    wants_probe: bool = False


@dataclass(frozen=True)
class StepReport:
    """A step over all ranks.

    Attributes:
        loss: Nats per supervised token of the whole step.
        rank_losses: The same of every rank; None for a rank that had none to learn from.
        grad_norm: Global gradient norm before clipping.
        supervised: Tokens that the loss is taken over.
        tokens: Tokens, padding excluded.
        positions: Positions that were computed.
        squared_lengths: Sum of the squares of documents' lengths.
        memory_bytes: Highest memory of any rank.
        probe_s: Of every rank.
        wants_save: Whether the first rank wants a checkpoint.
        wants_probe: Whether the first rank wants a `DeviceProbe`.
        seconds: Of every phase, on this rank.
    """

    loss: float
    rank_losses: list[float | None]
    grad_norm: float
    supervised: int
    tokens: int
    positions: int
    squared_lengths: int
    memory_bytes: int
    probe_s: list[float]
    wants_save: bool
    wants_probe: bool
    seconds: dict[str, float]


class PendingReport:
    """A report on its way to the host. Collective.

    Args:
        loss: This rank's share of the step's loss, a scalar on the device.
        grad_norm: Global, a scalar on the device.
        counts: Of this rank.
        clock: Of the step, all phases marked.
    """

    def __init__(self, loss: torch.Tensor, grad_norm: torch.Tensor, counts: RankCounts, clock: PhaseClock) -> None:
        device, dtype = loss.device, exact_dtype(loss.device)
        known = [float(getattr(counts, name)) for name in _FIELDS[1:]]
        mine = torch.cat([loss.to(dtype)[None], to_device(torch.tensor(known, dtype=dtype), device)])
        gathered = mine.new_empty(dist.get_world_size() * len(_FIELDS))
        dist.all_gather_single(gathered, mine)
        norm = grad_norm.to(device, dtype)
        self._gathered = gathered.view(-1, len(_FIELDS)).to("cpu", non_blocking=True)
        self._norm = norm.to("cpu", non_blocking=True)
        self._clock = clock
        self._copied = None
        if device.type != "cpu":
            self._copied = torch.Event(device=device)
            self._copied.record()

    def read(self) -> StepReport:
        """The report; waits until the device is done with the step."""
        if self._copied is not None:
            self._copied.synchronize()
        columns = dict(zip(_FIELDS, self._gathered.t().tolist(), strict=True))
        total = {name: int(sum(columns[name])) for name in _SUMMED}
        # A rank's share is its sum over the supervised tokens of all ranks.
        rank_losses = [
            share * total["supervised"] / own if own else None
            for share, own in zip(columns["loss"], columns["supervised"], strict=True)
        ]
        return StepReport(
            loss=sum(columns["loss"]),
            rank_losses=rank_losses,
            grad_norm=self._norm.item(),
            supervised=total["supervised"],
            tokens=total["tokens"],
            positions=total["positions"],
            squared_lengths=total["squared_lengths"],
            memory_bytes=int(max(columns["memory_bytes"])),
            probe_s=columns["probe_s"],
            # One clock for all: the others' differ.
            wants_save=bool(columns["wants_save"][0]),
            wants_probe=bool(columns["wants_probe"][0]),
            seconds=self._clock.seconds(),
        )
