"""Checks whether names are resolved and other nodes can be reached."""

import ipaddress
import socket
import time
from collections.abc import Sequence

from training.health.policy import Thresholds
from training.health.result import CheckResult

Peer = tuple[str, int]
"""Host and port."""


def check_dns(peers: Sequence[Peer]) -> CheckResult:
    """Resolve the names of the other nodes; a pod that is still to come has none yet, so it only warns.

    Args:
        peers: Of the other nodes.
    """
    names = sorted({host for host, _ in peers if not _is_address(host)})
    if not names:
        return CheckResult("dns", "not_present", "no names of other nodes to resolve")
    started = time.monotonic()
    unknown = [name for name in names if not _resolves(name)]
    took_s = round(time.monotonic() - started, 3)
    if unknown:
        text = f"no address is known of {', '.join(unknown)}"
        return CheckResult(
            "dns", "warning", text, {"seconds": took_s}, "look at the cluster's DNS and /etc/resolv.conf"
        )
    return CheckResult("dns", "ok", f"{len(names)} names resolved in {took_s:.3f} s", {"seconds": took_s})


def check_peers(limits: Thresholds, peers: Sequence[Peer]) -> CheckResult:
    """Try to reach the other nodes by TCP. One that refuses is there: its ranks are not up yet.

    A machine fails if it reaches none of several; of a single connection it cannot be told which end is at fault.

    Args:
        limits: Thresholds.
        peers: Of the other nodes.
    """
    if not peers:
        return CheckResult("peers", "not_present", "no other node is known")
    away = {
        f"{host}:{port}": why for host, port in peers if (why := _unreachable(host, port, limits.peer_timeout_s))
    }
    measured = {"num_peers": len(peers), "unreachable": sorted(away)}
    if not away:
        return CheckResult("peers", "ok", f"{len(peers)} reached", measured)
    text = "; ".join(f"{peer} is not reached ({why})" for peer, why in away.items())
    advice = "look at the network, its policies and the firewall between these nodes"
    is_cut_off = len(away) == len(peers) > 1
    return CheckResult("peers", "failed" if is_cut_off else "warning", text, measured, advice)


def _unreachable(host: str, port: int, timeout_s: float) -> str:
    """Why there is no way to the host; empty if it answers, even by a refusal."""
    try:
        socket.create_connection((host, port), timeout_s).close()
    except ConnectionRefusedError:
        return ""
    except OSError as error:
        return error.strerror or str(error) or type(error).__name__
    return ""


def _resolves(name: str) -> bool:
    try:
        return bool(socket.getaddrinfo(name, None))
    except OSError:
        return False


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
