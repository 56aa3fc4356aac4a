"""Which held-out samples are of which data source."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class HeldoutSource:
    """Consecutive held-out samples of one data source.

    Attributes:
        name: Of the source.
        num_samples: How many of the samples are its own.
    """

    name: str
    num_samples: int


def heldout_sources(facts: Mapping[str, Any], num_samples: int) -> Sequence[HeldoutSource]:
    """The sources of a published data set, in the order in which their samples lie.

    Args:
        facts: The data set's manifest; one without `heldout_sources` was made from one source.
        num_samples: Held-out samples in all.
    """
    listed = facts.get("heldout_sources")
    if not listed:
        return [HeldoutSource(str(facts.get("source", "held-out rows")), num_samples)]
    sources = [HeldoutSource(str(entry["name"]), int(entry["num_samples"])) for entry in listed]
    assert sum(source.num_samples for source in sources) == num_samples, "sources that do not cover the samples"
    return sources
