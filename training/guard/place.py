"""Where each node of an attempt is: written by the node itself, for the supervisor and for its peers.

<job>/attempts/<n>/nodes/<node>.json
"""

import json
import os
import socket
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from training.store import write_atomically


@dataclass(frozen=True)
class Place:
    """A node of an attempt.

    Attributes:
        node: Its number.
        host: Its machine.
        address: At which its peers reach it.
        port: That answers to peers who measure the network; 0: none.
        pid: Of the node's process.
        ranks: Global, that run on it.
    """

    node: int
    host: str
    address: str
    port: int
    pid: int
    ranks: tuple[int, ...]


def host_name() -> str:
    """The machine: as whoever started this process says, or its own name."""
    return os.environ.get("SHARDLINE_HOST") or socket.gethostname()


def own_address(endpoint: str) -> str:
    """The address of this machine on the way to the rendezvous.

    Args:
        endpoint: HOST:PORT of the rendezvous.
    """
    host = endpoint.rpartition(":")[0].strip("[]") or endpoint
    for family in (socket.AF_INET, socket.AF_INET6):
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 9))  # sends nothing
            return str(probe.getsockname()[0])
    return "127.0.0.1"


def write_place(attempt: Path, place: Place) -> None:
    """Publish a node's place.

    Args:
        attempt: The attempt's folder.
        place: Of this node.
    """
    write_atomically(attempt / "nodes" / f"{place.node}.json", json.dumps(asdict(place)))


def read_places(attempt: Path) -> dict[int, Place]:
    """The places of the nodes that have told so far, by their number."""
    places = {}
    for path in (attempt / "nodes").glob("*.json"):
        with suppress(OSError, ValueError, TypeError):
            content = json.loads(path.read_text())
            places[content["node"]] = Place(**{**content, "ranks": tuple(content["ranks"])})
    return places
