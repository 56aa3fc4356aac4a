"""A slow, lossy link in place of a host's: netem where the kernel has it, else frames through this process.

`python -m tests.faults.link <host's namespace> <switch's namespace> <name> <address> <delay_s> <loss>` stands
between two TAP devices, one in the host and one in the switch, and delays and drops the frames that leave the
host.
"""

import contextlib
import fcntl
import heapq
import os
import random
import select
import struct
import subprocess
import sys
import time

from tests.faults.hosts import Host

_TUNSETIFF = 0x400454CA
_IFF_TAP = 0x0002
_IFF_NO_PI = 0x1000
_FRAME = 65_536


def slow_down(host: Host, *, delay_s: float = 0.2, loss: float = 0.05) -> subprocess.Popen[bytes] | None:
    """Delay and drop what leaves a host, from now on.

    Args:
        host: With a namespace.
        delay_s: Of every frame.
        loss: Share of frames that are dropped.

    Returns:
        The process that the frames go through; None with netem.
    """
    netem = f"tc qdisc add dev {host.interface} root netem delay {delay_s * 1000:.0f}ms loss {loss:.0%}"
    if subprocess.run(host.inside(netem.split()), capture_output=True).returncode == 0:
        return None
    command = [sys.executable, "-m", "tests.faults.link", host.namespace, f"{host.mark}-switch", host.name]
    link = subprocess.Popen(
        [*command, host.address, str(delay_s), str(loss)],
        stdout=subprocess.PIPE,
        env={**os.environ, "FAULTS_MARK": host.mark},
    )
    assert link.stdout is not None and link.stdout.readline() == b"ready\n", "the slow link did not come up"
    return link


def main(host: str, switch: str, name: str, address: str, delay_s: str, loss: str) -> None:
    """Move frames until killed."""
    inner, outer = _tap(host, "slow0"), _tap(switch, f"slow-{name}")
    mac = subprocess.run(
        ["ip", "netns", "exec", host, "cat", "/sys/class/net/eth0/address"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    _ip(f"-n {switch} link set dev slow-{name} master switch up")
    # The address first on both devices, so that connections never see it go.
    _ip(f"-n {host} link set dev slow0 address {mac} up")
    _ip(f"-n {host} address add {address}/24 dev slow0")
    _ip(f"-n {host} link delete dev eth0")
    _ip(f"-n {host} link set dev slow0 down")
    _ip(f"-n {host} link set dev slow0 name eth0")
    _ip(f"-n {host} link set dev eth0 up")
    print("ready", flush=True)
    _forward(inner, outer, float(delay_s), float(loss))


def _forward(inner: int, outer: int, delay_s: float, loss: float) -> None:
    dice = random.Random(0)
    waiting: list[tuple[float, int, bytes]] = []
    number = 0
    while True:
        timeout = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        ready, _, _ = select.select([inner, outer], [], [], timeout)
        if inner in ready:
            frame = os.read(inner, _FRAME)
            if dice.random() >= loss:
                number += 1
                heapq.heappush(waiting, (time.monotonic() + delay_s, number, frame))
        if outer in ready:
            _send(inner, os.read(outer, _FRAME))
        while waiting and waiting[0][0] <= time.monotonic():
            _send(outer, heapq.heappop(waiting)[2])


def _send(device: int, frame: bytes) -> None:
    with contextlib.suppress(OSError):  # the device is not up yet: a frame that is lost
        os.write(device, frame)


def _tap(namespace: str, name: str) -> int:
    """A TAP device in a namespace; the descriptor works from any."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    own = os.open("/proc/self/ns/net", os.O_RDONLY)
    there = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    assert libc.setns(there, 0) == 0, os.strerror(ctypes.get_errno())
    try:
        device = os.open("/dev/net/tun", os.O_RDWR)
        fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TAP | _IFF_NO_PI))
    finally:
        assert libc.setns(own, 0) == 0
        os.close(own)
        os.close(there)
    return device


def _ip(arguments: str) -> None:
    subprocess.run(["ip", *arguments.split()], check=True, capture_output=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
