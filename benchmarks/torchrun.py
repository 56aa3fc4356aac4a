"""Starting a module of the benchmarks on several ranks."""

import os
import subprocess
import sys

from training.device import num_cores


def torchrun(module: str, argument: str, world_size: int, environment: dict[str, str]) -> None:
    """Run `python -m MODULE ARGUMENT` on every rank, to its end.

    Args:
        module: Its name.
        argument: Its only argument.
        world_size: Ranks, all on this machine.
        environment: Variables beside those of this process.

    Raises:
        RuntimeError: A rank failed; with the log.
    """
    # torchrun's own default is one thread a rank, which leaves cores idle where there are more of them.
    threads = str(max(1, num_cores() // world_size))
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world_size}"),
            *("-m", module, argument),
        ],
        env={**os.environ, "OMP_NUM_THREADS": threads, **environment},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"{module} failed:\n{done.stdout}\n{done.stderr}")
