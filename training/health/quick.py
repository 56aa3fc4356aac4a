"""The quick checks of a machine, all at once: what a node looks at before its ranks meet."""

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from training.health.clock import check_clock
from training.health.disk import check_disk
from training.health.fabric import check_fabric, check_memlock
from training.health.gpu import check_gpus
from training.health.kernel_log import log_path
from training.health.memory import check_memory
from training.health.network import Peer, check_dns, check_peers
from training.health.neuron import check_neuron
from training.health.policy import HealthPolicy
from training.health.result import CheckResult
from training.health.xid import check_xids

Check = Callable[[], CheckResult | list[CheckResult]]


def run_quick(
    policy: HealthPolicy,
    disk: Path,
    *,
    num_gpus: int | None = None,
    checkpoint_bytes: int | None = None,
    peers: Sequence[Peer] = (),
    clocks: Path | None = None,
    node: str = "",
    sys: Path = Path("/sys"),
    devices: Path = Path("/dev"),
    kernel_log: Path | None = None,
) -> list[CheckResult]:
    """Make all quick checks side by side, within `thresholds.quick_timeout_s`.

    Args:
        policy: What they are judged by.
        disk: A folder on the disk that checkpoints go to.
        num_gpus: How many there have to be; None: as many as there are.
        checkpoint_bytes: Size of a checkpoint, where it is known.
        peers: The other nodes.
        clocks: A folder that the nodes share, in which each writes its time; see `check_clock`.
        node: This node's name in it.
        sys: Where sysfs is mounted.
        devices: Where device files are.
        kernel_log: The kernel's log; by default `log_path()`.

    Returns:
        Results in a fixed order; a check that took too long has failed.
    """
    limits = policy.thresholds
    checks: dict[str, Check] = {
        "gpus": lambda: check_gpus(limits, num_gpus, devices=devices),
        "kernel_log": lambda: check_xids(policy, kernel_log or log_path()),
        "neuron": lambda: check_neuron(limits, sys=sys, devices=devices),
        "fabric": lambda: check_fabric(sys),
        "memlock": lambda: check_memlock(limits, sys),
        "disk": lambda: check_disk(limits, disk, checkpoint_bytes),
        "memory": lambda: check_memory(limits),
        "dns": lambda: check_dns(peers),
        "peers": lambda: check_peers(limits, peers),
        "clock": lambda: check_clock(limits, clocks, node),
    }
    # Name resolution and a disk have no time limit of their own that can be set.
    own = {"dns": limits.dns_timeout_s, "clock": limits.disk_timeout_s}
    return run_checks(checks, limits.quick_timeout_s, own)


def run_checks(
    checks: dict[str, Check], timeout_s: float, own_s: dict[str, float] | None = None
) -> list[CheckResult]:
    """Make checks side by side.

    Args:
        checks: Name → check.
        timeout_s: Seconds that all may take.
        own_s: Seconds that single ones may take.

    Returns:
        Results in the order of the checks; one that took too long, or that raised, has failed.
    """
    found: dict[str, list[CheckResult]] = {}

    def make(name: str, check: Check) -> None:
        try:
            result = check()
        except Exception as error:  # a check that cannot be made has told nothing good of the machine
            result = CheckResult(name, "failed", f"the check itself failed: {type(error).__name__}: {error}")
        found[name] = result if isinstance(result, list) else [result]

    started = time.monotonic()
    # Threads that nobody waits for at the end of the process: one of them may hang for good.
    threads = {
        name: threading.Thread(target=make, args=(name, check), name=f"check-{name}", daemon=True)
        for name, check in checks.items()
    }
    for thread in threads.values():
        thread.start()
    results = []
    for name, thread in threads.items():
        limit = min(timeout_s, (own_s or {}).get(name, timeout_s))
        thread.join(max(0.0, started + limit - time.monotonic()))
        late = [CheckResult(name, "failed", f"no result within {limit:g} s", advice="look at what it hangs on")]
        results += found.get(name, late)
    return results
