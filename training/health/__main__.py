"""`python -m training.health`: the quick checks of this machine, a line each.

For containers without the command line. Exits with 0, or with 201 if a check failed. As an init container it keeps
a pod from starting on a bad machine.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

from training.errors import EXIT_INVALID, UserError
from training.health.network import Peer
from training.health.policy import load_policy, policy_of
from training.health.quick import run_quick
from training.health.result import CheckResult, exit_code
from training.run_folder import RunFolder


def main(arguments: list[str]) -> int:
    """Check, print and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m training.health", description=__doc__)
    parser.add_argument("--run", type=Path, help="the run's folder: its policy, and the disk to check")
    parser.add_argument("--policy", type=Path, help="YAML with other thresholds and rules for XIDs")
    parser.add_argument("--disk", type=Path, help="folder on the disk to check; by default the temporary one")
    parser.add_argument("--gpus", type=int, help="how many GPUs there have to be")
    parser.add_argument("--peer", action="append", default=[], metavar="HOST:PORT", help="another node to reach")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args(arguments)
    try:
        folder = RunFolder.at(given.run) if given.run else None
        policy = policy_of(folder) if folder and not given.policy else load_policy(given.policy)
        disk = given.disk or (folder.path if folder else Path(tempfile.gettempdir()))
        peers = [parse_peer(text) for text in given.peer]
    except UserError as error:
        print(error, file=sys.stderr)
        return EXIT_INVALID
    results = run_quick(policy, disk, num_gpus=given.gpus, peers=peers)
    print(json.dumps([result.as_dict() for result in results]) if given.json else "\n".join(map(as_line, results)))
    return exit_code(results)


def parse_peer(text: str) -> Peer:
    """HOST:PORT.

    Raises:
        UserError: It is not.
    """
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 2**16:
        raise UserError(f"the peer {text!r} is no address: give HOST:PORT, as in 10.0.0.2:29500")
    return host.strip("[]"), int(port)


def as_line(result: CheckResult) -> str:
    """A result as a line of a log."""
    advice = f" → {result.advice}" if result.advice else ""
    return f"{result.status.replace('_', ' '):<12}{result.name:<14}{result.text}{advice}"


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    # A check that hangs must not keep this process.
    os._exit(code)
