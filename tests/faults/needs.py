"""What a fault needs of the machine, and why it cannot be injected where that is missing."""

import functools
import os
import shutil
import subprocess

TOOLS = {
    "namespaces": ("ip", "nsenter"),
    "firewall": ("ip", "nsenter", "iptables"),
    "cgroups": (),
    "mounts": ("mount", "umount", "mkfs.ext4", "fsfreeze"),
}
"""Kind of need → programs."""


@functools.cache
def missing(need: str) -> str | None:
    """Why a need is not met here; None if it is."""
    if os.geteuid() != 0:
        return f"{need} need root"
    if absent := [tool for tool in TOOLS[need] if shutil.which(tool) is None]:
        return f"{need} need {', '.join(absent)}"
    return _try(need)


def _try(need: str) -> str | None:
    if need in ("namespaces", "firewall"):
        # A namespace of its own, which goes with the process.
        command = ["unshare", "--net", *(["iptables", "-L"] if need == "firewall" else ["true"])]
        done = subprocess.run(command, capture_output=True, text=True)
        return None if done.returncode == 0 else f"{need} cannot be made here: {done.stderr.strip()}"
    if need == "cgroups":
        from tests.faults.cgroups import Cgroup
        from tests.faults.marks import own_mark

        try:
            group = Cgroup(f"{own_mark()}-probe")
            group.limit_cpu(None)
            group.limit_memory(None)
        except OSError as error:
            return f"cgroups cannot be made here: {error}"
        for folder in set(group.folders.values()):
            folder.rmdir()
    return None
