"""How ranks agree to stop between two micro-batches, without waiting for each other."""

import torch
import torch.distributed as dist


class StopAgreement:
    """Lets all ranks stop at the same place, soon after any one was asked to. Collective.

    A rank's answer travels over the hosts' network while the next micro-batch is computed, and is read after it.

    Args:
        group: Over the hosts, and of its own: its collectives run beside those of the training, and none waits for
            a device.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self._is_asked = torch.zeros(1, dtype=torch.int32)
        self._travelling: dist.Work | None = None

    def __call__(self, is_asked: bool) -> bool:
        """Tell the others whether this rank is asked to stop; collective, like a pass.

        Returns:
            Whether any rank said so at the call before, which is the same on all. After that, do not call again.
        """
        if self._read():
            return True
        self._is_asked.fill_(int(is_asked))
        self._travelling = dist.all_reduce(self._is_asked, dist.ReduceOp.MAX, self._group, async_op=True)
        return False

    def end(self) -> None:
        """Wait for what still travels, so that the group can be taken down."""
        self._read()

    def _read(self) -> bool:
        if self._travelling is None:
            return False
        self._travelling.wait()
        self._travelling = None
        return bool(self._is_asked.item())
