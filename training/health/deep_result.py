"""What the deep checks of a job came to: `<run>/health/deep.json`, and a copy in the attempt's folder."""

import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from training.health.blame import Blame, Burn
from training.health.pairing import PairTime
from training.store import write_atomically

NAME = "deep.json"


@dataclass(frozen=True)
class DeepResult:
    """Of all ranks.

    Attributes:
        hosts: The nodes' machines, by number.
        burns: What each rank computed.
        burn_tflops: What each rank reached, in the order of `burns`.
        pairs: Times of the two rounds of all-reduces between nodes.
        pair_bytes: Bytes of each.
        ranks_per_node: Ranks on a node.
        blames: Who fell short.
    """

    hosts: tuple[str, ...]
    burns: tuple[Burn, ...]
    burn_tflops: tuple[float, ...]
    pairs: tuple[tuple[PairTime, ...], tuple[PairTime, ...]] = ((), ())
    pair_bytes: int = 0
    ranks_per_node: int = 1
    blames: tuple[Blame, ...] = field(default=())

    @property
    def bad_hosts(self) -> dict[str, str]:
        """Machines that are not to be used → why."""
        found: dict[str, list[str]] = {}
        for blame in self.blames:
            for host in blame.hosts:
                found.setdefault(host, []).append(blame.text)
        return {host: "; ".join(texts) for host, texts in found.items()}

    def gbytes_per_s(self, pair: PairTime) -> float:
        """Bus bandwidth of a pair: an all-reduce over k ranks moves 2(k-1)/k of its bytes through every rank."""
        ranks = 2 * self.ranks_per_node
        moved = 2 * (ranks - 1) / ranks * self.pair_bytes
        return 0.0 if math.isinf(pair.seconds) else moved / pair.seconds / 1e9


def save_deep(result: DeepResult, path: Path) -> None:
    """Write it as JSON; infinite times become null."""
    content = asdict(result)
    for pairs in content["pairs"]:
        for pair in pairs:
            pair["seconds"] = None if math.isinf(pair["seconds"]) else pair["seconds"]
    write_atomically(path, json.dumps(content, indent=1))


def load_deep(path: Path) -> DeepResult | None:
    """What was saved; None where there is none, or it is of another version."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return DeepResult(
            hosts=tuple(content["hosts"]),
            burns=tuple(
                Burn(**{**burn, "results": tuple(map(tuple, burn["results"]))}) for burn in content["burns"]
            ),
            burn_tflops=tuple(content["burn_tflops"]),
            pairs=(_pairs(content["pairs"][0]), _pairs(content["pairs"][1])),
            pair_bytes=content["pair_bytes"],
            ranks_per_node=content["ranks_per_node"],
            blames=tuple(
                Blame(blame["fault"], tuple(blame["hosts"]), blame["text"]) for blame in content["blames"]
            ),
        )
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _pairs(pairs: list[dict[str, Any]]) -> tuple[PairTime, ...]:
    return tuple(
        PairTime((pair["nodes"][0], pair["nodes"][1]), math.inf if pair["seconds"] is None else pair["seconds"])
        for pair in pairs
    )
